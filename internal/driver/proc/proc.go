// Package proc starts and ends processes for a program that is the first one of
// a sandbox: a [Table] reaps every child, its own and those that it inherits,
// gives each of its own its exit status, and ends everything that was started
// since a moment. It knows nothing of agents or git. Start at [New].
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Table is the processes that this program has started. Its methods may be
// called concurrently.
type Table struct {
	all bool

	// mu covers fork and registration, so that the reaper never sees a child of
	// ours that is not registered, and keeps a pid from being reused while it is signaled.
	mu    sync.Mutex
	procs map[int]*Process
}

// New makes a table. With all, [Table.Reap] reaps every child of this program, as
// a first process or a subreaper must; nothing else in the program may then wait
// for children. Without it each process of the table is waited for by itself.
func New(all bool) *Table {
	return &Table{all: all, procs: map[int]*Process{}}
}

// Spec says what to start.
type Spec struct {
	Args []string // a program without a slash is searched in PATH of Env
	Env  []string // whole environment
	Dir  string
	// Nil is the null device. The files stay open here.
	Stdin, Stdout, Stderr *os.File
	// Helper marks a process of the driver's own, which [Table.EndSince] leaves alone together with its children.
	Helper bool
	// Apart marks a process that [Table.EndOthersSince] leaves alone with all that is its.
	Apart bool
}

// Exit is how a process ended.
type Exit struct {
	Code   int    // -1 when ended by a signal
	Signal string // "killed"
}

// OK tells whether the process ended with status 0.
func (e Exit) OK() bool { return e.Code == 0 }

// String is like "exit status 3" or "signal: killed".
func (e Exit) String() string {
	if e.Signal != "" {
		return "signal: " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Process is one that was started.
type Process struct {
	PID    int
	helper bool
	apart  bool
	table  *Table
	done   chan struct{}
	exit   Exit // written before done is closed
	ended  bool // under the table's mu
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit tells how the process ended; valid once Done is closed.
func (p *Process) Exit() Exit { return p.exit }

// Signal goes to the process and the group that it leads. It does nothing once the process has ended.
func (p *Process) Signal(sig syscall.Signal) {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.ended {
		return
	}
	_ = syscall.Kill(-p.PID, sig) // the group may not exist yet or any more
	_ = syscall.Kill(p.PID, sig)
}

// Start runs a program as the leader of a session of its own.
func (t *Table) Start(s Spec) (*Process, error) {
	if len(s.Args) == 0 {
		return nil, errors.New("no command to start")
	}
	bin, err := lookPath(s.Args[0], s.Env, s.Dir)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open null device: %w", err)
	}
	defer null.Close()
	var fds []uintptr
	for _, f := range []*os.File{s.Stdin, s.Stdout, s.Stderr} {
		if f == nil {
			f = null
		}
		fd := f.Fd()
		_ = syscall.SetNonblock(int(fd), false) // programs expect blocking streams
		fds = append(fds, fd)
	}
	p := &Process{helper: s.Helper, apart: s.Apart, table: t, done: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, err := syscall.ForkExec(bin, s.Args, &syscall.ProcAttr{
		Dir: s.Dir, Env: s.Env, Files: fds,
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Args[0], err)
	}
	p.PID = pid
	t.procs[pid] = p
	if !t.all {
		go t.waitOne(p) // ends with the process, which the caller waits for
	}
	return p, nil
}

// Reap reaps until ctx ends.
func (t *Table) Reap(ctx context.Context) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	defer signal.Stop(ch)
	for {
		t.reap()
		select {
		case <-ch:
		case <-ctx.Done():
			return
		}
	}
}

func (t *Table) reap() {
	for {
		var ws syscall.WaitStatus
		t.mu.Lock()
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == nil && pid > 0 {
			t.ended(pid, ws)
		}
		t.mu.Unlock()
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}

// waitOne learns of the end without reaping, so that reaping happens under the lock.
func (t *Table) waitOne(p *Process) {
	for {
		if err := waitNoReap(p.PID); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(p.PID, &ws, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	t.ended(p.PID, ws)
}

// ended is called under mu.
func (t *Table) ended(pid int, ws syscall.WaitStatus) {
	p := t.procs[pid]
	if p == nil {
		return
	}
	delete(t.procs, pid)
	p.ended = true
	p.exit = Exit{Code: ws.ExitStatus()}
	if ws.Signaled() {
		p.exit = Exit{Code: -1, Signal: ws.Signal().String()}
	}
	close(p.done)
}

// lookPath finds a program as a shell would, with PATH of env.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) && dir != "" {
			return filepath.Join(dir, name), nil
		}
		return name, nil
	}
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			continue
		}
		f := filepath.Join(d, name)
		if st, err := os.Stat(f); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return f, nil
		}
	}
	return "", fmt.Errorf("program %q is not in PATH %s", name, path)
}
