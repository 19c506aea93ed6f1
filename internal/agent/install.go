package agent

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

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

// Installer keeps the agents' packages in one folder of the host:
//
//	NAME.json               what is installed as NAME now: a manifest
//	layers/NAME-HASH/       its files; never changed, named by their hash
//	cache/                  npm's cache while an install is not finished
//	tmp/                    work in progress, worth nothing
//	lock                    held by whoever installs or prunes
//
// A layer appears whole or not at all: it is made in tmp, hashed, held against
// the hash in the profile, and renamed. Sandboxes bind layers read-only, so an
// older layer stays until Prune. Such a folder, copied to another machine, is what
// InstallOptions.From takes. Methods may be called concurrently, by several
// processes too.
type Installer struct {
	Dir    string   // absolute; made when needed
	NPM    string   // npm's program; empty: npm on PATH
	Env    []string // for npm beside what it needs of our own environment, KEY=VALUE: a registry, a proxy
	Logger *slog.Logger
	Now    func() time.Time
}

// InstallOptions of one install. The zero value fetches from the registry.
type InstallOptions struct {
	// From is a folder that an install without network takes everything from: the
	// folder of another Installer, an npm cache, or, for a profile with Copy, the
	// file or the folder with the file.
	From     string
	Progress func(Progress) // may be nil; called by one goroutine at a time, must return soon
}

// Progress of an install, for people.
type Progress struct {
	Name  string // of the profile, or "node"
	Phase string // waiting, fetching, copying, checking, done
	Done  int    // packages, while fetching
	Total int
	Text  string
}

// Manifest tells what is installed under a name.
type Manifest struct {
	Version  int       `json:"version"` // of this format: 1
	Name     string    `json:"name"`
	Agent    string    `json:"agent"` // version of the agent's own package
	Packages []string  `json:"packages,omitempty"`
	Build    string    `json:"build"` // of the profile that it was installed for
	Layer    string    `json:"layer"` // folder below layers
	Tree     string    `json:"tree"`
	Files    int64     `json:"files"`
	Bytes    int64     `json:"bytes"`
	At       time.Time `json:"at"`
	By       string    `json:"by"` // npm VERSION, or the folder that it came from
}

// Status is what List tells of one profile.
type Status struct {
	Name      string
	Title     string
	Version   string // that the profile wants
	Hidden    bool
	Installed bool
	Need      string // why not, for people; empty when installed
	Bytes     int64  // on disk; about, when not installed
	At        time.Time
}

// recipe is what makes one layer: an agent's own, or their Node.
type recipe struct {
	name, title, build, version string
	packages                    []Package
	lock                        []byte
	tree                        string
	bytes                       int64
	files                       []File
	copy                        string
	nodeBin                     bool // give it bin/node
}

func (p Profile) recipes() ([]recipe, error) {
	var out []recipe
	if p.Node != "" {
		lock, err := data.ReadFile("locks/node.json")
		if err != nil {
			return nil, err
		}
		out = append(out, recipe{
			name: nodeName, title: "Node.js " + nodeVersion, build: nodeName + "-" + nodeVersion, version: nodeVersion,
			packages: []Package{{nodePackage, nodeVersion}}, lock: lock, tree: nodeTree, bytes: nodeSize, nodeBin: true,
		})
	}
	return append(out, recipe{
		name: p.Name, title: p.Title, build: p.build, version: p.Version(),
		packages: p.Packages, lock: p.lock, tree: p.Tree, bytes: p.SizeBytes, files: p.Layer.Files, copy: p.Copy,
	}), nil
}

