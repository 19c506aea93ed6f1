package driver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/door/driverchan"
	"github.com/hearthd/hearth/internal/driver"
	"github.com/hearthd/hearth/internal/driver/proc"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
	"github.com/hearthd/hearth/internal/testkit/scriptedagent"
)

// The test binary is the driver and the agent, too: real processes, with the race detector on.
const roleEnv = "HEARTH_TEST_ROLE"

// partsEnv is the most parts of a turn, 0 for the default.
const partsEnv = "HEARTH_TEST_PARTS"

// clockEnv is how much faster than time the driver's clock goes.
const clockEnv = "HEARTH_TEST_CLOCK"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "driver":
		runDriver(os.Args[len(os.Args)-1])
	case "agent":
		runAgent()
	default:
		os.Exit(m.Run())
	}
}

func runDriver(config string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go orphan(stop)
	if err := proc.Subreaper(); err != nil {
		panic(err)
	}
	cfg, err := driver.LoadConfig(config)
	if err != nil {
		panic(err)
	}
	procs := proc.New(true)
	reap, stopReaping := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { procs.Reap(reap) })
	maxParts, err := strconv.ParseInt(os.Getenv(partsEnv), 10, 64)
	if err != nil {
		panic(err)
	}
	rate, err := strconv.ParseInt(os.Getenv(clockEnv), 10, 64)
	if err != nil {
		panic(err)
	}
	begun := time.Now()
	now := func() time.Time { return begun.Add(time.Since(begun) * time.Duration(rate)) }
	d, err := driver.New(cfg, driver.Options{MaxParts: maxParts, Build: "test", Env: os.Environ(), Procs: procs, Now: now, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		panic(err)
	}
	if err := d.Run(ctx); err != nil {
		panic(err)
	}
	stopReaping()
	wg.Wait()
}

// orphan ends the driver when the tests' process is gone, however that ended: only its
// death closes the other end of standard input. It ends with the process.
func orphan(stop func()) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	time.AfterFunc(orphanGrace, func() { os.Exit(1) })
	stop()
}

// orphanGrace is how long an orphaned driver may take to end its agents.
const orphanGrace = 10 * time.Second

