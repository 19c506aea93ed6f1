package uistream

import (
	"errors"
	"fmt"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// Checker is the state machine of one turn's parts. It refuses what a reader of
// either line would end its stream at, and what a driver, which is a guest, may
// not send. It knows what is open, so that a turn can be closed whatever became
// of the driver. After a restart it is built again by feeding it the stored
// parts with [Checker.Stored].
//
// Order: one start first; text and reasoning in blocks that are opened once and
// closed; a tool call is announced before anything else is said of it; steps do
// not nest and nothing is open when one ends; nothing after finish.
//
// A part that is refused changes nothing. It is not for concurrent use.
type Checker struct {
	turnID   string
	parts    int
	bytes    int64
	started  bool
	finished bool
	inStep   bool
	blocks   []openBlock
	tools    map[string]*toolState
	order    []string // tool calls as they came
	open     int      // tool calls without an end
}

// maxOpenBlocks bounds the work that a guest can make; agents have one or two open.
const maxOpenBlocks = 64

type openBlock struct {
	kind BlockKind
	id   string
}

type toolState struct {
	open   bool
	streak bool // announced by tool-input-start, so that input deltas may follow
}

// NewChecker begins a turn; turnID is the only message id that a start may have.
func NewChecker(turnID string) *Checker {
	return &Checker{turnID: turnID, tools: map[string]*toolState{}}
}

// serverMade are the types that a driver may not send.
var serverMade = map[Type]bool{
	TypeFinish: true, TypeError: true, TypeAbort: true,
	DataType(DataTurnEnd): true, DataType(DataUserPrompt): true,
}

// Check judges the next part of a driver. The error is a DRIVER_INVALID whose
// message says what is wrong; the turn should then be closed.
func (c *Checker) Check(raw []byte) (Part, error) {
	if len(raw) > MaxPartBytes {
		return Part{}, c.refuse(fmt.Errorf("it has %d bytes, more than %d", len(raw), MaxPartBytes))
	}
	d, err := scan(raw)
	if err != nil {
		return Part{}, c.refuse(err)
	}
	p := Part{Type: Type(d.text("type")), Raw: raw}
	if err := d.shape(p.Type); err != nil {
		return Part{}, c.refuse(err)
	}
	switch {
	case serverMade[p.Type]:
		return Part{}, c.refuse(fmt.Errorf("only the server makes %s parts", p.Type))
	case p.Type == TypeStart:
		if id := d.text("messageId"); id != c.turnID {
			return Part{}, c.refuse(fmt.Errorf("the start names message %.80q, not the turn %q", id, c.turnID))
		}
	case p.Type == TypeFile || p.Type == TypeSourceURL:
		if u := d.text("url"); !AllowedURL(u) {
			return Part{}, c.refuse(fmt.Errorf("the address %.80q of a %s part is not http, https or an image", u, p.Type))
		}
	}
	if err := c.step(p, d); err != nil {
		return Part{}, c.refuse(err)
	}
	return p, nil
}

// Stored takes a part that is in the transcript already or that the server
// made: server-made types are allowed, size and addresses are not judged again.
// error and abort are never stored and refused here too.
func (c *Checker) Stored(raw []byte) (Part, error) {
	d, err := scan(raw)
	if err != nil {
		return Part{}, c.refuse(err)
	}
	p := Part{Type: Type(d.text("type")), Raw: raw}
	if err := d.shape(p.Type); err != nil {
		return Part{}, c.refuse(err)
	}
	if err := c.step(p, d); err != nil {
		return Part{}, c.refuse(err)
	}
	return p, nil
}

func (c *Checker) refuse(err error) error {
	return fault.New(fault.DriverInvalid, "Part %d of the turn was refused: %v.", c.parts, err).
		With("turn", c.turnID).With("part", c.parts)
}

// step applies the rules of order and, when they hold, the part.
func (c *Checker) step(p Part, d document) error {
	switch {
	case c.finished:
		return fmt.Errorf("a %s part came after the finish", p.Type)
	case !c.started && p.Type != TypeStart:
		return fmt.Errorf("a %s part came before the start", p.Type)
	}
	if err := c.apply(p.Type, d); err != nil {
		return err
	}
	c.parts++
	c.bytes += int64(len(p.Raw))
	return nil
}

func (c *Checker) apply(t Type, d document) error {
	switch t {
	case TypeStart:
		if c.started {
			return errors.New("a second start came")
		}
		c.started = true
	case TypeStartStep:
		if c.inStep {
			return errors.New("a step began inside another")
		}
		c.inStep = true
	case TypeFinishStep:
		if !c.inStep {
			return errors.New("a step ended that had not begun")
		}
		if err := c.nothingOpen("the step"); err != nil {
			return err
		}
		c.inStep = false
	case TypeFinish:
		if err := c.nothingOpen("the message"); err != nil {
			return err
		}
		if c.inStep {
			return errors.New("the message ended inside a step")
		}
		c.finished = true
	case TypeError, TypeAbort:
		return fmt.Errorf("a part of type %s is not for the transcript", t)
	case TypeTextStart, TypeTextDelta, TypeTextEnd:
		return c.block(Text, t == TypeTextStart, t == TypeTextEnd, d.text("id"))
	case TypeReasoningStart, TypeReasoningDelta, TypeReasoningEnd:
		return c.block(Reasoning, t == TypeReasoningStart, t == TypeReasoningEnd, d.text("id"))
	default:
		if _, ok := toolTypes[t]; ok {
			return c.tool(t, d)
		}
	}
	return nil
}

func (c *Checker) nothingOpen(what string) error {
	for _, b := range c.blocks {
		return fmt.Errorf("%s ended with the %s block %.80q open", what, b.kind, b.id)
	}
	if c.open > 0 {
		return fmt.Errorf("%s ended with the tool call %.80q open", what, c.OpenTools()[0])
	}
	return nil
}

func (c *Checker) block(k BlockKind, start, end bool, id string) error {
	at := -1
	for i, b := range c.blocks {
		if b.kind == k && b.id == id {
			at = i
		}
	}
	switch {
	case start && at >= 0:
		return fmt.Errorf("the %s block %.80q began twice", k, id)
	case start && len(c.blocks) >= maxOpenBlocks:
		return fmt.Errorf("more than %d blocks are open", maxOpenBlocks)
	case start:
		c.blocks = append(c.blocks, openBlock{k, id})
	case at < 0:
		return fmt.Errorf("the %s block %.80q is not open", k, id)
	case end:
		c.blocks = append(c.blocks[:at], c.blocks[at+1:]...)
	}
	return nil
}

var toolTypes = map[Type]struct{}{
	TypeToolInputStart: {}, TypeToolInputDelta: {}, TypeToolInputAvailable: {}, TypeToolInputError: {}, TypeToolApprovalRequest: {},
	TypeToolOutputAvailable: {}, TypeToolOutputError: {}, TypeToolOutputDenied: {},
}

func (c *Checker) tool(t Type, d document) error {
	id := d.text("toolCallId")
	s, known := c.tools[id]
	open, streak := true, false
	switch t {
	case TypeToolInputStart:
		if known {
			return fmt.Errorf("the tool call %.80q began twice", id)
		}
		streak = true
	case TypeToolInputAvailable:
	case TypeToolInputError:
		open = false
	default:
		if !known {
			return fmt.Errorf("a %s part names the tool call %.80q, which was not announced", t, id)
		}
		switch t {
		case TypeToolInputDelta:
			if !s.open || !s.streak {
				return fmt.Errorf("input came for the tool call %.80q after its input had ended", id)
			}
			streak = true
		case TypeToolApprovalRequest, TypeToolOutputDenied:
			if !s.open {
				return fmt.Errorf("a %s part names the tool call %.80q, which has ended", t, id)
			}
			open, streak = t == TypeToolApprovalRequest, s.streak
		case TypeToolOutputAvailable:
			preliminary, _ := d.value("preliminary")
			open = string(preliminary) == "true"
		case TypeToolOutputError:
			open = false
		}
	}
	if !known {
		s = &toolState{}
		c.tools[id] = s
		c.order = append(c.order, id)
	}
	if open != s.open {
		if open {
			c.open++
		} else {
			c.open--
		}
	}
	s.open, s.streak = open, streak
	return nil
}

// Parts is how many parts were taken.
func (c *Checker) Parts() int { return c.parts }

// Bytes is the size of the parts taken, without what the wire adds.
func (c *Checker) Bytes() int64 { return c.bytes }

// Started tells whether the message has begun.
func (c *Checker) Started() bool { return c.started }

// Finished tells whether the message has ended; then no part is taken.
func (c *Checker) Finished() bool { return c.finished }

// OpenTools are the tool calls without an end, in the order they came.
func (c *Checker) OpenTools() []string {
	var out []string
	for _, id := range c.order {
		if c.tools[id].open {
			out = append(out, id)
		}
	}
	return out
}

// Close makes the parts that end everything open and takes them: a start if
// none came, an end for each block, an error with the reason for each tool call,
// the end of the step. A finish may follow. It gives nothing after a finish and
// nothing the second time.
func (c *Checker) Close(reason string, now time.Time) []Part {
	if c.finished {
		return nil
	}
	var out []Part
	at := At(now)
	if !c.started {
		out = append(out, Start{MessageID: c.turnID, At: at}.Part())
	}
	for _, b := range c.blocks {
		out = append(out, BlockEnd{Kind: b.kind, ID: b.id, EndAt: at}.Part())
	}
	for _, id := range c.OpenTools() {
		out = append(out, ToolOutputError{
			ToolCallID: id, ErrorText: reason, Dynamic: true, EndAt: at,
			ProviderMetadata: HearthMeta(Hearth{EndAt: at, Interrupted: true}),
		}.Part())
	}
	if c.inStep {
		out = append(out, FinishStep{EndAt: at}.Part())
	}
	for _, p := range out {
		if _, err := c.Stored(p.Raw); err != nil {
			panic("uistream: closing part refused: " + err.Error())
		}
	}
	return out
}
