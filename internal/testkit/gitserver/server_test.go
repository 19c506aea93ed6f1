package gitserver_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

func start(t *testing.T, o gitserver.Options) (*gitserver.Server, string) {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := gitserver.New(o)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return s, srv.URL
}

func newRepo(t *testing.T, s *gitserver.Server, name string, files map[string]string, opts ...gitserver.RepoOption) *gitserver.Repo {
	t.Helper()
	r, err := s.NewRepo(t.Context(), name, files, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// git runs a real git client, with nothing of the user's configuration.
func git(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@hearth.test", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@hearth.test",
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(t, dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return out
}

// clone clones and returns the work tree.
func clone(t *testing.T, url string, args ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "w")
	must(t, ".", append(append([]string{}, args...), "clone", "--quiet", url, dir)...)
	return dir
}

func commit(t *testing.T, dir, name, content string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, dir, "add", "-A")
	must(t, dir, "commit", "--quiet", "-m", "change "+name)
	return strings.TrimSpace(must(t, dir, "rev-parse", "HEAD"))
}

func withUser(url, user, password string) string {
	return strings.Replace(url, "http://", "http://"+user+":"+password+"@", 1)
}

func TestCloneAndPush(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		for _, version := range []string{"0", "1", "2"} {
			t.Run(format+" v"+version, func(t *testing.T) {
				t.Parallel()
				s, url := start(t, gitserver.Options{})
				var opts []gitserver.RepoOption
				if format == "sha256" {
					opts = append(opts, gitserver.WithSHA256())
				}
				files := map[string]string{"README.md": "hello\n", "bin/run.sh": "#!/bin/sh\necho run\n", "odd name é.txt": "x"}
				repo := newRepo(t, s, "acme/calc", files, opts...)
				dir := clone(t, url+repo.Path(), "-c", "protocol.version="+version)
				got := must(t, dir, "ls-files", "--format=%(objectmode) %(path)", "-z")
				if diff := cmp.Diff("100644 README.md\x00100755 bin/run.sh\x00100644 odd name é.txt\x00", got); diff != "" {
					t.Error(diff)
				}
				id := commit(t, dir, "new.txt", "new\n")
				must(t, dir, "-c", "protocol.version="+version, "push", "--quiet", "-o", "option", "origin", "HEAD:refs/heads/topic")
				refs, err := repo.Refs(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if refs["refs/heads/topic"] != id || len(refs) != 2 || len(id) != map[string]int{"sha1": 40, "sha256": 64}[format] {
					t.Errorf("refs %v, pushed %s", refs, id)
				}
				if c, err := repo.File(t.Context(), "topic", "new.txt"); err != nil || c != "new\n" {
					t.Errorf("file %q, %v", c, err)
				}
				moved, err := repo.Commit(t.Context(), "main", "by another person", map[string]string{"README.md": "changed\n"})
				if err != nil {
					t.Fatal(err)
				}
				must(t, dir, "-c", "protocol.version="+version, "fetch", "--quiet", "origin", "main")
				if got := strings.TrimSpace(must(t, dir, "rev-parse", "FETCH_HEAD")); got != moved {
					t.Errorf("fetched %s, want %s", got, moved)
				}
				want := ""
				if version != "0" {
					want = "version=" + version
				}
				for _, r := range s.Requests() {
					if r.Service == gitserver.UploadPack && r.Protocol != want {
						t.Errorf("protocol %q, want %q", r.Protocol, want)
					}
				}
				if c := s.Counts(); c.ReceivePacks != 1 || c.UploadPacks < 2 || c.Refs != 3 || c.Refused != 0 {
					t.Errorf("counts %+v", c)
				}
			})
		}
	}
}

func TestEmptyRepository(t *testing.T) {
	t.Parallel()
	s, url := start(t, gitserver.Options{})
	repo := newRepo(t, s, "empty", nil, gitserver.WithBranch("trunk"))
	dir := clone(t, url+"/empty") // without .git, as people type it
	id := commit(t, dir, "a", "b")
	must(t, dir, "push", "--quiet", "origin", "HEAD")
	if head, err := repo.Head(t.Context(), "trunk"); err != nil || head != id {
		t.Errorf("head %q, %v; want %s", head, err, id)
	}
}

func TestLargeChunkedPush(t *testing.T) {
	t.Parallel()
	s, url := start(t, gitserver.Options{})
	repo := newRepo(t, s, "big", map[string]string{"a": "b"})
	dir := clone(t, url+repo.Path())
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 3<<20) // over http.postBuffer, so that git sends it chunked
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	id := commit(t, dir, "noise", string(b))
	must(t, dir, "push", "--quiet", "origin", "HEAD")
	if head, err := repo.Head(t.Context(), "main"); err != nil || head != id {
		t.Errorf("head %q, %v; want %s", head, err, id)
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	reader, writer, token := gitserver.User{Name: "reader", Password: "r"}, gitserver.User{Name: "writer", Password: "w", Write: true}, gitserver.User{Password: "tok", Write: true}
	s, url := start(t, gitserver.Options{Users: []gitserver.User{reader, writer, token}})
	newRepo(t, s, "calc", map[string]string{"a": "b"})
	repoURL := url + "/calc.git"
	tests := []struct {
		name, user, password string
		read, write          string // words of the refusal, empty when it works
	}{
		{"writer", "writer", "w", "", ""},
		{"token under any name", "x-access-token", "tok", "", ""},
		{"reader", "reader", "r", "", "403"},
		{"wrong password", "writer", "r", "Authentication failed", "Authentication failed"},
		{"nobody", "", "", "could not read Username", "could not read Username"},
	}
	for i, tt := range tests {
		u := repoURL
		if tt.user != "" {
			u = withUser(repoURL, tt.user, tt.password)
		}
		out, err := git(t, ".", "ls-remote", u)
		if (err == nil) != (tt.read == "") || !strings.Contains(out, tt.read) {
			t.Errorf("%s reads: %v %s", tt.name, err, out)
		}
		dir := clone(t, withUser(repoURL, "writer", "w"))
		commit(t, dir, "f", tt.name)
		out, err = git(t, dir, "push", "--quiet", u, fmt.Sprintf("HEAD:refs/heads/b%d", i))
		if (err == nil) != (tt.write == "") || !strings.Contains(out, tt.write) {
			t.Errorf("%s writes: %v %s", tt.name, err, out)
		}
	}
	if c := s.Counts(); c.Refused == 0 {
		t.Errorf("counts %+v", c)
	}
	// Names of repositories are not told to strangers.
	for _, name := range []string{"calc", "nothing"} {
		resp, err := web.Get(url + "/" + name + ".git/info/refs?service=git-upload-pack")
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %v %v", name, resp, err)
		} else {
			_ = resp.Body.Close()
		}
	}
	s.SetUsers(reader)
	if out, err := git(t, ".", "ls-remote", withUser(repoURL, "writer", "w")); err == nil {
		t.Errorf("a revoked user reads: %s", out)
	}
}

