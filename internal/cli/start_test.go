package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/cli"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/server"
)

// home is a state folder whose servers are processes of this test's binary.
type home struct {
	t   *testing.T
	dir string
	exe string
}

func newHome(t *testing.T, kind string) *home {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &home{t: t, dir: t.TempDir()}
	// The started process has this process' environment; a script sets what it is to be.
	h.exe = filepath.Join(t.TempDir(), "hearth")
	h.write(h.exe, "#!/bin/sh\nexport CLI_TEST_SERVER="+kind+" CLI_TEST_IDLE_EXIT=30m0s\n[ -z \"$HEARTH_IDLE_EXIT\" ] || CLI_TEST_IDLE_EXIT=$HEARTH_IDLE_EXIT\nexec '"+exe+"' \"$@\"\n", 0o755)
	t.Cleanup(func() {
		if _, _, status := h.run(nil, "stop"); status != 0 {
			t.Errorf("the server does not end: %d", status)
		}
	})
	return h
}

func (h *home) write(path, text string, mode os.FileMode) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		h.t.Fatal(err)
	}
}

// run runs a command with an environment that has no server elsewhere.
func (h *home) run(env map[string]string, args ...string) (out, errs string, status int) {
	var o, e buffer
	status = cli.Main(context.WithoutCancel(h.t.Context()), args, cli.Env{
		Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Executable: h.exe, Holder: server.Holder,
		Getenv: func(k string) string {
			if k == "HEARTH_STATE_DIR" {
				return h.dir
			}
			return env[k]
		},
	})
	return o.String(), e.String(), status
}

func (h *home) holder() int {
	h.t.Helper()
	pid, err := server.Holder(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	return pid
}

// stranger listens where a server was, and counts what it should not get.
func stranger(t *testing.T) (s *httptest.Server, requests, tokens *atomic.Int64) {
	t.Helper()
	requests, tokens = new(atomic.Int64), new(atomic.Int64)
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Header.Get("Authorization") != "" {
			tokens.Add(1)
		}
		_, _ = w.Write([]byte(`{"ready":true,"checks":[],"items":[]}`))
	}))
	t.Cleanup(s.Close)
	return s, requests, tokens
}

func TestServerIsStartedInTheBackground(t *testing.T) {
	t.Parallel()
	h := newHome(t, "ok")
	// What a dead server left must not be in the way, nor be believed by whoever listens there.
	s, requests, tokens := stranger(t)
	s.Start()
	if err := config.WriteToken(filepath.Join(h.dir, "owner-token"), "own"); err != nil {
		t.Fatal(err)
	}
	if err := config.WriteServerFile(h.dir, config.ServerFile{Address: s.URL, PID: os.Getpid()}); err != nil {
		t.Fatal(err)
	}
	_, errs, status := h.run(nil, "list")
	if status != 0 || !strings.Contains(errs, "Started a server in the background") {
		t.Fatalf("status %d: %s", status, errs)
	}
	if requests.Load() != 0 || tokens.Load() != 0 {
		t.Errorf("a stranger got %d requests, %d with the token", requests.Load(), tokens.Load())
	}
	pid := h.holder()
	if sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0); errno != 0 || int(sid) != pid {
		t.Errorf("the server is in session %d, not its own (%d)", sid, pid)
	}
	if _, errs, status := h.run(nil, "list"); status != 0 || strings.Contains(errs, "Started") || h.holder() != pid {
		t.Errorf("a second command: status %d: %s", status, errs)
	}
}

func TestServerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	h := newHome(t, "broken")
	_, errs, status := h.run(nil, "run", "x")
	if status != 8 {
		t.Errorf("status %d", status)
	}
	for _, has := range []string{"did not become ready: the database is damaged", "server.log", "SERVER_UNAVAILABLE"} {
		if !strings.Contains(errs, has) {
			t.Errorf("%q lacks %q", errs, has)
		}
	}
}

