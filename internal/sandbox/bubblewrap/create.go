package bubblewrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// Create makes the sandbox's folder with its own copy of the root. An OCI root
// is copied as a whole, which takes its size and time.
func (p *Provider) Create(ctx context.Context, s sandbox.Spec) (h sandbox.Handle, err error) {
	if err := local.Validate(s); err != nil {
		return sandbox.Handle{}, err
	}
	for _, b := range s.Binds {
		if _, err := os.Stat(b.Source); err != nil {
			return sandbox.Handle{}, fault.Wrap(err, fault.SandboxStartFailed, "The sandbox cannot be made: %s, which it should show, is not there.", b.Source)
		}
	}
	if s.DoorDir != "" && p.root {
		if fi, err := os.Stat(s.DoorDir); err != nil || fi.Mode().Perm()&0o005 != 0o005 {
			return sandbox.Handle{}, fault.Wrap(err, fault.SandboxStartFailed, "The sandbox cannot be made: the door folder %s must be readable by others, since the sandbox does not run as root.", s.DoorDir)
		}
	}
	if s.Limits.TmpBytes <= 0 {
		s.Limits.TmpBytes = p.cfg.TmpBytes
	}
	unlock, err := p.locks.Lock(ctx, s.ID)
	if err != nil {
		return sandbox.Handle{}, err
	}
	defer unlock()
	root, err := p.cfg.Roots.Resolve(ctx, s.Root)
	if err != nil {
		return sandbox.Handle{}, err
	}
	b := p.box(s.ID)
	r := record{Version: 1, ID: s.ID, Labels: s.Labels, Created: p.now().UTC(), Root: root.Digest, Spec: s}
	r.Binds = append(slices.Concat(root.Binds, s.Binds), sandbox.Bind{Source: b.hosts(), Target: "/etc/hosts"})
	if s.DoorDir != "" {
		r.Binds = append(r.Binds, sandbox.Bind{Source: s.DoorDir, Target: sandbox.PathDoors})
	}
	if err := b.make(r); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return sandbox.Handle{}, fault.New(fault.SandboxStartFailed, "There is a sandbox %s already: ids are used once.", s.ID)
		}
		return sandbox.Handle{}, startFault(err, "The sandbox's folder could not be made.")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, local.RemoveFolder(b.dir))
		}
	}()
	steps := []func() error{
		func() error { return local.WriteFile(b.hosts(), local.HostsFile(s), 0o644) },
		func() error { return p.copyTree(ctx, root.Dir, b.root()) },
		func() error { r.Ready = true; return b.save(r) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return sandbox.Handle{}, startFault(err, "The sandbox could not be made.")
		}
	}
	return p.handle(s.ID), nil
}

// copyTree copies folders, files and links and gives them to the sandbox's user.
func (p *Provider) copyTree(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(src string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, src)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		fi, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			if err := os.Mkdir(dst, 0o700); err != nil {
				return err
			}
			// The owner may always enter: the copy is filled and removed by that user.
			if err := os.Chmod(dst, fi.Mode()&(fs.ModePerm|fs.ModeSticky)|0o700); err != nil {
				return err
			}
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(src)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, dst); err != nil {
				return err
			}
		case fi.Mode().IsRegular():
			if err := copyFile(src, dst, fi.Mode().Perm()); err != nil {
				return err
			}
		default:
			return nil
		}
		if !p.root {
			return nil
		}
		return os.Lchown(dst, p.cfg.UID, p.cfg.GID)
	})
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Close())
}

// args are bwrap's. The bind of the root comes first, see ours.
func (p *Provider) args(b box, r record) []string {
	a := []string{
		"--bind", b.root(), "/",
		"--unshare-user", "--uid", "0", "--gid", "0",
		"--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
		"--new-session", "--as-pid-1", "--clearenv", "--chdir", "/",
		"--json-status-fd", "3",
		"--proc", "/proc", "--dev", "/dev",
		"--perms", "1777", "--size", strconv.FormatInt(r.Spec.Limits.TmpBytes, 10), "--tmpfs", "/tmp",
	}
	if r.Spec.Hostname != "" {
		a = append(a, "--hostname", r.Spec.Hostname)
	}
	for _, m := range r.Binds {
		a = append(a, "--ro-bind", m.Source, m.Target)
	}
	for _, e := range r.Spec.Env {
		k, v, _ := strings.Cut(e, "=")
		a = append(a, "--setenv", k, v)
	}
	return append(append(a, "--"), r.Spec.Command...)
}

