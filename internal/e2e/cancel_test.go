package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

func (w *world) cancel(id, turn string) {
	w.t.Helper()
	if _, err := w.c.Cancel(w.t.Context(), id, turn); err != nil {
		w.t.Fatalf("cancel: %v", err)
	}
}

// A cancel is obeyed in every phase, in its time, and the next prompt works.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@"})
	id := s.Session.ID

	// starting: at once; the sandbox that arrives later is kept
	w.cancel(id, "")
	one := w.ended(id, s.Turn.ID, time.Second)
	w.wantTurn(one, "canceled", "TURN_CANCELED")
	w.until(deadline, "the sandbox to be kept idle", func() (bool, string) { s := w.get(id); return s.Sandbox.State == "hot", s.Sandbox.State })
	if _, err := w.c.Cancel(t.Context(), id, ""); client.CodeOf(err) != "NOTHING_TO_CANCEL" {
		t.Errorf("cancel with nothing at work: %v", err)
	}
	two := w.ended(id, w.prompt(id, "@@mark red@@ @@write a.txt one@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	w.wantPushed(r, two)
	if two.Generation != 1 || two.Rung != "redelivered" {
		t.Errorf("generation %d, rung %s", two.Generation, two.Rung)
	}

	// running, an agent that obeys
	p := w.prompt(id, "@@write b.txt half@@ @@slow 600 100@@")
	w.until(deadline, "it to speak", func() (bool, string) { got := text(w.transcript(id), 3); return strings.Contains(got, "Step 3"), got })
	began := time.Now()
	w.cancel(id, p.Turn.ID)
	w.cancel(id, p.Turn.ID)
	three := w.ended(id, p.Turn.ID, 10*time.Second)
	w.wantTurn(three, "canceled", "TURN_CANCELED")
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("an obeying agent's turn ended after %s", took)
	}
	if three.Delivery.State != "held" {
		t.Errorf("delivery %+v, want held", three.Delivery)
	}
	t.Logf("obeying: %s", time.Since(began))

	// running, an agent that does not, with a process of a session of its own
	p = w.prompt(id, "@@orphan 600@@ @@ignore-cancel@@ @@slow 600 100@@")
	w.until(deadline, "it to speak", func() (bool, string) { got := text(w.transcript(id), 4); return strings.Contains(got, "Step 3"), got })
	began = time.Now()
	w.cancel(id, "")
	four := w.ended(id, p.Turn.ID, 15*time.Second)
	w.wantTurn(four, "canceled", "TURN_CANCELED")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("an ignoring agent's turn ended after %s", took)
	}
	t.Logf("ignoring: %s", time.Since(began))
	if out := w.inside(id, `for d in /proc/[0-9]*; do tr '\0' ' ' < $d/cmdline; echo; done`); strings.Contains(out, "sleep 600") {
		t.Errorf("what it left behind lives: %s", out)
	}
	five := w.ended(id, w.prompt(id, "@@recall@@ @@run cat b.txt@@").Turn.ID, deadline)
	w.wantTurn(five, "completed", "")
	w.wantPushed(r, five)
	parts := w.transcript(id)
	if got := text(parts, 5); !strings.Contains(got, "red") || !strings.Contains(outputs(parts, 5), "half") {
		t.Errorf("turn 5 (%s) does not know what was: %s", five.Rung, got)
	}
	w.delete(id, false)
}

