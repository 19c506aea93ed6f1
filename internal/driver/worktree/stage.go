package worktree

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
)

const (
	maxNotes     = 50
	maxNote      = 500 // bytes
	maxBadPaths  = 100
	lfsPointer   = "version https://git-lfs.github.com/spec/v1\n"
	rawPackRatio = 8 // unpacked bytes that are tried for one byte of the pack's limit
)

// notes are sentences for a person, bounded.
type notes struct {
	list []string
	more int
}

func (n *notes) add(format string, args ...any) {
	n.take(clip(fmt.Sprintf(format, args...), maxNote-8)) // clip may add a few bytes
}

func (n *notes) take(s string) {
	if slices.Contains(n.list, s) {
		return
	}
	if len(n.list) >= maxNotes {
		n.more++
		return
	}
	n.list = append(n.list, s)
}

func (n *notes) all() []string {
	if n.more > 0 { // the last one makes place
		return append(n.list[:len(n.list)-1], fmt.Sprintf("%d more notes were left out.", n.more+1))
	}
	return n.list
}

// named is a path for a sentence.
func named(path string) string { return clip(fmt.Sprintf("%q", path), 300) }

// change is a path whose content differs from the index.
type change struct {
	path string
	link bool // a submodule
	gone bool
}

// stage brings the index up to the work tree and returns the tree. from is the
// commit to read when the repository's own index cannot be used.
func (sh *shadow) stage(ctx context.Context, from string, maxBytes int64, n *notes) (string, error) {
	if err := sh.takeIndex(); err == nil {
		var own notes
		tree, err := sh.stageAll(ctx, maxBytes, &own)
		if err == nil || ctx.Err() != nil || fault.CodeOf(err) != fault.InternalError {
			for _, s := range own.list {
				n.take(s)
			}
			n.more += own.more
			return tree, err
		}
		sh.t.Log.Warn("index of the repository not usable", "error", err)
		n.add("The repository's index could not be used and was made anew.")
	}
	_ = os.Remove(sh.index())
	_ = os.Remove(sh.index() + ".lock")
	args := []string{"read-tree", "--empty"}
	if from != "" {
		args = []string{"read-tree", from}
	}
	if _, err := sh.t.must(ctx, sh.env, nil, args...); err != nil {
		return "", err
	}
	return sh.stageAll(ctx, maxBytes, n)
}

func (sh *shadow) stageAll(ctx context.Context, maxBytes int64, n *notes) (string, error) {
	// Exit status 1 says that something differs.
	if _, err := sh.t.git(ctx, sh.env, nil, "update-index", "-q", "--unmerged", "--ignore-submodules", "--refresh"); err != nil {
		return "", err
	}
	changes, err := sh.changes(ctx, n)
	if err != nil {
		return "", err
	}
	if changes, err = sh.sift(ctx, changes, maxBytes, n); err != nil {
		return "", err
	}
	bad := 0
	if err := sh.updateIndex(ctx, changes, n, &bad); err != nil {
		return "", err
	}
	r, err := sh.t.must(ctx, sh.env, nil, "write-tree")
	if err != nil && noSpace(r.stderr) {
		return "", fault.Wrap(err, fault.DiskFull, "The sandbox's disk is full, so the work cannot be packed.")
	}
	return r.text(), err
}

// changes lists what differs from the index and what is not in it.
func (sh *shadow) changes(ctx context.Context, n *notes) ([]change, error) {
	r, err := sh.t.must(ctx, sh.env, nil, "diff-files", "-z", "--raw", "--no-renames", "--ignore-submodules=dirty")
	if err != nil {
		return nil, err
	}
	out, conflicts, err := parseRaw(r.stdout)
	if err != nil {
		return nil, err
	}
	if conflicts > 0 {
		n.add("%d files had conflicts that were not resolved; they were packed as they are.", conflicts)
	}
	if r, err = sh.t.must(ctx, sh.env, nil, "ls-files", "-z", "--others", "--exclude-standard"); err != nil {
		return nil, err
	}
	for p := range strings.SplitSeq(string(r.stdout), "\x00") {
		switch {
		case p == "":
		case strings.HasSuffix(p, "/"):
			n.add("%s is a git repository of its own; its files were left out.", named(strings.TrimSuffix(p, "/")))
		default:
			out = append(out, change{path: p})
		}
	}
	return out, nil
}

// parseRaw reads `git diff-files -z --raw`: ":mode mode oid oid status NUL path NUL" (git-diff-files(1)).
func parseRaw(b []byte) (out []change, conflicts int, err error) {
	seen := map[string]bool{}
	for len(b) > 0 {
		meta, rest, ok1 := bytes.Cut(b, []byte{0})
		path, rest, ok2 := bytes.Cut(rest, []byte{0})
		f := strings.Fields(strings.TrimPrefix(string(meta), ":"))
		if !ok1 || !ok2 || len(f) != 5 || len(path) == 0 {
			return nil, 0, fmt.Errorf("git diff-files said %.200q", meta)
		}
		b = rest
		if f[4] == "U" {
			conflicts++
		}
		if seen[string(path)] { // a conflict may be told twice
			continue
		}
		seen[string(path)] = true
		out = append(out, change{path: string(path), link: f[0] == "160000" || f[1] == "160000", gone: f[4] == "D"})
	}
	return out, conflicts, nil
}

