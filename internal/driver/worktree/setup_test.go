package worktree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
)

func TestParseEnvironment(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		in       string
		commands []string
		unknown  []string
		err      string
	}{
		"string":       {in: "setup: make deps\n", commands: []string{"make deps"}},
		"block":        {in: "setup: |\n  a\n  b\n", commands: []string{"a\nb\n"}},
		"list":         {in: "setup: [a, b]\nimage: x\nbase: y\n", commands: []string{"a", "b"}, unknown: []string{"base", "image"}},
		"empty":        {in: ""},
		"null":         {in: "setup:\n"},
		"blank":        {in: "setup: ' '\n"},
		"number":       {in: "setup: 3\n", err: "string or a list"},
		"list of maps": {in: "setup:\n  - run: x\n", err: "string or a list"},
		"not a map":    {in: "- a\n", err: "not a mapping"},
		"not yaml":     {in: "setup: [", err: "not a mapping"},
		"twice":        {in: "setup: a\nsetup: b\n", err: "already defined"},
	}
	for name, tt := range tests {
		commands, unknown, err := parseEnvironment([]byte(tt.in))
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: error %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff([][]string{tt.commands, tt.unknown}, [][]string{commands, unknown}); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func FuzzParseEnvironment(f *testing.F) {
	f.Add([]byte("setup: [a, &b c, *b]\nx: 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		commands, _, _ := parseEnvironment(b)
		for _, c := range commands {
			if strings.TrimSpace(c) == "" {
				t.Error("an empty command")
			}
		}
	})
}

func FuzzParseRaw(f *testing.F) {
	f.Add([]byte(":100644 100644 aa bb M\x00a\nb\x00:100644 000000 aa 00 D\x00c\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		out, _, err := parseRaw(b)
		if err == nil && len(b) > 0 && len(out) == 0 {
			t.Errorf("nothing of %q", b)
		}
	})
}

func FuzzRefs(f *testing.F) {
	f.Add([]byte("ref: refs/heads/x\n"), []byte("aaaa refs/heads/x\n"))
	f.Fuzz(func(t *testing.T, head, packed []byte) {
		work := t.TempDir()
		git := filepath.Join(work, ".git")
		if err := os.MkdirAll(filepath.Join(git, "objects"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{"HEAD": head, "packed-refs": packed} {
			if err := os.WriteFile(filepath.Join(git, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if oid, _ := openRefs(work).head(); oid != "" && !oidRE.MatchString(oid) {
			t.Errorf("head %q", oid)
		}
	})
}

func (p *place) setup(ctx context.Context, r driverapi.SetupRequest) (lines []string, last driverapi.SetupEvent) {
	p.tree.state = nil // as a new driver would begin
	last = p.tree.Setup(ctx, r, func(e driverapi.SetupEvent) { lines = append(lines, e.Line) })
	return lines, last
}

// Not parallel: the end of a setup command ends all that was started meanwhile, other tests' processes too.
func TestSetupFailsAndGoesOn(t *testing.T) {
	p := newPlace(t, seed)
	repo := &driverapi.Repo{URL: p.bare, Base: "main", BaseOID: p.base, Branch: "hearth/work"}
	fresh := func() {
		if err := os.RemoveAll(p.tree.State); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name      string
		r         driverapi.SetupRequest
		code, out string
		line      string
	}{
		{"command", driverapi.SetupRequest{Repo: repo, Commands: []string{"echo before; echo words >&2; false; echo never"}}, "SETUP_FAILED", "words", "before"},
		{"status", driverapi.SetupRequest{Repo: repo, Commands: []string{"exit 7"}}, "SETUP_FAILED", "", "$ exit 7"},
		{"timeout", driverapi.SetupRequest{Repo: repo, Timeout: 2 * time.Second, Commands: []string{"echo hi; sleep 60 & sleep 60"}}, "SETUP_FAILED", "hi", "hi"},
		{"no repository", driverapi.SetupRequest{Repo: &driverapi.Repo{URL: filepath.Join(p.dir, "no.git"), Base: "main", BaseOID: p.base, Branch: "b"}}, "REPOSITORY_UNREACHABLE", "", ""},
		{"no commit", driverapi.SetupRequest{Repo: &driverapi.Repo{URL: p.bare, Base: "main", BaseOID: strings.Repeat("a", 40), Branch: "b"}}, "REPOSITORY_UNREACHABLE", "", ""},
	}
	for _, tt := range tests {
		fresh()
		begun := time.Now()
		lines, last := p.setup(t.Context(), tt.r)
		if last.Failure == nil || last.Failure.Code != tt.code || !strings.Contains(last.Failure.Output, tt.out) || strings.Contains(last.Failure.Output, "never") {
			t.Errorf("%s: %+v", tt.name, last.Failure)
		}
		if tt.line != "" && !slices.Contains(lines, tt.line) {
			t.Errorf("%s: lines %q", tt.name, lines)
		}
		if time.Since(begun) > 40*time.Second {
			t.Errorf("%s took %v", tt.name, time.Since(begun))
		}
	}
	fresh()
	if _, last := p.setup(t.Context(), tests[0].r); last.Failure == nil {
		t.Fatal("no failure")
	}
	// Again, with a command that works: the clone is there already.
	p.agent("echo kept > kept")
	if _, last := p.setup(t.Context(), driverapi.SetupRequest{Repo: repo, Commands: []string{"echo $HTTPS_PROXY > $HOME/proxy"}}); last.Failure != nil {
		t.Fatalf("again: %+v", last.Failure)
	}
	if _, err := os.Stat(filepath.Join(p.tree.Work, "kept")); err != nil {
		t.Error("the repository was cloned again")
	}
	if b, err := os.ReadFile(filepath.Join(p.tree.Home, "proxy")); err != nil || string(b) != "http://127.0.0.1:3128\n" {
		t.Errorf("proxy %q %v", b, err)
	}
	// Done is done.
	if lines, last := p.setup(t.Context(), driverapi.SetupRequest{Repo: repo, Commands: []string{"false"}}); last.Failure != nil || len(lines) > 0 || last.Head != p.base {
		t.Errorf("after all: %+v %q", last, lines)
	}
}

// What is told of a repository is bounded, whatever is in it: the server refuses a driver that says too much.
func TestSetupSaysLittle(t *testing.T) {
	t.Parallel()
	var keys, twice strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&keys, "%s%d: 1\n", strings.Repeat("k", i%20), i)
		fmt.Fprintf(&twice, "setup: a%d\n", i)
	}
	for name, file := range map[string]string{
		"keys": keys.String(), "long key": "? " + strings.Repeat("k", 60_000) + "\n: 1\n", "twice": twice.String(),
	} {
		p := newPlace(t, "")
		if err := os.RemoveAll(p.tree.State); err != nil {
			t.Fatal(err)
		}
		p.tree.state = &state{Cloned: true, Branch: "main", Format: "sha1"}
		path := filepath.Join(p.tree.Work, environmentFile)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		lines := 0
		last := p.tree.Setup(t.Context(), driverapi.SetupRequest{}, func(e driverapi.SetupEvent) {
			if lines++; len(e.Line) > 4000 {
				t.Errorf("%s: a line of %d bytes", name, len(e.Line))
			}
		})
		if lines > 50 || (name == "twice") != (last.Failure != nil) || last.Failure != nil && len(last.Failure.Message) > 2100 {
			t.Errorf("%s: %d lines, %+v", name, lines, last.Failure)
		}
	}
}

func TestNotesAreBounded(t *testing.T) {
	t.Parallel()
	p := newPlace(t, seed)
	p.agent("for i in $(seq 80); do echo $i > $i.bin; done; git checkout -q --detach; for d in $(seq 40); do mkdir -p sub$d; (cd sub$d; git init -q; echo x > x; git add x; git commit -qm x); done")
	packed, err := p.tree.Pack(t.Context(), driverapi.PackRequest{Base: p.base, Have: []string{p.base}, Message: "m", Author: person, Commit: person, At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	got := packed.Result.Notes
	if len(got) != maxNotes || !strings.HasSuffix(got[maxNotes-1], "more notes were left out.") {
		t.Errorf("%d notes, the last one %q", len(got), got[len(got)-1])
	}
	var n notes
	n.add("%s", strings.Repeat("é", 1000))
	n.add("%s", strings.Repeat("x", maxNote-3)+strings.Repeat("é", 10))
	for _, s := range n.all() {
		if len(s) > maxNote {
			t.Errorf("a note of %d bytes", len(s))
		}
	}
}

func TestSetupRepository(t *testing.T) {
	t.Parallel()
	p := newPlace(t, seed+"mkdir -p .devcontainer; echo {} > .devcontainer/devcontainer.json;")
	p.agent(`test "$(git config user.name)" = Ada; test "$(git config gc.auto)" = 0; test "$(git remote get-url origin)" = "` + p.bare + `"
test "$(git symbolic-ref --short HEAD)" = hearth/work; test "$(git rev-parse origin/HEAD)" = "$(git rev-parse HEAD)"; test -z "$(git status --porcelain)"`)
	if _, last := p.setup(t.Context(), driverapi.SetupRequest{}); cmp.Diff([]string{".devcontainer/devcontainer.json"}, last.NotUsed) != "" {
		t.Errorf("not used: %q", last.NotUsed)
	}
	// What the remote branch was moved away from can still be the base.
	old := p.base
	src := filepath.Join(p.dir, "src")
	run(t, src, "", "bash", "-e", "-c", "echo more > more; git add -A; git commit -qm second; git push -q "+p.bare+" main")
	if err := os.RemoveAll(p.tree.State); err != nil {
		t.Fatal(err)
	}
	repo := &driverapi.Repo{URL: "https://git.example/a/b.git", DoorURL: "file://" + p.bare, Rewrite: []string{"git@git.example:a/b.git"}, Base: "main", BaseOID: old, Branch: `we"ird`}
	if _, last := p.setup(t.Context(), driverapi.SetupRequest{Repo: repo, Git: driverapi.Person{Name: `O"Neil \ x`, Email: "o@x"}}); last.Failure != nil || last.Head != old {
		t.Fatalf("%+v %+v", last, last.Failure)
	}
	p.agent(`test "$(git config user.name)" = 'O"Neil \ x'; test "$(git remote get-url --push origin)" = "file://` + p.bare + `"; git fetch -q git@git.example:a/b.git; test ! -e more`)
}

func TestLineWriter(t *testing.T) {
	t.Parallel()
	var got []string
	w := &lineWriter{left: 4, emit: func(s string) { got = append(got, s) }}
	fmt.Fprint(w, "a\n\nlong "+strings.Repeat("x", 5000)+"\nProgress:  10%\rProgress: 100%\rpart")
	fmt.Fprint(w, "ial\nover\nmore\n")
	w.flush()
	want := []string{"a", "long " + strings.Repeat("x", maxSetupLine-5), "Progress: 100%", "partial", "… more output was left out."}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