// Install puts a profile's packages and its Node in place; what is there and
// unharmed is left alone. It may be killed at any moment: nothing half-made is
// ever used, and the next run goes on with what npm had fetched. Codes:
// AGENT_INSTALL_FAILED with a detail "reason" (no_npm, network, disk, integrity,
// source, other), INVALID_INPUT.
func (in *Installer) Install(ctx context.Context, p Profile, o InstallOptions) (Manifest, error) {
	if p.Copy != "" && o.From == "" {
		if m, err := in.manifest(p.Name); err == nil && in.check(ctx, m) == nil {
			return m, nil
		}
		return Manifest{}, fault.New(fault.InvalidInput, "%s is not a package: give the file %s, or the folder with it, with --from.", p.Title, p.Copy)
	}
	if o.From != "" {
		abs, err := filepath.Abs(o.From)
		if err != nil {
			return Manifest{}, fmt.Errorf("install %s: %w", p.Name, err)
		}
		o.From = abs
	}
	if err := os.MkdirAll(filepath.Join(in.Dir, "layers"), 0o755); err != nil {
		return Manifest{}, in.failed(p.Title, err)
	}
	unlock, err := in.lock(ctx, p.Name, o.Progress)
	if err != nil {
		return Manifest{}, err
	}
	defer unlock()
	if err := os.RemoveAll(in.path("tmp")); err != nil {
		return Manifest{}, in.failed(p.Title, err)
	}
	rs, err := p.recipes()
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	for _, r := range rs {
		if m, err = in.ensure(ctx, r, o); err != nil {
			return Manifest{}, err
		}
	}
	for _, d := range []string{"cache", "tmp"} {
		if err := os.RemoveAll(in.path(d)); err != nil {
			in.Logger.Warn("agent install: leftover", "path", d, "error", err)
		}
	}
	say(o.Progress, Progress{Name: p.Name, Phase: "done"})
	return m, nil
}

// ensure leaves an unharmed layer alone and makes any other anew.
func (in *Installer) ensure(ctx context.Context, r recipe, o InstallOptions) (Manifest, error) {
	if m, err := in.manifest(r.name); err == nil && r.wants(m) && (r.copy == "" || o.From == "") {
		say(o.Progress, Progress{Name: r.name, Phase: "checking"})
		if err := in.check(ctx, m); err == nil {
			return m, nil
		} else if ctx.Err() != nil {
			return Manifest{}, context.Cause(ctx)
		} else {
			in.Logger.Warn("agent install: layer is damaged and made anew", "agent", r.name, "error", err)
		}
	}
	if err := in.room(r); err != nil {
		return Manifest{}, err
	}
	if err := os.MkdirAll(in.path("tmp"), 0o755); err != nil {
		return Manifest{}, in.failed(r.title, err)
	}
	work := in.path("tmp", r.name)
	by, err := in.fill(ctx, r, work, o)
	if err != nil {
		return Manifest{}, in.failed(r.title, err)
	}
	say(o.Progress, Progress{Name: r.name, Phase: "checking"})
	if err := seal(work); err != nil {
		return Manifest{}, in.failed(r.title, err)
	}
	t, err := hashTree(ctx, work)
	if err != nil {
		return Manifest{}, in.failed(r.title, err)
	}
	if r.tree != "" && t.Hash != r.tree {
		return Manifest{}, fault.New(fault.AgentInstallFailed,
			"%s could not be installed: the files are not the reviewed ones (%s, expected %s). Nothing of them was kept.", r.title, t.Hash, r.tree).
			With("reason", reasonIntegrity)
	}
	m := Manifest{
		Version: 1, Name: r.name, Agent: r.version, Build: r.build, Layer: layerName(r.name, t.Hash), Tree: t.Hash,
		Files: t.Files, Bytes: t.Bytes, At: in.Now().UTC(), By: by,
	}
	for _, k := range r.packages {
		m.Packages = append(m.Packages, k.Name+"@"+k.Version)
	}
	if err := in.publish(work, m); err != nil {
		return Manifest{}, in.failed(r.title, err)
	}
	in.Logger.Info("agent installed", "agent", r.name, "layer", m.Layer, "bytes", m.Bytes, "by", by)
	return m, nil
}

