package driver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/transcript"
)

// wantNumbered fails unless the text has each of n numbered pieces once, in order.
func wantNumbered(t *testing.T, text, format string, n int) {
	t.Helper()
	for i := range n {
		piece := fmt.Sprintf(format, i+1)
		at := strings.Index(text, piece)
		if at < 0 || strings.TrimSpace(text[:at]) != "" {
			t.Fatalf("piece %d is not where it should be: %.80q", i+1, text)
		}
		text = text[at+len(piece):]
	}
	if strings.Contains(text, strings.Fields(format)[0]) {
		t.Fatalf("after the last piece: %.80q", text)
	}
}

// The agent answers its prompt first and goes on speaking: all of it is on that turn and
// none on the next.
func TestTextAfterTheAnswer(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	o := b.run("turn_1", turnRequest("@@late-text 200@@"))
	_, text, _ := strings.Cut(o.text(), "]")
	wantNumbered(t, text, "Late %d of 200. ", 200)
	live := driverapi.Attempt{Rung: "live", AgentSession: o.rung().AgentSession}
	if o := b.run("turn_2", turnRequest("@@say only this@@", live)); strings.Contains(o.text(), "Late") {
		t.Errorf("on the next turn: %q", o.text())
	}
	// Later than the drain it is on no turn.
	o = b.run("turn_3", turnRequest("@@late-text 100 20@@", live))
	if !strings.Contains(o.text(), "Late 1 ") || strings.Contains(o.text(), "Late 100 ") {
		t.Errorf("of two seconds of late text: %q", o.text())
	}
	if o := b.run("turn_4", turnRequest("@@say quiet@@", live)); !o.end.Clean || !strings.Contains(o.text(), "quiet") {
		t.Errorf("%+v %q", o.end, o.text())
	}
}

// Many numbered pieces as fast as they go come in their order, without a gap.
func TestOrderOfMany(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	o := b.run("turn_1", turnRequest("@@flood 10000@@"))
	text, _, _ := strings.Cut(o.text(), "[")
	wantNumbered(t, strings.ReplaceAll(text, "x", ""), "Update %d. ", 10_000)
	if err := wholeLog("turn_1", o); err != nil {
		t.Error(err)
	}
}

// An agent that says nothing but rubbish is ended by the limit of its first word, or of
// silence.
func TestRubbishForEver(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	for i, c := range []struct {
		prompt string
		limits driverapi.Limits
		code   string
	}{
		{"@@rubbish 50000@@ @@hang@@", driverapi.Limits{FirstEvent: 500 * time.Millisecond}, "FIRST_EVENT_LIMIT"},
		{"@@say x@@ @@rubbish 50000@@ @@hang@@", driverapi.Limits{Silence: 500 * time.Millisecond}, "AGENT_SILENT"},
	} {
		r := turnRequest(c.prompt)
		r.Limits = c.limits
		b.mustAgent()
		o := b.run(fmt.Sprint("turn_", i), r)
		if o.end.Code != c.code || o.end.Noise == 0 {
			t.Errorf("%+v", o.end)
		}
	}
}

// agentOf is the pid of the driver's agent.
func (b *box) agentOf() int {
	b.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", b.cmd.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range files {
		raw, _ := os.ReadFile(f) // a thread may have ended
		for pid := range strings.FieldsSeq(string(raw)) {
			cmd, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if n, err := strconv.Atoi(pid); err == nil && strings.Contains(string(cmd), "driver.test") {
				return n
			}
		}
	}
	b.t.Fatal("the driver has no agent")
	return 0
}

// An agent that is killed from outside ends its turn within a second, also where a child
// of it holds its pipes; the next turn gets a new one.
func TestAgentIsKilled(t *testing.T) {
	t.Parallel()
	for name, prompt := range map[string]string{
		"alone":          "@@say begun@@ @@hang@@",
		"with a tool":    "@@say begun@@ @@run sleep 60@@",
		"with an orphan": "@@say begun@@ @@orphan 60@@ @@hang@@",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			b.begin("turn_1", turnRequest(prompt))
			var killed time.Time
			o := b.follow("turn_1", func(r driverapi.Record) {
				if killed.IsZero() && strings.Contains(string(r.Part), "begun") {
					killed = time.Now()
					if err := syscall.Kill(b.agentOf(), syscall.SIGKILL); err != nil {
						t.Error(err)
					}
				}
			})
			if took := time.Since(killed); took > time.Second {
				t.Errorf("the end came after %v", took)
			}
			if d := cmp.Diff(end{"failed", "AGENT_EXITED", false}, ended(o.end)); d != "" || o.end.Exit != "signal: killed" {
				t.Errorf("%s%+v", d, o.end)
			}
			if r := b.mustAgent(); r.Reused {
				t.Error("the dead agent was used again")
			}
			if o := b.run("turn_2", turnRequest("@@say alive@@")); !o.end.Clean {
				t.Errorf("next turn %+v", o.end)
			}
		})
	}
}

