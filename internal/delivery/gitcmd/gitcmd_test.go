package gitcmd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/delivery/gitcmd"
)

func newGit(t *testing.T) *gitcmd.Git {
	t.Helper()
	g, err := gitcmd.New(gitcmd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestLoginIsNowhereElse looks at every process of a run while the host has been asked.
func TestLoginIsNowhereElse(t *testing.T) {
	t.Parallel()
	const password = " login-canary \\n %s 0123456789"
	var given []string
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, p, ok := r.BasicAuth()
		if !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		given = append(given, p)
		for _, file := range procFiles(t) {
			b, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(b), "login-canary") {
				t.Errorf("%s has the password", file)
			}
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer host.Close()
	_, _, err := newGit(t).Run(t.Context(), gitcmd.Run{
		Args: []string{"ls-remote", host.URL + "/r.git"}, Login: &gitcmd.Login{Username: "u", Password: password}, Timeout: time.Minute,
	})
	var e *gitcmd.Error
	if !errors.As(err, &e) || e.Exit != 128 || strings.Contains(err.Error(), "login-canary") {
		t.Errorf("error: %v", err)
	}
	if len(given) == 0 || given[0] != password {
		t.Errorf("the host got %q", given)
	}
}

// procFiles are arguments and environments of our descendants.
func procFiles(t *testing.T) []string {
	t.Helper()
	var out []string
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if filepath.Base(p) != strconv.Itoa(os.Getpid()) {
			out = append(out, p+"/cmdline", p+"/environ")
		}
	}
	return out
}

func TestNoLoginNoPrompt(t *testing.T) {
	t.Parallel()
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer host.Close()
	_, stderr, err := newGit(t).Run(t.Context(), gitcmd.Run{Args: []string{"ls-remote", host.URL + "/r.git"}, Timeout: time.Minute})
	if err == nil || !strings.Contains(stderr, "terminal prompts disabled") {
		t.Errorf("%v, %s", err, stderr)
	}
}

func TestProtocolsAndRedirects(t *testing.T) {
	t.Parallel()
	asked := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer other.Close()
	host := httptest.NewServer(http.RedirectHandler(other.URL+"/r.git/info/refs", http.StatusMovedPermanently))
	defer host.Close()
	for _, u := range []string{host.URL + "/r.git", "file:///tmp", "ext::sh -c id", "ssh://localhost/x", "git://localhost/x"} {
		if _, _, err := newGit(t).Run(t.Context(), gitcmd.Run{Args: []string{"ls-remote", u}, Timeout: time.Minute}); err == nil {
			t.Errorf("%s was taken", u)
		}
	}
	if asked {
		t.Error("a redirect was followed")
	}
}

func TestDeadlineKillsAll(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 10)
	release := make(chan struct{})
	host := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done(): // git-remote-http is gone
		}
	}))
	defer host.Close()
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends with the first request
		<-arrived
		cancel()
	}()
	_, _, err := newGit(t).Run(ctx, gitcmd.Run{Args: []string{"ls-remote", host.URL + "/r.git"}, Timeout: time.Minute})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	_, _, err = newGit(t).Run(t.Context(), gitcmd.Run{Args: []string{"ls-remote", host.URL + "/r.git"}, Timeout: 300 * time.Millisecond})
	var e *gitcmd.Error
	if !errors.As(err, &e) || !e.Timeout {
		t.Errorf("deadline: %v", err)
	}
	if _, _, err := newGit(t).Run(t.Context(), gitcmd.Run{Args: []string{"version"}}); err == nil {
		t.Error("a run without a deadline was made")
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	g := newGit(t)
	dir := filepath.Join(t.TempDir(), "r.git")
	if _, _, err := g.Run(t.Context(), gitcmd.Run{Args: []string{"init", "--quiet", "--bare", dir}, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	id, _, err := g.Run(t.Context(), gitcmd.Run{Dir: dir, Args: []string{"hash-object", "-w", "--stdin"}, Stdin: &zeros{left: gitcmd.MaxOutput + 1}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := g.Run(t.Context(), gitcmd.Run{Dir: dir, Args: []string{"cat-file", "blob", strings.TrimSpace(string(id))}, Timeout: time.Minute})
	var e *gitcmd.Error
	if !errors.As(err, &e) || !e.Overflow || len(out) > gitcmd.MaxOutput {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

type zeros struct{ left int }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), z.left)
	clear(p[:n])
	z.left -= n
	return n, nil
}
