package driver_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

// scratch is a box with an agent and an empty repository.
func scratch(t *testing.T, env ...string) *box {
	t.Helper()
	b := newBox(t)
	b.start()
	b.mustSetup(nil)
	b.mustAgent(env...)
	return b
}

// end is what a table says of an end.
type end struct {
	Outcome, Code string
	Clean         bool
}

func ended(e driverapi.End) end { return end{e.Outcome, e.Code, e.Clean} }

func TestTurnEnds(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	tests := map[string]struct {
		prompt string
		limits driverapi.Limits
		want   end
		says   string // in the message
		exit   string
	}{
		"end_turn":      {prompt: "@@say hi@@", want: end{"end_turn", "", true}},
		"refusal":       {prompt: "@@stop refusal@@", want: end{"refusal", "", true}},
		"token limit":   {prompt: "@@stop max_tokens@@", want: end{"max_tokens", "", true}},
		"request limit": {prompt: "@@stop max_turn_requests@@", want: end{"max_turn_requests", "", true}},
		"own cancel":    {prompt: "@@stop cancelled@@", want: end{"canceled", "", true}},
		"odd reason":    {prompt: "@@stop tired@@", want: end{"failed", "AGENT_FAILED", false}, says: "tired"},
		"error":         {prompt: "@@say x@@ @@error -32603 model exploded@@", want: end{"failed", "AGENT_FAILED", false}, says: "model exploded"},
		"no key":        {prompt: "@@error -32000 log in first@@", want: end{"failed", "MODEL_KEY_REJECTED", false}, says: "log in first"},
		"exit":          {prompt: "@@say x@@ @@exit 3@@", want: end{"failed", "AGENT_EXITED", false}, exit: "exit status 3"},
		"killed":        {prompt: "@@say x@@ @@kill@@", want: end{"failed", "AGENT_EXITED", false}, exit: "signal: killed"},
		"first event":   {prompt: "@@hang@@", limits: driverapi.Limits{FirstEvent: 300 * ms}, want: end{"failed", "FIRST_EVENT_LIMIT", false}},
		"silence":       {prompt: "@@say x@@ @@hang@@", limits: driverapi.Limits{Silence: 300 * ms}, want: end{"failed", "AGENT_SILENT", false}},
		"tool limit":    {prompt: "@@run sleep 20@@", limits: driverapi.Limits{Tool: 300 * ms, Silence: 100 * ms}, want: end{"failed", "TOOL_LIMIT", false}},
		"turn limit":    {prompt: "@@slow 1000 20@@", limits: driverapi.Limits{Total: 500 * ms, Silence: 10 * time.Second}, want: end{"failed", "TURN_LIMIT", false}},
		"rubbish":       {prompt: "@@rubbish 20@@ @@say after@@", want: end{"end_turn", "", true}},
		"unknown":       {prompt: "@@unknown-update@@ @@unknown-request@@ @@update-first@@", want: end{"end_turn", "", true}},
		"dangling":      {prompt: "@@dangling@@", want: end{"end_turn", "", true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			req := turnRequest(tt.prompt)
			req.Limits = tt.limits
			o := b.run("turn_1", req)
			if d := cmp.Diff(tt.want, ended(o.end)); d != "" {
				t.Errorf("%s\n%+v", d, o.end)
			}
			if !strings.Contains(o.end.Message, tt.says) || o.end.Exit != tt.exit {
				t.Errorf("message %q exit %q", o.end.Message, o.end.Exit)
			}
			check := uistream.NewChecker("turn_1")
			for _, r := range o.records {
				if r.Part == nil {
					continue
				}
				if _, err := check.Check(r.Part); err != nil {
					t.Errorf("part %d: %v", r.N, err)
				}
			}
			if open := check.OpenTools(); len(open) > 0 {
				t.Errorf("open tools %v", open)
			}
			s, err := b.client.Status(t.Context())
			if err != nil || (s.Agent == finger) != tt.want.Clean {
				t.Errorf("agent after the turn: %q %v", s.Agent, err)
			}
			if !tt.want.Clean {
				if r := b.mustAgent(); r.Reused {
					t.Error("a dead agent was used again")
				}
				if o := b.run("turn_2", turnRequest("@@say alive@@")); !o.end.Clean {
					t.Errorf("next turn %+v", o.end)
				}
			}
			if name == "rubbish" && o.end.Noise < 10 {
				t.Errorf("noise %d", o.end.Noise)
			}
		})
	}
}

var pidRE = regexp.MustCompile(`\b(\d{2,})\b`)

