package scriptedmodel

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
)

// geminiRequest: ai.google.dev, API reference, "Generating content".
type geminiRequest struct {
	Contents          []geminiContent `json:"contents"`
	SystemInstruction *geminiContent  `json:"systemInstruction"`
	Tools             []struct {
		FunctionDeclarations []struct {
			Name                 string         `json:"name"`
			Description          string         `json:"description"`
			Parameters           map[string]any `json:"parameters"`
			ParametersJSONSchema map[string]any `json:"parametersJsonSchema"`
		} `json:"functionDeclarations"`
	} `json:"tools"`
	ToolConfig struct {
		FunctionCallingConfig struct {
			Mode                 string   `json:"mode"`
			AllowedFunctionNames []string `json:"allowedFunctionNames"`
		} `json:"functionCallingConfig"`
	} `json:"toolConfig"`
	GenerationConfig struct {
		MaxOutputTokens    int            `json:"maxOutputTokens"`
		ResponseMIMEType   string         `json:"responseMimeType"`
		ResponseSchema     map[string]any `json:"responseSchema"`
		ResponseJSONSchema map[string]any `json:"responseJsonSchema"`
	} `json:"generationConfig"`
	// countTokens may wrap the whole request.
	GenerateContentRequest *geminiRequest `json:"generateContentRequest"`
}

type geminiContent struct {
	Role  string `json:"role"`
	Parts []struct {
		Text         *string `json:"text"`
		Thought      bool    `json:"thought"`
		FunctionCall *struct {
			Name string          `json:"name"`
			Args json.RawMessage `json:"args"`
		} `json:"functionCall"`
		FunctionResponse *struct {
			Response json.RawMessage `json:"response"`
		} `json:"functionResponse"`
	} `json:"parts"`
}

func (x *exchange) geminiRead(model string, count bool) (*conversation, bool) {
	var q geminiRequest
	if !x.decode(&q) {
		return nil, false
	}
	if count && q.GenerateContentRequest != nil {
		q = *q.GenerateContentRequest
	}
	if len(q.Contents) == 0 {
		x.fail(apiError{status: http.StatusBadRequest, message: "* GenerateContentRequest.contents: contents is not specified\n"})
		return nil, false
	}
	c := &conversation{model: model, messages: len(q.Contents), maxTokens: q.GenerationConfig.MaxOutputTokens}
	if q.SystemInstruction != nil {
		for _, p := range q.SystemInstruction.Parts {
			if p.Text != nil {
				c.system += *p.Text + "\n"
			}
		}
	}
	for _, g := range q.Tools {
		for _, f := range g.FunctionDeclarations {
			schema := f.ParametersJSONSchema
			if schema == nil {
				schema = f.Parameters
			}
			c.addTool(tool{name: f.Name, schema: schema}, f.Description)
		}
	}
	switch cfg := q.ToolConfig.FunctionCallingConfig; {
	case cfg.Mode == "NONE":
		c.tools = nil
	case cfg.Mode == "ANY" && len(cfg.AllowedFunctionNames) == 1:
		c.forced = cfg.AllowedFunctionNames[0]
	}
	if g := q.GenerationConfig; g.ResponseMIMEType == "application/json" || g.ResponseJSONSchema != nil {
		c.schema = g.ResponseJSONSchema
		if c.schema == nil {
			c.schema = g.ResponseSchema
		}
		if c.schema == nil {
			c.schema = map[string]any{"type": "object"}
		}
	}

	for _, m := range q.Contents {
		if m.Role != "" && m.Role != "user" && m.Role != "model" && m.Role != "function" {
			x.fail(apiError{status: http.StatusBadRequest, message: "Please use a valid role: user, model."})
			return nil, false
		}
		answer := turn{role: roleAssistant}
		for _, p := range m.Parts {
			switch {
			case p.FunctionResponse != nil:
				c.add(turn{role: roleTool, text: responseText(p.FunctionResponse.Response)})
			case p.FunctionCall != nil:
				answer.calls++
				answer.size += len(p.FunctionCall.Name) + len(p.FunctionCall.Args)
			case p.Text == nil || p.Thought:
			case m.Role == "model":
				answer.text += *p.Text
			default:
				c.add(turn{role: roleUser, text: *p.Text})
			}
		}
		if m.Role == "model" {
			answer.size += len(answer.text)
			c.add(answer)
		}
	}
	return c, true
}

