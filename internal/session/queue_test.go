package session

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
)

func texts(a Aggregate) []string {
	var out []string
	for _, t := range a.Queue {
		out = append(out, string(t.ID)+":"+t.Prompt)
	}
	return out
}

func TestQueueIsChanged(t *testing.T) {
	t.Parallel()
	a, _ := must(t, running(t), prompt("t2"), prompt("t3"), prompt("t4"))
	for _, c := range []struct {
		name string
		ev   Event
		want []string
	}{
		{"text", QueueEdited{Turn: "t3", Prompt: "other", By: "ada"}, []string{"t2:do it", "t3:other", "t4:do it"}},
		{"first", QueueEdited{Turn: "t4", Position: 1}, []string{"t4:do it", "t2:do it", "t3:do it"}},
		{"last", QueueEdited{Turn: "t2", Position: 3}, []string{"t3:do it", "t4:do it", "t2:do it"}},
		{"beyond the end", QueueEdited{Turn: "t2", Position: 99}, []string{"t3:do it", "t4:do it", "t2:do it"}},
		{"where it is", QueueEdited{Turn: "t3", Position: 2}, []string{"t2:do it", "t3:do it", "t4:do it"}},
		{"both", QueueEdited{Turn: "t3", Prompt: "now", Position: 1}, []string{"t3:now", "t2:do it", "t4:do it"}},
		{"out", QueueRemoved{Turn: "t3", By: "ada"}, []string{"t2:do it", "t4:do it"}},
	} {
		b, eff := must(t, a, c.ev)
		if d := cmp.Diff(c.want, texts(b)); d != "" || len(eff) != 0 || b.Open.ID != "t1" || b.Open.State != TurnRunning || b.Session.QueueHeld {
			t.Errorf("%s: open %+v, held %t, effects %v, queue %s", c.name, b.Open, b.Session.QueueHeld, eff, d)
		}
		if !slices.IsSortedFunc(b.Queue, func(x, y *Turn) int { return int(x.Rank - y.Rank) }) {
			t.Errorf("%s: ranks are out of order", c.name)
		}
	}
	if d := cmp.Diff([]string{"t2:do it", "t3:do it", "t4:do it"}, texts(a)); d != "" {
		t.Errorf("the argument changed: %s", d)
	}
	b, _ := must(t, a, QueueEdited{Turn: "t2", Prompt: "a longer text", By: "ada"})
	if q := b.Queue[0]; q.EditedBy != "ada" || !q.EditedAt.Equal(t0) || b.Session.PromptLen != a.Session.PromptLen+8 {
		t.Errorf("edited %+v, %d bytes of prompts after %d", q, b.Session.PromptLen, a.Session.PromptLen)
	}
	b, _ = must(t, a, QueueRemoved{Turn: "t3", By: "ada"})
	if e := b.Ended[0]; e.ID != "t3" || e.End != EndNeverSent || e.State != TurnCanceled || e.StopBy != "ada" || !e.StartedAt.IsZero() || e.Number == 0 {
		t.Errorf("removed %+v", e)
	}
	for _, ev := range []Event{QueueEdited{Turn: "t1", Prompt: "x"}, QueueEdited{Turn: "none", Position: 1}, QueueRemoved{Turn: "t1"}, QueueRemoved{Turn: "none"}} {
		if _, _, err := Apply(a, ev, t0); fault.CodeOf(err) != fault.TurnNotQueued {
			t.Errorf("%+v: %v", ev, err)
		}
	}
	d, _ := must(t, a, DeleteAsked{Force: true})
	for _, ev := range []Event{QueueEdited{Turn: "t2", Prompt: "x"}, HoldAsked{}} {
		if _, _, err := Apply(d, ev, t0); fault.CodeOf(err) != fault.SessionDeleting {
			t.Errorf("%+v while deleting: %v", ev, err)
		}
	}
}

