package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/cli"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/server"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/uistream"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestMain is also the server that the command line starts: a process of its own.
func TestMain(m *testing.M) {
	switch os.Getenv("CLI_TEST_SERVER") {
	case "":
		os.Exit(m.Run())
	case "broken":
		fmt.Println("the database is damaged")
		os.Exit(1)
	}
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Serve: serve}))
}

// serve has the folder as a real server has it. Files in the folder say what it is like:
// slow, busy.
func serve(ctx context.Context, c config.Config) error {
	if want := os.Getenv("CLI_TEST_IDLE_EXIT"); want != "" && c.IdleExit.String() != want {
		return fmt.Errorf("idle exit is %v", c.IdleExit)
	}
	has := func(name string) bool { _, err := os.Stat(filepath.Join(c.StateDir, name)); return err == nil }
	lock, err := server.Lock(c.StateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if has("slow") {
		select {
		case <-time.After(700 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/v1/agent-sessions", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer own" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.Contains(r.URL.Query().Get("phase"), "running") && has("busy") {
			_, _ = io.WriteString(w, `{"items":[{"id":"ses_busy","phase":"running"}]}`)
			return
		}
		_, _ = io.WriteString(w, `{"items":[]}`)
	})
	if _, err := os.Stat(c.TokenFile); err != nil {
		if err := config.WriteToken(c.TokenFile, "own"); err != nil {
			return err
		}
	}
	if err := config.WriteServerFile(c.StateDir, config.ServerFile{Address: "http://" + l.Addr().String(), PID: os.Getpid()}); err != nil {
		return err
	}
	s := &http.Server{Handler: mux}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	_ = s.Serve(l)
	return config.RemoveServerFile(c.StateDir, os.Getpid())
}

// listen takes an address that somebody has just left.
func listen(address string) (l net.Listener, err error) {
	for range 100 {
		if l, err = net.Listen("tcp", address); err == nil {
			return l, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, err
}

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// shell runs commands against a world.
type shell struct {
	t        *testing.T
	w        *resttest.World
	out, err buffer
	stdin    io.Reader
	terminal bool
	env      map[string]string
	signals  chan os.Signal
	slow     time.Duration // see cli.Env
	giveUp   time.Duration // the same
	now      func() time.Time
	keys     atomic.Int64
	pid      atomic.Int64 // who has the state folder

	startServer func(context.Context, config.Config) (bool, error)
}

func newShell(t *testing.T) *shell {
	t.Helper()
	w := resttest.New(t)
	return &shell{t: t, w: w, stdin: strings.NewReader(""), signals: make(chan os.Signal), slow: time.Hour, env: map[string]string{
		"HEARTH_SERVER": w.URL, "HEARTH_TOKEN": resttest.Token, "HEARTH_STATE_DIR": t.TempDir(),
	}}
}

func (s *shell) run(args ...string) int {
	return cli.Main(s.t.Context(), args, cli.Env{
		Stdin: s.stdin, Stdout: &s.out, Stderr: &s.err, Getenv: func(k string) string { return s.env[k] },
		IsTerminal: func(any) bool { return s.terminal },
		Interrupts: func() (<-chan os.Signal, func()) { return s.signals, func() {} },
		NewKey:     func() string { return fmt.Sprint("key-", s.t.Name(), s.keys.Add(1)) },
		Version:    client.Version{Version: "1.2.3"}, SlowStart: s.slow, GiveUp: s.giveUp, StartServer: s.startServer, Now: s.now,
		Holder: func(string) (int, error) { return int(s.pid.Load()), nil },
	})
}

// start runs a command beside the test; it waits for its session.
func (s *shell) start(args ...string) (session.ID, <-chan int) {
	s.t.Helper()
	status := make(chan int, 1)
	go func() { status <- s.run(args...) }()
	var id string
	s.until("a session", func() bool {
		id = regexp.MustCompile(`ses_\d+`).FindString(s.out.String())
		return id != ""
	})
	return session.ID(id), status
}

func (s *shell) until(what string, ok func() bool) {
	s.t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		select {
		case <-s.t.Context().Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.t.Fatalf("waited in vain for %s; stdout:\n%s\nstderr:\n%s", what, s.out.String(), s.err.String())
}

var durations = regexp.MustCompile(`\d+(\.\d)? s`)

func golden(t *testing.T, name, got string) {
	t.Helper()
	got = durations.ReplaceAllString(got, "N s")
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s: %s", name, d)
	}
}

// conversation is a turn with everything that is shown.
func conversation() []json.RawMessage {
	var out []json.RawMessage
	add := func(parts ...uistream.Part) {
		for _, p := range parts {
			out = append(out, p.Raw)
		}
	}
	at := func(ms int) uistream.Stamp { return uistream.At(time.UnixMilli(1_700_000_000_000 + int64(ms))) }
	plan := func(a, b string) uistream.Part {
		return uistream.Data{Name: uistream.DataPlan, ID: "plan", Data: uistream.ValueOf(map[string]any{"entries": []map[string]string{
			{"content": "Read the test", "status": a}, {"content": "Fix it", "status": b},
		}})}.Part()
	}
	add(uistream.StartStep{}.Part(),
		uistream.BlockStart{Kind: uistream.Reasoning, ID: "r"}.Part(), uistream.BlockDelta{Kind: uistream.Reasoning, ID: "r", Delta: "hmm"}.Part(), uistream.BlockEnd{Kind: uistream.Reasoning, ID: "r"}.Part(),
		plan("in_progress", "pending"),
		uistream.BlockStart{Kind: uistream.Text, ID: "a"}.Part(), uistream.BlockDelta{Kind: uistream.Text, ID: "a", Delta: "I look at "}.Part(), uistream.BlockDelta{Kind: uistream.Text, ID: "a", Delta: "the test.\nThen"}.Part(), uistream.BlockEnd{Kind: uistream.Text, ID: "a"}.Part(),
		uistream.ToolInputStart{ToolCallID: "1", ToolName: "read", Title: "Read login_test.go", Dynamic: true, At: at(0)}.Part(),
		uistream.ToolInputAvailable{ToolCallID: "1", ToolName: "read", Title: "Read login_test.go", Input: uistream.Value("{}"), Dynamic: true, At: at(0)}.Part(),
		uistream.ToolOutputAvailable{ToolCallID: "1", Output: uistream.Value(`{}`), Dynamic: true, EndAt: at(300)}.Part(),
		uistream.ToolInputAvailable{ToolCallID: "2", ToolName: "execute", Title: "go test ./...\nsecond line", Input: uistream.Value("{}"), Dynamic: true, At: at(1000)}.Part(),
		uistream.ToolOutputError{ToolCallID: "2", ErrorText: "exit status 1", Dynamic: true, EndAt: at(75_000)}.Part(),
		plan("completed", "in_progress"))
	return out
}

func TestRunGolden(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id, status := s.start("run", "--json=false", "--repo", "https://git.example.org/a.git", "--branch", "fix/login", "Fix the", "login test")
	s.w.Begin(id)
	s.w.Say(id, conversation()...)
	s.w.End(id)
	if got := <-status; got != 0 {
		t.Errorf("status %d, %s", got, s.err.String())
	}
	golden(t, "run", s.out.String())
	if s.err.String() != "" {
		t.Errorf("stderr: %s", s.err.String())
	}

	s.out = buffer{}
	if got := s.run("attach", "--json=false", string(id)); got != 0 {
		t.Errorf("status %d, %s", got, s.err.String())
	}
	golden(t, "attach", s.out.String())
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		outcome string
		code    fault.Code
		d       session.Delivery
		cancel  bool
		status  int
	}{
		{name: "completed", outcome: "end_turn"},
		{name: "refused", outcome: "refusal"},
		{name: "no-changes", outcome: "end_turn", d: session.Delivery{State: session.DeliveryNoChanges}},
		{name: "delivery-failed", outcome: "end_turn", d: session.Delivery{State: session.DeliveryFailed, Code: fault.BranchMoved}, status: 10},
		{name: "limit", outcome: "failed", code: fault.TurnLimit, status: 9},
		{name: "agent-exited", outcome: "failed", code: fault.AgentExited, status: 8},
		{name: "canceled", outcome: "cancelled", cancel: true, status: 130},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			id, status := s.start("run", "--json=false", "--repo", "https://git.example.org/a.git", "--branch", "fix/login", "x")
			s.w.Begin(id)
			s.w.Say(id, resttest.Text("a", "working")...)
			if c.cancel {
				if got := s.run("cancel", string(id)); got != 0 {
					t.Fatalf("cancel: %d %s", got, s.err.String())
				}
			}
			s.w.EndWith(id, c.outcome, c.code, c.d)
			if got := <-status; got != c.status {
				t.Errorf("status %d, want %d; stderr %s", got, c.status, s.err.String())
			}
			golden(t, "outcome-"+c.name, s.out.String())
		})
	}
}

func TestJSONOnAPipe(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.stdin = strings.NewReader("task from stdin\n")
	id, status := s.start("run", "-")
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("a", "x\u009b31m\u202e")...)
	s.w.End(id)
	if got := <-status; got != 0 {
		t.Fatalf("status %d, %s", got, s.err.String())
	}
	if out := s.out.String(); strings.ContainsAny(out, "\u009b\u202e") || !strings.Contains(out, `\u009b31m\u202e`) {
		t.Errorf("control characters are not escaped: %s", out)
	}
	var events []string
	var parts []string
	for _, l := range strings.Split(strings.TrimSpace(s.out.String()), "\n") {
		var e struct {
			Event, Cursor string
			ExitStatus    *int
			Session       struct{ Title string }
		}
		if err := json.Unmarshal([]byte(l), &e); err != nil {
			t.Fatalf("%v in %s", err, l)
		}
		if e.Event == "part" {
			parts = append(parts, e.Cursor)
			continue
		}
		if e.Event == "session" && e.Session.Title != "task from stdin" {
			t.Errorf("title %q", e.Session.Title)
		}
		if e.Event == "end" && (e.ExitStatus == nil || *e.ExitStatus != 0) {
			t.Errorf("end: %s", l)
		}
		events = append(events, e.Event)
	}
	if d := cmp.Diff([]string{"session", "connection", "end"}, events); d != "" {
		t.Error(d)
	}
	var want []string
	for _, p := range s.w.Transcript(id) {
		want = append(want, p.Cursor.String())
	}
	if d := cmp.Diff(want, parts); d != "" {
		t.Error(d)
	}
}

