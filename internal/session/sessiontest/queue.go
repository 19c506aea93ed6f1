package sessiontest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// edits changes, moves and removes prompts that wait, and races an edit with the end of the wait.
func edits(t *testing.T, s Store) {
	id := create(t, s, blank())
	var turns []session.TurnID
	for _, text := range []string{"at work", "one", "two", "three"} {
		p := prompt(text)
		apply(t, s, id, p)
		turns = append(turns, p.Turn.ID)
	}
	queue := func(want ...string) {
		t.Helper()
		a, err := s.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, q := range a.Queue {
			got = append(got, q.Prompt)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
	}
	queue("one", "two", "three")
	apply(t, s, id, session.QueueEdited{Turn: turns[2], Prompt: "zwei", By: "ada"})
	apply(t, s, id, session.QueueEdited{Turn: turns[3], Position: 1})
	queue("three", "one", "zwei")
	apply(t, s, id, session.QueueRemoved{Turn: turns[1], By: "ada"})
	apply(t, s, id, session.HoldAsked{})
	queue("three", "zwei")
	a, err := s.Get(t.Context(), id)
	if err != nil || !a.Session.QueueHeld || a.Queue[1].EditedBy != "ada" || !a.Queue[1].EditedAt.Equal(at) || !a.Queue[0].EditedAt.IsZero() {
		t.Fatalf("%+v, %v", a.Queue[1], err)
	}
	gone, err := s.Turn(t.Context(), id, turns[1])
	if err != nil || gone.State != session.TurnCanceled || gone.End != session.EndNeverSent || gone.Prompt != "one" {
		t.Fatalf("removed: %+v, %v", gone, err)
	}
	_, err = tryApply(t, s, id, nil, session.QueueEdited{Turn: turns[0], Prompt: "too late"})
	wantCode(t, err, fault.TurnNotQueued)
	queue("three", "zwei")

	// Whoever wins, what went out is what was acknowledged last.
	for range 20 {
		id := create(t, s, blank())
		first, next := prompt("at work"), prompt("as sent")
		apply(t, s, id, first)
		apply(t, s, id, next)
		var wg sync.WaitGroup
		var acknowledged string
		wg.Go(func() {
			for n := range 5 {
				text := fmt.Sprint("edit ", n)
				if _, err := tryApply(t, s, id, nil, session.QueueEdited{Turn: next.Turn.ID, Prompt: text}); fault.CodeOf(err) == fault.TurnNotQueued {
					return
				} else if err != nil {
					t.Error(err)
				}
				acknowledged = text
			}
		})
		wg.Go(func() {
			if _, err := tryApply(t, s, id, nil, session.CancelAsked{Turn: first.Turn.ID}); err != nil {
				t.Error(err)
			}
			if _, err := tryApply(t, s, id, nil, session.QueueReleased{}); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		a, err := s.Get(t.Context(), id)
		if err != nil || a.Open == nil || a.Open.ID != next.Turn.ID {
			t.Fatalf("%+v %v", a.Open, err)
		}
		if want := acknowledged; a.Open.Prompt != want && (want != "" || a.Open.Prompt != "as sent") {
			t.Fatalf("%q is at work, %q was acknowledged last", a.Open.Prompt, want)
		}
	}
}
