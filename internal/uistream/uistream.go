// Package uistream is the AI SDK UI-message stream, version 1: the set of part
// types that the major lines 6 and 7 of the npm package `ai` both read. It has
// the parts ([Part] and one struct for each type), the rules of order
// ([Checker]) and the text form on the wire ([AppendEvent], [Decoder]).
//
// It does no I/O of its own and knows nothing of HTTP, agents or stores. A part
// is JSON text: once made it is passed on byte for byte and never encoded again.
// Start at [Part] to make parts, at [Checker] to judge those of others.
//
// The source of every rule is the published reader of the AI SDK (`ai`,
// processUIMessageStream and uiMessageChunkSchema); npmtest holds the two
// releases against which the tests run.
package uistream

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// Type is the value of a part's `type` field.
type Type string

// The types of the stream. Data parts are named data-NAME, see [DataType].
const (
	TypeStart           Type = "start"
	TypeFinish          Type = "finish"
	TypeAbort           Type = "abort" // transport only, never stored
	TypeError           Type = "error" // transport only, never stored; readers apply nothing after it
	TypeMessageMetadata Type = "message-metadata"
	TypeStartStep       Type = "start-step"
	TypeFinishStep      Type = "finish-step"

	TypeTextStart      Type = "text-start"
	TypeTextDelta      Type = "text-delta"
	TypeTextEnd        Type = "text-end"
	TypeReasoningStart Type = "reasoning-start"
	TypeReasoningDelta Type = "reasoning-delta"
	TypeReasoningEnd   Type = "reasoning-end"

	TypeToolInputStart      Type = "tool-input-start"
	TypeToolInputDelta      Type = "tool-input-delta"
	TypeToolInputAvailable  Type = "tool-input-available"
	TypeToolInputError      Type = "tool-input-error"
	TypeToolApprovalRequest Type = "tool-approval-request"
	TypeToolOutputAvailable Type = "tool-output-available"
	TypeToolOutputError     Type = "tool-output-error"
	TypeToolOutputDenied    Type = "tool-output-denied"

	TypeSourceURL      Type = "source-url"
	TypeSourceDocument Type = "source-document"
	TypeFile           Type = "file"
)

// Names of Hearth's data parts; the type on the wire is DataType(name).
const (
	DataPlan        = "plan"        // id "plan": the agent's plan, replaced in place
	DataUsage       = "usage"       // id "usage": context used and size, cost as the agent tells it
	DataPermission  = "permission"  // id = the question's: the tool call and the options
	DataQuestion    = "question"    // id = the question's: a form, its message and schema
	DataMode        = "mode"        // transient: the agent's current mode
	DataConfig      = "config"      // transient: the agent's options and their values
	DataCommands    = "commands"    // transient: the agent's own commands
	DataSession     = "session"     // transient: title and time of the agent's session
	DataNotice      = "notice"      // a remark of the agent or its harness that is not its answer
	DataCompaction  = "compaction"  // the agent shortened its context
	DataContent     = "content"     // a content block that no other part can carry
	DataACP         = "acp"         // transient: an update of a kind unknown here, raw
	DataDiff        = "diff"        // id "diff": what the turn changed
	DataRung        = "rung"        // how the agent of this turn got its memory
	DataSuperseded  = "superseded"  // {from, to, block}: an older run of text that was streamed again
	DataBlob        = "blob"        // bytes that are kept apart: [Blob]
	DataLimit       = "limit"       // id "limit": the turn said more than its limit, once; the rest is in a blob
	DataTurnEnd     = "turn-end"    // server-made: state, code, sentence, rung, usage
	DataUserPrompt  = "user-prompt" // server-made: the prompt, for a reader that has no other way to it
	dataPrefix      = "data-"
	maxDataNameSize = 64
)

// Limits of one part and one turn. A turn that reaches its limits goes on; what
// is beyond is left out by whoever stores it.
const (
	MaxPartBytes = 1 << 20
	MaxTurnParts = 100_000
	MaxTurnBytes = 64 << 20
	MaxDepth     = 256 // nesting of objects and arrays in a part
)

// DataType is the type of a data part: "data-" and the name.
func DataType(name string) Type { return Type(dataPrefix + name) }

// IsData tells whether the type is that of a data part.
func (t Type) IsData() bool { return strings.HasPrefix(string(t), dataPrefix) }

// Part is one chunk of the stream. Raw is one line of JSON text and is never
// changed after it was made; Type is its `type` field.
type Part struct {
	Type Type
	Raw  json.RawMessage
}

// Parse reads the shape of a part: one line of valid UTF-8 JSON, an object of a
// known type with the fields that readers demand. It does not judge size, order
// or who may send it; [Checker] does. The part keeps raw itself, not a copy.
func Parse(raw []byte) (Part, error) {
	d, err := scan(raw)
	if err != nil {
		return Part{}, err
	}
	p := Part{Type: Type(d.text("type")), Raw: raw}
	return p, d.shape(p.Type)
}

// Field is the JSON text of a top-level field, by its exact name.
func (p Part) Field(name string) (json.RawMessage, bool) {
	d, err := scan(p.Raw)
	if err != nil {
		return nil, false
	}
	v, ok := d.value(name)
	return v, ok
}

// Text is the value of a top-level field that is a string, else empty.
func (p Part) Text(name string) string {
	d, err := scan(p.Raw)
	if err != nil {
		return ""
	}
	return d.text(name)
}

// Decode unmarshals the part into one of this package's structs or any other value.
func (p Part) Decode(dst any) error { return json.Unmarshal(p.Raw, dst) }

// MarshalJSON gives the part's own text.
func (p Part) MarshalJSON() ([]byte, error) { return p.Raw, nil }

// Stamp is a time as parts carry it: RFC 3339, UTC, microseconds. Empty = not told.
type Stamp string

const stampLayout = "2006-01-02T15:04:05.000000Z"

// At makes a stamp; the zero time gives the empty one.
func At(t time.Time) Stamp {
	if t.IsZero() {
		return ""
	}
	return Stamp(t.UTC().Format(stampLayout))
}

// Time is the stamp's time, or the zero time.
func (s Stamp) Time() time.Time {
	t, err := time.Parse(time.RFC3339Nano, string(s))
	if err != nil {
		return time.Time{}
	}
	return t
}

// Value is any JSON value of somebody else's making. Marshaled it is always
// valid and readable, see [Clean]; empty it is null.
type Value json.RawMessage

// MarshalJSON gives the cleaned text.
func (v Value) MarshalJSON() ([]byte, error) {
	c, _ := Clean(v)
	return c, nil
}

// UnmarshalJSON keeps the text.
func (v *Value) UnmarshalJSON(b []byte) error {
	*v = append((*v)[:0], b...)
	return nil
}

// ValueOf marshals v; what cannot be marshaled becomes null.
func ValueOf(v any) Value {
	b, err := marshal(v)
	if err != nil {
		return nil
	}
	return Value(b)
}

// marshal is json.Marshal without the escapes for HTML, which only make text longer.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// encode puts the type in front of the fields of a struct. The structs of this
// package hold strings, booleans and cleaned values only, so it cannot fail.
func encode(t Type, v any) Part {
	body, err := marshal(v)
	if err != nil {
		panic("uistream: " + err.Error())
	}
	raw := make([]byte, 0, len(body)+len(t)+12)
	raw = append(raw, `{"type":"`...)
	raw = append(raw, t...)
	raw = append(raw, '"')
	if len(body) > 2 {
		raw = append(raw, ',')
	}
	raw = append(raw, body[1:]...)
	return Part{Type: t, Raw: raw}
}