// TestManyStartAtOnce: one starts a server, the others wait for it, whatever it takes.
func TestManyStartAtOnce(t *testing.T) {
	t.Parallel()
	h := newHome(t, "ok")
	h.write(filepath.Join(h.dir, "slow"), "", 0o600)
	var g sync.WaitGroup
	var started atomic.Int64
	for range 4 {
		g.Go(func() {
			_, errs, status := h.run(nil, "list")
			if status != 0 {
				t.Errorf("status %d: %s", status, errs)
			}
			if strings.Contains(errs, "Started a server") {
				started.Add(1)
			}
		})
	}
	g.Wait()
	log, err := os.ReadFile(filepath.Join(h.dir, "server.log"))
	if started.Load() != 1 || err != nil || strings.Contains(string(log), "SERVER_RUNNING") {
		t.Errorf("%d started one; log %q, %v", started.Load(), log, err)
	}
}

// TestServerThatIsStillStarting: somebody has the folder and tells the address later.
func TestServerThatIsStillStarting(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.w.Create("kept")
	s.env["HEARTH_SERVER"] = ""
	s.pid.Store(int64(os.Getpid()))
	s.startServer = func(context.Context, config.Config) (bool, error) {
		t.Error("a second server was started")
		return false, nil
	}
	defer time.AfterFunc(300*time.Millisecond, func() {
		if err := config.WriteServerFile(s.env["HEARTH_STATE_DIR"], config.ServerFile{Address: s.w.URL, PID: os.Getpid()}); err != nil {
			t.Error(err)
		}
	}).Stop()
	if got := s.run("list"); got != 0 || !strings.Contains(s.out.String(), "kept") {
		t.Errorf("list: %d %s", got, s.err.String())
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	h := newHome(t, "ok")
	if _, errs, status := h.run(nil, "stop"); status != 0 || !strings.Contains(errs, "No server runs for "+h.dir) {
		t.Errorf("without a server: %d %s", status, errs)
	}
	if _, errs, status := h.run(nil, "list"); status != 0 {
		t.Fatalf("list: %d %s", status, errs)
	}
	pid := h.holder()
	out, errs, status := h.run(nil, "stop")
	if status != 0 || !strings.Contains(out, fmt.Sprintf("The server of %s (process %d) has ended.", h.dir, pid)) || h.holder() != 0 {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	if _, errs, status := h.run(map[string]string{"HEARTH_SERVER": "http://127.0.0.1:1"}, "stop"); status != 2 || !strings.Contains(errs, "elsewhere") {
		t.Errorf("a server elsewhere: %d %s", status, errs)
	}
}

// TestOtherSettings: a server in the background is started anew for a command with another
// environment, unless it is at work, and not for one that only reads.
func TestOtherSettings(t *testing.T) {
	t.Parallel()
	h := newHome(t, "ok")
	const secret = "sk-ant-0123456789-very-secret"
	with := func(kv ...string) map[string]string {
		m := map[string]string{"ANTHROPIC_API_KEY": secret}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	if _, errs, status := h.run(with(), "list"); status != 0 {
		t.Fatalf("list: %d %s", status, errs)
	}
	file := filepath.Join(h.dir, "background.json")
	raw, err := os.ReadFile(file)
	st, serr := os.Stat(file)
	if err != nil || serr != nil || strings.Contains(string(raw), secret) || st.Mode().Perm() != 0o600 {
		t.Fatalf("the kept settings, mode %v: %s, %v", st.Mode(), raw, err)
	}
	pid := h.holder()
	for _, c := range []struct {
		name  string
		env   map[string]string
		args  []string
		busy  bool
		names string // of what is told; empty: nothing
		anew  bool
	}{
		{name: "the same", env: with(), args: []string{"deliver"}},
		{name: "the default in words", env: with("HEARTH_SANDBOX", "gvisor"), args: []string{"deliver"}},
		{name: "a shell without the key", env: map[string]string{}, args: []string{"deliver"}},
		{name: "a command that reads", env: with("ANTHROPIC_BASE_URL", "http://127.0.0.1:1"), args: []string{"list"}},
		{name: "at work", env: with("ANTHROPIC_BASE_URL", "http://127.0.0.1:1"), args: []string{"deliver"}, busy: true, names: "not in force now: ANTHROPIC_BASE_URL."},
		{name: "idle", env: with("ANTHROPIC_BASE_URL", "http://127.0.0.1:1", "HEARTH_MAX_SANDBOXES", "3"), args: []string{"deliver"}, names: "other settings: ANTHROPIC_BASE_URL, HEARTH_MAX_SANDBOXES", anew: true},
		{name: "those again", env: with("ANTHROPIC_BASE_URL", "http://127.0.0.1:1", "HEARTH_MAX_SANDBOXES", "3"), args: []string{"deliver"}},
		{name: "another key", env: with("ANTHROPIC_API_KEY", "other", "ANTHROPIC_BASE_URL", "http://127.0.0.1:1", "HEARTH_MAX_SANDBOXES", "3"), args: []string{"deliver"}, names: "other settings: ANTHROPIC_API_KEY", anew: true},
	} {
		busy := filepath.Join(h.dir, "busy")
		if c.busy {
			h.write(busy, "", 0o600)
		}
		_, errs, _ := h.run(c.env, c.args...)
		if told := strings.Contains(errs, "settings"); told != (c.names != "") || !strings.Contains(errs, c.names) {
			t.Errorf("%s: %s", c.name, errs)
		}
		now := h.holder()
		if (now != pid) != c.anew || now == 0 {
			t.Errorf("%s: process %d, before %d", c.name, now, pid)
		}
		pid = now
		if c.busy {
			if err := os.Remove(busy); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestIdleExitIsThePersons(t *testing.T) {
	t.Setenv("HEARTH_IDLE_EXIT", "2h0m0s") // of the started process
	h := newHome(t, "ok")
	if _, errs, status := h.run(map[string]string{"HEARTH_IDLE_EXIT": "2h"}, "list"); status != 0 {
		t.Errorf("status %d: %s", status, errs)
	}
}

func TestTokenIsGone(t *testing.T) {
	t.Parallel()
	h := newHome(t, "ok")
	if _, errs, status := h.run(nil, "list"); status != 0 {
		t.Fatalf("list: %d %s", status, errs)
	}
	if err := os.Remove(filepath.Join(h.dir, "owner-token")); err != nil {
		t.Fatal(err)
	}
	_, errs, status := h.run(nil, "list")
	if status != 3 || !strings.Contains(errs, "owner-token is gone") || !strings.Contains(errs, "hearth stop") || strings.Contains(errs, "become ready") {
		t.Errorf("status %d: %s", status, errs)
	}
	h.run(nil, "stop")
	if _, errs, status := h.run(nil, "list"); status != 0 {
		t.Errorf("after a new start: %d %s", status, errs)
	}
}

func TestFolderOfSomebodyElse(t *testing.T) {
	t.Parallel()
	var out, errs buffer
	theirs := t.TempDir()
	got := cli.Main(t.Context(), []string{"list"}, cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return map[string]string{"HEARTH_STATE_DIR": theirs}[k] },
		Holder: func(dir string) (int, error) {
			return 0, fmt.Errorf("open lock: %w", &fs.PathError{Op: "open", Path: dir, Err: fs.ErrPermission})
		},
	})
	if got != 3 || !strings.Contains(errs.String(), theirs+" cannot be used by this user") || !strings.Contains(errs.String(), "--server") {
		t.Errorf("status %d: %s", got, errs.String())
	}
}

// TestServerThatIsNotReady: what needs no sandbox works with a server whose sandboxes do not.
func TestServerThatIsNotReady(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.w.Create("kept")
	s.w.Unready.Store(true)
	s.env["HEARTH_SERVER"] = ""
	s.pid.Store(int64(os.Getpid()))
	s.startServer = func(context.Context, config.Config) (bool, error) {
		t.Error("a second server was started")
		return false, nil
	}
	if err := config.WriteServerFile(s.env["HEARTH_STATE_DIR"], config.ServerFile{Address: s.w.URL, PID: os.Getpid()}); err != nil {
		t.Fatal(err)
	}
	if got := s.run("list"); got != 0 || !strings.Contains(s.out.String(), "kept") {
		t.Errorf("list: %d %s", got, s.err.String())
	}
	if got := s.run("run", "--limit", "1s", "x"); got != 9 || !strings.Contains(s.err.String(), "not ready within 1s") {
		t.Errorf("run: %d %s", got, s.err.String())
	}
}

// TestWatcherFindsTheServerAgain: the server is killed, a stranger takes its port, and a new
// server comes at another one.
func TestWatcherFindsTheServerAgain(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["HEARTH_SERVER"] = ""
	var first atomic.Pointer[httptest.Server]
	first.Store(httptest.NewServer(s.w.Server.Config.Handler))
	place := func(address string) {
		if err := config.WriteServerFile(s.env["HEARTH_STATE_DIR"], config.ServerFile{Address: address, PID: os.Getpid()}); err != nil {
			t.Error(err)
		}
	}
	place(first.Load().URL)
	s.pid.Store(int64(os.Getpid()))
	id, status := s.start("run", "--json=false", "x")
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("a", "before ")...)
	s.until("the text", func() bool { return strings.Contains(s.out.String(), "before") })

	s.pid.Store(0)
	address := first.Load().Listener.Addr().String()
	first.Load().CloseClientConnections()
	first.Load().Close()
	other, requests, tokens := stranger(t)
	if l, err := listen(address); err != nil {
		t.Fatal(err)
	} else {
		_ = other.Listener.Close() // the one that it came with
		other.Listener = l
	}
	other.Start()
	s.until("the word of it", func() bool { return strings.Contains(s.out.String(), "the connection broke") })
	select { // some attempts more
	case <-time.After(1500 * time.Millisecond):
	case <-t.Context().Done():
	}
	if requests.Load() != 0 || tokens.Load() != 0 {
		t.Errorf("a stranger got %d requests, %d with the token", requests.Load(), tokens.Load())
	}
	place(s.w.URL)
	s.pid.Store(int64(os.Getpid()))
	s.w.Say(id, resttest.Text("b", "after")...)
	s.w.End(id)
	if got := <-status; got != 0 {
		t.Errorf("status %d: %s", got, s.err.String())
	}
	out := s.out.String()
	if n := strings.Count(out, "the connection broke"); n != 1 || !strings.Contains(out, "after") || strings.Count(out, "before") != 1 {
		t.Errorf("told %d times: %s", n, out)
	}
}

func TestWatcherThatGivesUp(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.giveUp = 300 * time.Millisecond
	proxy := httptest.NewServer(s.w.Server.Config.Handler)
	s.env["HEARTH_SERVER"] = proxy.URL
	id, status := s.start("run", "--json=false", "x")
	s.w.Begin(id)
	s.until("the conversation", func() bool { return strings.Contains(s.out.String(), "gvisor") })
	proxy.CloseClientConnections()
	proxy.Close()
	if got := <-status; got != 8 || !strings.Contains(s.err.String(), "hearth attach "+string(id)) || strings.Count(s.out.String(), "the connection broke") != 1 {
		t.Errorf("status %d: %s%s", got, s.out.String(), s.err.String())
	}
}

// TestVariablesAreThoseOfTheServer compares what is looked at with what docs/config.md lists.
func TestVariablesAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	h := newHome(t, "ok")
	if _, errs, status := h.run(nil, "list"); status != 0 {
		t.Fatalf("list: %d %s", status, errs)
	}
	var kept struct{ Hash map[string]string }
	raw, err := os.ReadFile(filepath.Join(h.dir, "background.json"))
	if err == nil {
		err = json.Unmarshal(raw, &kept)
	}
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, m := range regexp.MustCompile("`([A-Z][A-Z_]+[A-Z])`").FindAllStringSubmatch(config.Markdown(), -1) {
		switch _, ok := kept.Hash[m[1]]; {
		case ok, m[1] == "HEARTH_STATE_DIR", m[1] == "HEARTH_LOG_LEVEL", m[1] == "HEARTH_LOG_FORMAT":
		default:
			missing = append(missing, m[1])
		}
	}
	if d := cmp.Diff([]string(nil), missing); d != "" {
		t.Error(d)
	}
}

func TestPathsMayBeRelative(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("creds", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		args []string
	}{
		{args: []string{"serve", "--state-dir", "state", "--git-credentials", "creds"}},
		{env: map[string]string{"HEARTH_STATE_DIR": "state", "HEARTH_GIT_CREDENTIALS": "./creds"}, args: []string{"serve"}},
	} {
		var out, errs buffer
		var got config.Config
		status := cli.Main(t.Context(), c.args, cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return c.env[k] },
			Serve: func(_ context.Context, c config.Config) error { got = c; return nil },
		})
		if status != 0 || got.GitCredentials != filepath.Join(dir, "creds") || got.StateDir != filepath.Join(dir, "state") {
			t.Errorf("%v: status %d: %q, %q; %s", c.args, status, got.GitCredentials, got.StateDir, errs.String())
		}
	}
}
