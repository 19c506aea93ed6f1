// Package convert turns what an ACP agent says during one turn into parts of
// the UI-message stream. It is pure: no agent, no clock of its own, no files;
// the same updates at the same times give the same parts. It makes no finish,
// abort or error part and nothing that the server makes; closing the message is
// the recorder's.
//
// Start at [Converter]. The table it follows: text and thoughts become blocks,
// tool calls dynamic tools (an upsert by id, whichever message comes first),
// permission requests approvals beside a data-permission part, plan and usage
// data parts with a fixed id, what only describes the agent's session transient
// data parts, and everything unknown a transient data-acp part with the raw JSON.
package convert

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/uistream"
)

// Bounds. A part stays well below [uistream.MaxPartBytes] with all that is around a value.
const (
	deltaBytes   = 128 << 10 // text of one delta; at worst six bytes of JSON for each
	valueBytes   = 448 << 10 // input and output of a tool, content blocks
	dataBytes    = 192 << 10 // data parts
	errorBytes   = 32 << 10  // text of a failure
	liveBytes    = 16 << 10  // live output
	liveInterval = 250 * time.Millisecond
	liveTurn     = 16 << 20 // all live output of a turn
	idBytes      = 512
	titleBytes   = 2 << 10
)

// Options of a turn.
type Options struct {
	// NoisePrefixes are beginnings of agent texts that are no answer: what a
	// harness prints as if the agent had said it. Such a chunk becomes a
	// data-notice part.
	NoisePrefixes []string
	// Blobs keeps what the parts do not carry; what is kept is told by data-blob parts.
	// Nil: it is lost, and marked.
	Blobs Blobs
	// Last is the number of the turn's newest part, of whoever made it; nil: nobody
	// else makes any.
	Last func() int64
}

// Converter makes the parts of one turn. The order of calls is Begin, then any
// of Update, Tick, Ask, AskForm and their answers, then End; afterwards all give nothing. It is
// not for concurrent use.
type Converter struct {
	turnID string
	now    func() time.Time
	o      Options

	at    uistream.Stamp // of the call at hand
	time  time.Time
	bad   bool // the update at hand was not valid UTF-8
	lost  bool // a part does not carry all of the update at hand, nor does a blob of its own
	out   []uistream.Part
	base  int64 // number of the part before them
	begun bool
	ended bool

	blocks int // made so far
	block  *block
	runs   map[uistream.BlockKind]*runs
	tools  map[string]*tool
	order  []*tool
	live   int64
	asks   map[string]*ask
	forms  map[string]*formData
	last   map[string]string // newest data by name, of parts with a fixed id
	usage  usageData
	ids    int

	updates BlobWriter // what has no blob of its own
}

// New makes a converter for the turn, whose id is the message's.
func New(turnID string, now func() time.Time, o Options) *Converter {
	c := &Converter{turnID: turnID, now: now, o: o, tools: map[string]*tool{}, asks: map[string]*ask{}, forms: map[string]*formData{}, last: map[string]string{}}
	c.turned()
	return c
}

func (c *Converter) enter() {
	c.time = c.now()
	c.base = c.number()
	if c.o.Last != nil {
		c.base = c.o.Last()
	}
	c.at, c.bad, c.lost, c.out = uistream.At(c.time), false, false, nil
}

func (c *Converter) emit(p interface{ Part() uistream.Part }) { c.out = append(c.out, p.Part()) }

// Begin opens message and step.
func (c *Converter) Begin() []uistream.Part {
	if c.begun || c.ended {
		return nil
	}
	c.begun = true
	c.enter()
	c.emit(uistream.Start{MessageID: c.turnID, At: c.at})
	c.emit(uistream.StartStep{At: c.at})
	return c.out
}

// Update takes one update: the `update` member of a session/update, as it came.
func (c *Converter) Update(raw json.RawMessage) []uistream.Part {
	if !c.begun || c.ended {
		return nil
	}
	c.enter()
	c.bad = !utf8.Valid(raw)
	u, err := acp.ParseUpdate(raw)
	if err != nil {
		c.unknown(raw)
	} else {
		c.update(u)
	}
	if c.lost && u.Cut == nil {
		c.keepUpdate(raw)
	}
	return c.result()
}

// result is the parts of the call at hand. Whatever an agent has put into them, none
// steers a terminal.
func (c *Converter) result() []uistream.Part {
	for i, p := range c.out {
		if raw, changed := uistream.PlainJSON(p.Raw); changed {
			c.out[i].Raw = raw
		}
	}
	return c.out
}

