package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/uistream"
)

// Event is one part of a session's conversation, or a word about the stream.
type Event struct {
	Turn, Part int64  // of the part; a data-user-prompt has that of the start before it
	Type       string // the part's type; empty for a reset
	Data       json.RawMessage
	// Reset: parts after this one (turn.part) that were given before are not part
	// of the conversation; they come again.
	Reset bool
	// State says what became of the connection; then nothing else is set.
	State State
}

// ID is "turn.part".
func (e *Event) ID() string {
	return strconv.FormatInt(e.Turn, 10) + "." + strconv.FormatInt(e.Part, 10)
}

// State is what a stream's connection does.
type State string

// The states that an event tells. Broken comes before each new attempt.
const (
	StateOpen   State = "open"
	StateBroken State = "broken"
)

// StreamOptions say where a stream begins. Without any it is the start of the
// running message.
type StreamOptions struct {
	Beginning bool   // every turn, each with its data-user-prompt
	After     string // turn.part
	States    bool   // give events with a State too
}

// Stream gives the parts of a session in order, each once, until no turn is
// accepted any more; then it returns nil. When the connection breaks it goes on
// where it was. An error of f ends it and is returned. Data is valid only until f
// returns. Codes: those of the server, SERVER_UNAVAILABLE.
func (c *Client) Stream(ctx context.Context, id string, o StreamOptions, f func(Event) error) error {
	s := &stream{c: c, id: id, o: o, last: o.After, f: f}
	wait := c.Retry
	failing := time.Now()
	for {
		n := s.events
		done, err := s.connect(ctx)
		if done || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if s.events > n {
			wait, failing = c.Retry, time.Now()
		}
		if time.Since(failing) > c.GiveUp {
			if e := (*Error)(nil); errors.As(err, &e) {
				return e
			}
			return unavailable(err, c.base)
		}
		if o.States {
			if err := f(Event{State: StateBroken}); err != nil {
				return err
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		wait = min(2*wait, 20*c.Retry)
	}
}

type stream struct {
	c        *Client
	id       string
	o        StreamOptions
	last     string // id of the last part given
	prompted int64  // turn whose prompt was given last
	events   int
	f        func(Event) error
}

// connect follows one connection. done: no other is wanted.
func (s *stream) connect(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := url.Values{}
	header := http.Header{"Accept": {"text/event-stream"}}
	if s.o.Beginning {
		q.Set("from", "beginning")
	}
	if s.last != "" {
		header.Set("Last-Event-ID", s.last)
	}
	silence := time.AfterFunc(s.c.Silence, cancel)
	defer silence.Stop()
	res, err := s.c.request(ctx, http.MethodGet, one(s.id)+"/stream", q, nil, header)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusNoContent:
		return true, nil
	case res.StatusCode != http.StatusOK:
		b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // what came is enough to tell
		e := s.c.refusal(res, b)
		return e.Status < 500, e
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "text/event-stream" {
		return true, s.c.strange(res, nil)
	}
	if s.o.States {
		if err := s.f(Event{State: StateOpen}); err != nil {
			return true, err
		}
	}
	d := uistream.NewDecoder(res.Body, 0)
	for {
		e, err := d.Next()
		if err != nil {
			return false, err
		}
		silence.Reset(s.c.Silence)
		s.events++
		switch {
		case e.Comment != "":
		case e.Done:
			return true, nil
		default:
			silence.Stop() // while f works
			if err := s.give(e); err != nil {
				return true, err
			}
			silence.Reset(s.c.Silence)
		}
	}
}

func (s *stream) give(e uistream.Event) error {
	if e.Name == "reset" {
		var r struct {
			After string `json:"after"`
		}
		if err := json.Unmarshal(e.Data, &r); err != nil {
			return err
		}
		s.last, s.prompted = r.After, 0
		turn, part := cut(r.After)
		return s.f(Event{Turn: turn, Part: part, Reset: true})
	}
	p, err := uistream.Parse(e.Data)
	if err != nil {
		return err
	}
	out := Event{Type: string(p.Type), Data: p.Raw}
	out.Turn, out.Part = cut(e.ID)
	switch {
	case p.Type == uistream.DataType(uistream.DataUserPrompt):
		// It has no id of its own: after a cut it may come twice.
		var u struct{ Data struct{ Number int64 } }
		if err := p.Decode(&u); err != nil {
			return err
		}
		if u.Data.Number == s.prompted {
			return nil
		}
		s.prompted = u.Data.Number
		out.Turn, out.Part = u.Data.Number, 1
	case e.ID != "":
		s.last = e.ID
	}
	return s.f(out)
}

func cut(id string) (turn, part int64) {
	a, b, _ := strings.Cut(id, ".")
	turn, _ = strconv.ParseInt(a, 10, 64) // ids are the server's; a strange one is 0.0
	part, _ = strconv.ParseInt(b, 10, 64)
	return turn, part
}
