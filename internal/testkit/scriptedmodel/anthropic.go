package scriptedmodel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// anthropicRequest: docs.anthropic.com, API reference, "Messages".
type anthropicRequest struct {
	Model     string          `json:"model"`
	MaxTokens int             `json:"max_tokens"`
	Stream    bool            `json:"stream"`
	System    json.RawMessage `json:"system"`
	Messages  []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		InputSchema map[string]any `json:"input_schema"`
	} `json:"tools"`
	ToolChoice struct {
		Type string `json:"type"`
		Name string `json:"name"`
	} `json:"tool_choice"`
	OutputConfig struct {
		Format jsonFormat `json:"format"`
	} `json:"output_config"`
	OutputFormat jsonFormat `json:"output_format"` // the older name
}

type jsonFormat struct {
	Type   string         `json:"type"`
	Schema map[string]any `json:"schema"`
}

type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ID        string          `json:"id"`
	ToolUseID string          `json:"tool_use_id"`
	Input     json.RawMessage `json:"input"`
	Content   json.RawMessage `json:"content"`
}

func (x *exchange) anthropicRead(needMax bool) (*conversation, bool) {
	var q anthropicRequest
	if !x.decode(&q) {
		return nil, false
	}
	bad := func(format string, args ...any) (*conversation, bool) {
		x.fail(apiError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...)})
		return nil, false
	}
	switch {
	case x.r.Header.Get("Anthropic-Version") == "":
		return bad("anthropic-version: header is required")
	case q.Model == "":
		return bad("model: Field required")
	case needMax && q.MaxTokens < 1:
		return bad("max_tokens: Field required")
	case len(q.Messages) == 0:
		return bad("messages: at least one message is required")
	}
	c := &conversation{
		model: q.Model, stream: q.Stream, maxTokens: q.MaxTokens, system: flatten(q.System),
		messages: len(q.Messages), caching: bytes.Contains(x.raw, []byte(`"cache_control"`)),
	}
	for _, t := range q.Tools {
		if t.InputSchema == nil {
			continue // a tool of the service's own
		}
		c.addTool(tool{name: t.Name, schema: t.InputSchema}, t.Description)
	}
	switch q.ToolChoice.Type {
	case "none":
		c.tools = nil
	case "tool":
		c.forced = q.ToolChoice.Name
	}
	for _, f := range []jsonFormat{q.OutputConfig.Format, q.OutputFormat} {
		if f.Type == "json_schema" {
			c.schema = f.Schema
		}
	}

	var open []string // tool calls that the next user message must answer
	var openAt int
	for i, m := range q.Messages {
		blocks, err := anthropicBlocks(m.Content)
		if err != nil {
			return bad("messages.%d.content: %v", i, err)
		}
		switch m.Role {
		case "user":
			for k, b := range blocks {
				switch b.Type {
				case "tool_result":
					j := slices.Index(open, b.ToolUseID)
					if j < 0 {
						return bad("messages.%d.content.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.", i, k, b.ToolUseID)
					}
					open = slices.Delete(open, j, j+1)
					c.add(turn{role: roleTool, text: flatten(b.Content)})
				case "text":
					c.add(turn{role: roleUser, text: b.Text})
				}
			}
			next := i + 1
			if len(open) > 0 && (next == len(q.Messages) || q.Messages[next].Role != "user") {
				return bad(danglingAnthropic, openAt, strings.Join(open, ", "))
			}
		case "assistant":
			if len(open) > 0 {
				return bad(danglingAnthropic, openAt, strings.Join(open, ", "))
			}
			t := turn{role: roleAssistant}
			for _, b := range blocks {
				switch b.Type {
				case "tool_use":
					t.calls++
					t.size += len(b.Input)
					open, openAt = append(open, b.ID), i
				case "text":
					t.text += b.Text
				}
			}
			t.size += len(t.text)
			c.add(t)
		case "system":
			c.system += "\n" + flatten(m.Content)
		default:
			return bad("messages.%d.role: Input should be 'user' or 'assistant'", i)
		}
	}
	if len(open) > 0 {
		return bad(danglingAnthropic, openAt, strings.Join(open, ", "))
	}
	return c, true
}

