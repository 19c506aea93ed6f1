package session

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

var t0 = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func fresh() Aggregate {
	return Aggregate{Session: Session{ID: "ses_1", Workspace: "w", Repo: "https://git.test/r.git", BaseOID: "base", Sandbox: SandboxNone, Phase: PhaseIdle}}
}

// must applies events in order, one second apart.
func must(t *testing.T, a Aggregate, evs ...Event) (Aggregate, []Effect) {
	t.Helper()
	var all []Effect
	for i, ev := range evs {
		var eff []Effect
		var err error
		a, eff, err = Apply(a, ev, t0.Add(time.Duration(i)*time.Second))
		if err != nil {
			t.Fatalf("event %d %s: %v", i, ev.event(), err)
		}
		all = append(all, eff...)
	}
	return a, all
}

func kinds(effects []Effect) []EffectKind {
	var out []EffectKind
	for _, e := range effects {
		out = append(out, e.Kind)
	}
	return out
}

func prompt(id TurnID) Prompted { return Prompted{Turn: Turn{ID: id, Prompt: "do it"}} }

// running brings a session to a running turn "t1".
func running(t *testing.T) Aggregate {
	t.Helper()
	a, _ := must(t, fresh(), prompt("t1"), SandboxCreated{1, "h"}, SandboxReady{1}, Handed{Turn: "t1", Agent: "pi"}, Sent{Turn: "t1", Rung: "fresh", At: t0})
	if a.Open.State != TurnRunning || a.Session.Phase != PhaseRunning {
		t.Fatalf("turn is %s, phase %s", a.Open.State, a.Session.Phase)
	}
	return a
}

func TestOneTaskGoesTheWholeWay(t *testing.T) {
	a, eff := must(t, fresh(), prompt("t1"))
	if a.Session.Phase != PhaseStarting || !slices.Equal(kinds(eff), []EffectKind{EffectStartSandbox}) || eff[0].Generation != 1 {
		t.Fatalf("after the prompt: %s %v", a.Session.Phase, eff)
	}
	a, eff = must(t, a, SandboxCreated{1, "h"}, SandboxReady{1})
	if !slices.Equal(kinds(eff), []EffectKind{EffectSendPrompt}) || eff[0].Turn != "t1" {
		t.Fatalf("after the sandbox: %v", eff)
	}
	a, eff = must(t, a, Handed{Turn: "t1", Agent: "pi"}, Sent{Turn: "t1", Rung: "fresh", At: t0}, AgentDone{Turn: "t1", Outcome: "end_turn", Clean: true})
	if !slices.Equal(kinds(eff), []EffectKind{EffectLimitTurn, EffectPack}) || a.Session.Phase != PhaseDelivering {
		t.Fatalf("after the agent: %v %s", eff, a.Session.Phase)
	}
	a, eff = must(t, a, Packed{Turn: "t1", OID: "c1", Commits: 1})
	if !slices.Equal(kinds(eff), []EffectKind{EffectDeliver}) {
		t.Fatalf("after the pack: %v", eff)
	}
	a, eff = must(t, a, PushSent{"t1"}, Delivered{Turn: "t1", Delivery: Delivery{State: DeliveryPushed, OID: "c1"}, RemoteOID: "c1"})
	if len(eff) != 0 || a.Open != nil || len(a.Ended) != 1 || a.Ended[0].State != TurnCompleted || a.Session.Phase != PhaseIdle {
		t.Fatalf("at the end: %v %+v", eff, a)
	}
	if a.Session.DeliveredOID != "c1" || a.Session.RemoteOID != "c1" || a.Session.Undelivered() {
		t.Fatalf("session does not know what was delivered: %+v", a.Session)
	}
	if a.Session.Sandbox != SandboxHot || a.Session.IdleSince.IsZero() {
		t.Fatal("the sandbox should stay, idle")
	}
	// The second prompt goes to the sandbox that is there.
	_, eff = must(t, a, prompt("t2"))
	if !slices.Equal(kinds(eff), []EffectKind{EffectSendPrompt}) {
		t.Fatalf("second prompt: %v", eff)
	}
}

