// Package e2e drives the shipped binary as people do: a real server process on a
// state folder of its own, real agents in real sandboxes, a real git host and a
// scripted model on loopback. The files read by topic; this one holds the world
// that every test has, world_test.go judges what is left of it. The tests need
// HEARTH_BIN, HEARTH_TESTKIT and HEARTH_TEST_AGENTS, which `make test` sets.
package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
	"github.com/hearthd/hearth/internal/testkit/sample"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// needed returns what a variable names, or fails: a test that is skipped for want of
// its binary would look like one that passed.
func needed(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set. Run `make test`, or build with `make build agents` and set HEARTH_BIN, HEARTH_TESTKIT and HEARTH_TEST_AGENTS.", name)
	}
	if _, err := os.Stat(v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

var (
	scriptedOnce sync.Once
	scriptedDir  string
	errScripted  error
)

// scriptedAgents is an agents folder that holds the scripted agent only.
func scriptedAgents(t *testing.T) string {
	t.Helper()
	kit := needed(t, "HEARTH_TESTKIT")
	scriptedOnce.Do(func() {
		if scriptedDir, errScripted = os.MkdirTemp("", "hearth-e2e-agents-"); errScripted == nil {
			errScripted = installScripted(context.Background(), scriptedDir, kit)
		}
	})
	if errScripted != nil {
		t.Fatalf("install the scripted agent: %v", errScripted)
	}
	return scriptedDir
}

// installScripted puts a program into an agents folder as the agent "scripted".
func installScripted(ctx context.Context, dir, program string) error {
	p, err := agent.Lookup("scripted")
	if err != nil {
		return err
	}
	_, err = (&agent.Installer{Dir: dir, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}).Install(ctx, p, agent.InstallOptions{From: program})
	return err
}

func TestMain(m *testing.M) {
	code := m.Run()
	if scriptedDir != "" {
		_ = os.RemoveAll(scriptedDir)
	}
	os.Exit(code)
}

// world is what one test has: a server process, a model, and a git host with users.
type world struct {
	t        *testing.T
	o        options
	model    *scriptedmodel.Server
	modelURL string
	git      *gitserver.Server
	gitURL   string
	key      string // that the model takes; a canary
	password string // of the git user that may write; a canary
	dir      string // short, holds the state folder, the log and the credentials
	state    string
	address  string
	token    string
	c        *client.Client
	proc     *exec.Cmd
	exited   chan struct{} // closed when proc has ended
}

// options of a world.
type options struct {
	agents   string   // folder; empty: the scripted agent only
	env      []string // for the server, KEY=VALUE
	disk     string   // of a sandbox, such as 96MiB; empty: the default
	idle     string   // how long an unused sandbox is kept; empty: the default
	args     []string // further ones of the server
	wrap     []string // command that runs the server's; it must become it
	readOnly bool     // the server's git login may only read
	open     bool     // other users may pass through the world's folder
	noKey    bool     // the server has no key for any model
}

const deadline = 90 * time.Second // of whatever should come soon; two cores run two tests

func newWorld(t *testing.T, o options) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("not root: sandboxes run unprivileged")
	}
	needed(t, "HEARTH_BIN")
	if o.agents == "" {
		o.agents = scriptedAgents(t)
	}
	w := &world{t: t, o: o, key: "sk-canary-" + strings.ToLower(rand.Text()), password: "pw-canary-" + strings.ToLower(rand.Text())}
	dir, err := os.MkdirTemp("/tmp", "he") // short: sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	w.dir, w.state = dir, filepath.Join(dir, "s")
	if o.open {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // a test of what others can do
			t.Fatal(err)
		}
	}
	t.Cleanup(w.close)
	w.model = scriptedmodel.New(scriptedmodel.Options{Keys: []string{w.key}})
	m := httptest.NewServer(w.model)
	t.Cleanup(m.Close)
	w.modelURL = m.URL
	w.git, err = gitserver.New(gitserver.Options{Dir: filepath.Join(dir, "git"), Users: []gitserver.User{{Name: "writer", Password: w.password, Write: true}, {Name: "reader", Password: w.password + "-r"}}})
	if err != nil {
		t.Fatal(err)
	}
	g := httptest.NewServer(w.git)
	t.Cleanup(g.Close)
	w.gitURL = g.URL
	user, pass := "writer", w.password
	if o.readOnly {
		user, pass = "reader", w.password+"-r"
	}
	login := strings.Replace(g.URL, "http://", "http://"+user+":"+pass+"@", 1)
	if err := os.WriteFile(filepath.Join(dir, "git-credentials"), []byte(login+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

// in is the world for a subtest, which shares its server and does not end it.
func (w *world) in(t *testing.T) *world {
	c := *w
	c.t = t
	return &c
}

// start starts the server's process and waits until it answers. It is the only place that
// knows how a server is started.
func (w *world) start() {
	w.t.Helper()
	listen := strings.TrimPrefix(w.address, "http://")
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	args := []string{
		"serve", "--state-dir", w.state, "--agents-dir", w.o.agents, "--listen", listen, "--git-credentials", filepath.Join(w.dir, "git-credentials"),
		"--log-level", "debug",
	}
	if w.o.disk != "" {
		args = append(args, "--sandbox-disk", w.o.disk)
	}
	if w.o.idle != "" {
		args = append(args, "--sandbox-idle", w.o.idle)
	}
	argv := append(append(append([]string{}, w.o.wrap...), needed(w.t, "HEARTH_BIN")), append(args, w.o.args...)...)
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec // the binary under test
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}, w.o.env...)
	if !w.o.noKey {
		for _, p := range []string{"ANTHROPIC", "OPENAI", "GEMINI"} {
			cmd.Env = append(cmd.Env, p+"_API_KEY="+w.key)
		}
		cmd.Env = append(cmd.Env, "ANTHROPIC_BASE_URL="+w.modelURL, "OPENAI_BASE_URL="+w.modelURL+"/v1", "GOOGLE_GEMINI_BASE_URL="+w.modelURL)
	}
	log, err := os.OpenFile(w.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.proc, w.exited = cmd, make(chan struct{})
	exited := w.exited
	go func() { _ = cmd.Wait(); close(exited) }() // kill and stop wait for it
	w.until(30*time.Second, "the server to answer", func() (bool, string) {
		select {
		case <-exited:
			w.t.Fatalf("the server ended: %s\n%s", cmd.ProcessState, w.logTail())
		default:
		}
		raw, err := os.ReadFile(filepath.Join(w.state, "server.json"))
		if err != nil {
			return false, err.Error()
		}
		var running struct {
			Address string
			PID     int
		}
		if json.Unmarshal(raw, &running) != nil || running.PID != cmd.Process.Pid {
			return false, string(raw)
		}
		token, err := os.ReadFile(filepath.Join(w.state, "owner-token"))
		if err != nil {
			return false, err.Error()
		}
		w.address, w.token = running.Address, strings.TrimSpace(string(token))
		if w.c, err = client.New(w.address, w.token, nil); err != nil {
			w.t.Fatal(err)
		}
		if _, err := w.c.Version(w.t.Context()); err != nil {
			return false, err.Error()
		}
		return true, ""
	})
}

func (w *world) logFile() string { return filepath.Join(w.dir, "server.log") }

func (w *world) logTail() string {
	raw, err := os.ReadFile(w.logFile())
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.SplitSeq(string(raw), "\n") {
		if !strings.Contains(line, "level=DEBUG") {
			lines = append(lines, clip(line))
		}
	}
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// keepLog copies the whole log of a failed test into the folder HEARTH_TEST_KEEP, for
// those who look for its cause.
func (w *world) keepLog() {
	dir := os.Getenv("HEARTH_TEST_KEEP")
	if dir == "" || !w.t.Failed() {
		return
	}
	raw, err := os.ReadFile(w.logFile())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, strings.ReplaceAll(w.t.Name(), "/", "_")+"-"+filepath.Base(w.dir)+".log"), raw, 0o600)
	}
	if err != nil {
		w.t.Logf("keep the log: %v", err)
	}
}

