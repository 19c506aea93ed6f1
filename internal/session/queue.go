package session

import (
	"context"
	"slices"

	"github.com/hearthd/hearth/internal/fault"
)

// QueueEdited changes a prompt that waits.
type QueueEdited struct {
	Turn     TurnID
	Prompt   string // empty: it stays
	Position int    // from 1, beyond the end: last; 0: it stays
	By       string
}

// QueueRemoved takes a prompt out of the queue: its turn ends as never started.
type QueueRemoved struct {
	Turn TurnID
	By   string
}

// HoldAsked holds the queue: the turn at work goes on, the next one waits. A release or a
// new prompt ends it, as it ends the hold of an unclean end.
type HoldAsked struct{}

func (QueueEdited) event() string  { return "queue_edited" }
func (QueueRemoved) event() string { return "queue_removed" }
func (HoldAsked) event() string    { return "hold_asked" }

// queued finds a turn in the queue; -1: it is not there.
func (m *move) queued(id TurnID) int {
	return slices.IndexFunc(m.a.Queue, func(t *Turn) bool { return t.ID == id })
}

func (m *move) edited(e QueueEdited) error {
	s := &m.a.Session
	i := m.queued(e.Turn)
	switch {
	case s.Deleting:
		return fault.New(fault.SessionDeleting, "")
	case i < 0:
		return fault.New(fault.TurnNotQueued, "")
	}
	t := m.a.Queue[i]
	if e.Prompt != "" && e.Prompt != t.Prompt {
		if err := s.roomFor(e.Prompt, t.Prompt); err != nil {
			return err
		}
		s.PromptLen += int64(len(e.Prompt)) - int64(len(t.Prompt))
		t.Prompt, t.EditedAt, t.EditedBy = e.Prompt, m.now, e.By
	}
	if e.Position > 0 {
		ranks := make([]int64, len(m.a.Queue))
		for k, q := range m.a.Queue {
			ranks[k] = q.Rank
		}
		m.a.Queue = slices.Insert(slices.Delete(m.a.Queue, i, i+1), min(e.Position, len(ranks))-1, t)
		for k, q := range m.a.Queue {
			q.Rank = ranks[k]
		}
	}
	return nil
}

// roomFor checks a prompt that comes in the place of another.
func (s *Session) roomFor(prompt, instead string) error {
	switch {
	case len(prompt) > MaxPromptBytes:
		return fault.New(fault.PromptTooLarge, "The prompt has %d bytes; %d are allowed.", len(prompt), MaxPromptBytes)
	case s.PromptLen+int64(len(prompt)-len(instead)) > MaxPromptsBytes:
		return fault.New(fault.PromptTooLarge, "All prompts of this session together would have more than %d bytes.", MaxPromptsBytes)
	}
	return nil
}

func (m *move) removed(e QueueRemoved) error {
	i := m.queued(e.Turn)
	if i < 0 {
		return fault.New(fault.TurnNotQueued, "")
	}
	return m.dequeue(i, e.By)
}

// dequeue ends a turn in the queue. It stops nothing else.
func (m *move) dequeue(i int, by string) error {
	t := m.a.Queue[i]
	m.a.Queue = slices.Delete(m.a.Queue, i, i+1)
	m.number(t)
	t.StopReason, t.StopBy = StopCancel, by
	if err := m.finish(t, EndNeverSent, fault.TurnCanceled, ""); err != nil {
		return err
	}
	m.a.Ended = append(m.a.Ended, t)
	return nil
}

func (m *move) holdAsked() error {
	if m.a.Session.Deleting {
		return fault.New(fault.SessionDeleting, "")
	}
	m.a.Session.QueueHeld = true
	return nil
}

// EditInput changes a prompt that waits.
type EditInput struct {
	Prompt   string // empty: it stays
	Position int    // from 1, beyond the end: last; 0: it stays
}

// EditQueued changes the text or the place of a prompt that waits, in one transaction with
// the look at the queue: it is whole before the prompt goes out, or refused. The answer says
// where the prompt stands. Codes: SESSION_NOT_FOUND, TURN_NOT_FOUND, TURN_NOT_QUEUED with the
// turn's state, PROMPT_TOO_LARGE, SESSION_DELETING, INVALID_INPUT.
func (s *Service) EditQueued(ctx context.Context, who Caller, id ID, turn TurnID, in EditInput) (Accepted, error) {
	switch {
	case in.Prompt == "" && in.Position == 0:
		return Accepted{}, fault.New(fault.InvalidInput, "Nothing is changed: give a prompt, a position or both.")
	case in.Position < 0:
		return Accepted{}, fault.Field("position", "The position is %d; the first one is 1.", in.Position)
	}
	if err := checkPrompt(in.Prompt); err != nil {
		return Accepted{}, err
	}
	if _, err := s.Get(ctx, who, id); err != nil {
		return Accepted{}, err
	}
	a, err := s.Apply(ctx, id, QueueEdited{Turn: turn, Prompt: in.Prompt, Position: in.Position, By: who.Subject})
	if fault.CodeOf(err) == fault.TurnNotQueued {
		return Accepted{}, s.left(ctx, id, turn)
	}
	if err != nil {
		return Accepted{}, err
	}
	return s.accepted(ctx, Result{Aggregate: a}, string(id)+" "+string(turn))
}

// RemoveQueued takes a prompt out of the queue. Its turn stays, as canceled and never started.
// Twice is fine. Codes: SESSION_NOT_FOUND, TURN_NOT_FOUND, TURN_NOT_QUEUED with the turn's state.
func (s *Service) RemoveQueued(ctx context.Context, who Caller, id ID, turn TurnID) (Accepted, error) {
	a, err := s.Get(ctx, who, id)
	if err != nil {
		return Accepted{}, err
	}
	next, err := s.Apply(ctx, id, QueueRemoved{Turn: turn, By: who.Subject})
	switch {
	case err == nil:
		a = next
	case fault.CodeOf(err) == fault.TurnNotQueued:
		if t, rerr := s.Store.Turn(ctx, id, turn); rerr == nil && t.End == EndNeverSent && t.StartingAt.IsZero() {
			return Accepted{Aggregate: a, Turn: t}, nil // it was taken out before
		}
		return Accepted{}, s.left(ctx, id, turn)
	default:
		return Accepted{}, err
	}
	return s.accepted(ctx, Result{Aggregate: a}, string(id)+" "+string(turn))
}

// left says what became of a turn that is not in the queue.
func (s *Service) left(ctx context.Context, id ID, turn TurnID) error {
	t, err := s.Store.Turn(ctx, id, turn)
	if err != nil {
		return err
	}
	return fault.New(fault.TurnNotQueued, "The prompt is not in the queue any more: its turn is %s.", t.State).With("state", string(t.State))
}

// ended answers a cancel of a turn that is neither queued nor at work.
func (s *Service) ended(ctx context.Context, id ID, turn TurnID) (Aggregate, error) {
	t, err := s.Store.Turn(ctx, id, turn)
	if err != nil {
		return Aggregate{}, err
	}
	if t.State != TurnCanceled {
		return Aggregate{}, fault.New(fault.NothingToCancel, "The turn has ended already: it is %s.", t.State).With("state", string(t.State))
	}
	return s.Store.Get(ctx, id)
}

// Hold holds the queue: the turn at work goes on, the next one waits for a release or a new
// prompt. Twice is fine. Codes: SESSION_NOT_FOUND, SESSION_DELETING.
func (s *Service) Hold(ctx context.Context, who Caller, id ID) (Aggregate, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return Aggregate{}, err
	}
	return s.Apply(ctx, id, HoldAsked{})
}