func TestEditsCountAgainstTheLimits(t *testing.T) {
	t.Parallel()
	a, _ := must(t, running(t), prompt("t2"))
	if _, _, err := Apply(a, QueueEdited{Turn: "t2", Prompt: strings.Repeat("x", MaxPromptBytes+1)}, t0); fault.CodeOf(err) != fault.PromptTooLarge {
		t.Errorf("one prompt: %v", err)
	}
	a.Session.PromptLen = MaxPromptsBytes
	if _, _, err := Apply(a, QueueEdited{Turn: "t2", Prompt: "do it!"}, t0); fault.CodeOf(err) != fault.PromptTooLarge {
		t.Errorf("all prompts: %v", err)
	}
	b, _ := must(t, a, QueueEdited{Turn: "t2", Prompt: "do"})
	if b.Session.PromptLen != MaxPromptsBytes-3 {
		t.Errorf("a shorter one leaves %d bytes", b.Session.PromptLen)
	}
	must(t, b, QueueEdited{Turn: "t2", Prompt: "do it"})
}

// A queue that is held by hand stays held over every end, until somebody lets it go on.
func TestHoldByHand(t *testing.T) {
	t.Parallel()
	a, eff := must(t, running(t), prompt("t2"), HoldAsked{}, HoldAsked{})
	if len(eff) != 0 || a.Open.State != TurnRunning || a.Session.Phase != PhaseRunning || !a.Session.QueueHeld {
		t.Fatalf("open %+v, phase %s, effects %v", a.Open, a.Session.Phase, eff)
	}
	for name, evs := range map[string][]Event{
		"completed": {AgentDone{Turn: "t1", Outcome: "end_turn"}, Packed{Turn: "t1", OID: "c"}, Delivered{Turn: "t1", Delivery: Delivery{State: DeliveryPushed, OID: "c"}}},
		"failed":    {AgentDone{Turn: "t1", Outcome: "failed", Code: fault.AgentExited}, PackFailed{Turn: "t1", Code: fault.PackFailed}},
		"canceled":  {CancelAsked{}, AgentDone{Turn: "t1", Outcome: "canceled"}, Packed{Turn: "t1"}},
		"lost":      {SandboxGone{Generation: 1, Code: fault.SandboxLost}},
	} {
		b, _ := must(t, a, evs...)
		if b.Open != nil || !b.Session.QueueHeld || len(b.Queue) != 1 || b.Session.Phase == PhaseQueued {
			t.Errorf("%s: held %t, phase %s, open %+v", name, b.Session.QueueHeld, b.Session.Phase, b.Open)
		}
		for _, on := range []Event{QueueReleased{}, prompt("t3"), Prompted{Turn: Turn{ID: "t2", Prompt: "x"}, Mode: ModeInterrupt}} {
			if c, _ := must(t, b, on); c.Open == nil || c.Open.ID != "t2" || c.Session.QueueHeld {
				t.Errorf("%s, then %s: open %+v", name, on.event(), c.Open)
			}
		}
	}
}

// A cancel holds the queue when it is asked: what lets it go on while the turn stops is not
// undone by the turn's end, and a further cancel holds it again.
func TestReleaseWhileACancelStops(t *testing.T) {
	t.Parallel()
	a, _ := must(t, running(t), prompt("t2"), CancelAsked{})
	if !a.Session.QueueHeld {
		t.Fatal("the cancel does not hold the queue")
	}
	ends := map[string][]Event{
		"answered":    {AgentDone{Turn: "t1", Outcome: "canceled"}, Packed{Turn: "t1"}},
		"not in time": {SandboxGone{Generation: 1, Code: fault.SandboxLost}},
	}
	for name, end := range ends {
		for _, on := range []Event{QueueReleased{}, prompt("t3"), Prompted{Turn: Turn{ID: "t3", Prompt: "x"}, Mode: ModeInterrupt}} {
			b, _ := must(t, a, append([]Event{on}, end...)...)
			if b.Open == nil || b.Session.QueueHeld || b.Last.End != EndCancel {
				t.Errorf("%s, after %s: held %t, open %+v, last %+v", name, on.event(), b.Session.QueueHeld, b.Open, b.Last)
			}
			b, _ = must(t, a, append([]Event{on, CancelAsked{}}, end...)...)
			if b.Open != nil || !b.Session.QueueHeld {
				t.Errorf("%s, after %s and another cancel: held %t, open %+v", name, on.event(), b.Session.QueueHeld, b.Open)
			}
		}
	}
}

