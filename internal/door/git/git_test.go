package git_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/forge/forgetest"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/door/git"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

const token = "door-canary-0123456789abcdef"

// bench is a git host, a door to one of its repositories, and what the door told.
type bench struct {
	t    *testing.T
	host *gitserver.Server
	repo *gitserver.Repo
	door string // URL of the repository behind the door
	base string // URL of the door
	cfg  git.Config
	log  *bytes.Buffer

	mu    sync.Mutex
	known string
	moves []string
	fail  error // of Moved
}

const branch = "hearth/work"

type syncWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

func newBench(t *testing.T, files map[string]string, change func(*git.Config), opts ...gitserver.RepoOption) *bench {
	t.Helper()
	b := &bench{t: t, log: &bytes.Buffer{}}
	var err error
	b.host, err = gitserver.New(gitserver.Options{Dir: t.TempDir(), Users: []gitserver.User{{Name: "hearth", Password: token, Write: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if b.repo, err = b.host.NewRepo(t.Context(), "acme/calc", files, opts...); err != nil {
		t.Fatal(err)
	}
	host := httptest.NewServer(b.host)
	t.Cleanup(host.Close)
	b.cfg = git.Config{
		Upstream: host.URL + b.repo.Path(),
		Path:     "/host.test/acme/calc",
		Credential: func(context.Context) (forge.Credential, error) {
			return forge.Credential{Username: "hearth", Password: token}, nil
		},
		MayPush: true, Branch: branch,
		Known: func(context.Context) (string, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.known, nil
		},
		Moved: func(_ context.Context, old, new string) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.fail != nil {
				return b.fail
			}
			if old != b.known {
				t.Errorf("moved from %s, known was %s", old, b.known)
			}
			b.known = new
			b.moves = append(b.moves, new)
			return nil
		},
		Log: slog.New(slog.NewTextHandler(&syncWriter{w: b.log}, nil)),
		Dir: t.TempDir(),
	}
	if change != nil {
		change(&b.cfg)
	}
	h, err := git.New(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	door := httptest.NewServer(h)
	t.Cleanup(func() {
		door.Close()
		if strings.Contains(b.log.String(), token) {
			t.Error("the log tells the token")
		}
	})
	b.base = door.URL
	b.door = door.URL + b.cfg.Path
	return b
}

// git runs a sandbox's git: it has no login of any kind.
func (b *bench) git(dir string, args ...string) (string, error) {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = forgetest.Env()
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), token) {
		b.t.Errorf("git tells the token: %s", out)
	}
	return string(out), err
}

func (b *bench) must(dir string, args ...string) string {
	b.t.Helper()
	out, err := b.git(dir, args...)
	if err != nil {
		b.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// refused runs git, which must fail and print these words.
func (b *bench) refused(dir string, words []string, args ...string) {
	b.t.Helper()
	out, err := b.git(dir, args...)
	if err == nil {
		b.t.Errorf("git %s went through:\n%s", strings.Join(args, " "), out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			b.t.Errorf("git %s does not print %q but:\n%s", strings.Join(args, " "), w, out)
		}
	}
}

func (b *bench) clone(args ...string) string {
	b.t.Helper()
	dir := filepath.Join(b.t.TempDir(), "w")
	b.must("", append(append([]string{"clone", "--quiet"}, args...), b.door, dir)...)
	return dir
}

func (b *bench) commit(dir, file, content string) string {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
	b.must(dir, "add", "-A")
	b.must(dir, "commit", "--quiet", "-m", "change "+file)
	return b.must(dir, "rev-parse", "HEAD")
}

func (b *bench) at(name string) string {
	b.t.Helper()
	refs, err := b.repo.Refs(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return refs["refs/heads/"+name]
}

var files = map[string]string{"a.txt": "a\n", "b.txt": "b\n"}

func TestProtocolVersions(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0", "1", "2"} {
		for _, format := range []string{"sha1", "sha256"} {
			t.Run("v"+v+" "+format, func(t *testing.T) {
				t.Parallel()
				var opts []gitserver.RepoOption
				if format == "sha256" {
					opts = append(opts, gitserver.WithSHA256())
				}
				b := newBench(t, files, nil, opts...)
				dir := filepath.Join(t.TempDir(), "w")
				b.must("", "-c", "protocol.version="+v, "clone", "--quiet", b.door+".git", dir)
				b.must(dir, "config", "protocol.version", v)
				first := b.commit(dir, "c.txt", "c\n")
				b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
				second := b.commit(dir, "c.txt", "cc\n")
				b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
				b.must(dir, "fetch", "origin")
				if got := b.at(branch); got != second {
					t.Errorf("the branch is at %s, want %s", got, second)
				}
				if diff := cmp.Diff([]string{first, second}, b.moves); diff != "" {
					t.Errorf("moves (-want +got):\n%s", diff)
				}
				for _, r := range b.host.Requests() {
					if v == "2" && r.Service == gitserver.UploadPack && r.Protocol != "version=2" {
						t.Errorf("the host was asked with protocol %q", r.Protocol)
					}
				}
			})
		}
	}
}

func TestEmptyRepository(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil, nil)
	dir := b.clone()
	head := b.commit(dir, "a", "a\n")
	b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
	if b.at(branch) != head || b.known != head {
		t.Errorf("host has %s, known is %s, want %s", b.at(branch), b.known, head)
	}
}

func TestRefusedRefs(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	dir := b.clone()
	first := b.commit(dir, "c.txt", "c\n")
	main := b.at("main")
	only := "hearth: this sandbox may push only " + branch
	b.refused(dir, []string{"! [remote rejected] HEAD -> main (" + only + ")"}, "push", "origin", "HEAD:main")
	b.refused(dir, []string{"(" + only + ")"}, "push", "origin", "HEAD:refs/tags/v1")
	b.refused(dir, []string{"(" + only + ")"}, "push", "origin", ":main")
	b.refused(dir, []string{"(" + only + ")"}, "push", "origin", "HEAD:refs/heads/"+branch+"/x")
	b.refused(dir, []string{"(" + only + ")"}, "push", "--mirror", "origin")
	b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
	b.refused(dir, []string{"may not be deleted"}, "push", "origin", ":"+branch)
	if b.at("main") != main || b.at(branch) != first {
		t.Errorf("main is at %s, %s at %s", b.at("main"), branch, b.at(branch))
	}
}

func TestSeveralRefs(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	dir := b.clone()
	first := b.commit(dir, "c.txt", "c\n")
	b.must(dir, "tag", "v1")
	t.Run("atomic: none", func(t *testing.T) {
		b.refused(dir, []string{"atomic push, and another ref was refused", "may push only"},
			"push", "--atomic", "origin", "HEAD:refs/heads/"+branch, "v1")
		if b.at(branch) != "" {
			t.Error("the branch was made")
		}
	})
	t.Run("else: each by itself", func(t *testing.T) {
		b.refused(dir, []string{"* [new branch]      HEAD -> " + branch, "! [remote rejected] v1 -> v1", "! [remote rejected] HEAD -> main"},
			"push", "origin", "HEAD:main", "HEAD:refs/heads/"+branch, "v1")
		if b.at(branch) != first || b.known != first {
			t.Errorf("the branch is at %s, known %s, want %s", b.at(branch), b.known, first)
		}
		refs, err := b.repo.Refs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(refs) != 2 {
			t.Errorf("refs on the host: %v", refs)
		}
	})
	t.Run("a megabyte of refs", func(t *testing.T) {
		zero := strings.Repeat("0", 40)
		var body []byte
		const n = 10_000
		for i := range n {
			line := fmt.Sprintf("%s %s refs/heads/many/%s/%05d", zero, first, strings.Repeat("x", 20), i)
			if i == 0 {
				line += "\x00 report-status agent=git/2"
			}
			body = gitwire.AppendLine(body, line)
		}
		second := b.commit(dir, "c.txt", "cc\n")
		body = gitwire.AppendLine(body, first+" "+second+" refs/heads/"+branch)
		body = gitwire.AppendFlush(body)
		cmd := exec.CommandContext(t.Context(), "git", "pack-objects", "--revs", "--stdout", "--quiet")
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(second+"\n^"+first+"\n")
		pack, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if len(body) < 1<<20 {
			t.Fatalf("only %d bytes of refs", len(body))
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.door+"/git-receive-pack", bytes.NewReader(append(body, pack...)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-git-receive-pack-request")
		resp, err := web.Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		rep, err := gitwire.ReadReport(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if len(rep.Refs) != n+1 || !rep.Refs[n].OK || rep.Refs[0].OK || rep.Refs[n-1].OK {
			t.Errorf("report has %d refs, the last one is %+v", len(rep.Refs), rep.Refs[len(rep.Refs)-1])
		}
		if b.at(branch) != second {
			t.Errorf("the branch is at %s, want %s", b.at(branch), second)
		}
	})
}

// noise does not get smaller by compression.
func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return string(b)
}

func TestLargePush(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	dir := b.clone()
	big := noise(5 << 20) // more than git's 1 MiB: a probe, then chunked
	head := b.commit(dir, "big", big)
	b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
	if b.at(branch) != head {
		t.Errorf("the branch is at %s, want %s", b.at(branch), head)
	}
	b.refused(dir, []string{"may push only"}, "push", "origin", "HEAD:main")
	again := b.clone("--branch", branch)
	got, err := os.ReadFile(filepath.Join(again, "big"))
	if err != nil || string(got) != big {
		t.Errorf("what comes back differs: %d bytes, %v", len(got), err)
	}
}

func TestShallowAndPartial(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	for i := range 3 {
		if _, err := b.repo.Commit(t.Context(), "main", "more", map[string]string{"a.txt": fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	dir := b.clone("--depth=1")
	head := b.commit(dir, "c.txt", "c\n")
	b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
	if b.at(branch) != head {
		t.Errorf("the branch is at %s, want %s", b.at(branch), head)
	}
	partial := b.clone("--filter=blob:none")
	b.must(partial, "log", "-p", "--all")
}

func TestGzipFetch(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	main := b.at("main")
	var in strings.Builder
	for i := range 400 {
		fmt.Fprintf(&in, "create refs/heads/many/%d %s\n", i, main)
	}
	cmd := exec.CommandContext(t.Context(), "git", "update-ref", "--stdin")
	cmd.Dir, cmd.Stdin = b.repo.Dir, strings.NewReader(in.String())
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	dir := b.clone() // so many wants are sent compressed
	for i := range 60 {
		b.commit(dir, "x", fmt.Sprint(i))
	}
	if _, err := b.repo.Commit(t.Context(), "main", "more", map[string]string{"a.txt": "more"}); err != nil {
		t.Fatal(err)
	}
	b.must(dir, "-c", "protocol.version=0", "fetch", "origin")
	b.must(dir, "fetch", "--refetch", "origin")
}

func TestHookRefusal(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	if err := b.repo.RefusePushes("Sign your commits first."); err != nil {
		t.Fatal(err)
	}
	dir := b.clone()
	b.commit(dir, "c.txt", "c\n")
	b.refused(dir, []string{"remote: Sign your commits first.", "(pre-receive hook declined)"}, "push", "origin", "HEAD:refs/heads/"+branch)
	if len(b.moves) != 0 {
		t.Errorf("moves: %v", b.moves)
	}
}

func TestSomebodyElseMoved(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	dir := b.clone()
	b.commit(dir, "c.txt", "c\n")
	b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
	theirs, err := b.repo.Commit(t.Context(), branch, "theirs", map[string]string{"t": "precious"})
	if err != nil {
		t.Fatal(err)
	}
	b.commit(dir, "d.txt", "d\n")
	b.refused(dir, []string{"hearth: somebody else moved this branch"}, "push", "--force", "origin", "HEAD:refs/heads/"+branch)
	if b.at(branch) != theirs {
		t.Errorf("the branch is at %s, want %s", b.at(branch), theirs)
	}
	foreign := newBench(t, files, nil)
	if _, err := foreign.repo.Commit(t.Context(), branch, "theirs", map[string]string{"t": "precious"}); err != nil {
		t.Fatal(err)
	}
	dir = foreign.clone()
	foreign.commit(dir, "d.txt", "d\n")
	foreign.refused(dir, []string{"hearth: somebody else made this branch"}, "push", "--force", "origin", "HEAD:refs/heads/"+branch)
}

func TestForce(t *testing.T) {
	t.Parallel()
	t.Run("over what the session pushed", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, files, nil)
		dir := b.clone()
		b.commit(dir, "c.txt", "c\n")
		b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
		b.must(dir, "commit", "--quiet", "--amend", "-m", "better")
		b.must(dir, "push", "--force", "origin", "HEAD:refs/heads/"+branch)
		if got := b.must(dir, "rev-parse", "HEAD"); b.at(branch) != got || b.known != got {
			t.Errorf("the branch is at %s, known %s, want %s", b.at(branch), b.known, got)
		}
	})
	t.Run("never over a person's", func(t *testing.T) {
		t.Parallel()
		var b *bench
		var theirs string
		s := &shop{}
		b = newBench(t, files, func(c *git.Config) {
			c.Floor = func(context.Context) (string, error) { return theirs, nil }
			c.Descends = func(ctx context.Context, floor, candidate string, pack io.Reader) (bool, error) {
				return s.descends(ctx, b, floor, candidate, pack)
			}
		})
		var err error
		if theirs, err = b.repo.Commit(t.Context(), branch, "theirs", map[string]string{"t": "precious"}); err != nil {
			t.Fatal(err)
		}
		b.known = theirs
		s.prepare(t, b)
		dir := b.clone("--branch", branch)
		ours := b.commit(dir, "c.txt", "c\n")
		b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
		b.must(dir, "commit", "--quiet", "--amend", "-m", "better")
		b.must(dir, "push", "--force", "origin", "HEAD:refs/heads/"+branch)
		if got := b.must(dir, "rev-parse", "HEAD"); b.at(branch) != got || got == ours {
			t.Errorf("the branch is at %s, want %s", b.at(branch), got)
		}
		last := b.at(branch)
		b.must(dir, "reset", "--quiet", "--hard", "origin/main")
		b.commit(dir, "d.txt", "d\n")
		b.refused(dir, []string{"would remove other people's commits"}, "push", "--force", "origin", "HEAD:refs/heads/"+branch)
		if b.at(branch) != last {
			t.Errorf("the branch is at %s, want %s", b.at(branch), last)
		}
		if left, err := os.ReadDir(b.cfg.Dir); err != nil || len(left) != 0 {
			t.Errorf("left in the folder for packs: %v, %v", left, err)
		}
	})
	t.Run("nobody to judge", func(t *testing.T) {
		t.Parallel()
		var theirs string
		b := newBench(t, files, func(c *git.Config) {
			c.Floor = func(context.Context) (string, error) { return theirs, nil }
		})
		var err error
		if theirs, err = b.repo.Commit(t.Context(), branch, "theirs", map[string]string{"t": "precious"}); err != nil {
			t.Fatal(err)
		}
		b.known = theirs
		dir := b.clone("--branch", branch)
		b.commit(dir, "c.txt", "c\n")
		b.refused(dir, []string{"other people's commits"}, "push", "origin", "HEAD:refs/heads/"+branch)
	})
}

func TestLostAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	dir := b.clone()
	head := b.commit(dir, "c.txt", "c\n")
	b.host.AddFault(gitserver.Fault{Service: gitserver.ReceivePack, Times: 1, DropAnswer: true})
	b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
	if b.known != head {
		t.Errorf("known is %q, want %s", b.known, head)
	}
	b.commit(dir, "c.txt", "cc\n")
	b.host.AddFault(gitserver.Fault{Service: gitserver.ReceivePack, Times: 1, Status: http.StatusServiceUnavailable, Message: "Down for repairs."})
	b.refused(dir, []string{"The git host cannot serve now (503). It says: Down for repairs."}, "push", "origin", "HEAD:refs/heads/"+branch)
	if b.known != head {
		t.Errorf("known is %q, want %s", b.known, head)
	}
}

func TestNotRecorded(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	b.fail = errors.New("store is down")
	dir := b.clone()
	b.commit(dir, "c.txt", "c\n")
	b.refused(dir, []string{"the remote has it, but that could not be recorded"}, "push", "origin", "HEAD:refs/heads/"+branch)
}