// A cancel right behind the prompt, which the agent does not obey, ends the turn within
// grace and a second, wherever it falls.
func TestCancelAtOnce(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	for i, after := range []time.Duration{0, 2, 5, 10, 20, 35, 50} {
		id := fmt.Sprint("turn_", i)
		b.mustAgent()
		b.begin(id, turnRequest("@@ignore-cancel@@ @@slow 10000 5@@"))
		begun := time.Now()
		time.Sleep(after * time.Millisecond)
		if err := b.client.Cancel(t.Context(), id, driverapi.CancelRequest{Grace: 200 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		o := b.follow(id, nil)
		if took := time.Since(begun); took > after*time.Millisecond+1200*time.Millisecond {
			t.Errorf("after %d ms: it took %v", after, took)
		}
		if o.end.Outcome != driverapi.OutcomeCanceled {
			t.Errorf("after %d ms: %+v", after, o.end)
		}
		if err := wholeLog(id, o); err != nil {
			t.Errorf("after %d ms: %v", after, err)
		}
	}
	b.mustAgent()
	if o := b.run("turn_last", turnRequest("@@say here@@")); !o.end.Clean {
		t.Errorf("%+v", o.end)
	}
}

// Others who begin to follow in mid-turn, or send the same turn again, change nothing for
// the agent, and a cancel still reaches it.
func TestFollowersChangeNothing(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	req := turnRequest("@@slow 10000 5@@")
	b.begin("turn_1", req)
	var followers sync.WaitGroup
	parts := make([]int64, 5)
	canceled := false
	o := b.follow("turn_1", func(r driverapi.Record) {
		if r.N < 20 || canceled {
			return
		}
		canceled = true
		if _, again, err := b.client.Turn(t.Context(), "turn_1", req); err != nil || !again {
			t.Errorf("the same turn: %v %v", again, err)
		}
		for i := range parts {
			followers.Go(func() { parts[i] = b.follow("turn_1", nil).end.Parts })
		}
		if err := b.client.Cancel(t.Context(), "turn_1", driverapi.CancelRequest{Grace: 5 * time.Second}); err != nil {
			t.Error(err)
		}
	})
	followers.Wait()
	if d := cmp.Diff(end{"canceled", "", true}, ended(o.end)); d != "" {
		t.Error(d)
	}
	for _, n := range parts {
		if n != o.end.Parts {
			t.Errorf("a follower saw %d of %d parts", n, o.end.Parts)
		}
	}
}

// Silence is told from work by the driver's clock: here ten minutes are a second.
func TestLimitsByTheClock(t *testing.T) {
	t.Parallel()
	limits := driverapi.Limits{Silence: 10 * time.Minute, FirstEvent: 2 * time.Minute, Total: 2 * time.Hour, Tool: 30 * time.Minute}
	t.Run("an update each minute", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		b.clock = 600
		b.start()
		b.mustSetup(nil)
		b.mustAgent()
		req := turnRequest("@@slow 31 100@@")
		req.Limits = limits
		req.Limits.FirstEvent = 10 * time.Minute
		o := b.run("turn_1", req)
		if d := cmp.Diff(end{"end_turn", "", true}, ended(o.end)); d != "" {
			t.Errorf("%s%+v", d, o.end)
		}
		if took := o.records[len(o.records)-1].At.Sub(o.records[0].At); took < 31*time.Minute {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("silent for ever", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		b.clock = 600
		b.start()
		b.mustSetup(nil)
		b.mustAgent()
		req := turnRequest("@@slow 3 10@@ @@hang@@")
		req.Limits = limits
		req.Limits.FirstEvent = 10 * time.Minute
		o := b.run("turn_1", req)
		if d := cmp.Diff(end{"failed", "AGENT_SILENT", false}, ended(o.end)); d != "" {
			t.Errorf("%s%+v", d, o.end)
		}
		var last, at time.Time
		for _, r := range o.records {
			if strings.Contains(string(r.Part), `"text-delta"`) {
				last = r.At
			}
			at = r.At
		}
		if silent := at.Sub(last); silent < 10*time.Minute || silent > 25*time.Minute { // a busy machine's quarter of a second is long here
			t.Errorf("it was ended after %v", silent)
		}
	})
}

// What an agent replays of a conversation is recorded once, with the turn that it belongs
// to, however it is replayed: on load, on a resume that promised not to, before its
// answer or behind.
func TestReplaysAreNotRecorded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env    []string
		method string // and the mode, whose answer comes behind a late replay
		slips  int    // a machine that stands still for longer than a replay is waited for lets it through
	}{
		"load":                 {nil, "load", 0},
		"load, late":           {[]string{"AGENT_REPLAY=after"}, "load auto", 0},
		"resume":               {nil, "resume", 0},
		"resume replays":       {[]string{"AGENT_RESUME_REPLAYS=1"}, "resume", 0},
		"resume replays, late": {[]string{"AGENT_RESUME_REPLAYS=1", "AGENT_REPLAY=after"}, "resume auto", 0},
		"nobody told of it":    {[]string{"AGENT_RESUME_REPLAYS=1", "AGENT_REPLAY=after"}, "resume", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t, c.env...)
			o := b.run("turn_0", turnRequest("@@flood 200@@ @@run echo once@@ @@say the first@@"))
			session := o.rung().AgentSession
			method, mode, _ := strings.Cut(c.method, " ")
			for i := range 5 {
				r := b.agentRequest(c.env...)
				r.Fingerprint = fmt.Sprint("f", i+10)
				if _, err := b.client.Agent(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				req := turnRequest(fmt.Sprintf("@@say turn %d@@", i), driverapi.Attempt{Rung: "native", Method: method, AgentSession: session})
				req.Fingerprint = r.Fingerprint
				req.Mode = mode
				o := b.run(fmt.Sprint("turn_", i+1), req)
				text, _, _ := strings.Cut(o.text(), "[")
				if text != fmt.Sprintf("turn %d", i) && c.slips > 0 {
					c.slips--
					continue
				}
				if o.rung().Rung != "native" || text != fmt.Sprintf("turn %d", i) || strings.Contains(fmt.Sprint(o.types()), "tool") {
					t.Errorf("load %d by %+v: %q, parts %v", i, o.rung(), o.text(), o.types())
				}
			}
		})
	}
}

