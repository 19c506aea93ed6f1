package worktree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// shadow is a git directory of the driver's own. It shares the objects of the
// repository and has configuration, references and hooks of its own (none), so
// that what was planted in the repository has no effect. From the repository it
// takes data only: the index, exclude and attribute files, the list of shallow
// commits, and the settings for line ends.
type shadow struct {
	t    *Tree
	real refs
	dir  string
	env  []string
}

// newShadow makes the directory anew.
func (t *Tree) newShadow(ctx context.Context, s *state, real refs) (*shadow, error) {
	sh := &shadow{t: t, real: real, dir: filepath.Join(t.State, "shadow")}
	if err := os.RemoveAll(sh.dir); err != nil {
		return nil, fmt.Errorf("remove old shadow repository: %w", err)
	}
	for _, d := range []string{"refs", "info"} {
		if err := os.MkdirAll(filepath.Join(sh.dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("make shadow repository: %w", err)
		}
	}
	objects := filepath.Join(t.State, "objects")
	if real.ok() {
		objects = real.objects()
	} else if err := os.MkdirAll(objects, 0o700); err != nil {
		return nil, fmt.Errorf("make shadow repository: %w", err)
	}
	sh.env = t.plainEnv("GIT_DIR="+sh.dir, "GIT_WORK_TREE="+t.Work, "GIT_OBJECT_DIRECTORY="+objects,
		"GIT_INDEX_FILE="+sh.index(), "GIT_LITERAL_PATHSPECS=1")
	config := map[string]string{}
	if real.ok() {
		var err error
		if config, err = t.readConfig(ctx, filepath.Join(real.common, "config")); err != nil {
			return nil, err
		}
		for _, f := range []string{"info/exclude", "info/attributes", "info/sparse-checkout", "shallow"} {
			from := filepath.Join(real.common, f)
			if f == "info/sparse-checkout" {
				from = filepath.Join(real.dir, f)
			}
			if err := copyFile(filepath.Join(sh.dir, f), from); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Log.Warn("file of the repository not used", "file", f, "error", err)
			}
		}
	}
	files := map[string]string{"HEAD": "ref: refs/heads/none\n", "config": shadowConfig(s, t.Home, config)}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(sh.dir, name), []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("make shadow repository: %w", err)
		}
	}
	return sh, nil
}

func shadowConfig(s *state, home string, from map[string]string) string {
	var b strings.Builder
	version := 0
	if s.Format == "sha256" {
		version = 1
	}
	fmt.Fprintf(&b, "[core]\n\trepositoryformatversion = %d\n\tbare = false\n", version)
	b.WriteString("\tfilemode = true\n\tsymlinks = true\n\tignorecase = false\n\tprecomposeunicode = false\n\tlogallrefupdates = false\n")
	b.WriteString("\thooksPath = /dev/null\n\tfsmonitor = false\n\tuntrackedCache = false\n\tattributesFile = /dev/null\n")
	b.WriteString("\tsafecrlf = false\n\tcommitGraph = false\n\tmultiPackIndex = false\n\tbigFileThreshold = 64m\n")
	fmt.Fprintf(&b, "\texcludesFile = \"%s\"\n", strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(filepath.Join(home, ".config/git/ignore")))
	// Values are taken only as one of a few known words.
	for key, words := range map[string]string{
		"core.autocrlf": "true false input", "core.eol": "lf crlf native", "core.sparsecheckout": "true", "core.sparsecheckoutcone": "true false",
	} {
		for w := range strings.FieldsSeq(words) {
			if strings.EqualFold(from[key], w) {
				fmt.Fprintf(&b, "\t%s = %s\n", strings.TrimPrefix(key, "core."), w)
			}
		}
	}
	if s.Format == "sha256" {
		b.WriteString("[extensions]\n\tobjectFormat = sha256\n")
	}
	b.WriteString("[gc]\n\tauto = 0\n[pack]\n\tthreads = 2\n\tuseBitmaps = false\n\twindowMemory = 64m\n")
	return b.String()
}

// readConfig reads a configuration file as data: what it includes is not followed. A file that git cannot read has nothing.
func (t *Tree) readConfig(ctx context.Context, path string) (map[string]string, error) {
	r, err := t.git(ctx, t.plainEnv(), nil, "config", "--file", path, "--no-includes", "--null", "--list")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for entry := range strings.SplitSeq(string(r.stdout), "\x00") {
		if k, v, ok := strings.Cut(entry, "\n"); ok {
			out[k] = v
		}
	}
	return out, nil
}

func (sh *shadow) index() string { return filepath.Join(sh.dir, "index") }

// takeIndex copies the repository's index, which spares reading every file again.
func (sh *shadow) takeIndex() error {
	if !sh.real.ok() {
		return fs.ErrNotExist
	}
	shared, err := filepath.Glob(filepath.Join(sh.real.dir, "sharedindex.*"))
	if err != nil {
		return err
	}
	for _, f := range shared {
		if err := copyFile(filepath.Join(sh.dir, filepath.Base(f)), f); err != nil {
			return err
		}
	}
	return copyFile(sh.index(), filepath.Join(sh.real.dir, "index"))
}

// giveIndex makes the repository's index that of the shadow.
func (sh *shadow) giveIndex() error {
	to := filepath.Join(sh.real.dir, "index")
	if err := copyFile(to+".hearth", sh.index()); err != nil {
		return err
	}
	return os.Rename(to+".hearth", to)
}

// copyFile copies a regular file of at most 1 GiB.
func copyFile(to, from string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() > 1<<30 {
		return fmt.Errorf("%s is not a file of a sane size", from)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// kinds tells which of the named objects are there, and what they are.
func (sh *shadow) kinds(ctx context.Context, oids []string) (map[string]string, error) {
	out := map[string]string{}
	var in strings.Builder
	for _, o := range oids {
		if oidRE.MatchString(o) {
			in.WriteString(o + "\n")
		}
	}
	if in.Len() == 0 {
		return out, nil
	}
	r, err := sh.t.must(ctx, sh.env, strings.NewReader(in.String()), "cat-file", "--batch-check=%(objectname) %(objecttype)", "--buffer")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(r.stdout)) {
		oid, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind != "missing" {
			out[oid] = kind
		}
	}
	return out, nil
}

// ancestor tells whether one commit is the other or was before it.
func (sh *shadow) ancestor(ctx context.Context, older, newer string) (bool, error) {
	if older == newer {
		return true, nil
	}
	r, err := sh.t.git(ctx, sh.env, nil, "merge-base", "--is-ancestor", older, newer)
	if err != nil {
		return false, err
	}
	return r.exit.OK(), nil // 1: no; more: history is broken, which is no as well
}

// treeOf is the tree of a commit.
func (sh *shadow) treeOf(ctx context.Context, commit string) (string, error) {
	r, err := sh.t.must(ctx, sh.env, nil, "rev-parse", "--verify", commit+"^{tree}")
	return r.text(), err
}
