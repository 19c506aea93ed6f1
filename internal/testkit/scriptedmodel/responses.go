package scriptedmodel

import (
	"encoding/json"
	"net/http"
	"strings"
)

// responsesRequest: platform.openai.com, API reference, "Responses".
type responsesRequest struct {
	Model           string          `json:"model"`
	Stream          bool            `json:"stream"`
	Instructions    string          `json:"instructions"`
	Input           json.RawMessage `json:"input"`
	MaxOutputTokens int             `json:"max_output_tokens"`
	PreviousID      string          `json:"previous_response_id"`
	Tools           []struct {
		Type        string         `json:"type"`
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Parameters  map[string]any `json:"parameters"`
	} `json:"tools"`
	ToolChoice json.RawMessage `json:"tool_choice"`
	Text       struct {
		Format jsonFormat `json:"format"`
	} `json:"text"`
}

type responsesItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Output    json.RawMessage `json:"output"`
}

func (x *exchange) responsesRead() (*conversation, bool) {
	var q responsesRequest
	if !x.decode(&q) {
		return nil, false
	}
	bad := func(param, message string) (*conversation, bool) {
		x.fail(apiError{status: http.StatusBadRequest, kind: kindParam, param: param, message: message})
		return nil, false
	}
	if q.Model == "" {
		return bad("model", "")
	}
	if q.PreviousID != "" { // nothing is stored here
		x.fail(apiError{status: http.StatusNotFound, message: "Previous response with id '" + q.PreviousID + "' not found."})
		return nil, false
	}
	var items []responsesItem
	var plain string
	switch {
	case len(q.Input) == 0:
		return bad("input", "")
	case json.Unmarshal(q.Input, &plain) == nil:
		items = []responsesItem{{Type: "message", Role: "user", Content: q.Input}}
	case json.Unmarshal(q.Input, &items) != nil:
		return bad("input", "Invalid type for 'input': expected a string or an array of input items.")
	}
	c := &conversation{model: q.Model, stream: q.Stream, system: q.Instructions, maxTokens: q.MaxOutputTokens, messages: len(items)}
	for _, t := range q.Tools {
		if t.Name != "" && (t.Type == "function" || t.Type == "custom") {
			c.addTool(tool{name: t.Name, schema: t.Parameters, free: t.Type == "custom"}, t.Description)
		}
	}
	c.choice(q.ToolChoice)
	if q.Text.Format.Type == "json_schema" {
		c.schema = q.Text.Format.Schema
	}

	outputs := map[string]bool{}
	calls := map[string]bool{}
	for _, it := range items {
		if strings.HasSuffix(it.Type, "_call_output") {
			outputs[it.CallID] = true
		}
	}
	for _, it := range items {
		switch {
		case it.Type == "function_call" || it.Type == "custom_tool_call":
			if !outputs[it.CallID] {
				return bad("input", "No tool output found for function call "+it.CallID+".")
			}
			calls[it.CallID] = true
			n := len(it.Name) + len(it.Arguments) + len(it.Input)
			c.add(turn{role: roleAssistant, calls: 1, size: max(n, 1)})
		case it.Type == "function_call_output" || it.Type == "custom_tool_call_output":
			if !calls[it.CallID] {
				return bad("input", "No tool call found for function call output with call_id "+it.CallID+".")
			}
			c.add(turn{role: roleTool, text: flatten(it.Output)})
		case it.Type == "message" || it.Type == "" && it.Role != "":
			switch it.Role {
			case "system", "developer":
				c.system += "\n" + flatten(it.Content)
			case "user":
				for _, t := range texts(it.Content) {
					c.add(turn{role: roleUser, text: t})
				}
			case "assistant":
				c.add(turn{role: roleAssistant, text: flatten(it.Content)})
			default:
				return bad("input", "Invalid value: '"+it.Role+"'. Supported values are: 'assistant', 'system', 'developer', and 'user'.")
			}
		}
	}
	c.joinAnswers()
	return c, true
}

// joinAnswers makes one turn of an answer's text and the call that follows it:
// in this dialect they are items of their own.
func (c *conversation) joinAnswers() {
	out := c.turns[:0]
	for _, t := range c.turns {
		if n := len(out); n > 0 && t.role == roleAssistant && out[n-1].role == roleAssistant {
			out[n-1].text += t.text
			out[n-1].calls += t.calls
			out[n-1].size += t.size
			continue
		}
		out = append(out, t)
	}
	c.turns = out
}

