package session

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/form"
)

func TestForms(t *testing.T) {
	one := QuestionIDOf("t1", 1)
	asked := QuestionAsked{Question{
		Turn: "t1", Number: 1, Kind: QuestionForm, Title: "Which?",
		Detail: `{"message":"Which?","schema":{"type":"object","properties":{"db":{"type":"string","enum":["pg","my"]},"port":{"type":"integer"}},"required":["db"]}}`,
	}}
	a, _ := must(t, running(t), asked)
	for _, c := range []struct {
		ev     QuestionAnswered
		fields []form.Problem
	}{
		{QuestionAnswered{ID: one}, nil},
		{QuestionAnswered{ID: one, Verdict: VerdictAllow}, nil},
		{QuestionAnswered{ID: one, Verdict: VerdictDeny}, nil},
		{QuestionAnswered{ID: one, Option: "y"}, nil},
		{QuestionAnswered{ID: one, Verdict: VerdictDecline, Content: `{"db":"pg"}`}, nil},
		{QuestionAnswered{ID: one, Verdict: VerdictAccept}, []form.Problem{{Field: "content.db", Problem: "is missing"}}},
		{QuestionAnswered{ID: one, Verdict: VerdictAccept, Content: `[]`}, []form.Problem{{Field: "content", Problem: "is no JSON object with the fields' values"}}},
		{QuestionAnswered{ID: one, Verdict: VerdictAccept, Content: `{"db":"ora","port":1.5,"x":1}`}, []form.Problem{
			{Field: "content.x", Problem: "is no field of the form; it has: db, port"},
			{Field: "content.db", Problem: `cannot be "ora"; it is one of pg, my`},
			{Field: "content.port", Problem: "must be a whole number"},
		}},
	} {
		b, _, err := Apply(a, c.ev, t0)
		if fault.CodeOf(err) != fault.InvalidInput {
			t.Errorf("%+v: %v", c.ev, err)
			continue
		}
		got, _ := fault.From(err).Details["fields"].([]form.Problem)
		if d := cmp.Diff(c.fields, got); d != "" {
			t.Errorf("%+v: %s", c.ev, d)
		}
		if len(b.Questions) > 0 && b.Questions[0].State != QuestionPending {
			t.Errorf("%+v: the question is %s", c.ev, b.Questions[0].State)
		}
	}
	for _, c := range []struct {
		verdict, content, want string
	}{
		{VerdictAccept, `{"port":2.0, "db":"my"}`, `{"db":"my","port":2}`},
		{VerdictDecline, "", ""},
		{VerdictCancel, "", ""},
	} {
		b, eff := must(t, a, QuestionAnswered{ID: one, Verdict: c.verdict, Content: c.content, By: "ada"})
		q := b.Questions[0]
		if q.State != QuestionDone || q.Verdict != c.verdict || q.Content != c.want || b.Open.State != TurnRunning || len(eff) != 1 || eff[0].Kind != EffectAnswerQuestion {
			t.Errorf("%s: %+v %v", c.verdict, q, eff)
		}
		if _, _, err := Apply(b, QuestionAnswered{ID: one, Verdict: VerdictDecline}, t0); fault.CodeOf(err) != fault.QuestionSettled {
			t.Errorf("answered twice: %v", err)
		}
	}
	// Nobody watches, nobody answers: after a day it is declined and the agent is told.
	b, eff, err := Apply(a, QuestionOverdue{ID: one}, t0.Add(24*time.Hour))
	if err != nil || b.Questions[0].State != QuestionExpired || b.Questions[0].Verdict != VerdictDecline || b.Open.State != TurnRunning || len(eff) != 1 || eff[0].Kind != EffectAnswerQuestion {
		t.Errorf("overdue: %+v %v %v", b.Questions[0], eff, err)
	}
	// A permission takes none of a form's verdicts.
	p, _ := must(t, running(t), asks(1))
	for _, v := range []string{VerdictAccept, VerdictDecline, VerdictCancel} {
		if _, _, err := Apply(p, QuestionAnswered{ID: one, Verdict: v}, t0); fault.CodeOf(err) != fault.InvalidInput {
			t.Errorf("%s of a permission: %v", v, err)
		}
	}
}
