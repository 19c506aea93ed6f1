package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

const secret = "sk-CANARY-0123456789abcdefghij"

// driver plays a turn's log; cut ends the log's stream once after that many records.
type driver struct {
	records []driverapi.Record
	err     error
}

func (d *driver) Log(_ context.Context, _ string, after int64, fn func(driverapi.Record) error) error {
	for _, r := range d.records {
		if r.Part != nil && r.N <= after || r.Part == nil && r.N < after {
			continue
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	return d.err
}

// world is sessions, store and viewers in one; it fails where it is told to.
type world struct {
	mu     sync.Mutex
	events []session.Event
	shown  []transcript.Part
	stored []transcript.Part
	fail   int // appends that fail
	status int // of the newest answer of the model
}

func (w *world) Apply(_ context.Context, _ session.ID, ev session.Event) (session.Aggregate, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, ev)
	return session.Aggregate{}, nil
}

func (w *world) Append(_ context.Context, _ string, parts []transcript.Part) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail > 0 {
		w.fail--
		return errors.New("the disk is slow")
	}
	w.stored = append(w.stored, parts...)
	return nil
}

func (w *world) Read(_ context.Context, _ string, after transcript.Cursor, limit int) ([]transcript.Part, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []transcript.Part
	for _, p := range w.stored {
		if after.Before(p.Cursor) && len(out) < limit {
			out = append(out, p)
		}
	}
	return out, nil
}

func (w *world) Last(context.Context, string, int64) (transcript.Cursor, error) {
	return transcript.Cursor{}, nil
}

func (w *world) recorder() *Recorder {
	return &Recorder{
		Sessions: w, Log: w, Now: time.Now, Slog: slog.New(slog.DiscardHandler), Stored: func(session.ID, transcript.Cursor) {},
		Secrets: func() [][]byte { return [][]byte{[]byte(secret)} },
		Publish: func(_ session.ID, parts []transcript.Part) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.shown = append(w.shown, parts...)
		},
	}
}

var theTurn = session.Turn{ID: "trn_1", Number: 3}

func part(n int64, p uistream.Part) driverapi.Record { return driverapi.Record{N: n, Part: p.Raw} }

func delta(id, s string) uistream.Part {
	b, err := json.Marshal(map[string]string{"type": "text-delta", "id": id, "delta": s})
	if err != nil {
		panic(err)
	}
	return uistream.Part{Type: uistream.TypeTextDelta, Raw: b}
}

func raw(s string) uistream.Part { return uistream.Part{Raw: json.RawMessage(s)} }

func talk() []driverapi.Record {
	return []driverapi.Record{
		part(1, raw(`{"type":"start","messageId":"trn_1"}`)),
		part(2, raw(`{"type":"start-step"}`)),
		{N: 2, Rung: &driverapi.RungTaken{Rung: "native", AgentSession: "as", Failed: []string{"live: the agent is gone"}}},
		{N: 2, Sent: true},
		part(3, raw(`{"type":"text-start","id":"a"}`)),
		part(4, delta("a", "the key is "+secret[:9])),
		part(5, delta("a", secret[9:]+" indeed")),
		part(6, raw(`{"type":"text-end","id":"a"}`)),
		{N: 6, End: &driverapi.End{Outcome: driverapi.OutcomeEndTurn, Clean: true, Parts: 6}},
	}
}

func find[T session.Event](events []session.Event) (out T, n int) {
	for _, e := range events {
		if t, ok := e.(T); ok {
			out = t
			n++
		}
	}
	return out, n
}

func record(t *testing.T, w *world, d *driver) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return w.recorder().Record(ctx, d, "ses_1", theTurn, func() Told { return Told{Usage: `{"models":[]}`, Status: w.status} })
}

