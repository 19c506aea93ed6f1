package turn

import (
	"context"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/form"
)

// asked is a form that waits for a person.
type asked struct {
	schema form.Schema
	answer func(acp.ElicitationResponse)
}

// Elicitation takes what the agent wants to know. A form waits for [Turn.Answer] where the
// session's approvals ask anybody anything; else, and when it cannot be shown, it is
// declined at once, which the conversation says.
func (t *Turn) Elicitation(ctx context.Context, r acp.ElicitationRequest, answer func(acp.ElicitationResponse)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = t.o.Now()
	if !t.taking || t.over.Load() || t.cancelReq != nil || r.SessionID != t.session {
		answer(acp.ElicitationResponse{Action: acp.ElicitCancel})
		return
	}
	why, s := t.unfit(r)
	if why != "" || t.cap.full() { // full: nobody would see the question
		if why != "" {
			t.write(t.conv.Note("The agent asked for values, which was declined: " + clip(why, 300)))
		}
		answer(acp.ElicitationResponse{Action: acp.ElicitDecline})
		return
	}
	id := driverapi.QuestionID(t.o.ID, t.asked+1)
	parts := t.conv.AskForm(id, r.ToolCallID, r.Message, s.JSON())
	if len(parts) == 0 {
		t.write(t.conv.Note("The agent asked for values, which was declined: The form cannot be shown unchanged."))
		answer(acp.ElicitationResponse{Action: acp.ElicitDecline})
		return
	}
	t.asked++
	t.ask(ctx, id, &question{form: &asked{schema: s, answer: answer}}, parts)
}

// unfit says why what the agent wants is not shown to a person; empty: it is.
func (t *Turn) unfit(r acp.ElicitationRequest) (string, form.Schema) {
	switch {
	case !t.policy.Asks():
		return "This session's approvals ask nobody.", form.Schema{}
	case r.Mode == "url":
		return "It wants a page to be opened, which is not done from a sandbox.", form.Schema{}
	case r.Mode != acp.ElicitationForm:
		return "It asked in a way that is not known here.", form.Schema{}
	}
	s, err := form.Parse(r.Schema)
	if err != nil {
		return fault.From(err).Sentence(), form.Schema{}
	}
	return "", s
}

// answerForm settles a form. The server has checked the values by what it was shown; where
// that was masked they may not fit, and then the form is declined: nobody is asked again.
// Called under mu.
func (t *Turn) answerForm(r driverapi.AnswerRequest, f *asked) {
	res := acp.ElicitationResponse{Action: acp.ElicitDecline}
	shown := convert.FormAnswer{Answered: true}
	content, problems := f.schema.Check(r.Content)
	switch {
	case r.Allow && len(problems) > 0:
		t.write(t.conv.Note("The answer does not fit what the agent asked for; it was told that nothing was said. " + clip(form.Refusal(problems).Error(), 300)))
		shown.Declined = true
	case r.Allow:
		res = acp.ElicitationResponse{Action: acp.ElicitAccept, Content: content}
		shown.Accepted, shown.Fields = true, f.schema.Names(content)
	case r.Cancel:
		res.Action, shown.Canceled = acp.ElicitCancel, true
	default:
		shown.Declined = true
	}
	t.settle(r.Question, t.conv.FormAnswered(r.Question, shown))
	f.answer(res)
}
