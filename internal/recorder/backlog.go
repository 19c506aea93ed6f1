package recorder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/transcript"
)

// Batches: whichever is reached first is stored.
const (
	batchParts = 32
	batchBytes = 1 << 20
	batchDelay = 100 * time.Millisecond
)

// maxUnstored bounds what viewers were shown and the store does not have yet; when it
// is reached the driver is not read any more.
const maxUnstored = 2 << 20

// lastWait is how long the store may take for the rest when the recording is stopped.
const lastWait = time.Second

// step is a part to store, or what is told to the session once all before it is stored.
type step struct {
	part transcript.Part
	tell func(ctx context.Context) error
}

// backlog holds what was shown and is not stored. One goroutine adds, another runs
// [turn.store]; so a viewer never waits for the store.
type backlog struct {
	mu     sync.Mutex
	steps  []step
	bytes  int // of the parts, those being stored too
	closed bool

	added chan struct{} // has a value when something was added
	freed chan struct{} // has a value when something was stored
}

func newBacklog() *backlog {
	return &backlog{added: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// room waits until so many bytes fit. It fails with the cause of ctx only.
func (b *backlog) room(ctx context.Context, bytes int) error {
	for {
		b.mu.Lock()
		fits := b.bytes == 0 || b.bytes+bytes <= maxUnstored
		b.mu.Unlock()
		if fits {
			return nil
		}
		select {
		case <-b.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *backlog) add(steps ...step) {
	b.mu.Lock()
	for _, s := range steps {
		b.bytes += len(s.part.Body)
	}
	b.steps = append(b.steps, steps...)
	b.mu.Unlock()
	wake(b.added)
}

// close says that nothing will be added.
func (b *backlog) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	wake(b.added)
}

// next is the batch at the front, or what is to be told there. due: the batch is full,
// or something waits for it. done: there is nothing and will be nothing.
func (b *backlog) next() (batch []transcript.Part, tell func(context.Context) error, due, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := 0
	for _, s := range b.steps {
		if s.tell != nil {
			if len(batch) == 0 {
				return nil, s.tell, true, false
			}
			return batch, nil, true, false
		}
		batch = append(batch, s.part)
		if size += len(s.part.Body); len(batch) == batchParts || size >= batchBytes {
			return batch, nil, true, false
		}
	}
	return batch, nil, b.closed, b.closed && len(batch) == 0
}

// drop takes n steps from the front: they are done.
func (b *backlog) drop(n int) {
	b.mu.Lock()
	for _, s := range b.steps[:n] {
		b.bytes -= len(s.part.Body)
	}
	clear(b.steps[:n])
	if b.steps = b.steps[n:]; len(b.steps) == 0 {
		b.steps = nil
	}
	b.mu.Unlock()
	wake(b.freed)
}

// store stores what is in the backlog and tells the session what is between, in order,
// until the backlog is closed and empty, or ctx ends.
func (w *turn) store(ctx context.Context) error {
	delay := time.NewTimer(batchDelay)
	defer delay.Stop()
	waiting, old := false, false // old: the batch at the front has waited long enough
	for {
		batch, tell, due, done := w.backlog.next()
		switch {
		case done:
			return nil
		case tell != nil:
			if err := tell(ctx); err != nil {
				return err
			}
			w.backlog.drop(1)
			continue
		case len(batch) > 0 && (due || old):
			if err := w.keep(ctx, batch); err != nil {
				return w.rest(ctx, err)
			}
			w.backlog.drop(len(batch))
			waiting, old = false, false
			continue
		case len(batch) > 0 && !waiting:
			delay.Reset(batchDelay)
			waiting = true
		}
		select {
		case <-w.backlog.added:
		case <-delay.C:
			old = waiting
		case <-ctx.Done():
			return w.rest(ctx, context.Cause(ctx))
		}
	}
}

// keep stores a batch, and tries until the store takes it or ctx ends.
func (w *turn) keep(ctx context.Context, batch []transcript.Part) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := w.append(ctx, batch)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || fault.CodeOf(err) == fault.SessionNotFound {
			return err
		}
		w.r.Slog.Warn("store does not take the transcript; trying again", "session", w.id, "turn", w.t.ID, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

func (w *turn) append(ctx context.Context, batch []transcript.Part) error {
	if err := w.r.Log.Append(ctx, string(w.id), batch); err != nil {
		return fmt.Errorf("store transcript: %w", err)
	}
	w.r.Stored(w.id, batch[len(batch)-1].Cursor)
	return nil
}

// rest makes the last try when the recording is stopped: what was shown is stored if
// the store takes it at once, up to the next thing that the session must be told; what
// follows is read again from the driver.
func (w *turn) rest(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWait)
	defer cancel()
	for {
		batch, _, _, _ := w.backlog.next()
		if len(batch) == 0 {
			return err
		}
		if aerr := w.append(ctx, batch); aerr != nil {
			return errors.Join(err, aerr)
		}
		w.backlog.drop(len(batch))
	}
}
