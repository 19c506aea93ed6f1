package gvisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

const probeDeadline = 30 * time.Second

// guestWaitName as only argument makes the program that MaybeRun belongs to a
// pid 1 that does nothing; package runsc has the other side.
const guestWaitName = "hearth-guest-wait"

// Probe boots a throw-away sandbox from the host root and looks around in it.
// Each check stands for itself; one that could not be made because an earlier
// one failed is left out.
func (p *Provider) Probe(ctx context.Context) (sandbox.Probe, error) {
	start := p.now()
	bounded, cancel := context.WithTimeoutCause(ctx, probeDeadline, errDeadline)
	defer cancel()
	out := sandbox.Probe{OK: true, Provider: Name}
	say := func(name string, err error, detail, remedy string) bool {
		c := sandbox.Check{Name: name, OK: err == nil, Detail: detail}
		if err != nil {
			c.Detail = fault.From(err).Sentence()
			if fault.CodeOf(err) == fault.InternalError {
				c.Detail = err.Error()
			}
			c.Detail += " " + remedy
			out.OK = false
		}
		out.Checks = append(out.Checks, c)
		return c.OK
	}
	p.probe(bounded, say, &out)
	out.Took = p.now().Sub(start)
	return out, ctx.Err()
}

func (p *Provider) probe(ctx context.Context, say func(name string, err error, detail, remedy string) bool, out *sandbox.Probe) {
	p.sweepProbes(ctx)
	// And once more at the end: what a killed process had started may have been in the middle of being made.
	defer func() {
		clean, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), probeDeadline, errDeadline)
		defer cancel()
		p.sweepProbes(clean)
	}()
	version, err := p.runtimeVersion(ctx)
	out.Build = version
	if !say("runtime", err, "gVisor "+version+" is part of this program.", "Use a program that was built with `make`.") {
		return
	}
	switch {
	case p.cgroups.version != 0:
		say("limits", nil, fmt.Sprintf("Memory, processor time and processes are limited by cgroups (version %d).", p.cgroups.version), "")
	case p.privileged:
		say("limits", nil, "There are no writable cgroups, so memory, processor time and processes are not limited. Mount /sys/fs/cgroup writable to have limits.", "")
	default:
		say("limits", nil, "Without root memory, processor time and processes are not limited. Run as root to have limits.", "")
	}
	root, err := p.cfg.Roots.Host(ctx)
	if !say("root", err, "The host root "+root.Digest+" is ready.", "Check the state folder's disk and permissions.") {
		return
	}
	var tail [6]byte
	_, _ = rand.Read(tail[:])
	id := "probe-" + hex.EncodeToString(tail[:])
	doors, err := local.ProbeFolder(p.cfg.StateDir)
	if err == nil {
		defer func() { _ = os.RemoveAll(doors) }() // the next probe removes it as well
		err = errors.Join(os.Chmod(doors, 0o755), os.WriteFile(filepath.Join(doors, "canary"), []byte(id), 0o644))
	}
	if err != nil {
		say("boot", err, "", "Check the state folder's disk and permissions.")
		return
	}
	h, err := p.Create(ctx, sandbox.Spec{
		ID:      id,
		Labels:  map[string]string{probeLabel: local.Maker()},
		Root:    sandbox.Root{Kind: "host"},
		Binds:   []sandbox.Bind{{Source: p.cfg.Executable, Target: sandbox.PathDriver}},
		DoorDir: doors,
		Command: []string{sandbox.PathDriver, guestWaitName},
	})
	if err == nil {
		defer func() {
			clean, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), probeDeadline, errDeadline)
			defer cancel()
			say("delete", p.Delete(clean, h), "The sandbox was removed entirely.", "Look for processes named runsc-sandbox that hang.")
		}()
		err = p.Start(ctx, h)
	}
	remedy := "The kernel must allow user namespaces and ptrace or seccomp; inside another container give it --privileged or run on the host."
	if !say("boot", err, "A sandbox was started.", remedy) {
		return
	}
	say("canary", p.probeCanary(ctx, h, id, filepath.Join(doors, "canary")), "A file shown to the sandbox is the one seen inside, and its folder on the host is not seen.", "Do not use this machine: what is shown inside is not what was asked for.")
	say("network", p.probeNetwork(ctx, h), "Only the loopback interface is inside.", "Do not use this machine: the sandbox is not cut off.")
}

// probeLabel bears who made a sandbox for a self-test.
const probeLabel = "probe"

// sweepProbes deletes what self-tests of killed processes have left.
func (p *Provider) sweepProbes(ctx context.Context) {
	infos, err := p.List(ctx, nil)
	if err != nil {
		p.log.Warn("look for sandboxes of former self-tests", "error", err)
	}
	for _, i := range infos {
		if maker, ok := i.Labels[probeLabel]; ok && !local.MakerAlive(maker) {
			if err := p.Delete(ctx, i.Handle); err != nil {
				p.log.Warn("delete the sandbox of a former self-test", "sandbox", i.Handle.ID, "error", err)
			}
		}
	}
}

func (p *Provider) probeCanary(ctx context.Context, h sandbox.Handle, want, host string) error {
	got, err := p.ReadFile(ctx, h, sandbox.PathDoors+"/canary", 1<<10)
	if err != nil {
		return err
	}
	if string(got) != want {
		return fmt.Errorf("the file shown inside is another one")
	}
	if _, err := p.ReadFile(ctx, h, host, 1<<10); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the host's path %s is seen inside: %w", host, errors.Join(err, errSeen))
	}
	return nil
}

func (p *Provider) probeNetwork(ctx context.Context, h sandbox.Handle) error {
	data, err := p.ReadFile(ctx, h, "/proc/net/dev", 64<<10)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		name, _, ok := strings.Cut(string(line), ":")
		if name = strings.TrimSpace(name); ok && name != "lo" {
			return fmt.Errorf("the network interface %s is inside", name)
		}
	}
	return nil
}

// runtimeVersion asks the program for the version that was linked in.
func (p *Provider) runtimeVersion(ctx context.Context) (string, error) {
	cmd := p.command("--version")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start the sandbox runtime: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("ask the sandbox runtime for its version: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	first, _, _ := strings.Cut(out.String(), "\n")
	version := strings.TrimPrefix(first, "runsc version ")
	switch {
	case version == first || version == "VERSION_MISSING":
		return "", fmt.Errorf("the program %s has no gVisor version linked in (it said %q)", p.cfg.Executable, first)
	case p.cfg.Version != "" && version != p.cfg.Version:
		return version, fmt.Errorf("the program %s has gVisor %s, not %s", p.cfg.Executable, version, p.cfg.Version)
	}
	return version, nil
}

// errSeen stands for a file that should not be there and could be read.
var errSeen = errors.New("it should not be there")