func runAgent() {
	if file := os.Getenv(replayEnv); file != "" {
		if err := runReplay(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	o := scriptedagent.Options{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Home: os.Getenv("HOME")}
	if caps, ok := os.LookupEnv("AGENT_CAPS"); ok {
		o.Caps = strings.Fields(caps)
		if o.Caps == nil {
			o.Caps = []string{}
		}
	}
	o.Hang = strings.Fields(os.Getenv("AGENT_HANG"))
	for m := range strings.FieldsSeq(os.Getenv("AGENT_FAIL")) {
		if o.Fail == nil {
			o.Fail = map[string]scriptedagent.Failure{}
		}
		o.Fail[m] = scriptedagent.Failure{Code: -32603, Message: "told to fail"}
	}
	o.Replay = os.Getenv("AGENT_REPLAY")
	o.ResumeReplays = os.Getenv("AGENT_RESUME_REPLAYS") != ""
	o.Auth = os.Getenv("AGENT_AUTH") != ""
	if at := os.Getenv("AGENT_DIE"); at != "" {
		f, err := os.OpenFile(filepath.Join(o.Home, "starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString("x")
		}
		if err != nil {
			panic(err)
		}
		o.In = &dying{r: os.Stdin, at: at}
	}
	if err := scriptedagent.Run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dying ends the process when a method comes, with words on standard error.
type dying struct {
	r  io.Reader
	at string
}

func (d *dying) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	if bytes.Contains(p[:n], []byte(`"`+d.at+`"`)) {
		fmt.Fprintln(os.Stderr, strings.Repeat("much noise\n", 1000)+"the last word: no licence")
		os.Exit(3)
	}
	return n, err
}

// box is a sandbox without walls: a real driver process, and the server's side of its doors.
type box struct {
	t      *testing.T
	dir    string
	cfg    driverapi.Config
	ch     *driverchan.Channel
	client *driverchan.Client
	cmd    *exec.Cmd
	stderr *lockedBuffer
	prefix []string // a command that runs the driver
	parts  int      // most of a turn; 0: the default
	clock  int      // how much faster than time the driver's clock goes; 0: it does not

	mu    sync.Mutex
	conns []net.Conn
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newBox(t *testing.T) *box {
	t.Helper()
	dir, err := os.MkdirTemp("", "hd") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &box{t: t, dir: dir, stderr: &lockedBuffer{}, cfg: driverapi.Config{
		Version: driverapi.Version, Session: "ses_1", Sandbox: "sb-1", Generation: 1,
		Socket: filepath.Join(dir, "doors.sock"), Home: filepath.Join(dir, "home"),
		Work: filepath.Join(dir, "repo"), State: filepath.Join(dir, "state"), HoldDoors: 5 * time.Second,
	}}
	log := slog.New(slog.NewTextHandler(b.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	b.ch = driverchan.New(driverchan.Expect{Session: "ses_1", Sandbox: "sb-1", Generation: 1}, log, nil)
	b.client = b.ch.Client(1)
	set, err := door.Listen(b.cfg.Socket, log)
	if err != nil {
		t.Fatal(err)
	}
	set.Handle(driverapi.DoorDriver, door.HandlerFunc(func(ctx context.Context, c net.Conn, rest string) {
		b.mu.Lock()
		b.conns = append(b.conns, c)
		b.mu.Unlock()
		b.ch.ServeDoor(ctx, c, rest)
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(b.stderr.String())
		}
	})
	return b
}

// cut breaks every connection of the driver.
func (b *box) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
	b.conns = nil
}

// start runs the driver.
func (b *box) start() {
	b.t.Helper()
	raw, err := json.Marshal(b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	file := filepath.Join(b.dir, "driver.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		b.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	args := append(append([]string{}, b.prefix...), self, file)
	b.cmd = exec.Command(args[0], args[1:]...)
	b.cmd.Env = append(os.Environ(), roleEnv+"=driver", partsEnv+"="+strconv.Itoa(b.parts), clockEnv+"="+strconv.Itoa(max(b.clock, 1)))
	b.cmd.Stderr = b.stderr
	b.cmd.WaitDelay = time.Second
	if _, err := b.cmd.StdinPipe(); err != nil { // stays open until Wait, or until this process is gone
		b.t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	cmd := b.cmd
	b.t.Cleanup(func() {
		if len(b.prefix) > 0 {
			_ = cmd.Process.Kill() // unshare gives no signal on, but ends its child with itself
		} else {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
		_ = cmd.Wait() // an error when it was waited for before
		if strings.Contains(b.stderr.String(), "DATA RACE") {
			b.t.Error("data race in the driver")
		}
	})
}

// kill ends the driver as a crash would.
func (b *box) kill() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
}

// repo serves a repository and returns its address and head.
func (b *box) repo(files map[string]string, opts ...gitserver.RepoOption) (driverapi.Repo, *gitserver.Repo) {
	b.t.Helper()
	s, err := gitserver.New(gitserver.Options{Dir: filepath.Join(b.dir, "git")})
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := s.NewRepo(b.t.Context(), "acme/calc", files, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	srv := httptest.NewServer(s)
	b.t.Cleanup(srv.Close)
	repo := driverapi.Repo{
		URL: "https://git.example/acme/calc.git", DoorURL: srv.URL + r.Path(), Base: "main",
		Rewrite: []string{"git@git.example:acme/calc.git"}, Branch: "hearth/work",
	}
	if len(files) > 0 {
		if repo.BaseOID, err = r.Head(b.t.Context(), "main"); err != nil {
			b.t.Fatal(err)
		}
	}
	return repo, r
}

var me = driverapi.Person{Name: "Ada Lovelace", Email: "ada@example.com"}

func (b *box) setup(req driverapi.SetupRequest) (events []driverapi.SetupEvent, last driverapi.SetupEvent, err error) {
	b.t.Helper()
	req.Git = me
	req.Timeout = 30 * time.Second
	last, err = b.client.Setup(b.t.Context(), req, func(e driverapi.SetupEvent) { events = append(events, e) })
	return events, last, err
}

func (b *box) mustSetup(repo *driverapi.Repo) {
	b.t.Helper()
	if _, _, err := b.setup(driverapi.SetupRequest{Repo: repo}); err != nil {
		b.t.Fatal(err)
	}
}

const finger = "f1"

func (b *box) agentRequest(env ...string) driverapi.AgentRequest {
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	return driverapi.AgentRequest{
		Fingerprint: finger, Command: []string{self}, Env: append([]string{roleEnv + "=agent"}, env...),
		Dir: b.cfg.Home, Timeout: 20 * time.Second,
	}
}

func (b *box) mustAgent(env ...string) driverapi.AgentResult {
	b.t.Helper()
	r, err := b.client.Agent(b.t.Context(), b.agentRequest(env...))
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func fresh() driverapi.Attempt { return driverapi.Attempt{Rung: "fresh", Method: "new"} }

func turnRequest(prompt string, attempts ...driverapi.Attempt) driverapi.TurnRequest {
	if len(attempts) == 0 {
		attempts = []driverapi.Attempt{fresh()}
	}
	return driverapi.TurnRequest{Number: 1, Fingerprint: finger, Prompt: prompt, Attempts: attempts}
}

// outcome is a turn's log as read.
type outcome struct {
	records []driverapi.Record
	end     driverapi.End
}

func (o outcome) types() []string {
	var out []string
	for _, r := range o.records {
		if r.Part != nil {
			var p struct{ Type string }
			if err := json.Unmarshal(r.Part, &p); err != nil {
				panic(err)
			}
			out = append(out, p.Type)
		}
	}
	return out
}

// text is all text of the answer.
func (o outcome) text() string {
	var out strings.Builder
	for _, r := range o.records {
		var p struct{ Type, Delta string }
		if r.Part != nil && json.Unmarshal(r.Part, &p) == nil && p.Type == "text-delta" {
			out.WriteString(p.Delta)
		}
	}
	return out.String()
}

func (o outcome) rung() driverapi.RungTaken {
	for _, r := range o.records {
		if r.Rung != nil {
			return *r.Rung
		}
	}
	return driverapi.RungTaken{}
}

func (b *box) begin(turn string, req driverapi.TurnRequest) {
	b.t.Helper()
	if _, _, err := b.client.Turn(b.t.Context(), turn, req); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) follow(turn string, each func(driverapi.Record)) outcome {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 3*time.Minute) // the largest lines take half of one with the race detector
	defer cancel()
	var o outcome
	err := b.client.Log(ctx, turn, 0, func(r driverapi.Record) error {
		o.records = append(o.records, r)
		if r.End != nil {
			o.end = *r.End
		}
		if each != nil {
			each(r)
		}
		return nil
	})
	if err != nil {
		b.t.Fatalf("log of %s: %v", turn, err)
	}
	return o
}

func (b *box) run(turn string, req driverapi.TurnRequest) outcome {
	b.t.Helper()
	b.begin(turn, req)
	return b.follow(turn, nil)
}

func packRequest(base string) driverapi.PackRequest {
	r := driverapi.PackRequest{
		Turn: "turn_1", Base: base, Message: "Do the work\n\nHearth-Session: ses_1\n", Author: me,
		Commit: driverapi.Person{Name: "Hearth", Email: "hearth@localhost"},
		At:     time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), MaxBytes: 64 << 20,
	}
	if base != "" {
		r.Have = []string{base}
	}
	return r
}

func (b *box) pack(req driverapi.PackRequest) (driverapi.PackResult, []byte) {
	b.t.Helper()
	p, r, err := b.client.Pack(b.t.Context(), req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Close()
	body, err := io.ReadAll(r)
	if err != nil {
		b.t.Fatal(err)
	}
	return p, body
}

// alive tells whether a process is there and not a zombie.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// eventually polls until a real process has done something.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