func TestATurnIsRecorded(t *testing.T) {
	t.Parallel()
	w := &world{}
	if err := record(t, w, &driver{records: talk()}); err != nil {
		t.Fatal(err)
	}
	if len(w.stored) != 6 || len(w.shown) != 6 {
		t.Fatalf("%d stored, %d shown", len(w.stored), len(w.shown))
	}
	for i, p := range w.stored {
		if p.Cursor != (transcript.Cursor{Turn: 3, Part: int64(i + 1)}) || string(p.Body) != string(w.shown[i].Body) {
			t.Fatalf("part %d is %v", i, p)
		}
		if strings.Contains(string(p.Body), secret[:9]) || strings.Contains(string(p.Body), secret[9:]) {
			t.Fatalf("a secret was stored: %s", p.Body)
		}
	}
	sent, n := find[session.Sent](w.events)
	if n != 1 || sent.Rung != "native" || sent.AgentSession != "as" || sent.RungFailed != `["live: the agent is gone"]` {
		t.Fatalf("%d sent, %+v", n, sent)
	}
	done, n := find[session.AgentDone](w.events)
	if n != 1 || done.Outcome != "end_turn" || !done.Clean || done.Truncated != "" || done.Usage == "" {
		t.Fatalf("%d done, %+v", n, done)
	}
	if _, n := find[session.FirstPart](w.events); n != 1 {
		t.Fatalf("the first part was told %d times", n)
	}
}

func TestItGoesOnFromTheStore(t *testing.T) {
	t.Parallel()
	for cut := range len(talk()) {
		w := &world{}
		if err := record(t, w, &driver{records: talk()[:cut], err: errors.New("cut")}); err == nil {
			t.Fatal("a log without an end was taken for whole")
		}
		if err := record(t, w, &driver{records: talk()}); err != nil {
			t.Fatal(err)
		}
		if err := transcript.Check(transcript.Cursor{Turn: 3}, w.stored); err != nil || len(w.stored) != 6 {
			t.Fatalf("cut after %d: %d stored, %v", cut, len(w.stored), err)
		}
	}
}

func TestASlowStoreLosesNothing(t *testing.T) {
	t.Parallel()
	w := &world{fail: 4}
	if err := record(t, w, &driver{records: talk()}); err != nil {
		t.Fatal(err)
	}
	if len(w.stored) != 6 {
		t.Fatalf("%d stored", len(w.stored))
	}
}

func TestALyingDriverIsStopped(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]driverapi.Record{
		"gap":               part(4, raw(`{"type":"text-start","id":"b"}`)),
		"unknown type":      part(3, raw(`{"type":"nonsense"}`)),
		"server-made":       part(3, raw(`{"type":"data-turn-end","data":{}}`)),
		"finish":            part(3, raw(`{"type":"finish"}`)),
		"no JSON":           part(3, raw(`{"type":`)),
		"delta without one": part(3, delta("zz", "x")),
	} {
		w := &world{}
		log := append(talk()[:4:4], bad, part(5, raw(`{"type":"text-start","id":"late"}`)), driverapi.Record{N: 5, End: &driverapi.End{Outcome: driverapi.OutcomeEndTurn, Clean: true}})
		if err := record(t, w, &driver{records: log}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		fail, n := find[session.FailAsked](w.events)
		if n != 1 || fail.Code != fault.DriverInvalid {
			t.Errorf("%s: asked to fail %d times, %+v", name, n, fail)
		}
		done, _ := find[session.AgentDone](w.events)
		if done.Clean || done.Truncated == "" || len(w.stored) != 2 {
			t.Errorf("%s: %+v with %d parts stored", name, done, len(w.stored))
		}
	}
}

func TestAnUnknownTurnIsLostNotSentAgain(t *testing.T) {
	t.Parallel()
	w := &world{}
	if err := record(t, w, &driver{records: talk()[:5], err: fault.New(fault.TurnNotFound, "")}); err != nil {
		t.Fatal(err)
	}
	done, n := find[session.AgentDone](w.events)
	if n != 1 || done.Outcome != driverapi.OutcomeFailed || done.Code != fault.AgentLost || done.Truncated == "" {
		t.Fatalf("%d done, %+v", n, done)
	}
}

func TestFailuresAreToldInWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end  driverapi.End
		code fault.Code
		has  string
	}{
		{driverapi.End{Outcome: "failed", Code: "AGENT_EXITED", Exit: "signal: killed"}, fault.AgentExited, "(signal: killed)"},
		{driverapi.End{Outcome: "failed", Code: "MADE_UP", Message: "odd"}, fault.AgentFailed, "odd"},
		{driverapi.End{Outcome: "failed", Message: "the key " + secret + " was refused"}, fault.AgentFailed, transcript.Mask},
	} {
		w := &world{}
		if err := record(t, w, &driver{records: []driverapi.Record{{End: &c.end}}}); err != nil {
			t.Fatal(err)
		}
		done, _ := find[session.AgentDone](w.events)
		if done.Code != c.code || !strings.Contains(done.Message, c.has) || strings.Contains(done.Message, secret) {
			t.Errorf("%+v became %+v", c.end, done)
		}
	}
}