func TestPromptFollowsOnlyItsTurn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("one")
	s.w.Begin(id)
	status := make(chan int, 1)
	go func() { status <- s.run("prompt", "--json=false", string(id), "second") }()
	s.until("the queue", func() bool { return strings.Contains(s.err.String(), "number 1 in the queue") })
	s.w.Say(id, resttest.Text("a", "of the first turn")...)
	s.w.End(id)
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("b", "of the second turn")...)
	s.w.Prompt(id, "third")
	s.w.End(id)
	if got := <-status; got != 0 {
		t.Fatalf("status %d, %s", got, s.err.String())
	}
	out := s.out.String()
	if strings.Contains(out, "of the first turn") || !strings.Contains(out, "of the second turn") || !strings.Contains(out, "Completed") {
		t.Errorf("got %s", out)
	}
}

func TestNothingRawReachesATerminal(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u009b31m\rover\b\u202eabc"
	s := newShell(t)
	s.terminal = true
	s.env["NO_COLOR"] = "1"
	id, status := s.start("run", "--repo", "https://git.example.org/a.git", "title "+evil)
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("a", evil, "\x1b", "[31m")...)
	s.w.Say(id,
		uistream.ToolInputAvailable{ToolCallID: "1", ToolName: evil, Title: evil, Input: uistream.Value("{}"), Dynamic: true}.Part().Raw,
		uistream.ToolOutputError{ToolCallID: "1", ErrorText: evil, Dynamic: true}.Part().Raw,
		uistream.Data{Name: uistream.DataPlan, ID: "plan", Data: uistream.ValueOf(map[string]any{"entries": []map[string]string{{"content": evil, "status": evil}}})}.Part().Raw,
		uistream.Data{Name: uistream.DataNotice, Data: uistream.ValueOf(map[string]string{"text": evil})}.Part().Raw)
	s.w.EndWith(id, "failed", fault.AgentFailed, session.Delivery{})
	<-status
	s.run("attach", string(id))
	s.run("list")
	s.run("diff", string(id))
	out := strings.ReplaceAll(s.out.String()+s.err.String(), "\r\x1b[K", "") // ours: writes a line anew
	for _, r := range out {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == '\u202e' {
			t.Fatalf("%U reached the terminal: %q", r, out)
		}
	}
	if !strings.Contains(out, "␛[31m") {
		t.Errorf("what was taken out is not visible: %q", out)
	}
}

