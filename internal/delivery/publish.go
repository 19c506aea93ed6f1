package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/fault"
)

// Outcomes of a publication.
const (
	OutcomePushed    = "pushed"     // the branch was moved to the candidate
	OutcomeAlready   = "already"    // it was there already
	OutcomeNoChanges = "no_changes" // nothing differs from the base; no branch was made
)

// PublishRequest names a publication by object ids.
type PublishRequest struct {
	Session    string
	Remote     forge.Remote
	Credential forge.Credential
	Branch     string
	Candidate  string // commit to publish; empty: there is none
	Base       string // commit that the session began from; empty in an empty repository
	// Known is the commit that the branch is known to have on the remote: as it was
	// prepared, or as this session pushed it last. Empty: the branch is not there.
	Known string
	// Own are commits that this session may have pushed without having learned the outcome.
	Own []string
	// Force allows to replace commits of the branch. Floor then is the newest one that
	// this session did not push: the candidate must have it. Empty: all are the session's.
	Force bool
	Floor string
	// Foreign, when set, is told the commit of others that the candidate has merged, before the push.
	Foreign func(ctx context.Context, oid string) error
}

// Published is what was read back from the remote.
type Published struct {
	OID     string // of the branch; empty for no_changes
	Outcome string
	Words   string // what the remote said for people, in lines
}

// Publish moves the branch on the remote from what is known to the candidate, or
// tells why not, and overwrites nobody's commits. Again is fine: it reads first.
// Codes: BRANCH_MOVED (with the id in details), BRANCH_REWRITTEN, PUSH_REFUSED,
// REPOSITORY_NOT_WRITABLE, FORGE_UNAVAILABLE, REPOSITORY_UNREACHABLE.
func (s *Store) Publish(ctx context.Context, req PublishRequest) (Published, error) {
	dir, err := s.existing(req.Session)
	if err != nil {
		return Published{}, err
	}
	if err := forge.CheckBranch(req.Branch); err != nil {
		return Published{}, err
	}
	unlock, err := s.locks.lock(ctx, "session "+req.Session)
	if err != nil {
		return Published{}, err
	}
	defer unlock()
	if req.Candidate == "" {
		return Published{Outcome: OutcomeNoChanges}, nil
	}
	if id, err := s.resolve(ctx, dir, req.Candidate); err != nil {
		return Published{}, err
	} else if id != req.Candidate {
		return Published{}, fault.New(fault.NothingToDeliver, "The commit %s was not packed by this session.", forge.OneLine(req.Candidate, 80))
	}
	remote, err := s.remoteID(ctx, req)
	if err != nil {
		return Published{}, err
	}
	if remote == req.Candidate {
		return Published{OID: remote, Outcome: OutcomeAlready}, nil
	}
	if remote == "" && req.Known == "" {
		if same, err := s.sameTree(ctx, dir, req); err != nil {
			return Published{}, err
		} else if same {
			return Published{Outcome: OutcomeNoChanges}, nil
		}
	}
	if remote != req.Known && !contains(req.Own, remote) {
		// Work that has merged what others pushed to this session's branch takes nothing from them.
		merged := false
		if remote != "" && req.Known != "" {
			if merged, err = s.descends(ctx, dir, nil, remote, req.Candidate); err != nil {
				return Published{}, err
			}
		}
		if !merged {
			return Published{}, branchMoved(req, remote)
		}
		if req.Foreign != nil {
			if err := req.Foreign(ctx, remote); err != nil {
				return Published{}, err
			}
		}
	}
	if err := s.mayReplace(ctx, dir, req, remote); err != nil {
		return Published{}, err
	}
	words, pushErr := s.push(ctx, dir, req, remote)
	if pushErr != nil && ctx.Err() != nil {
		return Published{}, fmt.Errorf("push: %w", context.Cause(ctx))
	}
	return s.settle(ctx, req, remote, words, pushErr)
}

