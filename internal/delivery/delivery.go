// Package delivery brings a session's work out: it takes the packs that a sandbox
// hands over into a quarantine repository, checks them, shows them as diff and
// bundle, and publishes them as a branch. It holds git repositories only; what a
// session has published is the caller's row, and every method can be repeated.
// Hosts are reached through git and package forge. Start with [Open], then
// [Store.Prepare], [Store.Take], [Store.Publish].
//
// In Dir:
//
//	mirrors/<hash>.git       heads of one remote, as they were last fetched
//	quarantine/<session>.git work of one session, over the objects of its mirror
//	trash/                   what is being removed or was not finished
//
// Refs in a quarantine repository: refs/hearth/base, where the session began;
// refs/hearth/turns/<turn>, refs/hearth/head and refs/heads/<branch>, work that
// was taken; refs/hearth/interim, work of a turn that has not ended.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/fault"
)

// ReadFunc lists heads of a remote, as [forge.Forge] has it.
type ReadFunc func(ctx context.Context, r forge.Remote, c forge.Credential, branches ...string) (forge.Repository, error)

// Config of a [Store].
type Config struct {
	Dir  string // made when it is not there; must belong to this store alone
	Git  *gitcmd.Git
	Read ReadFunc
	Log  *slog.Logger
	// Time limits; 0: 15 min for fetch and push, 5 min for work on this machine, 2 min for the scan for secrets.
	FetchTimeout, PushTimeout, LocalTimeout, ScanTimeout time.Duration
}

// Store keeps the git side of sessions. It is safe for concurrent use; work on
// one session, and fetches of one remote, wait for each other.
type Store struct {
	cfg   Config
	locks locks
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$`)

// Open opens the store and clears what a server that was killed left half done.
func Open(cfg Config) (*Store, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.FetchTimeout, 15*time.Minute)
	def(&cfg.PushTimeout, 15*time.Minute)
	def(&cfg.LocalTimeout, 5*time.Minute)
	def(&cfg.ScanTimeout, 2*time.Minute)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	abs, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("path of the delivery store: %w", err)
	}
	cfg.Dir = abs
	if err := os.RemoveAll(filepath.Join(abs, "trash")); err != nil {
		return nil, fmt.Errorf("clear the delivery store's trash: %w", err)
	}
	for _, d := range []string{"mirrors", "quarantine", "trash"} {
		if err := os.MkdirAll(filepath.Join(abs, d), 0o700); err != nil {
			return nil, fmt.Errorf("make the delivery store: %w", err)
		}
	}
	s := &Store{cfg: cfg, locks: locks{m: map[string]*lock{}}}
	return s, s.clearLeftovers()
}

// clearLeftovers removes lock files and unfinished packs: nobody else works here.
func (s *Store) clearLeftovers() error {
	repos, err := filepath.Glob(filepath.Join(s.cfg.Dir, "*", "*.git"))
	if err != nil {
		return fmt.Errorf("list repositories of the delivery store: %w", err)
	}
	for _, repo := range repos {
		err := filepath.WalkDir(repo, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := d.Name()
			if d.IsDir() {
				// Loose objects cannot be half there and are many.
				if len(name) == 2 && filepath.Base(filepath.Dir(p)) == "objects" {
					return filepath.SkipDir
				}
				if strings.HasPrefix(name, incomingPrefix) {
					if err := os.RemoveAll(p); err != nil {
						return err
					}
					return filepath.SkipDir
				}
				return nil
			}
			if strings.HasSuffix(name, ".lock") || strings.HasPrefix(name, "tmp_") {
				return os.Remove(p)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("clear leftovers in the delivery store: %w", err)
		}
	}
	return nil
}

func (s *Store) quarantine(session string) string {
	return filepath.Join(s.cfg.Dir, "quarantine", session+".git")
}

// existing is the session's repository, or an error when there is none.
func (s *Store) existing(session string) (string, error) {
	if !validID.MatchString(session) {
		return "", fault.New(fault.InvalidInput, "That is not the id of a session.")
	}
	dir := s.quarantine(session)
	if _, err := os.Stat(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", fault.New(fault.NothingToDeliver, "There is no packed work of this session.")
		}
		return "", fmt.Errorf("look for the session's repository: %w", err)
	}
	return dir, nil
}

// local runs git on one of the store's repositories.
func (s *Store) local(ctx context.Context, dir string, args ...string) (string, error) {
	out, _, err := s.cfg.Git.Run(ctx, gitcmd.Run{Dir: dir, Args: args, Timeout: s.cfg.LocalTimeout})
	return string(out), err
}

// resolve gives the id that a ref or id stands for, empty when it is not there.
func (s *Store) resolve(ctx context.Context, dir, rev string) (string, error) {
	out, err := s.local(ctx, dir, "rev-parse", "--verify", "--quiet", "--end-of-options", rev+"^{commit}")
	var e *gitcmd.Error
	if errors.As(err, &e) && e.Exit == 1 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", rev, err)
	}
	return strings.TrimSpace(out), nil
}

// formatOf is the object format of one of the store's repositories.
func (s *Store) formatOf(ctx context.Context, dir string) (string, error) {
	out, err := s.local(ctx, dir, "rev-parse", "--show-object-format")
	if err != nil {
		return "", fmt.Errorf("object format: %w", err)
	}
	return strings.TrimSpace(out), nil
}

// emptyTree is an id that git knows without having the object.
func emptyTree(format string) string {
	if format == gitwire.SHA256 {
		return "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
	}
	return "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
}

func login(c forge.Credential) *gitcmd.Login {
	if c.IsZero() {
		return nil
	}
	return &gitcmd.Login{Username: c.Username, Password: c.Password}
}

// discard moves a folder out of the way in one step, then removes it.
func (s *Store) discard(dir string) error {
	trash, err := os.MkdirTemp(filepath.Join(s.cfg.Dir, "trash"), "x")
	if err != nil {
		return fmt.Errorf("make trash: %w", err)
	}
	if err := os.Rename(dir, filepath.Join(trash, "x")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("move to trash: %w", err), os.RemoveAll(trash))
	}
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("empty trash: %w", err)
	}
	return nil
}

// locks are locks by name that give up when a context ends.
type locks struct {
	mu sync.Mutex
	m  map[string]*lock
}

type lock struct {
	held  chan struct{}
	users int
}

func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	k := l.m[name]
	if k == nil {
		k = &lock{held: make(chan struct{}, 1)}
		l.m[name] = k
	}
	k.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		if k.users--; k.users == 0 {
			delete(l.m, name)
		}
		l.mu.Unlock()
	}
	select {
	case k.held <- struct{}{}:
		return func() { <-k.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for %s: %w", name, context.Cause(ctx))
	}
}
