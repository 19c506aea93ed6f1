package convert

import (
	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/uistream"
)

// ask is a question to a person about a tool call.
type ask struct {
	tool *tool
	data permissionData
}

type permissionData struct {
	ToolCallID string                 `json:"toolCallId"`
	Title      string                 `json:"title,omitempty"`
	Kind       string                 `json:"kind,omitempty"`
	Input      uistream.Value         `json:"input,omitempty"`
	Content    uistream.Value         `json:"content,omitempty"`
	Options    []acp.PermissionOption `json:"options"`
	Outcome    *Answer                `json:"outcome,omitempty"`
}

// Answer is what became of a question. Exactly one of Allowed, Denied and
// Canceled is set.
type Answer struct {
	Allowed  bool   `json:"allowed,omitempty"`
	Denied   bool   `json:"denied,omitempty"`
	Canceled bool   `json:"canceled,omitempty"` // withdrawn: nobody decided
	OptionID string `json:"optionId,omitempty"` // the option chosen
}

// Call is the tool call of a permission request with what was said of it before, and its name.
func (c *Converter) Call(u acp.ToolCall) (call acp.ToolCall, name string) {
	t := tool{id: u.ToolCallID}
	if known := c.tools[c.id(u.ToolCallID)]; known != nil {
		t.call = known.call
	}
	if emptyInput(u.RawInput) && !emptyInput(t.call.RawInput) {
		u.RawInput = nil
	}
	t.call.Merge(u)
	return t.call, t.name()
}

// maxOptions bounds the options shown; agents offer at most half a dozen.
const maxOptions = 32

// Ask shows a permission request as a question with this id: the tool call as
// far as it is known, an approval request, and a data-permission part with the
// options. It is for questions that wait for a person; what is decided without
// one needs no part.
func (c *Converter) Ask(questionID string, r acp.PermissionRequest) []uistream.Part {
	if !c.begun || c.ended {
		return nil
	}
	c.enter()
	c.closeBlock()
	u := r.ToolCall
	if u.ToolCallID == "" {
		u.ToolCallID = questionID
	}
	pending := acp.ToolPending
	u.Status = &pending
	id := c.id(u.ToolCallID)
	if t := c.tools[id]; t != nil && t.done {
		t.done, t.denied, t.inputSent = false, false, false // it begins once more
	}
	c.tool(u, nil)
	t := c.tools[id]
	c.input(t)
	t.question = questionID
	if len(r.Options) > maxOptions {
		r.Options = r.Options[:maxOptions]
	}
	a := &ask{tool: t, data: permissionData{
		ToolCallID: id, Title: t.title(), Kind: cutText(deref(t.call.Kind), titleBytes), Options: []acp.PermissionOption{},
		Input: c.fit(uistream.Value(t.call.RawInput), dataBytes/4).value, Content: c.fit(uistream.Value(t.call.Content), dataBytes/4).value,
	}}
	for _, o := range r.Options {
		a.data.Options = append(a.data.Options, acp.PermissionOption{
			OptionID: o.OptionID, Name: cutText(o.Name, titleBytes), Kind: cutText(o.Kind, titleBytes),
		})
	}
	c.asks[questionID] = a
	c.emit(uistream.ToolApprovalRequest{ApprovalID: questionID, ToolCallID: id, At: c.at})
	c.data(uistream.Data{Name: uistream.DataPermission, ID: questionID, Data: uistream.ValueOf(a.data)})
	return c.result()
}

// Answered shows what became of a question. An allowed call is shown as running
// again, never as done; a refused one as denied.
func (c *Converter) Answered(questionID string, answer Answer) []uistream.Part {
	a := c.asks[questionID]
	if a == nil || !c.begun || c.ended {
		return nil
	}
	c.enter()
	delete(c.asks, questionID)
	a.data.Outcome = &answer
	c.data(uistream.Data{Name: uistream.DataPermission, ID: questionID, Data: uistream.ValueOf(a.data)})
	t := a.tool
	if t.question == questionID {
		t.question = ""
	}
	if t.done || t.question != "" {
		return c.result()
	}
	switch {
	case answer.Denied:
		t.done, t.denied, t.held = true, true, false
		c.emit(uistream.ToolOutputDenied{ToolCallID: t.id, EndAt: c.at})
		c.keepTool(t, fitted{})
	case answer.Allowed:
		t.inputKey, t.inputSent = 0, false
		c.input(t)
		c.progress(t, true)
	}
	return c.result()
}
