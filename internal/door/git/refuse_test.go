package git_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/door/git"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

func TestForeignRepositories(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	if _, err := b.host.NewRepo(t.Context(), "acme/secret", files); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{
		"/host.test/acme/secret", "/host.test/acme/calc2", "/other.test/acme/calc", "/host.test/acme/calc/../secret", "/host.test/acme/calc%2f..%2fsecret", "/",
	} {
		b.refused("", []string{"remote: hearth: This sandbox may reach only its session's repository", "GIT_REPOSITORY_REFUSED"}, "ls-remote", b.base+p)
	}
	before := b.host.Counts()
	for _, p := range []string{"/info/refs", "/info/refs?service=git-upload-archive", "/info/refs?service=git-upload-pack&x=y", "/HEAD", "/objects/info/packs", "/../secret.git/info/refs?service=git-upload-pack", "/%2e%2e/secret/info/refs?service=git-upload-pack"} {
		resp, body := get(t, b.door+p)
		if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %s %s", p, resp.Status, body)
		}
	}
	if got := b.host.Counts(); got != before {
		t.Errorf("the host was asked: %+v, before %+v", got, before)
	}
}

// answered is an answer that was read whole.
type answered struct {
	Status     string
	StatusCode int
	Header     http.Header
}

func get(t *testing.T, rawURL string) (answered, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rawURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := web.Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp.Status, resp.StatusCode, resp.Header}, string(body)
}

func TestMayNotPush(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, func(c *git.Config) { c.MayPush = false })
	dir := b.clone()
	b.commit(dir, "c.txt", "c\n")
	b.refused(dir, []string{"remote: hearth: This session may not push."}, "push", "origin", "HEAD:refs/heads/"+branch)
}

func TestHostRefusesLogin(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	b.host.SetUsers(gitserver.User{Name: "someone", Password: "else"})
	b.refused("", []string{"remote: hearth: The git host does not accept Hearth's login for this repository (401)."}, "clone", b.door, t.TempDir())
	b.host.SetUsers(gitserver.User{Name: "hearth", Password: token})
	dir := b.clone()
	b.commit(dir, "c.txt", "c\n")
	b.refused(dir, []string{"The git host forbids this to Hearth's login (403). It says: User hearth may not push."}, "push", "origin", "HEAD:refs/heads/"+branch)
}

func TestClientHeadersStayInside(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	var seen http.Header
	spy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		w.Header().Set("Set-Cookie", "secret=1")
		w.Header().Set("X-Internal", "1")
	}))
	defer spy.Close()
	cfg := b.cfg
	cfg.Upstream = spy.URL + "/r.git"
	h, err := git.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Path+"/info/refs?service=git-upload-pack", nil)
	for _, k := range []string{"Authorization", "Cookie", "X-Forwarded-For", "User-Agent", "Referer"} {
		req.Header.Set(k, "mine")
	}
	req.Header.Set("Git-Protocol", "version=2")
	h.ServeHTTP(rec, req)
	want := http.Header{
		"Authorization": {"Basic aGVhcnRoOmRvb3ItY2FuYXJ5LTAxMjM0NTY3ODlhYmNkZWY="},
		"User-Agent":    {"git/2.0 (hearth)"}, "Git-Protocol": {"version=2"},
		"Accept-Encoding": {"gzip"}, // of Go's transport
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("headers at the host (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(http.Header{"Content-Type": {"application/x-git-upload-pack-advertisement"}}, rec.Header()); diff != "" {
		t.Errorf("headers inside (-want +got):\n%s", diff)
	}
}
