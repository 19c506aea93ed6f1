package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/client"
)

// ask waits until a number of questions wait in a session.
func (w *world) asked(id string, n int) []client.Question {
	w.t.Helper()
	var list []client.Question
	w.until(deadline, fmt.Sprintf("%d questions", n), func() (bool, string) {
		var err error
		list, err = w.c.Questions(w.t.Context(), id, "pending")
		return err == nil && len(list) == n, fmt.Sprint(len(list), err)
	})
	return list
}

// A question waits over a kill of the server, is answered once, and the same turn goes on.
func TestQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	for _, verdict := range []string{"allow", "deny"} {
		s := w.create(client.CreateInput{Repo: url, Approvals: json.RawMessage(`"ask"`), Prompt: "@@write a.txt one@@ @@ask Deploy it@@ @@write b.txt two@@"})
		id := s.Session.ID
		q := w.answerAll(id, "Deploy it", "allow")
		if got := w.get(id); got.Phase != "waiting" || len(got.Questions) != 1 || got.Questions[0].ID != q.ID {
			t.Errorf("phase %s, questions %+v", got.Phase, got.Questions)
		}
		w.kill()
		w.start()
		if again := w.asked(id, 1)[0]; again.ID != q.ID || again.Title != q.Title {
			t.Errorf("after the restart: %+v", again)
		}
		if _, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "perhaps"}); client.CodeOf(err) != "INVALID_INPUT" {
			t.Errorf("a bad verdict: %v", err)
		}
		if _, err := w.c.Answer(t.Context(), id, q.ID+"9", client.Answer{Verdict: "allow"}); client.CodeOf(err) != "QUESTION_NOT_FOUND" {
			t.Errorf("an unknown question: %v", err)
		}
		done, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: verdict, Message: "So be it."})
		if err != nil || done.State != "answered" || done.Verdict != verdict || done.By == "" {
			t.Fatalf("answer: %+v, %v", done, err)
		}
		if _, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "allow"}); client.CodeOf(err) != "QUESTION_SETTLED" {
			t.Errorf("answered twice: %v", err)
		}
		w.answerRest(id)
		turn := w.ended(id, s.Turn.ID, deadline)
		w.wantTurn(turn, "completed", "")
		w.wantPushed(r, turn)
		if said := text(w.transcript(id), 1); strings.Contains(said, "Allowed") != (verdict == "allow") {
			t.Errorf("%s: the agent was told %s", verdict, said)
		}
		w.delete(id, true)
	}
}

// answerAll allows what is asked until a question with that title waits, and returns it.
func (w *world) answerAll(id, title, verdict string) client.Question {
	w.t.Helper()
	var found client.Question
	w.until(deadline, "the question "+title, func() (bool, string) {
		list, err := w.c.Questions(w.t.Context(), id, "pending")
		if err != nil {
			return false, err.Error()
		}
		for _, q := range list {
			if strings.Contains(q.Title, title) {
				found = q
				return true, ""
			}
			if _, err := w.c.Answer(w.t.Context(), id, q.ID, client.Answer{Verdict: verdict}); err != nil && client.CodeOf(err) != "QUESTION_SETTLED" {
				return false, err.Error()
			}
		}
		return false, fmt.Sprint(len(list), " others")
	})
	return found
}

// answerRest allows whatever is asked until the turn has ended.
func (w *world) answerRest(id string) {
	w.t.Helper()
	w.until(deadline, "the turn to end", func() (bool, string) {
		s := w.get(id)
		for _, q := range s.Questions {
			if _, err := w.c.Answer(w.t.Context(), id, q.ID, client.Answer{Verdict: "allow"}); err != nil && client.CodeOf(err) != "QUESTION_SETTLED" {
				return false, err.Error()
			}
		}
		return s.OpenTurn == nil, s.Phase
	})
}

// A turn that waits is canceled at once, a newer prompt takes its place, and its question
// can be answered no more.
func TestQuestionIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	for _, how := range []string{"cancel", "interrupt"} {
		s := w.create(client.CreateInput{Approvals: json.RawMessage(`"ask"`), Prompt: "@@ask Deploy it@@ @@say after@@"})
		id := s.Session.ID
		q := w.asked(id, 1)[0]
		began := time.Now()
		state := "canceled"
		if how == "cancel" {
			if _, err := w.c.Cancel(t.Context(), id, ""); err != nil {
				t.Fatal(err)
			}
		} else if _, err := w.c.Prompt(t.Context(), id, client.PromptInput{Prompt: "@@say newer@@", Mode: "interrupt"}); err != nil {
			t.Fatal(err)
		}
		one := w.ended(id, s.Turn.ID, 20*time.Second)
		if one.State != state {
			t.Errorf("%s: the turn is %s %s", how, one.State, one.Code)
		}
		t.Logf("%s: ended after %s", how, time.Since(began))
		if _, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "allow"}); client.CodeOf(err) != "QUESTION_SETTLED" {
			t.Errorf("%s: answered afterwards: %v", how, err)
		}
		w.until(deadline, "the session to be idle", func() (bool, string) { s := w.get(id); return s.OpenTurn == nil, s.Phase })
		w.transcript(id)
		w.delete(id, true)
	}
}

// Claude, in its asking mode, waits for a person too; pi cannot, which is said when the session is made.
func TestRealAgentAsks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{agents: needed(t, "HEARTH_TEST_AGENTS")})
	r, url := w.repo("acme/calc")
	for _, agent := range []string{"pi", "codex"} {
		if _, err := w.c.Create(t.Context(), client.CreateInput{Repo: url, Agent: agent, Approvals: json.RawMessage(`"ask"`), Prompt: "hello"}); client.CodeOf(err) != "APPROVALS_UNSUPPORTED" {
			t.Errorf("%s: %v", agent, err)
		}
	}
	s := w.create(client.CreateInput{Repo: url, Agent: "claude", Approvals: json.RawMessage(`"ask"`), Prompt: "@@write a.txt one@@ @@say Done.@@"})
	id := s.Session.ID
	w.until(deadline, "a question", func() (bool, string) { s := w.get(id); return len(s.Questions) > 0 || s.OpenTurn == nil, s.Phase })
	qs := w.get(id).Questions
	if len(qs) == 0 || len(qs[0].Options) == 0 || qs[0].Title == "" {
		t.Fatalf("questions %+v", qs)
	}
	t.Logf("%s: %s %s %+v", qs[0].Tool, qs[0].Title, qs[0].Detail, qs[0].Options)
	w.answerRest(id)
	turn := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(turn, "completed", "")
	w.wantPushed(r, turn)
	w.delete(id, true)
	// Read-only: what it would change is denied without a question.
	s = w.create(client.CreateInput{Repo: url, Agent: "claude", Approvals: json.RawMessage(`"read-only"`), Prompt: "@@write a.txt one@@ @@say Done.@@"})
	turn = w.ended(s.Session.ID, s.Turn.ID, deadline)
	w.wantTurn(turn, "completed", "")
	if turn.Commit != "" || turn.Delivery == nil || turn.Delivery.State != "no_changes" {
		t.Errorf("read-only: commit %q, delivery %+v", turn.Commit, turn.Delivery)
	}
	w.delete(s.Session.ID, true)
}
