package operation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// Limits of a page of messages.
const (
	MaxMessageTurns = 50
	MaxMessageBytes = 4 << 20 // a turn that is larger alone makes a page of its own
)

// MessagesInput pages messages by turns.
type MessagesInput struct {
	ID    string `json:"id" maxLength:"100"`
	After int64  `json:"after,omitempty" minimum:"0" doc:"turns with a number above this one"`
	Limit int    `json:"limit,omitempty" minimum:"1" maximum:"50" doc:"how many turns at most; 50 unless said; 4 MiB end a page early"`
}

// MessageView is a UIMessage of the AI SDK.
type MessageView struct {
	ID       string `json:"id" doc:"of the assistant: the turn's; of the user: made of it"`
	Role     string `json:"role" doc:"user or assistant"`
	Metadata any    `json:"metadata,omitempty" doc:"of the user: turn, number, author, at; of the assistant: what the agent said, and hearth: turn, number, state, complete, truncated, rung, end, code, sentence"`
	Parts    []any  `json:"parts"`
}

// MessageList is one page of messages, in order; prompts in the queue are none.
type MessageList struct {
	Items []MessageView `json:"items"`
	Next  int64         `json:"next,omitempty" doc:"the after of the next page; 0: this was the last"`
}

// promptMetadata is the metadata of a user's message.
type promptMetadata struct {
	Turn   string     `json:"turn"`
	Number int64      `json:"number"`
	Author AuthorView `json:"author"`
	At     time.Time  `json:"at"`
}

// turnMetadata is what became of the turn, under metadata.hearth of its answer.
type turnMetadata struct {
	Turn      string `json:"turn"`
	Number    int64  `json:"number"`
	State     string `json:"state"`
	Complete  bool   `json:"complete"`
	Truncated string `json:"truncated,omitempty"`
	Rung      string `json:"rung,omitempty"`
	End       string `json:"end,omitempty"`
	Code      string `json:"code,omitempty"`
	Sentence  string `json:"sentence,omitempty"`
}

// textPart is the part of a user's message.
type textPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// UserMessageID is the id of the message that a turn's prompt is.
func UserMessageID(t *session.Turn) string { return string(t.ID) + "-user" }

func (o operations) messages(ctx context.Context, c Call, in MessagesInput) (MessageList, error) {
	a, err := o.d.Sessions.Get(ctx, c.Caller, session.ID(in.ID))
	if err != nil {
		return MessageList{}, err
	}
	limit := in.Limit
	if limit <= 0 {
		limit = MaxMessageTurns
	}
	turns, err := o.d.Sessions.Turns(ctx, c.Caller, session.ID(in.ID), in.After, limit)
	if err != nil {
		return MessageList{}, err
	}
	out := MessageList{Items: []MessageView{}}
	parts := &partReader{o: o, caller: c.Caller, id: session.ID(in.ID)}
	room := MaxMessageBytes
	for i := range turns {
		t := &turns[i]
		if i > 0 {
			room -= len(t.Prompt)
		}
		m, err := o.answerOf(ctx, parts, t, i > 0, room)
		if errors.Is(err, errNoRoom) {
			out.Next = turns[i-1].Number
			return out, nil
		}
		if err != nil {
			return MessageList{}, err
		}
		room -= m.Size()
		if i == 0 {
			room -= len(t.Prompt)
		}
		out.Items = append(out.Items, MessageView{
			ID: UserMessageID(t), Role: "user", Parts: []any{textPart{"text", t.Prompt}},
			Metadata: promptMetadata{Turn: string(t.ID), Number: t.Number, Author: AuthorView(t.Author), At: t.AcceptedAt},
		})
		if t.State.Terminal() || parts.any {
			v, err := viewOfAnswer(t, m)
			if err != nil {
				return MessageList{}, err
			}
			out.Items = append(out.Items, v)
		}
	}
	if n := len(turns); n == limit && turns[n-1].Number < a.Session.Turns {
		out.Next = turns[n-1].Number
	}
	return out, nil
}

// errNoRoom says that a turn does not fit on the page any more.
var errNoRoom = errors.New("operation: the page is full")

// answerOf builds the message of a turn as far as it is stored. A turn that ends
// meanwhile is read again, t too, so that both tell the same.
func (o operations) answerOf(ctx context.Context, parts *partReader, t *session.Turn, bounded bool, room int) (*uistream.Message, error) {
	for {
		m := uistream.NewMessage(string(t.ID))
		err := parts.turn(ctx, t.Number, func(p transcript.Part) error {
			if err := m.Add(p.Body); err != nil {
				return fmt.Errorf("part %s of %s: %w", p.Cursor, parts.id, err)
			}
			if bounded && m.Size() > room {
				return errNoRoom
			}
			return nil
		})
		if err == nil && bounded && room < 0 {
			err = errNoRoom
		}
		if err != nil || t.State.Terminal() {
			return m, err
		}
		now, err := o.d.Sessions.Turn(ctx, parts.caller, parts.id, t.ID)
		if err != nil {
			return nil, err
		}
		*t = now
		if !t.State.Terminal() {
			return m, nil
		}
		parts.back(t.Number)
	}
}

