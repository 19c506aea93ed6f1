package session

import (
	"encoding/json"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/form"
)

// FormDetail is a form's detail, as JSON.
type FormDetail struct {
	Message string          `json:"message"` // what the agent says
	Schema  json.RawMessage `json:"schema"`  // as package form reads it
}

// filled judges the answer to a form and returns its content as the agent gets it.
func filled(q *Question, e QuestionAnswered) (string, error) {
	switch e.Verdict {
	case VerdictAccept:
	case VerdictDecline, VerdictCancel:
		if e.Content != "" {
			return "", fault.Field("content", "Only a form that is accepted has a content.")
		}
		return "", nil
	default:
		return "", fault.Field("verdict", "The answer is %.20q; a form is answered with accept, decline or cancel.", e.Verdict)
	}
	var d FormDetail
	if err := json.Unmarshal([]byte(q.Detail), &d); err != nil {
		return "", fault.Wrap(err, fault.InternalError, "The form %s cannot be read.", q.ID)
	}
	s, err := form.Parse(d.Schema)
	if err != nil {
		return "", fault.Wrap(err, fault.InternalError, "The form %s cannot be read.", q.ID)
	}
	content, problems := s.Check([]byte(e.Content))
	if len(problems) > 0 {
		return "", form.Refusal(problems)
	}
	return string(content), nil
}

// counted is what a question that nobody answered counts as.
func counted(q Question) string {
	if q.Kind == QuestionForm {
		return "declined"
	}
	return "denied"
}
