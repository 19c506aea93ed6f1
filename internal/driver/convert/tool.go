package convert

import (
	"encoding/json"
	"hash/maphash"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/uistream"
)

// tool is what is known and what was said of a tool call.
type tool struct {
	id    string
	call  acp.ToolCall // merged
	at    uistream.Stamp
	since time.Time

	terminal []byte // newest output of the agent's own terminal, as it is shown
	join     uistream.Joiner
	plain    uistream.Plain
	keep     keep            // of the terminal
	kept     uint64          // of what became a blob
	exit     json.RawMessage // how its command ended
	cut      int64           // size of a line that was longer than could be held

	inputSent bool
	inputKey  uint64 // of what was sent
	outputKey uint64
	live      int64 // bytes of live output sent
	lastLive  time.Time
	held      bool   // there is something new that was not sent yet
	done      bool   // its end was sent
	denied    bool   // by a person
	question  string // open one
	lossy     bool
	inputLost bool // the part does not carry all of the input
}

const terminalBytes = 256 << 10

func (c *Converter) tool(u acp.ToolCall, cut *acp.Cut) {
	id := c.id(u.ToolCallID)
	t, known := c.tools[id]
	status := deref(u.Status)
	ends := status == acp.ToolCompleted || status == acp.ToolFailed
	if !known || ends {
		c.closeBlock()
	}
	if !known {
		t = &tool{id: id, at: c.at, since: c.time}
		c.tools[id] = t
		c.order = append(c.order, t)
	}
	if emptyInput(u.RawInput) && !emptyInput(t.call.RawInput) {
		u.RawInput = nil // an announcement without its input does not take it back
	}
	t.call.Merge(u)
	t.lossy = t.lossy || c.bad
	if cut != nil {
		t.cut = cut.Bytes
	}
	if title := deref(u.Title); len(title) > titleBytes || uistream.HasControl(title) || len(u.Locations) > dataBytes || len(u.ToolCallID) > idBytes ||
		c.bad && utf8.Valid(u.Content) && utf8.Valid(u.RawOutput) && utf8.Valid(u.RawInput) && utf8.Valid(u.Meta) {
		c.lost = true // the blob of the call does not have it
	}
	c.terminals(t, u.Meta)
	if !known {
		c.emit(uistream.ToolInputStart{
			ToolCallID: id, ToolName: t.name(), Dynamic: true, Title: t.title(), ToolMetadata: t.metadata(nil), At: t.at,
			ProviderMetadata: uistream.HearthMeta(uistream.Hearth{At: t.at}),
		})
	}
	switch {
	case t.denied && deref(t.call.Status) != acp.ToolCompleted:
		// It did not run; that it "failed" is what the person decided.
	case ends || t.done:
		c.finish(t)
	default:
		c.progress(t, !known)
	}
}

// progress sends input and live output of a running call, at most as often as
// liveInterval allows: agents send the whole output again with every line of it.
func (c *Converter) progress(t *tool, first bool) {
	if t.done {
		t.held = false
		return
	}
	if t.question != "" {
		t.held = true // a new input would take the open question off the screen
		return
	}
	if !first && t.inputSent && c.tooSoon(t) {
		t.held = true
		return
	}
	t.held = false
	if t.inputSent && c.live >= liveTurn {
		return // the end brings it
	}
	status := deref(t.call.Status)
	if !t.inputSent && emptyInput(t.call.RawInput) && (status == "" || status == acp.ToolPending) {
		return
	}
	resent := c.input(t)
	if status == acp.ToolPending || !t.hasOutput() {
		return
	}
	f, key := c.output(t, liveBytes)
	if key == t.outputKey && !resent {
		return
	}
	t.outputKey, t.lastLive = key, c.time
	c.sent(t, uistream.ToolOutputAvailable{ToolCallID: t.id, Output: f.value, Preliminary: true, Dynamic: true}.Part())
}

// tooSoon tells whether the last output of a call was a moment ago. The more a
// call has sent, the longer the moment, so that hours of output stay a few MiB.
func (c *Converter) tooSoon(t *tool) bool {
	return c.time.Sub(t.lastLive) < liveInterval*time.Duration(1+t.live/(256<<10))
}

