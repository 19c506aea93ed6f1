package convert

import (
	"encoding/json"

	"github.com/hearthd/hearth/internal/uistream"
)

// messageBytes bounds what is shown of a form's message.
const messageBytes = 16 << 10

// formData is a form that a person fills in.
type formData struct {
	Kind       string          `json:"kind"` // form
	ToolCallID string          `json:"toolCallId,omitempty"`
	Message    string          `json:"message"`
	Schema     json.RawMessage `json:"schema"`
	Outcome    *FormAnswer     `json:"outcome,omitempty"`
}

// FormAnswer is what became of a form. Exactly one of Accepted, Declined and Canceled is
// set. The values are not in it: they are the agent's.
type FormAnswer struct {
	Accepted bool     `json:"accepted,omitempty"`
	Declined bool     `json:"declined,omitempty"`
	Canceled bool     `json:"canceled,omitempty"` // by a person, or withdrawn
	Answered bool     `json:"answered,omitempty"` // a person decided
	Fields   []string `json:"fields,omitempty"`   // that were filled in
}

// AskForm shows a form as a question with this id. The schema is JSON text that package
// form made. No parts: it cannot be shown unchanged.
func (c *Converter) AskForm(questionID, toolCallID, message string, schema json.RawMessage) []uistream.Part {
	if !c.begun || c.ended {
		return nil
	}
	c.enter()
	d := &formData{Kind: "form", Message: cutText(message, messageBytes), Schema: schema}
	if toolCallID != "" {
		d.ToolCallID = c.id(toolCallID)
	}
	v := uistream.ValueOf(d)
	if f := c.fit(v, dataBytes); f.lossy || f.truncated > 0 {
		return nil
	}
	c.closeBlock()
	c.forms[questionID] = d
	c.data(uistream.Data{Name: uistream.DataQuestion, ID: questionID, Data: v})
	return c.out
}

// FormAnswered shows what became of a form.
func (c *Converter) FormAnswered(questionID string, answer FormAnswer) []uistream.Part {
	d := c.forms[questionID]
	if d == nil || !c.begun || c.ended {
		return nil
	}
	c.enter()
	delete(c.forms, questionID)
	d.Outcome = &answer
	c.data(uistream.Data{Name: uistream.DataQuestion, ID: questionID, Data: uistream.ValueOf(d)})
	return c.out
}

// Note is a remark of Hearth's own in the conversation.
func (c *Converter) Note(text string) []uistream.Part {
	if !c.begun || c.ended {
		return nil
	}
	c.enter()
	c.data(uistream.Data{Name: uistream.DataNotice, Data: uistream.ValueOf(map[string]string{"source": "hearth", "level": "warning", "text": text})})
	return c.out
}
