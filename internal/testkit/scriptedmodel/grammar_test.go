package scriptedmodel_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Anthropic Messages: docs.anthropic.com, "Streaming Messages", event flow.

func anthropicBody(system string, conv []said, tools []toolDef, stream bool) map[string]any {
	var msgs, defs []any
	for _, s := range conv {
		switch s.role {
		case "tool":
			msgs = append(msgs, map[string]any{"role": "user", "content": []any{map[string]any{"type": "tool_result", "tool_use_id": s.id, "content": []any{map[string]any{"type": "text", "text": s.text}}}}})
		case "assistant":
			content := []any{map[string]any{"type": "text", "text": s.text}}
			if s.call != nil {
				content = append(content, map[string]any{"type": "tool_use", "id": s.call.ID, "name": s.call.Name, "input": s.call.Args})
			}
			msgs = append(msgs, map[string]any{"role": "assistant", "content": content})
		default:
			msgs = append(msgs, map[string]any{"role": s.role, "content": s.text})
		}
	}
	for _, d := range tools {
		defs = append(defs, map[string]any{"name": d.Name, "input_schema": d.Schema})
	}
	b := map[string]any{
		"model": "scripted", "max_tokens": 4096, "stream": stream, "messages": msgs,
		"system": []any{map[string]any{"type": "text", "text": system, "cache_control": map[string]any{"type": "ephemeral"}}},
	}
	if defs != nil {
		b["tools"] = defs
	}
	return b
}

func anthropicUsage(a *answer, u any) error {
	in, read, write := num(u, "input_tokens"), num(u, "cache_read_input_tokens"), num(u, "cache_creation_input_tokens")
	if in < 0 || read < 0 || write < 0 || num(u, "output_tokens") < 0 {
		return fmt.Errorf("usage %v", u)
	}
	a.in, a.cached, a.out = in+read+write, read, num(u, "output_tokens")
	return nil
}

func anthropicWhole(b []byte) (answer, error) {
	m, err := strict(b, "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage")
	if err != nil {
		return answer{}, err
	}
	a := answer{stop: stops[str(m, "stop_reason")]}
	for _, c := range m["content"].([]any) {
		switch str(c, "type") {
		case "text":
			a.text += str(c, "text")
		case "tool_use":
			a.call = &toolCall{str(c, "id"), str(c, "name"), c.(map[string]any)["input"].(map[string]any)}
		}
	}
	return a, anthropicUsage(&a, m["usage"])
}

func anthropicSSE(r io.Reader) (answer, error) {
	evs, err := events(r)
	if err != nil {
		return answer{}, err
	}
	var a answer
	state, index, open, args := "", 0, "", ""
	for i, e := range evs {
		m, err := strict(e.data, "type")
		if err != nil {
			return a, err
		}
		if e.name != str(m, "type") {
			return a, fmt.Errorf("event %q has type %q", e.name, str(m, "type"))
		}
		bad := fmt.Errorf("event %d %s in state %q: %s", i, e.name, state, e.data)
		switch e.name {
		case "ping":
			if state == "" || state == "done" {
				return a, bad
			}
		case "message_start":
			if state != "" || str(m, "message", "role") != "assistant" || len(m["message"].(map[string]any)["content"].([]any)) != 0 {
				return a, bad
			}
			if err := anthropicUsage(&a, m["message"].(map[string]any)["usage"]); err != nil {
				return a, err
			}
			state = "message"
		case "content_block_start":
			if state != "message" || num(m, "index") != index {
				return a, bad
			}
			state, open, args = "block", str(m, "content_block", "type"), ""
			if open == "tool_use" {
				if in := m["content_block"].(map[string]any)["input"].(map[string]any); len(in) != 0 {
					return a, bad
				}
				a.call = &toolCall{ID: str(m, "content_block", "id"), Name: str(m, "content_block", "name")}
			}
		case "content_block_delta":
			if state != "block" || num(m, "index") != index {
				return a, bad
			}
			switch d := str(m, "delta", "type"); {
			case d == "text_delta" && open == "text":
				a.text += str(m, "delta", "text")
				a.deltas++
			case d == "input_json_delta" && open == "tool_use":
				args += str(m, "delta", "partial_json")
			default:
				return a, bad
			}
		case "content_block_stop":
			if state != "block" || num(m, "index") != index {
				return a, bad
			}
			if open == "tool_use" {
				if a.call.Args, err = parseArgs(args); err != nil {
					return a, err
				}
			}
			state = "message"
			index++
		case "message_delta":
			if state != "message" {
				return a, bad
			}
			in := a.in
			if err := anthropicUsage(&a, m["usage"]); err != nil {
				return a, err
			}
			if a.in != in {
				return a, fmt.Errorf("input tokens changed from %d to %d", in, a.in)
			}
			a.stop, state = stops[str(m, "delta", "stop_reason")], "delta"
		case "message_stop":
			if state != "delta" {
				return a, bad
			}
			state = "done"
		default:
			return a, bad
		}
	}
	if state != "done" {
		return a, fmt.Errorf("stream ends in state %q", state)
	}
	return a, nil
}

