package recorder

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/form"
	"github.com/hearthd/hearth/internal/session"
)

// maxMessage bounds what is kept of a form's message.
const maxMessage = 16 << 10

// formAsked is the data of a data-question part.
type formAsked struct {
	ToolCallID string          `json:"toolCallId"`
	Message    string          `json:"message"`
	Schema     json.RawMessage `json:"schema"`
	Outcome    *struct {
		Canceled bool `json:"canceled"`
		Answered bool `json:"answered"`
	} `json:"outcome"`
}

// tellForm says to the session what a data-question part shows.
func (w *turn) tellForm(ctx context.Context, id string, number int64, raw json.RawMessage) error {
	var d formAsked
	if err := json.Unmarshal(raw, &d); err != nil {
		return w.refuse(ctx, fmt.Sprintf("the form %s cannot be read", id))
	}
	if d.Outcome != nil {
		if d.Outcome.Answered || !d.Outcome.Canceled {
			return nil // the session knew first
		}
		return w.apply(ctx, session.QuestionWithdrawn{ID: session.QuestionID(id)})
	}
	schema, err := form.Parse([]byte(w.mask.Text(string(d.Schema)))) // as it is shown: what is masked nobody can answer with
	if err != nil {
		return w.refuse(ctx, fmt.Sprintf("the form %s is none: %s", id, fault.From(err).Sentence()))
	}
	detail := session.FormDetail{Message: clip(w.mask.Text(d.Message), maxMessage), Schema: schema.JSON()}
	text, err := json.Marshal(detail)
	if err != nil {
		return fault.Wrap(err, fault.DriverInvalid, "The form %s cannot be kept.", id)
	}
	title, _, _ := strings.Cut(strings.TrimSpace(detail.Message), "\n")
	return w.apply(ctx, session.QuestionAsked{Question: session.Question{
		Turn: w.t.ID, Number: number, Kind: session.QuestionForm, Title: clip(title, maxTitle), ToolCall: clip(d.ToolCallID, 512),
		Options: []session.Option{}, Detail: string(text),
	}})
}