// settle reads the remote: only that tells what a push has done.
func (s *Store) settle(ctx context.Context, req PublishRequest, before, words string, pushErr error) (Published, error) {
	after, err := s.remoteID(ctx, req)
	switch {
	case err != nil:
		return Published{}, fault.Wrap(errors.Join(err, pushErr), fault.ForgeUnavailable,
			"%s took or refused the push, but cannot be asked which: %s", req.Remote.Host, fault.From(err).Sentence())
	case after == req.Candidate:
		if pushErr != nil {
			s.cfg.Log.InfoContext(ctx, "push arrived although it failed", "session", req.Session, "error", pushErr)
		}
		return Published{OID: after, Outcome: OutcomePushed, Words: words}, nil
	case after != before:
		return Published{}, branchMoved(req, after)
	case pushErr == nil:
		return Published{}, fault.New(fault.PushRefused, "The remote said yes to the push, but the branch %s is where it was.", req.Branch)
	}
	return Published{}, pushError(req, pushErr)
}

func contains(ids []string, id string) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}

func (s *Store) remoteID(ctx context.Context, req PublishRequest) (string, error) {
	repo, err := s.cfg.Read(ctx, req.Remote, req.Credential, req.Branch)
	if err != nil {
		return "", err
	}
	return repo.Heads[req.Branch], nil
}

// sameTree: work that was undone again leaves nothing to publish.
func (s *Store) sameTree(ctx context.Context, dir string, req PublishRequest) (bool, error) {
	if req.Base == "" {
		return false, nil
	}
	if req.Base == req.Candidate {
		return true, nil
	}
	list, err := s.local(ctx, dir, "diff-tree", "--name-only", "-z", req.Base, req.Candidate)
	if err != nil {
		return false, fmt.Errorf("compare with the base: %w", err)
	}
	return list == "", nil
}

func branchMoved(req PublishRequest, remote string) error {
	e := fault.New(fault.BranchMoved, "Somebody else moved the branch %s to %.12s meanwhile. Nothing was overwritten.", req.Branch, remote)
	if remote == "" {
		e = fault.New(fault.BranchMoved, "Somebody else removed the branch %s meanwhile. It was not made again.", req.Branch)
	}
	return e.With("branch", req.Branch).With("remote", remote)
}

// mayReplace judges a candidate that leaves out commits which the branch has.
func (s *Store) mayReplace(ctx context.Context, dir string, req PublishRequest, remote string) error {
	if remote == "" {
		return nil
	}
	forward, err := s.descends(ctx, dir, nil, remote, req.Candidate)
	if err != nil || forward {
		return err
	}
	keeps := req.Floor == ""
	if !keeps {
		if keeps, err = s.descends(ctx, dir, nil, req.Floor, req.Candidate); err != nil {
			return err
		}
	}
	if req.Force && keeps {
		return nil
	}
	return fault.New(fault.BranchRewritten, "The work leaves out commits that the branch %s has. Nothing was overwritten.", req.Branch).
		With("branch", req.Branch).With("remote", remote)
}

// descends says whether old is new or one of its ancestors. Objects that are not here are none.
func (s *Store) descends(ctx context.Context, dir string, env []string, old, candidate string) (bool, error) {
	_, _, err := s.cfg.Git.Run(ctx, gitcmd.Run{Dir: dir, Env: env, Args: []string{"cat-file", "-e", old + "^{commit}"}, Timeout: s.cfg.LocalTimeout})
	var e *gitcmd.Error
	if errors.As(err, &e) && e.Exit > 0 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for commit: %w", err)
	}
	_, _, err = s.cfg.Git.Run(ctx, gitcmd.Run{Dir: dir, Env: env, Args: []string{"merge-base", "--is-ancestor", old, candidate}, Timeout: s.cfg.LocalTimeout})
	if errors.As(err, &e) && e.Exit == 1 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("compare commits: %w", err)
	}
	return true, nil
}

func (s *Store) push(ctx context.Context, dir string, req PublishRequest, remote string) (words string, err error) {
	ref := "refs/heads/" + req.Branch
	_, stderr, err := s.cfg.Git.Run(ctx, gitcmd.Run{
		Dir: dir, Login: login(req.Credential), Timeout: s.cfg.PushTimeout,
		Args: []string{
			"push", "--porcelain", "--no-verify", "--no-progress", "--force-with-lease=" + ref + ":" + remote,
			"--end-of-options", req.Remote.URL, req.Candidate + ":" + ref,
		},
	})
	return remoteWords(stderr), err
}

