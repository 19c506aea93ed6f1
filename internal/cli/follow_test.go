package cli_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

// three brings a session through three turns, each with another end. next is
// called when a turn has ended.
func three(s *shell, id session.ID, next func(n int)) {
	s.t.Helper()
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("a", "the first")...)
	s.w.Prompt(id, "two")
	s.w.End(id)
	next(1)
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("b", "the second")...)
	s.w.EndWith(id, "failed", fault.AgentExited, session.Delivery{State: session.DeliveryHeld})
	s.w.Prompt(id, "three")
	next(2)
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("c", "the third")...)
	s.w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.PushRefused, Message: "The remote refused the push: no."})
}

func TestAttachShowsTheEndOfEveryTurn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("one")
	s.w.Prompt(id, "keeps the stream open")
	s.w.Begin(id)
	status := make(chan int, 1)
	go func() { status <- s.run("attach", "--json=false", string(id)) }()
	s.until("the prompt", func() bool { return strings.Contains(s.out.String(), "› one") })
	s.w.EndWith(id, "end_turn", "", session.Delivery{})
	s.until("the first end, while the next turn waits", func() bool {
		return regexp.MustCompile(`✓ Completed in .* s\n  Branch +\S+ at 0{39}1, as read back`).MatchString(s.out.String())
	})
	if strings.Contains(s.out.String(), "Next ") {
		t.Errorf("what to try next is shown while the session goes on: %s", s.out.String())
	}
	s.w.Begin(id)
	s.w.End(id)
	if got := <-status; got != 0 {
		t.Errorf("status %d, %s", got, s.err.String())
	}
	if n := strings.Count(s.out.String(), "✓ Completed"); n != 2 {
		t.Errorf("%d ends of 2 turns: %s", n, s.out.String())
	}
}

func TestReplayShowsTheEndOfEveryTurn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("one")
	three(s, id, func(int) {})
	if got := s.run("attach", "--json=false", string(id)); got != 10 {
		t.Errorf("status %d, %s", got, s.err.String())
	}
	golden(t, "attach-turns", regexp.MustCompile(`hearth/task-\S+?([ :]|$)`).ReplaceAllString(s.out.String(), "hearth/task$1"))

	s.out = buffer{}
	if got := s.run("attach", "--json", string(id)); got != 10 {
		t.Errorf("status %d, %s", got, s.err.String())
	}
	var ends []string
	for _, l := range strings.Split(strings.TrimSpace(s.out.String()), "\n") {
		var e struct {
			Event string
			Turn  json.RawMessage
			Part  struct{ Type string }
		}
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Part.Type == "finish":
			ends = append(ends, "finish")
		case e.Event == "turn":
			var turn struct{ State, Code, Commit string }
			if err := json.Unmarshal(e.Turn, &turn); err != nil || turn.Commit == "" {
				t.Errorf("%v: %s", err, l)
			}
			ends = append(ends, turn.State+" "+turn.Code)
		}
	}
	if d := cmp.Diff([]string{"finish", "completed ", "finish", "failed AGENT_EXITED", "finish", "completed "}, ends); d != "" {
		t.Error(d)
	}
}

// TestEndsAreShownWithoutTheirRows: the message itself tells how it ended where the
// server cannot be asked.
func TestEndsAreShownWithoutTheirRows(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("one")
	three(s, id, func(int) {})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/turns") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		s.w.Server.Config.Handler.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	s.env["HEARTH_SERVER"] = proxy.URL
	if got := s.run("attach", "--json=false", string(id)); got != 8 {
		t.Errorf("status %d, %s", got, s.err.String())
	}
	for _, has := range []string{"✓ Completed", "✗ Failed", "AGENT_EXITED"} {
		if !strings.Contains(s.out.String(), has) {
			t.Errorf("lacks %q: %s", has, s.out.String())
		}
	}
}