func TestEveryEndHasARowAndEveryRowIsReached(t *testing.T) {
	reached := map[End]bool{}
	for _, c := range []struct {
		name    string
		from    func(*testing.T) Aggregate
		events  []Event
		end     End
		state   TurnState
		effects []EffectKind
		held    bool
		deliver DeliveryState
		sandbox SandboxState
	}{
		{"refusal", running, []Event{AgentDone{Turn: "t1", Outcome: "refusal", Clean: true}, Packed{Turn: "t1"}}, EndRefused, TurnCompleted, []EffectKind{EffectPack}, false, DeliveryNoChanges, SandboxHot},
		{"end of turn", running, []Event{AgentDone{Turn: "t1", Outcome: "end_turn", Clean: true}, Packed{Turn: "t1"}}, EndTurn, TurnCompleted, []EffectKind{EffectPack}, false, DeliveryNoChanges, SandboxHot},
		{"total limit", running, []Event{AgentDone{Turn: "t1", Outcome: "failed", Code: fault.TurnLimit}, Packed{Turn: "t1", OID: "c"}, Delivered{Turn: "t1", Delivery: Delivery{State: DeliveryPushed, OID: "c"}}}, EndLimit, TurnFailed, []EffectKind{EffectPack, EffectDeliver}, true, DeliveryPushed, SandboxHot},
		{"agent exit", running, []Event{AgentDone{Turn: "t1", Outcome: "failed", Code: fault.AgentExited}, Packed{Turn: "t1", OID: "c"}}, EndFailure, TurnFailed, []EffectKind{EffectPack}, true, DeliveryHeld, SandboxHot},
		{"cancel", running, []Event{CancelAsked{}, AgentDone{Turn: "t1", Outcome: "canceled", Clean: true}, Packed{Turn: "t1", OID: "c"}}, EndCancel, TurnCanceled, []EffectKind{EffectCancelTurn, EffectForceEnd, EffectPack}, true, DeliveryHeld, SandboxHot},
		{"rejected key", running, []Event{FailAsked{Turn: "t1", Code: fault.ModelKeyRejected}, AgentDone{Turn: "t1", Outcome: "failed", Code: fault.ModelKeyRejected}, Packed{Turn: "t1"}}, EndFailure, TurnFailed, []EffectKind{EffectCancelTurn, EffectForceEnd, EffectPack}, true, DeliveryNoChanges, SandboxHot},
		{"sandbox start", func(t *testing.T) Aggregate { a, _ := must(t, fresh(), prompt("t1")); return a }, []Event{SandboxFailed{1, fault.SandboxUnsupported, "no"}}, EndStartFailed, TurnFailed, []EffectKind{EffectReleaseSandbox}, true, DeliveryNone, SandboxNone},
		{"sandbox lost", running, []Event{SandboxGone{Generation: 1, Code: fault.SandboxLost, Truncated: "lost"}}, EndLost, TurnFailed, []EffectKind{EffectReleaseSandbox}, true, DeliveryNone, SandboxLost},
		{"cancel while starting", func(t *testing.T) Aggregate { a, _ := must(t, fresh(), prompt("t1")); return a }, []Event{CancelAsked{}}, EndNeverSent, TurnCanceled, nil, true, DeliveryNone, SandboxStarting},
		{"cancel that needed force", running, []Event{CancelAsked{}, SandboxGone{Generation: 1}}, EndCancel, TurnCanceled, []EffectKind{EffectCancelTurn, EffectForceEnd, EffectReleaseSandbox}, true, DeliveryNone, SandboxLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, eff := must(t, c.from(t), c.events...)
			if len(a.Ended) != 1 {
				t.Fatalf("ended %v", a.Ended)
			}
			e := a.Ended[0]
			reached[e.End] = true
			if e.End != c.end || e.State != c.state || e.Delivery.State != c.deliver || a.Session.QueueHeld != c.held || a.Session.Sandbox != c.sandbox {
				t.Errorf("end %s state %s delivery %q held %v sandbox %s", e.End, e.State, e.Delivery.State, a.Session.QueueHeld, a.Session.Sandbox)
			}
			if !slices.Equal(kinds(eff), c.effects) {
				t.Errorf("effects %v", kinds(eff))
			}
			if e.State != TurnCompleted && e.Code == "" && c.name != "cancel that needed force" {
				t.Errorf("no code on a turn that is %s", e.State)
			}
			if e.EndedAt.IsZero() {
				t.Error("no time of the end")
			}
		})
	}
	t.Run("interrupt", func(t *testing.T) {
		a, eff := must(t, running(t), Prompted{Turn: Turn{ID: "t2", Prompt: "now"}, Mode: ModeInterrupt}, AgentDone{Turn: "t1", Outcome: "canceled", Clean: true}, Packed{Turn: "t1", OID: "c"})
		reached[EndInterrupt] = true
		if a.Ended[0].End != EndInterrupt || a.Open == nil || a.Open.ID != "t2" || a.Session.QueueHeld {
			t.Fatalf("%+v", a)
		}
		if got := kinds(eff); !slices.Equal(got, []EffectKind{EffectCancelTurn, EffectForceEnd, EffectPack, EffectSendPrompt}) {
			t.Fatalf("effects %v", got)
		}
		// Its work goes out with the next turn, even if that one changes nothing.
		_, eff = must(t, a, Handed{Turn: "t2"}, Sent{Turn: "t2", At: t0}, AgentDone{Turn: "t2", Outcome: "end_turn"}, Packed{Turn: "t2"})
		if got := kinds(eff); !slices.Equal(got, []EffectKind{EffectLimitTurn, EffectPack, EffectDeliver}) {
			t.Fatalf("effects of the next turn %v", got)
		}
	})
	for _, r := range ends {
		if !reached[r.End] {
			t.Errorf("no case reaches the end %s", r.End)
		}
	}
}

