package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/session"
)

// What waits is listed and answered, from the session that is the newest or named; what
// cannot be answered is refused in words.
func TestQuestions(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("Fix it")
	turn := s.w.Begin(id)
	run := func(want int, has string, args ...string) {
		t.Helper()
		s.out, s.err = buffer{}, buffer{}
		got := s.run(args...)
		if said := s.out.String() + s.err.String(); got != want || !strings.Contains(said, has) {
			t.Errorf("hearth %q: status %d, want %d with %q: %s", args, got, want, has, said)
		}
	}
	ask := func(n int64, title string) string {
		s.w.Apply(id, session.QuestionAsked{Question: session.Question{
			Turn: turn.ID, Number: n, Kind: session.QuestionPermission, Title: title,
			Options: []session.Option{{ID: "once", Name: "Yes", Kind: "allow_once"}, {ID: "always", Name: "Always", Kind: "allow_always"}, {ID: "no", Name: "No", Kind: "reject_once"}},
		}})
		return string(session.QuestionIDOf(turn.ID, n))
	}
	state := func(n int64) session.Question {
		t.Helper()
		q, err := s.w.Sessions.Question(t.Context(), s.w.Owner(), id, session.QuestionIDOf(turn.ID, n))
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	run(0, "Nothing waits", "questions")
	run(5, "Nothing waits", "answer", "allow")
	one := ask(1, "Remove \x1b[31mall")
	run(0, "Remove", "questions", string(id))
	if strings.Contains(s.out.String(), "\x1b") || !strings.Contains(s.out.String(), one) || !strings.Contains(s.out.String(), "always (allow_always)") {
		t.Errorf("listed as %q", s.out.String())
	}
	run(2, "allow or deny", "answer")
	run(2, "neither allow nor deny", "answer", string(id), "perhaps", "--option", "once")
	run(2, "has no option", "answer", "--option", "maybe")
	run(0, "deny", "answer", "deny", "--message", "Not here.")
	if q := state(1); q.Verdict != "deny" || q.Message != "Not here." || q.By != "owner" {
		t.Errorf("answered as %+v", q)
	}
	run(6, "has answered it already: deny", "answer", "allow", "--question", one)
	two := ask(2, "Two")
	ask(3, "Three")
	run(2, "2 questions wait", "answer", "allow")
	run(0, "allow", "answer", string(id), "--question", two, "--option", "always")
	if q := state(2); q.Option != "always" || q.Verdict != "allow" {
		t.Errorf("answered as %+v", q)
	}
	run(0, "allow", "answer", "allow")
	run(0, "answered deny by owner", "questions", "--all")
	run(0, `"state": "answered"`, "questions", "--all", "--json")
	if a := s.w.Get(id); a.Open.State != session.TurnRunning {
		t.Errorf("the turn is %s", a.Open.State)
	}
	s.w.End(id)

	// The flag of run.
	rules := filepath.Join(t.TempDir(), "rules.json")
	if err := os.WriteFile(rules, []byte(`{"rules":[{"kind":"read","do":"allow"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run(0, "ses_", "run", "-d", "--approvals", rules, "x")
	run(0, `"rules"`, "list", "--json")
	run(2, "auto, ask, read-only", "run", "-d", "--approvals", "often", "x")
	run(2, "cannot be read", "run", "-d", "--approvals", "./none.json", "x")
	if err := os.WriteFile(rules, []byte(`{"rules":[{"do":"allow"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run(2, "names no kind", "run", "-d", "--approvals", rules, "x")
}
