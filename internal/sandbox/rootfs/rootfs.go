// Package rootfs makes the read-only folders that sandboxes start from: the
// generated host root ([Store.Host]) and unpacked OCI images ([Store.OCI]). Both
// are named by digest, never change once they are there, and are shared by all
// sandboxes of a machine; what a sandbox writes goes to its own copy-on-write
// layer, which is the provider's business. The package mounts nothing and knows
// no provider. Start with [Store.Resolve].
package rootfs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
	"github.com/hearthd/hearth/internal/sandbox/mounts"
)

// Config says where roots are kept and what goes into them.
type Config struct {
	Dir     string           // absolute; made when missing
	Exclude []string         // host paths below /usr that the host root must not show
	ExtraCA string           // PEM file added to the host root's CA bundle; empty: none
	Now     func() time.Time // nil: time.Now
}

// Root is one root, ready to be used by any number of sandboxes at once.
type Root struct {
	Kind   string
	Dir    string // read-only by agreement: nobody writes below it
	Digest string // "sha256:…"; for an image that of its configuration
	Binds  []sandbox.Bind
}

// Store keeps roots in one folder. Its methods may be called concurrently, also
// by several processes on the same folder.
type Store struct {
	cfg  Config
	mu   sync.Mutex
	busy map[string]chan struct{} // by name, closed when its maker is done
}

// New returns a store; it touches nothing yet.
func New(cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("rootfs: folder %q is not absolute", cfg.Dir)
	}
	cfg.Dir = filepath.Clean(cfg.Dir)
	for _, p := range cfg.Exclude {
		if filepath.Clean(p) != p || !strings.HasPrefix(p, "/usr/") {
			return nil, fault.New(fault.ConfigInvalid, "The path %q cannot be excluded from the host root: name a path below /usr.", p)
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{cfg: cfg, busy: map[string]chan struct{}{}}, nil
}

// Resolve makes or finds the root that r asks for. Codes: ROOT_INVALID, DISK_FULL.
func (s *Store) Resolve(ctx context.Context, r sandbox.Root) (Root, error) {
	switch r.Kind {
	case "host":
		if r.Ref != "" {
			return Root{}, fault.New(fault.RootInvalid, "The host root takes no reference, %q was given.", r.Ref)
		}
		return s.Host(ctx)
	case "oci":
		return s.OCI(ctx, r.Ref)
	}
	return Root{}, fault.New(fault.RootInvalid, "There is no root of kind %q: use host or oci.", r.Kind)
}

// skeleton lists what every root has for the sandbox's fixed paths, so that a
// provider finds its mount points: folders, and empty files for file binds.
var skeleton = []entry{
	{path: "proc", mode: fs.ModeDir | 0o755},
	{path: "dev", mode: fs.ModeDir | 0o755},
	{path: "sys", mode: fs.ModeDir | 0o755},
	{path: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
	{path: "var", mode: fs.ModeDir | 0o755},
	{path: "var/tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
	{path: "var/lib", mode: fs.ModeDir | 0o755},
	{path: "run", mode: fs.ModeDir | 0o755},
	{path: "etc", mode: fs.ModeDir | 0o755},
	{path: "etc/hosts", mode: 0o644},
	{path: "root", mode: fs.ModeDir | 0o700},
	{path: "home", mode: fs.ModeDir | 0o755},
	{path: strings.TrimPrefix(sandbox.PathHome, "/"), mode: fs.ModeDir | 0o755},
	{path: "workspace", mode: fs.ModeDir | 0o755},
	{path: strings.TrimPrefix(sandbox.PathWork, "/"), mode: fs.ModeDir | 0o755},
	{path: strings.TrimPrefix(sandbox.PathDoors, "/"), mode: fs.ModeDir | 0o755},
	{path: strings.TrimPrefix(sandbox.PathState, "/"), mode: fs.ModeDir | 0o755},
	{path: "opt", mode: fs.ModeDir | 0o755},
	{path: "opt/hearth", mode: fs.ModeDir | 0o755},
	{path: strings.TrimPrefix(sandbox.PathAgents, "/"), mode: fs.ModeDir | 0o755},
	{path: strings.TrimPrefix(sandbox.PathDriver, "/"), mode: 0o755},
}

// make runs build for the folder of that name unless it is there, once at a
// time per process, into a temporary folder that is renamed when complete. So a
// folder of that name is always whole, whatever was killed when.
func (s *Store) make(ctx context.Context, name string, build func(dir string) error) (string, error) {
	release, err := s.begin(ctx, name)
	if err != nil {
		return "", err
	}
	defer release()
	final := filepath.Join(s.cfg.Dir, name)
	for used := false; ; used = true { // once more after it was noted: another process may have removed it in between
		_, err := os.Lstat(final)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("look for root %s: %w", name, err)
		}
		if used {
			return final, nil
		}
		s.use(name)
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of roots: %w", err)
	}
	tmp := s.temporary()
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return "", fmt.Errorf("make a temporary root: %w", err)
	}
	defer func() { _ = local.RemoveAll(tmp) }() // gone when it was renamed; Clean does that as well
	if err := build(tmp); err != nil {
		return "", err
	}
	defer s.use(name)
	if err := os.Rename(tmp, final); err != nil {
		if _, there := os.Lstat(final); there == nil { // another process was first; same digest, same content
			return final, nil
		}
		return "", fmt.Errorf("put root %s in place: %w", name, err)
	}
	return final, nil
}

// begin waits until nobody else in this process works on a root.
func (s *Store) begin(ctx context.Context, name string) (release func(), err error) {
	for {
		s.mu.Lock()
		wait, other := s.busy[name]
		if !other {
			done := make(chan struct{})
			s.busy[name] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, name)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// usedMark begins the name of the file whose time is that of a root's last use. The root
// itself is not touched: sandboxes see it.
const usedMark = "used-"

// use notes that a root is asked for. Where it cannot be written a root cannot be removed either.
func (s *Store) use(root string) {
	path := filepath.Join(s.cfg.Dir, usedMark+root)
	now := s.cfg.Now()
	if err := os.Chtimes(path, now, now); errors.Is(err, fs.ErrNotExist) {
		_ = os.WriteFile(path, nil, 0o600)
		_ = os.Chtimes(path, now, now)
	}
}

var rootName = regexp.MustCompile(`^(host|oci)-[0-9a-f]{32}$`)

// Clean removes what killed processes have left, and roots that were last asked for
// before a time. The last one of each kind stays, and so does one that any process of this
// machine has mounted.
func (s *Store) Clean(ctx context.Context, before time.Time) error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for old roots: %w", err)
	}
	var errs []error
	used := map[string]time.Time{}
	newest := map[string]string{} // by kind
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), tmpMark); ok {
			if i := strings.LastIndexByte(rest, '.'); !local.MakerAlive(rest[:max(i, 0)]) {
				errs = append(errs, local.RemoveAll(filepath.Join(s.cfg.Dir, e.Name())))
			}
		}
		if !rootName.MatchString(e.Name()) {
			continue
		}
		at, err := s.used(e.Name())
		if err != nil {
			s.use(e.Name()) // its time begins now
			at = s.cfg.Now()
		}
		used[e.Name()] = at
		kind, _, _ := strings.Cut(e.Name(), "-")
		if at.After(used[newest[kind]]) {
			newest[kind] = e.Name()
		}
	}
	var old []string
	for name, at := range used {
		if kind, _, _ := strings.Cut(name, "-"); at.Before(before) && newest[kind] != name {
			old = append(old, name)
		}
	}
	shown, err := mounts.Shown(old)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, name := range old {
		if !shown[name] && ctx.Err() == nil {
			errs = append(errs, s.remove(ctx, name, before))
		}
	}
	return errors.Join(append(errs, s.cleanRefs(entries), ctx.Err())...)
}