func TestCancel(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		prompt string
		cancel driverapi.CancelRequest
		want   end
		most   time.Duration
	}{
		"obeyed":  {"@@orphan 60@@ @@slow 10000 20@@", driverapi.CancelRequest{Grace: 5 * time.Second}, end{"canceled", "", true}, 3 * time.Second},
		"in tool": {"@@orphan 60@@ @@run sleep 60@@", driverapi.CancelRequest{Grace: 5 * time.Second}, end{"canceled", "", true}, 3 * time.Second},
		"ignored": {"@@orphan 60@@ @@ignore-cancel@@ @@slow 10000 20@@", driverapi.CancelRequest{Grace: 500 * time.Millisecond}, end{"canceled", "", false}, 1500 * time.Millisecond},
		"with code": {"@@orphan 60@@ @@slow 10000 20@@", driverapi.CancelRequest{Grace: 5 * time.Second, Code: "MODEL_KEY_REJECTED", Message: "The key is not valid."},
			end{"failed", "MODEL_KEY_REJECTED", false}, 1500 * time.Millisecond},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			b.begin("turn_1", turnRequest(tt.prompt))
			var canceled time.Time
			pid := 0
			text := ""
			o := b.follow("turn_1", func(r driverapi.Record) {
				var p struct{ Type, Delta string }
				if r.Part != nil && json.Unmarshal(r.Part, &p) == nil {
					text += p.Delta
				}
				ready := strings.Count(text, "\n") > 0 || strings.Contains(p.Type, "tool-input") || len(text) > 60
				if m := pidRE.FindString(text); canceled.IsZero() && m != "" && (ready || p.Type == "text-delta" && r.N > 8) {
					pid, _ = strconv.Atoi(m)
					canceled = time.Now()
					for range 2 { // twice is fine
						if err := b.client.Cancel(t.Context(), "turn_1", tt.cancel); err != nil {
							t.Error(err)
						}
					}
				}
			})
			if took := time.Since(canceled); took > tt.most {
				t.Errorf("took %v", took)
			}
			if d := cmp.Diff(tt.want, ended(o.end)); d != "" {
				t.Errorf("%s\n%+v", d, o.end)
			}
			if pid == 0 {
				t.Fatalf("no pid in %q", text)
			}
			eventually(t, "the orphan is ended", func() bool { return !alive(pid) })
			if err := b.client.Cancel(t.Context(), "turn_1", tt.cancel); err != nil {
				t.Errorf("after the end: %v", err)
			}
			if tt.want.Clean {
				o := b.run("turn_2", turnRequest("@@say still here@@", driverapi.Attempt{Rung: "live", AgentSession: o.rung().AgentSession}))
				if !o.end.Clean || o.rung().Rung != "live" {
					t.Errorf("next turn %+v", o.end)
				}
			}
		})
	}
}

// A cancel that comes while the agent's session is made ends the turn, and the prompt never goes out.
func TestCancelBeforePrompt(t *testing.T) {
	t.Parallel()
	b := scratch(t, "AGENT_HANG=session/new")
	b.begin("turn_1", turnRequest("@@say never@@"))
	if err := b.client.Cancel(t.Context(), "turn_1", driverapi.CancelRequest{Grace: 300 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	o := b.follow("turn_1", nil)
	if d := cmp.Diff(end{"canceled", "", false}, ended(o.end)); d != "" {
		t.Error(d)
	}
	for _, r := range o.records {
		if r.Sent || r.Rung != nil {
			t.Errorf("record %+v", r)
		}
	}
}

func TestRungs(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		env      []string
		attempts []string // rung/method
		want     string
		failed   []string // each contained in that of the record
		text     string   // what the agent recalls
		code     string
	}{
		"resume":      {attempts: []string{"native/resume", "fresh/new"}, want: "native", text: "violet"},
		"load":        {attempts: []string{"native/load", "fresh/new"}, want: "native", text: "violet"},
		"late replay": {env: []string{"AGENT_REPLAY=after"}, attempts: []string{"native/late", "fresh/new"}, want: "native", text: "violet"},
		"cannot": {
			env: []string{"AGENT_CAPS="}, attempts: []string{"live/", "native/resume", "native/load", "fresh/new"}, want: "fresh",
			failed: []string{"live: the session is not open", "native: the agent cannot resume", "native: the agent cannot load"},
		},
		"fails": {
			env: []string{"AGENT_FAIL=session/resume session/load"}, attempts: []string{"native/resume", "native/load", "reprimed/new"}, want: "reprimed",
			failed: []string{"told to fail", "told to fail"},
		},
		"hangs": {env: []string{"AGENT_HANG=session/load"}, attempts: []string{"native/load", "fresh/new"}, want: "fresh", failed: []string{"no answer within"}},
		"none":  {env: []string{"AGENT_FAIL=session/new"}, attempts: []string{"fresh/new"}, code: "AGENT_START_FAILED"},
		"auth":  {env: []string{"AGENT_AUTH=1"}, attempts: []string{"fresh/new"}, code: "MODEL_KEY_REJECTED"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.start()
			b.mustSetup(nil)
			b.mustAgent()
			first := b.run("turn_1", turnRequest("@@mark violet@@"))
			req := b.agentRequest(tt.env...)
			req.Fingerprint = "f2" // another process
			if r, err := b.client.Agent(t.Context(), req); err != nil || r.Reused {
				t.Fatalf("second agent: %+v %v", r, err)
			}
			turn := turnRequest("@@recall@@")
			turn.Fingerprint, turn.SessionTimeout = "f2", 3*time.Second
			turn.Attempts = nil
			for _, a := range tt.attempts {
				rung, method, _ := strings.Cut(a, "/")
				at := driverapi.Attempt{Rung: rung, Method: method, AgentSession: first.rung().AgentSession}
				if method == "late" {
					at.Method, at.LateReplay = "load", true
				}
				turn.Attempts = append(turn.Attempts, at)
			}
			o := b.run("turn_2", turn)
			if o.rung().Rung != tt.want || o.end.Code != tt.code {
				t.Fatalf("rung %+v end %+v", o.rung(), o.end)
			}
			if len(o.rung().Failed) != len(tt.failed) {
				t.Fatalf("failed %q", o.rung().Failed)
			}
			for i, f := range tt.failed {
				if !strings.Contains(o.rung().Failed[i], f) {
					t.Errorf("failed %q, not %q", o.rung().Failed[i], f)
				}
			}
			if !strings.Contains(o.text(), tt.text) {
				t.Errorf("text %q", o.text())
			}
			if n := strings.Count(fmt.Sprint(o.types()), "start-step"); n != 1 {
				t.Errorf("%d steps: the replay came through", n)
			}
			sent := slices.ContainsFunc(o.records, func(r driverapi.Record) bool { return r.Sent })
			if sent != (tt.code == "") {
				t.Errorf("sent %v", sent)
			}
		})
	}
}