// Cancel while the work is packed, and while it is pushed.
func TestCancelDelivering(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@run head -c 60000000 /dev/urandom > big.bin@@"})
	id := s.Session.ID
	w.until(deadline, "packing", func() (bool, string) {
		turn, err := w.c.Turn(t.Context(), id, s.Turn.ID)
		return err == nil && turn.State == "delivering" && turn.Times.Packed == nil, turn.State
	})
	w.cancel(id, "")
	one := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(one, "canceled", "TURN_CANCELED")
	if one.Delivery.State != "held" || one.Commit == "" || len(heads(t, r)) != 1 {
		t.Errorf("delivery %+v, commit %q, heads %v", one.Delivery, one.Commit, heads(t, r))
	}
	// The push has been sent: the remote decides.
	w.git.AddFault(gitserver.Fault{Service: gitserver.ReceivePack, Delay: 3 * time.Second, Times: 1})
	p := w.prompt(id, "@@run rm big.bin@@ @@write a.txt one@@")
	w.until(deadline, "the push", func() (bool, string) { return w.git.Counts().Faults > 0, "" })
	if _, err := w.c.Cancel(t.Context(), id, ""); client.CodeOf(err) != "NOTHING_TO_CANCEL" {
		t.Errorf("cancel during the push: %v", err)
	}
	two := w.ended(id, p.Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	w.wantPushed(r, two)
	w.delete(id, false)
}

// Prompts wait in their order; one can be taken out; an interrupting one goes first.
func TestQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@run echo 1 >> order.txt@@ @@slow 30 100@@"})
	id := s.Session.ID
	two := w.prompt(id, "@@run echo 2 >> order.txt@@")
	three := w.prompt(id, "@@run echo 3 >> order.txt@@")
	four := w.prompt(id, "@@run echo 4 >> order.txt@@")
	if two.Position != 1 || three.Position != 2 || four.Position != 3 {
		t.Errorf("positions %d %d %d", two.Position, three.Position, four.Position)
	}
	if _, err := w.c.Prompt(t.Context(), id, client.PromptInput{Prompt: "x", Mode: "reject"}); client.CodeOf(err) != "TURN_IN_FLIGHT" {
		t.Errorf("reject: %v", err)
	}
	w.cancel(id, three.Turn.ID)
	w.wantTurn(w.ended(id, three.Turn.ID, time.Second), "canceled", "TURN_CANCELED")
	w.until(deadline, "it to speak", func() (bool, string) { got := text(w.transcript(id), 1); return strings.Contains(got, "Step 3"), got })
	now, err := w.c.Prompt(t.Context(), id, client.PromptInput{Prompt: "@@run echo now >> order.txt@@", Mode: "interrupt"})
	if err != nil {
		t.Fatal(err)
	}
	w.wantTurn(w.ended(id, s.Turn.ID, 10*time.Second), "canceled", "TURN_INTERRUPTED")
	for _, p := range []client.Accepted{now, two, four} {
		w.wantTurn(w.ended(id, p.Turn.ID, deadline), "completed", "")
	}
	last := w.get(id).LastTurn
	w.wantPushed(r, *last)
	if got := w.file(r, last.Delivery.Commit, "order.txt"); strings.Join(strings.Fields(got), " ") != "1 now 2 4" {
		t.Errorf("order %q", got)
	}
	w.transcript(id)

	// A failed turn holds the queue; release lets it go on.
	p := w.prompt(id, "@@slow 10 100@@ @@error -32603 no@@")
	q := w.prompt(id, "@@run echo 5 >> order.txt@@")
	w.wantTurn(w.ended(id, p.Turn.ID, deadline), "failed", "AGENT_FAILED")
	if s := w.get(id); !s.QueueHeld || len(s.Queue) != 1 {
		t.Errorf("held %t, %d in the queue", s.QueueHeld, len(s.Queue))
	}
	if _, err := w.c.ReleaseQueue(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantTurn(w.ended(id, q.Turn.ID, deadline), "completed", "")
	w.delete(id, false)
}

// Delete asks for force over a turn at work; with it everything goes, whatever it was doing.
func TestDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	_, url := w.repo("acme/calc")
	for _, c := range []struct{ prompt, at string }{
		{"@@slow 600 100@@", "running"}, {"@@slow 600 100@@", "starting"}, {"@@ignore-cancel@@ @@orphan 600@@ @@slow 600 100@@", "running"},
		{"@@run head -c 40000000 /dev/urandom > big.bin@@", "delivering"},
	} {
		s := w.create(client.CreateInput{Repo: url, Prompt: c.prompt})
		id := s.Session.ID
		w.inState(id, s.Turn.ID, deadline, c.at)
		if c.at != "delivering" {
			if _, err := w.c.Delete(t.Context(), id, false); client.CodeOf(err) != "TURN_IN_FLIGHT" {
				t.Errorf("%s: delete without force: %v", c.at, err)
			}
		}
		began := time.Now()
		w.delete(id, true)
		t.Logf("%s: gone after %s", c.at, time.Since(began))
		if _, err := w.c.Prompt(t.Context(), id, client.PromptInput{Prompt: "x"}); client.CodeOf(err) != "SESSION_NOT_FOUND" {
			t.Errorf("%s: prompt after delete: %v", c.at, err)
		}
	}
	// The server is killed while it deletes; the next one goes on.
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@slow 600 100@@"})
	w.inState(s.Session.ID, s.Turn.ID, deadline, "running")
	if _, err := w.c.Delete(t.Context(), s.Session.ID, true); err != nil {
		t.Fatal(err)
	}
	w.kill()
	w.start()
	w.until(deadline, "the session to be gone", func() (bool, string) {
		_, err := w.c.Get(t.Context(), s.Session.ID)
		return client.CodeOf(err) == "SESSION_NOT_FOUND", fmt.Sprint(err)
	})
	w.goneEventually(t.Context(), s.Session.ID)
}