// Start runs bwrap in a session of its own and returns when pid 1 is the
// program that was asked for.
func (p *Provider) Start(ctx context.Context, h sandbox.Handle) error {
	if err := p.check(h); err != nil {
		return err
	}
	unlock, err := p.locks.Lock(ctx, h.ID)
	if err != nil {
		return err
	}
	defer unlock()
	b := p.box(h.ID)
	r, err := b.load()
	if absent(err) {
		return notFound(h.ID)
	}
	if err != nil {
		return fault.Wrap(err, fault.SandboxUnreachable, "The sandbox's record could not be read.")
	}
	if !r.Ready || r.Started {
		return fault.New(fault.SandboxStartFailed, "The sandbox %s was started before and cannot be started again.", h.ID)
	}
	r.Started = true
	if err := b.save(r); err != nil {
		return startFault(err, "The sandbox's record could not be written.")
	}
	if err := p.run(ctx, b, &r); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
		defer cancel()
		err = startFault(err, "The sandbox could not be started. %s", b.said())
		release, left := p.end(clean, b, r)
		if left == nil {
			release()
		}
		return errors.Join(err, left)
	}
	return nil
}

func (p *Provider) run(ctx context.Context, b box, r *record) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, errors.New("pid 1 did not begin in time"))
	defer cancel()
	status, err := local.Hold(b.status())
	if err != nil {
		return err
	}
	defer status.Close()
	log, err := os.OpenFile(b.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := &exec.Cmd{
		Path:       p.bwrap,
		Args:       append([]string{"bwrap"}, p.args(b, *r)...),
		Env:        []string{},
		Dir:        "/",
		Stderr:     log,
		ExtraFiles: []*os.File{status},
		SysProcAttr: &syscall.SysProcAttr{
			Setsid: true,
		},
	}
	if p.root {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.cfg.UID), Gid: uint32(p.cfg.GID)}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start bwrap: %w", err)
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // it is waited for by its number, in Delete or here
	if r.Monitor, err = local.Identify(pid); err != nil {
		local.Reap(pid)
		return err
	}
	monitor, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return fmt.Errorf("look at bwrap: %w", err)
	}
	for {
		if child := b.readStatus().ChildPID; child > 0 {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", child))
			if err == nil && exe != monitor {
				if r.Init, err = local.Identify(child); err != nil {
					return err
				}
				return b.save(*r)
			}
		}
		local.Reap(pid)
		if !r.Monitor.Alive() {
			return errors.New("bwrap ended")
		}
		if err := local.Wait(ctx, 2*time.Millisecond); err != nil {
			return context.Cause(ctx)
		}
	}
}

// Delete kills pid 1, and with it all of its PID namespace, and removes the folder.
func (p *Provider) Delete(ctx context.Context, h sandbox.Handle) error {
	if err := p.check(h); err != nil {
		if fault.CodeOf(err) == fault.SandboxNotFound {
			return nil
		}
		return err
	}
	unlock, err := p.locks.Lock(ctx, h.ID)
	if err != nil {
		return err
	}
	defer unlock()
	b := p.box(h.ID)
	if _, err := os.Lstat(b.dir); absent(err) {
		return nil
	}
	r, err := b.load()
	if err != nil && !absent(err) {
		p.log.Warn("a sandbox's record cannot be read; it is deleted by its id alone", "sandbox", h.ID, "error", err)
	}
	release, err := p.end(ctx, b, r)
	if err == nil {
		err = b.removeFiles()
		release()
	}
	if err != nil {
		return fault.Wrap(err, fault.SandboxUnreachable, "The sandbox %s could not be removed entirely.", h.ID)
	}
	return nil
}

// removeFiles removes the folder, the record last.
func (b box) removeFiles() error {
	names, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n.Name() != filepath.Base(b.record()) {
			if err := local.RemoveAll(filepath.Join(b.dir, n.Name())); err != nil {
				return err
			}
		}
	}
	return local.RemoveFolder(b.dir)
}

// end kills pid 1 and bwrap until neither runs. Whatever else is in the PID
// namespace the kernel kills with pid 1, before pid 1 itself is gone. None can be
// started until release is called.
func (p *Provider) end(ctx context.Context, b box, r record) (release func(), err error) {
	release, err = local.EndCalls(ctx, killDeadline, b.status(), func() []int {
		out := p.ours(b)
		for _, x := range []local.Process{r.Init, r.Monitor} {
			if x.Alive() {
				out = append(out, x.PID)
			}
		}
		return out
	})
	local.Reap(r.Monitor.PID)
	return release, err
}

func startFault(err error, format string, args ...any) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	message := fmt.Sprintf(format, args...)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.Wrap(err, fault.DiskFull, "%s The server's disk is full.", message)
	}
	return fault.Wrap(err, fault.SandboxStartFailed, "%s", message)
}
