package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/client"
)

// Two turns of a real agent: the second knows the first, the rungs are true, the
// branch is at the git host, and a deleted session leaves nothing.
func TestWholeSession(t *testing.T) {
	t.Parallel()
	agents := []struct{ name, model string }{{"pi", ""}, {"claude", ""}, {"codex", "scripted"}}
	if os.Getenv("HEARTH_E2E_ALL") != "" {
		agents = append(agents, []struct{ name, model string }{{"opencode", ""}, {"gemini", ""}}...)
	}
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options{agents: needed(t, "HEARTH_TEST_AGENTS")})
			r, url := w.repo("acme/calc")
			base, err := r.Head(t.Context(), "main")
			if err != nil {
				t.Fatal(err)
			}
			s := w.create(client.CreateInput{Repo: url, Agent: a.name, Model: a.model,
				Prompt: "Mend it. @@mark velvet-otter@@ @@write notes.txt first@@ @@run cat notes.txt@@ @@say The first is done.@@"})
			id := s.Session.ID
			one := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(one, "completed", "")
			if one.Rung != "fresh" || one.Delivery.Branch == "main" {
				t.Errorf("turn 1: rung %q, branch %q", one.Rung, one.Delivery.Branch)
			}
			w.wantPushed(r, one)
			if got := w.file(r, one.Commit, "notes.txt"); strings.TrimSpace(got) != "first" {
				t.Errorf("notes.txt is %q", got)
			}
			p := w.prompt(id, "Go on. @@recall@@ @@run echo second >> notes.txt@@")
			two := w.ended(id, p.Turn.ID, deadline)
			w.wantTurn(two, "completed", "")
			if two.Rung != "live" || len(two.RungFailed) != 0 {
				t.Errorf("turn 2: rung %q, failed %q", two.Rung, two.RungFailed)
			}
			w.wantPushed(r, two)
			if got := w.file(r, two.Commit, "notes.txt"); !strings.Contains(got, "second") {
				t.Errorf("notes.txt is %q", got)
			}
			parts := w.transcript(id)
			if got := text(parts, 2); !strings.Contains(got, "velvet-otter") {
				t.Errorf("the second turn does not know the first: %s", got)
			}
			if got := outputs(parts, 1); !strings.Contains(got, "first") {
				t.Errorf("the command's output is not in the transcript: %s", got)
			}
			if main, err := r.Head(t.Context(), "main"); err != nil || main != base {
				t.Errorf("main is at %s (%v), it was %s", main, err, base)
			}
			t.Logf("create → prompt sent %d ms, turn 1 %d ms, turn 2 %d ms", ms(one.SentAt.Sub(one.AcceptedAt)), *one.Times.Total, *two.Times.Total)
			w.delete(id, false)
			if head, err := r.Head(t.Context(), two.Delivery.Branch); err != nil || head != two.Commit {
				t.Errorf("the branch went with the session: %s, %v", head, err)
			}
		})
	}
}

func ms(d time.Duration) int64 { return d.Milliseconds() }