// slowLog is a store that takes a while for each batch, and can be told to refuse.
type slowLog struct {
	transcript.Log
	wait time.Duration
	mu   sync.Mutex
	err  error
}

func (l *slowLog) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *slowLog) Append(ctx context.Context, id string, parts []transcript.Part) error {
	time.Sleep(l.wait) // the slowness itself is under test
	l.mu.Lock()
	err := l.err
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return l.Log.Append(ctx, id, parts)
}

// memory is the most that a process has had in memory, in bytes.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// A flood at full speed into a slow store loses nothing and fills nobody's memory.
// (10,000 updates: more only take longer.)
func TestFloodIntoASlowStore(t *testing.T) {
	t.Parallel()
	const n = 10_000
	b := scratch(t)
	r := record(t, b, resttest.New(t), nil)
	r.rec.Log = &slowLog{Log: r.w.Sessions.Log, wait: 2 * time.Millisecond}
	before := memory(t, b.cmd.Process.Pid)
	viewer := r.view("0.0")
	_, o := r.turn(func(req *driverapi.TurnRequest) { req.Prompt = fmt.Sprintf("@@flood %d 100@@", n) })
	if grown := memory(t, b.cmd.Process.Pid) - before; grown > 128<<20 { // with the race detector's own
		t.Errorf("the driver grew by %d MiB", grown>>20)
	}
	stored := r.w.Transcript(r.id)
	if s := <-viewer; !s.done || cmp.Diff(texts(stored), s.events) != "" {
		t.Errorf("done %v, %v: %d of %d parts seen", s.done, s.err, len(s.events), len(stored))
	}
	if len(stored) < n || int64(len(stored)) < o.end.Parts {
		t.Errorf("%d parts are stored, the driver had %d", len(stored), o.end.Parts)
	}
	text, _, _ := strings.Cut(o.text(), "[")
	wantNumbered(t, strings.ReplaceAll(text, "x", ""), "Update %d. ", n)
}

// The server's disk is full for a while: viewers see what is said, and no good end, until
// all of it is stored; then nothing is missing.
func TestServerDiskFull(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	r := record(t, b, resttest.New(t), nil)
	log := &slowLog{Log: r.w.Sessions.Log}
	r.rec.Log = log
	log.refuse(syscall.ENOSPC)
	viewer := r.view("0.0")
	turn := r.begin(func(req *driverapi.TurnRequest) { req.Prompt = "@@flood 3000 100@@ @@say the end@@" })
	recorded := make(chan error, 1)
	go func() { recorded <- r.record(t.Context(), turn) }()
	eventually(t, "the agent has ended", func() bool {
		s, err := b.client.Status(t.Context())
		return err == nil && s.Hello.Part > 3000
	})
	late := r.view("0.0") // one who comes now sees the same
	select {
	case s := <-viewer:
		t.Errorf("the stream ended: done %v, %v, %d events", s.done, s.err, len(s.events))
	case err := <-recorded:
		t.Errorf("the recording ended: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if n := len(r.w.Transcript(r.id)); n != 0 {
		t.Errorf("%d parts were stored", n)
	}
	log.refuse(nil)
	if err := <-recorded; err != nil {
		t.Fatal(err)
	}
	r.finish(turn)
	want := texts(r.w.Transcript(r.id))
	for _, v := range []<-chan seen{viewer, late} {
		if s := <-v; !s.done || s.err != nil || cmp.Diff(want, s.events) != "" {
			t.Errorf("done %v, %v: %d of %d events", s.done, s.err, len(s.events), len(want))
		}
	}
}
