package gvisor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

const execDeadline = time.Hour

// Exec runs a command beside pid 1. When ctx or the deadline of an hour ends
// first, the command's own process is killed; what it has started is not.
// Stdin's reader may be read once more after the return. A program that cannot
// be run is exit code 127, as a shell has it, with the reason on Stderr.
// Codes: SANDBOX_NOT_FOUND (also when pid 1 has ended), SANDBOX_UNREACHABLE.
func (p *Provider) Exec(ctx context.Context, h sandbox.Handle, c sandbox.Command) (sandbox.Exit, error) {
	return p.exec(ctx, h, c, nil)
}

// exec runs a command; program, when given, is the host's file that is executed
// instead of the guest's c.Args[0].
func (p *Provider) exec(ctx context.Context, h sandbox.Handle, c sandbox.Command, program *os.File) (sandbox.Exit, error) {
	none := sandbox.Exit{Code: -1}
	if len(c.Args) == 0 {
		return none, fault.New(fault.InvalidInput, "There is no command to run.")
	}
	info, err := p.Get(ctx, h)
	if err != nil {
		return none, err
	}
	switch info.State {
	case sandbox.Running:
	case sandbox.Absent:
		return none, notFound(h.ID)
	case sandbox.Stopped:
		return none, fault.New(fault.SandboxNotFound, "The sandbox %s has ended: %s.", h.ID, info.Exit)
	default:
		return none, fault.New(fault.SandboxUnreachable, "The sandbox %s is %s, so that no command can be run in it.", h.ID, info.State)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, execDeadline, errDeadline)
	defer cancel()
	b := p.box(h.ID)
	dir, err := os.MkdirTemp(b.dir, "exec-")
	if err != nil {
		if absent(err) {
			return none, notFound(h.ID)
		}
		return none, fmt.Errorf("make a folder for the command: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // it goes with the sandbox as well
	if c.Dir == "" {
		c.Dir = "/"
	}
	process, err := json.Marshal(specs.Process{Args: c.Args, Env: c.Env, Cwd: c.Dir, NoNewPrivileges: true})
	if err != nil {
		return none, err
	}
	if err := os.WriteFile(filepath.Join(dir, "process.json"), process, 0o600); err != nil {
		return none, err
	}
	run := execRun{p: p, box: b, dir: dir}
	return run.do(ctx, c, program)
}

// execRun is one command at work.
type execRun struct {
	p   *Provider
	box box
	dir string
}

func (x execRun) do(ctx context.Context, c sandbox.Command, program *os.File) (sandbox.Exit, error) {
	none := sandbox.Exit{Code: -1}
	logFile, pidFile := filepath.Join(x.dir, "log"), filepath.Join(x.dir, "pid")
	args := []string{"--log=" + logFile, "exec", "--process=" + filepath.Join(x.dir, "process.json"), "--internal-pid-file=" + pidFile}
	var files []*os.File
	if program != nil {
		args = append(args, fmt.Sprintf("--exec-fd=%d", 3+len(files)))
		files = append(files, program)
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return none, err
	}
	defer statusR.Close()
	args = append(args, fmt.Sprintf("--status-fd=%d", 3+len(files)), x.box.runtimeID())
	files = append(files, statusW)
	cmd := x.p.command(args...)
	var streams local.Streams
	defer streams.Close()
	if err := streams.Attach(cmd, c); err != nil {
		statusW.Close()
		return none, err
	}
	held, err := local.Hold(x.box.calls())
	if err != nil {
		statusW.Close()
		if absent(err) {
			return none, notFound(x.box.id)
		}
		return none, fmt.Errorf("begin the command: %w", err)
	}
	cmd.ExtraFiles = append(files, held)
	err = cmd.Start()
	held.Close()
	statusW.Close()
	if err != nil {
		return none, fault.Wrap(err, fault.SandboxUnreachable, "The sandbox runtime could not be started.")
	}
	streams.Started()
	waitErr, cause := x.wait(ctx, cmd, pidFile)
	streams.Drain()
	if cause != nil {
		return none, fault.Wrap(cause, fault.SandboxUnreachable, "The command was ended before it was done.")
	}
	_ = statusR.SetReadDeadline(time.Now().Add(time.Second)) // the writer has ended; nobody else has this pipe
	raw, _ := io.ReadAll(io.LimitReader(statusR, 32))
	if n, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 32); err == nil {
		ws := unix.WaitStatus(n)
		if ws.Signaled() {
			return sandbox.Exit{Code: -1, Signal: unix.SignalName(ws.Signal())}, nil
		}
		return sandbox.Exit{Code: ws.ExitStatus()}, nil
	}
	message := lastError(logFile, 0)
	if cannotRun(message) {
		return sandbox.Exit{Code: 127}, nil // the runtime has written why to stderr
	}
	if ended, how := x.ended(ctx); ended {
		return none, fault.New(fault.SandboxNotFound, "The sandbox %s ended while the command ran: %s.", x.box.id, how)
	}
	return none, fault.Wrap(errors.Join(waitErr, errors.New(message)), fault.SandboxUnreachable, "The sandbox runtime could not run the command.")
}

// endingLimit is how long a sandbox whose runtime broke off a command is given to end.
// A sentry that is killed stays a process until the kernel has taken back its memory.
const endingLimit = 5 * time.Second

// ended tells whether the sandbox has ended and how, when it may be about to.
func (x execRun) ended(ctx context.Context) (bool, string) {
	ctx, cancel := context.WithTimeout(ctx, endingLimit)
	defer cancel()
	for {
		info, err := x.p.info(ctx, x.box)
		if err == nil && (info.State == sandbox.Stopped || info.State == sandbox.Absent) {
			return true, cmp.Or(info.Exit, "it was removed")
		}
		if local.Wait(ctx, 20*time.Millisecond) != nil {
			return false, ""
		}
	}
}

// cannotRun tells the runtime's words for a program that is not there or not executable.
func cannotRun(message string) bool {
	for _, s := range []string{"error finding executable", "no such file or directory", "permission denied", "exec format error", "not a directory"} {
		if strings.Contains(message, s) && strings.Contains(message, "executing processes") {
			return true
		}
	}
	return false
}

// wait returns when the command has ended, or ends it when ctx does.
func (x execRun) wait(ctx context.Context, cmd *exec.Cmd, pidFile string) (err, cause error) {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }() // waited for below
	select {
	case err = <-done:
		return err, nil
	case <-ctx.Done():
	}
	cause = context.Cause(ctx)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	if data, err := os.ReadFile(pidFile); err == nil {
		if err := x.p.call(stop, x.box, killDeadline, "kill", "--pid="+strings.TrimSpace(string(data)), x.box.runtimeID(), "KILL"); err != nil {
			x.p.log.Warn("a command in a sandbox could not be killed", "sandbox", x.box.id, "error", err)
		}
	}
	select {
	case err = <-done:
	case <-stop.Done():
	case <-time.After(time.Second):
	}
	_ = cmd.Process.Kill()
	if err == nil {
		select {
		case err = <-done:
		case <-stop.Done():
		}
	}
	return err, cause
}