// kill ends the server's process without a word.
func (w *world) kill() {
	w.t.Helper()
	if err := w.proc.Process.Kill(); err != nil {
		w.t.Fatalf("kill the server: %v", err)
	}
	<-w.exited
}

// stop ends the server as a supervisor does.
func (w *world) stop() {
	w.t.Helper()
	if err := w.proc.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Errorf("stop the server: %v", err)
	}
	select {
	case <-w.exited:
	case <-time.After(20 * time.Second):
		w.t.Errorf("the server did not end on SIGTERM")
		w.kill()
	}
}

// close deletes what the test left, judges the world, and ends the server.
func (w *world) close() {
	if w.c == nil { // it never answered
		if w.proc != nil {
			_ = w.proc.Process.Kill() // it may have ended
		}
		_ = os.RemoveAll(w.dir)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if w.t.Failed() {
		w.t.Logf("the end of the server's log:\n%s", w.logTail())
	}
	list, err := w.c.List(ctx, client.ListInput{})
	if err != nil {
		w.t.Errorf("list sessions at the end: %v", err)
	}
	for _, s := range list.Items {
		if _, err := w.c.Delete(ctx, s.ID, true); err != nil {
			w.t.Errorf("delete session %s at the end: %v", s.ID, err)
		}
	}
	w.poll(ctx, 60*time.Second, "all sessions to be deleted", func() (bool, string) {
		list, err := w.c.List(ctx, client.ListInput{})
		return err == nil && len(list.Items) == 0, fmt.Sprintf("%d sessions, %v", len(list.Items), err)
	})
	for _, s := range list.Items {
		w.goneEventually(ctx, s.ID)
	}
	w.stop()
	w.nothingLeft(ctx)
	w.keepLog() // before it goes
	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Errorf("remove the world: %v", err)
	}
}

