package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/hearthd/hearth/internal/audit"
	"github.com/hearthd/hearth/internal/http10"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// Defaults of a stream.
const (
	DefaultHeartbeat = 15 * time.Second
	DefaultMaxAge    = 4 * time.Hour   // then the stream is broken and the client comes again
	DefaultWriteWait = 1 * time.Minute // a viewer that takes nothing for so long is let go
)

// pageParts is how much of the store is read at once for one viewer.
const pageParts = 512

// Gateway answers viewers. Zero durations mean the defaults.
type Gateway struct {
	Hub      *Hub
	Sessions *session.Service
	// Recheck says whether the caller may still see sessions of the workspace. Without it
	// nobody is answered. Codes: those of kinds unauthenticated and forbidden.
	Recheck      func(ctx context.Context, who session.Caller) error
	Audit        *audit.Log
	Now          func() time.Time
	Log          *slog.Logger
	Heartbeat    time.Duration
	MaxAge       time.Duration
	WriteWait    time.Duration
	RecheckEvery time.Duration
}

// errBroken ends a stream that must not look as if it had ended well.
var errBroken = errors.New("the stream is broken off")

// errGone is for a viewer that left or takes nothing.
var errGone = errors.New("the viewer is gone")

// ServeStream answers GET …/{id}/stream with an AI SDK UI-message stream, version
// 1, until no turn is accepted any more.
//
// Without a query it replays the message of the turn at work from its start, goes
// on live and into queued turns, and ends with [DONE]; when no turn is accepted
// the answer is 204. With ?from=beginning it begins with the first turn, and each
// message has a data-user-prompt part without an id right after its start. With
// Last-Event-ID, or ?after=, both "turn.part", it goes on after that part; the
// header comes first. When that part is unknown here, the first event is named
// "reset", and its data {"after":"turn.part","message":…} says after which part the
// client's copy must be dropped; what follows that part is sent next.
//
// An error means that nothing was written. When something fails later, and when
// the hub is closed, it panics with [http.ErrAbortHandler], so that the connection
// is broken. With ?approvals=close it ends well at a question that waits for an
// answer. Codes: SESSION_NOT_FOUND, INVALID_INPUT, STREAM_LIMIT.
func (g *Gateway) ServeStream(w http.ResponseWriter, r *http.Request, who session.Caller, id session.ID) error {
	if g.Recheck == nil {
		return errors.New("gateway: no recheck is set")
	}
	ask, err := readAsk(r)
	if err != nil {
		return err
	}
	a, err := g.Sessions.Get(r.Context(), who, id)
	if err != nil {
		return err
	}
	room, v, err := g.Hub.watch(id, ticketOf(r, who))
	if err != nil {
		return err
	}
	defer g.Hub.leave(id, room, v)
	f := g.follower(w, r, who, id, ask)
	f.room, f.viewer = room, v
	defer f.audited(r, &err)()
	err = f.begin(r.Context(), &a)
	if err == nil {
		err = f.run(r.Context())
	}
	return f.end(r.Context(), err)
}

// end closes the stream after run: well, or broken. An error means that nothing was written.
func (f *follower) end(ctx context.Context, err error) error {
	switch {
	case err == nil && !f.out.begun && !f.out.pending():
		f.out.w.WriteHeader(http.StatusNoContent)
		return nil
	case err == nil:
		f.out.buf = uistream.AppendDone(f.out.buf)
		if f.out.flush() == nil { // a viewer that is gone needs no end
			f.out.ending.Well()
			_ = f.out.rc.SetWriteDeadline(time.Time{}) // the connection may serve another request
		}
		return nil
	case !f.out.begun && (errors.Is(err, errGone) || ctx.Err() != nil):
		return errGone
	case !f.out.begun && !errors.Is(err, errBroken):
		return err
	}
	// Also for one that is gone: a client may have closed only its sending half.
	if !errors.Is(err, errBroken) && !errors.Is(err, errGone) && ctx.Err() == nil {
		f.g.Log.Error("stream broken off", "session", f.id, "error", err)
	}
	panic(http.ErrAbortHandler)
}