func (s *Store) used(root string) (time.Time, error) {
	fi, err := os.Stat(filepath.Join(s.cfg.Dir, usedMark+root))
	if err != nil {
		return time.Time{}, err
	}
	return fi.ModTime(), nil
}

// remove takes a root away, unless somebody has asked for it since.
func (s *Store) remove(ctx context.Context, name string, before time.Time) error {
	release, err := s.begin(ctx, name)
	if err != nil {
		return err
	}
	defer release()
	dir, tmp := filepath.Join(s.cfg.Dir, name), s.temporary()
	if err := os.Rename(dir, tmp); err != nil {
		return fmt.Errorf("remove root %s: %w", name, err)
	}
	if at, err := s.used(name); err != nil || !at.Before(before) { // by another process, between our look and the rename
		if err := os.Rename(tmp, dir); err == nil {
			return nil
		}
	}
	return errors.Join(local.RemoveAll(tmp), os.Remove(filepath.Join(s.cfg.Dir, usedMark+name)))
}

// cleanRefs forgets which root an image's digest has, where that is gone.
func (s *Store) cleanRefs(entries []fs.DirEntry) error {
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), refMark) {
			continue
		}
		path := filepath.Join(s.cfg.Dir, e.Name())
		data, err := os.ReadFile(path)
		if digest := strings.TrimSpace(string(data)); err == nil && len(digest) == 64 {
			if _, err := os.Lstat(filepath.Join(s.cfg.Dir, ociName(digest))); err == nil {
				continue
			}
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tmpMark begins the names of what is not complete; the maker follows, and a tail after a dot.
const tmpMark = ".tmp-"

func (s *Store) temporary() string {
	var tail [6]byte
	_, _ = rand.Read(tail[:])
	return filepath.Join(s.cfg.Dir, tmpMark+local.Maker()+"."+hex.EncodeToString(tail[:]))
}