const danglingAnthropic = "messages.%d: `tool_use` ids were found without `tool_result` blocks immediately after: %s. Each `tool_use` block must have a corresponding `tool_result` block in the next message."

func anthropicBlocks(raw json.RawMessage) ([]anthropicBlock, error) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return []anthropicBlock{{Type: "text", Text: s}}, nil
	}
	var blocks []anthropicBlock
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return nil, fmt.Errorf("Input should be a valid list")
	}
	return blocks, nil
}

func (c *conversation) addTool(t tool, description string) {
	c.tools = append(c.tools, t)
	b, err := json.Marshal(t.schema)
	if err == nil {
		c.toolBytes += len(t.name) + len(description) + len(b)
	}
}

func (x *exchange) anthropicCount(string) {
	c, ok := x.anthropicRead(false)
	if !ok {
		return
	}
	x.entry.Model, x.entry.Messages, x.entry.Reply = c.model, c.messages, "count"
	if !x.s.knows(c.model) {
		x.fail(apiError{status: http.StatusNotFound, kind: kindModel, model: c.model})
		return
	}
	x.json(http.StatusOK, object{"input_tokens": c.usage().input})
}

func (u usage) anthropic(caching bool, output int) object {
	fresh, read, write := u.input, 0, 0
	if caching {
		fresh, read, write = u.last, u.cached, u.input-u.cached-u.last
	}
	return object{
		"input_tokens": fresh, "cache_read_input_tokens": read, "cache_creation_input_tokens": write,
		"cache_creation": object{"ephemeral_5m_input_tokens": write, "ephemeral_1h_input_tokens": 0},
		"output_tokens":  output, "service_tier": "standard",
	}
}

func (x *exchange) anthropicMessages(string) {
	c, ok := x.anthropicRead(true)
	if !ok {
		return
	}
	r, ok := x.turn(c)
	if !ok {
		return
	}
	stop := "end_turn"
	switch {
	case r.truncated:
		stop = "max_tokens"
	case r.call != nil:
		stop = "tool_use"
	}
	message := object{
		"id": "msg_" + x.s.opts.NewID(), "type": "message", "role": "assistant", "model": c.model,
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": r.usage.anthropic(c.caching, 1),
	}
	var toolUse object
	if r.call != nil {
		toolUse = object{"type": "tool_use", "id": "toolu_" + x.s.opts.NewID(), "name": r.call.name, "input": r.call.args}
	}
	if !c.stream {
		x.pauseAll(r)
		content := []any{}
		if t := r.text(); t != "" {
			content = append(content, object{"type": "text", "text": t})
		}
		if toolUse != nil {
			content = append(content, toolUse)
		}
		message["content"], message["stop_reason"] = content, stop
		message["usage"] = r.usage.anthropic(c.caching, r.usage.output)
		x.json(http.StatusOK, message)
		return
	}

	s := x.startStream("text/event-stream; charset=utf-8")
	ev := func(name string, o object) {
		o["type"] = name
		s.event(name, o)
	}
	index := 0
	ev("message_start", object{"message": message})
	if len(r.pieces) > 0 {
		ev("content_block_start", object{"index": index, "content_block": object{"type": "text", "text": ""}})
		ev("ping", object{})
		s.text(r, func(t string) {
			ev("content_block_delta", object{"index": index, "delta": object{"type": "text_delta", "text": t}})
		})
		ev("content_block_stop", object{"index": index})
		index++
	}
	if toolUse != nil {
		toolUse["input"] = object{}
		ev("content_block_start", object{"index": index, "content_block": toolUse})
		ev("content_block_delta", object{"index": index, "delta": object{"type": "input_json_delta", "partial_json": ""}})
		for _, p := range chunks(r.call.json(), 40) {
			ev("content_block_delta", object{"index": index, "delta": object{"type": "input_json_delta", "partial_json": p}})
		}
		ev("content_block_stop", object{"index": index})
	}
	ev("message_delta", object{
		"delta": object{"stop_reason": stop, "stop_sequence": nil},
		"usage": r.usage.anthropic(c.caching, r.usage.output),
	})
	ev("message_stop", object{})
}
