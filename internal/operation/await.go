package operation

import (
	"context"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// Who watches sees a question a moment before the session knows it, and a program may
// answer within that moment.
const (
	questionWait  = 2 * time.Second
	questionPause = 20 * time.Millisecond
)

// AwaitQuestion reads a question. For one of the turn at work that is not there yet it
// waits, at most two seconds. Codes: SESSION_NOT_FOUND, QUESTION_NOT_FOUND.
func AwaitQuestion(ctx context.Context, sessions *session.Service, who session.Caller, id session.ID, question session.QuestionID) (session.Question, error) {
	end := time.NewTimer(questionWait)
	defer end.Stop()
	pause := time.NewTicker(questionPause)
	defer pause.Stop()
	for {
		q, err := sessions.Question(ctx, who, id, question)
		if fault.CodeOf(err) != fault.QuestionNotFound {
			return q, err
		}
		a, gerr := sessions.Get(ctx, who, id)
		if gerr != nil {
			return q, gerr
		}
		if a.Open == nil || !strings.HasPrefix(string(question), strings.TrimSuffix(string(session.QuestionIDOf(a.Open.ID, 0)), "0")) {
			return q, err
		}
		select {
		case <-pause.C:
		case <-end.C:
			return q, err
		case <-ctx.Done():
			return q, err
		}
	}
}