func TestPublicRead(t *testing.T) {
	t.Parallel()
	s, url := start(t, gitserver.Options{Users: []gitserver.User{{Name: "w", Password: "w", Write: true}}, PublicRead: true})
	newRepo(t, s, "calc", map[string]string{"a": "b"})
	dir := clone(t, url+"/calc.git")
	commit(t, dir, "c", "d")
	if out, err := git(t, dir, "push", "--quiet", "origin", "HEAD"); err == nil {
		t.Errorf("pushed without a password: %s", out)
	}
}

func TestHookRefuses(t *testing.T) {
	t.Parallel()
	s, url := start(t, gitserver.Options{})
	repo := newRepo(t, s, "calc", map[string]string{"a": "b"})
	if err := repo.RefusePushes("Sorry, it's frozen: see the wiki"); err != nil {
		t.Fatal(err)
	}
	dir := clone(t, url+repo.Path())
	commit(t, dir, "c", "d")
	out, err := git(t, dir, "push", "origin", "HEAD")
	if err == nil || !strings.Contains(out, "remote: Sorry, it's frozen: see the wiki") || !strings.Contains(out, "pre-receive hook declined") {
		t.Errorf("push: %v\n%s", err, out)
	}
	if err := repo.RefusePushes(""); err != nil {
		t.Fatal(err)
	}
	must(t, dir, "push", "--quiet", "origin", "HEAD")
}

