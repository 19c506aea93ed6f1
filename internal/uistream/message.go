package uistream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Message is the UIMessage that the AI SDK's readers (`ai`, readUIMessageStream and
// Chat) build from the parts of one turn. Values are kept as their text, so that
// what a part said is in the message to the letter; deltas are joined as they are.
//
// Where the two lines differ it does as version 7:
//
//   - tool-input-error of a call that is not dynamic keeps the input as input;
//     version 6 has it as rawInput.
//   - tool-approval-request keeps a reason (requestReason) and isAutomatic;
//     version 6 drops both.
//   - what there is so far of a list in a tool's input is not lost when it was cut
//     before its first value is one, as in [1,[- .
//
// Memory is that of the message: deltas are gathered, what is replaced is let go.
// It is not for concurrent use. Start at [NewMessage] and [Message.Add].
type Message struct {
	id       string
	started  bool
	metadata *tree
	parts    []*MessagePart
	blocks   map[openBlock]*MessagePart
	data     map[[2]string]*MessagePart // by type and id
	calls    map[string]*callInput
	inStep   map[string][]*MessagePart // tool calls since the newest step began, by id
	last     map[string]*MessagePart   // the newest part of each tool call
	size     int
}

// callInput is the text of a tool's input while it comes.
type callInput struct {
	text     rope
	encoding json.RawMessage
	name     json.RawMessage
	dynamic  bool
	title    json.RawMessage
	metadata json.RawMessage
}

// MessagePart is one part of a message.
type MessagePart struct {
	kind   string
	fields []partField
	size   *int // of the message
}

// partField is a value as JSON text, or the beginning of a text that is gathered.
type partField struct {
	name  string
	raw   json.RawMessage
	text  *rope
	n     int  // how much of text; −1: all
	value bool // text is JSON text that may have been cut, and the field is its value
}

// NewMessage begins the message of a turn; id counts when no start says another.
func NewMessage(id string) *Message {
	return &Message{
		id: id, blocks: map[openBlock]*MessagePart{}, data: map[[2]string]*MessagePart{}, calls: map[string]*callInput{},
		inStep: map[string][]*MessagePart{}, last: map[string]*MessagePart{},
	}
}

// ID is the message's id, which is the turn's.
func (m *Message) ID() string { return m.id }

// Metadata is what the parts say of the message, nil when they say nothing.
func (m *Message) Metadata() json.RawMessage {
	if m.metadata == nil {
		return nil
	}
	return m.metadata.appendTo(nil)
}

// Parts are the message's parts in order; they change as parts of the stream are added.
func (m *Message) Parts() []*MessagePart { return m.parts }

// Superseded are the parts whose text was streamed again, as the data-superseded parts tell
// by counting the message's parts of text and reasoning.
func (m *Message) Superseded() map[*MessagePart]bool {
	var said []*MessagePart
	out := map[*MessagePart]bool{}
	for _, p := range m.parts {
		if p.kind == string(Text) || p.kind == string(Reasoning) {
			said = append(said, p)
		}
		if p.kind != string(DataType(DataSuperseded)) {
			continue
		}
		var d struct{ Block int }
		raw, _ := p.Field("data")
		if json.Unmarshal(raw, &d) == nil && d.Block >= 1 && d.Block <= len(said) { // a guest says it
			out[said[d.Block-1]] = true
		}
	}
	return out
}

// Size is about how many bytes the message has.
func (m *Message) Size() int { return m.size }

// partOverhead is what a part takes beside its values, for [Message.Size].
const partOverhead = 32

// Add takes the next part of the stream. It keeps what it needs of raw, which must
// not change. Parts that a [Checker] takes are never refused. An error part is: it
// ends a reader's stream and is no part of a transcript.
func (m *Message) Add(raw []byte) error {
	d, err := scan(raw)
	if err != nil {
		return fmt.Errorf("a part of the message %.80q: %w", m.id, err)
	}
	t := Type(d.text("type"))
	if err = d.shape(t); err == nil {
		err = m.add(t, &chunk{document: d, raw: raw})
	}
	if err != nil {
		return fmt.Errorf("a part of the message %.80q: %w", m.id, err)
	}
	return nil
}

// chunk is a part of the stream while it is added.
type chunk struct {
	document
	raw []byte
}

// keep is a field's text for keeping; nil when the part has none.
func (c *chunk) keep(name string) json.RawMessage {
	v, ok := c.value(name)
	if !ok {
		return nil
	}
	if 2*len(v) < len(c.raw) { // else most of what would be held is needed anyway
		return bytes.Clone(v)
	}
	return v
}

