package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/fault"
)

// PrepareRequest says where a session works.
type PrepareRequest struct {
	Session    string
	Scope      string       // who shares a mirror: the workspace
	Remote     forge.Remote // zero: scratch session without a repository
	Credential forge.Credential
	Base       string // branch to start from; empty: the default branch
	Branch     string // the session's branch
}

// Base is where a session starts.
type Base struct {
	Branch    string // branch that was started from
	OID       string // commit to start from: of the session's branch when that exists; empty in an empty repository
	BranchOID string // commit of the session's branch on the remote, empty when it is not there
	Empty     bool   // the repository has no commit at all
	Format    string // object format, sha1 or sha256
}

// Prepare fetches what the session starts from and makes its quarantine
// repository. Again is fine: it then reads the remote anew and keeps the work.
// Codes: REPOSITORY_UNREACHABLE, FORGE_UNAVAILABLE, BRANCH_INVALID.
func (s *Store) Prepare(ctx context.Context, req PrepareRequest) (Base, error) {
	if !validID.MatchString(req.Session) {
		return Base{}, fault.New(fault.InvalidInput, "That is not the id of a session.")
	}
	if err := forge.CheckBranch(req.Branch); err != nil {
		return Base{}, err
	}
	if req.Base != "" {
		if err := forge.CheckBranch(req.Base); err != nil {
			return Base{}, err
		}
	}
	unlock, err := s.locks.lock(ctx, "session "+req.Session)
	if err != nil {
		return Base{}, err
	}
	defer unlock()
	if req.Remote == (forge.Remote{}) {
		b := Base{Empty: true, Format: gitwire.SHA1}
		return b, s.makeQuarantine(ctx, req, b, "")
	}
	repo, err := s.cfg.Read(ctx, req.Remote, req.Credential)
	if err != nil {
		return Base{}, err
	}
	b := Base{Branch: req.Base, Format: repo.Format, Empty: repo.Empty}
	if b.Branch == "" {
		b.Branch = repo.DefaultBranch
	}
	_, exists := repo.Heads[req.Branch]
	_, hasBase := repo.Heads[b.Branch]
	switch {
	case repo.Empty:
		return b, s.makeQuarantine(ctx, req, b, "")
	case hasBase || exists && req.Base == "":
	case b.Branch == "":
		return Base{}, fault.New(fault.BranchInvalid, "The repository does not say which branch is its default. Name the branch to start from.")
	case req.Base == "":
		return Base{}, fault.New(fault.BranchInvalid, "The repository's default branch %s has no commit. Name the branch to start from.", b.Branch)
	default:
		return Base{}, fault.New(fault.BranchInvalid, "The repository has no branch %s to start from.", b.Branch)
	}
	var want []string
	if hasBase {
		want = append(want, b.Branch)
	}
	if exists && req.Branch != b.Branch {
		want = append(want, req.Branch)
	}
	mirror, ids, err := s.fetch(ctx, req.Scope, req.Remote, req.Credential, repo.Format, req.Session, want)
	if err != nil {
		return Base{}, err
	}
	b.OID = ids[b.Branch]
	if exists {
		b.BranchOID = ids[req.Branch]
		b.OID = b.BranchOID
	}
	return b, s.makeQuarantine(ctx, req, b, mirror)
}

// fetch brings branches into the mirror, keeps them for the session and tells their commits.
func (s *Store) fetch(ctx context.Context, scope string, r forge.Remote, c forge.Credential, format, session string, branches []string) (mirror string, ids map[string]string, err error) {
	sum := sha256.Sum256([]byte(scope + "\n" + strings.TrimSuffix(r.URL, ".git") + "\n" + format))
	mirror = filepath.Join(s.cfg.Dir, "mirrors", hex.EncodeToString(sum[:16])+".git")
	unlock, err := s.locks.lock(ctx, "mirror "+mirror)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	if err := s.initBare(ctx, mirror, format, nil); err != nil {
		return "", nil, err
	}
	args := []string{"fetch", "--quiet", "--no-tags", "--force", "--no-write-fetch-head", "--no-auto-maintenance", "--end-of-options", r.URL}
	for _, b := range branches {
		args = append(args, "+refs/heads/"+b+":"+mirrorRef(b))
	}
	_, _, err = s.cfg.Git.Run(ctx, gitcmd.Run{Dir: mirror, Args: args, Login: login(c), Timeout: s.cfg.FetchTimeout})
	if err != nil {
		return "", nil, fetchError(r, err)
	}
	ids = map[string]string{}
	var keep strings.Builder
	for _, b := range branches {
		id, err := s.resolve(ctx, mirror, mirrorRef(b))
		if err != nil {
			return "", nil, err
		}
		if id == "" {
			return "", nil, fault.New(fault.BranchInvalid, "The branch %s is not a line of commits.", b)
		}
		ids[b] = id
		fmt.Fprintf(&keep, "update %s/%s %s\n", keepRef(session), id, id)
	}
	return mirror, ids, s.updateRefs(ctx, mirror, keep.String())
}

