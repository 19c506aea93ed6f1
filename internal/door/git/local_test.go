package git

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/delivery/forge/forgetest"
)

type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func gitIn(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Env = dir, forgetest.Env()
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func mustGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := gitIn(t, dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// packedWork is a bare repository with one branch, all in one pack, and a commit that no reference names.
func packedWork(t *testing.T, format string) (bare, tip, hidden string) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "src")
	bare = filepath.Join(t.TempDir(), "work.git")
	mustGit(t, "", "init", "-q", "--object-format="+format, "-b", "main", src)
	commit := func(text string) string {
		if err := os.WriteFile(filepath.Join(src, "a"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		mustGit(t, src, "add", "-A")
		mustGit(t, src, "commit", "-q", "-m", text)
		return mustGit(t, src, "rev-parse", "HEAD")
	}
	tip, hidden = commit("one"), commit("two")
	mustGit(t, "", "clone", "-q", "--bare", src, bare)
	mustGit(t, bare, "repack", "-adq")
	mustGit(t, bare, "update-ref", "refs/heads/main", tip)
	return bare, tip, hidden
}

func serveLocal(t *testing.T, dir string, limits localLimits) (url string, log *lockedLog) {
	t.Helper()
	log = &lockedLog{}
	h, err := newLocal(dir, slog.New(slog.NewTextHandler(log, nil)), limits)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.StripPrefix("/work.git", h))
	t.Cleanup(s.Close)
	return s.URL + "/work.git", log
}

var usual = localLimits{concurrent: 4, requestBytes: 8 << 20, duration: time.Minute}

func TestLocalFetch(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0", "1", "2"} {
		for _, format := range []string{"sha1", "sha256"} {
			t.Run("v"+v+" "+format, func(t *testing.T) {
				t.Parallel()
				bare, tip, hidden := packedWork(t, format)
				url, _ := serveLocal(t, bare, usual)
				dir := filepath.Join(t.TempDir(), "w")
				mustGit(t, "", "-c", "protocol.version="+v, "clone", "-q", url, dir)
				if got := mustGit(t, dir, "rev-parse", "HEAD"); got != tip {
					t.Errorf("the clone is at %s, not %s", got, tip)
				}
				mustGit(t, dir, "-c", "protocol.version="+v, "fetch", "-q", url, hidden)
				if got := mustGit(t, dir, "show", hidden+":a"); got != "two" {
					t.Errorf("fetched %q", got)
				}
				mustGit(t, dir, "fsck", "--strict")
			})
		}
	}
}

// A repository that is known only by its many commits is asked for in one large, packed request.
func TestLocalLargeRequest(t *testing.T) {
	t.Parallel()
	bare, _, hidden := packedWork(t, "sha1")
	url, _ := serveLocal(t, bare, usual)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	fmt.Fprintf(z, "0032want %s\n0000", hidden)
	for i := range 40_000 {
		fmt.Fprintf(z, "0032have %040x\n", i)
	}
	io.WriteString(z, "0009done\n")
	z.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/git-upload-pack", io.NopCloser(&b)) // chunked
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Encoding", "gzip")
	resp, err := web.Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || !bytes.HasPrefix(got, []byte("0008NAK\nPACK")) {
		t.Errorf("%s %.80q %v", resp.Status, got, err)
	}
}

func TestLocalRefuses(t *testing.T) {
	t.Parallel()
	bare, tip, _ := packedWork(t, "sha1")
	url, _ := serveLocal(t, bare, usual)
	dir := filepath.Join(t.TempDir(), "w")
	mustGit(t, "", "clone", "-q", url, dir)
	mustGit(t, dir, "commit", "-q", "--allow-empty", "-m", "x")
	const words = "remote: hearth: Packed work can be fetched here and nothing else."
	if out, err := gitIn(t, dir, "push", url, "HEAD:main"); err == nil || !strings.Contains(out, words) {
		t.Errorf("push: %v %s", err, out)
	}
	if out, err := gitIn(t, dir, "ls-remote", url+"/other"); err == nil || !strings.Contains(out, words) {
		t.Errorf("another repository: %v %s", err, out)
	}
	if got := mustGit(t, bare, "rev-parse", "main"); got != tip {
		t.Errorf("the branch is at %s", got)
	}
	gone, log := serveLocal(t, filepath.Join(t.TempDir(), "gone.git"), usual)
	if out, err := gitIn(t, dir, "ls-remote", gone); err == nil || !strings.Contains(out, "remote: hearth: The session's packed work could not be read.") {
		t.Errorf("no repository: %v %s", err, out)
	}
	if !strings.Contains(log.String(), "not appear to be a git repository") {
		t.Errorf("git's words are not in the log: %s", log)
	}
	tests := map[string]struct {
		method, path, body string
		status             int
		code               string
	}{
		"receive-pack":   {"POST", "/git-receive-pack", "0000", 403, "GIT_REPOSITORY_REFUSED"},
		"dumb":           {"GET", "/info/refs", "", 403, "GIT_REPOSITORY_REFUSED"},
		"file":           {"GET", "/HEAD", "", 403, "GIT_REPOSITORY_REFUSED"},
		"two services":   {"GET", "/info/refs?service=git-upload-pack&service=git-receive-pack", "", 403, "GIT_REPOSITORY_REFUSED"},
		"outside":        {"GET", "/../x/info/refs?service=git-upload-pack", "", 403, "GIT_REPOSITORY_REFUSED"},
		"nothing wanted": {"POST", "/git-upload-pack", "0000", 200, ""},
		"rubbish":        {"POST", "/git-upload-pack", "zzzz", 403, "REPOSITORY_UNREACHABLE"},
		"too large":      {"POST", "/git-upload-pack", strings.Repeat("x", 8<<20+1), 429, "DOOR_TOO_LARGE"},
	}
	for name, tt := range tests {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, url+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := web.Transport.RoundTrip(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		resp.Body.Close()
		if d := cmp.Diff([]any{tt.status, tt.code}, []any{resp.StatusCode, resp.Header.Get("Hearth-Code")}); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestLocalLimits(t *testing.T) {
	t.Parallel()
	bare, _, _ := packedWork(t, "sha1")
	url, _ := serveLocal(t, bare, localLimits{concurrent: 2, requestBytes: 1 << 20, duration: 2 * time.Second})
	begun := time.Now()
	var wg sync.WaitGroup
	var writers []*io.PipeWriter
	for range 2 { // that say nothing
		r, w := io.Pipe()
		writers = append(writers, w)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/git-upload-pack", r)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			resp, err := web.Transport.RoundTrip(req)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				t.Error("served")
			}
		})
	}
	busy := func() bool {
		out, err := gitIn(t, "", "ls-remote", url)
		return err != nil && strings.Contains(out, "remote: hearth: Too many git requests at once.")
	}
	for !busy() && time.Since(begun) < 10*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	wg.Wait()
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("the silent ones were cut after %v", d)
	}
	for _, w := range writers {
		w.Close()
	}
	mustGit(t, "", "ls-remote", url)
}
