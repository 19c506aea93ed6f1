package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// guestWaitName as only argument makes the program that MaybeRun belongs to a
// pid 1 that does nothing; package runsc has the other side.
const guestWaitName = "hearth-guest-wait"

// Probe boots a throw-away sandbox from the host root and looks around in it, see
// [local.Probe.Run].
func (p *Provider) Probe(ctx context.Context) (sandbox.Probe, error) {
	limits := "Without root memory, processor time and processes are not limited. Run as root to have limits."
	switch {
	case p.cgroups.version != 0:
		limits = fmt.Sprintf("Memory, processor time and processes are limited by cgroups (version %d).", p.cgroups.version)
	case p.privileged:
		limits = "There are no writable cgroups, so memory, processor time and processes are not limited. Mount /sys/fs/cgroup writable to have limits."
	}
	return local.Probe{
		Name:     Name,
		Provider: p,
		Handle:   p.handle,
		StateDir: p.cfg.StateDir,
		BoxesDir: p.boxesDir(),
		Now:      p.now,
		Log:      p.log,
		Runtime:  p.runtimeVersion,
		Machine:  sandbox.Check{Name: "limits", OK: true, Detail: limits},
		Root: func(ctx context.Context) (string, error) {
			root, err := p.cfg.Roots.Host(ctx)
			return root.Digest, err
		},
		Spec: sandbox.Spec{
			Root:    sandbox.Root{Kind: "host"},
			Binds:   []sandbox.Bind{{Source: p.cfg.Executable, Target: sandbox.PathDriver}},
			Command: []string{sandbox.PathDriver, guestWaitName},
		},
		Interfaces: func(ctx context.Context, h sandbox.Handle) ([]byte, error) {
			return p.ReadFile(ctx, h, "/proc/net/dev", 64<<10)
		},
		Tidy:          p.removeShared,
		RuntimeIs:     "gVisor %s is part of this program.",
		RuntimeRemedy: "Use a program that was built with `make`.",
		BootRemedy:    "The kernel must allow user namespaces and ptrace or seccomp; inside another container give it --privileged or run on the host.",
		Process:       "runsc-sandbox",
	}.Run(ctx)
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