func (u usage) responses() object {
	return object{
		"input_tokens": u.input, "input_tokens_details": object{"cached_tokens": u.cached},
		"output_tokens": u.output, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": u.input + u.output,
	}
}

func (x *exchange) responsesCreate(string) {
	c, ok := x.responsesRead()
	if !ok {
		return
	}
	r, ok := x.turn(c)
	if !ok {
		return
	}
	response := func(status string, output []any, usage any) object {
		o := object{
			"id": "", "object": "response", "created_at": x.s.opts.Now().Unix(), "status": status, "model": c.model,
			"error": nil, "incomplete_details": nil, "instructions": nil, "output": output, "usage": usage,
			"parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}, "metadata": object{},
			"previous_response_id": nil, "store": false, "temperature": 1, "top_p": 1, "truncation": "disabled",
		}
		if status == "incomplete" {
			o["incomplete_details"] = object{"reason": "max_output_tokens"}
		}
		return o
	}
	id := "resp_" + x.s.opts.NewID()
	withID := func(o object) object { o["id"] = id; return o }

	end := "completed"
	if r.truncated {
		end = "incomplete"
	}
	var output []any
	part := object{"type": "output_text", "text": r.text(), "annotations": []any{}, "logprobs": []any{}}
	msgID := "msg_" + x.s.opts.NewID()
	message := func(status string, content ...any) object {
		if content == nil {
			content = []any{}
		}
		return object{"id": msgID, "type": "message", "role": "assistant", "status": status, "content": content}
	}
	if len(r.pieces) > 0 {
		output = append(output, message(end, part))
	}
	itemID, callID := x.s.opts.NewID(), "call_"+x.s.opts.NewID()
	callItem := func(status, input string) object {
		o := object{"call_id": callID, "name": r.call.name, "status": status}
		if r.call.tool.free {
			o["id"], o["type"], o["input"] = "ctc_"+itemID, "custom_tool_call", input
		} else {
			o["id"], o["type"], o["arguments"] = "fc_"+itemID, "function_call", input
		}
		return o
	}
	input := ""
	if r.call != nil {
		if input = r.call.free; !r.call.tool.free {
			input = r.call.json()
		}
		output = append(output, callItem("completed", input))
	}
	final := withID(response(end, output, r.usage.responses()))
	if !c.stream {
		x.pauseAll(r)
		x.json(http.StatusOK, final)
		return
	}

	s := x.startStream("text/event-stream; charset=utf-8")
	seq := 0
	ev := func(name string, o object) {
		o["type"], o["sequence_number"] = name, seq
		seq++
		s.event(name, o)
	}
	ev("response.created", object{"response": withID(response("in_progress", []any{}, nil))})
	ev("response.in_progress", object{"response": withID(response("in_progress", []any{}, nil))})
	index := 0
	if len(r.pieces) > 0 {
		at := func(o object) object {
			o["item_id"], o["output_index"], o["content_index"] = msgID, index, 0
			return o
		}
		ev("response.output_item.added", object{"output_index": index, "item": message("in_progress")})
		ev("response.content_part.added", at(object{"part": object{"type": "output_text", "text": "", "annotations": []any{}, "logprobs": []any{}}}))
		s.text(r, func(t string) { ev("response.output_text.delta", at(object{"delta": t, "logprobs": []any{}})) })
		ev("response.output_text.done", at(object{"text": r.text(), "logprobs": []any{}}))
		ev("response.content_part.done", at(object{"part": part}))
		ev("response.output_item.done", object{"output_index": index, "item": message(end, part)})
		index++
	}
	if r.call != nil {
		item := callItem("in_progress", "")
		kind, field := "response.function_call_arguments", "arguments"
		if r.call.tool.free {
			kind, field = "response.custom_tool_call_input", "input"
		}
		ev("response.output_item.added", object{"output_index": index, "item": item})
		for _, p := range chunks(input, 40) {
			ev(kind+".delta", object{"item_id": item["id"], "output_index": index, "delta": p})
		}
		ev(kind+".done", object{"item_id": item["id"], "output_index": index, field: input})
		ev("response.output_item.done", object{"output_index": index, "item": callItem("completed", input)})
	}
	ev("response."+end, object{"response": final})
}