func TestSlowStartIsShown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		terminal bool
		fails    bool
		want     string // a pattern
	}{
		{name: "lines", want: `(?s)\n  … Starting the sandbox\n  … Running the repository's setup commands\n  ✓ The sandbox is ready [\d.]+ s\n.*working\n.*✓ Completed`},
		{name: "a line that is written over", terminal: true, want: `(?s)\n  … Starting the sandbox [\d.]+ s(\r\x1b\[K  … Starting the sandbox [\d.]+ s)*(\r\x1b\[K  … Running the repository's setup commands [\d.]+ s)+\r\x1b\[K  ✓ The sandbox is ready [\d.]+ s\n.*✓ Completed`},
		{name: "a setup that fails", fails: true, want: `(?s)\n  … Running the repository's setup commands\n  ✗ The sandbox did not become ready [\d.]+ s\n.*✗ Failed in [\d.]+ s: The command failed.\n  npm: not found \(SETUP_FAILED\)`},
		{name: "a setup that fails on a terminal", terminal: true, fails: true, want: `(?s)\r\x1b\[K  ✗ The sandbox did not become ready [\d.]+ s\n.*✗ Failed in`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.slow, s.terminal = 5*time.Millisecond, c.terminal
			s.env["NO_COLOR"] = "1"
			step := operation.StepSandbox
			s.w.Step.Store(&step)
			id, status := s.start("run", "--json=false", "--repo", "https://git.example.org/a.git", "x")
			s.until("the start", func() bool { return strings.Contains(s.out.String(), "… Starting the sandbox") })
			setup := operation.StepSetup
			s.w.Step.Store(&setup)
			s.until("the setup", func() bool { return strings.Count(s.out.String(), "… Running the repository's setup commands") > 0 })
			want := 0
			if c.fails {
				s.w.Apply(id, session.SandboxFailed{Generation: 1, Code: fault.SetupFailed, Message: "The command failed.\nnpm: not found"})
				want = 8
			} else {
				s.w.Begin(id)
				s.w.Say(id, resttest.Text("a", "working")...)
				s.w.End(id)
			}
			if got := <-status; got != want {
				t.Errorf("status %d: %s", got, s.err.String())
			}
			if !regexp.MustCompile(c.want).MatchString(s.out.String()) {
				t.Errorf("got %q", s.out.String())
			}
		})
	}
}

func TestSlowStartInJSON(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.slow = 5 * time.Millisecond
	id, status := s.start("run", "x")
	s.until("the start", func() bool { return strings.Contains(s.out.String(), `"event":"start"`) })
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("a", "working")...)
	s.w.End(id)
	<-status
	var states []string
	for _, l := range strings.Split(strings.TrimSpace(s.out.String()), "\n") {
		var e struct{ Event, State, Turn string }
		if json.Unmarshal([]byte(l), &e) == nil && e.Event == "start" {
			states = append(states, e.State)
			if !strings.HasPrefix(e.Turn, "trn_") {
				t.Error(l)
			}
		}
	}
	if d := cmp.Diff([]string{"begun", "done"}, states); d != "" {
		t.Error(d)
	}
}

func TestFastStartIsNotShown(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id, status := s.start("run", "--json=false", "x")
	s.w.Begin(id)
	s.w.End(id)
	<-status
	if strings.Contains(s.out.String(), "sandbox is ready") || strings.Contains(s.out.String(), "Starting") {
		t.Error(s.out.String())
	}
}

func TestLimitStopsTheTurn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id, status := s.start("run", "--json=false", "--limit", "1s", "x")
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("a", "working")...)
	s.until("the stop", func() bool { return s.w.Get(id).Open.State == session.TurnStopping })
	s.w.EndWith(id, "cancelled", "", session.Delivery{})
	if got := <-status; got != 9 {
		t.Errorf("status %d: %s", got, s.err.String())
	}
	if !strings.Contains(s.err.String(), "1s have passed since the command began (--limit)") || !strings.Contains(s.out.String(), "Canceled") {
		t.Errorf("%s %s", s.out.String(), s.err.String())
	}
	if l := s.w.Get(id).Session.Limits.Total; l != time.Second {
		t.Errorf("the server's limit is %v", l)
	}
}

// TestLimitCountsTheStartOfTheServer: an hour of the person's time goes by while
// the server starts.
func TestLimitCountsTheStartOfTheServer(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["HEARTH_SERVER"] = ""
	var passed time.Duration
	var begun time.Time
	s.now = func() time.Time {
		if begun.IsZero() {
			begun = time.Now()
		}
		return time.Now().Add(passed)
	}
	s.slow = time.Hour
	s.serverStarts(func() { passed = time.Hour })
	id, status := s.start("run", "--json=false", "--limit", "1h", "x")
	s.until("the stop", func() bool {
		a := s.w.Get(id)
		return a.Open == nil || a.Open.State == session.TurnStopping
	})
	if a := s.w.Get(id); a.Open != nil {
		s.w.EndWith(id, "cancelled", "", session.Delivery{})
	}
	if got := <-status; got != 9 {
		t.Errorf("status %d: %s", got, s.err.String())
	}
}