// poll asks f until it says yes; on its deadline it fails the test with what f said last.
func (w *world) poll(ctx context.Context, d time.Duration, what string, f func() (bool, string)) bool {
	w.t.Helper()
	end := time.Now().Add(d)
	pause := 20 * time.Millisecond
	for {
		ok, last := f()
		if ok {
			return true
		}
		if time.Now().After(end) || ctx.Err() != nil {
			w.t.Errorf("waited %s for %s; at last: %s", d, what, last)
			return false
		}
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// until is poll that ends the test.
func (w *world) until(d time.Duration, what string, f func() (bool, string)) {
	w.t.Helper()
	if !w.poll(context.Background(), d, what, f) {
		w.t.FailNow()
	}
}

// repo makes a repository with the sample project and returns it with its URL.
// A name with an asterisk is made unique.
func (w *world) repo(name string, opts ...gitserver.RepoOption) (*gitserver.Repo, string) {
	w.t.Helper()
	name = strings.ReplaceAll(name, "*", strings.ToLower(rand.Text()))
	r, err := w.git.NewRepo(w.t.Context(), name, sample.Files(), opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	return r, w.gitURL + r.Path()
}

// create makes a session and returns it; refusals end the test.
func (w *world) create(in client.CreateInput) client.Accepted {
	w.t.Helper()
	if in.Agent == "" {
		in.Agent = "scripted"
	}
	a, err := w.c.Create(w.t.Context(), in)
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	return a
}

// prompt sends a further prompt.
func (w *world) prompt(id, text string) client.Accepted {
	w.t.Helper()
	a, err := w.c.Prompt(w.t.Context(), id, client.PromptInput{Prompt: text})
	if err != nil {
		w.t.Fatalf("prompt: %v", err)
	}
	return a
}

func (w *world) get(id string) client.Session {
	w.t.Helper()
	s, err := w.c.Get(w.t.Context(), id)
	if err != nil {
		w.t.Fatalf("get: %v", err)
	}
	return s
}

// ended waits until a turn has ended.
func (w *world) ended(id, turn string, d time.Duration) client.Turn {
	w.t.Helper()
	var out client.Turn
	w.until(d, "turn "+turn+" to end", func() (bool, string) {
		t, err := w.c.Turn(w.t.Context(), id, turn)
		if err != nil {
			return false, err.Error()
		}
		out = t
		return t.Ended(), t.State
	})
	return out
}

// state waits until a turn is in one of the states.
func (w *world) inState(id, turn string, d time.Duration, states ...string) client.Turn {
	w.t.Helper()
	var out client.Turn
	w.until(d, fmt.Sprintf("turn %s to be %v", turn, states), func() (bool, string) {
		t, err := w.c.Turn(w.t.Context(), id, turn)
		if err != nil {
			return false, err.Error()
		}
		out = t
		for _, s := range states {
			if t.State == s {
				return true, ""
			}
		}
		if t.Ended() {
			w.t.Fatalf("turn %s ended as %s (%s %s) instead of being %v", turn, t.State, t.Code, t.Message, states)
		}
		return false, t.State
	})
	return out
}

// wantTurn fails when a turn did not end so; the empty code is that of a plain end.
func (w *world) wantTurn(t client.Turn, state, code string) {
	w.t.Helper()
	if t.State != state || t.Code != code {
		w.t.Fatalf("turn %d ended as %s %q (%s), want %s %q", t.Number, t.State, t.Code, t.Message, state, code)
	}
	if code != "" && (t.Message == "" && code != "TURN_CANCELED" && code != "TURN_INTERRUPTED" || t.Remedy == "") {
		w.t.Errorf("turn %d, %s: message %q, remedy %q: a person is told too little", t.Number, code, t.Message, t.Remedy)
	}
}

// wantPushed fails when a turn's work is not at the git host.
func (w *world) wantPushed(r *gitserver.Repo, t client.Turn) {
	w.t.Helper()
	if t.Delivery == nil || t.Delivery.State != "pushed" {
		w.t.Fatalf("turn %d: delivery %+v, want pushed", t.Number, t.Delivery)
	}
	head, err := r.Head(w.t.Context(), t.Delivery.Branch)
	if err != nil || head != t.Delivery.Commit || t.Commit != "" && head != t.Commit {
		w.t.Fatalf("turn %d: the host has %s at %q (%v), the turn says %s, delivered %s", t.Number, t.Delivery.Branch, head, err, t.Commit, t.Delivery.Commit)
	}
}

func (w *world) file(r *gitserver.Repo, rev, path string) string {
	w.t.Helper()
	s, err := r.File(w.t.Context(), rev, path)
	if err != nil {
		w.t.Fatalf("read %s of %s: %v", path, rev, err)
	}
	return s
}

// delete deletes a session and waits until nothing is left of it.
func (w *world) delete(id string, force bool) {
	w.t.Helper()
	if _, err := w.c.Delete(w.t.Context(), id, force); err != nil {
		w.t.Fatalf("delete: %v", err)
	}
	w.until(30*time.Second, "the session to be gone", func() (bool, string) {
		_, err := w.c.Get(w.t.Context(), id)
		return client.CodeOf(err) == "SESSION_NOT_FOUND", fmt.Sprint(err)
	})
	w.goneEventually(w.t.Context(), id)
}

// raw sends a request as no client of ours would.
func (w *world) raw(method, path, body string, header ...string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.address+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := web.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, b.String()
}