// pushError says why a push failed that has moved nothing.
func pushError(req PublishRequest, err error) error {
	var e *gitcmd.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("push: %w", err)
	}
	said := remoteWords(e.Stderr)
	reason := rejection(e.Stdout)
	switch {
	case reason != "" || strings.Contains(e.Stderr, "remote unpack failed"):
		if reason == "" {
			reason = forge.OneLine(fatalLine(e.Stderr), 300)
		}
		text := "The remote refused the push: " + reason + "."
		if said != "" {
			text += " It says: " + forge.OneLine(said, 1000)
		}
		return fault.Wrap(err, fault.PushRefused, "%s", text).With("reason", reason).With("remote", said)
	case strings.Contains(e.Stderr, "Authentication failed"), strings.Contains(e.Stderr, "could not read Username"),
		strings.Contains(e.Stderr, "returned error: 401"), strings.Contains(e.Stderr, "returned error: 403"):
		text := fmt.Sprintf("The server's login may not write %s.", req.Remote.URL)
		if said != "" {
			text += " It says: " + forge.OneLine(said, 1000)
		}
		return fault.Wrap(err, fault.RepositoryNotWritable, "%s", text)
	case e.Timeout:
		return fault.Wrap(err, fault.ForgeUnavailable, "Pushing to %s took too long.", req.Remote.URL)
	}
	return fault.Wrap(err, fault.ForgeUnavailable, "Pushing to %s failed: %s", req.Remote.URL, forge.OneLine(fatalLine(e.Stderr), 300))
}

// rejection is the reason in the porcelain line of a ref that was not moved:
// "!\t<from>:<to>\t[remote rejected] (<reason>)".
func rejection(porcelain string) string {
	for line := range strings.Lines(porcelain) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "!\t")
		if !ok {
			continue
		}
		_, summary, _ := strings.Cut(rest, "\t")
		reason := summary
		if i := strings.IndexByte(summary, '('); i >= 0 {
			reason = strings.TrimSuffix(summary[i+1:], ")")
		}
		if reason = forge.OneLine(reason, 300); reason != "" {
			return strings.TrimSuffix(reason, ".")
		}
	}
	return ""
}

// Bundle writes the session's branch as a git bundle (git-bundle(1)) that needs
// the base, or nothing when there was no base. Code: NOTHING_TO_DELIVER.
func (s *Store) Bundle(ctx context.Context, session string, w io.Writer) error {
	dir, err := s.existing(session)
	if err != nil {
		return err
	}
	head, err := s.resolve(ctx, dir, "refs/hearth/head")
	if err != nil {
		return err
	}
	base, err := s.resolve(ctx, dir, "refs/hearth/base")
	if err != nil {
		return err
	}
	if head == "" || head == base {
		return fault.New(fault.NothingToDeliver, "There is no packed work of this session.")
	}
	branch, err := s.local(ctx, dir, "symbolic-ref", "HEAD")
	if err != nil {
		return fmt.Errorf("read the session's branch: %w", err)
	}
	args := []string{"bundle", "create", "--quiet", "-", strings.TrimSpace(branch)}
	if base != "" {
		args = append(args, "^"+base)
	}
	if _, _, err := s.cfg.Git.Run(ctx, gitcmd.Run{Dir: dir, Args: args, Stdout: w, Timeout: s.cfg.LocalTimeout}); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	return nil
}

// Remove takes a session's work away. A session that is not there is fine.
func (s *Store) Remove(ctx context.Context, session string) error {
	if !validID.MatchString(session) {
		return fault.New(fault.InvalidInput, "That is not the id of a session.")
	}
	unlock, err := s.locks.lock(ctx, "session "+session)
	if err != nil {
		return err
	}
	defer unlock()
	mirrors, err := s.mirrorsOf(session)
	if err != nil {
		return err
	}
	if err := s.discard(s.quarantine(session)); err != nil {
		return err
	}
	for _, m := range mirrors {
		if err := s.release(ctx, m, session); err != nil {
			return err
		}
	}
	return nil
}

// mirrorsOf lists mirrors that hold commits for a session.
func (s *Store) mirrorsOf(session string) ([]string, error) {
	all, err := s.mirrors()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range all {
		if _, err := os.Stat(m + "/" + keepRef(session)); err == nil {
			out = append(out, m)
			continue
		}
		packed, err := os.ReadFile(m + "/packed-refs")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read a mirror's refs: %w", err)
		}
		if strings.Contains(string(packed), " "+keepRef(session)+"/") {
			out = append(out, m)
		}
	}
	return out, nil
}