func (c *Converter) update(u acp.Update) {
	if u.Cut != nil {
		defer c.take(u.Cut, c.cutOf(u))
	}
	switch u.Kind {
	case acp.UpdateAgentMessage:
		c.chunk(uistream.Text, u)
	case acp.UpdateAgentThought:
		c.chunk(uistream.Reasoning, u)
	case acp.UpdateUserMessage:
		// The prompt is in the ledger; an agent's echo of it is no part of the answer.
	case acp.UpdateToolCall, acp.UpdateToolCallUpdate:
		if u.Tool.ToolCallID == "" {
			c.unknown(u.Raw)
			return
		}
		c.turned()
		c.tool(*u.Tool, u.Cut)
	case acp.UpdatePlan:
		c.turned()
		c.fixed(uistream.DataPlan, uistream.ValueOf(map[string]uistream.Value{"entries": uistream.Value(u.Plan.Entries)}))
	case acp.UpdateUsage:
		c.usage.Usage = *u.Usage
		c.fixed(uistream.DataUsage, uistream.ValueOf(c.usage))
	case acp.UpdateMode:
		c.data(uistream.Data{Name: uistream.DataMode, Data: uistream.ValueOf(u.Mode), Transient: true})
	case acp.UpdateConfig:
		c.data(uistream.Data{Name: uistream.DataConfig, Data: member(u.Raw, "configOptions"), Transient: true})
	case acp.UpdateCommands:
		c.data(uistream.Data{Name: uistream.DataCommands, Data: member(u.Raw, "availableCommands"), Transient: true})
	case acp.UpdateSessionInfo:
		if u.Info.Title == nil && u.Info.UpdatedAt == nil {
			c.unknown(u.Raw)
			return
		}
		c.data(uistream.Data{Name: uistream.DataSession, Data: uistream.ValueOf(u.Info), Transient: true})
	case acp.UpdateNotice:
		c.data(uistream.Data{Name: uistream.DataNotice, Data: without(u.Raw, "sessionUpdate")})
	case acp.UpdateCompaction, acp.UpdateCompactionReport:
		c.data(uistream.Data{Name: uistream.DataCompaction, Data: uistream.Value(u.Raw)})
	default:
		c.unknown(u.Raw)
	}
}

func (c *Converter) unknown(raw json.RawMessage) {
	c.data(uistream.Data{Name: uistream.DataACP, Data: uistream.Value(raw), Transient: true})
}

// data emits a data part, its value made to fit.
func (c *Converter) data(d uistream.Data) {
	f := c.fit(d.Data, dataBytes)
	d.Data, d.TruncatedBytes, d.Lossy, d.At = f.value, f.truncated, f.lossy, c.at
	c.lost = c.lost || f.lossy || f.truncated > 0
	c.emit(d)
}

// fixed emits a data part that replaces the former of its name, if it differs.
func (c *Converter) fixed(name string, v uistream.Value) {
	if c.last[name] == string(v) {
		return
	}
	c.last[name] = string(v)
	c.data(uistream.Data{Name: name, ID: name, Data: v})
}

// member is the object {name: value} of one member of raw.
func member(raw json.RawMessage, name string) uistream.Value {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return uistream.Value(raw)
	}
	return uistream.ValueOf(map[string]uistream.Value{name: uistream.Value(m[name])})
}

func without(raw json.RawMessage, name string) uistream.Value {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return uistream.Value(raw)
	}
	delete(m, name)
	out := make(map[string]uistream.Value, len(m))
	for k, v := range m {
		out[k] = uistream.Value(v)
	}
	return uistream.ValueOf(out)
}

type usageData struct {
	acp.Usage
	Turn *acp.TokenUsage `json:"turn,omitempty"` // of the turn as a whole, at its end
}

// End says how the agent's turn ended.
type End struct {
	StopReason string          // of the prompt's answer, or empty
	Failure    string          // why there was no such answer: one sentence for a person, or empty
	Usage      *acp.TokenUsage // of the prompt's answer, or nil
}

// End closes everything that the agent left open: block, tool calls, step.
func (c *Converter) End(e End) []uistream.Part {
	if !c.begun || c.ended {
		return nil
	}
	c.enter()
	c.closeBlock()
	why := "The agent ended its turn without a result of this call."
	switch {
	case e.Failure != "":
		why = "Interrupted: " + cutText(e.Failure, errorBytes)
	case e.StopReason == acp.StopCancelled:
		why = "Interrupted: the turn was canceled."
	}
	for _, t := range c.order {
		if t.done && t.held {
			t.lastLive = time.Time{}
			c.finish(t)
		}
		c.interrupt(t, why)
		c.seal(&t.keep, uistream.BlobOf{ToolCallID: t.id})
	}
	if e.Usage != nil {
		c.usage.Turn = e.Usage
		c.fixed(uistream.DataUsage, uistream.ValueOf(c.usage))
	}
	c.sealUpdates()
	c.emit(uistream.FinishStep{EndAt: c.at})
	c.ended = true
	return c.result()
}

// Tick gives live output that was held back because it came too fast. Calling
// it every quarter of a second while [Converter.Held] keeps viewers current.
func (c *Converter) Tick() []uistream.Part {
	if !c.begun || c.ended {
		return nil
	}
	c.enter()
	for _, t := range c.order {
		switch {
		case t.held && t.done:
			c.finish(t)
		case t.held:
			c.progress(t, false)
		}
	}
	return c.result()
}

// Held tells whether a Tick may have something to give.
func (c *Converter) Held() bool {
	for _, t := range c.order {
		if t.held && t.question == "" {
			return true
		}
	}
	return false
}

// OldestOpenTool is the running tool call that began first, and when; ok is
// false when none runs. One that waits for a person does not count.
func (c *Converter) OldestOpenTool() (id string, since time.Time, ok bool) {
	for _, t := range c.order {
		if !t.done && t.question == "" {
			return t.call.ToolCallID, t.since, true
		}
	}
	return "", time.Time{}, false
}

// id keeps an agent's id as it is unless it is too long to be one or no text.
func (c *Converter) id(s string) string {
	if len(s) <= idBytes && !uistream.HasControl(s) {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	plain, _ := uistream.PlainText(strings.ToValidUTF8(s, "\uFFFD"))
	return fmt.Sprintf("%s…%016x", cutText(plain, idBytes/2), hash([]byte(s)))
}
