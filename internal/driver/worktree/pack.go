package worktree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

// Packed is the outcome of a pack. Close removes the file.
type Packed struct {
	Result driverapi.PackResult
	Bytes  int64
	file   *os.File // nil: nothing to send
}

// Read reads the pack itself.
func (p *Packed) Read(b []byte) (int, error) {
	if p.file == nil {
		return 0, io.EOF
	}
	return p.file.Read(b)
}

// Close ends the reading.
func (p *Packed) Close() error {
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}

// plan says which commit a pack ends in.
type plan struct {
	parent  string // of the new commit; empty for a first one
	tree    string // of the new commit
	attach  bool   // HEAD goes to the session's branch
	missing bool   // the parent's objects are not here
}

// Pack commits what is uncommitted, on the session's branch unless the pack is an
// interim one, and packs what the server does not have. Codes: PACK_TOO_LARGE,
// PACK_FAILED, DISK_FULL, INVALID_INPUT.
func (t *Tree) Pack(ctx context.Context, req driverapi.PackRequest) (*Packed, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range append([]string{req.Base}, req.Have...) {
		if o != "" && !oidRE.MatchString(o) {
			return nil, fault.New(fault.InvalidInput, "%q is not an object id.", clip(o, 80))
		}
	}
	s, err := t.load()
	if err == nil && !s.Cloned {
		return nil, fault.New(fault.PackFailed, "There is no repository in the sandbox yet.")
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.PackFailed, "The work could not be packed.")
	}
	p, err := t.pack(ctx, s, req)
	if err != nil && fault.CodeOf(err) == fault.InternalError && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || noSpace([]byte(err.Error()))) {
		err = fault.Wrap(err, fault.DiskFull, "The sandbox's disk is full, so the work cannot be packed.")
	}
	if err != nil && fault.CodeOf(err) == fault.InternalError {
		err = fault.Wrap(err, fault.PackFailed, "The work could not be packed: %s", clip(err.Error(), 500))
	}
	return p, err
}