// OpenAI Chat Completions: platform.openai.com, "The chat completion chunk object".

func openAITool(d toolDef) map[string]any {
	return map[string]any{"name": d.Name, "parameters": d.Schema}
}

func chatBody(system string, conv []said, tools []toolDef, stream bool) map[string]any {
	msgs := []any{map[string]any{"role": "system", "content": system}}
	for _, s := range conv {
		m := map[string]any{"role": s.role, "content": s.text}
		if s.role == "tool" {
			m["tool_call_id"] = s.id
		}
		if s.call != nil {
			m["tool_calls"] = []any{map[string]any{"id": s.call.ID, "type": "function", "function": map[string]any{"name": s.call.Name, "arguments": jsonOf(s.call.Args)}}}
		}
		msgs = append(msgs, m)
	}
	b := map[string]any{"model": "scripted", "stream": stream, "messages": msgs}
	if stream {
		b["stream_options"] = map[string]any{"include_usage": true}
	}
	var defs []any
	for _, d := range tools {
		defs = append(defs, map[string]any{"type": "function", "function": openAITool(d)})
	}
	if defs != nil {
		b["tools"] = defs
	}
	return b
}

func chatUsage(a *answer, u any) error {
	a.in, a.out, a.cached = num(u, "prompt_tokens"), num(u, "completion_tokens"), num(u, "prompt_tokens_details", "cached_tokens")
	if a.in < 1 || a.out < 0 || a.cached < 0 || num(u, "total_tokens") != a.in+a.out {
		return fmt.Errorf("usage %v", u)
	}
	return nil
}

func chatWhole(b []byte) (answer, error) {
	m, err := strict(b, "id", "object", "created", "model", "choices", "usage")
	if err != nil {
		return answer{}, err
	}
	choice := m["choices"].([]any)[0]
	a := answer{text: str(choice, "message", "content"), stop: stops[str(choice, "finish_reason")]}
	if list, ok := choice.(map[string]any)["message"].(map[string]any)["tool_calls"].([]any); ok {
		a.call = &toolCall{ID: str(list[0], "id"), Name: str(list[0], "function", "name")}
		if a.call.Args, err = parseArgs(str(list[0], "function", "arguments")); err != nil {
			return a, err
		}
	}
	return a, chatUsage(&a, m["usage"])
}

func chatSSE(r io.Reader) (answer, error) {
	evs, err := events(r)
	if err != nil {
		return answer{}, err
	}
	var a answer
	id, args, state := "", "", "role"
	for i, e := range evs {
		bad := fmt.Errorf("chunk %d in state %q: %s", i, state, e.data)
		if e.name != "" {
			return a, bad
		}
		if string(e.data) == "[DONE]" {
			if state != "usage" {
				return a, bad
			}
			state = "done"
			continue
		}
		m, err := strict(e.data, "id", "object", "created", "model", "choices")
		if err != nil {
			return a, err
		}
		if str(m, "object") != "chat.completion.chunk" || id != "" && str(m, "id") != id {
			return a, bad
		}
		id = str(m, "id")
		choices := m["choices"].([]any)
		if len(choices) == 0 {
			if state != "finished" {
				return a, bad
			}
			if err := chatUsage(&a, m["usage"]); err != nil {
				return a, err
			}
			state = "usage"
			continue
		}
		if m["usage"] != nil {
			return a, bad
		}
		delta := choices[0].(map[string]any)["delta"].(map[string]any)
		switch state {
		case "role":
			if str(delta, "role") != "assistant" {
				return a, bad
			}
			state = "text"
		case "text", "call":
			if list, ok := delta["tool_calls"].([]any); ok {
				if num(list[0], "index") != 0 {
					return a, bad
				}
				if state == "text" {
					a.call = &toolCall{ID: str(list[0], "id"), Name: str(list[0], "function", "name")}
					state = "call"
				} else if str(list[0], "id") != "" {
					return a, bad
				}
				args += str(list[0], "function", "arguments")
			} else if t, ok := delta["content"].(string); ok {
				if state != "text" {
					return a, bad
				}
				a.text += t
				a.deltas++
			}
			if f := str(choices[0], "finish_reason"); f != "" {
				a.stop, state = stops[f], "finished"
			}
		default:
			return a, bad
		}
	}
	if state != "done" {
		return a, fmt.Errorf("stream ends in state %q", state)
	}
	if a.call != nil {
		a.call.Args, err = parseArgs(args)
	}
	return a, err
}

