package recorder

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/uistream"
)

// Limits of what a driver may put into a question.
const (
	maxTitle   = 1 << 10
	maxOptions = 32
)

// permission is the data of a data-permission part.
type permission struct {
	ToolCallID string          `json:"toolCallId"`
	Title      string          `json:"title"`
	Kind       string          `json:"kind"`
	Input      json.RawMessage `json:"input,omitempty"`
	Content    json.RawMessage `json:"content,omitempty"`
	Options    []struct {
		OptionID string `json:"optionId"`
		Name     string `json:"name"`
		Kind     string `json:"kind"`
	} `json:"options"`
	Outcome *struct {
		Canceled bool `json:"canceled"`
	} `json:"outcome"`
}

// asks tells whether a part shows a question.
func asks(p uistream.Part) bool {
	return p.Type == uistream.DataType(uistream.DataPermission) || p.Type == uistream.DataType(uistream.DataQuestion)
}

// question stores the part that shows a question, and then tells the session: who lists
// questions finds no more than who watches has seen.
func (w *turn) question(ctx context.Context, p uistream.Part) error {
	if err := w.ready(ctx, w.mask.Flush()); err != nil {
		return err
	}
	return w.tell(ctx, p)
}

// tell says to the session what a part with a question shows. Twice is fine.
func (w *turn) tell(ctx context.Context, p uistream.Part) error {
	id := p.Text("id")
	number, err := strconv.ParseInt(id[strings.LastIndexByte(id, '-')+1:], 10, 64)
	if err != nil || number < 1 || session.QuestionIDOf(w.t.ID, number) != session.QuestionID(id) {
		return w.refuse(ctx, fmt.Sprintf("%.80q is not the id of a question of this turn", id))
	}
	raw, _ := p.Field("data")
	if p.Type == uistream.DataType(uistream.DataQuestion) {
		return w.tellForm(ctx, id, number, raw)
	}
	var d permission
	if err := json.Unmarshal(raw, &d); err != nil {
		return w.refuse(ctx, fmt.Sprintf("the question %s cannot be read", id))
	}
	if d.Outcome != nil {
		if !d.Outcome.Canceled {
			return nil // the session knew first
		}
		return w.apply(ctx, session.QuestionWithdrawn{ID: session.QuestionID(id)})
	}
	q := session.Question{
		Turn: w.t.ID, Number: number, Kind: session.QuestionPermission, Title: clip(w.mask.Text(d.Title), maxTitle),
		Tool: clip(d.Kind, 32), ToolCall: clip(d.ToolCallID, 512), Options: []session.Option{},
	}
	if len(d.Options) > maxOptions {
		return w.refuse(ctx, fmt.Sprintf("the question %s has %d options", id, len(d.Options)))
	}
	for _, o := range d.Options {
		if !slices.Contains([]string{acp.AllowOnce, acp.AllowAlways, acp.RejectOnce, acp.RejectAlways}, o.Kind) || o.OptionID == "" || len(o.OptionID) > maxTitle {
			continue // nobody could tell what it means
		}
		q.Options = append(q.Options, session.Option{ID: o.OptionID, Name: clip(w.mask.Text(o.Name), maxTitle), Kind: o.Kind})
	}
	detail, err := json.Marshal(map[string]json.RawMessage{"input": d.Input, "content": d.Content})
	if err != nil {
		return fault.Wrap(err, fault.DriverInvalid, "The question %s cannot be kept.", id)
	}
	q.Detail = w.mask.Text(string(detail))
	return w.apply(ctx, session.QuestionAsked{Question: q})
}