func (g *Gateway) follower(w http.ResponseWriter, r *http.Request, who session.Caller, id session.ID, a ask) *follower {
	return &follower{
		g: g, who: who, id: id, ask: a,
		out: writer{w: w, rc: http.NewResponseController(w), now: g.Now, wait: or(g.WriteWait, DefaultWriteWait), padding: a.padding, ending: http10.Of(r)},
	}
}

func or(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// follower is one viewer's way through a session.
type follower struct {
	g      *Gateway
	who    session.Caller
	id     session.ID
	ask    ask
	room   *room
	viewer *viewer
	out    writer

	at   transcript.Cursor // sent so far
	sent int64             // parts
	// What is known of the turn at that place.
	look   bool              // the ledger must be looked at
	stored bool              // all that the store had has been sent
	page   []transcript.Part // read from the store and not sent yet

	chat     chat
	had      transcript.Cursor    // with close: the client has the turn up to here
	asked    []session.QuestionID // with close: shown, and not known to be settled
	finished bool                 // the stream ends here
}

// begin finds the place to start from.
func (f *follower) begin(ctx context.Context, a *session.Aggregate) error {
	f.look = true
	switch {
	case f.ask.after != nil:
		return f.resume(ctx, a)
	case f.ask.beginning:
		f.at = transcript.Cursor{Turn: 1}
	case a.Open != nil:
		f.at = transcript.Cursor{Turn: a.Open.Number}
	default:
		f.at = transcript.Cursor{Turn: a.Session.Turns + 1}
	}
	return nil
}

// resume goes on after the part that the client had last, if there is such a part.
func (f *follower) resume(ctx context.Context, a *session.Aggregate) error {
	f.at = *f.ask.after
	known := false
	switch {
	case f.ask.unknown:
	case f.at.Part == 0:
		known = f.at.Turn <= a.Session.Turns
	case f.at.Turn >= 1 && f.at.Turn <= a.Session.Turns:
		last, err := f.g.Sessions.Log.Last(ctx, string(f.id), f.at.Turn)
		if err != nil {
			return err
		}
		known = f.at.Part <= max(last.Part, f.room.newest(f.at.Turn))
	}
	if !known {
		f.at.Part = 0
		if f.ask.unknown || f.at.Turn > a.Session.Turns {
			f.at.Turn = 0
		}
		f.out.add(uistream.AppendNamedEvent(nil, "reset", "", fmt.Appendf(nil, `{"after":%q,"message":"That part is not known here. Drop what follows the named one; it is sent again."}`, f.at)))
	}
	if f.at.Turn == 0 {
		f.at = transcript.Cursor{Turn: 1}
	}
	if f.ask.close && a.Open != nil && a.Open.Number == f.at.Turn && len(a.Questions) > 0 {
		// Which of them the client was shown, the parts that it has tell.
		f.had, f.at.Part = f.at, 0
	}
	if f.ask.beginning && max(f.at.Part, f.had.Part) == 1 { // cut between start and prompt: a client knows the turn and drops a second one
		return f.prompt(ctx)
	}
	return nil
}

// run sends turn after turn until none is accepted.
func (f *follower) run(ctx context.Context) error {
	age := time.NewTimer(or(f.g.MaxAge, DefaultMaxAge))
	defer age.Stop()
	every := or(f.g.Heartbeat, DefaultHeartbeat)
	beat := time.NewTimer(every)
	defer beat.Stop()
	check := time.NewTicker(or(f.g.RecheckEvery, DefaultRecheck))
	defer check.Stop()
	for {
		idle, done, err := f.step(ctx)
		if err != nil || done {
			return err
		}
		if !idle {
			select {
			case <-age.C:
				return errAge
			case <-f.g.Hub.done:
				return errStopped
			case <-check.C:
				if err := f.g.recheck(ctx, f.who, f.id); err != nil {
					return err
				}
			default:
			}
			continue
		}
		if !f.out.begun {
			f.out.buf = uistream.AppendComment(f.out.buf, "stream-open")
		}
		if f.out.pending() {
			if err := f.out.flush(); err != nil {
				return err
			}
			beat.Reset(every)
		}
		select {
		case <-f.viewer.notify:
		case <-beat.C:
			// A sign of life, and a look at what no notice may have told.
			f.look, f.stored = true, false
			f.heartbeat()
			if err := f.out.flush(); err != nil {
				return err
			}
			beat.Reset(every)
		case <-check.C:
			if err := f.g.recheck(ctx, f.who, f.id); err != nil {
				return err
			}
		case <-age.C:
			return errAge
		case <-f.g.Hub.done:
			return errStopped
		case <-ctx.Done():
			return errGone
		}
	}
}

func (f *follower) heartbeat() {
	if f.ask.visible {
		p := uistream.Data{Name: "heartbeat", Data: uistream.Value("{}"), Transient: true, At: uistream.At(f.g.Now())}.Part()
		f.out.buf = uistream.AppendEvent(f.out.buf, "", p.Raw)
		return
	}
	f.out.buf = uistream.AppendComment(f.out.buf, "keep-alive")
}

// step sends what follows. idle: nothing does now; done: nothing will.
func (f *follower) step(ctx context.Context) (idle, done bool, err error) {
	switch {
	case f.finished:
		return false, true, nil
	case f.atEnd():
		return f.atQuestion(ctx)
	case f.at.Turn == 0:
		return f.queued(ctx)
	}
	b := f.room.next(f.viewer, f.at)
	if b.broken {
		return false, false, errBroken
	}
	f.look = f.look || b.changed
	if len(b.wires) > 0 {
		f.stored = true // memory has all that the store has, and more
		for _, w := range b.wires {
			f.at.Part++
			if err := f.send(ctx, w); err != nil {
				return false, false, err
			}
			if f.atEnd() {
				return false, false, nil
			}
		}
		if b.finished {
			return false, false, f.nextTurn(ctx)
		}
		return false, false, nil
	}
	if f.out.begun && f.out.pending() { // what is there does not wait for the database
		return false, false, f.out.flush()
	}
	if b.behind || !f.stored {
		more, err := f.fromStore(ctx)
		if more || err != nil {
			return false, false, err
		}
		f.stored = true
	}
	if !f.look {
		return true, false, nil
	}
	f.look = false
	return f.ledger(ctx)
}

// nextTurn goes on behind a turn that has been sent whole.
func (f *follower) nextTurn(ctx context.Context) error {
	if f.chat.turn != "" {
		f.finished = true
		return f.outcome(ctx)
	}
	f.at = transcript.Cursor{Turn: f.at.Turn + 1}
	f.look, f.stored, f.asked = true, false, nil
	return nil
}

// fromStore sends what the store has of the turn, a page at a time. What a page
// has of later turns is kept for them.
func (f *follower) fromStore(ctx context.Context) (more bool, err error) {
	if len(f.page) == 0 || f.page[0].Cursor != f.following() {
		f.page, err = f.g.Sessions.Log.Read(ctx, string(f.id), f.at, pageParts)
		if err != nil {
			return false, fmt.Errorf("read the transcript of %s after %s: %w", f.id, f.at, err)
		}
	}
	for len(f.page) > 0 {
		p := f.page[0]
		if p.Cursor != f.following() {
			return more, nil // of a later turn, or what is between is not stored yet
		}
		f.page = f.page[1:]
		f.at, more = p.Cursor, true
		if err := f.send(ctx, wire(p)); err != nil {
			return more, err
		}
		if f.atEnd() {
			return more, nil
		}
		if isFinish(p.Body) {
			return more, f.nextTurn(ctx)
		}
	}
	f.page = nil
	return more, nil
}

// following is the place after f.at within the turn.
func (f *follower) following() transcript.Cursor {
	return transcript.Cursor{Turn: f.at.Turn, Part: f.at.Part + 1}
}

// ledger looks whether the turn has ended, or is still to come.
func (f *follower) ledger(ctx context.Context) (idle, done bool, err error) {
	a, err := f.g.Sessions.Get(ctx, f.who, f.id)
	if err != nil {
		return false, false, err
	}
	switch {
	case f.at.Turn > a.Session.Turns:
		return true, a.Open == nil && len(a.Queue) == 0, nil
	case a.Open != nil && a.Open.Number == f.at.Turn:
		return true, false, nil
	}
	// It has ended, and its last parts were stored with that.
	more, err := f.fromStore(ctx)
	if !more && err == nil {
		err = f.nextTurn(ctx)
	}
	return false, false, err
}

// send writes the event of the part at f.at, and after a start the prompt.
func (f *follower) send(ctx context.Context, wire []byte) error {
	if f.ask.close {
		f.note(wire)
	}
	if f.chat.after != "" && !f.beyond(wire) || f.at.Turn == f.had.Turn && f.at.Part <= f.had.Part {
		return nil
	}
	f.out.add(wire)
	f.sent++
	if f.ask.beginning && f.at.Part == 1 {
		if err := f.prompt(ctx); err != nil {
			return err
		}
	}
	if len(f.out.buf) >= maxBatchBytes {
		return f.out.flush()
	}
	return nil
}

// UserPrompt is the data of a data-user-prompt part.
type UserPrompt struct {
	Turn      string         `json:"turn"`
	Number    int64          `json:"number"`
	Author    string         `json:"author"`
	Text      string         `json:"text"`
	State     string         `json:"state"`
	Complete  bool           `json:"complete"` // the transcript of the turn is whole; false while it is at work
	Truncated string         `json:"truncated,omitempty"`
	Rung      string         `json:"rung,omitempty"`
	At        uistream.Stamp `json:"at"`
}

func (f *follower) prompt(ctx context.Context) error {
	turns, err := f.g.Sessions.Turns(ctx, f.who, f.id, f.at.Turn-1, 1)
	if err != nil {
		return err
	}
	if len(turns) == 0 || turns[0].Number != f.at.Turn {
		return fmt.Errorf("turn %d of %s has parts and no row", f.at.Turn, f.id)
	}
	t := &turns[0]
	p := uistream.Data{Name: uistream.DataUserPrompt, Data: uistream.ValueOf(UserPrompt{
		Turn: string(t.ID), Number: t.Number, Author: t.Author.Name, Text: t.Prompt, State: string(t.State),
		Complete: t.Complete, Truncated: t.Truncated, Rung: t.Rung, At: uistream.At(t.AcceptedAt),
	})}.Part()
	f.out.add(uistream.AppendEvent(nil, "", p.Raw))
	return nil
}

// writer gathers events and writes them with a deadline.
type writer struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	now  func() time.Time
	wait time.Duration
	buf  []byte
	// renewed is when the deadline of writes was set: not for each of them, which would cost
	// as much as a small one does.
	renewed time.Time
	begun   bool
	plain   bool   // not a UI-message stream
	first   func() // called with the first byte

	padding int
	ending  http10.Ending
}

