package session

import "github.com/hearthd/hearth/internal/fault"

// End names a row of the table of ends.
type End string

// The ends of a turn.
const (
	EndTurn        End = "end_turn"
	EndRefused     End = "refused"       // the agent refused, or ran out of tokens or requests
	EndLimit       End = "limit"         // budget, total or tool limit
	EndFailure     End = "failure"       // silence, first event, exit, typed failure, key, driver invalid
	EndCancel      End = "cancel"        // a person asked
	EndInterrupt   End = "interrupt"     // a newer prompt
	EndStartFailed End = "start_failed"  // never reached an agent
	EndLost        End = "lost"          // sandbox or host lost
	EndNeverSent   End = "never_started" // canceled before it was sent
)

// DeliverRule says when an end's work goes to the remote.
type DeliverRule string

// The rules.
const (
	DeliverYes      DeliverRule = "yes"
	DeliverOnVerb   DeliverRule = "on deliver"
	DeliverWithNext DeliverRule = "with the next turn"
	DeliverNothing  DeliverRule = "nothing"
)

// QueueRule says what the queue does after an end.
type QueueRule string

// The rules.
const (
	QueueNext QueueRule = "next"
	QueueHeld QueueRule = "held"
)

// endRow is what follows from one end.
type endRow struct {
	End       End
	State     TurnState
	AgentDies bool // the agent's process is ended (by the driver) unless it answered a cancel
	Pack      bool
	Deliver   DeliverRule
	Queue     QueueRule
}

// ends is the code's only source for what an end means; docs/sessions.md prints it.
var ends = []endRow{
	{EndTurn, TurnCompleted, false, true, DeliverYes, QueueNext},
	{EndRefused, TurnCompleted, false, true, DeliverYes, QueueNext},
	{EndLimit, TurnFailed, true, true, DeliverYes, QueueHeld},
	{EndFailure, TurnFailed, true, true, DeliverOnVerb, QueueHeld},
	{EndCancel, TurnCanceled, true, true, DeliverOnVerb, QueueHeld},
	{EndInterrupt, TurnCanceled, true, true, DeliverWithNext, QueueNext},
	{EndStartFailed, TurnFailed, false, false, DeliverNothing, QueueHeld},
	{EndLost, TurnFailed, false, false, DeliverOnVerb, QueueHeld},
	{EndNeverSent, TurnCanceled, false, false, DeliverNothing, QueueHeld},
}

// row looks an end up; every End constant has one, which a test checks.
func (e End) row() endRow {
	for _, r := range ends {
		if r.End == e {
			return r
		}
	}
	return endRow{End: e, State: TurnFailed, Pack: true, Deliver: DeliverOnVerb, Queue: QueueHeld}
}

// Outcomes that a driver may report; the words are those of the driver's protocol.
const (
	outcomeEndTurn  = "end_turn"
	outcomeRefusal  = "refusal"
	outcomeTokens   = "max_tokens"
	outcomeRequests = "max_turn_requests"
	outcomeCanceled = "canceled"
)

// classify turns what the driver reported, and what was asked of it, into an end.
func classify(t *Turn, outcome string, code fault.Code) End {
	if t.State == TurnStopping {
		switch t.StopReason {
		case StopCancel:
			return EndCancel
		case StopInterrupt:
			return EndInterrupt
		}
	}
	switch outcome {
	case outcomeEndTurn:
		return EndTurn
	case outcomeRefusal, outcomeTokens, outcomeRequests:
		return EndRefused
	case outcomeCanceled:
		return EndCancel
	}
	switch code {
	case fault.TurnLimit, fault.ToolLimit:
		return EndLimit
	case fault.AgentStartFailed:
		if t.SentAt.IsZero() {
			return EndStartFailed
		}
	}
	return EndFailure
}

// Reasons to stop a turn.
const (
	StopCancel    = "cancel"
	StopInterrupt = "interrupt"
	StopFailure   = "failure" // the server ends it with a code: refused key, invalid driver, limit
)