// With room for one sandbox, an idle one makes room, a busy one is waited for.
func TestCapacity(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{args: []string{"--max-sandboxes", "1"}})
	_, url := w.repo("acme/calc")
	a := w.create(client.CreateInput{Repo: url, Prompt: "@@mark ivory-wolf@@ @@write a.txt one@@"})
	w.wantTurn(w.ended(a.Session.ID, a.Turn.ID, deadline), "completed", "")
	b := w.create(client.CreateInput{Repo: url, Prompt: "@@slow 40 100@@"})
	w.inState(b.Session.ID, b.Turn.ID, deadline, "running")
	if s := w.get(a.Session.ID); s.Sandbox.State != "none" {
		t.Errorf("the idle sandbox is %s", s.Sandbox.State)
	}
	p := w.prompt(a.Session.ID, "@@recall@@")
	if got := w.inState(a.Session.ID, p.Turn.ID, deadline, "starting"); got.Times.Sandbox != nil {
		t.Errorf("a second sandbox is there: %+v", got.Times)
	}
	one := w.ended(b.Session.ID, b.Turn.ID, deadline)
	w.wantTurn(one, "completed", "")
	two := w.ended(a.Session.ID, p.Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	if two.SentAt.Before(one.EndedAt.Add(-time.Second)) || !strings.Contains(text(w.transcript(a.Session.ID), 2), "ivory-wolf") {
		t.Errorf("sent at %s, the other ended at %s", two.SentAt, one.EndedAt)
	}
	w.delete(a.Session.ID, false)
	w.delete(b.Session.ID, false)
}

// An interrupting prompt while the first one starts, and while it is pushed.
func TestInterruptInOtherPhases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@"})
	id := s.Session.ID
	interrupt := func(text string) client.Accepted {
		t.Helper()
		p, err := w.c.Prompt(t.Context(), id, client.PromptInput{Prompt: text, Mode: "interrupt"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := interrupt("@@write b.txt two@@")
	w.wantTurn(w.ended(id, s.Turn.ID, time.Second), "canceled", "TURN_INTERRUPTED")
	w.git.AddFault(gitserver.Fault{Service: gitserver.ReceivePack, Delay: 2 * time.Second, Times: 1})
	w.until(deadline, "the push", func() (bool, string) { return w.git.Counts().Faults > 0, "" })
	q := interrupt("@@write c.txt three@@")
	two := w.ended(id, p.Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	if two.Delivery.State != "pushed" {
		t.Errorf("delivery %+v", two.Delivery)
	}
	three := w.ended(id, q.Turn.ID, deadline)
	w.wantTurn(three, "completed", "")
	w.wantPushed(r, three)
	w.transcript(id)
	w.delete(id, false)
}
