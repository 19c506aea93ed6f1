package agent_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/agent"
	"github.com/hearthd/hearth/internal/driver/proc"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/testkit/scriptedagent"
)

// agentEnv makes the test binary the scripted agent; what it says is written to its
// standard error first.
const agentEnv = "HEARTH_TEST_AGENT"

func TestMain(m *testing.M) {
	says, ok := os.LookupEnv(agentEnv)
	if !ok {
		os.Exit(run(m))
	}
	fmt.Fprint(os.Stderr, says)
	o, err := scriptedagent.FromArgs(os.Args[1:], os.Getenv, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	o.In, o.Out, o.Err = os.Stdin, os.Stdout, os.Stderr
	if err := scriptedagent.Run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// table is that of the test process, which inherits and reaps as a sandbox's first
// process does. Killing an agent ends whatever was started since it was, so no two
// tests run beside each other.
var table = proc.New(true)

func run(m *testing.M) int {
	if err := proc.Subreaper(); err != nil {
		fmt.Println(err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { table.Reap(ctx) })
	defer wg.Wait()
	defer cancel()
	return m.Run()
}

// talk takes what an agent sends by itself.
type talk struct {
	mu   sync.Mutex
	text strings.Builder
	long int           // bytes of the longest update
	some chan struct{} // closed at the first text
}

func newTalk() *talk { return &talk{some: make(chan struct{})} }

func (k *talk) Update(n acp.SessionNotification) {
	var u struct {
		SessionUpdate string           `json:"sessionUpdate"`
		Content       acp.ContentBlock `json:"content"`
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.long = max(k.long, len(n.Update))
	if acp.Decode(n.Update, &u) != nil || u.SessionUpdate != acp.UpdateAgentMessage || len(u.Content.Text) > 1000 {
		return
	}
	if k.text.Len() == 0 {
		close(k.some)
	}
	k.text.WriteString(u.Content.Text)
}

func (k *talk) CaughtUp() {}

func (k *talk) Permission(_ context.Context, r acp.PermissionRequest, answer func(acp.PermissionResponse)) {
	answer(acp.Selected(r.Options[0].OptionID))
}

func (k *talk) Elicitation(_ context.Context, _ acp.ElicitationRequest, answer func(acp.ElicitationResponse)) {
	answer(acp.ElicitationResponse{Action: acp.ElicitDecline})
}

func (k *talk) said() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.String()
}

// request is for the scripted agent with these flags.
func request(t *testing.T, flags ...string) driverapi.AgentRequest {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return driverapi.AgentRequest{Fingerprint: "f1", Command: append([]string{exe}, flags...), Dir: filepath.Join(t.TempDir(), "work")}
}

func options(t *testing.T) agent.Options {
	t.Helper()
	return agent.Options{Procs: table, Version: "test", SpillDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func env(t *testing.T, says string) []string {
	t.Helper()
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), agentEnv + "=" + says}
}

// start starts a scripted agent; its process must be gone, and reaped, at the test's end.
func start(t *testing.T, says string, flags ...string) *agent.Agent {
	t.Helper()
	a, err := agent.Start(t.Context(), request(t, flags...), env(t, says), options(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		a.Kill(ctx)
		select {
		case <-a.Gone():
		default:
			t.Error("the agent is not gone after Kill")
		}
	})
	return a
}

// open begins an ACP session.
func open(t *testing.T, a *agent.Agent) string {
	t.Helper()
	s, err := a.Client.NewSession(t.Context(), acp.NewSessionRequest{CWD: t.TempDir(), MCPServers: nil})
	if err != nil {
		t.Fatal(err)
	}
	if a.IsOpen(s.SessionID) {
		t.Error("a session is open before it was remembered")
	}
	a.Opened(s.SessionID)
	if s.SessionID == "" || !a.IsOpen(s.SessionID) {
		t.Errorf("the session %q is not open", s.SessionID)
	}
	return s.SessionID
}

func prompt(ctx context.Context, a *agent.Agent, session, text string) (acp.PromptResponse, error) {
	return a.Client.Prompt(ctx, acp.PromptRequest{SessionID: session, Prompt: []acp.ContentBlock{acp.TextBlock(text)}})
}

// childless fails when this process keeps a child, be it a zombie.
func childless(t *testing.T) {
	t.Helper()
	until(t, "the last child to be reaped", func() bool {
		var left []string
		tasks, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range tasks {
			raw, _ := os.ReadFile(f) // a thread may have ended
			left = append(left, strings.Fields(string(raw))...)
		}
		return len(left) == 0
	})
}

// One agent, from start to end: what initialize told, a turn, a permission, a cancel, and no zombie.
func TestLife(t *testing.T) {
	a := start(t, "")
	want := driverapi.AgentResult{Name: a.Result.Name, Version: a.Result.Version, Protocol: acp.ProtocolVersion, Load: true, Resume: true}
	if d := cmp.Diff(want, a.Result); d != "" || a.Result.Name == "" {
		t.Errorf("(-want +got):\n%s, %+v", d, a.Result)
	}
	if !a.Alive() || a.Exit() != "" || a.Fingerprint != "f1" {
		t.Errorf("alive %v, exit %q, fingerprint %q", a.Alive(), a.Exit(), a.Fingerprint)
	}
	k := newTalk()
	a.Receive(k)
	id := open(t, a)
	r, err := prompt(t.Context(), a, id, "@@say hello@@ @@ask May I?@@")
	if err != nil || r.StopReason != acp.StopEndTurn || !strings.Contains(k.said(), "hello") {
		t.Errorf("%+v, %v, said %q", r, err, k.said())
	}
	// Cancel: the prompt is answered, the agent lives on and takes the next one.
	k = newTalk()
	a.Receive(k)
	type end struct {
		r   acp.PromptResponse
		err error
	}
	ended := make(chan end, 1)
	go func() { r, err := prompt(t.Context(), a, id, "@@say begun@@ @@hang@@"); ended <- end{r, err} }() // received below
	<-k.some
	if err := a.Client.Cancel(id); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.err != nil || e.r.StopReason != acp.StopCancelled {
		t.Errorf("after a cancel: %+v, %v", e.r, e.err)
	}
	a.Receive(nil) // what comes now is dropped
	if r, err := prompt(t.Context(), a, id, "@@say dropped@@"); err != nil || r.StopReason != acp.StopEndTurn || strings.Contains(k.said(), "dropped") {
		t.Errorf("%+v, %v, said %q", r, err, k.said())
	}
	a.Kill(t.Context())
	if a.Alive() || a.Exit() != "signal: killed" {
		t.Errorf("alive %v, exit %q", a.Alive(), a.Exit())
	}
	childless(t)
}

// An agent that ends in a turn ends the prompt, says how, and leaves no zombie.
func TestAgentEnds(t *testing.T) {
	for _, c := range []struct{ directive, exit string }{
		{"@@say last words@@ @@exit 7@@", "exit status 7"},
		{"@@say last words@@ @@exit 0@@", "exit status 0"},
		{"@@say last words@@ @@kill@@", "signal: killed"},
	} {
		t.Run(c.exit, func(t *testing.T) {
			a := start(t, "")
			k := newTalk()
			a.Receive(k)
			if _, err := prompt(t.Context(), a, open(t, a), c.directive); err == nil {
				t.Error("the prompt ended well")
			}
			select {
			case <-a.Gone():
			case <-time.After(10 * time.Second):
				t.Fatal("the agent's end was not noticed")
			}
			if a.Alive() || a.Exit() != c.exit {
				t.Errorf("alive %v, exit %q", a.Alive(), a.Exit())
			}
			if !strings.Contains(k.said(), "last words") { // what it wrote before was handled
				t.Errorf("it said %q", k.said())
			}
			childless(t)
		})
	}
}

// Kill ends what the agent has started, in whatever session of the machine it is.
func TestKillEndsOrphans(t *testing.T) {
	a := start(t, "")
	k := newTalk()
	a.Receive(k)
	if _, err := prompt(t.Context(), a, open(t, a), "@@orphan 600@@"); err != nil {
		t.Fatal(err)
	}
	words := strings.FieldsFunc(k.said(), func(r rune) bool { return r < '0' || r > '9' })
	if len(words) == 0 {
		t.Fatalf("it said %q", k.said())
	}
	pid, err := strconv.Atoi(words[0])
	if err != nil || !runs(pid) {
		t.Fatalf("it said %q, %v", k.said(), err)
	}
	a.Kill(t.Context())
	if runs(pid) {
		t.Errorf("the process %d lives on", pid)
	}
	childless(t)
}

// runs tells whether a process is there and not dead.
func runs(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// Rubbish on standard output is counted and hurts nobody.
func TestRubbish(t *testing.T) {
	a := start(t, "")
	k := newTalk()
	a.Receive(k)
	r, err := prompt(t.Context(), a, open(t, a), "@@rubbish 900@@ @@say and on@@")
	if err != nil || r.StopReason != acp.StopEndTurn || !strings.Contains(k.said(), "and on") {
		t.Errorf("%+v, %v, said %q", r, err, k.said())
	}
	if n := a.Noise(); n < 500 || n > 900 { // empty lines and answers to nothing are no noise
		t.Errorf("%d lines of noise", n)
	}
}

// A line of 100 MiB is taken, and what follows it.
func TestHugeLine(t *testing.T) {
	a := start(t, "")
	k := newTalk()
	a.Receive(k)
	r, err := prompt(t.Context(), a, open(t, a), "@@line 104857600@@ @@say and on@@")
	if err != nil || r.StopReason != acp.StopEndTurn || !strings.Contains(k.said(), "and on") {
		t.Errorf("%+v, %v, said %q", r, err, k.said())
	}
	if st := a.Client.Stats(); st.Bytes < 100<<20 || st.NoiseLines != 0 {
		t.Errorf("%+v", st)
	}
	if k.long > 80<<20 { // longer lines than 64 MiB are not held in memory
		t.Errorf("an update had %d bytes", k.long)
	}
}

// The end of standard error is kept, and its bytes are text.
func TestStderr(t *testing.T) {
	a := start(t, strings.Repeat("noise\n", 20_000)+"broken \xff\xfe end\n")
	var last string
	until(t, "the end of what it wrote", func() bool {
		last = a.Stderr(13)
		return strings.HasSuffix(last, "end")
	})
	if last != "oken \uFFFD end" && last != "broken \uFFFD end" && last != "roken \uFFFD end" {
		t.Errorf("the last bytes are %q", last)
	}
	if n := len(a.Stderr(1 << 30)); n > 64<<10 {
		t.Errorf("%d bytes are kept", n)
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// What can go wrong at a start is told with a code and with what the agent said, and
// leaves no process.
func TestStartFails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*driverapi.AgentRequest)
		flags  []string
		says   string
		code   fault.Code
		words  []string
	}{
		"no command":        {change: func(r *driverapi.AgentRequest) { r.Command = nil }, code: fault.InvalidInput, words: []string{"command"}},
		"no fingerprint":    {change: func(r *driverapi.AgentRequest) { r.Fingerprint = "" }, code: fault.InvalidInput, words: []string{"fingerprint"}},
		"no such program":   {change: func(r *driverapi.AgentRequest) { r.Command = []string{"no-such-agent"} }, code: fault.AgentStartFailed, words: []string{"no-such-agent", "PATH"}},
		"a relative file":   {change: func(r *driverapi.AgentRequest) { r.Files = []driverapi.File{{Path: "x"}} }, code: fault.AgentStartFailed, words: []string{`"x"`, "not absolute"}},
		"it ends at once":   {flags: []string{"--caps=nonsense"}, code: fault.AgentStartFailed, words: []string{"exit status 2", "nonsense"}},
		"it does not speak": {flags: []string{"--hang=initialize"}, says: "I am stuck", change: func(r *driverapi.AgentRequest) { r.Timeout = 300 * time.Millisecond }, code: fault.AgentStartFailed, words: []string{"no answer within 300ms", "I am stuck"}},
		"another protocol":  {flags: []string{"--version=99"}, code: fault.AgentStartFailed, words: []string{"version 99"}},
		"it refuses":        {flags: []string{"--fail=initialize=-32603:no mood"}, code: fault.AgentStartFailed, words: []string{"no mood"}},
		"it wants a key":    {flags: []string{"--fail=initialize=-32000:who are you"}, code: fault.ModelKeyRejected, words: []string{"authentication"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, c.flags...)
			if c.change != nil {
				c.change(&r)
			}
			a, err := agent.Start(t.Context(), r, env(t, c.says), options(t))
			if err == nil {
				a.Kill(t.Context())
				t.Fatal("it started")
			}
			said := fault.From(err).Sentence()
			if fault.CodeOf(err) != c.code {
				t.Errorf("%s: %v", fault.CodeOf(err), err)
			}
			for _, w := range c.words {
				if !strings.Contains(said, w) {
					t.Errorf("%q does not say %q", said, w)
				}
			}
			childless(t)
		})
	}
}

// Files are there before the agent is, with their modes, whatever was there.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := request(t)
	r.Files = []driverapi.File{
		{Path: filepath.Join(dir, "key"), Content: "new"},
		{Path: filepath.Join(dir, "a", "b", "run"), Content: "#!/bin/sh\n", Mode: 0o755},
	}
	a, err := agent.Start(t.Context(), r, env(t, ""), options(t))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Kill(t.Context())
	got := map[string]string{}
	for _, f := range r.Files {
		raw, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		rel, _ := filepath.Rel(dir, f.Path)
		got[rel] = fi.Mode().String() + " " + string(raw)
	}
	if d := cmp.Diff(map[string]string{"key": "-rw------- new", "a/b/run": "-rwxr-xr-x #!/bin/sh\n"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