func TestColours(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.terminal = true
	id, status := s.start("run", "x")
	s.w.Begin(id)
	s.w.Say(id, conversation()...)
	s.w.End(id)
	if got := <-status; got != 0 {
		t.Fatal(got)
	}
	golden(t, "terminal", s.out.String())
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		terminal bool
		answer   string // of the person
		second   bool   // a second Ctrl-C instead
		status   int
		stopped  bool
		has      string
	}{
		{name: "no terminal", status: 11, has: "Detached; the turn goes on."},
		{name: "detach", terminal: true, answer: "d\n", status: 11, has: "Detached; the turn goes on."},
		{name: "second", terminal: true, second: true, status: 11, has: "Detached; the turn goes on."},
		{name: "stop", terminal: true, answer: "s\n", stopped: true, status: 130, has: "Stopping"},
		{name: "go on", terminal: true, answer: "\n", has: "go on (Enter)?"},
		{name: "another key", terminal: true, answer: "x\ns\n", stopped: true, status: 130, has: "x is none of these. Detach (d Enter)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.terminal = c.terminal
			r, w := io.Pipe()
			defer w.Close()
			s.stdin = r
			id, status := s.start("run", "x")
			s.w.Begin(id)
			s.w.Say(id, resttest.Text("a", "working")...)
			s.until("the text", func() bool { return strings.Contains(s.out.String(), "working") })
			s.signals <- syscall.SIGINT
			if c.second {
				s.signals <- syscall.SIGINT
			} else if c.answer != "" {
				if _, err := io.WriteString(w, c.answer); err != nil {
					t.Fatal(err)
				}
			}
			s.until(c.has, func() bool { return strings.Contains(s.err.String(), c.has) })
			switch {
			case c.stopped:
				s.until("the stop", func() bool { return s.w.Get(id).Open.State == session.TurnStopping })
				s.w.EndWith(id, "cancelled", "", session.Delivery{})
			case c.name == "go on":
				s.w.End(id)
			}
			if got := <-status; got != c.status {
				t.Errorf("status %d, want %d", got, c.status)
			}
			if !c.stopped && c.name != "go on" {
				if a := s.w.Get(id); a.Open == nil || a.Open.State != session.TurnRunning {
					t.Errorf("detaching did something to the turn: %+v", a.Open)
				}
			}
		})
	}
}