func (m *Message) add(t Type, c *chunk) error {
	switch t {
	case TypeStart:
		id, ok := c.value("messageId")
		switch {
		case !ok:
		case m.started && unquote(id) != m.id:
			return fmt.Errorf("a second message %.80q began", unquote(id))
		default:
			m.id = unquote(id)
		}
		m.started = true
		m.merge(c)
	case TypeFinish, TypeMessageMetadata:
		m.merge(c)
	case TypeAbort, TypeFinishStep:
	case TypeError:
		return fmt.Errorf("an error part is not for a message")
	case TypeStartStep:
		clear(m.inStep)
		m.push("step-start")
	case TypeTextStart, TypeTextDelta, TypeTextEnd:
		return m.block(Text, t, c)
	case TypeReasoningStart, TypeReasoningDelta, TypeReasoningEnd:
		return m.block(Reasoning, t, c)
	case TypeSourceURL:
		m.push(string(t)).copy(c, "sourceId", "url", "title", "providerMetadata")
	case TypeSourceDocument:
		m.push(string(t)).copy(c, "sourceId", "mediaType", "title", "filename", "providerMetadata")
	case TypeFile:
		m.push(string(t)).copy(c, "mediaType", "url", "providerMetadata")
	default:
		if t.IsData() {
			m.addData(t, c)
			return nil
		}
		return m.tool(t, c)
	}
	return nil
}

func (m *Message) push(kind string) *MessagePart {
	p := &MessagePart{kind: kind, size: &m.size}
	m.parts = append(m.parts, p)
	m.size += partOverhead + len(kind)
	return p
}

// block adds to a block of text or reasoning.
func (m *Message) block(k BlockKind, t Type, c *chunk) error {
	b := openBlock{k, c.text("id")}
	if t == Type(k)+"-start" {
		p := m.push(string(k))
		if k == Reasoning {
			p.copy(c, "id")
		}
		p.put(partField{name: "text", text: &rope{}, n: -1})
		p.copy(c, "providerMetadata")
		p.set("state", json.RawMessage(`"streaming"`))
		m.blocks[b] = p
		return nil
	}
	p := m.blocks[b]
	if p == nil {
		return fmt.Errorf("the %s block %.80q is not open", k, b.id)
	}
	if t == Type(k)+"-delta" {
		delta, _ := c.value("delta")
		p.field("text").text.add(delta[1 : len(delta)-1])
		m.size += len(delta) - 2
	} else {
		p.set("state", json.RawMessage(`"done"`))
		delete(m.blocks, b)
	}
	p.copy(c, "providerMetadata")
	return nil
}

func (m *Message) addData(t Type, c *chunk) {
	if v, _ := c.value("transient"); string(v) == "true" {
		return
	}
	key := [2]string{string(t), c.text("id")}
	_, hasID := c.value("id")
	if p := m.data[key]; p != nil && hasID {
		p.set("data", c.keep("data"))
		return
	}
	p := m.push(string(t))
	for _, f := range c.fields { // also those that no reader knows
		if f.name != "type" {
			p.set(f.name, c.keep(f.name))
		}
	}
	if hasID {
		m.data[key] = p
	}
}

// merge merges the metadata of a part into the message's.
func (m *Message) merge(c *chunk) {
	v, ok := c.value("messageMetadata")
	if !ok {
		return
	}
	m.size += len(v)
	if m.metadata == nil {
		m.metadata = &tree{raw: c.keep("messageMetadata")}
		return
	}
	m.metadata.merge(v)
}

// field is the part's field, nil when it has none of that name.
func (p *MessagePart) field(name string) *partField {
	for i := range p.fields {
		if p.fields[i].name == name {
			return &p.fields[i]
		}
	}
	return nil
}

// put sets a field whatever was there.
func (p *MessagePart) put(f partField) {
	p.clear(f.name)
	p.fields = append(p.fields, f)
	*p.size += f.len()
}

// set sets a field to a value; nil leaves what is there.
func (p *MessagePart) set(name string, raw json.RawMessage) {
	if raw == nil {
		return
	}
	if f := p.field(name); f != nil {
		*p.size -= f.len()
		*f = partField{name: name, raw: raw}
		*p.size += f.len()
		return
	}
	p.put(partField{name: name, raw: raw})
}

// copy sets fields to what the chunk says of them; what it does not tell stays.
func (p *MessagePart) copy(c *chunk, names ...string) {
	for _, n := range names {
		p.set(n, c.keep(n))
	}
}

// clear takes fields away.
func (p *MessagePart) clear(names ...string) {
	for _, n := range names {
		if f := p.field(n); f != nil {
			*p.size -= f.len()
			*f = p.fields[len(p.fields)-1]
			p.fields[len(p.fields)-1] = partField{}
			p.fields = p.fields[:len(p.fields)-1]
		}
	}
}

// len is about how long the field is as JSON text.
func (f *partField) len() int {
	n := len(f.name) + 4 + len(f.raw)
	if f.text != nil && f.n > 0 {
		n += f.n
	}
	return n
}