func TestCancelInEachPhase(t *testing.T) {
	a, _ := must(t, running(t), prompt("t2"), prompt("t3"))
	a, eff := must(t, a, CancelAsked{Turn: "t3"})
	if len(eff) != 0 || len(a.Queue) != 1 || a.Ended[0].ID != "t3" || a.Ended[0].State != TurnCanceled || a.Session.QueueHeld {
		t.Fatalf("queued turn: %v %+v", eff, a)
	}
	a, _ = must(t, a, CancelAsked{})
	if a.Open.State != TurnStopping || a.Session.Phase != PhaseStopping {
		t.Fatalf("running turn: %s", a.Open.State)
	}
	b, eff := must(t, a, CancelAsked{}, CancelAsked{Turn: "t1"})
	if len(eff) != 0 || b.Open.State != TurnStopping {
		t.Fatal("a second cancel must change nothing")
	}
	a, _ = must(t, a, AgentDone{Turn: "t1", Outcome: "canceled"}, Packed{Turn: "t1"})
	if a.Open != nil || len(a.Queue) != 1 || a.Session.Phase != PhaseIdle {
		t.Fatalf("the queue must be held after a cancel: %+v", a.Session)
	}
	a, _ = must(t, a, QueueReleased{})
	if a.Open == nil || a.Open.ID != "t2" {
		t.Fatal("a released queue must go on")
	}
	if _, _, err := Apply(fresh(), CancelAsked{}, t0); fault.CodeOf(err) != fault.NothingToCancel {
		t.Fatalf("idle session: %v", err)
	}
	if _, _, err := Apply(running(t), CancelAsked{Turn: "other"}, t0); fault.CodeOf(err) != fault.TurnNotFound {
		t.Fatalf("unknown turn: %v", err)
	}
	// While the work is packed the delivery can still be stopped, once the push is out it cannot.
	d, _ := must(t, running(t), AgentDone{Turn: "t1", Outcome: "end_turn"}, CancelAsked{}, Packed{Turn: "t1", OID: "c"})
	if d.Ended[0].State != TurnCanceled || d.Ended[0].Delivery.State != DeliveryHeld {
		t.Fatalf("cancel before the pack: %+v", d.Ended[0])
	}
	d, _ = must(t, running(t), AgentDone{Turn: "t1", Outcome: "end_turn"}, Packed{Turn: "t1", OID: "c"}, PushSent{"t1"})
	if _, _, err := Apply(d, CancelAsked{}, t0); fault.CodeOf(err) != fault.NothingToCancel {
		t.Fatalf("cancel after the push: %v", err)
	}
	d, _ = must(t, running(t), AgentDone{Turn: "t1", Outcome: "end_turn"}, Packed{Turn: "t1", OID: "c"}, CancelAsked{})
	if _, _, err := Apply(d, PushSent{"t1"}, t0); fault.CodeOf(err) != fault.TurnCanceled {
		t.Fatalf("push after the cancel: %v", err)
	}
}