func TestVerbs(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	if got := s.run("list"); got != 0 || !strings.Contains(s.err.String(), "There are no sessions") {
		t.Errorf("empty list: %d %s", got, s.err.String())
	}
	id := s.w.Create("Fix it")
	s.w.Begin(id)
	s.w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.BranchMoved})
	for _, c := range []struct {
		name string
		args []string
	}{
		{"list", []string{"list"}}, {"diff", []string{"diff"}}, {"nothing-to-cancel", []string{"cancel"}}, {"delete-undelivered", []string{"delete", string(id)}},
		{"discard-unnamed", []string{"discard"}}, {"delete-unnamed", []string{"delete"}}, {"discard", []string{"discard", string(id)}}, {"delete", []string{"delete", "--force", string(id)}}, {"unknown-session", []string{"attach", "ses_none"}},
		{"unknown-command", []string{"runn"}}, {"unknown-flag", []string{"list", "--colour"}}, {"no-text", []string{"prompt", "ses_x"}}, {"no-prompt", []string{"prompt"}}, {"empty-task", []string{"run", " "}},
		{"bad-agent", []string{"run", "--agent", "nobody", "x"}}, {"two-formats", []string{"diff", "--stat", "--names"}}, {"no-session", []string{"attach"}},
		{"too-many", []string{"attach", "ses_a", "ses_b"}}, {"too-much", []string{"list", "ses_a"}}, {"dash", []string{"run", "-fix it"}}, {"limit", []string{"run", "--limit", "300ms", "x"}}, {"no-agent", []string{"agent", "install"}},
		{"version", []string{"version"}}, {"serve-mistakes", []string{"serve", "--sandbox", "docker", "--listen", "0.0.0.0:1"}},
	} {
		s.out, s.err = buffer{}, buffer{}
		status := s.run(c.args...)
		text := regexp.MustCompile(`req_\d+`).ReplaceAllString(s.err.String(), "req_N")
		text = regexp.MustCompile(`\(\d+s old`).ReplaceAllString(text, "(AGE old")
		text = regexp.MustCompile(` +\d+s +`).ReplaceAllString(s.out.String(), "  AGE  ") + "-- stderr\n" + text + "-- status " + strconv.Itoa(status) + "\n"
		golden(t, "verb-"+c.name, text)
	}
}

