package gvisor

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// Delete ends every process of the sandbox and removes all that Create made. It
// is idempotent, and goes on where an interrupted one stopped. Code:
// SANDBOX_UNREACHABLE when something could not be removed; try again then.
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
	if err := p.remove(ctx, p.box(h.ID)); err != nil {
		return fault.Wrap(err, fault.SandboxUnreachable, "The sandbox %s could not be removed entirely.", h.ID)
	}
	p.removeShared()
	return nil
}

// remove takes away processes, cgroup, runtime state, and the folder with the record last.
// The caller holds the sandbox's lock.
func (p *Provider) remove(ctx context.Context, b box) error {
	if _, err := os.Lstat(b.dir); absent(err) {
		return nil
	} else if err != nil {
		return err
	}
	r, err := b.load()
	if err != nil {
		if !absent(err) {
			p.log.Warn("a sandbox's record cannot be read; it is deleted by its id alone", "sandbox", b.id, "error", err)
		}
		r = record{ID: b.id}
	}
	r.Cgroup = cmp.Or(r.Cgroup, p.cgroups.path(b.id))
	// While a create that nobody waits for is at work it holds the runtime's own lock; it is killed instead.
	if _, err := os.Lstat(p.stateFile(b)); err == nil && r.Process.PID != 0 {
		if err := p.call(ctx, b, deleteDeadline, "delete", "--force", b.runtimeID()); err != nil {
			p.log.Warn("the sandbox runtime did not delete a sandbox; it is killed", "sandbox", b.id, "error", err)
		}
	}
	release, err := local.EndCalls(ctx, killDeadline, b.calls(), func() []int {
		left := append(p.ours(b), p.cgroups.pids(r.Cgroup)...)
		if r.Process.Alive() {
			left = append(left, r.Process.PID)
		}
		return left
	})
	if err != nil {
		return err
	}
	defer release()
	local.Reap(r.Process.PID)
	if err := p.cgroups.remove(ctx, r.Cgroup); err != nil {
		return err
	}
	for _, f := range p.runtimeFiles(b.runtimeID()) {
		if err := os.Remove(f); err != nil && !absent(err) {
			return err
		}
	}
	return local.RemoveFolder(b.dir)
}

// runtimeFiles are those that the runtime keeps of a sandbox.
func (p *Provider) runtimeFiles(id string) []string {
	stem := filepath.Join(p.runtimeDir(), id+"_sandbox:"+id)
	return []string{stem + ".state", stem + ".lock", filepath.Join(p.runtimeDir(), "runsc-"+id+".sock")}
}

// removeShared takes down what sandboxes share once there are none: the empty
// network namespace that the runtime pins for its gofers, which is a mount, and
// the group that holds the sandboxes' own.
func (p *Provider) removeShared() {
	p.removing.Lock() // who comes second looks after the first: it may have removed the last sandbox meanwhile
	defer p.removing.Unlock()
	if !p.sharing.TryLock() { // one is being made; its end does this
		return
	}
	defer p.sharing.Unlock()
	names, err := os.ReadDir(p.boxesDir())
	if err != nil || len(names) > 0 {
		return
	}
	pin := filepath.Join(p.runtimeDir(), "null-netns")
	if _, err := os.Lstat(pin); err == nil {
		for range 64 { // creates beside each other may each have mounted one, on top of each other
			err := unix.Unmount(pin, unix.MNT_DETACH)
			if errors.Is(err, unix.EINVAL) {
				break
			}
			if err != nil {
				p.log.Warn("the shared network namespace could not be unmounted", "error", err)
				return
			}
		}
		_ = os.Remove(pin)
	}
	if err := p.cgroups.removeParent(); err != nil {
		p.log.Warn("the sandboxes' cgroup stays", "error", err)
	}
}
