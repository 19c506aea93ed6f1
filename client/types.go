package client

import (
	"encoding/json"
	"io"
	"time"
)

// Author is who gave a prompt.
type Author struct {
	Name  string `json:"name"`
	Email string `json:"email,omitempty"`
}

// Sandbox is what is known of a session's sandbox.
type Sandbox struct {
	State      string `json:"state"`
	Generation int64  `json:"generation"`
	Isolation  string `json:"isolation,omitempty"`
	Start      *Start `json:"start,omitempty"` // while it starts; not set in lists
}

// Start is a start of a sandbox that goes on. Step is sandbox, clone (of the
// repository), setup (its own commands), or empty when it is not known.
type Start struct {
	Step      string `json:"step,omitempty"`
	ElapsedMs int64  `json:"elapsedMs"` // since the turn left the queue
}

// Limits of each turn, in seconds.
type Limits struct {
	TotalSeconds      int64 `json:"totalSeconds"`
	SilenceSeconds    int64 `json:"silenceSeconds"`
	FirstEventSeconds int64 `json:"firstEventSeconds"`
	ToolSeconds       int64 `json:"toolSeconds"`
}

// Session is a session. OpenTurn, Queue and LastTurn are not set in lists.
type Session struct {
	ID              string    `json:"id"`
	Title           string    `json:"title"`
	Phase           string    `json:"phase"`
	Repo            string    `json:"repo,omitempty"`
	Base            string    `json:"base,omitempty"`
	BaseCommit      string    `json:"baseCommit,omitempty"`
	Branch          string    `json:"branch,omitempty"`
	Agent           string    `json:"agent"`
	Model           string    `json:"model,omitempty"`
	Author          Author    `json:"author"`
	Limits          Limits    `json:"limits"`
	Sandbox         Sandbox   `json:"sandbox"`
	Turns           int64     `json:"turns"`
	QueueHeld       bool      `json:"queueHeld"`
	Undelivered     bool      `json:"undelivered"`
	PackedCommit    string    `json:"packedCommit,omitempty"`
	DeliveredCommit string    `json:"deliveredCommit,omitempty"`
	CreatedAt       time.Time `json:"createdAt"`
	UpdatedAt       time.Time `json:"updatedAt"`
	OpenTurn        *Turn     `json:"openTurn,omitempty"`
	Queue           []Turn    `json:"queue,omitempty"`
	LastTurn        *Turn     `json:"lastTurn,omitempty"`
	// Approvals is JSON: auto, ask, read-only, or an object with rules.
	Approvals json.RawMessage `json:"approvals,omitempty"`
	// Questions wait for an answer; left out in lists.
	Questions []Question `json:"questions,omitempty"`
}

// Question is what an agent asks a person. State is pending, answered, expired or canceled.
type Question struct {
	ID         string          `json:"id"`
	Session    string          `json:"session"`
	Turn       string          `json:"turn"`
	Kind       string          `json:"kind"` // permission, form
	State      string          `json:"state"`
	Title      string          `json:"title,omitempty"`
	Tool       string          `json:"tool,omitempty"` // kind of the tool call
	ToolCallID string          `json:"toolCallId,omitempty"`
	Options    []Option        `json:"options"`
	Detail     json.RawMessage `json:"detail,omitempty"` // input and content of the call; of a form its message and schema
	AskedAt    time.Time       `json:"askedAt"`
	Deadline   time.Time       `json:"deadline"` // unanswered by then it counts as denied, a form as declined
	Verdict    string          `json:"verdict,omitempty"`
	Option     string          `json:"option,omitempty"`
	Message    string          `json:"message,omitempty"`
	By         string          `json:"by,omitempty"`
	SettledAt  *time.Time      `json:"settledAt,omitempty"`
}

// Option is one answer that the agent offers. Kind is allow_once, allow_always,
// reject_once or reject_always.
type Option struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// Answer to a question. Verdict is allow or deny, and may be empty where Option, the id
// of one of the question's options, says it. A form's is accept, decline or cancel.
type Answer struct {
	Verdict string `json:"verdict,omitempty"`
	Option  string `json:"option,omitempty"`
	// Content is a JSON object with the values of a form that is accepted.
	Content json.RawMessage `json:"content,omitempty"`
	Message string          `json:"message,omitempty"`
}

