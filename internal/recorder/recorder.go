// Package recorder writes the transcript. For each turn at work one [Recorder.Record]
// reads the driver's log from the last stored part on, judges and masks every
// part once, shows it to viewers, stores it in batches, and tells the session
// how the agent ended. [Recorder.Seal] closes a turn's transcript whatever became of its
// driver. Nobody else writes parts.
package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// Limits of a turn.
const (
	maxParts = 100_000
	maxBytes = 64 << 20 // when the recorder names none
)

// Source is the driver of the turn's sandbox.
type Source interface {
	// Log follows a turn's log after a part, over cuts of the connection, until its
	// end record. An unknown turn is TURN_NOT_FOUND.
	Log(ctx context.Context, turn string, after int64, fn func(driverapi.Record) error) error
}

// Sessions is the part of session.Service that a recorder needs.
type Sessions interface {
	Apply(ctx context.Context, id session.ID, ev session.Event) (session.Aggregate, error)
}

// Recorder records turns; it is safe for concurrent use, one Record at a time for a turn.
type Recorder struct {
	Sessions Sessions
	Log      transcript.Log
	Publish  func(id session.ID, parts []transcript.Part) // to viewers, before the store
	Stored   func(id session.ID, upTo transcript.Cursor)  // viewers may forget up to here
	Secrets  func() [][]byte
	Now      func() time.Time
	Slog     *slog.Logger
	MaxBytes int64       // of one turn's parts; 0: 64 MiB
	Blobs    *blob.Store // for what no part can carry; nil: it stays in the sandbox
}

// Told is what the model door knows of a turn.
type Told struct {
	Usage  string // as counted, JSON; empty: nothing was used
	Status int    // of the newest answer to the agent; 0: there was none
}