// A newer prompt that interrupts goes out before one that waited already, which still waits.
func TestInterruptGoesBeforeTheQueue(t *testing.T) {
	t.Parallel()
	a, _ := must(t, running(t), prompt("A"), Prompted{Turn: Turn{ID: "B", Prompt: "steer"}, Mode: ModeInterrupt})
	if d := cmp.Diff([]string{"B:steer", "A:do it"}, texts(a)); d != "" || a.Open.State != TurnStopping {
		t.Fatalf("%s, open %+v", d, a.Open)
	}
	a, eff := must(t, a, AgentDone{Turn: "t1", Outcome: "canceled"}, Packed{Turn: "t1"})
	if a.Open == nil || a.Open.ID != "B" || a.Open.Prompt != "steer" || len(a.Queue) != 1 || a.Queue[0].ID != "A" || !slices.Contains(kinds(eff), EffectSendPrompt) {
		t.Fatalf("open %+v, queue %v, effects %v", a.Open, texts(a), kinds(eff))
	}
	// An open question goes in the same step.
	q, _ := must(t, running(t), prompt("A"), asks(1))
	q, _ = must(t, q, Prompted{Turn: Turn{ID: "B", Prompt: "steer"}, Mode: ModeInterrupt})
	if q.Questions[0].State != QuestionCanceled || q.Open.State != TurnStopping || q.Session.Phase != PhaseStopping {
		t.Fatalf("question %s, open %+v", q.Questions[0].State, q.Open)
	}
	if d := cmp.Diff([]string{"B:steer", "A:do it"}, texts(q)); d != "" {
		t.Error(d)
	}
}