// whole tells whether nothing of the turn's transcript is missing: one that never
// reached the agent has nothing to miss.
func whole(t *session.Turn) bool { return t.Complete || t.State.Terminal() && t.SentAt.IsZero() }

func viewOfAnswer(t *session.Turn, m *uistream.Message) (MessageView, error) {
	v := MessageView{ID: m.ID(), Role: "assistant", Parts: make([]any, 0, len(m.Parts()))}
	meta := map[string]json.RawMessage{}
	if raw := m.Metadata(); raw != nil {
		if err := json.Unmarshal(raw, &meta); err != nil {
			return v, fmt.Errorf("read the metadata of %s: %w", t.ID, err)
		}
	}
	h := turnMetadata{
		Turn: string(t.ID), Number: t.Number, State: string(t.State), Complete: whole(t), Truncated: t.Truncated, Rung: t.Rung,
		End: string(t.End), Code: string(t.Code), Sentence: t.Message,
	}
	if t.Code != "" {
		h.Sentence, _ = explain(t.Code, t.Message)
	}
	raw, err := json.Marshal(h)
	if err != nil {
		return v, fmt.Errorf("encode the metadata of %s: %w", t.ID, err)
	}
	meta["hearth"] = raw // whatever a guest wrote there
	v.Metadata = meta
	for _, p := range m.Parts() {
		v.Parts = append(v.Parts, p)
	}
	return v, nil
}

// WriteTo writes the page as JSON, part by part: what a surface would else encode
// several times can be the whole of a large turn.
func (l MessageList) WriteTo(w io.Writer) (int64, error) {
	out := &jsonWriter{w: w}
	out.text(`{"items":[`)
	for i, m := range l.Items {
		if i > 0 {
			out.text(",")
		}
		out.text(`{"id":`)
		out.value(m.ID)
		out.text(`,"role":`)
		out.value(m.Role)
		if m.Metadata != nil {
			out.text(`,"metadata":`)
			out.value(m.Metadata)
		}
		out.text(`,"parts":[`)
		for j, p := range m.Parts {
			if j > 0 {
				out.text(",")
			}
			if large, ok := p.(io.WriterTo); ok && out.err == nil {
				var n int64
				n, out.err = large.WriteTo(w)
				out.n += n
				continue
			}
			out.value(p)
		}
		out.text("]}")
	}
	out.text("]")
	if l.Next > 0 {
		out.text(`,"next":`)
		out.value(l.Next)
	}
	out.text("}\n")
	return out.n, out.err
}

// jsonWriter writes until something fails.
type jsonWriter struct {
	w   io.Writer
	n   int64
	err error
}

func (j *jsonWriter) bytes(b []byte) {
	if j.err != nil {
		return
	}
	n, err := j.w.Write(b)
	j.n, j.err = j.n+int64(n), err
}

func (j *jsonWriter) text(s string) { j.bytes([]byte(s)) }

func (j *jsonWriter) value(v any) {
	b, err := json.Marshal(v)
	if err != nil && j.err == nil {
		j.err = fmt.Errorf("encode: %w", err)
	}
	j.bytes(b)
}

// partReader goes through a session's transcript turn by turn. It holds one page.
type partReader struct {
	o      operations
	caller session.Caller
	id     session.ID
	page   []transcript.Part
	at     transcript.Cursor // read so far
	any    bool              // the newest turn had parts
}

// turn gives the stored parts of a turn. Turns must be asked for in order.
func (r *partReader) turn(ctx context.Context, number int64, f func(transcript.Part) error) error {
	r.any = false
	for {
		if len(r.page) == 0 {
			if r.at.Turn < number {
				r.at = transcript.Cursor{Turn: number}
			}
			page, err := r.o.d.Sessions.Transcript(ctx, r.caller, r.id, r.at, 0)
			if err != nil {
				return err
			}
			if len(page) == 0 {
				return nil
			}
			r.page, r.at = page, page[len(page)-1].Cursor
		}
		p := r.page[0]
		if p.Cursor.Turn > number {
			return nil
		}
		r.page[0].Body = nil
		r.page = r.page[1:]
		if p.Cursor.Turn < number {
			continue
		}
		r.any = true
		if err := f(p); err != nil {
			return err
		}
	}
}

// back lets a turn be read again.
func (r *partReader) back(number int64) {
	r.page, r.at = nil, transcript.Cursor{Turn: number}
}