func TestSandboxThatDiedIdleCostsNoTurn(t *testing.T) {
	t.Parallel()
	a, _ := must(t, running(t), AgentDone{Turn: "t1", Outcome: "end_turn", Clean: true}, Packed{Turn: "t1"}, prompt("t2"))
	gone := SandboxGone{Generation: 1, Code: fault.SandboxLost}
	a, eff := must(t, a, gone)
	if a.Open == nil || a.Open.ID != "t2" || a.Open.State != TurnStarting || !a.Open.SandboxAt.IsZero() || a.Session.Sandbox != SandboxStarting || a.Session.Generation != 2 {
		t.Fatalf("open %+v, session %+v", a.Open, a.Session)
	}
	if got := kinds(eff); !slices.Equal(got, []EffectKind{EffectReleaseSandbox, EffectStartSandbox}) {
		t.Errorf("effects %v", got)
	}
	// One that has served nothing and dies at once ends the turn: it would go on for ever.
	a, _ = must(t, a, SandboxReady{2}, SandboxGone{Generation: 2, Code: fault.SandboxLost})
	if len(a.Ended) != 1 || a.Ended[0].End != EndStartFailed || a.Ended[0].Code != fault.SandboxLost || a.Session.Sandbox != SandboxLost {
		t.Errorf("ended %+v, sandbox %s", a.Ended, a.Session.Sandbox)
	}
}

func TestInterruptBeforeAnythingWasSent(t *testing.T) {
	t.Parallel()
	a, _ := must(t, fresh(), prompt("t1"), Prompted{Turn: Turn{ID: "t2", Prompt: "now"}, Mode: ModeInterrupt})
	if len(a.Ended) != 1 || a.Ended[0].Code != fault.TurnInterrupted || a.Open == nil || a.Open.ID != "t2" || a.Session.QueueHeld {
		t.Fatalf("ended %+v, open %+v, held %t", a.Ended, a.Open, a.Session.QueueHeld)
	}
	a, eff := must(t, a, SandboxReady{1})
	if a.Open.State != TurnStarting || !slices.Contains(kinds(eff), EffectSendPrompt) {
		t.Errorf("open %+v, effects %v", a.Open, kinds(eff))
	}
}

func TestPromptRules(t *testing.T) {
	a := running(t)
	if _, _, err := Apply(a, Prompted{Turn: Turn{ID: "x", Prompt: "p"}, Mode: ModeReject}, t0); fault.CodeOf(err) != fault.TurnInFlight {
		t.Fatalf("reject: %v", err)
	}
	for i := range MaxQueue {
		a, _ = must(t, a, prompt(TurnID(fmt.Sprint("q", i))))
	}
	if _, _, err := Apply(a, prompt("x"), t0); fault.CodeOf(err) != fault.QueueFull {
		t.Fatalf("full queue: %v", err)
	}
	big := make([]byte, MaxPromptBytes)
	b := fresh()
	b.Session.PromptLen = MaxPromptsBytes - 10
	if _, _, err := Apply(b, Prompted{Turn: Turn{ID: "x", Prompt: string(big)}}, t0); fault.CodeOf(err) != fault.PromptTooLarge {
		t.Fatalf("session quota: %v", err)
	}
	if _, _, err := Apply(fresh(), Prompted{Turn: Turn{ID: "x", Prompt: string(append(big, 'x'))}}, t0); fault.CodeOf(err) != fault.PromptTooLarge {
		t.Fatalf("one prompt: %v", err)
	}
	// A held queue goes on with a new prompt, in order.
	c, _ := must(t, running(t), prompt("t2"), CancelAsked{}, AgentDone{Turn: "t1", Outcome: "canceled"}, Packed{Turn: "t1"}, prompt("t3"))
	if c.Open.ID != "t2" || len(c.Queue) != 1 || c.Queue[0].ID != "t3" {
		t.Fatalf("order: open %v queue %v", c.Open.ID, c.Queue)
	}
}

