package session

import (
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// Event is something that happened to a session. The set is closed.
type Event interface{ event() string }

// Mode says what a prompt does when a turn is at work.
type Mode string

// The modes.
const (
	ModeQueue     Mode = "queue"
	ModeInterrupt Mode = "interrupt"
	ModeReject    Mode = "reject"
)

// Prompted adds a turn. The turn has ID, Prompt, Author set.
type Prompted struct {
	Turn Turn
	Mode Mode
}

// SandboxCreated stores the handle of a created sandbox before it counts.
type SandboxCreated struct {
	Generation int64
	Handle     string
}

// SandboxReady says that sandbox, repository and agent are there.
type SandboxReady struct{ Generation int64 }

// SandboxFailed says that a start has failed for good.
type SandboxFailed struct {
	Generation int64
	Code       fault.Code
	Message    string
}

// Handed says that the turn is about to be given to the driver.
type Handed struct {
	Turn                      TurnID
	Agent, Build, Fingerprint string
}

// Sent says that the driver is about to send the prompt, and by which rung.
type Sent struct {
	Turn         TurnID
	Rung         string
	RungFailed   string
	AgentSession string
	At           time.Time
}

// FirstPart says when the agent's first part came.
type FirstPart struct {
	Turn TurnID
	At   time.Time
}

// AgentDone is the driver's word on how the turn ended.
type AgentDone struct {
	Turn    TurnID
	Outcome string
	Code    fault.Code
	Message string
	Clean   bool
	Usage   string
	// Truncated says why the transcript is not whole; empty: it is.
	Truncated string
}

// Packed says what the server took over of the turn's work.
type Packed struct {
	Turn     TurnID
	OID      string // empty: the tree is as it was
	Commits  int64
	DiffStat string
	Notes    []string
}

// PackFailed says that the work could not be taken over.
type PackFailed struct {
	Turn    TurnID
	Code    fault.Code
	Message string
}

// PushSent is written before a push begins.
type PushSent struct{ Turn TurnID }

// Delivered says what became of the work.
type Delivered struct {
	Turn      TurnID
	Delivery  Delivery
	RemoteOID string // what the branch is at the remote now, as read back; unchanged when Unread
	Unread    bool
}

// CancelAsked stops a turn: the named one, or the one at work when empty.
type CancelAsked struct {
	Turn TurnID
	By   string
}

// FailAsked ends the turn at work with a code: the server found a reason.
type FailAsked struct {
	Turn    TurnID
	Code    fault.Code
	Message string
}

// SandboxGone says that the sandbox of a generation is not there any more.
type SandboxGone struct {
	Generation int64
	Code       fault.Code
	Message    string
	Truncated  string // why the transcript may lack its end; empty: it is whole
}

// IdleExpired releases a sandbox that nobody used since Before. One with work that was refused
// when it was packed, and so is nowhere else, is kept for RefusedKept longer, but where room is needed.
type IdleExpired struct {
	Before time.Time
	Room   bool
}

// RefusedKept is how much longer a sandbox is kept that alone has the newest work.
const RefusedKept = 24 * time.Hour

// DeliverAsked delivers what is packed and was not delivered.
type DeliverAsked struct{ By string }

// DiscardAsked sets the work back to the last delivered commit.
type DiscardAsked struct{ By string }

// Discarded says that the tree is back at the last delivered commit.
type Discarded struct{}

// BaseMoved says where the branches of a session are now that has not begun to work: no
// agent was reached and nothing is packed.
type BaseMoved struct {
	Generation int64
	BaseOID    string
	RemoteOID  string // head of the session's branch; empty: it is not there
}

// FloorRaised says that the branch has a commit of others, which the work has merged. It is
// told before the work is pushed over it.
type FloorRaised struct{ OID string }

// RemoteMoved says that the agent itself pushed the branch.
type RemoteMoved struct{ OID string }

// QueueReleased lets a held queue go on.
type QueueReleased struct{}

// DeleteAsked deletes the session.
type DeleteAsked struct {
	Force bool
	By    string
}

func (Prompted) event() string       { return "prompted" }
func (SandboxCreated) event() string { return "sandbox_created" }
func (SandboxReady) event() string   { return "sandbox_ready" }
func (SandboxFailed) event() string  { return "sandbox_failed" }
func (Handed) event() string         { return "handed" }
func (Sent) event() string           { return "sent" }
func (FirstPart) event() string      { return "first_part" }
func (AgentDone) event() string      { return "agent_done" }
func (Packed) event() string         { return "packed" }
func (PackFailed) event() string     { return "pack_failed" }
func (PushSent) event() string       { return "push_sent" }
func (Delivered) event() string      { return "delivered" }
func (CancelAsked) event() string    { return "cancel_asked" }
func (FailAsked) event() string      { return "fail_asked" }
func (SandboxGone) event() string    { return "sandbox_gone" }
func (IdleExpired) event() string    { return "idle_expired" }
func (DeliverAsked) event() string   { return "deliver_asked" }
func (DiscardAsked) event() string   { return "discard_asked" }
func (Discarded) event() string      { return "discarded" }
func (BaseMoved) event() string      { return "base_moved" }
func (FloorRaised) event() string    { return "floor_raised" }
func (RemoteMoved) event() string    { return "remote_moved" }
func (QueueReleased) event() string  { return "queue_released" }
func (DeleteAsked) event() string    { return "delete_asked" }