// fill makes the layer's files in work and tells where they came from.
func (in *Installer) fill(ctx context.Context, r recipe, work string, o InstallOptions) (string, error) {
	if r.copy != "" {
		say(o.Progress, Progress{Name: r.name, Phase: "copying"})
		return o.From, copyOne(o.From, r, work)
	}
	run := npmRun{npm: in.NPM, env: in.Env, dir: work, cache: in.path("cache"), title: r.title, packages: r.packages, lock: r.lock,
		progress: func(done, total int, last string) {
			say(o.Progress, Progress{Name: r.name, Phase: "fetching", Done: done, Total: total, Text: last})
		}}
	if o.From != "" {
		layer, cache, err := source(o.From, r)
		if err != nil {
			return "", err
		}
		if layer != "" {
			say(o.Progress, Progress{Name: r.name, Phase: "copying"})
			return o.From, copyTree(ctx, layer, work)
		}
		run.cache, run.offline = cache, true
	}
	if run.npm == "" {
		run.npm = "npm"
	}
	npm, err := exec.LookPath(run.npm)
	if err != nil {
		return "", noNPM(err, r.title)
	}
	run.npm = npm
	version, err := npmVersion(ctx, npm, r.title)
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(work, 0o755); err != nil {
		return "", err
	}
	say(o.Progress, Progress{Name: r.name, Phase: "fetching"})
	if err := run.run(ctx); err != nil {
		return "", err
	}
	// npm's own notes differ from version to version and are of no use inside.
	for _, f := range []string{"package.json", "package-lock.json", "node_modules/.package-lock.json"} {
		if err := os.Remove(filepath.Join(work, f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "npm " + version, in.addFiles(r, work)
}

func (in *Installer) addFiles(r recipe, work string) error {
	if r.nodeBin {
		if err := os.Mkdir(filepath.Join(work, "bin"), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("../node_modules/"+nodePackage+"/bin/node", filepath.Join(work, "bin", "node")); err != nil {
			return err
		}
	}
	for _, f := range r.files {
		to := filepath.Join(work, f.Path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, []byte(f.Content), 0o600); err != nil {
			return err
		}
		mode := fs.FileMode(f.Mode)
		if mode == 0 {
			mode = 0o444
		}
		if err := os.Chmod(to, mode); err != nil {
			return err
		}
	}
	return nil
}

// publish makes a finished layer the one in use.
func (in *Installer) publish(work string, m Manifest) error {
	// After a crash of the machine a manifest must not name files that never reached the disk.
	if err := syncFS(work); err != nil {
		return err
	}
	to := in.path("layers", m.Layer)
	if _, err := os.Lstat(to); err == nil {
		// A damaged twin may be bound into sandboxes still: it is moved, not removed.
		aside := fmt.Sprintf("%s.damaged-%d", to, m.At.UnixNano())
		if err := os.Rename(to, aside); err != nil {
			return err
		}
	}
	if err := os.Rename(work, to); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	tmp := in.path("tmp", m.Name+".json")
	if err := os.WriteFile(tmp, append(raw, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.Rename(tmp, in.path(m.Name+".json")); err != nil {
		return err
	}
	return syncFS(in.Dir)
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// wants tells whether what the manifest says is what the recipe makes.
func (r recipe) wants(m Manifest) bool {
	if r.tree != "" {
		return m.Tree == r.tree
	}
	return m.Build == r.build
}

func layerName(name, tree string) string {
	return name + "-" + strings.TrimPrefix(tree, "sha256:")[:16]
}

func (in *Installer) path(elem ...string) string {
	return filepath.Join(append([]string{in.Dir}, elem...)...)
}

func say(f func(Progress), p Progress) {
	if f != nil {
		f(p)
	}
}

// manifest reads and checks what is installed under a name.
func (in *Installer) manifest(name string) (Manifest, error) { return readManifest(in.Dir, name) }

func readManifest(dir, name string) (Manifest, error) {
	raw, err := os.ReadFile(filepath.Join(dir, name+".json"))
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return Manifest{}, fmt.Errorf("read manifest of %s: %w", name, err)
	}
	if m.Version != 1 || m.Name != name || !reTree.MatchString(m.Tree) || m.Layer != layerName(name, m.Tree) {
		return Manifest{}, fmt.Errorf("read manifest of %s: it is not one", name)
	}
	return m, nil
}

// check hashes an installed layer.
func (in *Installer) check(ctx context.Context, m Manifest) error {
	t, err := hashTree(ctx, in.path("layers", m.Layer))
	if err != nil {
		return err
	}
	if t.Hash != m.Tree {
		return fmt.Errorf("layer %s: hash is %s, was %s", m.Layer, t.Hash, m.Tree)
	}
	return nil
}

// room refuses before a long download what would not fit: the files and npm's
// cache of them.
func (in *Installer) room(r recipe) error {
	var s unix.Statfs_t
	if err := unix.Statfs(in.Dir, &s); err != nil {
		return in.failed(r.title, err)
	}
	free, need := int64(s.Bavail)*s.Bsize, r.bytes+r.bytes/2+16<<20
	if free >= need {
		return nil
	}
	return fault.New(fault.AgentInstallFailed, "%s could not be installed: the disk of %s has %d MB free, it needs about %d MB.",
		r.title, in.Dir, free>>20, need>>20).With("reason", reasonDisk).With("freeBytes", free).With("needBytes", need)
}

// failed gives an uncoded error of an install its code.
func (in *Installer) failed(title string, err error) error {
	var e *fault.Error
	switch {
	case errors.As(err, &e), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fault.Wrap(err, fault.AgentInstallFailed, "%s could not be installed: the disk of %s is full. Free some space and run the same install again.", title, in.Dir).
			With("reason", reasonDisk)
	case errors.Is(err, fs.ErrPermission):
		return fault.Wrap(err, fault.AgentInstallFailed, "%s could not be installed: %s may not be written by this user.", title, in.Dir).With("reason", reasonOther)
	}
	return fault.Wrap(err, fault.AgentInstallFailed, "%s could not be installed: %v.", title, err).With("reason", reasonOther)
}

// Layer is what a sandbox has to bind to run the agent, and the build that the
// agent's memory belongs to. Code: AGENT_NOT_INSTALLED.
func (in *Installer) Layer(p Profile) ([]sandbox.Bind, string, error) {
	rs, err := p.recipes()
	if err != nil {
		return nil, "", err
	}
	var binds []sandbox.Bind
	build := p.build
	for _, r := range rs {
		m, need := in.find(r)
		if need != "" {
			return nil, "", fault.New(fault.AgentNotInstalled, "%s is not installed on this server: %s. Run `hearth agent install %s` there.", p.Title, need, p.Name).
				With("agent", p.Name)
		}
		binds = append(binds, sandbox.Bind{Source: in.path("layers", m.Layer), Target: sandbox.PathAgents + "/" + r.name})
		if r.copy != "" {
			build += "-" + strings.TrimPrefix(m.Tree, "sha256:")[:12]
		}
	}
	return binds, build, nil
}

// find looks a layer up without reading its files; need says what is wrong.
func (in *Installer) find(r recipe) (m Manifest, need string) {
	m, err := in.manifest(r.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, r.title + " is missing"
	case err != nil:
		return m, "its manifest cannot be read"
	case !r.wants(m) && m.Agent != r.version:
		return m, fmt.Sprintf("version %s is installed, %s is wanted", m.Agent, r.version)
	case !r.wants(m):
		return m, "another build of it is installed"
	}
	if fi, err := os.Stat(in.path("layers", m.Layer)); err != nil || !fi.IsDir() {
		return m, "its files are gone"
	}
	return m, ""
}

// List tells of every profile whether it is installed. It reads no layer's files.
func (in *Installer) List() ([]Status, error) {
	var out []Status
	for _, p := range Profiles() {
		s := Status{Name: p.Name, Title: p.Title, Version: p.Version(), Hidden: p.Hidden, Installed: true}
		rs, err := p.recipes()
		if err != nil {
			return nil, err
		}
		for _, r := range rs {
			m, need := in.find(r)
			if need != "" {
				s.Installed = false
				s.Need = need
				m.Bytes = r.bytes
			}
			s.Bytes += m.Bytes
			if r.name == p.Name {
				s.At = m.At
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// Verify hashes all that a profile has installed. Codes: AGENT_NOT_INSTALLED, AGENT_LAYER_DAMAGED.
func (in *Installer) Verify(ctx context.Context, p Profile) error {
	if _, _, err := in.Layer(p); err != nil {
		return err
	}
	rs, err := p.recipes()
	if err != nil {
		return err
	}
	for _, r := range rs {
		m, err := in.manifest(r.name)
		if err != nil {
			return fmt.Errorf("verify %s: %w", r.name, err)
		}
		if err := in.check(ctx, m); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fault.Wrap(err, fault.AgentLayerDamaged, "The installed files of %s are not what was installed.", r.title).With("layer", m.Layer)
		}
	}
	return nil
}
