// Package audit notes who did what: one [Entry] for each act, kept for good, also when what
// it speaks of is deleted. It decides nothing and is no log for finding faults. Nobody who
// adds an entry waits for the store. Start at [Log.Add].
package audit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Entry is one act.
type Entry struct {
	ID        string // made by Add: time-ordered
	At        time.Time
	Workspace string
	Subject   string // who did it
	Action    string
	Session   string         // empty: it speaks of none
	Details   map[string]any // has nothing secret; "request" is the id of the request
}

// Actions.
const (
	TicketIssued = "ticket_issued"
	StreamOpened = "stream_opened"
	StreamClosed = "stream_closed"
)

// Store keeps entries. An entry that it has already is passed over.
type Store interface {
	AppendAudit(ctx context.Context, entries []Entry) error
}

// Limits of a log.
const (
	maxWaiting = 10_000 // entries that the store has not taken yet
	maxBatch   = 200
	retryAfter = time.Second
)

// Log takes entries and brings them to the store behind the back of whoever adds them. A
// crash loses what was added in the moments before; what cannot be stored is logged with
// all that it says. It is safe for concurrent use. All fields are set before the first use.
type Log struct {
	Store     Store
	Now       func() time.Time
	NewID     func(prefix string) string
	RequestID func(ctx context.Context) string // of the request that ctx belongs to; empty: none
	Slog      *slog.Logger

	once    sync.Once
	wake    chan struct{}
	mu      sync.Mutex
	waiting []Entry
	closed  bool
	saving  sync.Mutex // one batch at a time, so that rows come in order
}

func (l *Log) init() { l.once.Do(func() { l.wake = make(chan struct{}, 1) }) }

// Add notes an act of now; id, time and request are filled in. It never waits for the store.
func (l *Log) Add(ctx context.Context, e Entry) {
	l.init()
	e.ID, e.At = l.NewID("aud"), l.Now().UTC().Truncate(time.Microsecond)
	if id := l.RequestID(ctx); id != "" {
		details := map[string]any{"request": id}
		for k, v := range e.Details {
			details[k] = v
		}
		e.Details = details
	}
	l.mu.Lock()
	full := l.closed || len(l.waiting) >= maxWaiting
	if !full {
		l.waiting = append(l.waiting, e)
	}
	l.mu.Unlock()
	if full {
		l.lost(e, nil)
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *Log) lost(e Entry, err error) {
	l.Slog.Error("audit entry lost", "id", e.ID, "at", e.At, "workspace", e.Workspace, "subject", e.Subject, "action", e.Action, "session", e.Session, "details", e.Details, "error", err)
}

// Run stores what is added until ctx ends; what is still waiting then is Close's. A store
// that fails is logged and asked again.
func (l *Log) Run(ctx context.Context) {
	l.init()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		for {
			more, err := l.save(ctx)
			if err != nil && ctx.Err() == nil {
				l.Slog.Error("write audit", "error", err)
				select {
				case <-ctx.Done():
				case <-time.After(retryAfter):
				}
			}
			if ctx.Err() != nil {
				return
			}
			if !more && err == nil {
				break
			}
		}
	}
}

// save stores the oldest entries; more: others wait.
func (l *Log) save(ctx context.Context) (more bool, err error) {
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	batch := l.waiting[:min(len(l.waiting), maxBatch)]
	l.mu.Unlock()
	if len(batch) == 0 {
		return false, nil
	}
	if err := l.Store.AppendAudit(ctx, batch); err != nil {
		return true, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append([]Entry(nil), l.waiting[len(batch):]...)
	return len(l.waiting) > 0, nil
}

// Close stores what still waits. What cannot be stored, and what is added later, is logged.
// Run has ended before, or ends with the same stop.
func (l *Log) Close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for {
		more, err := l.save(ctx)
		if err != nil {
			l.mu.Lock()
			rest := l.waiting
			l.waiting = nil
			l.mu.Unlock()
			for _, e := range rest {
				l.lost(e, err)
			}
			return
		}
		if !more {
			return
		}
	}
}
