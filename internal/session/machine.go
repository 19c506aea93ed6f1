package session

import (
	"slices"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// turnMoves lists every legal move of a turn; all others are refused.
var turnMoves = map[TurnState][]TurnState{
	TurnAccepted:   {TurnStarting, TurnCanceled},
	TurnStarting:   {TurnRunning, TurnStopping, TurnDelivering, TurnFailed, TurnCanceled},
	TurnRunning:    {TurnWaiting, TurnStopping, TurnDelivering, TurnFailed, TurnCanceled},
	TurnWaiting:    {TurnRunning, TurnStopping, TurnDelivering, TurnFailed, TurnCanceled},
	TurnStopping:   {TurnDelivering, TurnFailed, TurnCanceled},
	TurnDelivering: {TurnCompleted, TurnFailed, TurnCanceled},
}

// pairs lists the sandbox states that each open turn may have beside it; the key
// "" is for a session without one. The store holds the same as a check constraint.
var pairs = map[TurnState][]SandboxState{
	"":             {SandboxNone, SandboxStarting, SandboxHot, SandboxLost},
	TurnStarting:   {SandboxStarting, SandboxHot},
	TurnRunning:    {SandboxHot},
	TurnWaiting:    {SandboxHot},
	TurnStopping:   {SandboxHot},
	TurnDelivering: {SandboxNone, SandboxHot, SandboxLost},
}

// Grace of a cancel, and when a turn that did not stop is ended without its agent.
const (
	CancelGrace = 5 * time.Second
	CancelLimit = 9 * time.Second
	// LimitSlack is how long after a turn's total limit the server ends it, when its driver has not.
	LimitSlack = time.Minute
)

// Apply is the machine: what a session becomes by an event, and what must be done
// for it. It is pure; a refused event returns an error and changes nothing.
// Codes: ILLEGAL_MOVE, TURN_IN_FLIGHT, QUEUE_FULL, PROMPT_TOO_LARGE,
// SESSION_DELETING, TURN_NOT_FOUND, TURN_NOT_QUEUED, QUESTION_SETTLED, NOTHING_TO_CANCEL, NOTHING_TO_DELIVER,
// NOTHING_TO_DISCARD, UNDELIVERED_WORK.
func Apply(a Aggregate, ev Event, now time.Time) (Aggregate, []Effect, error) {
	m := &move{a: copyOf(a), now: now}
	if err := m.apply(ev); err != nil {
		return a, nil, err
	}
	s := &m.a.Session
	if m.a.Open != nil && m.a.Open.State.Terminal() {
		m.retire(m.a.Open)
		m.a.Open = nil
	}
	if err := m.settle(); err != nil {
		return a, nil, err
	}
	m.startNext()
	open := TurnState("")
	if m.a.Open != nil {
		open = m.a.Open.State
	}
	if !slices.Contains(pairs[open], s.Sandbox) {
		return a, nil, fault.New(fault.IllegalMove, "The event %s would leave a turn that is %s beside a sandbox that is %s.", ev.event(), orNone(open), s.Sandbox)
	}
	switch {
	case m.a.Open != nil || s.Sandbox != SandboxHot:
		s.IdleSince = time.Time{}
	case s.IdleSince.IsZero():
		s.IdleSince = now
	}
	s.Phase = phaseOf(&m.a)
	s.UpdatedAt = now
	s.Version++
	return m.a, m.effects, nil
}

func orNone(s TurnState) TurnState {
	if s == "" {
		return "absent"
	}
	return s
}

func copyOf(a Aggregate) Aggregate {
	c := Aggregate{Session: a.Session}
	if a.Open != nil {
		t := *a.Open
		c.Open = &t
	}
	if a.Last != nil {
		t := *a.Last
		c.Last = &t
	}
	for _, q := range a.Queue {
		t := *q
		c.Queue = append(c.Queue, &t)
	}
	for _, q := range a.Questions {
		x := *q
		c.Questions = append(c.Questions, &x)
	}
	return c
}

// move is one application of an event.
type move struct {
	a       Aggregate
	now     time.Time
	effects []Effect
}

func (m *move) do(e Effect) {
	e.Session = m.a.Session.ID
	if e.NotBefore.IsZero() {
		e.NotBefore = m.now
	}
	m.effects = append(m.effects, e)
}

// to moves a turn, if the table has that move.
func (m *move) to(t *Turn, s TurnState) error {
	if !slices.Contains(turnMoves[t.State], s) {
		return fault.New(fault.IllegalMove, "A turn that is %s cannot become %s.", t.State, s)
	}
	t.State = s
	if s.Terminal() {
		t.EndedAt = m.now
	}
	return nil
}

// open returns the turn at work if it is the one with that id.
func (m *move) open(id TurnID) (*Turn, error) {
	if m.a.Open == nil || m.a.Open.ID != id {
		return nil, fault.New(fault.IllegalMove, "That turn is not at work.")
	}
	return m.a.Open, nil
}

func (m *move) apply(ev Event) error {
	s := &m.a.Session
	switch e := ev.(type) {
	case Prompted:
		return m.prompted(e)
	case SandboxCreated:
		if s.Sandbox != SandboxStarting || s.Generation != e.Generation || s.Deleting {
			return staleSandbox(e.Generation)
		}
		s.Handle = e.Handle
		return nil
	case SandboxReady:
		if s.Sandbox != SandboxStarting || s.Generation != e.Generation || s.Deleting {
			return staleSandbox(e.Generation)
		}
		s.Sandbox = SandboxHot
		if t := m.a.Open; t != nil && t.State == TurnStarting {
			t.SandboxAt = m.now
			m.do(Effect{Kind: EffectSendPrompt, Turn: t.ID, Generation: s.Generation})
		}
		return nil
	case SandboxFailed:
		if s.Sandbox != SandboxStarting || s.Generation != e.Generation {
			return staleSandbox(e.Generation)
		}
		m.release(SandboxNone)
		if t := m.a.Open; t != nil && t.State == TurnStarting {
			return m.finish(t, EndStartFailed, e.Code, e.Message)
		}
		return nil
	case Handed:
		t, err := m.open(e.Turn)
		if err != nil {
			return err
		}
		if t.State != TurnStarting || s.Sandbox != SandboxHot {
			return fault.New(fault.IllegalMove, "A turn that is %s cannot be handed over.", t.State)
		}
		if t.StartedAt.IsZero() {
			t.StartedAt = m.now
			t.Generation = s.Generation
			t.Agent, t.Build, t.Fingerprint = e.Agent, e.Build, e.Fingerprint
			// The driver keeps the limits; it is a guest, so the server looks after the total one.
			m.do(Effect{Kind: EffectLimitTurn, Turn: t.ID, Generation: s.Generation, NotBefore: m.now.Add(s.Limits.Or(DefaultLimits).Total + LimitSlack)})
		}
		return nil
	case Sent:
		t, err := m.open(e.Turn)
		if err != nil {
			return err
		}
		if t.State == TurnDelivering || !t.SentAt.IsZero() {
			return nil // seen before
		}
		t.Rung, t.RungFailed, t.AgentSession, t.SentAt = e.Rung, e.RungFailed, e.AgentSession, e.At
		if t.State == TurnStarting {
			return m.to(t, TurnRunning)
		}
		return nil
	case FirstPart:
		t, err := m.open(e.Turn)
		if err != nil {
			return err
		}
		if t.FirstPartAt.IsZero() {
			t.FirstPartAt = e.At
		}
		return nil
	case AgentDone:
		return m.agentDone(e)
	case Packed:
		return m.packed(e)
	case PackFailed:
		t, err := m.open(e.Turn)
		if err != nil {
			return err
		}
		t.PackedAt = m.now
		t.Delivery = Delivery{State: DeliveryFailed, Code: e.Code, Message: e.Message, At: m.now, Unpacked: true}
		return m.to(t, t.End.row().State)
	case PushSent:
		t, err := m.open(e.Turn)
		if err != nil {
			return nil // a delivery by verb has no open turn
		}
		if t.StopReason != "" && t.State == TurnDelivering && t.End.row().Deliver == DeliverOnVerb {
			return fault.New(fault.TurnCanceled, "The turn was canceled before its work was pushed.")
		}
		t.PushSent = true
		return nil
	case Delivered:
		return m.delivered(e)
	case CancelAsked:
		return m.cancel(e)
	case FailAsked:
		t, err := m.open(e.Turn)
		if err != nil {
			return err
		}
		return m.stop(t, StopFailure, "", e.Code, e.Message)
	case SandboxGone:
		return m.sandboxGone(e)
	case IdleExpired:
		if m.a.Open != nil || len(m.a.Queue) > 0 && !s.QueueHeld || s.Sandbox != SandboxHot || s.IdleSince.IsZero() || s.IdleSince.After(e.Before) {
			return fault.New(fault.IllegalMove, "The sandbox is not idle.")
		}
		if !e.Room && s.Refused(m.a.Last) && s.IdleSince.After(e.Before.Add(-RefusedKept)) {
			return fault.New(fault.IllegalMove, "The sandbox has work that is nowhere else.")
		}
		m.release(SandboxNone)
		m.unpackedGone()
		return nil
	case DeliverAsked:
		return m.deliverAsked()
	case DiscardAsked:
		return m.discardAsked()
	case Discarded:
		s.PackOID = s.DeliveredOID
		if m.a.Last != nil && m.a.Last.Delivery.State != DeliveryPushed {
			m.a.Last.Delivery = Delivery{State: DeliveryNoChanges, Message: "The work was discarded.", At: m.now}
		}
		return nil
	case BaseMoved:
		if s.Sandbox != SandboxStarting || s.Generation != e.Generation || s.Deleting {
			return staleSandbox(e.Generation)
		}
		if s.PackOID != "" {
			return fault.New(fault.IllegalMove, "The session has begun to work.")
		}
		s.BaseOID, s.RemoteOID = e.BaseOID, e.RemoteOID
		if s.BranchNamed {
			s.FloorOID = e.RemoteOID
		}
		if m.a.Open != nil {
			m.a.Open.PackBase = e.BaseOID
		}
		return nil
	case FloorRaised:
		s.FloorOID = e.OID
		return nil
	case RemoteMoved:
		s.RemoteOID = e.OID
		return nil
	case QueueReleased:
		s.QueueHeld = false
		return nil
	case QueueEdited:
		return m.edited(e)
	case QueueRemoved:
		return m.removed(e)
	case HoldAsked:
		return m.holdAsked()
	case DeleteAsked:
		return m.deleteAsked(e)
	case QuestionAsked:
		return m.asked(e)
	case QuestionAnswered:
		return m.answered(e)
	case QuestionOverdue:
		return m.overdue(e)
	case QuestionWithdrawn:
		return m.withdrawn(e)
	}
	return fault.New(fault.IllegalMove, "Unknown event.")
}

func staleSandbox(gen int64) error {
	return fault.New(fault.IllegalMove, "Sandbox generation %d is not awaited.", gen)
}

// startNext opens the queue's head when nothing is at work.
func (m *move) startNext() {
	s := &m.a.Session
	if m.a.Open != nil || s.Deleting || s.QueueHeld || len(m.a.Queue) == 0 {
		return
	}
	t := m.a.Queue[0]
	m.a.Queue = m.a.Queue[1:]
	m.number(t)
	t.State, t.StartingAt = TurnStarting, m.now
	t.PackBase = s.PackOID
	if t.PackBase == "" {
		t.PackBase = s.BaseOID
	}
	m.a.Open = t
	switch s.Sandbox {
	case SandboxNone, SandboxLost:
		m.newSandbox()
	case SandboxHot:
		t.SandboxAt = m.now
		m.do(Effect{Kind: EffectSendPrompt, Turn: t.ID, Generation: s.Generation})
	}
}

// newSandbox asks for the next generation.
func (m *move) newSandbox() {
	s := &m.a.Session
	s.Sandbox, s.Handle = SandboxStarting, ""
	s.Generation++
	m.do(Effect{Kind: EffectStartSandbox, Generation: s.Generation})
}

func (m *move) number(t *Turn) {
	m.a.Session.Turns++
	t.Number = m.a.Session.Turns
}

// stop asks the driver to end a turn, or ends it at once when nothing was sent.
func (m *move) stop(t *Turn, reason, by string, code fault.Code, message string) error {
	t.StopReason, t.StopBy = reason, by
	if t.StartedAt.IsZero() { // a sandbox that arrives later is kept idle
		end := EndNeverSent
		if reason == StopFailure {
			end = EndStartFailed
		}
		if err := m.finish(t, end, code, message); err != nil {
			return err
		}
		if reason == StopInterrupt {
			m.a.Session.QueueHeld = false // the newer prompt goes on
		}
		return nil
	}
	if err := m.to(t, TurnStopping); err != nil {
		return err
	}
	if reason == StopFailure {
		t.Code, t.Message = code, message
	}
	m.do(Effect{Kind: EffectCancelTurn, Turn: t.ID, Generation: m.a.Session.Generation, Code: t.Code, Message: t.Message})
	m.do(Effect{Kind: EffectForceEnd, Turn: t.ID, Generation: m.a.Session.Generation, NotBefore: m.now.Add(CancelLimit)})
	return nil
}

// finish ends a turn without anything more to do for it.
func (m *move) finish(t *Turn, end End, code fault.Code, message string) error {
	row := end.row()
	if err := m.to(t, row.State); err != nil {
		return err
	}
	t.End, t.Code, t.Message = end, code, message
	m.hold(t, row)
	return nil
}

// hold holds the queue after an end that says so; one that was held by hand stays held. A
// person's cancel held it when it was asked: a release or a prompt since then stands.
func (m *move) hold(t *Turn, row endRow) {
	m.a.Session.QueueHeld = m.a.Session.QueueHeld || row.Queue == QueueHeld && t.StopReason != StopCancel
}

// retire takes an ended turn out of the aggregate.
func (m *move) retire(t *Turn) {
	m.a.Session.LastEnd = t.State
	m.a.Ended = append(m.a.Ended, t)
	m.a.Last = t
}

func (m *move) agentDone(e AgentDone) error {
	t, err := m.open(e.Turn)
	if err != nil {
		return err
	}
	if t.State == TurnDelivering {
		return nil // seen before
	}
	end := classify(t, e.Outcome, e.Code)
	if t.State == TurnStopping && t.StopReason == StopFailure {
		end = EndFailure
		if t.Code == fault.TurnLimit || t.Code == fault.ToolLimit {
			end = EndLimit
		}
	} else {
		t.Code, t.Message = e.Code, e.Message
	}
	switch end {
	case EndTurn, EndRefused:
		t.Code = ""
	case EndCancel:
		t.Code, t.Message = fault.TurnCanceled, ""
	case EndInterrupt:
		t.Code, t.Message = fault.TurnInterrupted, ""
	}
	t.AgentDoneAt = m.now
	t.Clean = e.Clean
	t.Usage = e.Usage
	t.Complete, t.Truncated = e.Truncated == "", e.Truncated
	row := end.row()
	if !row.Pack {
		return m.finish(t, end, t.Code, t.Message)
	}
	t.End = end
	if err := m.to(t, TurnDelivering); err != nil {
		return err
	}
	m.hold(t, row)
	m.do(Effect{Kind: EffectPack, Turn: t.ID, Generation: m.a.Session.Generation})
	return nil
}

func (m *move) packed(e Packed) error {
	t, err := m.open(e.Turn)
	if err != nil {
		return err
	}
	if t.State != TurnDelivering || !t.PackedAt.IsZero() {
		return fault.New(fault.IllegalMove, "That turn has been packed.")
	}
	s := &m.a.Session
	t.PackedAt, t.Notes = m.now, e.Notes
	if e.OID != "" {
		t.PackOID, t.Commits, t.DiffStat = e.OID, e.Commits, e.DiffStat
		s.PackOID = e.OID
	}
	row := t.End.row()
	switch {
	case !s.Undelivered():
		t.Delivery = Delivery{State: DeliveryNoChanges, At: m.now}
	case s.Repo == "":
		t.Delivery = Delivery{State: DeliveryNoRepo, OID: s.PackOID, At: m.now}
	case row.Deliver == DeliverYes:
		m.do(Effect{Kind: EffectDeliver, Turn: t.ID})
		return nil
	default:
		t.Delivery = Delivery{State: DeliveryHeld, At: m.now}
	}
	return m.to(t, row.State)
}

func (m *move) delivered(e Delivered) error {
	s := &m.a.Session
	if !e.Unread {
		s.RemoteOID = e.RemoteOID
	}
	if e.Delivery.State == DeliveryPushed {
		s.DeliveredOID = e.Delivery.OID
	}
	if t := m.a.Open; t != nil && t.ID == e.Turn {
		t.Delivery = e.Delivery
		return m.to(t, t.End.row().State)
	}
	if t := m.a.Last; t != nil && t.ID == e.Turn {
		t.Delivery = e.Delivery
	}
	return nil
}

// unpackedGone notes that work which was in the sandbox only went with it.
func (m *move) unpackedGone() {
	if m.a.Last != nil {
		m.a.Last.Delivery.Unpacked = false
	}
}

// release lets go of the sandbox: the row no longer counts on it, an effect removes it.
func (m *move) release(to SandboxState) {
	s := &m.a.Session
	m.do(Effect{Kind: EffectReleaseSandbox, Generation: s.Generation, Handle: s.Handle})
	s.Sandbox, s.Handle = to, ""
}

func (m *move) sandboxGone(e SandboxGone) error {
	s := &m.a.Session
	if s.Generation != e.Generation || s.Sandbox != SandboxHot && s.Sandbox != SandboxStarting {
		return staleSandbox(e.Generation)
	}
	m.release(SandboxLost)
	m.unpackedGone()
	t := m.a.Open
	if t == nil {
		return nil
	}
	switch t.State {
	case TurnDelivering:
		if t.PackedAt.IsZero() { // the pack can no longer be had
			t.Delivery = Delivery{State: DeliveryFailed, Code: fault.PackFailed, Message: "The sandbox was lost before its work was packed.", At: m.now}
			return m.to(t, t.End.row().State)
		}
		return nil
	case TurnStarting:
		switch {
		case !t.StartedAt.IsZero():
		case m.a.Last != nil && m.a.Last.Generation == e.Generation:
			// It served a turn and died idle, and nothing of this one was sent: as if it had been found gone before.
			t.SandboxAt = time.Time{}
			m.newSandbox()
			return nil
		default:
			return m.finish(t, EndStartFailed, e.Code, e.Message)
		}
	}
	code, message := e.Code, e.Message
	end := EndLost
	if t.State == TurnStopping {
		switch t.StopReason {
		case StopCancel:
			end, code, message = EndCancel, fault.TurnCanceled, "The turn was canceled; its sandbox had to be ended."
		case StopInterrupt:
			end, code, message = EndInterrupt, fault.TurnInterrupted, "The turn was interrupted; its sandbox had to be ended."
		case StopFailure:
			code, message = t.Code, t.Message
		}
	}
	t.Complete, t.Truncated = e.Truncated == "", e.Truncated
	if s.Undelivered() {
		t.Delivery = Delivery{State: DeliveryHeld, Message: "The last packed work is kept.", At: m.now}
	}
	return m.finish(t, end, code, message)
}

// phaseOf projects the aggregate to the one word that people are shown.
func phaseOf(a *Aggregate) Phase {
	s := &a.Session
	open := TurnState("")
	if a.Open != nil {
		open = a.Open.State
	}
	switch {
	case s.Deleting:
		return PhaseDeleting
	case s.Archived:
		return PhaseArchived
	case open == TurnStopping:
		return PhaseStopping
	case open == TurnWaiting:
		return PhaseWaiting
	case open == TurnRunning:
		return PhaseRunning
	case open == TurnStarting:
		return PhaseStarting
	case open == TurnDelivering:
		return PhaseDelivering
	case len(a.Queue) > 0 && !s.QueueHeld:
		return PhaseQueued
	case s.LastEnd == TurnFailed:
		return PhaseFailed
	}
	return PhaseIdle
}
