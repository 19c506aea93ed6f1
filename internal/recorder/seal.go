package recorder

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// TurnEnd is the data of the part "data-turn-end", the last but one of every turn.
type TurnEnd struct {
	State     session.TurnState `json:"state"`
	Code      fault.Code        `json:"code,omitempty"`
	Sentence  string            `json:"sentence,omitempty"`
	Remedy    string            `json:"remedy,omitempty"`
	Rung      string            `json:"rung,omitempty"`
	Complete  bool              `json:"complete"`
	Truncated string            `json:"truncated,omitempty"`
	Delivery  *Delivery         `json:"delivery,omitempty"`
	Notes     []string          `json:"notes,omitempty"` // on what was packed
	Usage     json.RawMessage   `json:"usage,omitempty"`
	EndAt     string            `json:"endAt"`
}

// Delivery tells what became of the work.
type Delivery struct {
	State    session.DeliveryState `json:"state"`
	Code     fault.Code            `json:"code,omitempty"`
	Sentence string                `json:"sentence,omitempty"`
	Commit   string                `json:"commit,omitempty"` // as read back from the remote
}

// Seal makes the parts that close an ended turn: what is open is closed, then
// data-turn-end, then finish. It is pure but for the clock; stored is the turn's whole transcript.
func (r *Recorder) Seal(t *session.Turn, stored []transcript.Part) ([]transcript.Part, error) {
	c := uistream.NewChecker(string(t.ID))
	n := int64(0)
	for _, p := range stored {
		if _, err := c.Stored(p.Body); err != nil {
			return nil, fmt.Errorf("part %s: %w", p.Cursor, err)
		}
		n = p.Cursor.Part
	}
	if c.Finished() {
		return nil, nil
	}
	now := r.Now()
	reason := "The turn ended before this was done."
	if t.State == session.TurnCanceled {
		reason = "The turn was canceled."
	}
	parts := c.Close(reason, now)
	end := TurnEnd{
		State: t.State, Code: t.Code, Sentence: t.Message, Rung: t.Rung, Complete: t.Complete || t.SentAt.IsZero(), Truncated: t.Truncated, Notes: t.Notes,
		EndAt: t.EndedAt.UTC().Format(time.RFC3339Nano),
	}
	if t.Code != "" {
		info := fault.Lookup(t.Code)
		end.Remedy = info.Remedy
		if end.Sentence == "" {
			end.Sentence = info.Sentence
		}
	}
	if d := t.Delivery; d.State != session.DeliveryNone {
		end.Delivery = &Delivery{State: d.State, Code: d.Code, Sentence: d.Message, Commit: d.OID}
		if d.Code != "" && d.Message == "" {
			end.Delivery.Sentence = fault.Lookup(d.Code).Sentence
		}
	}
	if json.Valid([]byte(t.Usage)) {
		end.Usage = json.RawMessage(t.Usage)
	}
	turnEnd := uistream.Data{Name: uistream.DataTurnEnd, Data: uistream.ValueOf(end), At: uistream.At(now)}.Part()
	reasonOf := map[session.TurnState]uistream.FinishReason{session.TurnCompleted: uistream.FinishStop, session.TurnFailed: uistream.FinishError, session.TurnCanceled: uistream.FinishOther}[t.State]
	parts = append(parts, turnEnd, uistream.Finish{FinishReason: reasonOf}.Part())
	out := make([]transcript.Part, len(parts))
	for i, p := range parts {
		n++
		out[i] = transcript.Part{Cursor: transcript.Cursor{Turn: t.Number, Part: n}, Body: p.Raw}
	}
	return out, nil
}
