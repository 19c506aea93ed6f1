package sessiontest

import (
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/session"
)

// forms: what a form was filled in with is kept until the effect that tells it is done,
// whatever else happens, and not any longer.
func forms(t *testing.T, s Store) {
	id, turn := running(t, s)
	apply(t, s, id, session.QuestionAsked{Question: session.Question{
		Turn: turn, Number: 1, Kind: session.QuestionForm, Title: "Which?", Detail: `{"message":"Which?","schema":{"properties":{"name":{"type":"string"}}}}`,
	}})
	one := session.QuestionIDOf(turn, 1)
	apply(t, s, id, session.QuestionAnswered{ID: one, Verdict: session.VerdictAccept, Content: `{"name":"Ada"}`, By: "owner"})
	content := func() string {
		t.Helper()
		q, err := s.Question(t.Context(), id, one)
		if err != nil || q.State != session.QuestionDone || q.Verdict != session.VerdictAccept {
			t.Fatalf("%+v, %v", q, err)
		}
		return q.Content
	}
	claimed, err := s.Claim(t.Context(), "o", at, at.Add(time.Minute), 10, []session.EffectKind{session.EffectAnswerQuestion})
	if err != nil {
		t.Fatal(err)
	}
	var told session.EffectID
	for _, e := range claimed {
		if e.Kind == session.EffectAnswerQuestion {
			told = e.ID
		} else if err := s.Done(t.Context(), e.ID, "o"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Done(t.Context(), told, "another"); err != nil {
		t.Fatal(err)
	}
	if got := content(); got != `{"name":"Ada"}` {
		t.Errorf("before the agent was told: %q", got)
	}
	if err := s.Done(t.Context(), told, "o"); err != nil {
		t.Fatal(err)
	}
	if got := content(); got != "" {
		t.Errorf("afterwards: %q", got)
	}
}