func TestDeleteAsksForForceOverUndeliveredWork(t *testing.T) {
	a, _ := must(t, running(t), AgentDone{Turn: "t1", Outcome: "failed", Code: fault.AgentExited}, Packed{Turn: "t1", OID: "c"})
	if _, _, err := Apply(a, DeleteAsked{}, t0); fault.CodeOf(err) != fault.UndeliveredWork {
		t.Fatalf("got %v", err)
	}
	a, eff := must(t, a, DeleteAsked{Force: true})
	if a.Session.Phase != PhaseDeleting || !slices.Equal(kinds(eff), []EffectKind{EffectReleaseSandbox, EffectDeleteSession}) || eff[0].Handle != "h" {
		t.Fatalf("%s %v", a.Session.Phase, eff)
	}
	if _, _, err := Apply(a, prompt("x"), t0); fault.CodeOf(err) != fault.SessionDeleting {
		t.Fatalf("prompt: %v", err)
	}
	b, _ := must(t, running(t), prompt("t2"), DeleteAsked{Force: true})
	if len(b.Ended) != 2 || b.Open != nil || len(b.Queue) != 0 {
		t.Fatalf("delete must end every turn: %+v", b)
	}
}

// TestApplyChangesOnlyItsResult guards the purity that transactions rely on when they try again.
func TestApplyChangesOnlyItsResult(t *testing.T) {
	a := running(t)
	before := fmt.Sprintf("%+v %+v", a.Session, *a.Open)
	if _, _, err := Apply(a, CancelAsked{}, t0); err != nil {
		t.Fatal(err)
	}
	if after := fmt.Sprintf("%+v %+v", a.Session, *a.Open); after != before {
		t.Fatalf("the argument changed:\n%s\n%s", before, after)
	}
}

// TestRandomWalks throws events in any order at sessions and checks what must always hold.
func TestRandomWalks(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		a := fresh()
		ended := map[TurnID]bool{}
		accepted := map[TurnID]bool{}
		n := 0
		now := t0
		for range 120 {
			now = now.Add(time.Second)
			turn := TurnID("none")
			if a.Open != nil {
				turn = a.Open.ID
			}
			gen := a.Session.Generation
			n++
			id := TurnID(fmt.Sprint("t", n))
			evs := []Event{
				prompt(id), Prompted{Turn: Turn{ID: id, Prompt: "x"}, Mode: ModeInterrupt}, SandboxCreated{gen, "h"}, SandboxReady{gen}, SandboxReady{gen - 1},
				SandboxFailed{gen, fault.SandboxStartFailed, ""}, Handed{Turn: turn}, Sent{Turn: turn, At: now}, AgentDone{Turn: turn, Outcome: "end_turn"},
				AgentDone{Turn: turn, Outcome: "failed", Code: fault.AgentExited}, Packed{Turn: turn, OID: string(id)}, Packed{Turn: turn}, PackFailed{Turn: turn, Code: fault.PackFailed},
				PushSent{turn}, Delivered{Turn: turn, Delivery: Delivery{State: DeliveryPushed, OID: a.Session.PackOID}, RemoteOID: a.Session.PackOID},
				CancelAsked{}, FailAsked{Turn: turn, Code: fault.ModelKeyRejected}, SandboxGone{Generation: gen, Code: fault.SandboxLost}, IdleExpired{Before: now},
				DeliverAsked{}, DiscardAsked{}, QueueReleased{},
			}
			ev := evs[r.IntN(len(evs))]
			next, effects, err := Apply(a, ev, now)
			if err != nil {
				var f *fault.Error
				if !errors.As(err, &f) {
					t.Fatalf("seed %d: %s gave an uncoded error %v", seed, ev.event(), err)
				}
				continue
			}
			if p, ok := ev.(Prompted); ok {
				accepted[p.Turn.ID] = true
			}
			for _, e := range next.Ended {
				if ended[e.ID] {
					t.Fatalf("seed %d: turn %s ended twice", seed, e.ID)
				}
				ended[e.ID] = true
				if !e.State.Terminal() || e.Number == 0 || e.EndedAt.IsZero() {
					t.Fatalf("seed %d: ended turn %+v", seed, e)
				}
			}
			live := len(next.Queue)
			if next.Open != nil {
				live++
				if !next.Open.State.Open() {
					t.Fatalf("seed %d: open turn is %s", seed, next.Open.State)
				}
			}
			if live+len(ended) != len(accepted) {
				t.Fatalf("seed %d: after %s %d accepted, %d live, %d ended", seed, ev.event(), len(accepted), live, len(ended))
			}
			if next.Session.Generation > a.Session.Generation && a.Session.Sandbox == SandboxHot &&
				(len(effects) == 0 || effects[0].Kind != EffectReleaseSandbox || effects[0].Generation != gen) {
				t.Fatalf("seed %d: a new generation starts and the old one is not released", seed)
			}
			for _, e := range effects {
				if e.Session == "" || e.Kind == "" {
					t.Fatalf("seed %d: effect %+v", seed, e)
				}
			}
			if next.Open == nil && len(next.Queue) > 0 && !next.Session.QueueHeld {
				t.Fatalf("seed %d: the queue stands still", seed)
			}
			a = next
		}
	}
}