// Delivery is what became of a turn's work. State is pushed, no_changes, held,
// failed, or scratch when there is no repository.
type Delivery struct {
	State   string     `json:"state"`
	Branch  string     `json:"branch,omitempty"`
	Commit  string     `json:"commit,omitempty"` // as read back from the remote
	Code    string     `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
	Remedy  string     `json:"remedy,omitempty"`
	At      *time.Time `json:"at,omitempty"`
}

// Times is how long each part of a turn took, in milliseconds; nil: not yet.
type Times struct {
	Accepted   *int64 `json:"acceptedMs,omitempty"`
	Sandbox    *int64 `json:"sandboxMs,omitempty"`
	AgentReady *int64 `json:"agentReadyMs,omitempty"`
	FirstPart  *int64 `json:"firstPartMs,omitempty"`
	Turn       *int64 `json:"turnMs,omitempty"`
	Packed     *int64 `json:"packedMs,omitempty"`
	Delivered  *int64 `json:"deliveredMs,omitempty"`
	Total      *int64 `json:"totalMs,omitempty"`
}

// Turn is one prompt and the agent's work on it. State is accepted, starting,
// running, waiting, stopping, delivering, completed, failed or canceled.
type Turn struct {
	ID         string          `json:"id"`
	Number     int64           `json:"number"`
	State      string          `json:"state"`
	Prompt     string          `json:"prompt"`
	Author     Author          `json:"author"`
	Agent      string          `json:"agent,omitempty"`
	Rung       string          `json:"rung,omitempty"`
	RungFailed []string        `json:"rungFailed,omitempty"`
	Generation int64           `json:"generation,omitempty"`
	StopReason string          `json:"stopReason,omitempty"`
	End        string          `json:"end,omitempty"`
	Code       string          `json:"code,omitempty"`
	Message    string          `json:"message,omitempty"`
	Remedy     string          `json:"remedy,omitempty"`
	Commits    int64           `json:"commits,omitempty"`
	Notes      []string        `json:"notes,omitempty"` // what was left out or altered when the work was packed
	Commit     string          `json:"commit,omitempty"`
	DiffStat   string          `json:"diffStat,omitempty"`
	Delivery   *Delivery       `json:"delivery,omitempty"`
	Complete   bool            `json:"complete"`
	Truncated  string          `json:"truncated,omitempty"`
	Usage      json.RawMessage `json:"usage,omitempty"`
	Times      Times           `json:"times"`
	AcceptedAt time.Time       `json:"acceptedAt"`
	StartedAt  *time.Time      `json:"startedAt,omitempty"`
	SentAt     *time.Time      `json:"sentAt,omitempty"`
	EndedAt    *time.Time      `json:"endedAt,omitempty"`
	EditedAt   *time.Time      `json:"editedAt,omitempty"` // when its prompt was changed in the queue
	EditedBy   string          `json:"editedBy,omitempty"`
}

// Ended says that nothing follows for the turn.
func (t *Turn) Ended() bool {
	return t.State == "completed" || t.State == "failed" || t.State == "canceled"
}

// Accepted answers [Client.Create] and [Client.Prompt]. Position is 0 when the
// turn is at work and n when it is the n-th in the queue.
type Accepted struct {
	Session  Session `json:"session"`
	Turn     *Turn   `json:"turn,omitempty"`
	Position int     `json:"position"`
}

// CreateInput makes a session; empty fields take the server's defaults. Key is an
// idempotency key and not part of the body.
type CreateInput struct {
	Prompt                 string `json:"prompt,omitempty"`
	Repo                   string `json:"repo,omitempty"`
	Base                   string `json:"base,omitempty"`
	Branch                 string `json:"branch,omitempty"`
	Agent                  string `json:"agent,omitempty"`
	Model                  string `json:"model,omitempty"`
	Title                  string `json:"title,omitempty"`
	TotalLimitSeconds      int64  `json:"totalLimitSeconds,omitempty"`
	SilenceLimitSeconds    int64  `json:"silenceLimitSeconds,omitempty"`
	FirstEventLimitSeconds int64  `json:"firstEventLimitSeconds,omitempty"`
	ToolLimitSeconds       int64  `json:"toolLimitSeconds,omitempty"`
	// Approvals is JSON: auto (when empty), ask, read-only, or an object with rules.
	Approvals json.RawMessage `json:"approvals,omitempty"`
	Key       string          `json:"-"`
}

// PromptInput is a further prompt. Mode is queue (default), interrupt or reject.
type PromptInput struct {
	Prompt string `json:"prompt"`
	Mode   string `json:"mode,omitempty"`
	Key    string `json:"-"`
}

// ListInput filters and pages sessions.
type ListInput struct {
	Phases []string
	Repo   string
	Below  string // the Next of the page before
	Limit  int    // 0: the server's default
}

// SessionList is a page of sessions, newest first. Next is empty on the last page.
type SessionList struct {
	Items []Session `json:"items"`
	Next  string    `json:"next,omitempty"`
}

// TurnList is a page of turns by number. Next is 0 on the last page.
type TurnList struct {
	Items []Turn `json:"items"`
	Next  int64  `json:"next,omitempty"`
}

// Queue is what waits in a session.
type Queue struct {
	Held  bool   `json:"held"`
	Items []Turn `json:"items"`
}

// Part is one stored part.
type Part struct {
	Cursor string          `json:"cursor"`
	Part   json.RawMessage `json:"part"`
}

// PartList is a page of the transcript. Next is empty when nothing follows now.
type PartList struct {
	Items []Part `json:"items"`
	Next  string `json:"next,omitempty"`
}

// Diff is a rendered difference. Format is patch, stat or names.
type Diff struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Format    string `json:"format"`
	Text      string `json:"text"`
	Truncated bool   `json:"truncated"`
}

// File is an answer of bytes while it is fetched. A Read that fails means that it is
// not whole. Close it.
type File struct {
	Name string // for a file; without folders
	io.ReadCloser
}

// Bundle is packed work as a git bundle (gitformat-bundle(5)).
type Bundle = File

// Capabilities is what a server can do and what is missing.
type Capabilities struct {
	Version string `json:"version"`
	Sandbox struct {
		Provider   string `json:"provider"`
		Isolation  string `json:"isolation"`
		Build      string `json:"build,omitempty"`
		Pause      bool   `json:"pause"`
		Memory     bool   `json:"memorySnapshot"`
		Files      bool   `json:"filesSnapshot"`
		Privileged bool   `json:"privileged"`
		Live       int    `json:"live"`
		Max        int    `json:"max"`
	} `json:"sandbox"`
	Agents []struct {
		Name      string   `json:"name"`
		Title     string   `json:"title,omitempty"`
		Version   string   `json:"version,omitempty"`
		Installed bool     `json:"installed"`
		Providers []string `json:"providers"`
		Ready     []string `json:"ready"`
		Default   bool     `json:"default,omitempty"`
	} `json:"agents"`
	Missing []struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Remedy  string `json:"remedy"`
	} `json:"missing"`
	Limits Limits `json:"limits"`
}

// Version is what a server is.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go,omitempty"`
}
