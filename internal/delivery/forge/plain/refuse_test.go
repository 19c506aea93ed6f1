package plain_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/forge/forgetest"
	"github.com/hearthd/hearth/internal/delivery/forge/plain"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

func remote(t *testing.T, raw string) forge.Remote {
	t.Helper()
	r, err := forge.ParseRemote(raw, true)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestHostsThatAreNone(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html><body>Log in</body></html>")
	}))
	defer page.Close()
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = io.WriteString(w, "<html>")
	}))
	defer liar.Close()
	says := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = io.WriteString(w, "001bERR repository is moved")
	}))
	defer says.Close()
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = io.WriteString(w, "00ff")
	}))
	defer cut.Close()
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://new.test/acme/renamed.git/info/refs?service=git-upload-pack", http.StatusMovedPermanently)
	}))
	defer moved.Close()
	login := httptest.NewServer(http.RedirectHandler("https://sso.test/login", http.StatusFound))
	defer login.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := "http://" + closed.Addr().String()
	closed.Close()

	f := plain.New(plain.Config{})
	for _, c := range []struct {
		name, url string
		code      fault.Code
		words     []string
	}{
		{"web page", page.URL + "/r", fault.RepositoryUnreachable, []string{"not as a git repository"}},
		{"liar", liar.URL + "/r", fault.RepositoryUnreachable, []string{"not as a git repository"}},
		{"error in words", says.URL + "/r", fault.RepositoryUnreachable, []string{"says: repository is moved"}},
		{"cut", cut.URL + "/r", fault.ForgeUnavailable, []string{"broke off"}},
		{"moved", moved.URL + "/r", fault.RepositoryUnreachable, []string{"has moved to https://new.test/acme/renamed.git"}},
		{"login page", login.URL + "/r", fault.RepositoryUnreachable, []string{"redirects elsewhere (302)"}},
		{"unknown certificate", secure.URL + "/r", fault.RepositoryUnreachable, []string{"certificate", "nobody that this server trusts"}},
		{"no TLS there", strings.Replace(page.URL, "http:", "https:", 1) + "/r", fault.RepositoryUnreachable, []string{"does not speak TLS"}},
		{"nobody listens", refusing + "/r", fault.ForgeUnavailable, []string{"cannot be reached", "refused"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := f.Check(t.Context(), remote(t, c.url), forge.Credential{Username: "u", Password: "canary-0123456789"})
			if fault.CodeOf(err) != c.code {
				t.Fatalf("error is %v, want %s", err, c.code)
			}
			for _, w := range c.words {
				if !strings.Contains(fault.From(err).Sentence(), w) {
					t.Errorf("sentence %q does not say %q", fault.From(err).Sentence(), w)
				}
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

// TestOldHost has no protocol version 2.
func TestOldHost(t *testing.T) {
	t.Parallel()
	srv, err := gitserver.New(gitserver.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	repo, err := srv.NewRepo(t.Context(), "r", map[string]string{"a": "a"}, gitserver.WithBranch("trunk"))
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Git-Protocol")
		srv.ServeHTTP(w, r)
	}))
	defer web.Close()
	f := plain.New(plain.Config{})
	got, err := f.Check(t.Context(), remote(t, web.URL+repo.Path()), forge.Credential{})
	if err != nil {
		t.Fatal(err)
	}
	want := forge.Repository{DefaultBranch: "trunk", Format: "sha1", Heads: map[string]string{"trunk": forgetest.Refs(t, repo.Dir)["refs/heads/trunk"]}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("check (-want +got):\n%s", diff)
	}
}

func TestFolder(t *testing.T) {
	t.Parallel()
	srv, err := gitserver.New(gitserver.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	repo, err := srv.NewRepo(t.Context(), "r", map[string]string{"a": "a"})
	if err != nil {
		t.Fatal(err)
	}
	f := plain.New(plain.Config{Git: forgetest.Git(t)})
	r := remote(t, repo.Dir)
	got, err := f.Check(t.Context(), r, forge.Credential{})
	if err != nil || got.DefaultBranch != "main" || len(got.Heads) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	store := forgetest.Store(t, f)
	base, err := store.Prepare(t.Context(), delivery.PrepareRequest{Session: "s", Remote: r, Branch: "hearth/x"})
	if err != nil {
		t.Fatal(err)
	}
	w := forgetest.Clone(t, repo.Dir)
	w.Write("b", "b\n")
	head := w.Commit("b")
	if _, err := store.Take(t.Context(), delivery.TakeRequest{Session: "s", Turn: "t", Head: head, Base: base.OID, Pack: w.Pack(head, base.OID)}); err != nil {
		t.Fatal(err)
	}
	p, err := store.Publish(t.Context(), delivery.PublishRequest{Session: "s", Remote: r, Branch: "hearth/x", Candidate: head, Base: base.OID})
	if err != nil || p.Outcome != delivery.OutcomePushed || forgetest.Refs(t, repo.Dir)["refs/heads/hearth/x"] != head {
		t.Errorf("%+v, %v", p, err)
	}
	for path, code := range map[string]fault.Code{filepath.Join(repo.Dir, "gone"): fault.RepositoryUnreachable, t.TempDir(): fault.RepositoryUnreachable} {
		if _, err := f.Check(t.Context(), remote(t, path), forge.Credential{}); fault.CodeOf(err) != code {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := plain.New(plain.Config{}).Check(t.Context(), r, forge.Credential{}); fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("where folders are not allowed: %v", err)
	}
	if err := exec.CommandContext(t.Context(), "git", "--git-dir="+repo.Dir, "fsck", "--strict").Run(); err != nil {
		t.Errorf("fsck: %v", err)
	}
}
