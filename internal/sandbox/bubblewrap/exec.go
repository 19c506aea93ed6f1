package bubblewrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// running returns the record of a sandbox that runs.
func (p *Provider) running(ctx context.Context, h sandbox.Handle) (record, error) {
	info, err := p.Get(ctx, h)
	if err != nil {
		return record{}, err
	}
	switch info.State {
	case sandbox.Running:
		r, err := p.box(h.ID).load()
		if err != nil {
			return r, notFound(h.ID)
		}
		return r, nil
	case sandbox.Absent:
		return record{}, notFound(h.ID)
	case sandbox.Stopped:
		return record{}, fault.New(fault.SandboxNotFound, "The sandbox %s has ended: %s.", h.ID, info.Exit)
	}
	return record{}, fault.New(fault.SandboxUnreachable, "The sandbox %s is %s, so that no command can be run in it.", h.ID, info.State)
}

// Exec runs a command in pid 1's namespaces. When ctx or the deadline of an
// hour ends first, the command's own process is killed; what it has started is
// not. Stdin's reader may be read once more after the return. A program that is
// not there is exit code 127, as a shell has it.
func (p *Provider) Exec(ctx context.Context, h sandbox.Handle, c sandbox.Command) (sandbox.Exit, error) {
	none := sandbox.Exit{Code: -1}
	if len(c.Args) == 0 {
		return none, fault.New(fault.InvalidInput, "There is no command to run.")
	}
	r, err := p.running(ctx, h)
	if err != nil {
		return none, err
	}
	if c.Dir == "" {
		c.Dir = "/"
	}
	ctx, cancel := context.WithTimeout(ctx, execDeadline)
	defer cancel()
	cmd := &exec.Cmd{
		Path: p.nsenter,
		Args: append([]string{"nsenter", fmt.Sprintf("--target=%d", r.Init.PID), "--user", "--mount", "--net", "--ipc", "--uts", "--pid",
			"--preserve-credentials", "--wdns=" + c.Dir, "--"}, c.Args...),
		Env:         append([]string{}, c.Env...),
		Dir:         "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if p.root { // the user who made the namespaces may enter them, and is root in there
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.cfg.UID), Gid: uint32(p.cfg.GID)}
	}
	var streams local.Streams
	defer streams.Close()
	if err := streams.Attach(cmd, c); err != nil {
		return none, err
	}
	if err := cmd.Start(); err != nil {
		return none, fault.Wrap(err, fault.SandboxUnreachable, "The sandbox could not be entered.")
	}
	streams.Started()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }() // waited for below
	select {
	case err = <-done:
	case <-ctx.Done():
		_ = local.KillAll(context.WithoutCancel(ctx), killDeadline, func() []int { return append(children(cmd.Process.Pid), cmd.Process.Pid) })
		err = <-done
		streams.Drain()
		return none, fault.Wrap(errors.Join(ctx.Err(), err), fault.SandboxUnreachable, "The command was ended before it was done.")
	}
	streams.Drain()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return sandbox.Exit{}, nil
	case !errors.As(err, &failed):
		return none, fault.Wrap(err, fault.SandboxUnreachable, "The command could not be waited for.")
	}
	if !r.Init.Alive() {
		return none, fault.New(fault.SandboxNotFound, "The sandbox %s ended while the command ran.", h.ID)
	}
	if ws := failed.Sys().(syscall.WaitStatus); ws.Signaled() { // nsenter ends itself by the command's signal
		return sandbox.Exit{Code: -1, Signal: unix.SignalName(ws.Signal())}, nil
	}
	return sandbox.Exit{Code: failed.ExitCode()}, nil
}

// children are the direct children of a process, see proc_pid_task_children(5).
func children(pid int) []int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var out []int
	for _, f := range strings.Fields(string(data)) {
		var n int
		if _, err := fmt.Sscan(f, &n); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// inside opens a path as pid 1 sees it: links and ".." are followed within its
// root and nowhere else, see openat2(2).
func inside(r record, name string, flags uint64, mode fs.FileMode) (*os.File, error) {
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", r.Init.PID), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if !r.Init.Alive() { // its number could be another's by now
		return nil, fs.ErrClosed
	}
	fd, err := unix.Openat2(int(root.Fd()), strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NONBLOCK,
		Mode:    uint64(mode.Perm()),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open in the sandbox", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ReadFile reads a regular file of at most max bytes.
func (p *Provider) ReadFile(ctx context.Context, h sandbox.Handle, name string, max int64) ([]byte, error) {
	if !path.IsAbs(name) {
		return nil, fault.New(fault.InvalidInput, "The path %q in the sandbox is not absolute.", name)
	}
	r, err := p.running(ctx, h)
	if err != nil {
		return nil, err
	}
	f, err := inside(r, path.Clean(name), unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s in the sandbox is not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > max {
		return nil, fmt.Errorf("%s in the sandbox has more than %d bytes", name, max)
	}
	return data, nil
}

// WriteFile writes a file as a whole, making parent folders as needed.
func (p *Provider) WriteFile(ctx context.Context, h sandbox.Handle, name string, data []byte, mode fs.FileMode) error {
	if !path.IsAbs(name) {
		return fault.New(fault.InvalidInput, "The path %q in the sandbox is not absolute.", name)
	}
	r, err := p.running(ctx, h)
	if err != nil {
		return err
	}
	name = path.Clean(name)
	dir, err := p.folder(r, path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	tmp := fmt.Sprintf(".hearth-%d-%d", os.Getpid(), p.now().UnixNano())
	fd, err := unix.Openat(int(dir.Fd()), tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s in the sandbox: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(f, bytes.NewReader(data))
	if p.root {
		err = errors.Join(err, f.Chown(p.cfg.UID, p.cfg.GID))
	}
	err = errors.Join(err, f.Chmod(mode.Perm()), f.Close())
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), tmp, int(dir.Fd()), path.Base(name))
	}
	if err != nil {
		_ = unix.Unlinkat(int(dir.Fd()), tmp, 0)
		if errors.Is(err, unix.ENOSPC) {
			return fault.Wrap(err, fault.DiskFull, "The sandbox's disk is full.")
		}
		return fmt.Errorf("write %s in the sandbox: %w", name, err)
	}
	return nil
}

// folder opens a folder inside, making what is missing.
func (p *Provider) folder(r record, name string) (*os.File, error) {
	f, err := inside(r, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if !absent(err) || name == "/" {
		return f, err
	}
	parent, err := p.folder(r, path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(name), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make %s in the sandbox: %w", name, err)
	}
	if p.root {
		if err := unix.Fchownat(int(parent.Fd()), path.Base(name), p.cfg.UID, p.cfg.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, fmt.Errorf("make %s in the sandbox: %w", name, err)
		}
	}
	return inside(r, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}
