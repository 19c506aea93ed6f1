package model

import (
	"bytes"
	"encoding/json"
	"strings"
)

// reader reads the usage from one answer while it passes.
type reader struct {
	kind kind
	sse  bool
	// hide: the usage chunk of a Chat stream was asked for by the door, the agent does not get it.
	hide bool

	split *splitter
	held  *holding
	body  []byte // of a JSON answer
	seen  int64  // bytes of it
	large bool   // it was too large to be read

	model     string
	tokens    counts
	hasInput  bool
	hasOutput bool  // the final count, not one on the way
	finished  bool  // the answer came to its end
	text      int64 // bytes of generated text, for the estimate
}

type counts struct{ input, output, cacheRead, cacheWrite, cacheWriteHour int64 }

func newReader(k kind, sse, hide bool, held *holding) *reader {
	r := &reader{kind: k, sse: sse, hide: hide && sse, held: held}
	if sse {
		r.split = newSplitter(held)
	}
	return r
}

// pass reads p and gives out what the agent gets of it.
func (r *reader) pass(p []byte, out func([]byte)) {
	switch {
	case !r.kind.metered():
		out(p)
	case !r.sse:
		r.seen += int64(len(p))
		r.keep(p)
		out(p)
	case r.hide:
		r.split.feed(p, func(raw []byte, whole bool) { r.filter(raw, whole, out) })
	default:
		out(p)
		r.split.feed(p, func(raw []byte, whole bool) { r.event(raw, whole) })
	}
}

// keep keeps a piece of a JSON answer, unless that gets too large.
func (r *reader) keep(p []byte) {
	need := int64(len(r.body) + len(p))
	if r.large || need > maxEvent {
		r.large = true
		return
	}
	grown, err := r.held.grow(r.body, need, maxEvent)
	if err != nil {
		r.large = true
		return
	}
	r.body = append(grown, p...)
}

// end is called when the answer is over; cut when not by itself.
func (r *reader) end(cut bool, out func([]byte)) {
	switch {
	case !r.kind.metered():
	case !r.sse:
		if !r.large && !cut {
			r.whole(r.body)
		}
	case r.hide:
		r.split.rest(func(raw []byte, whole bool) { r.filter(raw, whole, out) })
	default:
		r.split.rest(func(raw []byte, whole bool) { r.event(raw, whole) })
	}
	if r.kind == kindChat && !cut { // not every server says [DONE]
		r.finished = true
	}
}

func (r *reader) filter(raw []byte, whole bool, out func([]byte)) {
	if !r.event(raw, whole) && len(raw) > 0 {
		out(raw)
	}
}

// event reads one event and tells whether it is a Chat stream's chunk that has nothing but usage.
func (r *reader) event(raw []byte, whole bool) bool {
	if !whole {
		r.text += int64(len(raw))
		return false
	}
	data := eventData(raw)
	if len(data) == 0 {
		return false
	}
	switch r.kind {
	case kindMessages:
		r.messages(data)
	case kindResponses:
		r.responses(data)
	case kindChat:
		return r.chat(data)
	case kindGemini:
		r.gemini(data)
	}
	return false
}

// whole reads a JSON answer.
func (r *reader) whole(data []byte) {
	switch r.kind {
	case kindMessages:
		r.messages(data)
	case kindResponses:
		r.response(data)
	case kindChat:
		r.chat(data)
	case kindGemini: // without alt=sse a stream is one array of chunks
		var chunks []json.RawMessage
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) && json.Unmarshal(data, &chunks) == nil {
			for _, c := range chunks {
				r.gemini(c)
			}
			break
		}
		r.gemini(data)
	}
	r.finished = true
}