// input sends the input when it was not sent as it is now.
func (c *Converter) input(t *tool) (sent bool) {
	in := uistream.Value(t.call.RawInput)
	if len(in) == 0 {
		in = uistream.Value("{}")
	}
	name, title, meta := t.name(), t.title(), t.metadata(nil)
	key := maphash.String(seed, name+"\x00"+title+"\x00"+string(meta)) ^ maphash.Bytes(seed, in)<<1
	if t.inputSent && key == t.inputKey {
		return false
	}
	f := c.fit(in, valueBytes)
	t.lossy, t.inputLost = t.lossy || f.lossy, f.lossy || f.truncated > 0
	if t.inputSent {
		t.lastLive = c.time
	}
	t.inputSent, t.inputKey = true, key
	a := uistream.ToolInputAvailable{ToolCallID: t.id, ToolName: name, Input: f.value, Dynamic: true, Title: title, ToolMetadata: meta}
	if f.lossy || f.truncated > 0 {
		a.ProviderMetadata = uistream.HearthMeta(uistream.Hearth{At: t.at, Lossy: f.lossy, TruncatedBytes: f.truncated})
	}
	c.sent(t, a.Part())
	return true
}

// sent emits a part of a call and counts it.
func (c *Converter) sent(t *tool, p uistream.Part) {
	t.live += int64(len(p.Raw))
	c.live += int64(len(p.Raw))
	c.out = append(c.out, p)
}

// finish sends the result of a call. Later updates of a finished call send it
// again when they change it, as seldom as live output.
func (c *Converter) finish(t *tool) {
	if t.done && !t.denied && c.tooSoon(t) {
		t.held = true
		return
	}
	failed := deref(t.call.Status) == acp.ToolFailed
	resent := c.input(t)
	f, key := c.output(t, valueBytes)
	key ^= maphash.String(seed, deref(t.call.Status))
	if t.done && !t.denied && key == t.outputKey && !resent {
		t.held = false
		return
	}
	t.done, t.held, t.denied, t.question, t.outputKey, t.lastLive = true, false, false, "", key, c.time
	meta := t.endMeta(c.at, f, false)
	if failed {
		c.sent(t, uistream.ToolOutputError{
			ToolCallID: t.id, ErrorText: t.errorText(), Dynamic: true, EndAt: c.at,
			ToolMetadata: t.metadata(f.value), ProviderMetadata: meta,
		}.Part())
	} else {
		c.sent(t, uistream.ToolOutputAvailable{ToolCallID: t.id, Output: f.value, Dynamic: true, EndAt: c.at, ProviderMetadata: meta}.Part())
	}
	c.keepTool(t, f)
}

// interrupt ends a call that the end of the turn cut short.
func (c *Converter) interrupt(t *tool, why string) {
	if t.done {
		return
	}
	t.question = ""
	c.input(t)
	t.done, t.held = true, false
	p := uistream.ToolOutputError{ToolCallID: t.id, ErrorText: why, Dynamic: true, EndAt: c.at}
	var f fitted
	if t.hasOutput() {
		f, _ = c.output(t, valueBytes)
		p.ToolMetadata = t.metadata(f.value)
	}
	p.ProviderMetadata = t.endMeta(c.at, f, true)
	c.emit(p)
	c.keepTool(t, f)
}

func (t *tool) endMeta(at uistream.Stamp, f fitted, interrupted bool) *uistream.Meta {
	return uistream.HearthMeta(uistream.Hearth{
		At: t.at, EndAt: at, Lossy: t.lossy, TruncatedBytes: max(f.truncated, t.cut), Interrupted: interrupted,
	})
}

// output is {content, rawOutput} and what the agent's own terminal showed. The
// key tells whether it is another one than before.
func (c *Converter) output(t *tool, limit int) (fitted, uint64) {
	key := maphash.Bytes(seed, t.call.Content) ^ maphash.Bytes(seed, t.call.RawOutput)<<1 ^ maphash.Bytes(seed, t.terminal)<<2 ^ maphash.Bytes(seed, t.exit)<<3
	content, l1 := uistream.Clean(t.call.Content)
	raw, l2 := uistream.Clean(t.call.RawOutput)
	if len(t.call.Content) == 0 {
		content = uistream.Value("[]")
	}
	v := make(uistream.Value, 0, len(content)+len(raw)+64)
	v = append(append(v, `{"content":`...), content...)
	v = append(append(v, `,"rawOutput":`...), raw...)
	if len(t.terminal) > 0 || t.exit != nil {
		out := string(t.terminal)
		if limit < valueBytes && len(out) > limit/4 {
			out = tailOf(out, limit/4) // who watches wants to see the newest
		}
		v = append(append(v, `,"terminal":`...), uistream.ValueOf(terminal{Output: out, Exit: uistream.Value(t.exit)})...)
	}
	f := c.fit(append(v, '}'), limit)
	if l1 || l2 {
		f.lossy = true
	}
	t.lossy = t.lossy || f.lossy
	return f, key
}

var seed = maphash.MakeSeed()

