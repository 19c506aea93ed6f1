package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
)

// starter brings up the state folder's server. Of several at once one starts a server,
// the others wait for it. It is used by one goroutine and ended with done.
type starter struct {
	a         *app
	cfg       config.Config
	token     string
	flags     []string // further ones of the server
	restarted string   // why the server before was ended; empty: it was not

	turn  *os.File // the right to start one; nil: it is somebody else's
	child *background
	asked bool // one was started, maybe by Env.StartServer
	tell  bool // that one was started
}

func (s *starter) done() {
	if s.turn != nil {
		_ = s.turn.Close() // gives the lock back
	}
}

// reach finds the server as it is wanted, and starts one when there is none.
func (s *starter) reach(ctx context.Context, want need) (*client.Client, error) {
	deadline := time.NewTimer(startWait)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		c, err := s.a.find(ctx, s.cfg, s.token, want)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil {
			s.say()
			return c, nil
		}
		if final(err) {
			return nil, err
		}
		if errors.Is(err, errNobody) {
			if err := s.start(ctx); err != nil {
				return nil, err
			}
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			if missing(err) == string(fault.SelfTestRunning) {
				s.say()
				return c, nil // a prompt waits for it on the server
			}
			return nil, s.late(err)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// final tells errors that waiting does not mend.
func final(err error) bool {
	var e *client.Error
	switch {
	case missing(err) == string(fault.SandboxUnsupported):
		return true
	case errors.As(err, &e):
		return e.Code == string(fault.Unauthenticated)
	}
	return fault.CodeOf(err) == fault.Unsupported
}

// missing is the code of what a server that answers is not ready for.
func missing(err error) string {
	var e *client.Error
	if !errors.As(err, &e) {
		return ""
	}
	code, _ := e.Details["code"].(string)
	return code
}

func (s *starter) say() {
	switch log := s.cfg.LogFile(); {
	case s.restarted != "":
		s.a.note("%s", s.a.style(s.a.Stderr).dim("Restarted the server in the background, since it had other settings: "+s.restarted))
	case s.tell && (s.child == nil || !s.child.over()):
		s.a.note("%s", s.a.style(s.a.Stderr).dim("Started a server in the background; its log is "+log))
	}
}

// start starts a server unless one is being started. One that ended because another was
// faster, which is gone by now, is started again.
func (s *starter) start(ctx context.Context) error {
	if s.child != nil {
		if !s.child.over() {
			return nil
		}
		if s.child.status != fault.KindConflict.ExitStatus() {
			why := s.child.said()
			if why == "" {
				why = fmt.Sprintf("it ended with status %d", s.child.status)
			}
			return s.failed(nil, why)
		}
	} else if s.asked {
		return nil
	}
	if s.a.StartServer != nil {
		started, err := s.a.StartServer(ctx, s.cfg)
		if err != nil {
			return s.cannot(err)
		}
		s.asked, s.tell = true, started
		return nil
	}
	if err := os.MkdirAll(s.cfg.StateDir, 0o700); err != nil {
		return s.cannot(fmt.Errorf("make the state folder: %w", err))
	}
	if s.turn == nil {
		f, err := takeTurn(s.cfg.StateDir)
		if err != nil {
			return s.cannot(err)
		}
		if f == nil {
			return nil
		}
		s.turn = f
		if pid, err := s.a.holder(s.cfg.StateDir); err != nil || pid != 0 {
			return err // somebody was faster
		}
	}
	child, err := s.a.startBackground(s.cfg, s.flags)
	if err != nil {
		return s.cannot(err)
	}
	s.child, s.tell = child, true
	return nil
}

func (s *starter) cannot(err error) error {
	return fault.Wrap(err, fault.ServerUnavailable, "No server runs for %s, and none could be started: %v.", s.cfg.StateDir, err)
}

func (s *starter) failed(err error, why string) error {
	return fault.Wrap(err, fault.ServerUnavailable, "The server was started and did not become ready: %s\nIts log is %s.", why, s.cfg.LogFile())
}

// late is the error for a server that took too long.
func (s *starter) late(err error) error {
	var e *client.Error
	switch pid := s.a.holderOf(s.cfg.StateDir); {
	case errors.As(err, &e) && e.Status != 0:
		return err // it says itself what it lacks
	case s.child == nil && pid != 0:
		return &client.Error{
			Code: string(fault.ServerUnavailable), Kind: string(fault.KindUnavailable), Message: fmt.Sprintf("The server that works on %s (process %d) does not answer.", s.cfg.StateDir, pid),
			Remedy: "See its log, or end it with `hearth stop`: the next command starts a new one.",
		}
	}
	why := sentenceOf(err.Error())
	if s.child != nil && s.child.said() != "" {
		why = s.child.said()
	}
	return s.failed(err, why)
}

// takeTurn takes the right to start a server on the folder until the file is closed; nil:
// another process has it.
func takeTurn(stateDir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(stateDir, "start"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of starts: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // it was only looked at
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("take the lock of starts: %w", err)
	}
	return f, nil
}

// background is a server that this process started.
type background struct {
	ended  chan struct{}
	status int // once ended
	log    string
	from   int64 // where its part of the log begins
}

func (b *background) over() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

// startBackground starts this program as a server in a session of its own, so
// that it outlives the command and its terminal.
func (a *app) startBackground(cfg config.Config, flags []string) (*background, error) {
	exe := a.Executable
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	log, err := os.OpenFile(cfg.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	b := &background{ended: make(chan struct{}), log: cfg.LogFile()}
	if st, err := log.Stat(); err == nil {
		b.from = st.Size()
	}
	args := append([]string{"serve", "--state-dir", cfg.StateDir}, flags...)
	if a.Getenv("HEARTH_IDLE_EXIT") == "" {
		args = append(args, "--idle-exit", config.AutostartIdleExit.String())
	}
	if a.Getenv("HEARTH_LISTEN") == "" {
		args = append(args, "--listen", "127.0.0.1:0") // found by server.json, so that no port can be in the way
	}
	cmd := exec.Command(exe, args...) //nolint:noctx // it outlives this command on purpose
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = cfg.StateDir
	cmd.Env = os.Environ()
	for _, f := range config.Fields() {
		if v := a.setting(f.Env()); v != "" && isPath(f) {
			cmd.Env = append(cmd.Env, f.Env()+"="+v) // it runs in another folder
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", exe, err)
	}
	// Waits for the server; nobody waits for it: it ends with the server or with this program.
	go func() {
		_ = cmd.Wait() // what it said is in the log
		b.status = cmd.ProcessState.ExitCode()
		close(b.ended)
	}()
	if err := a.keepSettings(cfg.StateDir, cmd.Process.Pid, flags); err != nil {
		a.note("%s", a.style(a.Stderr).dim(sanitizeLine(err.Error()))) // other settings will not be noticed
	}
	return b, nil
}

// said is the end of what the server wrote.
func (b *background) said() string {
	f, err := os.Open(b.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(b.from, io.SeekStart); err != nil {
		return ""
	}
	raw, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return ""
	}
	lines := strings.Split(string(bytes.TrimSpace(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "\n")
}