// serverStarts makes the world's server the one that is started for the state folder.
func (s *shell) serverStarts(meanwhile func()) {
	dir := s.env["HEARTH_STATE_DIR"]
	s.env["HEARTH_TOKEN"] = resttest.Token
	s.startServer = func(context.Context, config.Config) (bool, error) {
		meanwhile()
		s.pid.Store(int64(os.Getpid()))
		return true, config.WriteServerFile(dir, config.ServerFile{Address: s.w.URL, PID: os.Getpid()})
	}
}

func TestLimitIsOverBeforeTheServerIsReady(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["HEARTH_SERVER"] = ""
	s.startServer = func(context.Context, config.Config) (bool, error) { return true, nil } // and is never ready
	if got := s.run("run", "--limit", "1s", "x"); got != 9 {
		t.Errorf("status %d", got)
	}
	if !strings.Contains(s.err.String(), "The server was not ready within 1s (--limit). Nothing was begun.") {
		t.Error(s.err.String())
	}
}

func TestBundle(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "it's work.bundle")
	id := s.w.Create("x")
	if got := s.run("bundle", string(id), "-o", file); got != 5 || !strings.Contains(s.err.String(), "NOTHING_PACKED") {
		t.Errorf("before the first pack: %d %s", got, s.err.String())
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was made of nothing")
	}
	s.w.Begin(id)
	s.w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.PushRefused})
	s.err = buffer{}
	branch := s.w.Get(id).Session.Branch
	if got := s.run("bundle", string(id), "-o", file); got != 0 || !strings.Contains(s.err.String(), `git fetch '`+strings.ReplaceAll(file, "'", `'\''`)+`' `+branch+":"+branch) {
		t.Errorf("%d %s %s", got, s.out.String(), s.err.String())
	}
	if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), "# v2 git bundle\n"+string(id)) {
		t.Errorf("%v: %d bytes", err, len(b))
	}
	s.out = buffer{}
	if got := s.run("bundle", string(id), "-o", "-"); got != 0 || !strings.HasPrefix(s.out.String(), "# v2 git bundle\n") || len(s.out.String()) < 100<<10 {
		t.Errorf("standard output: %d, %d bytes", got, len(s.out.String()))
	}

	s.w.Cut.Store(true)
	s.err = buffer{}
	broken := filepath.Join(dir, "broken.bundle")
	if got := s.run("bundle", string(id), "-o", broken); got != 8 || !strings.Contains(s.err.String(), "broke off") {
		t.Errorf("broken off: %d %s", got, s.err.String())
	}
	if got := s.run("bundle", string(id), "-o", file); got != 8 {
		t.Errorf("broken off: %d", got)
	}
	if b, err := os.ReadFile(file); err != nil || len(b) < 100<<10 {
		t.Errorf("the good file was lost: %v, %d bytes", err, len(b))
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("left behind: %v %v", files, err)
	}
	s.w.Cut.Store(false)
	if got := s.run("bundle", string(id), "-o", filepath.Join(dir, "no", "such", "folder")); got != 1 || !strings.Contains(s.err.String(), "no such file or directory") {
		t.Errorf("no folder: %d %s", got, s.err.String())
	}
	s.terminal = true
	if got := s.run("bundle", string(id), "-o", "-"); got != 2 {
		t.Errorf("a bundle on a terminal: %d", got)
	}
}

// TestBundleNamesItsFile is not parallel: it changes the folder of the process.
func TestBundleNamesItsFile(t *testing.T) {
	s := newShell(t)
	a, err := s.w.Sessions.Create(t.Context(), s.w.Owner(), session.CreateInput{Repo: "https://git.example.org/a.git", Branch: "fix/login", Prompt: "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id := a.Aggregate.Session.ID
	s.w.Begin(id)
	s.w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.PushRefused})
	t.Chdir(t.TempDir())
	if got := s.run("bundle"); got != 0 || !strings.Contains(s.err.String(), "git fetch fix-login.bundle fix/login:fix/login") {
		t.Errorf("%d %s", got, s.err.String())
	}
	before, err := os.ReadFile("fix-login.bundle")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.run("bundle"); got != 2 || !strings.Contains(s.err.String(), "There is a file fix-login.bundle already") {
		t.Errorf("again: %d %s", got, s.err.String())
	}
	if after, err := os.ReadFile("fix-login.bundle"); err != nil || len(after) != len(before) {
		t.Error("it was written over")
	}
}