// A flood is held back, cut at the caps, said once, and everything that was begun is closed.
func TestFlood(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.parts = 2000
	b.start()
	b.mustSetup(nil)
	b.mustAgent()
	o := b.run("turn_1", turnRequest("@@flood 3000@@ @@say end@@"))
	if d := cmp.Diff(end{"end_turn", "", true}, ended(o.end)); d != "" {
		t.Fatal(d)
	}
	types := o.types()
	count := 0
	for _, x := range types {
		if x == "data-limit" {
			count++
		}
	}
	if count != 1 || len(types) > 2010 || len(types) < 1990 || types[len(types)-1] != "finish-step" {
		t.Errorf("%d times truncated, %d parts, last %s", count, len(types), types[len(types)-1])
	}
	check := uistream.NewChecker("turn_1")
	for _, r := range o.records {
		if r.Part != nil {
			if _, err := check.Check(r.Part); err != nil {
				t.Fatalf("part %d: %v", r.N, err)
			}
		}
	}
}

// A huge update does not end the session. Package agent's test has one of 100 MiB.
func TestHugeLine(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	o := b.run("turn_1", turnRequest("@@line 8388608@@ @@say after@@"))
	if !o.end.Clean || !strings.Contains(o.text(), "after") {
		t.Errorf("end %+v", o.end)
	}
}

// Updates after the answer belong to the turn for a moment, and then to none.
func TestLateUpdates(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	o := b.run("turn_1", turnRequest("@@say x@@ @@late 20 50@@"))
	first := o.end.Parts
	o2 := b.run("turn_2", turnRequest("@@say only this@@", driverapi.Attempt{Rung: "live", AgentSession: o.rung().AgentSession}))
	if !o2.end.Clean {
		t.Errorf("end %+v", o2.end)
	}
	if again := b.follow("turn_1", nil); again.end.Parts != first {
		t.Error("the first turn's log grew after its end")
	}
}

func TestPermissionIsAnsweredByKind(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	o := b.run("turn_1", turnRequest("@@ask write a file@@"))
	if !strings.Contains(o.text(), "Allowed") || !o.end.Clean {
		t.Errorf("text %q end %+v", o.text(), o.end)
	}
}

// The reader of a log is cut again and again and misses nothing.
func TestLogOverCutConnections(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	b.begin("turn_1", turnRequest("@@slow 300 5@@"))
	next := int64(40)
	o := b.follow("turn_1", func(r driverapi.Record) {
		if r.N >= next {
			next += 40
			b.cut()
		}
	})
	want := int64(0)
	for _, r := range o.records {
		if r.Part != nil {
			if want++; r.N != want {
				t.Fatalf("part %d in the place of %d", r.N, want)
			}
		}
	}
	if want < 300 || want != o.end.Parts {
		t.Errorf("%d parts, the end says %d", want, o.end.Parts)
	}
}

