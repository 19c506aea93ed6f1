package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/session"
)

// outcome says in the stream what became of a question, as the driver does.
func (s *scene) outcome(id session.QuestionID, kind, title, outcome string) {
	s.t.Helper()
	name, field := "data-permission", "title"
	if kind == session.QuestionForm {
		name, field = "data-question", "message"
	}
	s.w.Say(s.id, json.RawMessage(fmt.Sprintf(`{"type":%q,"id":%q,"data":{"kind":%q,%q:%q,"options":[],"outcome":%s}}`, name, id, kind, field, title, outcome)))
}

// A question that was settled says so wherever the conversation is read later, and only one
// that waits says how to answer it.
func TestSettledQuestionsInAReplay(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("Fix it")
	sc := &scene{shell: s, id: id, turn: s.w.Begin(id)}
	answer := func(q session.QuestionID, verdict, option, message string) {
		s.w.Apply(id, session.QuestionAnswered{ID: q, Verdict: verdict, Option: option, Message: message, By: "owner"})
	}
	one := sc.permission(1, "Remove one")
	answer(one, session.VerdictAllow, "once", "")
	sc.outcome(one, session.QuestionPermission, "Remove one", `{"allowed":true}`)
	two := sc.permission(2, "Remove two")
	answer(two, session.VerdictDeny, "", "Not \x1b[31mhere.")
	sc.outcome(two, session.QuestionPermission, "Remove two", `{"denied":true}`)
	three := sc.form(3)
	answer(three, session.VerdictDecline, "", "")
	sc.outcome(three, session.QuestionForm, "Which database?", `{"declined":true,"answered":true}`)
	four := sc.permission(4, "Remove four")
	s.w.Apply(id, session.QuestionWithdrawn{ID: four}) // its part is not there
	sc.outcome("gone", session.QuestionPermission, "Not listed", `{"allowed":true}`)

	const settled = "? The agent asks: Remove one\n  ✓ allowed (Yes ␛[31m) by owner\n" +
		"? The agent asks: Remove two\n  ✗ denied by owner: Not ␛[31mhere.\n" +
		"? The agent asks: Which database?\n  ✗ declined by owner\n" +
		"? The agent asks: Remove four\n  ■ canceled: its turn ended, or the agent took it back\n" +
		"✓ Not listed: allowed\n"
	if got := s.run("transcript", string(id)); got != 0 || !strings.Contains(s.out.String(), settled) || strings.Contains(s.out.String(), "answer") {
		t.Errorf("%d %s %s", got, s.out.String(), s.err.String())
	}
	five := sc.permission(5, "Remove five")
	s.out = buffer{}
	hint := "? The agent asks: Remove five\n  hearth answer " + string(id) + " allow | deny\n"
	if got := s.run("transcript", string(id)); got != 0 || !strings.Contains(s.out.String(), settled+hint) {
		t.Errorf("with one that waits: %d %s %s", got, s.out.String(), s.err.String())
	}

	// It is settled while somebody watches.
	s.out = buffer{}
	status := make(chan int, 1)
	go func() { status <- s.run("attach", "--json=false", string(id)) }()
	s.until("the question that waits", func() bool { return strings.Contains(s.out.String(), settled+hint) })
	answer(five, session.VerdictAllow, "", "")
	sc.outcome(five, session.QuestionPermission, "Remove five", `{"allowed":true}`)
	s.until("what became of it", func() bool { return strings.Contains(s.out.String(), hint+"✓ Remove five: allowed by owner\n") })
	s.w.End(id)
	if got := <-status; got != 0 {
		t.Errorf("status %d: %s", got, s.err.String())
	}
}

// A question that nobody answered in time says what that counts as.
func TestExpiredQuestionInAReplay(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("Fix it")
	sc := &scene{shell: s, id: id, turn: s.w.Begin(id)}
	one := sc.form(1)
	s.before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/questions/"+string(one)) {
			return false
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"id": one, "kind": "form", "state": "expired", "verdict": "decline", "message": "Nobody answered in time."})
		return true
	})
	if got := s.run("transcript", string(id)); got != 0 || !strings.Contains(s.out.String(), "  ✗ expired: nobody answered in time, it counts as declined\n") || strings.Contains(s.out.String(), "--field") {
		t.Errorf("%d %s %s", got, s.out.String(), s.err.String())
	}
}
