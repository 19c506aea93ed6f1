// Package session is Hearth's domain: a [Session] is a durable conversation
// about one repository and one branch, a [Turn] is one accepted prompt and the
// agent's whole work on it. State changes only through the pure function
// [Apply], by the tables in machine.go and ends.go; what must be done in the world
// follows as [Effect] rows, written in the same transaction. The package knows no
// SQL, HTTP, sandbox or ACP. Start reading at [Apply], then [Service].
package session

import (
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// ID names a session: "ses_" and a time-ordered tail.
type ID string

// TurnID names a turn: "trn_" and a time-ordered tail. It is the message id of its answer everywhere.
type TurnID string

// EffectID names an effect: "eff_" and a time-ordered tail.
type EffectID string

// TurnState is where a turn is. See [turnMoves] for the legal moves.
type TurnState string

// The turn's states. The last three are terminal.
const (
	TurnAccepted   TurnState = "accepted"   // in the queue
	TurnStarting   TurnState = "starting"   // waits for sandbox and agent
	TurnRunning    TurnState = "running"    // the prompt is with the agent
	TurnWaiting    TurnState = "waiting"    // a person must answer
	TurnStopping   TurnState = "stopping"   // cancel is on its way
	TurnDelivering TurnState = "delivering" // the agent is done; packing, pushing
	TurnCompleted  TurnState = "completed"
	TurnFailed     TurnState = "failed"
	TurnCanceled   TurnState = "canceled"
)

// Terminal says that nothing follows.
func (s TurnState) Terminal() bool {
	return s == TurnCompleted || s == TurnFailed || s == TurnCanceled
}

// Open says that the turn is at work: neither queued nor ended.
func (s TurnState) Open() bool { return s != TurnAccepted && !s.Terminal() }

// SandboxState is what the session knows of its sandbox.
type SandboxState string

// The sandbox's states. Sleeping, waking, paused, warm and cold are part of the
// contract's words and reserved; nothing moves there yet.
const (
	SandboxNone     SandboxState = "none"
	SandboxStarting SandboxState = "starting"
	SandboxHot      SandboxState = "hot"
	SandboxLost     SandboxState = "lost" // reported or found gone
)

// Phase is what people are shown: a projection of the aggregate, see [phaseOf].
type Phase string

// The phases, in order of precedence.
const (
	PhaseDeleting   Phase = "deleting"
	PhaseArchived   Phase = "archived"
	PhaseStopping   Phase = "stopping"
	PhaseWaiting    Phase = "waiting"
	PhaseRunning    Phase = "running"
	PhaseStarting   Phase = "starting"
	PhaseDelivering Phase = "delivering"
	PhaseQueued     Phase = "queued"
	PhaseFailed     Phase = "failed"
	PhaseAsleep     Phase = "asleep"
	PhaseIdle       Phase = "idle"
)

// Session is the durable part of the aggregate. Times are UTC with microseconds.
type Session struct {
	ID        ID
	Workspace string
	Title     string
	Author    Author // who created it

	Repo        string // URL without credential; empty for a scratch session
	Base        string // branch that work starts from; resolved at create
	BaseOID     string // its commit when the session was made; empty in an empty repository
	Format      string // object format: sha1 or sha256
	Branch      string // where work goes
	BranchNamed bool   // the person named it: an existing one is continued
	Agent       string // profile name
	Model       string // empty: the profile's default
	Approvals   string // policy as approval.Policy has it as text; empty: auto
	Limits      Limits

	Sandbox    SandboxState
	Generation int64  // of the newest sandbox; 0: there was none
	Handle     string // of the live sandbox, opaque JSON; empty when there is none

	PackOID      string // newest commit packed to the server; empty: none yet
	DeliveredOID string // newest commit of ours that was read back from the remote
	RemoteOID    string // what we know the branch to be at the remote; empty: absent
	FloorOID     string // newest commit of the branch that is not this session's: what replaces the branch must have it; empty: there is none

	QueueHeld bool
	Archived  bool
	Pinned    bool
	Deleting  bool

	LastEnd   TurnState // state of the newest ended turn; empty: none has ended
	Turns     int64     // that have left the queue; the newest one's number
	Ranks     int64     // given so far to queued turns
	PromptLen int64     // bytes of all prompts
	Phase     Phase
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
	IdleSince time.Time // when the last turn ended or the sandbox became ready unused; zero while a turn is open
}

// Author is who gave a prompt; the name and address go into commits.
type Author struct {
	Name  string
	Email string
}

// Limits of a turn; zero means the default of [DefaultLimits].
type Limits struct {
	Total      time.Duration
	Silence    time.Duration
	FirstEvent time.Duration
	Tool       time.Duration
}

// DefaultLimits holds where a session says nothing.
var DefaultLimits = Limits{Total: 30 * time.Minute, Silence: 10 * time.Minute, FirstEvent: 2 * time.Minute, Tool: 30 * time.Minute}

// Or fills what is unset from d.
func (l Limits) Or(d Limits) Limits {
	if l.Total == 0 {
		l.Total = d.Total
	}
	if l.Silence == 0 {
		l.Silence = d.Silence
	}
	if l.FirstEvent == 0 {
		l.FirstEvent = d.FirstEvent
	}
	if l.Tool == 0 {
		l.Tool = d.Tool
	}
	return l
}

// Limits of prompts.
const (
	MaxPromptBytes  = 100 << 10 // one prompt
	MaxPromptsBytes = 8 << 20   // all of a session
	MaxQueue        = 32
	MaxTurnTotal    = 24 * time.Hour
)

// Turn is one accepted prompt. Times are zero until they happen.
type Turn struct {
	ID      TurnID
	Session ID
	Number  int64 // 1, 2, … in the order of leaving the queue; 0 while it waits there
	Rank    int64 // order in the queue, lowest first; an interrupting prompt goes below all
	// EditedAt is when the prompt was changed in the queue, and EditedBy who did it last.
	EditedAt time.Time
	EditedBy string
	State    TurnState
	Prompt   string
	Author   Author

	Agent        string // profile that took it
	Build        string // of the profile
	Fingerprint  string // of model, mode, environment
	Rung         string // how the agent got its memory
	RungFailed   string // rungs that were tried before, JSON array of sentences
	AgentSession string
	Generation   int64 // of the sandbox it ran in

	AcceptedAt  time.Time
	StartingAt  time.Time
	SandboxAt   time.Time // sandbox with agent and repository ready
	StartedAt   time.Time // handed to the driver: from here on it may have reached the agent
	SentAt      time.Time // the driver said that the prompt goes out
	FirstPartAt time.Time // first part from the agent
	AgentDoneAt time.Time
	PackedAt    time.Time
	EndedAt     time.Time

	Asked        int64         // questions so far
	WaitingSince time.Time     // a person is waited for since then; zero: nobody is
	Waited       time.Duration // for persons, before WaitingSince; limits do not count it

	StopReason string // who or what asked to stop: cancel, interrupt, key, …
	StopBy     string

	End     End // which row of the table of ends; empty until the agent is done
	Code    fault.Code
	Message string // a sentence for a person; empty for a plain end
	Clean   bool   // the agent took the end well: its record can be used again

	PackOID   string // commit of this turn's work; empty: no change
	PackBase  string // what it is to be compared with
	Commits   int64
	DiffStat  string
	Notes     []string // what was left out or altered when the work was packed, in sentences
	PushSent  bool     // a push for this turn has begun: from here on the remote decides
	Delivery  Delivery
	Complete  bool   // the transcript is whole
	Truncated string // why it is not
	Usage     string // JSON, as metered
}

// DeliveryState says what became of a turn's work.
type DeliveryState string

// The delivery states.
const (
	DeliveryNone      DeliveryState = ""           // not there yet
	DeliveryPushed    DeliveryState = "pushed"     // read back from the remote
	DeliveryNoChanges DeliveryState = "no_changes" // nothing to deliver
	DeliveryHeld      DeliveryState = "held"       // packed; waits for the deliver verb
	DeliveryFailed    DeliveryState = "failed"     // packed; see Code
	DeliveryNoRepo    DeliveryState = "scratch"    // packed; there is no remote
)

// Delivery is what became of a turn's work.
type Delivery struct {
	State   DeliveryState
	Code    fault.Code
	Message string
	OID     string // commit as read back
	At      time.Time
	// Unpacked: the work could not be taken over, and is in the sandbox only.
	Unpacked bool `json:",omitempty"`
}

// Aggregate is what one transaction reads and writes: a session, its open turn,
// its queue by rank, its pending questions, and the newest turn that was at work and ended. Ended
// holds the turns that left the aggregate in this step; questions settled in it are still among Questions.
type Aggregate struct {
	Session Session
	Open    *Turn
	Queue   []*Turn
	Last    *Turn
	Ended   []*Turn

	Questions []*Question
}

// Undelivered says that there is packed work which the remote does not have.
func (s *Session) Undelivered() bool { return s.PackOID != "" && s.PackOID != s.DeliveredOID }

// Discardable says that there is work which discard can drop: packed and not
// delivered, or refused when it was packed and so still in the sandbox.
func (s *Session) Discardable(last *Turn) bool { return s.Undelivered() || s.Refused(last) }

// Refused says that the newest turn's work could not be taken over from the sandbox.
func (s *Session) Refused(last *Turn) bool {
	return last != nil && last.Delivery.Unpacked
}

// EffectKind names what must be done in the world.
type EffectKind string

// The effects. Each is idempotent and resumed after a crash.
const (
	EffectStartSandbox   EffectKind = "start_sandbox"
	EffectSendPrompt     EffectKind = "send_prompt"
	EffectCancelTurn     EffectKind = "cancel_turn"
	EffectForceEnd       EffectKind = "force_end"  // the turn did not stop in time
	EffectLimitTurn      EffectKind = "limit_turn" // the driver did not keep the turn's total limit
	EffectPack           EffectKind = "pack"
	EffectDeliver        EffectKind = "deliver"
	EffectDiscard        EffectKind = "discard"
	EffectReleaseSandbox EffectKind = "release_sandbox"
	EffectDeleteSession  EffectKind = "delete_session"
	EffectAnswerQuestion EffectKind = "answer_question" // tell the driver how a question was settled
	EffectExpireQuestion EffectKind = "expire_question" // nobody answered in time
)

// Effect is a row of the queue.
type Effect struct {
	ID         EffectID
	Session    ID
	Turn       TurnID // empty: about the session
	Kind       EffectKind
	Generation int64  // of the sandbox that it is about
	Handle     string // for release_sandbox
	Question   QuestionID
	Code       fault.Code
	Message    string
	NotBefore  time.Time
	Attempts   int
}