func (t *Tree) pack(ctx context.Context, s *state, req driverapi.PackRequest) (*Packed, error) {
	n := &notes{}
	real, err := t.repository(ctx, s, !req.Interim, n)
	if err != nil {
		return nil, err
	}
	sh, err := t.newShadow(ctx, s, real)
	if err != nil {
		return nil, err
	}
	pl, err := sh.plan(ctx, s, req, n)
	if err != nil {
		return nil, err
	}
	head, tree := pl.parent, pl.tree
	parentTree := ""
	if pl.parent != "" && !pl.missing {
		if parentTree, err = sh.treeOf(ctx, pl.parent); err != nil {
			return nil, err
		}
	}
	emptyTree := false
	if pl.parent == "" {
		r, err := sh.t.must(ctx, sh.env, strings.NewReader(""), "hash-object", "-t", "tree", "--stdin")
		if err != nil {
			return nil, err
		}
		emptyTree = r.text() == tree
	}
	if tree != parentTree && !emptyTree {
		if head, err = sh.commit(ctx, tree, pl.parent, req); err != nil {
			return nil, err
		}
		if pl.missing {
			if err := appendLine(filepath.Join(sh.dir, "shallow"), head); err != nil {
				return nil, err
			}
		}
	}
	p := &Packed{Result: driverapi.PackResult{Changed: head != req.Base, Head: head, Tree: tree}}
	if p.Result.Changed {
		if p.Result.Commits, err = sh.count(ctx, head, req.Base, pl.missing); err != nil {
			return nil, err
		}
		if err := sh.write(ctx, p, head, req); err != nil {
			return nil, err
		}
	}
	if !req.Interim {
		if err := sh.settle(s, head, pl, n); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	p.Result.Notes = n.all()
	return p, nil
}

// repository finds the git directory. One that cannot be used is made anew for a final pack.
func (t *Tree) repository(ctx context.Context, s *state, final bool, n *notes) (refs, error) {
	real := openRefs(t.Work)
	if real.ok() {
		c, err := t.readConfig(ctx, filepath.Join(real.common, "config"))
		if err != nil {
			return refs{}, err
		}
		format := c["extensions.objectformat"]
		if format == "" {
			format = "sha1"
		}
		if format == s.Format {
			return real, nil
		}
	}
	n.add("The repository's .git could not be used; the work was put on the last known commit.")
	if !final {
		return refs{}, nil
	}
	if err := os.RemoveAll(filepath.Join(t.Work, ".git")); err != nil {
		return refs{}, fmt.Errorf("remove broken .git: %w", err)
	}
	env := t.plainEnv()
	if _, err := t.must(ctx, env, nil, "init", "-q", "--template=", "--object-format="+s.Format, "--initial-branch="+s.Branch, t.Work); err != nil {
		return refs{}, err
	}
	if s.URL != "" {
		if _, err := t.must(ctx, env, nil, "--git-dir="+filepath.Join(t.Work, ".git"), "remote", "add", "origin", s.URL); err != nil {
			return refs{}, err
		}
	}
	return openRefs(t.Work), nil
}

// plan stages the work and decides what it is put on. HEAD and the session's
// branch may be anywhere: nothing that the agent committed on top of the base is
// left out where that can be told.
func (sh *shadow) plan(ctx context.Context, s *state, req driverapi.PackRequest, n *notes) (plan, error) {
	head, on := sh.real.head()
	tip := sh.real.branch(s.Branch)
	known, err := sh.kinds(ctx, []string{head, tip, req.Base})
	if err != nil {
		return plan{}, err
	}
	if known[head] != "commit" {
		if head != "" {
			n.add("HEAD names a commit that is not there.")
		}
		head = ""
	}
	if known[tip] != "commit" {
		tip = ""
	}
	missing := req.Base != "" && known[req.Base] != "commit"
	if what := sh.real.inProgress(); sh.real.ok() && what != "" {
		n.add("The agent left a %s unfinished; the files were packed as they are.", what)
	}
	from := head
	if from == "" {
		from = tip
	}
	tree, err := sh.stage(ctx, from, req.MaxBytes, n)
	if err != nil {
		return plan{}, err
	}
	descends := func(c string) (bool, error) {
		if c == "" || missing {
			return false, nil
		}
		if req.Base == "" {
			return true, nil
		}
		return sh.ancestor(ctx, req.Base, c)
	}
	headOK, err := descends(head)
	if err != nil {
		return plan{}, err
	}
	tipOK, err := descends(tip)
	if err != nil {
		return plan{}, err
	}
	ahead := false // the branch has commits that HEAD does not
	if tipOK && tip != req.Base && tip != head {
		behind := head == ""
		if headOK {
			if behind, err = sh.ancestor(ctx, head, tip); err != nil {
				return plan{}, err
			}
			over, err := sh.ancestor(ctx, tip, head)
			if err != nil {
				return plan{}, err
			}
			if !behind && !over {
				n.add("The branch %s has commits up to %s that are not part of what the agent left checked out; they were left out.", s.Branch, tip)
			}
		}
		ahead = behind || !headOK
	}
	switch {
	case ahead && head != "":
		return sh.onTip(ctx, s, head, tip, tree, req, n)
	case ahead:
		return plan{parent: tip, tree: tree, attach: true}, nil
	case headOK:
		if on != s.Branch {
			n.add("The agent left another branch or commit checked out (%s); it was put on %s.", clip(orDetached(on), 100), s.Branch)
		}
		return plan{parent: head, tree: tree, attach: true}, nil
	case req.Base == "":
		return plan{tree: tree, attach: true}, nil
	default:
		if head != "" {
			n.add("What the agent left checked out does not build on %s; its work was put on that as one commit.", req.Base)
		}
		return plan{parent: req.Base, tree: tree, attach: true, missing: missing}, nil
	}
}

func orDetached(branch string) string {
	if branch == "" {
		return "no branch"
	}
	return branch
}

// onTip is for a branch that is ahead of what is checked out: the branch is what
// is delivered, with what is uncommitted carried over to it. HEAD and the files stay where the agent left them.
func (sh *shadow) onTip(ctx context.Context, s *state, head, tip, tree string, req driverapi.PackRequest, n *notes) (plan, error) {
	n.add("The agent left another commit checked out than the last one of %s; that branch was packed.", s.Branch)
	tipTree, err := sh.treeOf(ctx, tip)
	if err != nil {
		return plan{}, err
	}
	headTree, err := sh.treeOf(ctx, head)
	if err != nil {
		return plan{}, err
	}
	if tree == headTree {
		return plan{parent: tip, tree: tipTree}, nil
	}
	side, err := sh.commit(ctx, tree, head, req)
	if err != nil {
		return plan{}, err
	}
	r, err := sh.t.git(ctx, sh.env, nil, "merge-tree", "--write-tree", "--no-messages", "--name-only", tip, side)
	if err != nil {
		return plan{}, err
	}
	if first, _, _ := strings.Cut(r.text(), "\n"); r.exit.OK() && oidRE.MatchString(first) {
		n.add("Changes that were not committed were merged into it.")
		return plan{parent: tip, tree: first}, nil
	}
	n.add("Changes that were not committed conflict with it: the last commit holds the files as they were.")
	return plan{parent: tip, tree: tree}, nil
}

// commit makes a commit object. It is written as it is (gitformat-commit), since its parent need not be here.
func (sh *shadow) commit(ctx context.Context, tree, parent string, req driverapi.PackRequest) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "tree %s\n", tree)
	if parent != "" {
		fmt.Fprintf(&b, "parent %s\n", parent)
	}
	at := strconv.FormatInt(req.At.Unix(), 10) + " +0000"
	fmt.Fprintf(&b, "author %s %s\n", ident(req.Author), at)
	fmt.Fprintf(&b, "committer %s %s\n\n", ident(req.Commit), at)
	message := strings.TrimRight(strings.ReplaceAll(strings.ToValidUTF8(req.Message, "\uFFFD"), "\x00", ""), "\n ")
	b.WriteString(message + "\n")
	r, err := sh.t.must(ctx, sh.env, strings.NewReader(b.String()), "hash-object", "-t", "commit", "-w", "--stdin")
	if err != nil && noSpace(r.stderr) {
		return "", fault.Wrap(err, fault.DiskFull, "The sandbox's disk is full, so the work cannot be packed.")
	}
	return r.text(), err
}