// What others have put on the branch is remembered: nothing that leaves it out may replace the branch.
func TestFloor(t *testing.T) {
	a, _ := must(t, running(t), FloorRaised{"theirs"}, RemoteMoved{"ours"})
	if a.Session.FloorOID != "theirs" || a.Session.RemoteOID != "ours" {
		t.Errorf("floor %q, remote %q", a.Session.FloorOID, a.Session.RemoteOID)
	}
}

// Work that was refused when it was packed is in the sandbox only: nothing throws it away
// unasked, and once the sandbox is gone nobody is told that it is there.
func TestRefusedWorkIsKept(t *testing.T) {
	a, _ := must(t, running(t), AgentDone{Turn: "t1", Outcome: "end_turn", Clean: true}, PackFailed{Turn: "t1", Code: fault.SecretFound})
	if _, _, err := Apply(a, DeleteAsked{}, t0); fault.CodeOf(err) != fault.UndeliveredWork {
		t.Errorf("delete: %v", err)
	}
	if _, _, err := Apply(a, DeliverAsked{}, t0); fault.CodeOf(err) != fault.NothingToDeliver || !strings.Contains(err.Error(), "SECRET_FOUND") {
		t.Errorf("deliver: %v", err)
	}
	late := t0.Add(time.Hour)
	if _, _, err := Apply(a, IdleExpired{Before: late}, late); fault.CodeOf(err) != fault.IllegalMove {
		t.Errorf("released when idle: %v", err)
	}
	for _, ev := range []Event{IdleExpired{Before: late, Room: true}, IdleExpired{Before: late.Add(RefusedKept)}, SandboxGone{Generation: 1, Code: fault.SandboxLost}} {
		b, _, err := Apply(a, ev, late.Add(RefusedKept))
		if err != nil {
			t.Fatalf("%+v: %v", ev, err)
		}
		if b.Session.Refused(b.Last) {
			t.Errorf("%+v: the work is said to be in a sandbox that is gone", ev)
		}
		if _, _, err := Apply(b, DeleteAsked{}, late); err != nil {
			t.Errorf("%+v: delete afterwards: %v", ev, err)
		}
	}
	// A push that is refused is another thing: the work is packed.
	c, _ := must(t, running(t), AgentDone{Turn: "t1", Outcome: "end_turn", Clean: true}, Packed{Turn: "t1", OID: "c1"},
		Delivered{Turn: "t1", Unread: true, Delivery: Delivery{State: DeliveryFailed, Code: fault.PushRefused}})
	if c.Session.Refused(c.Last) || !c.Session.Discardable(c.Last) {
		t.Error("a refused push counts as work that was not packed")
	}
}

// asks is a question of turn "t1" with two options.
func asks(n int64) QuestionAsked {
	return QuestionAsked{Question{Turn: "t1", Number: n, Kind: QuestionPermission, Title: "rm", Options: []Option{{ID: "y", Kind: "allow_once"}, {ID: "n", Kind: "reject_once"}}}}
}