// OpenAI Responses: platform.openai.com, API reference, "Streaming events".

func responsesBody(system string, conv []said, tools []toolDef, stream bool) map[string]any {
	var items, defs []any
	for _, s := range conv {
		switch s.role {
		case "tool":
			items = append(items, map[string]any{"type": "function_call_output", "call_id": s.id, "output": s.text})
		case "assistant":
			items = append(items, map[string]any{"type": "message", "role": "assistant", "content": []any{map[string]any{"type": "output_text", "text": s.text}}})
			if s.call != nil {
				items = append(items, map[string]any{"type": "function_call", "call_id": s.call.ID, "name": s.call.Name, "arguments": jsonOf(s.call.Args)})
			}
		default:
			items = append(items, map[string]any{"type": "message", "role": s.role, "content": []any{map[string]any{"type": "input_text", "text": s.text}}})
		}
	}
	for _, d := range tools {
		o := openAITool(d)
		o["type"] = "function"
		defs = append(defs, o)
	}
	b := map[string]any{"model": "scripted", "stream": stream, "instructions": system, "input": items}
	if defs != nil {
		b["tools"] = defs
	}
	return b
}

func responsesWhole(b []byte) (answer, error) {
	m, err := strict(b, "id", "object", "created_at", "status", "model", "output", "usage")
	if err != nil {
		return answer{}, err
	}
	return responsesFinal(m)
}

func responsesFinal(m map[string]any) (answer, error) {
	a := answer{stop: stops[str(m, "status")]}
	for _, it := range m["output"].([]any) {
		switch str(it, "type") {
		case "message":
			for _, c := range it.(map[string]any)["content"].([]any) {
				a.text += str(c, "text")
			}
		case "function_call":
			a.call = &toolCall{ID: str(it, "call_id"), Name: str(it, "name")}
			var err error
			if a.call.Args, err = parseArgs(str(it, "arguments")); err != nil {
				return a, err
			}
			a.stop = "tool"
		}
	}
	u := m["usage"]
	a.in, a.out, a.cached = num(u, "input_tokens"), num(u, "output_tokens"), num(u, "input_tokens_details", "cached_tokens")
	if a.in < 1 || a.out < 0 || a.cached < 0 || num(u, "total_tokens") != a.in+a.out || num(u, "output_tokens_details", "reasoning_tokens") != 0 {
		return a, fmt.Errorf("usage %v", u)
	}
	return a, nil
}

func responsesSSE(r io.Reader) (answer, error) {
	evs, err := events(r)
	if err != nil {
		return answer{}, err
	}
	var a answer
	var text, args, item string
	index, deltas, state := 0, 0, "new"
	var doneItems []any
	for i, e := range evs {
		m, err := strict(e.data, "type", "sequence_number")
		if err != nil {
			return a, err
		}
		bad := fmt.Errorf("event %d in state %q: %s", i, state, e.data)
		if e.name != str(m, "type") || num(m, "sequence_number") != i {
			return a, bad
		}
		if o, ok := m["output_index"]; ok && o != float64(index) {
			return a, bad
		}
		if id := str(m, "item_id"); id != "" && id != item {
			return a, bad
		}
		step := func(from, to string) bool {
			ok := state == from
			state = to
			return ok
		}
		var ok bool
		switch e.name {
		case "response.created":
			ok = step("new", "created") && str(m, "response", "status") == "in_progress"
		case "response.in_progress":
			ok = step("created", "items")
		case "response.output_item.added":
			item = str(m, "item", "id")
			ok = step("items", str(m, "item", "type")) && str(m, "item", "status") == "in_progress"
		case "response.content_part.added":
			ok = step("message", "part") && str(m, "part", "text") == ""
		case "response.output_text.delta":
			text += str(m, "delta")
			deltas++
			ok = step("part", "part")
		case "response.output_text.done":
			ok = step("part", "text done") && str(m, "text") == text
		case "response.content_part.done":
			ok = step("text done", "item done") && str(m, "part", "text") == text
		case "response.function_call_arguments.delta":
			args += str(m, "delta")
			ok = step("function_call", "function_call")
		case "response.function_call_arguments.done":
			ok = step("function_call", "item done") && str(m, "arguments") == args
		case "response.output_item.done":
			ok = step("item done", "items") && str(m, "item", "id") == item && str(m, "item", "status") != "in_progress"
			doneItems = append(doneItems, m["item"])
			index++
		case "response.completed", "response.incomplete":
			ok = step("items", "done")
			final := m["response"].(map[string]any)
			if jsonOf(final["output"]) != jsonOf(doneItems) {
				return a, fmt.Errorf("final output differs from the items: %s", e.data)
			}
			if a, err = responsesFinal(final); err != nil {
				return a, err
			}
			if strings.TrimPrefix(e.name, "response.") != str(final, "status") {
				return a, bad
			}
		default:
			ok = false
		}
		if !ok {
			return a, bad
		}
	}
	if state != "done" {
		return a, fmt.Errorf("stream ends in state %q", state)
	}
	a.deltas = deltas
	return a, nil
}