// mirrorRef is flat, so that a branch a and a former branch a/b do not meet.
func mirrorRef(branch string) string {
	sum := sha256.Sum256([]byte(branch))
	return "refs/hearth/mirror/" + hex.EncodeToString(sum[:20])
}

// keepRef is the folder of refs in a mirror that hold a session's commits.
func keepRef(session string) string { return "refs/hearth/keep/" + session }

func (s *Store) updateRefs(ctx context.Context, dir, commands string) error {
	if commands == "" {
		return nil
	}
	_, _, err := s.cfg.Git.Run(ctx, gitcmd.Run{Dir: dir, Args: []string{"update-ref", "--stdin"}, Stdin: strings.NewReader(commands), Timeout: s.cfg.LocalTimeout})
	if err != nil {
		return fmt.Errorf("update refs: %w", err)
	}
	return nil
}

// initBare makes a bare repository, in one step, unless it is there. finish
// works on it before it gets its name.
func (s *Store) initBare(ctx context.Context, dir, format string, finish func(dir string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	tmp, err := os.MkdirTemp(filepath.Join(s.cfg.Dir, "trash"), "init")
	if err != nil {
		return fmt.Errorf("make repository: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // the next start clears it as well
	made := filepath.Join(tmp, "r.git")
	_, _, err = s.cfg.Git.Run(ctx, gitcmd.Run{
		Args:    []string{"init", "--quiet", "--bare", "--template=", "--object-format=" + format, made},
		Timeout: s.cfg.LocalTimeout,
	})
	if err != nil {
		return fmt.Errorf("make repository: %w", err)
	}
	if finish != nil {
		if err := finish(made); err != nil {
			return err
		}
	}
	if err := os.Rename(made, dir); err != nil {
		return fmt.Errorf("put repository in place: %w", err)
	}
	return nil
}

// makeQuarantine makes or renews the session's repository over its mirror.
func (s *Store) makeQuarantine(ctx context.Context, req PrepareRequest, b Base, mirror string) error {
	dir := s.quarantine(req.Session)
	if err := s.initBare(ctx, dir, b.Format, nil); err != nil {
		return err
	}
	if format, err := s.formatOf(ctx, dir); err != nil {
		return err
	} else if format != b.Format {
		return fault.New(fault.RepositoryUnreachable, "The repository's object format was %s and is %s now.", format, b.Format)
	}
	if mirror != "" {
		if err := addAlternate(dir, mirror); err != nil {
			return err
		}
	}
	if _, err := s.local(ctx, dir, "symbolic-ref", "HEAD", "refs/heads/"+req.Branch); err != nil {
		return fmt.Errorf("name the session's branch: %w", err)
	}
	if b.OID == "" {
		return nil
	}
	return s.updateRefs(ctx, dir, "update refs/hearth/base "+b.OID+"\n")
}

// addAlternate lets a quarantine repository read a mirror's objects; the path is relative, so that the store can be moved.
func addAlternate(dir, mirror string) error {
	file := filepath.Join(dir, "objects", "info", "alternates")
	had, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read alternates: %w", err)
	}
	line := "../../../mirrors/" + filepath.Base(mirror) + "/objects"
	if slices.Contains(strings.Split(string(had), "\n"), line) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("write alternates: %w", err)
	}
	if err := os.WriteFile(file+".tmp", append(had, line+"\n"...), 0o600); err != nil {
		return fmt.Errorf("write alternates: %w", err)
	}
	if err := os.Rename(file+".tmp", file); err != nil {
		return fmt.Errorf("write alternates: %w", err)
	}
	return nil
}

// fetchError says why a fetch failed. What kept the host from answering was
// told by the read before; here it is a host that fell over, or objects that git refuses.
func fetchError(r forge.Remote, err error) error {
	var e *gitcmd.Error
	if !errors.As(err, &e) || e.Exit < 0 && !e.Timeout {
		return fmt.Errorf("fetch %s: %w", r.URL, err)
	}
	switch {
	case e.Timeout:
		return fault.Wrap(err, fault.ForgeUnavailable, "Fetching %s took too long.", r.URL)
	case strings.Contains(e.Stderr, "fsck error"):
		return fault.Wrap(err, fault.RepositoryUnreachable, "%s has objects that git refuses: %s", r.URL, forge.OneLine(fatalLine(e.Stderr), 300))
	case strings.Contains(e.Stderr, "Authentication failed"), strings.Contains(e.Stderr, "could not read Username"):
		return fault.Wrap(err, fault.RepositoryUnreachable, "%s does not accept the server's login.", r.URL)
	case strings.Contains(e.Stderr, "No space left"):
		return fault.Wrap(err, fault.DiskFull, "The server's disk is full: %s could not be fetched.", r.URL)
	}
	return fault.Wrap(err, fault.ForgeUnavailable, "Fetching %s failed: %s", r.URL, forge.OneLine(fatalLine(e.Stderr), 300))
}

// fatalLine is the line of git's words that says most.
func fatalLine(stderr string) string {
	last := ""
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "error: ") || strings.HasPrefix(line, "fatal: ") {
			return line
		}
		if line != "" {
			last = line
		}
	}
	return last
}