// sift takes out what cannot or must not be packed, and tells it.
func (sh *shadow) sift(ctx context.Context, in []change, maxBytes int64, n *notes) ([]change, error) {
	filters, err := sh.filters(ctx, in)
	if err != nil {
		return nil, err
	}
	var out []change
	var total, largest int64
	var largestPath string
	for _, c := range in {
		if c.link {
			if !c.gone {
				n.add("The submodule %s points at another commit; that commit itself was not packed.", named(c.path))
			}
			out = append(out, c)
			continue
		}
		st, err := os.Lstat(filepath.Join(sh.t.Work, c.path))
		if err != nil { // gone, also when a folder on the way is now a file
			c.gone = true
			out = append(out, c)
			continue
		}
		switch mode := st.Mode(); {
		case mode.IsDir():
			c.gone = true
		case mode&fs.ModeSymlink != 0:
		case !mode.IsRegular():
			n.add("%s is neither a file nor a link and was left out.", named(c.path))
			c.gone = true
		default:
			if !sh.keeps(c.path, filters[c.path], st, n) {
				continue
			}
			if total += st.Size(); st.Size() > largest {
				largest, largestPath = st.Size(), c.path
			}
		}
		out = append(out, c)
	}
	if maxBytes > 0 && total > rawPackRatio*maxBytes {
		return nil, fault.New(fault.PackTooLarge, "The changed files have %d MiB; at most %d MiB can be packed. The largest is %s with %d MiB. Remove it or list it in .gitignore.",
			total>>20, maxBytes>>20, named(largestPath), largest>>20)
	}
	return out, nil
}

// keeps judges a regular file by its filter attribute. Filters are programs and never run.
func (sh *shadow) keeps(path, filter string, st fs.FileInfo, n *notes) bool {
	switch {
	case filter == "":
		return true
	case filter == "lfs":
		if st.Size() <= 1024 {
			if b, err := os.ReadFile(filepath.Join(sh.t.Work, path)); err == nil && bytes.HasPrefix(b, []byte(lfsPointer)) {
				return true
			}
		}
		n.add("%s belongs to Git LFS; its change was left out.", named(path))
		return false
	case strings.Contains(filter, "crypt"):
		n.add("%s is encrypted by the filter %q, which does not run here; its change was left out.", named(path), filter)
		return false
	default:
		n.add("%s has the filter %q, which does not run here; it was packed as it is.", named(path), filter)
		return true
	}
}

// filters asks for the filter attribute of each path that has one (git-check-attr(1), -z).
func (sh *shadow) filters(ctx context.Context, in []change) (map[string]string, error) {
	var list strings.Builder
	for _, c := range in {
		if !c.gone && !c.link {
			list.WriteString(c.path)
			list.WriteByte(0)
		}
	}
	out := map[string]string{}
	if list.Len() == 0 {
		return out, nil
	}
	r, err := sh.t.must(ctx, sh.env, strings.NewReader(list.String()), "check-attr", "-z", "--stdin", "filter")
	if err != nil {
		return nil, err
	}
	f := strings.Split(string(r.stdout), "\x00")
	for i := 0; i+2 < len(f); i += 3 {
		if v := f[i+2]; v != "unspecified" && v != "unset" && v != "set" {
			out[f[i]] = v
		}
	}
	return out, nil
}

// updateIndex takes the changes into the index. Git stops at the first path that
// it cannot take, so the list is halved until that one is alone, which is left out and told.
func (sh *shadow) updateIndex(ctx context.Context, list []change, n *notes, bad *int) error {
	if len(list) == 0 {
		return nil
	}
	// What is gone comes first: a folder may have become a file, or a file a folder.
	var gone, there strings.Builder
	for _, c := range list {
		b := &there
		if c.gone {
			b = &gone
		}
		b.WriteString(c.path)
		b.WriteByte(0)
	}
	r, err := sh.try(ctx, gone.String(), "update-index", "-z", "--force-remove", "--stdin")
	if err != nil {
		return err
	}
	if r.exit.OK() {
		if r, err = sh.try(ctx, there.String(), "update-index", "-z", "--add", "--remove", "--replace", "--stdin"); err != nil {
			return err
		}
	}
	if r.exit.OK() {
		return nil
	}
	if noSpace(r.stderr) {
		return fault.New(fault.DiskFull, "The sandbox's disk is full, so the work cannot be packed.")
	}
	if len(list) > 1 {
		if err := sh.updateIndex(ctx, list[:len(list)/2], n, bad); err != nil {
			return err
		}
		return sh.updateIndex(ctx, list[len(list)/2:], n, bad)
	}
	if *bad++; *bad > maxBadPaths {
		return fault.New(fault.PackFailed, "More than %d files cannot be packed. Git says: %s", maxBadPaths, lastWords(r.stderr))
	}
	n.add("%s could not be packed and was left out: %s", named(list[0].path), clip(lastWords(r.stderr), 300))
	return nil
}

func (sh *shadow) try(ctx context.Context, list string, args ...string) (gitResult, error) {
	if list == "" {
		return gitResult{}, nil
	}
	return sh.t.git(ctx, sh.env, strings.NewReader(list), args...)
}

func noSpace(stderr []byte) bool {
	return bytes.Contains(stderr, []byte("No space left on device")) || bytes.Contains(stderr, []byte("Disk quota exceeded"))
}