// A driver that died in mid-turn comes back and says that nobody knows the end; the turn is not begun again.
func TestDriverRestart(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	req := turnRequest("@@slow 1000 10@@")
	b.begin("turn_1", req)
	killed := false
	o := b.follow("turn_1", func(r driverapi.Record) {
		if r.N >= 30 && !killed {
			killed = true
			b.kill()
			b.start()
		}
	})
	if d := cmp.Diff(end{"failed", "AGENT_LOST", false}, ended(o.end)); d != "" {
		t.Error(d)
	}
	hello, err := b.ch.Connected(t.Context())
	if err != nil || hello.Boot != 2 {
		t.Errorf("hello %+v %v", hello, err)
	}
	if _, again, err := b.client.Turn(t.Context(), "turn_1", req); err != nil || !again {
		t.Errorf("again %v %v", again, err)
	}
	b.mustAgent()
	if o := b.run("turn_2", turnRequest("@@say on@@")); !o.end.Clean {
		t.Errorf("next turn %+v", o.end)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	ctx := t.Context()
	b.begin("turn_1", turnRequest("@@hang@@"))
	other := b.agentRequest()
	other.Fingerprint = "f9"
	newer := b.ch.Client(7)
	tests := []struct {
		name string
		call func() error
		want fault.Code
	}{
		{"second turn", func() error { _, _, err := b.client.Turn(ctx, "turn_2", turnRequest("x")); return err }, fault.TurnInFlight},
		{"other agent", func() error { _, err := b.client.Agent(ctx, other); return err }, fault.TurnInFlight},
		{"final pack", func() error { _, _, err := b.client.Pack(ctx, packRequest("")); return err }, fault.TurnInFlight},
		{"reset", func() error { return b.client.Reset(ctx, driverapi.ResetRequest{OID: strings.Repeat("a", 40)}) }, fault.TurnInFlight},
		{"unknown turn", func() error { return b.client.Cancel(ctx, "turn_9", driverapi.CancelRequest{}) }, fault.TurnNotFound},
		{"unknown log", func() error { return b.client.Log(ctx, "turn_9", 0, nil) }, fault.TurnNotFound},
		{"end", func() error { return b.client.Cancel(ctx, "turn_1", driverapi.CancelRequest{Grace: time.Second}) }, ""},
		{"wait", func() error { b.follow("turn_1", nil); return nil }, ""},
		{"name", func() error { _, _, err := b.client.Turn(ctx, "a b", turnRequest("x")); return err }, fault.InvalidInput},
		{"no rung", func() error {
			r := turnRequest("x")
			r.Attempts = nil
			_, _, err := b.client.Turn(ctx, "turn_3", r)
			return err
		}, fault.InvalidInput},
		{"other fingerprint", func() error {
			r := turnRequest("x")
			r.Fingerprint = "f9"
			_, _, err := b.client.Turn(ctx, "turn_3", r)
			return err
		}, fault.AgentExited},
		{"agent not there", func() error {
			_, err := b.client.Agent(ctx, driverapi.AgentRequest{Fingerprint: "x", Command: []string{"no-such-agent"}})
			return err
		}, fault.AgentStartFailed},
		{"agent that ends", func() error {
			_, err := b.client.Agent(ctx, driverapi.AgentRequest{Fingerprint: "x", Command: []string{"sh", "-c", "echo no licence >&2; exit 4"}})
			if err != nil && (!strings.Contains(err.Error(), "no licence") || !strings.Contains(err.Error(), "exit status 4")) {
				t.Errorf("error %v", err)
			}
			return err
		}, fault.AgentStartFailed},
		{"agent that is silent", func() error {
			_, err := b.client.Agent(ctx, driverapi.AgentRequest{Fingerprint: "x", Command: []string{"sleep", "60"}, Timeout: 200 * time.Millisecond})
			return err
		}, fault.AgentStartFailed},
		{"newer fence", func() error { _, err := newer.Status(ctx); return err }, ""},
		{"older fence", func() error { _, err := b.client.Status(ctx); return err }, fault.FenceStale},
	}
	for _, tt := range tests {
		if got := fault.CodeOf(tt.call()); got != tt.want {
			t.Errorf("%s: %q, not %q", tt.name, got, tt.want)
		}
	}
}

// Files of the agent have the mode that was asked for, and 0600 otherwise.
func TestAgentFiles(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.start()
	req := b.agentRequest()
	plain, private := filepath.Join(b.cfg.Home, ".x/plain"), filepath.Join(b.cfg.Home, ".x/private")
	req.Files = []driverapi.File{{Path: plain, Content: "a", Mode: 0o644}, {Path: private, Content: "b"}}
	if _, err := b.client.Agent(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{plain: 0o644, private: 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, st, err)
		}
	}
}