type terminal struct {
	Output string         `json:"output"`
	Exit   uistream.Value `json:"exit,omitempty"` // {exit_code, signal}
}

// terminals takes over what agents tell of terminals of their own in _meta:
// output as it comes, and the exit.
func (c *Converter) terminals(t *tool, meta json.RawMessage) {
	if len(meta) == 0 {
		return
	}
	type chunk struct {
		Data json.RawMessage `json:"data"`
	}
	var m struct {
		Output *chunk          `json:"terminal_output"`
		Delta  *chunk          `json:"terminal_output_delta"` // to clients that asked for nothing
		Exit   json.RawMessage `json:"terminal_exit"`
	}
	if acp.Decode(meta, &m) != nil {
		return
	}
	if m.Output == nil {
		m.Output = m.Delta
	}
	if m.Output != nil {
		text, raw, bad := t.join.Text(uistream.Unquote(m.Output.Data))
		text, controls := t.plain.Text(text)
		over := len(t.terminal) + len(text) - terminalBytes
		switch {
		case bad:
			c.must(&t.keep, uistream.BlobNotText)
		case controls:
			c.must(&t.keep, uistream.BlobControlCodes)
		case over > 0:
			c.must(&t.keep, uistream.BlobTooLarge)
		}
		t.keep.write(raw)
		t.terminal = append(t.terminal, text...)
		if over > 0 {
			t.terminal = []byte(tailOf(string(t.terminal), terminalBytes))
		}
		t.lossy = t.lossy || bad || controls || over > 0
	}
	if m.Exit != nil {
		t.exit = m.Exit
	}
}

// hasOutput tells whether there is something to look at; a terminal's name alone is not.
func (t *tool) hasOutput() bool {
	if len(t.terminal) > 0 || len(t.call.RawOutput) > 0 {
		return true
	}
	var content []struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(t.call.Content, &content) != nil {
		return len(t.call.Content) > 2
	}
	for _, x := range content {
		if x.Type != "terminal" {
			return true
		}
	}
	return false
}

// name is the tool's name if the agent tells it, in the protocol or beside it,
// else its kind.
func (t *tool) name() string {
	if n := deref(t.call.Name); n != "" {
		return cutText(n, titleBytes)
	}
	var meta map[string]json.RawMessage
	if json.Unmarshal(t.call.Meta, &meta) == nil {
		keys := make([]string, 0, len(meta))
		for k := range meta {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			var m struct {
				ToolName string `json:"toolName"`
			}
			if acp.Decode(meta[k], &m) == nil && m.ToolName != "" {
				return cutText(m.ToolName, titleBytes)
			}
		}
	}
	return cutText(firstOf(deref(t.call.Kind), "tool"), titleBytes)
}

func (t *tool) title() string { return cutText(deref(t.call.Title), titleBytes) }

// metadata is {acp: {kind, locations}}, with the output where the part has no
// other place for it.
func (t *tool) metadata(output uistream.Value) uistream.Value {
	m := struct {
		Kind      string         `json:"kind,omitempty"`
		Locations uistream.Value `json:"locations,omitempty"`
		Output    uistream.Value `json:"output,omitempty"`
	}{Kind: cutText(deref(t.call.Kind), titleBytes), Output: output}
	if l := t.call.Locations; len(l) > 2 && len(l) <= dataBytes {
		m.Locations = uistream.Value(l)
	}
	if m.Kind == "" && m.Locations == nil && output == nil {
		return nil
	}
	return uistream.ValueOf(map[string]any{"acp": m})
}

// errorText is what the agent said of a failure.
func (t *tool) errorText() string {
	var b strings.Builder
	for _, x := range t.call.Contents() {
		if x.Content != nil && x.Content.Text != "" && b.Len() < errorBytes {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(x.Content.Text)
		}
	}
	text := b.String()
	if text == "" {
		var s string
		if json.Unmarshal(t.call.RawOutput, &s) == nil {
			text = s
		} else {
			var o struct {
				Error   string `json:"error"`
				Message string `json:"message"`
			}
			if acp.Decode(t.call.RawOutput, &o) == nil {
				text = firstOf(o.Error, o.Message)
			}
		}
	}
	if strings.TrimSpace(text) == "" {
		text = string(t.terminal)
	}
	if strings.TrimSpace(text) == "" {
		return "The tool call failed."
	}
	return cutText(text, errorBytes)
}

// emptyInput tells whether there is no input yet: absent, or an object without members.
func emptyInput(raw json.RawMessage) bool {
	if len(raw) == 0 {
		return true
	}
	var m map[string]json.RawMessage
	return json.Unmarshal(raw, &m) == nil && len(m) == 0
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