func TestDeliver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		d      session.Delivery
		status int
		has    string
	}{
		{"pushed", session.Delivery{State: session.DeliveryPushed, OID: strings.Repeat("a", 40)}, 0, "is at " + strings.Repeat("a", 40)},
		{"refused again", session.Delivery{State: session.DeliveryFailed, Code: fault.PushRefused}, 10, "The remote refused the push. (PUSH_REFUSED)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			id := s.w.Create("x")
			turn := s.w.Begin(id)
			s.w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.ForgeUnavailable})
			version := s.w.Get(id).Session.Version
			status := make(chan int, 1)
			go func() { status <- s.run("deliver", string(id)) }()
			s.until("the verb", func() bool { return s.w.Get(id).Session.Version > version })
			c.d.At = time.Now()
			s.w.Apply(id, session.Delivered{Turn: turn.ID, Delivery: c.d, RemoteOID: c.d.OID})
			if got := <-status; got != c.status || !strings.Contains(s.out.String()+s.err.String(), c.has) {
				t.Errorf("status %d: %s %s", got, s.out.String(), s.err.String())
			}
		})
	}
}

func TestServeWithoutServer(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, args := range [][]string{{"serve"}, {"doctor"}, {"agent", "install", "x"}, {"agent", "list"}, {"agent", "verify", "x"}} {
		if got := s.run(args...); got != 2 || !strings.Contains(s.err.String(), "UNSUPPORTED") {
			t.Errorf("%v: %d %s", args, got, s.err.String())
		}
	}
}

func TestDoctorAndAgents(t *testing.T) {
	t.Parallel()
	var out, errs buffer
	env := cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return map[string]string{"HEARTH_STATE_DIR": "/srv/h"}[k] },
		Doctor: func(_ context.Context, c config.Config) (cli.Report, error) {
			return cli.Report{Checks: []cli.Check{{Name: "state folder", OK: true, Detail: c.StateDir}, {Name: "user namespaces", Detail: "refused", Remedy: "sysctl …"}}}, nil
		},
		AgentList: func(context.Context, config.Config) ([]cli.AgentStatus, error) {
			return []cli.AgentStatus{{Name: "claude", Title: "Claude Code", Version: "1", Installed: true, Providers: []string{"anthropic"}}, {Name: "pi", Version: "2", Providers: []string{"openai", "gemini"}}}, nil
		},
		AgentInstall: func(_ context.Context, _ config.Config, ask cli.InstallAsk, progress func(string)) error {
			progress("fetching " + ask.Name + "\x1b[2J from " + ask.From)
			return nil
		},
		AgentVerify: func(context.Context, config.Config, string, func(string)) error {
			return fault.New(fault.AgentLayerDamaged, "")
		},
	}
	if got := cli.Main(t.Context(), []string{"doctor"}, env); got != 8 {
		t.Errorf("doctor: %d", got)
	}
	for _, args := range [][]string{{"agent", "list"}, {"agent", "install", "claude", "--from", "/media"}} {
		if got := cli.Main(t.Context(), args, env); got != 0 {
			t.Errorf("%v: %d %s", args, got, errs.String())
		}
	}
	if got := cli.Main(t.Context(), []string{"agent", "verify", "claude"}, env); got != 8 {
		t.Errorf("verify: %d", got)
	}
	golden(t, "server-side", out.String()+"-- stderr\n"+errs.String())
}

func TestTokenIsNeeded(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["HEARTH_TOKEN"] = ""
	if got := s.run("list"); got != 3 || !strings.Contains(s.err.String(), "set HEARTH_TOKEN") {
		t.Errorf("%d %s", got, s.err.String())
	}
	s.env["HEARTH_TOKEN"] = "wrong"
	if got := s.run("list"); got != 3 || !strings.Contains(s.err.String(), "UNAUTHENTICATED") {
		t.Errorf("%d %s", got, s.err.String())
	}
}
