package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hearthd/hearth/client"
)

// note is a prompt that leaves its name and its agent's process id in the work.
func note(name string) string { return "@@run echo " + name + " $PPID >> order.txt@@" }

// noted is what was left, in order, and by how many processes.
func (w *world) noted(text string) (names []string, processes int) {
	w.t.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		name, pid, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			w.t.Fatalf("noted %q", text)
		}
		names = append(names, name)
		seen[pid] = true
	}
	return names, len(seen)
}

// Prompts that wait are changed, moved, taken out and held; those that go out reach the same
// process of the agent, with the text that was acknowledged last.
func TestQueueIsChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: note("first") + " @@slow 40 100@@"})
	id := s.Session.ID
	a, b, c, d := w.prompt(id, note("a")), w.prompt(id, note("b")), w.prompt(id, note("c")), w.prompt(id, note("d"))
	if _, err := w.c.EditQueued(t.Context(), id, b.Turn.ID, client.Edit{Prompt: note("bee")}); err != nil {
		t.Fatal(err)
	}
	if e, err := w.c.EditQueued(t.Context(), id, d.Turn.ID, client.Edit{Position: 1}); err != nil || e.Position != 1 {
		t.Fatalf("moved to %d, %v", e.Position, err)
	}
	if _, err := w.c.RemoveQueued(t.Context(), id, c.Turn.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.HoldQueue(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	if s := w.get(id); s.OpenTurn != nil || !s.QueueHeld || len(s.Queue) != 3 || s.Phase != "idle" {
		t.Fatalf("phase %s, held %t, %d wait", s.Phase, s.QueueHeld, len(s.Queue))
	}
	if _, err := w.c.ReleaseQueue(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var last client.Turn
	for _, p := range []client.Accepted{d, a, b} {
		last = w.ended(id, p.Turn.ID, deadline)
		w.wantTurn(last, "completed", "")
		if last.Rung != "live" || last.Generation != 1 {
			t.Errorf("turn %d: rung %q, generation %d", last.Number, last.Rung, last.Generation)
		}
	}
	w.wantPushed(r, last)
	names, processes := w.noted(w.file(r, last.Delivery.Commit, "order.txt"))
	if got := strings.Join(names, " "); got != "first d a bee" || processes != 1 {
		t.Errorf("order %q, by %d processes", got, processes)
	}
	if _, err := w.c.EditQueued(t.Context(), id, b.Turn.ID, client.Edit{Prompt: "late"}); client.CodeOf(err) != "TURN_NOT_QUEUED" {
		t.Errorf("edit of what has gone out: %v", err)
	}
	if gone, err := w.c.Turn(t.Context(), id, c.Turn.ID); err != nil || gone.State != "canceled" || gone.End != "never_started" || gone.SentAt != nil {
		t.Errorf("removed: %+v, %v", gone, err)
	}
	w.transcript(id)
	w.delete(id, false)
}

// What waits outlives a server that is killed: it goes out in order, once, as it was
// acknowledged last.
func TestQueueOutlivesTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: note("first") + " @@slow 30 100@@"})
	id := s.Session.ID
	w.inState(id, s.Turn.ID, deadline, "running")
	var waiting []client.Accepted
	for n := range 5 {
		waiting = append(waiting, w.prompt(id, note(fmt.Sprint(n))))
	}
	if _, err := w.c.EditQueued(t.Context(), id, waiting[3].Turn.ID, client.Edit{Prompt: note("three")}); err != nil {
		t.Fatal(err)
	}
	w.kill()
	w.start()
	w.ended(id, waiting[0].Turn.ID, deadline)
	w.kill() // wherever that falls
	w.start()
	var last client.Turn
	for i, p := range waiting {
		last = w.ended(id, p.Turn.ID, deadline)
		w.wantTurn(last, "completed", "")
		if last.Number != int64(i+2) {
			t.Errorf("prompt %d went out as turn %d", i, last.Number)
		}
	}
	w.wantPushed(r, last)
	names, _ := w.noted(w.file(r, last.Delivery.Commit, "order.txt"))
	if got := strings.Join(names, " "); got != "first 0 1 2 three 4" {
		t.Errorf("order %q", got)
	}
	if s := w.get(id); len(s.Queue) != 0 || s.Turns != 6 {
		t.Errorf("%d wait, %d turns", len(s.Queue), s.Turns)
	}
	w.transcript(id)
	w.delete(id, false)
}

// A prompt that interrupts a turn with an open question goes before one that waited; the
// question is gone in the same step.
func TestInterruptOfAQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	s := w.create(client.CreateInput{Approvals: json.RawMessage(`"ask"`), Prompt: "@@ask Deploy it@@ @@say after@@"})
	id := s.Session.ID
	w.asked(id, 1)
	a := w.prompt(id, "@@say A@@")
	b, err := w.c.Prompt(t.Context(), id, client.PromptInput{Prompt: "@@say B@@", Mode: "interrupt"})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Session.Questions) != 0 || b.Session.OpenTurn == nil || b.Session.OpenTurn.State != "stopping" || b.Position != 1 ||
		len(b.Session.Queue) != 2 || b.Session.Queue[1].ID != a.Turn.ID {
		t.Errorf("questions %+v, open %+v, position %d, queue %+v", b.Session.Questions, b.Session.OpenTurn, b.Position, b.Session.Queue)
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "canceled", "TURN_INTERRUPTED")
	first, second := w.ended(id, b.Turn.ID, deadline), w.ended(id, a.Turn.ID, deadline)
	w.wantTurn(first, "completed", "")
	w.wantTurn(second, "completed", "")
	if first.Number != 2 || second.Number != 3 || !strings.Contains(text(w.transcript(id), 2), "B") {
		t.Errorf("B is turn %d, A is turn %d", first.Number, second.Number)
	}
	w.delete(id, true)
}