// ident leaves out what would end a field.
func ident(p driverapi.Person) string {
	clean := func(s string) string {
		s = strings.Map(func(r rune) rune {
			if r < ' ' || r == '<' || r == '>' || r == 0x7f {
				return -1
			}
			return r
		}, strings.ToValidUTF8(s, ""))
		return strings.TrimSpace(s)
	}
	name, mail := clean(p.Name), clean(p.Email)
	if name == "" {
		name = "Hearth"
	}
	return name + " <" + mail + ">"
}

func (sh *shadow) count(ctx context.Context, head, base string, missing bool) (int64, error) {
	args := []string{"rev-list", "--count", head}
	if base != "" && !missing {
		args = append(args, "^"+base)
	}
	r, err := sh.t.must(ctx, sh.env, nil, args...)
	if err != nil {
		return 0, err
	}
	c, err := strconv.ParseInt(r.text(), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("git rev-list --count: %w", err)
	}
	return c, nil
}

// limitWriter refuses what goes beyond the limit.
type limitWriter struct {
	w    io.Writer
	n    int64
	most int64
}

var errTooLarge = errors.New("the pack is larger than it may be")

func (l *limitWriter) Write(p []byte) (int, error) {
	if l.n += int64(len(p)); l.most > 0 && l.n > l.most {
		return 0, errTooLarge
	}
	return l.w.Write(p)
}

