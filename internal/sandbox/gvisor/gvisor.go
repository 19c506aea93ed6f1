// Package gvisor makes sandboxes with gVisor's runtime, which is part of our own
// binary (package runsc) and started as a child process for every operation; no
// daemon, no Docker, no network. It is the default implementation of
// [sandbox.Provider]. It holds no state in memory that matters: everything is in
// the state folder, so that a new [Provider] on the same folder goes on with
// what it finds, and a sandbox outlives the server that made it.
//
// As root each sandbox has a cgroup of its own and all limits hold. Without root
// the runtime runs in a user namespace of its own and only disk and /tmp are limited.
//
// Start with [New], then [Provider.Create]; runtime.go has the flags, spec.go
// what the guest sees, delete.go what an end takes away.
package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
	"github.com/hearthd/hearth/internal/sandbox/rootfs"
)

// Name is the provider's name in handles.
const Name = "gvisor"

const handleVersion = 1

// Config is what a provider needs. StateDir, Executable, Host and Roots must be set.
type Config struct {
	StateDir   string // absolute; at most 73 bytes, since a socket's path is below it
	Executable string // absolute path of a program that calls runsc.MaybeRun first
	Version    string // gVisor module version that Executable must report; empty: any but a missing one
	Host       string // this machine's name in handles
	Roots      *rootfs.Store
	Defaults   sandbox.Limits // for limits that a Spec leaves at zero; zero fields get the package's own
	Logger     *slog.Logger   // nil: none
	Now        func() time.Time
	// MaxParallelStarts bounds creates and starts at work at the same time;
	// zero: as many as there are processors.
	MaxParallelStarts int
	// Sidecars lays out, beside our own program, the names of the programs that
	// upstream ships apart, and has the runtime insist on them. The pinned runtime
	// does well without, and one process less starts.
	Sidecars bool
	// NoCgroups runs as root without cgroups, as on machines where they cannot be written.
	NoCgroups bool
}

// Limits that hold when neither Spec nor Config says otherwise.
var defaultLimits = sandbox.Limits{
	CPUMillis:   2000,
	MemoryBytes: 4 << 30,
	DiskBytes:   10 << 30,
	TmpBytes:    1 << 30,
	Processes:   2000,
}

// Provider implements [sandbox.Provider].
type Provider struct {
	cfg        Config
	log        *slog.Logger
	now        func() time.Time
	privileged bool
	cgroups    cgroups
	slots      chan struct{}
	locks      local.Locks
	sharing    sync.RWMutex // held for reading while a sandbox is made, for writing while what all share is taken down
	removing   sync.Mutex   // held while somebody looks whether that can be taken down
}

var (
	_ sandbox.Provider = (*Provider)(nil)
	_ sandbox.Tidier   = (*Provider)(nil)
)

// stateDirMax keeps the runtime's control sockets within the 108 bytes that a
// Unix socket address has.
const stateDirMax = 107 - len("/r/runsc-") - runtimeIDLen - len(".sock")

// New checks the machine and prepares the state folder. Code: SANDBOX_UNSUPPORTED, CONFIG_INVALID.
func New(cfg Config) (*Provider, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, fault.New(fault.SandboxUnsupported, "The gVisor sandbox runs on Linux on x86-64 only, this is %s on %s.", runtime.GOOS, runtime.GOARCH)
	}
	if !filepath.IsAbs(cfg.StateDir) || !filepath.IsAbs(cfg.Executable) || cfg.Host == "" || cfg.Roots == nil {
		return nil, errors.New("gvisor: StateDir and Executable must be absolute, Host and Roots set")
	}
	cfg.StateDir = filepath.Clean(cfg.StateDir)
	if len(cfg.StateDir) > stateDirMax {
		return nil, fault.New(fault.ConfigInvalid, "The state folder's path %s has %d bytes, at most %d are possible: choose a shorter one.", cfg.StateDir, len(cfg.StateDir), stateDirMax)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxParallelStarts <= 0 {
		cfg.MaxParallelStarts = runtime.NumCPU()
	}
	cfg.Defaults = local.Fill(cfg.Defaults, defaultLimits)
	p := &Provider{
		cfg:        cfg,
		log:        cfg.Logger,
		now:        cfg.Now,
		privileged: os.Geteuid() == 0,
		slots:      make(chan struct{}, cfg.MaxParallelStarts),
	}
	for _, d := range []string{cfg.StateDir, p.runtimeDir(), p.boxesDir(), p.sidecarDir()} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("make the sandbox state folder: %w", err)
		}
	}
	if err := local.SweepParts(p.boxesDir()); err != nil {
		return nil, fmt.Errorf("clear the sandbox state folder: %w", err)
	}
	if err := p.layOutSidecars(); err != nil {
		return nil, err
	}
	if p.privileged && !cfg.NoCgroups {
		sum := sha256.Sum256([]byte(cfg.StateDir))
		p.cgroups = detectCgroups("/sys/fs/cgroup", "/hearth-"+hex.EncodeToString(sum[:4]))
	}
	return p, nil
}