// responseText is what a function brought back: the text of its output where it
// is an object with one, else the JSON.
func responseText(raw json.RawMessage) string {
	var o struct {
		Output *string `json:"output"`
		Error  *string `json:"error"`
	}
	if json.Unmarshal(raw, &o) == nil {
		if o.Output != nil {
			return *o.Output
		}
		if o.Error != nil {
			return *o.Error
		}
	}
	return string(raw)
}

func (x *exchange) geminiCount(model string) {
	c, ok := x.geminiRead(model, true)
	if !ok {
		return
	}
	x.entry.Model, x.entry.Messages, x.entry.Reply = model, c.messages, "count"
	if !x.s.knows(model) {
		x.fail(apiError{status: http.StatusNotFound, kind: kindModel, model: model})
		return
	}
	n := c.usage().input
	x.json(http.StatusOK, object{"totalTokens": n, "promptTokensDetails": []any{object{"modality": "TEXT", "tokenCount": n}}})
}

func (u usage) gemini(output int) object {
	o := object{
		"promptTokenCount": u.input, "totalTokenCount": u.input + output, "candidatesTokenCount": output,
		"promptTokensDetails": []any{object{"modality": "TEXT", "tokenCount": u.input}},
	}
	if u.cached > 0 {
		o["cachedContentTokenCount"] = u.cached
	}
	return o
}

func (x *exchange) geminiGenerate(model string) { x.gemini(model, false) }

func (x *exchange) geminiStream(model string) { x.gemini(model, true) }

func (x *exchange) gemini(model string, streaming bool) {
	c, ok := x.geminiRead(model, false)
	if !ok {
		return
	}
	c.stream = streaming
	r, ok := x.turn(c)
	if !ok {
		return
	}
	finish := "STOP"
	if r.truncated {
		finish = "MAX_TOKENS"
	}
	id := x.s.opts.NewID()
	frame := func(parts []any, finish any, output int) object {
		candidate := object{"content": object{"role": "model", "parts": parts}, "index": 0}
		if finish != nil {
			candidate["finishReason"] = finish
		}
		return object{
			"candidates": []any{candidate}, "usageMetadata": r.usage.gemini(output),
			"modelVersion": model, "responseId": id,
		}
	}
	var callPart object
	if r.call != nil {
		callPart = object{
			"functionCall":     object{"id": "fc_" + x.s.opts.NewID(), "name": r.call.name, "args": r.call.args},
			"thoughtSignature": base64.StdEncoding.EncodeToString([]byte("scripted")),
		}
	}
	if !streaming {
		x.pauseAll(r)
		parts := []any{}
		if t := r.text(); t != "" {
			parts = append(parts, object{"text": t})
		}
		if callPart != nil {
			parts = append(parts, callPart)
		}
		x.json(http.StatusOK, frame(parts, finish, r.usage.output))
		return
	}

	// Without alt=sse the stream is one JSON array, written element by element.
	sse := x.r.URL.Query().Get("alt") == "sse"
	kind := "application/json"
	if sse {
		kind = "text/event-stream"
	}
	s := x.startStream(kind)
	n := 0
	emit := func(o object) {
		if sse {
			b, _ := json.Marshal(o) // our own values
			s.raw("data: " + string(b) + "\r\n\r\n")
			return
		}
		b, _ := json.Marshal(o)
		sep := ",\r\n"
		if n == 0 {
			sep = "["
		}
		n++
		s.raw(sep + string(b))
	}
	sent := 0
	s.text(r, func(t string) {
		sent += len(t)
		emit(frame([]any{object{"text": t}}, nil, tokensOf(sent)))
	})
	last := []any{object{"text": ""}}
	if callPart != nil {
		last = []any{callPart}
	}
	emit(frame(last, finish, r.usage.output))
	if !sse {
		s.raw("\r\n]\n")
	}
}
