package session

import (
	"slices"

	"github.com/hearthd/hearth/internal/fault"
)

// What people ask of a session; the rest of the events is in machine.go.

func (m *move) prompted(e Prompted) error {
	s := &m.a.Session
	switch {
	case s.Deleting:
		return fault.New(fault.SessionDeleting, "")
	case e.Mode == ModeReject && (m.a.Open != nil || len(m.a.Queue) > 0):
		return fault.New(fault.TurnInFlight, "")
	case len(m.a.Queue) >= MaxQueue:
		return fault.New(fault.QueueFull, "%d prompts wait already.", MaxQueue)
	}
	if err := s.roomFor(e.Turn.Prompt, ""); err != nil {
		return err
	}
	t := e.Turn
	t.Session, t.State, t.AcceptedAt = s.ID, TurnAccepted, m.now
	s.PromptLen += int64(len(t.Prompt))
	s.QueueHeld = false
	s.Ranks++
	t.Rank = s.Ranks
	if e.Mode == ModeInterrupt && len(m.a.Queue) > 0 {
		t.Rank = m.a.Queue[0].Rank - 1
		m.a.Queue = slices.Insert(m.a.Queue, 0, &t)
	} else {
		m.a.Queue = append(m.a.Queue, &t)
	}
	if e.Mode == ModeInterrupt && m.a.Open != nil && m.a.Open.State != TurnDelivering && m.a.Open.State != TurnStopping {
		return m.stop(m.a.Open, StopInterrupt, t.Author.Name, fault.TurnInterrupted, "")
	}
	return nil
}

func (m *move) cancel(e CancelAsked) error {
	if i := m.queued(e.Turn); i >= 0 {
		return m.dequeue(i, e.By)
	}
	s, t := &m.a.Session, m.a.Open
	switch {
	case t == nil && e.Turn == "":
		return fault.New(fault.NothingToCancel, "")
	case t == nil || e.Turn != "" && t.ID != e.Turn:
		return fault.New(fault.TurnNotFound, "That turn is not at work in this session.")
	}
	switch t.State {
	case TurnStopping: // asked before, but a release or a prompt since then does not outlast it
		s.QueueHeld = s.QueueHeld || t.StopReason == StopCancel
		return nil
	case TurnDelivering:
		if t.PushSent {
			return fault.New(fault.NothingToCancel, "The work is being pushed; the remote decides now.")
		}
		// The agent is done: what is left to cancel is the delivery.
		t.StopReason, t.StopBy, t.End = StopCancel, e.By, EndCancel
		t.Code, t.Message = fault.TurnCanceled, ""
		s.QueueHeld = true
		return nil
	}
	s.QueueHeld = true
	return m.stop(t, StopCancel, e.By, fault.TurnCanceled, "")
}

func (m *move) deliverAsked() error {
	s := &m.a.Session
	switch {
	case s.Deleting:
		return fault.New(fault.SessionDeleting, "")
	case m.a.Open != nil && m.a.Open.State == TurnDelivering:
		return fault.New(fault.TurnInFlight, "The turn is being delivered already.")
	case s.Repo != "" && s.Refused(m.a.Last):
		return fault.New(fault.NothingToDeliver, "The newest work was refused when it was packed (%s) and is still in the sandbox. Send a prompt that mends it.", m.a.Last.Delivery.Code)
	case s.Repo == "" || !s.Undelivered() || m.a.Last == nil:
		return fault.New(fault.NothingToDeliver, "")
	}
	m.do(Effect{Kind: EffectDeliver, Turn: m.a.Last.ID})
	return nil
}

func (m *move) discardAsked() error {
	s := &m.a.Session
	switch {
	case s.Deleting:
		return fault.New(fault.SessionDeleting, "")
	case m.a.Open != nil:
		return fault.New(fault.TurnInFlight, "A turn is at work; cancel it first.")
	case !s.Discardable(m.a.Last):
		return fault.New(fault.NothingToDiscard, "")
	}
	m.do(Effect{Kind: EffectDiscard, Generation: s.Generation})
	return nil
}

func (m *move) deleteAsked(e DeleteAsked) error {
	s := &m.a.Session
	if s.Deleting {
		return nil
	}
	if s.Undelivered() && !e.Force {
		if s.Repo == "" {
			return fault.New(fault.UndeliveredWork, "The session has no repository: what it made is here only. Fetch it as a bundle, or delete with force.")
		}
		return fault.New(fault.UndeliveredWork, "")
	}
	if s.Refused(m.a.Last) && s.Sandbox == SandboxHot && !e.Force {
		return fault.New(fault.UndeliveredWork, "The newest work was refused when it was packed (%s) and is in the sandbox only.", m.a.Last.Delivery.Code)
	}
	if m.a.Open != nil && !e.Force {
		return fault.New(fault.TurnInFlight, "A turn is at work; cancel it first, or delete with force.")
	}
	s.Deleting = true
	for _, q := range m.a.Queue {
		m.number(q)
		if err := m.finish(q, EndNeverSent, fault.TurnCanceled, "The session was deleted."); err != nil {
			return err
		}
		m.a.Ended = append(m.a.Ended, q)
	}
	m.a.Queue = nil
	if t := m.a.Open; t != nil {
		t.StopReason, t.StopBy = StopCancel, e.By
		if t.State == TurnDelivering {
			t.Delivery = Delivery{State: DeliveryHeld, At: m.now}
			t.End = EndCancel
			if err := m.to(t, TurnCanceled); err != nil {
				return err
			}
		} else if err := m.finish(t, EndCancel, fault.TurnCanceled, "The session was deleted."); err != nil {
			return err
		}
	}
	if s.Sandbox != SandboxNone {
		m.release(SandboxNone)
	}
	m.do(Effect{Kind: EffectDeleteSession})
	return nil
}
