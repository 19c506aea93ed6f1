package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// Deadlines of one call of the runtime. A sentry that hangs would hold kill and
// delete for ever.
const (
	createDeadline = 60 * time.Second
	startDeadline  = 60 * time.Second
	deleteDeadline = 10 * time.Second
	killDeadline   = 5 * time.Second
)

// flags are the runtime's global flags. They must be the same for every call on
// a sandbox, apart from the log and the overlay, which only create uses.
func (p *Provider) flags() []string {
	f := []string{
		"--root=" + p.runtimeDir(),
		"--platform=systrap",
		"--network=none",
		"--host-uds=open",
	}
	if p.cfg.Sidecars {
		f = append(f, "--sidecar-usage-policy=STRICT")
	}
	if p.cgroups.version == 0 {
		f = append(f, "--ignore-cgroups")
	}
	if !p.privileged {
		f = append(f, "--gofer-network-namespace=new") // there is nowhere to pin a shared one
	}
	return f
}

// command prepares a call of the runtime. It does not inherit our environment,
// and it is in a session of its own: what a terminal does to the server does
// not reach a sandbox.
func (p *Provider) command(args ...string) *exec.Cmd {
	cmd := &exec.Cmd{
		Path: p.cfg.Executable,
		Args: append(append([]string{"runsc"}, p.flags()...), args...),
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GVISOR_SIDECAR_BINARIES_DIR=" + p.sidecarDir()},
		Dir:  "/",
		SysProcAttr: &syscall.SysProcAttr{
			Setsid: true,
		},
	}
	if !p.privileged {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return cmd
}

// errDeadline is the cause when the runtime did not return in time.
var errDeadline = errors.New("the runtime did not return in time")

// call runs a sub-command whose stdio is of no interest: /dev/null, since create
// hands it on to the sandbox. What went wrong is read from the runtime's log.
func (p *Provider) call(ctx context.Context, b box, deadline time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, errDeadline)
	defer cancel()
	logged := size(b.log())
	cmd := p.command(append([]string{"--log=" + b.log(), "--panic-log=" + b.panicLog()}, args...)...)
	held, err := local.Hold(b.calls())
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{held}
	if err := errors.Join(cmd.Start(), held.Close()); err != nil {
		return fmt.Errorf("start the sandbox runtime: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }() // waited for below
	select {
	case err = <-done:
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		err = errors.Join(context.Cause(ctx), <-done)
		return fmt.Errorf("runsc %s: %w", verb(args), err)
	}
	if err == nil {
		return nil
	}
	return &runtimeError{verb: verb(args), message: lastError(b.log(), logged), cause: err}
}

func verb(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a
		}
	}
	return ""
}

// runtimeError is what the runtime itself said.
type runtimeError struct {
	verb, message string
	cause         error
}

func (e *runtimeError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("runsc %s: %v", e.verb, e.cause)
	}
	return fmt.Sprintf("runsc %s: %s", e.verb, e.message)
}

func (e *runtimeError) Unwrap() error { return e.cause }

const logTail = 16 << 10

func size(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// lastError reads the last message that the runtime wrote to its log after from.
// It writes JSON objects without anything between them.
func lastError(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	dec := json.NewDecoder(io.NewSectionReader(f, from, 1<<20))
	var last string
	for {
		var m struct{ Msg string }
		if dec.Decode(&m) != nil {
			return last
		}
		last = m.Msg
	}
}

// tail is the end of a file, for diagnosis.
func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if n := size(path); n > logTail {
		_, _ = f.Seek(n-logTail, io.SeekStart)
	}
	data, _ := io.ReadAll(io.LimitReader(f, logTail))
	return string(bytes.TrimSpace(data))
}

// startFault gives an error the code that says what a person can do about it.
func startFault(err error, format string, args ...any) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	message := fmt.Sprintf(format, args...)
	if text := err.Error(); strings.Contains(text, "fork/exec") && strings.Contains(text, unix.ENOSPC.Error()) { // clone(2): a limit of namespaces
		return fault.Wrap(err, fault.SandboxUnsupported, "%s The kernel allows no more user namespaces here (user.max_user_namespaces).", message)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		return fault.Wrap(err, fault.DiskFull, "%s The server's disk is full.", message)
	}
	var r *runtimeError
	if errors.As(err, &r) && r.message != "" {
		return fault.Wrap(err, fault.SandboxStartFailed, "%s The runtime said: %s", message, r.message)
	}
	return fault.Wrap(err, fault.SandboxStartFailed, "%s", message)
}