func TestAModelThatFailedTheAgentFailsTheTurn(t *testing.T) {
	t.Parallel()
	for status, outcome := range map[int]string{0: "end_turn", 200: "end_turn", 429: "failed", 500: "failed"} {
		w := &world{status: status}
		if err := record(t, w, &driver{records: talk()}); err != nil {
			t.Fatal(err)
		}
		done, _ := find[session.AgentDone](w.events)
		if done.Outcome != outcome || (outcome == "failed") != (done.Code == fault.ModelFailed) {
			t.Errorf("status %d: %+v", status, done)
		}
	}
}

func TestSealClosesWhateverIsThere(t *testing.T) {
	t.Parallel()
	all := []string{
		`{"type":"start","messageId":"trn_1"}`, `{"type":"start-step"}`, `{"type":"text-start","id":"a"}`, `{"type":"text-delta","id":"a","delta":"x"}`,
		`{"type":"tool-input-start","toolCallId":"c","toolName":"execute","dynamic":true}`, `{"type":"tool-input-available","toolCallId":"c","toolName":"execute","input":{},"dynamic":true}`,
	}
	w := &world{}
	r := w.recorder()
	for n := range len(all) + 1 {
		var stored []transcript.Part
		for i, s := range all[:n] {
			stored = append(stored, transcript.Part{Cursor: transcript.Cursor{Turn: 3, Part: int64(i + 1)}, Body: json.RawMessage(s)})
		}
		turn := theTurn
		turn.State, turn.Code, turn.EndedAt = session.TurnFailed, fault.SandboxLost, time.Now()
		got, err := r.Seal(&turn, stored)
		if err != nil {
			t.Fatalf("after %d parts: %v", n, err)
		}
		whole := append(stored, got...)
		c := uistream.NewChecker("trn_1")
		for _, p := range whole {
			if _, err := c.Stored(p.Body); err != nil {
				t.Fatalf("after %d parts: %s: %v", n, p.Body, err)
			}
		}
		if !c.Finished() || transcript.Check(transcript.Cursor{Turn: 3}, whole) != nil {
			t.Fatalf("after %d parts the message is not whole: %v", n, whole)
		}
		end := string(got[len(got)-2].Body)
		if !strings.Contains(end, `"code":"SANDBOX_LOST"`) || !strings.Contains(end, `"remedy"`) {
			t.Fatalf("turn end %s", end)
		}
		again, err := r.Seal(&turn, whole)
		if err != nil || len(again) != 0 {
			t.Fatalf("sealed twice: %v %v", again, err)
		}
	}
}

func TestLimitsOfATurn(t *testing.T) {
	t.Parallel()
	w := &world{}
	records := []driverapi.Record{part(1, raw(`{"type":"start","messageId":"trn_1"}`)), part(2, raw(`{"type":"text-start","id":"a"}`))}
	big := strings.Repeat("x", 1<<14)
	for n := int64(3); n < 200; n++ {
		records = append(records, part(n, delta("a", big)))
	}
	records = append(records, driverapi.Record{N: 199, End: &driverapi.End{Outcome: "end_turn", Clean: true}})
	r := w.recorder()
	r.MaxBytes = 1 << 20
	if err := r.Record(t.Context(), &driver{records: records}, "ses_1", theTurn, func() Told { return Told{} }); err != nil {
		t.Fatal(err)
	}
	done, _ := find[session.AgentDone](w.events)
	var size int
	for _, p := range w.stored {
		size += len(p.Body)
	}
	if size > 1<<20+1<<15 || !strings.Contains(done.Truncated, "left out") || done.Outcome != "end_turn" {
		t.Fatalf("%d bytes stored, %+v", size, done)
	}
	if len(w.stored) == 0 || transcript.Check(transcript.Cursor{Turn: 3}, w.stored) != nil {
		t.Fatal(fmt.Sprint("gaps in ", len(w.stored), " parts"))
	}
}