func TestFaults(t *testing.T) {
	t.Parallel()
	var waited []time.Duration
	s, url := start(t, gitserver.Options{Wait: func(_ context.Context, d time.Duration) error {
		waited = append(waited, d)
		return nil
	}})
	repo := newRepo(t, s, "calc", map[string]string{"a": strings.Repeat("b", 5000)})

	s.AddFault(gitserver.Fault{Refs: true, Times: 1, Delay: time.Minute, Status: 503, RetryAfter: 9, Message: "down for a while"})
	resp, err := web.Get(url + "/calc.git/info/refs?service=git-upload-pack")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "9" || string(b) != "down for a while\n" || !cmp.Equal(waited, []time.Duration{time.Minute}) {
		t.Errorf("status %d, %s, waited %v", resp.StatusCode, b, waited)
	}
	dir := clone(t, url+repo.Path()) // the fault was for one request

	s.AddFault(gitserver.Fault{Service: gitserver.UploadPack, CutAfter: 60, Times: 1})
	if out, err := git(t, ".", "clone", "--quiet", url+repo.Path(), filepath.Join(t.TempDir(), "x")); err == nil {
		t.Errorf("a cut clone worked: %s", out)
	}

	// The push arrives, the answer does not.
	id := commit(t, dir, "c", "d")
	s.AddFault(gitserver.Fault{Service: gitserver.ReceivePack, DropAnswer: true})
	if out, err := git(t, dir, "push", "--quiet", "origin", "HEAD"); err == nil {
		t.Errorf("a push without an answer worked: %s", out)
	}
	if head, err := repo.Head(t.Context(), "main"); err != nil || head != id {
		t.Errorf("head %q, %v; want %s", head, err, id)
	}
	s.ClearFaults()
	must(t, dir, "push", "--quiet", "origin", "HEAD")
	// The client's HTTP library may send a request again whose answer was lost.
	if c := s.Counts(); c.Faults < 3 || c.Faults > 4 {
		t.Errorf("counts %+v", c)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s, url := start(t, gitserver.Options{})
	newRepo(t, s, "calc", map[string]string{"a": "b"})
	tests := []struct {
		name, method, path, contentType, encoding, body string
		want                                            int
	}{
		{"unknown repository", "GET", "/other.git/info/refs?service=git-upload-pack", "", "", "", 404},
		{"out of the folder", "GET", "/../calc.git/info/refs?service=git-upload-pack", "", "", "", 404},
		{"hidden way out", "GET", "/a/..%2f..%2fcalc.git/info/refs?service=git-upload-pack", "", "", "", 404},
		{"inside the repository", "GET", "/calc.git/config", "", "", "", 404},
		{"dumb protocol", "GET", "/calc.git/info/refs", "", "", "", 403},
		{"unknown service", "GET", "/calc.git/info/refs?service=git-upload-archive", "", "", "", 404},
		{"wrong method", "POST", "/calc.git/info/refs?service=git-upload-pack", "", "", "", 405},
		{"wrong type", "POST", "/calc.git/git-upload-pack", "text/plain", "", "0000", 415},
		{"not gzip", "POST", "/calc.git/git-upload-pack", "application/x-git-upload-pack-request", "gzip", "plain", 400},
	}
	for _, tt := range tests {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, url, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Opaque = strings.Replace(url, "http:", "", 1) + tt.path // as written, not cleaned
		r.Header.Set("Content-Type", tt.contentType)
		if tt.encoding != "" {
			r.Header.Set("Content-Encoding", tt.encoding)
		}
		resp, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tt.want || len(b) == 0 {
			t.Errorf("%s: status %d, want %d: %s", tt.name, resp.StatusCode, tt.want, b)
		}
	}
	for _, name := range []string{"../x", "a/../../b", "", "/abs", "a//b", ".git", "-flag"} {
		if _, err := s.NewRepo(t.Context(), name, nil); err == nil {
			t.Errorf("made a repository %q", name)
		}
	}
	if _, err := s.NewRepo(t.Context(), "calc", nil); err == nil {
		t.Error("made calc twice")
	}
}

func TestGzipRequest(t *testing.T) {
	t.Parallel()
	s, url := start(t, gitserver.Options{})
	repo := newRepo(t, s, "calc", map[string]string{"a": "b"})
	head, err := repo.Head(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	want := "want " + head + " no-progress\n"
	fmt.Fprintf(z, "%04x%s00000009done\n", len(want)+4, want)
	_ = z.Close()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/calc/git-upload-pack", &b)
	r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	r.Header.Set("Content-Encoding", "gzip")
	resp, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, _ := io.ReadAll(resp.Body)
	if !bytes.HasPrefix(got, []byte("0008NAK\nPACK")) {
		t.Errorf("answer %q", got)
	}
}