func TestQuestions(t *testing.T) {
	one, two := QuestionIDOf("t1", 1), QuestionIDOf("t1", 2)
	a, eff := must(t, running(t), asks(1), asks(2), asks(1))
	if a.Open.State != TurnWaiting || a.Session.Phase != PhaseWaiting || len(a.Questions) != 2 || a.Open.Asked != 2 {
		t.Fatalf("turn %+v, %d questions", a.Open, len(a.Questions))
	}
	if !slices.Equal(kinds(eff), []EffectKind{EffectExpireQuestion, EffectExpireQuestion}) || eff[0].Question != one || !eff[0].NotBefore.Equal(t0.Add(QuestionTime)) {
		t.Fatalf("effects %+v", eff)
	}
	for _, bad := range []struct {
		ev   QuestionAnswered
		code fault.Code
	}{
		{QuestionAnswered{ID: "qst_t1-9", Verdict: VerdictAllow}, fault.QuestionSettled},
		{QuestionAnswered{ID: one}, fault.InvalidInput},
		{QuestionAnswered{ID: one, Verdict: "maybe"}, fault.InvalidInput},
		{QuestionAnswered{ID: one, Verdict: VerdictCancel}, fault.InvalidInput},
		{QuestionAnswered{ID: one, Option: "z"}, fault.InvalidInput},
		{QuestionAnswered{ID: one, Option: "n", Verdict: VerdictAllow}, fault.InvalidInput},
		{QuestionAnswered{ID: one, Verdict: VerdictAllow, Content: "{}"}, fault.InvalidInput},
	} {
		if _, _, err := Apply(a, bad.ev, t0); fault.CodeOf(err) != bad.code {
			t.Errorf("%+v: %v, want %s", bad.ev, err, bad.code)
		}
	}
	// The first answer counts; the turn waits as long as one is open.
	b, eff := must(t, a, QuestionAnswered{ID: one, Option: "n", By: "ada"})
	if b.Open.State != TurnWaiting || b.Questions[0].State != QuestionDone || b.Questions[0].Verdict != VerdictDeny || !slices.Equal(kinds(eff), []EffectKind{EffectAnswerQuestion}) {
		t.Fatalf("after one answer: %s %+v %v", b.Open.State, b.Questions[0], eff)
	}
	if _, _, err := Apply(b, QuestionAnswered{ID: one, Verdict: VerdictAllow}, t0); fault.CodeOf(err) != fault.QuestionSettled {
		t.Errorf("answered twice: %v", err)
	}
	c, _, err := Apply(b, QuestionAnswered{ID: two, Verdict: VerdictAllow}, t0.Add(time.Hour))
	if err != nil || c.Open.State != TurnRunning || c.Open.Waited != time.Hour || !c.Open.WaitingSince.IsZero() {
		t.Fatalf("after both: %+v, %v", c.Open, err)
	}
	// Nobody answers.
	if _, _, err := Apply(a, QuestionOverdue{ID: one}, t0.Add(time.Hour)); fault.CodeOf(err) != fault.IllegalMove {
		t.Errorf("expired before its time: %v", err)
	}
	d, eff, err := Apply(a, QuestionOverdue{ID: one}, t0.Add(QuestionTime))
	if err != nil || d.Questions[0].State != QuestionExpired || d.Questions[0].Verdict != VerdictDeny || !slices.Equal(kinds(eff), []EffectKind{EffectAnswerQuestion}) {
		t.Fatalf("expired: %+v %v %v", d.Questions[0], eff, err)
	}
	// The agent takes both back and goes on.
	e, eff := must(t, a, QuestionWithdrawn{one}, QuestionWithdrawn{two}, QuestionWithdrawn{two})
	if e.Open.State != TurnRunning || e.Questions[0].State != QuestionCanceled || len(eff) != 0 {
		t.Fatalf("withdrawn: %s %+v %v", e.Open.State, e.Questions[0], eff)
	}
}

// Whatever ends or stops the turn, nobody can answer its questions afterwards.
func TestQuestionsEndWithTheirTurn(t *testing.T) {
	for name, evs := range map[string][]Event{
		"cancel":    {CancelAsked{}},
		"interrupt": {Prompted{Turn: Turn{ID: "t2", Prompt: "no"}, Mode: ModeInterrupt}},
		"failure":   {FailAsked{Turn: "t1", Code: fault.ModelKeyRejected}},
		"done":      {AgentDone{Turn: "t1", Outcome: "end_turn"}},
		"exit":      {AgentDone{Turn: "t1", Outcome: "failed", Code: fault.AgentExited}},
		"lost":      {SandboxGone{Generation: 1, Code: fault.SandboxLost}},
		"delete":    {DeleteAsked{Force: true}},
	} {
		a, _ := must(t, running(t), asks(1))
		a, _ = must(t, a, evs...)
		if q := a.Questions[0]; q.State != QuestionCanceled || q.SettledAt.IsZero() {
			t.Errorf("%s: the question is %s", name, q.State)
		}
		for _, x := range append(a.Ended, a.Open) {
			if x != nil && (x.State == TurnWaiting || !x.WaitingSince.IsZero()) {
				t.Errorf("%s: the turn waits still: %+v", name, x)
			}
		}
		if a.Open != nil && a.Open.State == TurnStopping {
			b, eff := must(t, a, asks(2))
			if len(b.Questions) != 1 || len(eff) != 0 {
				t.Errorf("%s: a turn that stops asks", name)
			}
		}
	}
}
