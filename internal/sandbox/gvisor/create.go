package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// Create makes the sandbox without running anything. On error nothing is left
// behind, except where even the clean-up failed, which the error then says.
func (p *Provider) Create(ctx context.Context, s sandbox.Spec) (h sandbox.Handle, err error) {
	if err := local.Validate(s); err != nil {
		return sandbox.Handle{}, err
	}
	for _, b := range s.Binds {
		if _, err := os.Stat(b.Source); err != nil {
			return sandbox.Handle{}, fault.Wrap(err, fault.SandboxStartFailed, "The sandbox cannot be made: %s, which it should show, is not there.", b.Source)
		}
	}
	s.Limits = local.Fill(s.Limits, p.cfg.Defaults)
	release, err := p.slot(ctx)
	if err != nil {
		return sandbox.Handle{}, err
	}
	defer release()
	unlock, err := p.locks.Lock(ctx, s.ID)
	if err != nil {
		return sandbox.Handle{}, err
	}
	defer unlock()
	root, err := p.cfg.Roots.Resolve(ctx, s.Root)
	if err != nil {
		return sandbox.Handle{}, err
	}
	defer func() {
		if err != nil {
			p.removeShared()
		}
	}()
	p.sharing.RLock()
	defer p.sharing.RUnlock()

	b := p.box(s.ID)
	r := record{
		Version:   1,
		ID:        s.ID,
		Labels:    s.Labels,
		Created:   p.now().UTC(),
		Root:      root.Digest,
		Cgroup:    p.cgroups.path(s.ID),
		DiskBytes: s.Limits.DiskBytes,
	}
	if err := b.make(r); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return sandbox.Handle{}, fault.New(fault.SandboxStartFailed, "There is a sandbox %s already: ids are used once.", s.ID)
		}
		return sandbox.Handle{}, startFault(err, "The sandbox's folder could not be made.")
	}
	defer func() {
		if err == nil {
			return
		}
		clean, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), 3*deleteDeadline, errDeadline)
		defer cancel()
		if left := p.remove(clean, b); left != nil {
			err = errors.Join(err, fmt.Errorf("clean up after it: %w", left))
		}
	}()
	if err := p.bundle(b, s, root, r.Cgroup); err != nil {
		return sandbox.Handle{}, startFault(err, "The sandbox's configuration could not be written.")
	}
	if err := p.call(ctx, b, createDeadline, b.overlay(r), "create", "--bundle="+b.dir, "--pid-file="+b.pidFile(), b.runtimeID()); err != nil {
		return sandbox.Handle{}, startFault(err, "The sandbox could not be created.")
	}
	if err := r.readPID(b); err != nil {
		return sandbox.Handle{}, startFault(err, "The sandbox ended while it was created. %s", tail(b.panicLog()))
	}
	if err := b.save(r); err != nil {
		return sandbox.Handle{}, startFault(err, "The sandbox's record could not be written.")
	}
	return p.handle(s.ID), nil
}

// overlay says where what is written goes: to a file without a name. It has one for
// a moment, so the folder is the sandbox's own and takes it along whenever it goes.
func (b box) overlay(r record) string {
	return fmt.Sprintf("--overlay2=root:dir=%s,size=%d", b.dir, r.DiskBytes)
}

// readPID takes the sentry's process from the file that create wrote.
func (r *record) readPID(b box) error {
	data, err := os.ReadFile(b.pidFile())
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("read the sandbox's process id: %w", err)
	}
	r.Process, err = local.Identify(pid)
	return err
}

// Start runs pid 1. A second start is SANDBOX_START_FAILED.
func (p *Provider) Start(ctx context.Context, h sandbox.Handle) error {
	if err := p.check(h); err != nil {
		return err
	}
	release, err := p.slot(ctx)
	if err != nil {
		return err
	}
	defer release()
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
	if state, err := p.state(b, r); err == nil && state != sandbox.Created {
		return fault.New(fault.SandboxStartFailed, "The sandbox %s is %s and cannot be started.", h.ID, state)
	}
	if err := p.call(ctx, b, startDeadline, b.overlay(r), "start", b.runtimeID()); err != nil {
		return startFault(err, "The sandbox could not be started.")
	}
	return nil
}