// Gemini: ai.google.dev, API reference, "GenerateContentResponse".

func geminiBody(system string, conv []said, tools []toolDef, _ bool) map[string]any {
	var contents, defs []any
	for i, s := range conv {
		switch s.role {
		case "tool":
			contents = append(contents, map[string]any{"role": "user", "parts": []any{map[string]any{"functionResponse": map[string]any{"id": s.id, "name": conv[i-1].call.Name, "response": map[string]any{"output": s.text}}}}})
		case "assistant":
			parts := []any{map[string]any{"text": s.text}}
			if s.call != nil {
				parts = append(parts, map[string]any{"functionCall": map[string]any{"id": s.call.ID, "name": s.call.Name, "args": s.call.Args}})
			}
			contents = append(contents, map[string]any{"role": "model", "parts": parts})
		default:
			contents = append(contents, map[string]any{"role": s.role, "parts": []any{map[string]any{"text": s.text}}})
		}
	}
	for _, d := range tools {
		defs = append(defs, map[string]any{"name": d.Name, "parametersJsonSchema": d.Schema})
	}
	b := map[string]any{"contents": contents, "systemInstruction": map[string]any{"parts": []any{map[string]any{"text": system}}}}
	if defs != nil {
		b["tools"] = []any{map[string]any{"functionDeclarations": defs}}
	}
	return b
}

// geminiFrame adds one response of a stream, or the only one.
func geminiFrame(a *answer, b []byte) (finish string, err error) {
	m, err := strict(b, "candidates", "usageMetadata", "modelVersion", "responseId")
	if err != nil {
		return "", err
	}
	c := m["candidates"].([]any)[0].(map[string]any)
	if str(c, "content", "role") != "model" {
		return "", fmt.Errorf("candidate %v", c)
	}
	for _, p := range c["content"].(map[string]any)["parts"].([]any) {
		if fc, ok := p.(map[string]any)["functionCall"]; ok {
			a.call = &toolCall{str(fc, "id"), str(fc, "name"), fc.(map[string]any)["args"].(map[string]any)}
		}
		if t := str(p, "text"); t != "" {
			a.text += t
			a.deltas++
		}
	}
	u := m["usageMetadata"]
	a.in, a.out, a.cached = num(u, "promptTokenCount"), num(u, "candidatesTokenCount"), max(num(u, "cachedContentTokenCount"), 0)
	if a.in < 1 || a.out < 0 || num(u, "totalTokenCount") != a.in+a.out {
		return "", fmt.Errorf("usage %v", u)
	}
	return str(c, "finishReason"), nil
}

func (a *answer) geminiStop(finish string) {
	a.stop = stops[finish]
	if a.stop == "end" && a.call != nil {
		a.stop = "tool" // the service has no reason of its own for it
	}
}

func geminiWhole(b []byte) (answer, error) {
	var a answer
	f, err := geminiFrame(&a, b)
	a.geminiStop(f)
	return a, err
}

func geminiSSE(r io.Reader) (answer, error) {
	evs, err := events(r)
	if err != nil {
		return answer{}, err
	}
	var frames []json.RawMessage
	for _, e := range evs {
		if e.name != "" {
			return answer{}, fmt.Errorf("event %q has a name", e.name)
		}
		frames = append(frames, e.data)
	}
	return geminiFrames(frames)
}

func geminiFrames(frames []json.RawMessage) (answer, error) {
	var a answer
	for i, b := range frames {
		finish, err := geminiFrame(&a, b)
		if err != nil {
			return a, err
		}
		if (finish != "") != (i == len(frames)-1) {
			return a, fmt.Errorf("frame %d of %d finishes with %q", i, len(frames), finish)
		}
		a.geminiStop(finish)
	}
	if a.stop == "" {
		return a, fmt.Errorf("stream without an end")
	}
	return a, nil
}
