// Package bubblewrap makes sandboxes out of Linux namespaces with the bwrap
// program (Debian package bubblewrap). It is opt-in and weaker than package
// gvisor: the agent talks to the host's own kernel, so it is for trusted code
// only. Paths, doors and the missing network are the same. Only /tmp is limited.
//
// A sandbox is a folder with a copy of its root, in which everything is written,
// and, once started, bwrap and the processes of its PID namespace. Where the
// server is root these run as another user, since root of the host must not be
// inside; otherwise as the server's user. Inside it is root either way, without
// capabilities. They outlive the server; a new [Provider] on the same state
// folder finds them by their record.
package bubblewrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
	"github.com/hearthd/hearth/internal/sandbox/rootfs"
)

// Name is the provider's name in handles.
const Name = "bubblewrap"

const handleVersion = 1

// DefaultGID is the group, and the user, that sandboxes run as where the server is root: nobody.
const DefaultGID = 65534

// Config is what a provider needs. StateDir, Host and Roots must be set.
type Config struct {
	StateDir string // absolute; where the server is root, its parents must let others pass (mode o+x), and so must door folders
	Host     string // this machine's name in handles
	Roots    *rootfs.Store
	// UID and GID are whom sandboxes run as where the server is root; zero: 65534, nobody.
	UID, GID int
	TmpBytes int64 // of /tmp where a Spec says nothing; zero: 1 GiB
	Logger   *slog.Logger
	Now      func() time.Time
}

// Provider implements [sandbox.Provider].
type Provider struct {
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	bwrap   string
	nsenter string
	root    bool
	locks   local.Locks
}

var (
	_ sandbox.Provider = (*Provider)(nil)
	_ sandbox.Tidier   = (*Provider)(nil)
)

const (
	startDeadline = 20 * time.Second
	killDeadline  = 10 * time.Second
	execDeadline  = time.Hour
)

// New looks for the programs and prepares the state folder. Code: SANDBOX_UNSUPPORTED.
func New(cfg Config) (*Provider, error) {
	if !filepath.IsAbs(cfg.StateDir) || cfg.Host == "" || cfg.Roots == nil {
		return nil, errors.New("bubblewrap: StateDir must be absolute, Host and Roots set")
	}
	cfg.StateDir = filepath.Clean(cfg.StateDir)
	p := &Provider{cfg: cfg, log: cfg.Logger, now: cfg.Now, root: os.Geteuid() == 0}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.now == nil {
		p.now = time.Now
	}
	if !p.root {
		p.cfg.UID, p.cfg.GID = os.Geteuid(), os.Getegid()
	} else if p.cfg.UID == 0 || p.cfg.GID == 0 {
		p.cfg.UID, p.cfg.GID = DefaultGID, DefaultGID
	}
	if p.cfg.TmpBytes <= 0 {
		p.cfg.TmpBytes = 1 << 30
	}
	for name, at := range map[string]*string{"bwrap": &p.bwrap, "nsenter": &p.nsenter} {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fault.Wrap(err, fault.SandboxUnsupported, "The program %s was not found: install the packages bubblewrap and util-linux.", name)
		}
		*at = path
	}
	if err := os.MkdirAll(p.boxesDir(), 0o711); err != nil {
		return nil, fmt.Errorf("make the sandbox state folder: %w", err)
	}
	if err := local.SweepParts(p.boxesDir()); err != nil {
		return nil, fmt.Errorf("clear the sandbox state folder: %w", err)
	}
	return p, nil
}

// Tidy removes old roots.
func (p *Provider) Tidy(ctx context.Context, before time.Time) error {
	return p.cfg.Roots.Clean(ctx, before)
}

// Capabilities never blocks.
func (p *Provider) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Isolation: sandbox.IsolationNamespace, Privileged: p.root}
}

func (p *Provider) boxesDir() string { return filepath.Join(p.cfg.StateDir, "b") }

// box is one sandbox's folder.
type box struct{ id, dir string }

func (p *Provider) box(id string) box { return box{id: id, dir: filepath.Join(p.boxesDir(), id)} }

func (b box) record() string { return filepath.Join(b.dir, "record.json") }
func (b box) status() string { return filepath.Join(b.dir, "status.json") } // written by bwrap: pid 1's number, then its exit
func (b box) log() string    { return filepath.Join(b.dir, "bwrap.log") }
func (b box) root() string   { return filepath.Join(b.dir, "root") }
func (b box) hosts() string  { return filepath.Join(b.dir, "hosts") }

// record is what is kept of a sandbox on disk; it is written first and removed last.
type record struct {
	Version int               `json:"version"`
	ID      string            `json:"id"`
	Labels  map[string]string `json:"labels,omitempty"`
	Created time.Time         `json:"created"`
	Root    string            `json:"root"` // digest
	Ready   bool              `json:"ready"`
	Spec    sandbox.Spec      `json:"spec"`
	Binds   []sandbox.Bind    `json:"binds"`
	Started bool              `json:"started"` // a start was tried
	Init    local.Process     `json:"init"`    // pid 1 as the host sees it
	Monitor local.Process     `json:"monitor"` // bwrap, its parent
}

func (b box) load() (record, error) {
	var r record
	data, err := os.ReadFile(b.record())
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read the record of sandbox %s: %w", b.id, err)
	}
	return r, nil
}

