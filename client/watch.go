package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/hearthd/hearth/internal/uistream"
)

// Change is that something of a session changed, or a word about the watch.
type Change struct {
	ID      string // to go on after; of this server's life only
	Kind    string // session, question, queue or start
	Session string
	// Reset: what changed meanwhile is not known. Read everything anew.
	Reset bool
	// State says what became of the connection; then nothing else is set.
	State State
}

// WatchOptions say where a watch begins. Without any it is now.
type WatchOptions struct {
	After  string // id of a change
	States bool   // give changes with a State too
}

// Watch tells that something of a session in the workspace changed, never what, until ctx
// ends or f returns an error, which is returned. When the connection breaks it goes on where
// it was; where that cannot be there is a Reset. What is to be kept up to date is read after
// the first StateOpen. Codes: those of the server, SERVER_UNAVAILABLE.
func (c *Client) Watch(ctx context.Context, o WatchOptions, f func(Change) error) error {
	w := &watching{c: c, o: o, last: o.After, f: f}
	wait, failing := c.Retry, time.Now()
	for {
		n := w.signs
		done, err := w.connect(ctx)
		if done || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if w.signs > n {
			wait, failing = c.Retry, time.Now()
		}
		if time.Since(failing) > c.GiveUp {
			return unavailable(err, c.base)
		}
		if o.States {
			if err := f(Change{State: StateBroken}); err != nil {
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

type watching struct {
	c     *Client
	o     WatchOptions
	last  string // id to go on after
	blind bool   // was connected and has no id
	signs int    // events and comments
	f     func(Change) error
}

// connect follows one connection. done: no other is wanted.
func (w *watching) connect(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	header := http.Header{"Accept": {"text/event-stream"}}
	if w.last != "" {
		header.Set("Last-Event-ID", w.last)
	}
	silence := time.AfterFunc(w.c.Silence, cancel)
	defer silence.Stop()
	res, err := w.c.request(ctx, http.MethodGet, "/v1/watch", nil, nil, header)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // what came is enough to tell
		e := w.c.refusal(res, b)
		return e.Status < 500, e
	}
	give := func(c Change) error {
		silence.Stop() // while f works
		defer silence.Reset(w.c.Silence)
		return w.f(c)
	}
	if w.o.States {
		if err := give(Change{State: StateOpen}); err != nil {
			return true, err
		}
	}
	if w.blind && w.last == "" {
		if err := give(Change{Reset: true}); err != nil {
			return true, err
		}
	}
	w.blind = true
	d := uistream.NewDecoder(res.Body, 0)
	for {
		e, err := d.Next()
		if err != nil {
			return false, err // an id whose event was cut does not count
		}
		if id := d.LastID(); id != "" {
			w.last = id
		}
		silence.Reset(w.c.Silence)
		w.signs++
		if e.Comment != "" {
			continue
		}
		out := Change{ID: e.ID, Reset: e.Name == "reset"}
		if !out.Reset {
			var data struct{ Kind, Session string }
			if err := json.Unmarshal(e.Data, &data); err != nil {
				return true, err
			}
			out.Kind, out.Session = data.Kind, data.Session
		}
		if err := give(out); err != nil {
			return true, err
		}
	}
}

// Ticket opens one stream of its session, once.
type Ticket struct {
	Ticket    string    `json:"ticket"`
	ExpiresAt time.Time `json:"expiresAt"`
	Header    string    `json:"header"` // the request header to send it in
}

// AttachTicket makes a ticket for a browser. The action is watch or prompt; empty: watch.
func (c *Client) AttachTicket(ctx context.Context, id, action string) (out Ticket, err error) {
	body := map[string]string{}
	if action != "" {
		body["action"] = action
	}
	return out, c.do(ctx, http.MethodPost, one(id)+"/attach-ticket", nil, body, "", &out)
}