// json is the field's value, nil when there is none.
func (f *partField) json() json.RawMessage {
	if f.text == nil {
		return f.raw
	}
	n := f.n
	if n < 0 {
		n = f.text.size
	}
	quoted := f.text.quoted(n)
	if !f.value {
		return quoted
	}
	var text string
	if json.Unmarshal(quoted, &text) != nil {
		return nil
	}
	return partial([]byte(text))
}

// Kind is the part's type in the message, such as text or dynamic-tool.
func (p *MessagePart) Kind() string { return p.kind }

// Field is the JSON text of a field; ok is false when the part has none. A long
// text is put together anew each time.
func (p *MessagePart) Field(name string) (v json.RawMessage, ok bool) {
	f := p.field(name)
	if f == nil {
		return nil, false
	}
	v = f.json()
	return v, v != nil
}

// Text is the value of a field that is a string, else empty.
func (p *MessagePart) Text(name string) string {
	v, ok := p.Field(name)
	if !ok || v[0] != '"' {
		return ""
	}
	return unquote(v)
}

// WriteTo writes the part as JSON, without putting long text together first.
func (p *MessagePart) WriteTo(w io.Writer) (int64, error) {
	c := counter{w: w}
	c.write([]byte(`{"type":`))
	c.write(quote([]byte(p.kind)))
	for i := range p.fields {
		f := &p.fields[i]
		if f.text != nil && !f.value {
			c.name(f.name)
			c.write([]byte{'"'})
			left := f.n
			if left < 0 {
				left = f.text.size
			}
			for _, piece := range f.text.pieces {
				c.write(piece[:min(left, len(piece))])
				left -= min(left, len(piece))
			}
			c.write([]byte{'"'})
		} else if v := f.json(); v != nil {
			c.name(f.name)
			c.write(v)
		}
	}
	c.write([]byte{'}'})
	return c.n, c.err
}

// MarshalJSON is the part as JSON.
func (p *MessagePart) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	_, err := p.WriteTo(&b)
	return b.Bytes(), err
}

// MarshalJSON is the message as JSON.
func (m *Message) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	c := counter{w: &b}
	c.write([]byte(`{"id":`))
	c.write(quote([]byte(m.id)))
	c.write([]byte(`,"role":"assistant"`))
	if m.metadata != nil {
		c.name("metadata")
		c.write(m.Metadata())
	}
	c.write([]byte(`,"parts":[`))
	for i, p := range m.parts {
		if i > 0 {
			c.write([]byte{','})
		}
		if _, err := p.WriteTo(&b); err != nil {
			return nil, err
		}
	}
	c.write([]byte("]}"))
	return b.Bytes(), c.err
}

// counter writes until something fails.
type counter struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counter) write(b []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(b)
	c.n, c.err = c.n+int64(n), err
}

func (c *counter) name(s string) {
	c.write([]byte{','})
	c.write(quote([]byte(s)))
	c.write([]byte{':'})
}

// tree is a JSON value into which others are merged (mergeObjects of the AI SDK).
// An object is taken apart when something is merged into it.
type tree struct {
	raw    json.RawMessage
	names  []string // of an object that was taken apart, in order
	fields map[string]*tree
}

func (t *tree) object() bool { return t.fields != nil || len(t.raw) > 0 && t.raw[0] == '{' }

func (t *tree) open() {
	if t.fields != nil {
		return
	}
	t.fields = map[string]*tree{}
	for _, f := range walk(t.raw).top {
		t.set(f.name, f.value)
	}
	t.raw = nil
}

func (t *tree) set(name string, raw []byte) {
	if t.fields[name] == nil {
		t.names = append(t.names, name)
	}
	t.fields[name] = &tree{raw: bytes.Clone(raw)}
}

// merge merges an object into an object; MaxDepth bounds how deep it goes.
func (t *tree) merge(object []byte) {
	t.open()
	newest := map[string][]byte{} // a name that is there twice counts as the last one says
	var names []string
	for _, f := range walk(object).top {
		if newest[f.name] == nil {
			names = append(names, f.name)
		}
		newest[f.name] = f.value
	}
	for _, n := range names {
		v := newest[n]
		switch old := t.fields[n]; {
		case n == "__proto__" || n == "constructor" || n == "prototype":
		case old != nil && old.object() && v[0] == '{':
			old.merge(v)
		default:
			t.set(n, v)
		}
	}
}

func (t *tree) appendTo(dst []byte) []byte {
	if t.fields == nil {
		return append(dst, t.raw...)
	}
	dst = append(dst, '{')
	for i, n := range t.names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, quote([]byte(n))...), ':')
		dst = t.fields[n].appendTo(dst)
	}
	return append(dst, '}')
}

// toolPart tells whether the part is a tool call, and whether it is a dynamic one.
func (p *MessagePart) toolPart() (tool, dynamic bool) {
	dynamic = p.kind == "dynamic-tool"
	return dynamic || strings.HasPrefix(p.kind, "tool-"), dynamic
}