// make makes the sandbox's folder with its record: there is none without.
func (b box) make(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return local.NewFolder(b.dir, 0o711, filepath.Base(b.record()), data, 0o600)
}

func (b box) save(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return local.WriteFile(b.record(), append(data, '\n'), 0o600)
}

// bwrapStatus is what bwrap has written of itself: JSON objects after each other.
type bwrapStatus struct {
	ChildPID int  `json:"child-pid"`
	ExitCode *int `json:"exit-code"`
}

func (b box) readStatus() bwrapStatus {
	var out bwrapStatus
	f, err := os.Open(b.status())
	if err != nil {
		return out
	}
	defer f.Close()
	for dec := json.NewDecoder(f); dec.Decode(&out) == nil; {
	}
	return out
}

func (p *Provider) handle(id string) sandbox.Handle {
	return sandbox.Handle{Version: handleVersion, Provider: Name, Host: p.cfg.Host, ID: id}
}

func (p *Provider) check(h sandbox.Handle) error {
	switch {
	case h.Provider != Name || h.Version != handleVersion:
		return fault.New(fault.SandboxForeign, "The sandbox was made by %s (version %d), which this provider cannot reach.", h.Provider, h.Version)
	case h.Host != p.cfg.Host:
		return fault.New(fault.SandboxForeign, "The sandbox is on the machine %s, this is %s.", h.Host, p.cfg.Host)
	case !local.IDOK(h.ID):
		return notFound(h.ID)
	}
	return nil
}

func notFound(id string) error {
	return fault.New(fault.SandboxNotFound, "There is no sandbox %s.", id)
}

func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Get tells the state from the record and the processes.
func (p *Provider) Get(ctx context.Context, h sandbox.Handle) (sandbox.Info, error) {
	unknown := sandbox.Info{Handle: h, State: sandbox.Unknown}
	if err := p.check(h); err != nil {
		if fault.CodeOf(err) == fault.SandboxNotFound {
			return sandbox.Info{Handle: h, State: sandbox.Absent}, nil
		}
		return unknown, err
	}
	if err := ctx.Err(); err != nil {
		return unknown, err
	}
	info, err := p.info(p.box(h.ID))
	if err != nil {
		return unknown, fault.Wrap(err, fault.SandboxUnreachable, "The state of sandbox %s could not be read.", h.ID)
	}
	return info, nil
}

// List returns the sandboxes of the state folder that bear all the labels.
func (p *Provider) List(ctx context.Context, labels map[string]string) ([]sandbox.Info, error) {
	names, err := os.ReadDir(p.boxesDir())
	if err != nil {
		return nil, fault.Wrap(err, fault.SandboxUnreachable, "The sandboxes' folder could not be read.")
	}
	var out []sandbox.Info
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !local.IDOK(n.Name()) {
			continue
		}
		info, err := p.info(p.box(n.Name()))
		if err != nil {
			return nil, fault.Wrap(err, fault.SandboxUnreachable, "The state of sandbox %s could not be read.", n.Name())
		}
		if info.State != sandbox.Absent && local.Bears(info.Labels, labels) {
			out = append(out, info)
		}
	}
	return out, nil
}

func (p *Provider) info(b box) (sandbox.Info, error) {
	info := sandbox.Info{Handle: p.handle(b.id)}
	r, err := b.load()
	switch {
	case absent(err):
		if _, err := os.Lstat(b.dir); absent(err) {
			info.State = sandbox.Absent
			return info, nil
		} else if err != nil {
			return info, err
		}
		info.State, info.Exit = sandbox.Stopped, "it was never completed"
		return info, nil
	case err != nil:
		return info, err
	}
	info.Labels, info.Created = r.Labels, r.Created
	switch {
	case r.Init.Alive():
		info.State = sandbox.Running
	case r.Ready && !r.Started:
		info.State = sandbox.Created
	case r.Started && r.Init.PID == 0 && len(p.ours(b)) > 0: // it is being started, or whoever did that was killed
		info.State = sandbox.Created
	default:
		info.State, info.Exit = sandbox.Stopped, b.exit(r)
	}
	return info, nil
}

// exit says how a stopped sandbox ended. bwrap reports a signal as 128 and its number.
func (b box) exit(r record) string {
	switch st := b.readStatus(); {
	case !r.Ready:
		return "it was never completed"
	case st.ExitCode != nil:
		return fmt.Sprintf("pid 1 ended with exit status %d", *st.ExitCode)
	case r.Init.PID > 0 && r.Init.BootID != local.BootID():
		return "the machine was started again"
	case r.Init.PID == 0:
		return "it did not start: " + b.said()
	}
	return "the sandbox was killed"
}

// said is the last line that bwrap wrote.
func (b box) said() string {
	data, _ := os.ReadFile(b.log())
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	last := lines[len(lines)-1]
	return last[:min(len(last), 300)]
}

// ours finds the bwrap processes of a sandbox by their arguments.
func (p *Provider) ours(b box) []int {
	return local.Find(func(args []string) bool {
		for i := 0; i+2 < len(args) && i < 8; i++ {
			if args[i] == "--bind" && args[i+1] == b.root() && args[i+2] == "/" {
				return true
			}
		}
		return false
	})
}
