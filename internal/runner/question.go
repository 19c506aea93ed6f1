package runner

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// answerLimit is how long a driver may take to be told an answer; then it is tried again.
const answerLimit = 30 * time.Second

// answerQuestion tells the driver how a question was settled. The driver takes the first
// telling; the turn ends by other ways when the driver is gone for good.
func (r *Runner) answerQuestion(ctx context.Context, e session.Effect) error {
	a, t, err := r.open(ctx, e)
	if err != nil {
		return err
	}
	if t.State != session.TurnRunning && t.State != session.TurnWaiting {
		return nil // its end has settled everything
	}
	q, err := r.cfg.Store.Question(ctx, e.Session, e.Question)
	if err != nil {
		return err
	}
	b := r.box(e.Session, a.Session.Generation)
	if b == nil {
		return &again{after: time.Second, cause: fault.New(fault.SandboxUnreachable, "")}
	}
	c, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	c, drop := b.call(c)
	defer drop()
	err = b.driver.Answer(c, string(t.ID), answerOf(q))
	switch fault.CodeOf(err) {
	case fault.QuestionSettled, fault.QuestionNotFound, fault.TurnNotFound:
		return nil // told before, or taken back meanwhile
	}
	return err
}

// answerOf is how the driver is told.
func answerOf(q session.Question) driverapi.AnswerRequest {
	return driverapi.AnswerRequest{
		Question: string(q.ID), Allow: q.Verdict == session.VerdictAllow || q.Verdict == session.VerdictAccept, Option: q.Option,
		Content: json.RawMessage(q.Content), Cancel: q.Verdict == session.VerdictCancel,
	}
}

// expireQuestion settles a question that nobody has answered in time.
func (r *Runner) expireQuestion(ctx context.Context, e session.Effect) error {
	_, err := r.cfg.Service.Apply(ctx, e.Session, session.QuestionOverdue{ID: e.Question})
	if c := fault.CodeOf(err); c == fault.QuestionSettled || c == fault.IllegalMove {
		return nil
	}
	return err
}