// guestFileName is the name under which our own executable, run inside the
// guest, reads or writes one file; package runsc has the other side. So no root
// needs to have any program for it.
const guestFileName = "hearth-guest-file"

// ReadFile reads a regular file of at most max bytes.
func (p *Provider) ReadFile(ctx context.Context, h sandbox.Handle, name string, max int64) ([]byte, error) {
	var out bytes.Buffer
	if err := p.guestFile(ctx, h, &out, nil, "read", name, strconv.FormatInt(max, 10)); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// WriteFile writes a file as a whole, making parent folders as needed.
func (p *Provider) WriteFile(ctx context.Context, h sandbox.Handle, name string, data []byte, mode fs.FileMode) error {
	return p.guestFile(ctx, h, nil, bytes.NewReader(data), "write", name, fmt.Sprintf("%o", mode.Perm()))
}

func (p *Provider) guestFile(ctx context.Context, h sandbox.Handle, out io.Writer, in io.Reader, verb, name, arg string) error {
	if !path.IsAbs(name) {
		return fault.New(fault.InvalidInput, "The path %q in the sandbox is not absolute.", name)
	}
	program, err := os.Open(p.cfg.Executable)
	if err != nil {
		return fmt.Errorf("open the program that reads files in the sandbox: %w", err)
	}
	defer program.Close()
	var stderr bytes.Buffer
	exit, err := p.exec(ctx, h, sandbox.Command{Args: []string{guestFileName, verb, name, arg}, Stdin: in, Stdout: out, Stderr: &stderr}, program)
	if err != nil {
		return err
	}
	switch exit.Code {
	case 0:
		return nil
	case 2:
		return fmt.Errorf("%s %s in the sandbox: %w", verb, name, fs.ErrNotExist)
	case 3:
		return fault.New(fault.DiskFull, "The sandbox's disk is full.")
	}
	return fmt.Errorf("%s %s in the sandbox: %s %s", verb, name, strings.TrimSpace(stderr.String()), exit.Signal)
}