// Record follows one turn until its end has been told to the session, or ctx ends.
// told is asked at the end.
func (r *Recorder) Record(ctx context.Context, src Source, id session.ID, t session.Turn, told func() Told) error {
	w := &turn{
		r: r, id: id, t: t, backlog: newBacklog(), mask: transcript.NewMasker(r.Secrets()), check: uistream.NewChecker(string(t.ID)), told: told,
		blobs: r.blobs(ctx, src),
	}
	defer w.blobs.stop()
	if err := w.restore(ctx); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	var readErr error
	g.Go(func() error {
		defer w.backlog.close()
		readErr = src.Log(gctx, string(t.ID), w.n, func(rec driverapi.Record) error { return w.record(gctx, rec) })
		if c := fault.CodeOf(readErr); !w.ended && gctx.Err() == nil && (c == fault.TurnNotFound || c == fault.DriverInvalid) {
			// Neither driver nor log knows how it ended: it is never sent again by itself.
			return w.end(gctx, &driverapi.End{Outcome: driverapi.OutcomeFailed, Code: string(fault.AgentLost)}, "The driver has no log of this turn.")
		}
		return nil // judged below, after what was read has been stored
	})
	g.Go(func() error { return w.store(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	if w.ended {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// Broken off: what the masker holds may be half a secret, and is read again.
	return fmt.Errorf("read log of turn %s: %w", t.ID, errors.Join(readErr, errors.New("it ended without an end")))
}

// turn is the recording of one turn: one goroutine reads the driver, judges, masks and
// shows, another stores and tells the session. All but the backlog is the reader's.
type turn struct {
	r       *Recorder
	id      session.ID
	t       session.Turn
	backlog *backlog
	mask    *transcript.Masker
	check   *uistream.Checker
	told    func() Told
	blobs   *blobs // nil: none are taken

	n       int64 // last part taken
	content bool  // the agent has said something
	rung    *driverapi.RungTaken
	invalid string // why the driver is not believed any more
	dropped int64  // parts over the limits
	ended   bool
}

// restore goes on where the store ends.
func (w *turn) restore(ctx context.Context) error {
	after := transcript.Cursor{Turn: w.t.Number}
	said := false
	for {
		page, err := w.r.Log.Read(ctx, string(w.id), after, transcript.MaxPageParts)
		if err != nil {
			return fmt.Errorf("read stored parts of turn %s: %w", w.t.ID, err)
		}
		for _, p := range page {
			if p.Cursor.Turn != w.t.Number {
				return nil
			}
			if _, err := w.check.Stored(p.Body); err != nil {
				return fmt.Errorf("stored part %s: %w", p.Cursor, err)
			}
			w.n = p.Cursor.Part
			w.content = w.content || said // told of, unless it is the last one that is stored
			after = p.Cursor
			part, err := uistream.Parse(p.Body)
			if err != nil {
				return fmt.Errorf("stored part %s: %w", p.Cursor, err)
			}
			said = said || agentSaid(part.Type)
			w.blob(part)
			if asks(part) { // told before, unless the server was killed between the two
				if err := w.tell(ctx, part); err != nil {
					return err
				}
			}
		}
		if len(page) == 0 {
			return nil
		}
	}
}

func (w *turn) record(ctx context.Context, rec driverapi.Record) error {
	switch {
	case rec.Part != nil:
		return w.part(ctx, rec)
	case rec.Rung != nil:
		w.rung = rec.Rung
	case rec.Sent:
		ev := session.Sent{Turn: w.t.ID, At: w.r.Now().UTC().Truncate(time.Microsecond)}
		if w.rung != nil {
			ev.Rung, ev.AgentSession = clip(w.rung.Rung, 32), clip(w.rung.AgentSession, 512)
			if len(w.rung.Failed) > 0 {
				failed := make([]string, 0, len(w.rung.Failed))
				for _, f := range w.rung.Failed {
					failed = append(failed, clip(w.mask.Text(f), 500))
				}
				b, err := json.Marshal(failed)
				if err != nil {
					return fmt.Errorf("encode rungs: %w", err)
				}
				ev.RungFailed = string(b)
			}
		}
		return w.apply(ctx, ev)
	case rec.End != nil:
		truncated := w.invalid
		if truncated == "" && w.dropped > 0 {
			truncated = fmt.Sprintf("The turn said more than is kept; %d parts were left out.", w.dropped)
		}
		return w.end(ctx, rec.End, truncated)
	}
	return nil
}

// clip cuts a text between two characters.
func clip(s string, max int) string {
	if len(s) <= max {
		return s
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max]
}

func (w *turn) part(ctx context.Context, rec driverapi.Record) error {
	if rec.N <= w.n || w.invalid != "" {
		return nil // seen before, or nobody listens any more
	}
	if rec.N != w.n+1 {
		return w.refuse(ctx, fmt.Sprintf("part %d follows part %d", rec.N, w.n))
	}
	limit := w.r.MaxBytes
	if limit == 0 {
		limit = maxBytes
	}
	if w.dropped > 0 || rec.N > maxParts || w.check.Bytes() > limit {
		w.n = rec.N
		w.dropped++
		return nil
	}
	p, err := w.check.Check(rec.Part)
	if err != nil {
		return w.refuse(ctx, fault.From(err).Sentence())
	}
	w.n = rec.N
	if err := w.ready(ctx, w.mask.Add(rec.N, rec.Part)); err != nil {
		return err
	}
	w.blob(p)
	if asks(p) {
		if err := w.question(ctx, p); err != nil {
			return err
		}
	}
	if !w.content && agentSaid(p.Type) {
		w.content = true
		return w.apply(ctx, session.FirstPart{Turn: w.t.ID, At: w.r.Now().UTC().Truncate(time.Microsecond)})
	}
	return nil
}

// agentSaid tells the agent's own parts from those that frame them.
func agentSaid(t uistream.Type) bool {
	switch t {
	case uistream.TypeStart, uistream.TypeStartStep, uistream.DataType("rung"), uistream.TypeMessageMetadata:
		return false
	}
	return true
}

// refuse ends the turn because its driver says what it may not.
func (w *turn) refuse(ctx context.Context, why string) error {
	w.invalid = "The driver said something that was refused: " + why
	w.r.Slog.Warn("driver refused", "session", w.id, "turn", w.t.ID, "reason", why)
	return w.apply(ctx, session.FailAsked{Turn: w.t.ID, Code: fault.DriverInvalid, Message: w.invalid})
}

// ready takes masked parts: viewers first, as far as the backlog has room.
func (w *turn) ready(ctx context.Context, parts []transcript.Numbered) error {
	for _, p := range parts {
		if err := w.backlog.room(ctx, len(p.Body)); err != nil {
			return err
		}
		out := transcript.Part{Cursor: transcript.Cursor{Turn: w.t.Number, Part: p.N}, Body: p.Body}
		w.r.Publish(w.id, []transcript.Part{out})
		w.backlog.add(step{part: out})
	}
	return nil
}

// apply tells the session something, once all that was shown before is stored.
func (w *turn) apply(ctx context.Context, ev session.Event) error {
	if err := w.backlog.room(ctx, 0); err != nil {
		return err
	}
	w.backlog.add(step{tell: func(ctx context.Context) error {
		_, err := w.r.Sessions.Apply(ctx, w.id, ev)
		if fault.CodeOf(err) == fault.IllegalMove { // the turn has ended or is stopping already
			return nil
		}
		return err
	}})
	return nil
}

// end shows what is held back and tells the session how the agent ended.
func (w *turn) end(ctx context.Context, e *driverapi.End, truncated string) error {
	if err := w.ready(ctx, w.mask.Flush()); err != nil {
		return err
	}
	w.blobs.harvest(e.Outcome)
	told := w.told()
	ev := session.AgentDone{
		Turn: w.t.ID, Outcome: e.Outcome, Code: fault.Code(e.Code), Clean: e.Clean && w.invalid == "", Truncated: truncated, Usage: told.Usage,
	}
	if ev.Outcome == driverapi.OutcomeEndTurn && told.Status >= 400 {
		// Some agents end a turn as if all were well when the model has failed them.
		ev.Outcome, ev.Code = driverapi.OutcomeFailed, fault.ModelFailed
		ev.Message = fmt.Sprintf("The model provider answered with status %d, and the agent gave up.", told.Status)
	} else if ev.Outcome == driverapi.OutcomeFailed {
		ev.Message = clip(w.mask.Text(e.Message), 2000)
		if fault.Lookup(ev.Code).Code != ev.Code || ev.Code == "" {
			ev.Code = fault.AgentFailed
		}
		if ev.Message == "" {
			ev.Message = fault.Lookup(ev.Code).Sentence
		}
		if told.Status >= 400 && ev.Code != fault.ModelKeyRejected && ev.Code != fault.AgentExited {
			ev.Message += fmt.Sprintf(" The newest answer of the model provider had status %d.", told.Status)
		}
		if e.Exit != "" && !strings.Contains(ev.Message, e.Exit) {
			ev.Message += " (" + clip(e.Exit, 100) + ")"
		}
	}
	w.ended = true
	return w.apply(ctx, ev)
}