// Wherever a cancel falls, the prompt has reached the agent or has an end that says it did
// not, and what waited behind it waits still.
func TestCancelAroundDelivery(t *testing.T) {
	t.Parallel()
	way := []Event{
		SandboxCreated{1, "h"}, SandboxReady{1}, Handed{Turn: "t1"}, Sent{Turn: "t1", At: t0}, AgentDone{Turn: "t1", Outcome: "end_turn"}, Packed{Turn: "t1", OID: "c"}, PushSent{"t1"},
	}
	for n := range len(way) + 1 {
		a, _ := must(t, fresh(), append([]Event{prompt("t1"), prompt("t2")}, way[:n]...)...)
		reached := !a.Open.StartedAt.IsZero()
		b, _, err := Apply(a, CancelAsked{Turn: "t1"}, t0)
		if n == len(way) {
			if fault.CodeOf(err) != fault.NothingToCancel {
				t.Errorf("after the push has begun: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d: %v", n, err)
		}
		if d := cmp.Diff([]string{"t2:do it"}, texts(b)); d != "" || !b.Session.QueueHeld && b.Open == nil {
			t.Errorf("%d: held %t, queue %s", n, b.Session.QueueHeld, d)
		}
		if !reached {
			if len(b.Ended) != 1 || b.Ended[0].End != EndNeverSent || b.Ended[0].Code != fault.TurnCanceled {
				t.Errorf("%d: not sent, and ended as %+v", n, b.Ended)
			}
			if _, _, err := Apply(b, Handed{Turn: "t1"}, t0); fault.CodeOf(err) != fault.IllegalMove {
				t.Errorf("%d: it can be handed over after the cancel: %v", n, err)
			}
			continue
		}
		for _, ev := range []Event{AgentDone{Turn: "t1", Outcome: "canceled"}, Packed{Turn: "t1", OID: "c"}, Delivered{Turn: "t1", Delivery: Delivery{State: DeliveryHeld}}} {
			if c, _, err := Apply(b, ev, t0); err == nil {
				b = c
			}
		}
		if b.Open != nil || b.Last == nil || b.Last.End != EndCancel || b.Last.StartedAt.IsZero() || !b.Session.QueueHeld || len(b.Queue) != 1 {
			t.Errorf("%d: sent, and left as %+v, queue %v", n, b.Last, texts(b))
		}
	}
}

// waits is what the walk expects of a prompt in the queue.
type waits struct {
	id   TurnID
	text string
}

// walk throws events at a session as pick says, and holds the queue against a plain list.
func walk(t *testing.T, steps int, pick func(n int) int) {
	t.Helper()
	a := fresh()
	now := t0
	var queue []waits
	ended, gone := map[TurnID]bool{}, map[TurnID]bool{}
	accepted, removed := 0, 0
	bytes := int64(0)
	for step := range steps {
		now = now.Add(time.Second)
		turn := TurnID("none")
		if a.Open != nil {
			turn = a.Open.ID
		}
		gen := a.Session.Generation
		id := TurnID(fmt.Sprint("t", step))
		waiting := TurnID("none")
		if len(queue) > 0 {
			waiting = queue[pick(len(queue))].id
		}
		question := QuestionIDOf(turn, 1)
		if a.Open != nil {
			question = QuestionIDOf(turn, a.Open.Asked)
		}
		asked := QuestionAsked{Question{Turn: turn, Kind: QuestionPermission}}
		if a.Open != nil {
			asked.Question.Number = a.Open.Asked + 1
		}
		evs := []Event{
			Prompted{Turn: Turn{ID: id, Prompt: "text " + string(id)}}, Prompted{Turn: Turn{ID: id, Prompt: "text " + string(id)}}, Prompted{Turn: Turn{ID: id, Prompt: "stop " + string(id)}, Mode: ModeInterrupt},
			Prompted{Turn: Turn{ID: id, Prompt: "only"}, Mode: ModeReject},
			QueueEdited{Turn: waiting, Prompt: "edit " + string(id)}, QueueEdited{Turn: waiting, Position: 1 + pick(4)}, QueueEdited{Turn: waiting, Prompt: "move " + string(id), Position: 1 + pick(40)},
			QueueRemoved{Turn: waiting}, QueueEdited{Turn: turn, Prompt: "too late"}, QueueRemoved{Turn: turn}, CancelAsked{Turn: waiting}, HoldAsked{}, QueueReleased{}, CancelAsked{},
			SandboxCreated{gen, "h"}, SandboxReady{gen}, SandboxReady{gen}, SandboxFailed{gen, fault.SandboxStartFailed, ""}, Handed{Turn: turn}, Handed{Turn: turn}, Sent{Turn: turn, At: now}, Sent{Turn: turn, At: now},
			AgentDone{Turn: turn, Outcome: "end_turn"}, AgentDone{Turn: turn, Outcome: "end_turn"}, AgentDone{Turn: turn, Outcome: "failed", Code: fault.AgentExited}, Packed{Turn: turn, OID: string(id)}, Packed{Turn: turn},
			Packed{Turn: turn}, PackFailed{Turn: turn, Code: fault.PackFailed}, PushSent{turn}, Delivered{Turn: turn, Delivery: Delivery{State: DeliveryPushed, OID: a.Session.PackOID}},
			FailAsked{Turn: turn, Code: fault.ModelKeyRejected}, SandboxGone{Generation: gen, Code: fault.SandboxLost}, IdleExpired{Before: now},
			DeliverAsked{}, DiscardAsked{}, Discarded{}, asked, QuestionAnswered{ID: question, Verdict: VerdictAllow}, QuestionWithdrawn{question}, DeleteAsked{},
		}
		ev := evs[pick(len(evs))]
		next, _, err := Apply(a, ev, now)
		if err != nil {
			var f *fault.Error
			if !errors.As(err, &f) {
				t.Fatalf("step %d: %s gave an uncoded error %v", step, ev.event(), err)
			}
			if full := len(queue) == MaxQueue; full != (f.Code == fault.QueueFull) && ev.event() == "prompted" && f.Code != fault.TurnInFlight && f.Code != fault.SessionDeleting {
				t.Fatalf("step %d: %d wait, and a prompt is refused with %v", step, len(queue), err)
			}
			continue
		}
		place := func(id TurnID) int { return slices.IndexFunc(queue, func(w waits) bool { return w.id == id }) }
		switch e := ev.(type) {
		case Prompted:
			accepted++
			bytes += int64(len(e.Turn.Prompt))
			w := waits{e.Turn.ID, e.Turn.Prompt}
			if e.Mode == ModeInterrupt {
				queue = slices.Insert(queue, 0, w)
			} else {
				queue = append(queue, w)
			}
		case QueueEdited:
			i := place(e.Turn)
			if i < 0 {
				t.Fatalf("step %d: %s was changed and does not wait", step, e.Turn)
			}
			w := queue[i]
			if e.Prompt != "" {
				bytes += int64(len(e.Prompt) - len(w.text))
				w.text = e.Prompt
			}
			queue[i] = w
			if e.Position > 0 {
				queue = slices.Delete(queue, i, i+1)
				queue = slices.Insert(queue, min(e.Position-1, len(queue)), w)
			}
		case QueueRemoved:
			queue = slices.Delete(queue, place(e.Turn), place(e.Turn)+1)
			gone[e.Turn] = true
			removed++
		case CancelAsked:
			if i := place(e.Turn); i >= 0 {
				queue = slices.Delete(queue, i, i+1)
				gone[e.Turn] = true
			}
		case DeleteAsked:
			queue = nil
		}
		if next.Open != nil && next.Open.ID != turn {
			if len(queue) == 0 || next.Open.ID != queue[0].id || gone[next.Open.ID] {
				t.Fatalf("step %d: after %s %s goes out, and %v wait", step, ev.event(), next.Open.ID, queue)
			}
			if next.Open.Prompt != queue[0].text {
				t.Fatalf("step %d: %q goes out instead of %q", step, next.Open.Prompt, queue[0].text)
			}
			queue = queue[1:]
		}
		if next.Open != nil && a.Open != nil && next.Open.ID == a.Open.ID && next.Open.Prompt != a.Open.Prompt {
			t.Fatalf("step %d: the prompt of a turn at work changed", step)
		}
		got := make([]waits, 0, len(next.Queue))
		for i, q := range next.Queue {
			got = append(got, waits{q.ID, q.Prompt})
			if q.State != TurnAccepted || q.Number != 0 || i > 0 && q.Rank <= next.Queue[i-1].Rank {
				t.Fatalf("step %d: queued turn %+v", step, q)
			}
		}
		if !slices.Equal(got, queue) {
			t.Fatalf("step %d: after %+v the queue is %v, want %v", step, ev, got, queue)
		}
		for _, e := range next.Ended {
			if ended[e.ID] || !e.State.Terminal() || e.Number == 0 || e.EndedAt.IsZero() || e.End == "" && e.Delivery.State == DeliveryNone {
				t.Fatalf("step %d: after %s ended %+v, before %t", step, ev.event(), e, ended[e.ID])
			}
			ended[e.ID] = true
		}
		open := 0
		state := TurnState("")
		if next.Open != nil {
			open, state = 1, next.Open.State
		}
		if open == 1 && !state.Open() || !slices.Contains(pairs[state], next.Session.Sandbox) {
			t.Fatalf("step %d: after %s a turn that is %q beside a sandbox that is %s", step, ev.event(), state, next.Session.Sandbox)
		}
		if open+len(next.Queue)+len(ended) != accepted || next.Session.Turns != int64(open+len(ended)) || len(next.Queue) > MaxQueue || next.Session.PromptLen != bytes {
			t.Fatalf("step %d: after %s %d accepted, %d open, %d wait, %d ended, %d numbered; %d bytes, want %d", step, ev.event(), accepted, open, len(next.Queue), len(ended), next.Session.Turns, next.Session.PromptLen, bytes)
		}
		if open == 0 && len(next.Queue) > 0 && !next.Session.QueueHeld {
			t.Fatalf("step %d: after %s the queue stands still", step, ev.event())
		}
		for _, q := range next.Questions {
			if q.State == QuestionPending && (open == 0 || next.Open.ID != q.Turn || state != TurnWaiting) {
				t.Fatalf("step %d: after %s the question %s waits beside a turn that is %q", step, ev.event(), q.ID, state)
			}
		}
		next.Ended = nil
		next.Questions = slices.DeleteFunc(next.Questions, func(q *Question) bool { return q.State != QuestionPending })
		a = next
	}
}

// TestQueueWalks throws events in any order at sessions; the queue must be what a plain list would be.
func TestQueueWalks(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { walk(t, 250, r.IntN) })
	}
}

func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 14, 15, 18, 20, 4, 5, 22, 26})
	f.Add([]byte("prompts that wait, and turns that end"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		walk(t, min(len(raw), 400), func(n int) int {
			if len(raw) == 0 {
				return 0
			}
			b := int(raw[0])
			raw = raw[1:]
			return b % n
		})
	})
}