// Tidy removes old roots.
func (p *Provider) Tidy(ctx context.Context, before time.Time) error {
	return p.cfg.Roots.Clean(ctx, before)
}

// Capabilities never blocks.
func (p *Provider) Capabilities() sandbox.Capabilities {
	limited := p.cgroups.version != 0
	return sandbox.Capabilities{
		Isolation:      sandbox.IsolationKernel,
		LimitCPU:       limited,
		LimitMemory:    limited,
		LimitDisk:      true,
		LimitProcesses: limited,
		Privileged:     p.privileged,
	}
}

func (p *Provider) runtimeDir() string { return filepath.Join(p.cfg.StateDir, "r") }
func (p *Provider) boxesDir() string   { return filepath.Join(p.cfg.StateDir, "b") }
func (p *Provider) sidecarDir() string { return filepath.Join(p.cfg.StateDir, "gvisor-bin") }

// layOutSidecars fills the folder in which the runtime looks for the programs
// that upstream ships beside it; both names lead to our own binary. The folder is
// ours even when it is empty: the runtime would find another installation's otherwise.
func (p *Provider) layOutSidecars() error {
	for _, name := range []string{"gvisor_sentry", "gvisor-sentry-prewarmer"} {
		link := filepath.Join(p.sidecarDir(), name)
		if !p.cfg.Sidecars {
			if err := os.Remove(link); err != nil && !absent(err) {
				return fmt.Errorf("clear the folder of the runtime's programs: %w", err)
			}
			continue
		}
		if t, err := os.Readlink(link); err == nil && t == p.cfg.Executable {
			continue
		}
		tmp := fmt.Sprintf("%s.%d", link, os.Getpid())
		_ = os.Remove(tmp)
		if err := os.Symlink(p.cfg.Executable, tmp); err != nil {
			return fmt.Errorf("lay out the runtime's programs: %w", err)
		}
		if err := os.Rename(tmp, link); err != nil {
			return fmt.Errorf("lay out the runtime's programs: %w", err)
		}
	}
	return nil
}

// slot waits for one of MaxParallelStarts.
func (p *Provider) slot(ctx context.Context) (release func(), err error) {
	select {
	case p.slots <- struct{}{}:
		return func() { <-p.slots }, nil
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), fault.SandboxStartFailed, "The sandbox was not started in time: too many others are starting.")
	}
}

// check tells whether a handle is one of this provider on this machine.
func (p *Provider) check(h sandbox.Handle) error {
	switch {
	case h.Provider != Name || h.Version != handleVersion:
		return fault.New(fault.SandboxForeign, "The sandbox was made by %s (version %d), which this provider cannot reach.", h.Provider, h.Version)
	case h.Host != p.cfg.Host:
		return fault.New(fault.SandboxForeign, "The sandbox is on the machine %s, this is %s.", h.Host, p.cfg.Host)
	case !local.IDOK(h.ID):
		return fault.New(fault.SandboxNotFound, "There is no sandbox with the id %q.", h.ID)
	}
	return nil
}

func (p *Provider) handle(id string) sandbox.Handle {
	return sandbox.Handle{Version: handleVersion, Provider: Name, Host: p.cfg.Host, ID: id}
}

func notFound(id string) error {
	return fault.New(fault.SandboxNotFound, "There is no sandbox %s.", id)
}

func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