// write puts the pack into a file without a name.
func (sh *shadow) write(ctx context.Context, p *Packed, head string, req driverapi.PackRequest) error {
	known, err := sh.kinds(ctx, req.Have)
	if err != nil {
		return err
	}
	var in strings.Builder
	in.WriteString(head + "\n")
	for _, h := range req.Have {
		if known[h] == "commit" {
			in.WriteString("^" + h + "\n")
		}
	}
	f, err := os.CreateTemp(sh.t.State, "pack-*")
	if err != nil {
		return fmt.Errorf("make file for the pack: %w", err)
	}
	p.file = f
	fail := func(err error) error {
		return errors.Join(err, p.Close())
	}
	if err := os.Remove(f.Name()); err != nil {
		return fail(fmt.Errorf("make file for the pack: %w", err))
	}
	args := []string{"pack-objects", "--revs", "--stdout", "-q", "--delta-base-offset"}
	lw := &limitWriter{w: f, most: req.MaxBytes}
	r, err := sh.t.gitTo(ctx, sh.env, strings.NewReader(in.String()), lw, args...)
	switch {
	case errors.Is(err, errTooLarge):
		return fail(fault.New(fault.PackTooLarge, "The work is larger than %d MiB as a pack. Remove large files from it or list them in .gitignore.", req.MaxBytes>>20))
	case err == nil:
		err = r.err(args)
	}
	if err != nil {
		if noSpace(r.stderr) || noSpace([]byte(err.Error())) {
			err = fault.Wrap(err, fault.DiskFull, "The sandbox's disk is full, so the work cannot be packed.")
		}
		return fail(err)
	}
	p.Bytes = lw.n
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fail(fmt.Errorf("read the pack: %w", err))
	}
	return nil
}

// settle moves the session's branch, and HEAD and index with it.
func (sh *shadow) settle(s *state, head string, pl plan, n *notes) error {
	if head == "" || !sh.real.ok() {
		return nil
	}
	if err := sh.real.tidy(s.Branch); err != nil && pl.attach {
		n.add("Locks in the repository could not be removed: %s", clip(err.Error(), 200))
	}
	if pl.missing {
		if err := appendLine(filepath.Join(sh.real.common, "shallow"), head); err != nil {
			return err
		}
	}
	if err := sh.real.set(s.Branch, head, pl.attach); err != nil {
		n.add("The branch %s could not be moved in the sandbox: %s", s.Branch, clip(err.Error(), 200))
		return nil
	}
	if pl.attach {
		if err := sh.giveIndex(); err != nil {
			n.add("The repository's index could not be written: %s", clip(err.Error(), 200))
		}
	}
	return nil
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// Reset sets branch, index and work tree to a commit and removes untracked
// files, not ignored ones.
func (t *Tree) Reset(ctx context.Context, oid string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !oidRE.MatchString(oid) {
		return fault.New(fault.InvalidInput, "%q is not an object id.", clip(oid, 80))
	}
	s, err := t.load()
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	real := openRefs(t.Work)
	if !real.ok() {
		return fault.New(fault.PackFailed, "The sandbox's repository cannot be used, so the work cannot be set back.")
	}
	sh, err := t.newShadow(ctx, s, real)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	known, err := sh.kinds(ctx, []string{oid})
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if known[oid] != "commit" {
		return fault.New(fault.InvalidInput, "The commit %s is not in the sandbox.", oid)
	}
	if err := real.tidy(s.Branch); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	reset := []string{"read-tree", "--reset", "-u", oid}
	r, err := gitResult{}, sh.takeIndex()
	if err == nil {
		r, err = t.git(ctx, sh.env, nil, reset...)
	}
	if err != nil || !r.exit.OK() { // without an index all is written anew
		_ = os.Remove(sh.index())
		if _, err := t.must(ctx, sh.env, nil, reset...); err != nil {
			return fmt.Errorf("reset: %w", err)
		}
	}
	if _, err := t.must(ctx, sh.env, nil, "clean", "-ffdq"); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if err := real.set(s.Branch, oid, true); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return sh.giveIndex()
}
