package uistream

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// update is what the AI SDK's updateToolPart and updateDynamicToolPart are told. A
// nil value is not told.
type update struct {
	id       json.RawMessage
	name     json.RawMessage
	state    string
	input    partField // an empty one: there is none
	rawInput partField
	encoding json.RawMessage
	output   json.RawMessage
	error    json.RawMessage
	prelim   json.RawMessage
	provider json.RawMessage // providerExecuted
	meta     json.RawMessage // providerMetadata
	title    json.RawMessage
	toolMeta json.RawMessage
}

// updateOf has what most parts of a call tell.
func updateOf(c *chunk, state string) update {
	return update{
		id: c.keep("toolCallId"), name: c.keep("toolName"), state: state,
		provider: c.keep("providerExecuted"), meta: c.keep("providerMetadata"), toolMeta: c.keep("toolMetadata"),
	}
}

// tool takes a part about a tool call.
func (m *Message) tool(t Type, c *chunk) error {
	id := c.text("toolCallId")
	switch t {
	case TypeToolInputStart:
		u := updateOf(c, "input-streaming")
		u.encoding, u.title = c.keep("inputEncoding"), c.keep("title")
		dynamic := c.flag("dynamic")
		m.calls[id] = &callInput{encoding: u.encoding, name: u.name, dynamic: dynamic, title: u.title, metadata: u.toolMeta}
		m.update(u, m.current(id, dynamic), dynamic)
	case TypeToolInputDelta:
		in := m.calls[id]
		if in == nil {
			return fmt.Errorf("input came for the tool call %.80q, which was not announced", id)
		}
		delta, _ := c.value("inputTextDelta")
		in.text.add(delta[1 : len(delta)-1])
		text := partField{text: &in.text, n: in.text.size}
		input := text
		input.value = string(in.encoding) != `"text"`
		m.update(update{
			id: c.keep("toolCallId"), name: in.name, state: "input-streaming", encoding: in.encoding, input: input, rawInput: text, title: in.title, toolMeta: in.metadata,
		}, m.current(id, in.dynamic), in.dynamic)
	case TypeToolInputAvailable:
		u := updateOf(c, "input-available")
		u.input.raw, u.title = c.keep("input"), c.keep("title")
		m.update(u, m.current(id, c.flag("dynamic")), c.flag("dynamic"))
	case TypeToolInputError:
		dynamic := c.flag("dynamic")
		if in := m.inStep[id]; len(in) > 0 { // what it is already counts
			_, dynamic = in[0].toolPart()
		}
		u := updateOf(c, "output-error")
		u.input.raw, u.error = c.keep("input"), c.keep("errorText")
		m.update(u, m.current(id, dynamic), dynamic)
	default:
		return m.toolEnd(t, c)
	}
	return nil
}

// toolEnd takes what comes after a call's input.
func (m *Message) toolEnd(t Type, c *chunk) error {
	id := c.text("toolCallId")
	p := m.last[id]
	if in := m.inStep[id]; len(in) > 0 {
		p = in[0]
	}
	if p == nil {
		return fmt.Errorf("a %s part names the tool call %.80q, which was not announced", t, id)
	}
	_, dynamic := p.toolPart()
	switch t {
	case TypeToolApprovalRequest:
		p.set("state", json.RawMessage(`"approval-requested"`))
		p.set("approval", approval(c))
		return nil
	case TypeToolOutputDenied:
		p.set("state", json.RawMessage(`"output-denied"`))
		return nil
	}
	u := updateOf(c, "output-available")
	u.name = nil // it stays, whatever the part says
	if f := p.field("input"); f != nil {
		u.input = *f
	}
	if t == TypeToolOutputAvailable {
		u.output, u.prelim = c.keep("output"), c.keep("preliminary")
	} else {
		u.state, u.error = "output-error", c.keep("errorText")
		if f := p.field("rawInput"); f != nil && !dynamic {
			u.rawInput = *f
		}
	}
	m.update(u, p, dynamic)
	return nil
}

func (c *chunk) flag(name string) bool {
	v, _ := c.value(name)
	return string(v) == "true"
}

// current is the call's part of that kind in the step at work, nil when it has none.
func (m *Message) current(id string, dynamic bool) *MessagePart {
	for _, p := range m.inStep[id] {
		if _, d := p.toolPart(); d == dynamic {
			return p
		}
	}
	return nil
}

// update says something of a call's part, which is a new one when p is nil.
func (m *Message) update(u update, p *MessagePart, dynamic bool) {
	fresh := p == nil
	if fresh {
		p = m.push("dynamic-tool")
		id := unquote(u.id)
		m.inStep[id] = append(m.inStep[id], p)
		m.last[id] = p
		p.set("toolCallId", u.id)
	}
	if dynamic {
		p.set("toolName", u.name)
	} else if u.name != nil {
		p.kind = "tool-" + unquote(u.name)
	}
	p.set("state", quoted(u.state))
	p.clear("input", "output", "errorText", "rawInput", "inputEncoding", "preliminary")
	p.hold("input", u.input)
	if !fresh || !dynamic { // a new dynamic part has no rawInput in either line
		p.hold("rawInput", u.rawInput)
	}
	p.set("inputEncoding", u.encoding)
	p.set("output", u.output)
	p.set("errorText", u.error)
	p.set("preliminary", u.prelim)
	p.set("providerExecuted", u.provider)
	p.set("title", u.title)
	p.set("toolMetadata", u.toolMeta)
	if u.state == "output-available" || u.state == "output-error" {
		p.set("resultProviderMetadata", u.meta)
	} else {
		p.set("callProviderMetadata", u.meta)
	}
}

// hold sets a field when there is one to set.
func (p *MessagePart) hold(name string, f partField) {
	if f.raw != nil || f.text != nil {
		f.name = name
		p.put(f)
	}
}

func quoted(s string) json.RawMessage { return json.RawMessage(quote([]byte(s))) }

// approval is what a part knows of the question about it.
func approval(c *chunk) json.RawMessage {
	id, _ := c.value("approvalId")
	out := append([]byte(`{"id":`), id...)
	for _, f := range []struct{ from, to string }{
		{"approvalDescriptor", "descriptor"}, {"inputSchemaInput", "inputSchemaInput"}, {"signature", "signature"},
		{"reason", "requestReason"}, {"isAutomatic", "isAutomatic"},
	} {
		v, ok := c.value(f.from)
		if !ok || f.from != "inputSchemaInput" && bytes.Equal(v, []byte("null")) || f.from == "isAutomatic" && string(v) != "true" {
			continue
		}
		out = append(append(append(out, `,"`...), f.to...), `":`...)
		out = append(out, v...)
	}
	return append(out, '}')
}