// anthropicUsage: https://docs.anthropic.com/en/api/messages, usage. Input
// leaves out what is read from and written to the cache.
type anthropicUsage struct {
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
	ByTTL      struct {
		Hour *int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
}

func (r *reader) messages(data []byte) {
	var e struct {
		Type    string `json:"type"`
		Model   string `json:"model"`
		Message struct {
			Model string          `json:"model"`
			Usage *anthropicUsage `json:"usage"`
		} `json:"message"`
		Usage *anthropicUsage `json:"usage"`
		Delta struct {
			Text     string `json:"text"`
			JSON     string `json:"partial_json"`
			Thinking string `json:"thinking"`
		} `json:"delta"`
	}
	if json.Unmarshal(data, &e) != nil {
		return
	}
	r.name(e.Model)
	switch e.Type {
	case "message_start":
		r.name(e.Message.Model)
		r.anthropic(e.Message.Usage)
	case "content_block_delta":
		r.text += int64(len(e.Delta.Text) + len(e.Delta.JSON) + len(e.Delta.Thinking))
	case "message_delta", "message":
		r.anthropic(e.Usage)
		r.hasOutput = r.hasOutput || e.Usage != nil && e.Usage.Output != nil
	case "message_stop":
		r.finished = true
	}
}

// anthropic takes counts that grow: some servers give the input at the end only.
func (r *reader) anthropic(u *anthropicUsage) {
	if u == nil {
		return
	}
	r.hasInput = r.hasInput || u.Input != nil
	grow(&r.tokens.input, u.Input)
	grow(&r.tokens.output, u.Output)
	grow(&r.tokens.cacheRead, u.CacheRead)
	grow(&r.tokens.cacheWrite, u.CacheWrite)
	grow(&r.tokens.cacheWriteHour, u.ByTTL.Hour)
}

// responses: https://platform.openai.com/docs/api-reference/responses-streaming
func (r *reader) responses(data []byte) {
	var e struct {
		Type     string          `json:"type"`
		Delta    json.RawMessage `json:"delta"`
		Response json.RawMessage `json:"response"`
	}
	if json.Unmarshal(data, &e) != nil {
		return
	}
	if strings.HasSuffix(e.Type, ".delta") {
		r.text += int64(len(e.Delta))
	}
	if len(e.Response) > 0 {
		r.response(e.Response)
	}
	switch e.Type {
	case "response.completed", "response.incomplete", "response.failed":
		r.finished = true
	}
}

func (r *reader) response(data []byte) {
	var v struct {
		Model string `json:"model"`
		Usage *struct {
			Input   int64 `json:"input_tokens"`
			Output  int64 `json:"output_tokens"`
			Details struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(data, &v) != nil {
		return
	}
	r.name(v.Model)
	if u := v.Usage; u != nil {
		r.openAI(u.Input, u.Output, u.Details.Cached)
	}
}

// chat: https://platform.openai.com/docs/api-reference/chat-streaming
func (r *reader) chat(data []byte) (onlyUsage bool) {
	if bytes.Equal(bytes.TrimSpace(data), []byte("[DONE]")) {
		r.finished = true
		return false
	}
	var c struct {
		Model   string `json:"model"`
		Choices []struct {
			Delta struct {
				Content   string `json:"content"`
				Reasoning string `json:"reasoning_content"`
				Tools     []struct {
					Function struct {
						Arguments string `json:"arguments"`
					} `json:"function"`
				} `json:"tool_calls"`
			} `json:"delta"`
		} `json:"choices"`
		Usage *struct {
			Input   int64 `json:"prompt_tokens"`
			Output  int64 `json:"completion_tokens"`
			Details struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(data, &c) != nil {
		return false
	}
	r.name(c.Model)
	for _, choice := range c.Choices {
		r.text += int64(len(choice.Delta.Content) + len(choice.Delta.Reasoning))
		for _, t := range choice.Delta.Tools {
			r.text += int64(len(t.Function.Arguments))
		}
	}
	if u := c.Usage; u != nil {
		r.openAI(u.Input, u.Output, u.Details.Cached)
		return len(c.Choices) == 0
	}
	return false
}

// openAI takes counts in which the input has what was read from the cache.
func (r *reader) openAI(input, output, cached int64) {
	input, output = max(input, 0), max(output, 0)
	cached = min(max(cached, 0), input)
	r.tokens = counts{input: input - cached, output: output, cacheRead: cached}
	r.hasInput, r.hasOutput = true, true
}

// gemini: https://ai.google.dev/api/generate-content, UsageMetadata. The prompt
// has what was read from the cache; thoughts are not in the candidates.
func (r *reader) gemini(data []byte) {
	var c struct {
		Model      string `json:"modelVersion"`
		Candidates []struct {
			Finish  string `json:"finishReason"`
			Content struct {
				Parts []struct {
					Text string          `json:"text"`
					Call json.RawMessage `json:"functionCall"`
				} `json:"parts"`
			} `json:"content"`
		} `json:"candidates"`
		Feedback struct {
			Block string `json:"blockReason"`
		} `json:"promptFeedback"`
		Usage *struct {
			Prompt     int64 `json:"promptTokenCount"`
			Cached     int64 `json:"cachedContentTokenCount"`
			Candidates int64 `json:"candidatesTokenCount"`
			Thoughts   int64 `json:"thoughtsTokenCount"`
			ToolUse    int64 `json:"toolUsePromptTokenCount"`
		} `json:"usageMetadata"`
	}
	if json.Unmarshal(data, &c) != nil {
		return
	}
	r.name(c.Model)
	if c.Feedback.Block != "" {
		r.finished = true
	}
	for _, candidate := range c.Candidates {
		r.finished = r.finished || candidate.Finish != ""
		for _, p := range candidate.Content.Parts {
			r.text += int64(len(p.Text) + len(p.Call))
		}
	}
	if u := c.Usage; u != nil {
		prompt, cached := max(u.Prompt, 0), max(u.Cached, 0)
		cached = min(cached, prompt)
		r.tokens = counts{
			input:     prompt - cached + max(u.ToolUse, 0),
			output:    max(r.tokens.output, u.Candidates+u.Thoughts, 0),
			cacheRead: cached,
		}
		r.hasInput, r.hasOutput = true, true // counts so far; final once finished
	}
}

func (r *reader) name(model string) {
	if model != "" && len(model) <= 256 {
		r.model = model
	}
}

// usage is what is known at the end, and reckoned where it is not known.
func (r *reader) usage(requestBytes int64) Usage {
	u := Usage{
		Model: r.model, Input: r.tokens.input, Output: r.tokens.output,
		CacheRead: r.tokens.cacheRead, CacheWrite: r.tokens.cacheWrite, CacheWriteHour: r.tokens.cacheWriteHour,
	}
	if !r.hasInput {
		u.Input, u.Estimated = reckon(requestBytes), true
	}
	if (!r.hasOutput || !r.finished) && r.kind != kindEmbed {
		text := r.text
		if !r.sse {
			text = r.seen
		}
		u.Output, u.Estimated = max(u.Output, reckon(text)), true
	}
	return u
}

// reckon guesses tokens from bytes.
func reckon(bytes int64) int64 { return (bytes + 3) / 4 }

func grow(n, to *int64) {
	if to != nil {
		*n = max(*n, *to)
	}
}
