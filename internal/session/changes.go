package session

import (
	"context"
	"slices"
)

// Kind is what about a session changed. It never says how.
type Kind string

// The kinds.
const (
	KindSession  Kind = "session"  // the session itself, with its turns; also that it is new or gone
	KindQuestion Kind = "question" // one was asked or settled
	KindQueue    Kind = "queue"    // who waits, and whether they are held
	KindStart    Kind = "start"    // how far the start of its sandbox and agent is
)

// changed compares two states of a session, the second one saved.
func changed(was, is *Aggregate) []Kind {
	kinds := []Kind{KindSession}
	sameQuestion := func(a, b *Question) bool { return a.ID == b.ID && a.State == b.State }
	if !slices.EqualFunc(was.Questions, is.Questions, sameQuestion) {
		kinds = append(kinds, KindQuestion)
	}
	sameTurn := func(a, b *Turn) bool { return a.ID == b.ID && a.Prompt == b.Prompt }
	if was.Session.QueueHeld != is.Session.QueueHeld || !slices.EqualFunc(was.Queue, is.Queue, sameTurn) {
		kinds = append(kinds, KindQueue)
	}
	if was.Session.Sandbox != is.Session.Sandbox || was.Session.Generation != is.Session.Generation || starting(was) != starting(is) {
		kinds = append(kinds, KindStart)
	}
	return kinds
}

// starting is the turn that waits for sandbox and agent; empty: none does.
func starting(a *Aggregate) TurnID {
	if a.Open != nil && a.Open.State == TurnStarting {
		return a.Open.ID
	}
	return ""
}

// Progress tells those who watch that a start has come further.
func (s *Service) Progress(of *Session) { s.Viewers.Changed(of.Workspace, of.ID, KindStart) }

// Remove deletes the rows of a session of which nothing else is left, and tells those who watch.
func (s *Service) Remove(ctx context.Context, gone *Session) error {
	if err := s.Store.Remove(ctx, gone.ID); err != nil {
		return err
	}
	s.Viewers.Changed(gone.Workspace, gone.ID, KindSession)
	return nil
}
