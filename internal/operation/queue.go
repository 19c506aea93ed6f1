package operation

import (
	"context"

	"github.com/hearthd/hearth/internal/session"
)

// EditQueuedInput changes a prompt that waits.
type EditQueuedInput struct {
	ID       string `json:"id" maxLength:"100"`
	Turn     string `json:"turn" maxLength:"100" doc:"turn id"`
	Prompt   string `json:"prompt,omitempty" doc:"the new text; left out: it stays"`
	Position int    `json:"position,omitempty" minimum:"1" maximum:"1000" doc:"the new place in the queue, 1: goes first; beyond the end: last; left out: it stays"`
}

func (o operations) editQueued(ctx context.Context, c Call, in EditQueuedInput) (AcceptedView, error) {
	return o.accepted(o.d.Sessions.EditQueued(ctx, c.Caller, session.ID(in.ID), session.TurnID(in.Turn), session.EditInput{Prompt: in.Prompt, Position: in.Position}))
}

func (o operations) removeQueued(ctx context.Context, c Call, in TurnInput) (TurnView, error) {
	a, err := o.d.Sessions.RemoveQueued(ctx, c.Caller, session.ID(in.ID), session.TurnID(in.Turn))
	if err != nil {
		return TurnView{}, err
	}
	return viewOfTurn(&a.Turn, &a.Aggregate.Session), nil
}

func (o operations) hold(ctx context.Context, c Call, in SessionInput) (SessionView, error) {
	return o.view(o.d.Sessions.Hold(ctx, c.Caller, session.ID(in.ID)))
}
