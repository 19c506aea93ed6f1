package scriptedmodel

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// chatRequest: platform.openai.com, API reference, "Chat Completions".
type chatRequest struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens           int `json:"max_tokens"`
	MaxCompletionTokens int `json:"max_completion_tokens"`
	Messages            []struct {
		Role       string          `json:"role"`
		Content    json.RawMessage `json:"content"`
		ToolCallID string          `json:"tool_call_id"`
		ToolCalls  []struct {
			ID       string `json:"id"`
			Function struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	} `json:"messages"`
	Tools []struct {
		Type     string `json:"type"`
		Function struct {
			Name        string         `json:"name"`
			Description string         `json:"description"`
			Parameters  map[string]any `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
	ToolChoice     json.RawMessage `json:"tool_choice"`
	ResponseFormat struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema map[string]any `json:"schema"`
		} `json:"json_schema"`
	} `json:"response_format"`
}

// choice reads OpenAI's tool_choice: a word, or an object that names a tool.
func (c *conversation) choice(raw json.RawMessage) {
	var word string
	if json.Unmarshal(raw, &word) == nil {
		if word == "none" {
			c.tools = nil
		}
		return
	}
	var o struct {
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(raw, &o) == nil {
		c.forced = o.Name + o.Function.Name
	}
}

func (x *exchange) chatRead() (*conversation, bool) {
	var q chatRequest
	if !x.decode(&q) {
		return nil, false
	}
	bad := func(param, message string) (*conversation, bool) {
		x.fail(apiError{status: http.StatusBadRequest, kind: kindParam, param: param, message: message})
		return nil, false
	}
	if q.Model == "" {
		return bad("model", "you must provide a model parameter")
	}
	if len(q.Messages) == 0 {
		return bad("messages", "")
	}
	c := &conversation{
		model: q.Model, stream: q.Stream, messages: len(q.Messages), usageWant: q.StreamOptions.IncludeUsage,
		maxTokens: max(q.MaxTokens, q.MaxCompletionTokens),
	}
	for _, t := range q.Tools {
		if t.Function.Name != "" {
			c.addTool(tool{name: t.Function.Name, schema: t.Function.Parameters}, t.Function.Description)
		}
	}
	c.choice(q.ToolChoice)
	switch q.ResponseFormat.Type {
	case "json_schema":
		c.schema = q.ResponseFormat.JSONSchema.Schema
	case "json_object":
		c.schema = map[string]any{"type": "object"}
	}

	const dangling = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
	var open []string
	for _, m := range q.Messages {
		if m.Role != "tool" && len(open) > 0 {
			return bad("messages", dangling+strings.Join(open, ", "))
		}
		switch m.Role {
		case "system", "developer":
			c.system += flatten(m.Content) + "\n"
		case "user":
			for _, t := range texts(m.Content) {
				c.add(turn{role: roleUser, text: t})
			}
		case "assistant":
			t := turn{role: roleAssistant, text: flatten(m.Content), calls: len(m.ToolCalls)}
			t.size = len(t.text)
			for _, tc := range m.ToolCalls {
				t.size += len(tc.Function.Name) + len(tc.Function.Arguments)
				open = append(open, tc.ID)
			}
			c.add(t)
		case "tool":
			i := slices.Index(open, m.ToolCallID)
			if i < 0 {
				return bad("messages", "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.")
			}
			open = slices.Delete(open, i, i+1)
			c.add(turn{role: roleTool, text: flatten(m.Content)})
		default:
			return bad("messages", "Invalid value: '"+m.Role+"'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.")
		}
	}
	if len(open) > 0 {
		return bad("messages", dangling+strings.Join(open, ", "))
	}
	return c, true
}

func (u usage) chat() object {
	return object{
		"prompt_tokens": u.input, "completion_tokens": u.output, "total_tokens": u.input + u.output,
		"prompt_tokens_details": object{"cached_tokens": u.cached, "audio_tokens": 0},
		"completion_tokens_details": object{
			"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
		},
	}
}

func (x *exchange) chatCompletions(string) {
	c, ok := x.chatRead()
	if !ok {
		return
	}
	r, ok := x.turn(c)
	if !ok {
		return
	}
	finish := "stop"
	switch {
	case r.truncated:
		finish = "length"
	case r.call != nil:
		finish = "tool_calls"
	}
	id, callID, created := "chatcmpl-"+x.s.opts.NewID(), "call_"+x.s.opts.NewID(), x.s.opts.Now().Unix()
	if !c.stream {
		x.pauseAll(r)
		message := object{"role": "assistant", "content": nil, "refusal": nil, "annotations": []any{}}
		if t := r.text(); t != "" {
			message["content"] = t
		}
		if r.call != nil {
			message["tool_calls"] = []any{object{"id": callID, "type": "function", "function": object{"name": r.call.name, "arguments": r.call.json()}}}
		}
		x.json(http.StatusOK, object{
			"id": id, "object": "chat.completion", "created": created, "model": c.model, "usage": r.usage.chat(), "service_tier": "default",
			"choices": []any{object{"index": 0, "message": message, "logprobs": nil, "finish_reason": finish}},
		})
		return
	}

	s := x.startStream("text/event-stream; charset=utf-8")
	chunk := func(choices []any, use any) {
		o := object{"id": id, "object": "chat.completion.chunk", "created": created, "model": c.model, "service_tier": "default", "choices": choices}
		if c.usageWant {
			o["usage"] = use
		}
		s.event("", o)
	}
	delta := func(d object, finish any) {
		chunk([]any{object{"index": 0, "delta": d, "logprobs": nil, "finish_reason": finish}}, nil)
	}
	delta(object{"role": "assistant", "content": "", "refusal": nil}, nil)
	s.text(r, func(t string) { delta(object{"content": t}, nil) })
	if r.call != nil {
		delta(object{"tool_calls": []any{object{"index": 0, "id": callID, "type": "function", "function": object{"name": r.call.name, "arguments": ""}}}}, nil)
		for _, p := range chunks(r.call.json(), 40) {
			delta(object{"tool_calls": []any{object{"index": 0, "function": object{"arguments": p}}}}, nil)
		}
	}
	delta(object{}, finish)
	if c.usageWant {
		chunk([]any{}, r.usage.chat())
	}
	s.raw("data: [DONE]\n\n")
}
