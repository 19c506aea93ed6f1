package delivery

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/fault"
)

func (s *Store) mirrors() ([]string, error) {
	list, err := filepath.Glob(filepath.Join(s.cfg.Dir, "mirrors", "*.git"))
	if err != nil {
		return nil, fmt.Errorf("list mirrors: %w", err)
	}
	return list, nil
}

// release lets go of the commits that a mirror keeps for a session.
func (s *Store) release(ctx context.Context, mirror, session string) error {
	unlock, err := s.locks.lock(ctx, "mirror "+mirror)
	if err != nil {
		return err
	}
	defer unlock()
	refs, err := s.local(ctx, mirror, "for-each-ref", "--format=delete %(refname)", keepRef(session)+"/")
	if err != nil {
		return fmt.Errorf("list kept commits: %w", err)
	}
	return s.updateRefs(ctx, mirror, refs)
}

// Tidy packs mirrors and removes those that no session needs and that were not
// fetched since before. It is for once a day or less.
func (s *Store) Tidy(ctx context.Context, before time.Time) error {
	list, err := s.mirrors()
	if err != nil {
		return err
	}
	for _, m := range list {
		if err := s.tidyMirror(ctx, m, before); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) tidyMirror(ctx context.Context, mirror string, before time.Time) error {
	unlock, err := s.locks.lock(ctx, "mirror "+mirror)
	if err != nil {
		return err
	}
	defer unlock()
	kept, err := s.local(ctx, mirror, "for-each-ref", "--count=1", "--format=%(refname)", "refs/hearth/keep/")
	if err != nil {
		return fmt.Errorf("list kept commits: %w", err)
	}
	// A fetch changes the folder of refs or of packs; either tells when the last one was.
	newest := time.Time{}
	for _, d := range []string{"refs/hearth", "refs/hearth/mirror", "objects/pack", "objects"} {
		if i, err := os.Stat(filepath.Join(mirror, d)); err == nil && i.ModTime().After(newest) {
			newest = i.ModTime()
		}
	}
	if strings.TrimSpace(kept) == "" && newest.Before(before) {
		return s.discard(mirror)
	}
	// Nothing is pruned: a quarantine repository may need it.
	if _, err := s.local(ctx, mirror, "-c", "gc.auto=200", "-c", "gc.autoPackLimit=20", "-c", "gc.pruneExpire=never", "gc", "--auto", "--quiet"); err != nil {
		return fmt.Errorf("pack mirror: %w", err)
	}
	return nil
}

// DescendsRequest asks about a push that goes by without the store having its objects.
type DescendsRequest struct {
	Session    string
	Scope      string
	Remote     forge.Remote
	Credential forge.Credential
	Branch     string // fetched first when the store does not have Floor or the branch's newest commits
	Floor      string // commit that must be kept
	Candidate  string
	Pack       io.Reader
	MaxBytes   int64 // of the pack; 0: DefaultMaxPack
}

// Descends says whether Candidate, whose objects are in Pack, has Floor among its
// ancestors. It keeps nothing of the pack. Codes: PACK_REFUSED, PACK_TOO_LARGE,
// FORGE_UNAVAILABLE.
func (s *Store) Descends(ctx context.Context, req DescendsRequest) (bool, error) {
	dir, err := s.existing(req.Session)
	if err != nil {
		return false, err
	}
	unlock, err := s.locks.lock(ctx, "session "+req.Session)
	if err != nil {
		return false, err
	}
	defer unlock()
	repo, err := s.cfg.Read(ctx, req.Remote, req.Credential, req.Branch)
	if err != nil {
		return false, err
	}
	if id := repo.Heads[req.Branch]; id != "" {
		have, err := s.resolve(ctx, dir, id)
		if err != nil {
			return false, err
		}
		if have == "" {
			if _, _, err := s.fetch(ctx, req.Scope, req.Remote, req.Credential, repo.Format, req.Session, []string{req.Branch}); err != nil {
				return false, err
			}
		}
	}
	in, err := s.receive(ctx, dir, req.Pack, req.MaxBytes)
	if err != nil {
		return false, err
	}
	defer in.drop()
	for _, id := range []string{req.Floor, req.Candidate} {
		if _, _, err := s.cfg.Git.Run(ctx, gitRun(s, in, "cat-file", "-e", id+"^{commit}")); err != nil {
			return false, checkError(err, "The commit %s is not there.", forge.OneLine(id, 80))
		}
	}
	return s.descends(ctx, dir, in.env, req.Floor, req.Candidate)
}

// Have lists the commits that a sandbox need not pack again.
func (s *Store) Have(ctx context.Context, session string) ([]string, error) {
	dir, err := s.existing(session)
	if err != nil {
		return nil, err
	}
	out, err := s.local(ctx, dir, "for-each-ref", "--format=%(objectname)", "refs/hearth/")
	if err != nil {
		return nil, fmt.Errorf("list packed commits: %w", err)
	}
	seen := map[string]bool{}
	var ids []string
	for _, id := range strings.Fields(out) {
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Rewind makes a commit that the session has its newest work: after a discard.
// An empty id leaves none. Code: INVALID_INPUT.
func (s *Store) Rewind(ctx context.Context, session, id string) error {
	dir, err := s.existing(session)
	if err != nil {
		return err
	}
	unlock, err := s.locks.lock(ctx, "session "+session)
	if err != nil {
		return err
	}
	defer unlock()
	branch, err := s.local(ctx, dir, "symbolic-ref", "HEAD")
	if err != nil {
		return fmt.Errorf("read the session's branch: %w", err)
	}
	refs := []string{"refs/hearth/head", strings.TrimSpace(branch), "refs/hearth/interim"}
	if id != "" {
		have, err := s.resolve(ctx, dir, id)
		if err != nil {
			return err
		}
		if have != id {
			return fault.New(fault.InvalidInput, "%q is not a commit of this session.", forge.OneLine(id, 80))
		}
	}
	var cmds strings.Builder
	for i, ref := range refs {
		switch had, err := s.resolve(ctx, dir, ref); {
		case err != nil:
			return err
		case id != "" && i < 2:
			fmt.Fprintf(&cmds, "update %s %s\n", ref, id)
		case had != "":
			fmt.Fprintf(&cmds, "delete %s\n", ref)
		}
	}
	return s.updateRefs(ctx, dir, cmds.String())
}
