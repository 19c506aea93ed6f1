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
	"strings"
	"sync"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// Config says where roots are kept and what goes into them.
type Config struct {
	Dir     string   // absolute; made when missing
	Exclude []string // host paths below /usr that the host root must not show
	ExtraCA string   // PEM file added to the host root's CA bundle; empty: none
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
	for {
		s.mu.Lock()
		wait, other := s.busy[name]
		if !other {
			done := make(chan struct{})
			s.busy[name] = done
			s.mu.Unlock()
			defer func() {
				s.mu.Lock()
				delete(s.busy, name)
				s.mu.Unlock()
				close(done)
			}()
			break
		}
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	final := filepath.Join(s.cfg.Dir, name)
	if _, err := os.Lstat(final); err == nil {
		return final, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for root %s: %w", name, err)
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o755); err != nil {
		return "", fmt.Errorf("make the folder of roots: %w", err)
	}
	var tail [6]byte
	_, _ = rand.Read(tail[:])
	tmp := filepath.Join(s.cfg.Dir, ".tmp-"+hex.EncodeToString(tail[:]))
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return "", fmt.Errorf("make a temporary root: %w", err)
	}
	defer func() { _ = local.RemoveAll(tmp) }() // gone when it was renamed; the next start clears it as well
	if err := build(tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, final); err != nil {
		if _, there := os.Lstat(final); there == nil { // another process was first; same digest, same content
			return final, nil
		}
		return "", fmt.Errorf("put root %s in place: %w", name, err)
	}
	return final, nil
}

// Clean removes what interrupted runs have left. Call it when no other process
// works on the folder, which is at a server's start.
func (s *Store) Clean() error {
	names, err := filepath.Glob(filepath.Join(s.cfg.Dir, ".tmp-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		errs = append(errs, local.RemoveAll(n))
	}
	return errors.Join(errs...)
}
