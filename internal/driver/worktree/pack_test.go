package worktree

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driver/proc"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

var person = driverapi.Person{Name: "Ada", Email: "ada@example.com"}

// place is a work tree cloned from a bare repository.
type place struct {
	t    *testing.T
	dir  string
	bare string
	base string
	tree *Tree
}

func run(t *testing.T, dir, in, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(in)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
		"GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// agent runs a script as the agent would, with the sandbox's own git configuration.
func (p *place) agent(script string) {
	p.t.Helper()
	cmd := exec.Command("bash", "-e", "-c", script)
	cmd.Dir = p.tree.Work
	cmd.Env = append(os.Environ(), "HOME="+p.tree.Home, "GIT_CONFIG_NOSYSTEM=1", "PROOF="+filepath.Join(p.dir, "proof"))
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("agent: %v\n%s", err, out)
	}
}

const seed = `
printf 'one\n' > a.txt; printf 'two\n' > b.txt; mkdir d; printf 'x\n' > d/x; printf '#!/bin/sh\n' > run; chmod +x run
ln -s a.txt link; printf '*.log\n' > .gitignore; printf '*.bat eol=crlf\n*.bin filter=lfs -text\n*.up filter=upper\n*.key filter=git-crypt\n' > .gitattributes
`

func newPlace(t *testing.T, script string, initArgs ...string) *place {
	t.Helper()
	dir := t.TempDir()
	p := &place{t: t, dir: dir, bare: filepath.Join(dir, "bare.git")}
	src := filepath.Join(dir, "src")
	run(t, dir, "", "git", append([]string{"init", "-q", "-b", "main", src}, initArgs...)...)
	format := run(t, src, "", "git", "rev-parse", "--show-object-format")
	repo := &driverapi.Repo{URL: p.bare, Base: "main", Branch: "hearth/work", Format: format}
	if script != "" {
		run(t, src, "", "bash", "-e", "-c", script+"git add -A; git commit -qm first")
		repo.BaseOID = run(t, src, "", "git", "rev-parse", "HEAD")
	} else {
		repo.Base = ""
	}
	run(t, dir, "", "git", "init", "-q", "--bare", "--object-format="+format, "-b", "main", p.bare)
	if script != "" {
		run(t, src, "", "git", "push", "-q", p.bare, "main")
	}
	p.base = repo.BaseOID
	p.tree = &Tree{
		Procs: proc.New(false), Work: filepath.Join(dir, "repo"), Home: filepath.Join(dir, "home"),
		State: filepath.Join(dir, "state"), Env: os.Environ(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	last := p.tree.Setup(t.Context(), driverapi.SetupRequest{Repo: repo, Git: person}, func(driverapi.SetupEvent) {})
	if last.Failure != nil {
		t.Fatalf("setup: %+v", last.Failure)
	}
	return p
}

func (p *place) request() driverapi.PackRequest {
	r := driverapi.PackRequest{
		Turn: "turn_1", Base: p.base, Message: "Work", Author: person, Commit: driverapi.Person{Name: "Hearth"},
		At: time.Unix(1_790_000_000, 0), MaxBytes: 8 << 20,
	}
	if p.base != "" {
		r.Have = []string{p.base}
	}
	return r
}

func (p *place) pack(r driverapi.PackRequest) driverapi.PackResult {
	p.t.Helper()
	got, err := p.tree.Pack(p.t.Context(), r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer got.Close()
	if !got.Result.Changed {
		if got.Bytes != 0 {
			p.t.Error("a pack although nothing changed")
		}
		return got.Result
	}
	body, err := io.ReadAll(got)
	if err != nil || int64(len(body)) != got.Bytes {
		p.t.Fatalf("%d bytes, not %d: %v", len(body), got.Bytes, err)
	}
	cmd := exec.Command("git", "index-pack", "--stdin", "--strict")
	cmd.Dir, cmd.Stdin = p.bare, bytes.NewReader(body)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("index-pack: %v %s", err, out)
	}
	run(p.t, p.bare, "", "git", "update-ref", "refs/heads/got", got.Result.Head)
	run(p.t, p.bare, "", "git", "fsck", "--strict")
	return got.Result
}

// files lists what a commit has beside what the base has: "mode path: content", and "- path" for what is gone.
func (p *place) files(head string) []string {
	p.t.Helper()
	list := func(rev string) map[string]string {
		out := map[string]string{}
		if rev == "" {
			return out
		}
		for line := range strings.SplitSeq(run(p.t, p.bare, "", "git", "ls-tree", "-r", "-z", rev), "\x00") {
			meta, path, ok := strings.Cut(line, "\t")
			if !ok {
				continue
			}
			f := strings.Fields(meta)
			content := "(commit)"
			if f[1] == "blob" {
				cmd := exec.Command("git", "cat-file", "blob", f[2])
				cmd.Dir = p.bare
				b, err := cmd.Output()
				if err != nil {
					p.t.Fatal(err)
				}
				content = string(b)
			}
			if len(content) > 40 {
				content = content[:40]
			}
			out[path] = fmt.Sprintf("%s %q: %q", f[0][3:], path, content)
		}
		return out
	}
	was, is := list(p.base), list(head)
	var out []string
	for path, v := range is {
		if was[path] != v {
			out = append(out, v)
		}
	}
	for path := range was {
		if _, ok := is[path]; !ok {
			out = append(out, fmt.Sprintf("- %q", path))
		}
	}
	sort.Strings(out)
	return out
}

const commitAll = "git add -A; git commit -qm mine;"

func TestPack(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		script    string
		want      []string
		notes     []string // contained, one in each note
		commits   int64
		elsewhere bool // HEAD does not end on the session's branch
		still     bool // nothing changed
	}{
		"nothing": {script: "true", still: true},
		"touched": {script: "touch a.txt; touch -d 2020-01-01 b.txt", still: true},
		"ignored": {script: "echo x > x.log", still: true},
		"change, new, gone, mode, link": {
			script:  "echo 1 > a.txt; echo n > 'new file'; rm b.txt; chmod -x run; ln -sfn b.txt link; mkdir -p q/r; echo d > q/r/s",
			want:    []string{`- "b.txt"`, `000 "link": "b.txt"`, `644 "a.txt": "1\n"`, `644 "new file": "n\n"`, `644 "q/r/s": "d\n"`, `644 "run": "#!/bin/sh\n"`},
			commits: 1,
		},
		"odd names": {
			script:  `printf x > $'new\nline'; printf x > $'\xff\xfe'; printf x > '"q"\'; printf x > -n; printf x > ':(top)x'; printf x > $'tab\there'; printf x > ' lead'`,
			want:    []string{`644 "\t": ""`},
			commits: 1,
		},
		"file becomes folder and back": {
			script: "rm a.txt; mkdir a.txt; echo i > a.txt/i; rm -r d; echo f > d", commits: 1,
			want: []string{`- "a.txt"`, `- "d/x"`, `644 "a.txt/i": "i\n"`, `644 "d": "f\n"`},
		},
		"own commits": {
			script: "echo 1 > a.txt; " + commitAll + " echo 2 > a.txt; " + commitAll + " echo 3 > c", commits: 3,
			want: []string{`644 "a.txt": "2\n"`, `644 "c": "3\n"`},
		},
		"all committed": {script: "echo 1 > a.txt; " + commitAll, commits: 1, want: []string{`644 "a.txt": "1\n"`}},
		"amended":       {script: "echo 1 > a.txt; git add -A; git commit -q --amend -m other", commits: 1, want: []string{`644 "a.txt": "1\n"`}, notes: []string{"does not build on"}},
		"staged and changed again": {
			script: "echo 1 > a.txt; git add a.txt; echo 2 > a.txt; echo s > s; git add s; rm s", commits: 1, want: []string{`644 "a.txt": "2\n"`},
		},
		"forced over ignore":   {script: "echo x > x.log; git add -f x.log", commits: 1, want: []string{`644 "x.log": "x\n"`}},
		"other branch":         {script: "git checkout -q -b feature; echo 1 > a.txt; " + commitAll + "echo u > u", commits: 2, want: []string{`644 "a.txt": "1\n"`, `644 "u": "u\n"`}, notes: []string{"another branch or commit"}},
		"detached":             {script: "git checkout -q --detach; echo 1 > a.txt; " + commitAll, commits: 1, want: []string{`644 "a.txt": "1\n"`}, notes: []string{"another branch or commit"}},
		"back on the base":     {script: "echo 1 > a.txt; " + commitAll + "git checkout -q --detach HEAD~1", commits: 1, want: []string{`644 "a.txt": "1\n"`}, notes: []string{"that branch was packed"}, elsewhere: true},
		"back and uncommitted": {script: "echo 1 > a.txt; " + commitAll + "git checkout -q --detach HEAD~1; echo u > u", commits: 2, want: []string{`644 "a.txt": "1\n"`, `644 "u": "u\n"`}, notes: []string{"that branch was packed", "were merged into it"}, elsewhere: true},
		"back in conflict":     {script: "echo 1 > a.txt; " + commitAll + "git checkout -q --detach HEAD~1; echo 9 > a.txt", commits: 2, want: []string{`644 "a.txt": "9\n"`}, notes: []string{"that branch was packed", "conflict with it"}, elsewhere: true},
		"unrelated history":    {script: "git checkout -q --orphan new; git rm -rqf .; echo 1 > only; " + commitAll, commits: 1, notes: []string{"does not build on"}, want: []string{`- ".gitattributes"`, `- ".gitignore"`, `- "a.txt"`, `- "b.txt"`, `- "d/x"`, `- "link"`, `- "run"`, `644 "only": "1\n"`}},
		"git removed":          {script: "rm -rf .git; echo 1 > a.txt; rm b.txt", commits: 1, notes: []string{".git could not be used"}, want: []string{`- "b.txt"`, `644 "a.txt": "1\n"`}},
		"git anew":             {script: "rm -rf .git; git init -q; echo 1 > a.txt; " + commitAll, commits: 1, notes: []string{"does not build on"}, want: []string{`644 "a.txt": "1\n"`}},
		"git broken":           {script: "echo 1 > a.txt; rm .git/HEAD", commits: 1, notes: []string{".git could not be used"}, want: []string{`644 "a.txt": "1\n"`}},
		"index broken":         {script: "echo 1 > a.txt; echo rubbish > .git/index", commits: 1, notes: []string{"made anew"}, want: []string{`644 "a.txt": "1\n"`}},
		"index gone":           {script: "echo 1 > a.txt; rm .git/index", commits: 1, want: []string{`644 "a.txt": "1\n"`}},
		"config broken":        {script: "echo 1 > a.txt; echo '[[[' > .git/config", commits: 1, want: []string{`644 "a.txt": "1\n"`}},
		"split index":          {script: "git update-index --split-index; echo 1 > a.txt; git add a.txt", commits: 1, want: []string{`644 "a.txt": "1\n"`}},
		"locks left":           {script: "echo 1 > a.txt; touch .git/index.lock .git/HEAD.lock; mkdir -p .git/refs/heads/hearth; touch .git/refs/heads/hearth/work.lock", commits: 1, want: []string{`644 "a.txt": "1\n"`}},
		"packed refs":          {script: "echo 1 > a.txt; " + commitAll + "git pack-refs --all", commits: 1, want: []string{`644 "a.txt": "1\n"`}},
		"merge in progress": {
			script:  "git checkout -q -b side; echo s > a.txt; " + commitAll + "git checkout -q hearth/work; echo w > a.txt; " + commitAll + "git merge side || true",
			commits: 2, notes: []string{"a merge unfinished", "1 files had conflicts"}, want: []string{`644 "a.txt": "<<<<<<< HEAD\nw\n=======\ns\n>>>>>>> side\n"`},
		},
		"conflict with a file gone": {
			script:  "git checkout -q -b side; git rm -q a.txt; git commit -qm x; git checkout -q hearth/work; echo w > a.txt; " + commitAll + "git merge side || true; rm a.txt",
			commits: 2, notes: []string{"a merge unfinished", "1 files had conflicts"}, want: []string{`- "a.txt"`},
		},
		"rebase in progress": {
			script:  "git checkout -q -b side; echo s > a.txt; " + commitAll + "git checkout -q hearth/work; echo w > a.txt; " + commitAll + "git rebase side || true; echo r > a.txt",
			commits: 2, notes: []string{"a rebase unfinished", "1 files had conflicts", "that were left out|commits up to", "another branch or commit"}, want: []string{`644 "a.txt": "r\n"`},
		},
		"line ends": {script: `printf 'x\r\ny\r\n' > s.bat; printf 'k\r\n' > k.txt`, commits: 1, want: []string{`644 "k.txt": "k\r\n"`, `644 "s.bat": "x\ny\n"`}},
		"autocrlf":  {script: `git config core.autocrlf input; printf 'k\r\n' > k.txt`, commits: 1, want: []string{`644 "k.txt": "k\n"`}},
		"bad encoding": {
			script: `echo '*.u16 working-tree-encoding=UTF-16' >> .gitattributes; printf 'abc' > x.u16; echo 1 > a.txt`, commits: 1, notes: []string{`"x.u16" could not be packed`},
			want: []string{`644 "a.txt": "1\n"`},
		},
		"planted": {
			script: `git config core.fsmonitor "touch $PROOF; false"; git config filter.upper.clean "touch $PROOF; tr a-z A-Z"; git config filter.upper.required true
git config core.hooksPath .hooks; mkdir -p .hooks .git/hooks; for h in pre-commit post-commit reference-transaction post-index-change; do printf '#!/bin/sh\ntouch %s\n' "$PROOF" > .hooks/$h; chmod +x .hooks/$h; cp .hooks/$h .git/hooks/; done
git config diff.external "touch $PROOF"; git config core.sshCommand "touch $PROOF"; git config commit.gpgsign true; git config gpg.program "touch $PROOF"; git config core.worktree /tmp; rm -f "$PROOF"
printf 'low\n' > f.up; rm -r .hooks`,
			commits: 1, notes: []string{`filter "upper"`}, want: []string{`644 "f.up": "low\n"`},
		},
		"lfs": {
			script:  `printf 'raw content that is big' > big.bin; printf 'version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n' > ptr.bin; echo k > a.key`,
			commits: 1, notes: []string{`"big.bin" belongs to Git LFS`, `"a.key" is encrypted`}, want: []string{`644 "ptr.bin": "version https://git-lfs.github.com/spec/"`},
		},
		"nested repository": {
			script: "mkdir -p sub/inner; git -C sub/inner init -q; echo x > sub/inner/f; git init -q other; echo y > other/g; git -C other add g; git -C other commit -qm x; echo 1 > a.txt", commits: 1,
			notes: []string{`"other" is a git repository`, `"sub/inner" is a git repository`}, want: []string{`644 "a.txt": "1\n"`},
		},
		"special files":      {script: "mkfifo pipe; rm b.txt; mkfifo b.txt; echo 1 > a.txt", commits: 1, notes: []string{`"b.txt" is neither`}, want: []string{`- "b.txt"`, `644 "a.txt": "1\n"`}},
		"sparse":             {script: "git sparse-checkout set --no-cone /a.txt /.gitignore; echo 1 > a.txt", commits: 1, want: []string{`644 "a.txt": "1\n"`}},
		"excluded by info":   {script: "mkdir -p .git/info; echo mine >> .git/info/exclude; echo x > mine; echo 1 > a.txt", commits: 1, want: []string{`644 "a.txt": "1\n"`}},
		"assume unchanged":   {script: "git update-index --assume-unchanged a.txt; echo 1 > a.txt; echo 2 > b.txt", commits: 1, want: []string{`644 "b.txt": "2\n"`}},
		"intent to add":      {script: "echo 1 > n; git add -N n", commits: 1, want: []string{`644 "n": "1\n"`}},
		"removed from index": {script: "git rm -q --cached a.txt; echo 1 > b.txt", commits: 1, want: []string{`644 "b.txt": "1\n"`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, seed)
			p.agent(tt.script)
			interim := p.request()
			interim.Interim = true
			before := run(t, p.tree.Work, "", "bash", "-c", "cat .git/HEAD .git/refs/heads/hearth/work 2>/dev/null; md5sum .git/index 2>/dev/null; true")
			first := p.pack(interim)
			if after := run(t, p.tree.Work, "", "bash", "-c", "cat .git/HEAD .git/refs/heads/hearth/work 2>/dev/null; md5sum .git/index 2>/dev/null; true"); after != before {
				t.Errorf("the interim pack moved something:\n%s\n%s", before, after)
			}
			got := p.pack(p.request())
			if first.Head != got.Head || first.Tree != got.Tree {
				t.Errorf("interim %+v, final %+v", first, got)
			}
			if tt.still {
				if got.Changed || got.Head != p.base || len(got.Notes) > 0 {
					t.Errorf("%+v", got)
				}
				return
			}
			if name == "odd names" {
				raw := run(t, p.bare, "", "git", "ls-tree", "-r", "-z", "--name-only", got.Head)
				for _, n := range []string{"new\nline", "\xff\xfe", `"q"\`, "-n", ":(top)x", "tab\there", " lead"} {
					n = strings.TrimSpace(n) // as run does
					if !strings.Contains("\x00"+raw+"\x00", "\x00"+n+"\x00") {
						t.Errorf("%q is not in the pack: %q", n, raw)
					}
				}
			} else if d := cmp.Diff(tt.want, p.files(got.Head)); d != "" {
				t.Error(d)
			}
			if got.Commits != tt.commits {
				t.Errorf("%d commits, not %d", got.Commits, tt.commits)
			}
			if len(got.Notes) != len(tt.notes) {
				t.Errorf("notes %q", got.Notes)
			} else {
				have := append([]string{}, got.Notes...)
				sort.Strings(have)
				for _, n := range tt.notes {
					found := false
					for _, alt := range strings.Split(n, "|") {
						found = found || strings.Contains(strings.Join(have, "\n"), alt)
					}
					if !found {
						t.Errorf("no note %q in %q", n, have)
					}
				}
			}
			if again := p.pack(p.request()); again.Head != got.Head {
				t.Errorf("the same again is %s, not %s", again.Head, got.Head)
			}
			if _, err := os.Stat(filepath.Join(p.dir, "proof")); err == nil {
				t.Error("something planted was run")
			}
			head, branch := openRefs(p.tree.Work).head()
			if !tt.elsewhere && (head != got.Head || branch != "hearth/work") {
				t.Errorf("HEAD is %s on %q", head, branch)
			}
			if tip := openRefs(p.tree.Work).branch("hearth/work"); tip != got.Head {
				t.Errorf("branch is %s", tip)
			}
			// The next turn builds on it.
			p.base = got.Head
			if name != "config broken" && name != "planted" && !tt.elsewhere {
				if s := run(t, p.tree.Work, "", "git", "status", "--porcelain", "-uno"); s != "" && name != "special files" && name != "bad encoding" && name != "lfs" {
					t.Errorf("status after the pack: %s", s)
				}
			}
			if !tt.elsewhere {
				p.agent("echo next > next.txt")
				next := p.pack(p.request())
				if d := cmp.Diff([]string{`644 "next.txt": "next\n"`}, p.files(next.Head)); d != "" || next.Commits != 1 {
					t.Errorf("next: %d commits %s", next.Commits, d)
				}
			}
		})
	}
}

func TestPackEmptyRepositoryAndSHA256(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*place{"empty": newPlace(t, ""), "sha256": newPlace(t, seed, "--object-format=sha256"), "empty sha256": newPlace(t, "", "--object-format=sha256")} {
		if got := p.pack(p.request()); got.Changed {
			t.Errorf("%s: nothing gave %+v", name, got)
		}
		p.agent("echo 1 > first")
		got := p.pack(p.request())
		if d := cmp.Diff([]string{`644 "first": "1\n"`}, p.files(got.Head)); d != "" || got.Commits != 1 {
			t.Errorf("%s: %+v %s", name, got, d)
		}
		show := run(t, p.bare, "", "git", "log", "-1", "--format=%an|%ae|%cn|%ce|%at|%s", "got")
		if show != "Ada|ada@example.com|Hearth||1790000000|Work" {
			t.Errorf("%s: %s", name, show)
		}
	}
}

func TestPackTooLarge(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"as a pack": "head -c 3000000 /dev/urandom > big",
		"at once":   "truncate -s 20000000 big",
	} {
		p := newPlace(t, seed)
		p.agent(script)
		r := p.request()
		r.MaxBytes = 2 << 20
		_, err := p.tree.Pack(t.Context(), r)
		if fault.CodeOf(err) != fault.PackTooLarge {
			t.Errorf("%s: %v", name, err)
		}
		p.agent("rm big; echo 1 > a.txt")
		if got := p.pack(r); !got.Changed {
			t.Errorf("%s: afterwards %+v", name, got)
		}
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"changes":        "echo 1 > a.txt; rm b.txt; mkdir n; echo n > n/n; echo l > x.log; mkdir nest; git -C nest init -q",
		"commits":        "echo 1 > a.txt; " + commitAll + "git checkout -q -b other; echo 2 > c; git add c",
		"merge":          "git checkout -q -b side; echo s > a.txt; " + commitAll + "git checkout -q hearth/work; echo w > a.txt; " + commitAll + "git merge side || true",
		"index broken":   "echo 1 > a.txt; echo x > .git/index; touch .git/index.lock",
		"file to folder": "rm a.txt; mkdir a.txt; echo i > a.txt/i; rm -r d; echo f > d",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, seed)
			p.agent(script)
			if err := p.tree.Reset(t.Context(), p.base); err != nil {
				t.Fatal(err)
			}
			if s := run(t, p.tree.Work, "", "git", "status", "--porcelain"); s != "" {
				t.Errorf("status: %s", s)
			}
			if b := run(t, p.tree.Work, "", "git", "rev-parse", "--abbrev-ref", "HEAD"); b != "hearth/work" {
				t.Errorf("on %s", b)
			}
			if got := p.pack(p.request()); got.Changed {
				t.Errorf("pack after the reset: %+v", got)
			}
		})
	}
	p := newPlace(t, seed)
	for _, oid := range []string{"HEAD", strings.Repeat("b", 40)} {
		if err := p.tree.Reset(t.Context(), oid); fault.CodeOf(err) != fault.InvalidInput {
			t.Errorf("%s: %v", oid, err)
		}
	}
}