func (w *writer) add(event []byte) { w.buf = append(w.buf, event...) }

func (w *writer) pending() bool { return len(w.buf) > 0 }

// flush writes what was gathered. Before the first byte it sends the headers.
func (w *writer) flush() error {
	if !w.begun {
		w.begun = true
		w.ending.Badly()
		h := w.w.Header()
		for _, x := range uistream.Header {
			switch {
			case x.Name == "Connection": // the server's own business, and not allowed in HTTP/2
			case w.plain && x.Name == "X-Vercel-AI-UI-Message-Stream":
			default:
				h.Set(x.Name, x.Value)
			}
		}
		h.Set("Cache-Control", "no-cache, no-transform")
		w.w.WriteHeader(http.StatusOK)
		if w.first != nil {
			w.first()
		}
	}
	w.buf = appendPadding(w.buf, w.padding)
	// A server without deadlines still lets go of a viewer when it closes the connection.
	if now := w.now(); now.Sub(w.renewed) >= min(time.Second, w.wait/4) {
		if err := w.rc.SetWriteDeadline(now.Add(w.wait)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return errGone
		}
		w.renewed = now
	}
	if _, err := w.w.Write(w.buf); err != nil {
		return errGone
	}
	if err := w.rc.Flush(); err != nil {
		return errGone
	}
	if cap(w.buf) > 4*maxBatchBytes {
		w.buf = nil
	}
	w.buf = w.buf[:0]
	return nil
}
