package worktree

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// refs reads and writes the references of a repository without git, so that
// neither its configuration nor what an interrupted command left can get in the
// way (gitrepository-layout(5)). The reftable format is not read: there nothing resolves.
type refs struct {
	dir    string // of this work tree; empty when there is no repository
	common string // where branches and objects are
}

var (
	oidRE    = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	branchRE = regexp.MustCompile(`^[^\x00-\x20\x7f~^:?*\[\\]+$`)
)

// validBranch holds the rules that matter for a path: the server has checked the name as git does.
func validBranch(b string) bool {
	if !branchRE.MatchString(b) || strings.HasPrefix(b, "-") || strings.Contains(b, "..") || strings.Contains(b, "@{") {
		return false
	}
	for c := range strings.SplitSeq(b, "/") {
		if c == "" || strings.HasPrefix(c, ".") || strings.HasSuffix(c, ".lock") {
			return false
		}
	}
	return true
}

// openRefs finds the git directory of a work tree.
func openRefs(work string) refs {
	dir := filepath.Join(work, ".git")
	st, err := os.Stat(dir)
	if err != nil {
		return refs{}
	}
	if st.Mode().IsRegular() && st.Size() < 8192 {
		b, err := os.ReadFile(dir)
		to, ok := bytes.CutPrefix(b, []byte("gitdir: "))
		if err != nil || !ok {
			return refs{}
		}
		dir = absolute(work, string(bytes.TrimRight(to, "\n")))
	}
	r := refs{dir: dir, common: dir}
	if b, err := os.ReadFile(filepath.Join(dir, "commondir")); err == nil {
		r.common = absolute(dir, string(bytes.TrimRight(b, "\n")))
	}
	if _, err := os.Lstat(filepath.Join(dir, "HEAD")); err != nil {
		return refs{}
	}
	if st, err := os.Stat(r.objects()); err != nil || !st.IsDir() {
		return refs{}
	}
	return r
}

func absolute(base, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(base, path)
}

func (r refs) ok() bool        { return r.dir != "" }
func (r refs) objects() string { return filepath.Join(r.common, "objects") }

// head is the commit that HEAD names, empty when there is none, and the branch that it is on.
func (r refs) head() (oid, branch string) {
	if !r.ok() {
		return "", ""
	}
	value := readRef(filepath.Join(r.dir, "HEAD"))
	name, symbolic := strings.CutPrefix(value, "ref: ")
	if !symbolic {
		return r.follow(value, 0), ""
	}
	branch, _ = strings.CutPrefix(name, "refs/heads/")
	return r.resolve(name, 0), branch
}

// branch is the commit of a branch, empty when there is none.
func (r refs) branch(name string) string {
	if !r.ok() || !validBranch(name) {
		return ""
	}
	return r.resolve("refs/heads/"+name, 0)
}

func (r refs) follow(value string, depth int) string {
	if oidRE.MatchString(value) {
		return value
	}
	if name, ok := strings.CutPrefix(value, "ref: "); ok && depth < 5 {
		return r.resolve(name, depth+1)
	}
	return ""
}

func (r refs) resolve(name string, depth int) string {
	if !strings.HasPrefix(name, "refs/") || strings.Contains(name, "..") {
		return ""
	}
	if v := readRef(filepath.Join(r.common, filepath.FromSlash(name))); v != "" {
		return r.follow(v, depth)
	}
	f, err := os.Open(filepath.Join(r.common, "packed-refs"))
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		oid, n, ok := strings.Cut(s.Text(), " ")
		if ok && n == name && oidRE.MatchString(oid) {
			return oid
		}
	}
	return ""
}

func readRef(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, 1024)
	n, _ := f.Read(b)
	return strings.TrimSpace(string(b[:n]))
}

// set makes a branch point at a commit and, with attach, HEAD at the branch.
func (r refs) set(branch, oid string, attach bool) error {
	if !validBranch(branch) {
		return fmt.Errorf("branch %q cannot be set", branch)
	}
	path := filepath.Join(r.common, "refs", "heads", filepath.FromSlash(branch))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("set branch: %w", err)
	}
	if err := replaceFile(path, []byte(oid+"\n"), 0o644); err != nil {
		return fmt.Errorf("set branch: %w", err)
	}
	if attach {
		if err := replaceFile(filepath.Join(r.dir, "HEAD"), []byte("ref: refs/heads/"+branch+"\n"), 0o644); err != nil {
			return fmt.Errorf("set HEAD: %w", err)
		}
	}
	return nil
}

// unfinished are the traces of commands that were not finished.
var unfinished = []string{
	"MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_AUTOSTASH", "AUTO_MERGE", "SQUASH_MSG",
	"CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "rebase-merge", "rebase-apply", "sequencer",
}

// inProgress tells what the agent left unfinished, empty for nothing.
func (r refs) inProgress() string {
	for file, what := range map[string]string{
		"MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert",
		"rebase-merge": "rebase", "rebase-apply": "rebase",
	} {
		if _, err := os.Lstat(filepath.Join(r.dir, file)); err == nil {
			return what
		}
	}
	return ""
}

// tidy removes those traces, and locks of commands that were killed.
func (r refs) tidy(branch string) error {
	var errs []error
	remove := func(path string) {
		if err := os.RemoveAll(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, f := range unfinished {
		remove(filepath.Join(r.dir, f))
	}
	for _, f := range []string{"index.lock", "HEAD.lock"} {
		remove(filepath.Join(r.dir, f))
	}
	for _, f := range []string{"packed-refs.lock", "config.lock", "shallow.lock", "refs/heads/" + branch + ".lock"} {
		remove(filepath.Join(r.common, filepath.FromSlash(f)))
	}
	return errors.Join(errs...)
}
