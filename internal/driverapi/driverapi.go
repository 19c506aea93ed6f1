// Package driverapi is what the server and the driver in a sandbox say to each
// other: the driver's configuration file, its greeting, and the calls that the
// server makes. It holds types and paths only.
//
// The driver dials the doors socket, writes the line "driver " + [Hello] as JSON,
// and then serves HTTP/2 with prior knowledge over that connection: HTTP in
// reverse, the server is the client. When the connection ends it dials again,
// for ever. One connection is current; a newer one replaces an older one.
//
// Every call carries [HeaderFence]; a driver refuses a lower fence than the
// highest it has seen (409, FENCE_STALE). Errors are a JSON [Failure] with a
// status of 400 or more. The driver is a guest: the server checks what it says.
package driverapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Version of this protocol; a driver with another one is refused.
const Version = 1

// HeaderFence carries the lease's fence, decimal.
const HeaderFence = "Hearth-Fence"

// Door names, the first word of the first line on a connection to the doors socket.
const (
	DoorDriver = "driver" // followed by a Hello
	DoorModel  = "model"  // HTTP/1.1
	DoorEgress = "egress" // HTTP/1.1 forward proxy: CONNECT and absolute form
	DoorGit    = "git"    // HTTP/1.1
	DoorTLS    = "tls"    // raw bytes of a TLS client; routed by server name into the egress door
	DoorHTTP   = "http"   // HTTP/1.1 with a Host header; routed into the egress door
)

// Loopback addresses that the driver offers inside the sandbox.
const (
	ListenEgress = "127.0.0.1:3128"
	ListenGit    = "127.0.0.1:3129"
	ListenModel  = "127.0.0.1:3130"
	ListenTLS    = "127.0.0.1:443"
	ListenHTTP   = "127.0.0.1:80"
)

// Config is the file at sandbox.PathConfig. It holds nothing secret.
type Config struct {
	Version    int    `json:"version"`
	Session    string `json:"session"`
	Sandbox    string `json:"sandbox"`
	Generation int64  `json:"generation"`
	Socket     string `json:"socket"`
	Home       string `json:"home"`
	Work       string `json:"work"`
	State      string `json:"state"` // folder of the turn logs
	Ports      []Port `json:"ports"`
	// HoldDoors is how long a new connection to a loopback port waits for a
	// socket that refuses, while the server restarts.
	HoldDoors time.Duration `json:"holdDoors"`
}

// Port is a loopback address that leads to a door.
type Port struct {
	Listen string `json:"listen"`
	Door   string `json:"door"`
}

// Hello is what the driver says of itself on each connection.
type Hello struct {
	Version    int    `json:"version"`
	Driver     string `json:"driver"` // build of the driver
	Session    string `json:"session"`
	Sandbox    string `json:"sandbox"`
	Generation int64  `json:"generation"`
	Boot       int64  `json:"boot"` // counts starts of pid 1 in this sandbox
	Turn       string `json:"turn,omitempty"`
	Part       int64  `json:"part"` // last part of that turn's log
}

// Paths of the calls. Bodies and answers are JSON unless said otherwise.
const (
	PathStatus = "/v1/status"                    // GET → Status
	PathSetup  = "/v1/setup"                     // POST SetupRequest → NDJSON of SetupEvent, the last one has Done
	PathAgent  = "/v1/agent"                     // POST AgentRequest → AgentResult; idempotent by fingerprint while the process lives
	PathTurn   = "/v1/turns/{turn}"              // PUT TurnRequest → 202 TurnTaken; the same turn again → 200
	PathLog    = "/v1/turns/{turn}/log"          // GET ?after=N → NDJSON of Record, live until the end record
	PathCancel = "/v1/turns/{turn}/cancel"       // POST CancelRequest → 202; twice is fine
	PathAnswer = "/v1/turns/{turn}/answer"       // POST AnswerRequest → 204; again → QUESTION_SETTLED
	PathBlob   = "/v1/turns/{turn}/blobs/{blob}" // GET ?offset=N → its bytes from there; DELETE → 204: the server has it
	PathPack   = "/v1/pack"                      // POST PackRequest → header HeaderPack: PackResult, body: a git pack (may be empty)
	PathReset  = "/v1/reset"                     // POST ResetRequest → 204
)

// HeaderPack carries the PackResult as JSON beside the pack itself.
const HeaderPack = "Hearth-Pack"

// Failure is the body of every error answer.
type Failure struct {
	Code    string `json:"code"`    // a code of internal/fault
	Message string `json:"message"` // plain sentences for a person
	Output  string `json:"output,omitempty"`
}

// Status of the driver.
type Status struct {
	Hello Hello  `json:"hello"`
	Setup bool   `json:"setup"` // the repository is there
	Head  string `json:"head,omitempty"`
	Agent string `json:"agent,omitempty"` // fingerprint of the running agent
	Free  int64  `json:"freeBytes"`
	// PortsFailed are the loopback addresses that could not be opened, each with its reason.
	PortsFailed []string `json:"portsFailed,omitempty"`
}

// SetupRequest puts the repository into the work tree and runs its setup
// command. It is idempotent: when the work tree is there already, the answer is
// at once Done. After a failure it can be sent again.
type SetupRequest struct {
	Repo *Repo `json:"repo,omitempty"` // nil: scratch session, an empty git repository is made
	// Git is the identity that the sandbox's git gets.
	Git Person `json:"git"`
	// Commands to run after the clone, before those of .hearth/environment.yaml.
	Commands []string      `json:"commands,omitempty"`
	Timeout  time.Duration `json:"timeout"`
}

// Repo says what to clone and where work goes.
type Repo struct {
	URL     string   `json:"url"`     // as the person gave it, without credentials: stays the origin
	DoorURL string   `json:"doorUrl"` // where the sandbox really fetches: http://127.0.0.1:3129/…
	Rewrite []string `json:"rewrite"` // further forms of URL that git maps to DoorURL (insteadOf)
	Base    string   `json:"base"`    // branch to start from; empty in an empty repository
	BaseOID string   `json:"baseOid"` // commit to start from; empty in an empty repository
	Branch  string   `json:"branch"`  // the session's branch, made at BaseOID, checked out
	// WorkURL is where the sandbox finds BaseOID when the origin does not have it:
	// work that was packed and not delivered. Empty: nowhere.
	WorkURL string `json:"workUrl,omitempty"`
	// WorkOnly: the origin cannot be reached from inside; everything is had from WorkURL, and
	// BaseHead, when it is known, stands for what the origin's Base is.
	WorkOnly bool   `json:"workOnly,omitempty"`
	BaseHead string `json:"baseHead,omitempty"`
	Format   string `json:"format"` // object format, sha1 or sha256
}

// Person is an author or committer.
type Person struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// SetupEvent is one line of progress. Done is set on the last one only; then
// Failure tells whether it went well.
type SetupEvent struct {
	Phase   string   `json:"phase"` // clone, setup
	Line    string   `json:"line,omitempty"`
	Warning bool     `json:"warning,omitempty"` // Line is of something that was asked for and not done
	Done    bool     `json:"done,omitempty"`
	Head    string   `json:"head,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
	// NotUsed lists files of the repository that describe an environment and were not used.
	NotUsed []string `json:"notUsed,omitempty"`
}

// File is put into the sandbox before the agent starts.
type File struct {
	Path    string `json:"path"` // absolute
	Content string `json:"content"`
	Mode    uint32 `json:"mode"`
}

// AgentRequest starts the agent process and initializes it. Another fingerprint
// than the running agent's ends that process first.
type AgentRequest struct {
	Fingerprint string        `json:"fingerprint"`
	Command     []string      `json:"command"`
	Env         []string      `json:"env"`
	Dir         string        `json:"dir"`
	Files       []File        `json:"files,omitempty"`
	AuthMethod  string        `json:"authMethod,omitempty"` // sent when the agent asks for authentication
	Forms       bool          `json:"forms,omitempty"`      // the agent is told that it may ask by forms
	Timeout     time.Duration `json:"timeout"`              // until initialize is answered
}

// AgentResult is what initialize told.
type AgentResult struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`
	Load     bool   `json:"load"`
	Resume   bool   `json:"resume"`
	Reused   bool   `json:"reused"` // the process was there already
}

// Attempt is one rung to try, in order, to give the agent its memory.
type Attempt struct {
	Rung         string `json:"rung"`   // live, native, reprimed, redelivered, fresh
	Method       string `json:"method"` // "" (session is open), resume, load, new
	AgentSession string `json:"agentSession,omitempty"`
	// Preamble goes before the prompt in the same request; it is not shown as talk.
	Preamble string `json:"preamble,omitempty"`
	// LateReplay: the agent replays after it has answered load; drop until the prompt.
	LateReplay bool `json:"lateReplay,omitempty"`
}

// Limits of a turn; frozen while it waits for a person. Zero means none.
type Limits struct {
	Total      time.Duration `json:"total"`
	Silence    time.Duration `json:"silence"`
	FirstEvent time.Duration `json:"firstEvent"`
	Tool       time.Duration `json:"tool"`
}

// TurnRequest starts a turn. The agent with that fingerprint must be running.
type TurnRequest struct {
	Number      int64     `json:"number"` // 1, 2, … within the session
	Fingerprint string    `json:"fingerprint"`
	Prompt      string    `json:"prompt"`
	Attempts    []Attempt `json:"attempts"`
	// Mode is set after new, load and resume and read back; empty: none.
	Mode string `json:"mode,omitempty"`
	// ModeConfig is the id of the config option that holds the mode, when the agent wants that instead of set_mode.
	ModeConfig string `json:"modeConfig,omitempty"`
	// ModelConfig and Model set the model by config option; empty: not set this way.
	ModelConfig string `json:"modelConfig,omitempty"`
	Model       string `json:"model,omitempty"`
	// Noise are beginnings of agent texts that are not talk.
	Noise  []string `json:"noise,omitempty"`
	Limits Limits   `json:"limits"`
	// Approvals is the session's policy as package approval reads it: what the agent wants to
	// do is judged by it. Empty: everything is allowed.
	Approvals json.RawMessage `json:"approvals,omitempty"`
	// SessionTimeout bounds each of new, load, resume.
	SessionTimeout time.Duration `json:"sessionTimeout"`
}

// TurnTaken answers a PUT of a turn.
type TurnTaken struct {
	Turn string `json:"turn"`
	Part int64  `json:"part"` // last part of its log
}

// Record is one line of a turn's log: exactly one of Part, Rung, Sent and End is
// set. N is the part's number, counted from 1; for other records it is the
// number of the part before. ?after=N gives all parts above N, and every other
// record whose N is N or more: those may be seen twice.
type Record struct {
	N    int64           `json:"n"`
	At   time.Time       `json:"at"`
	Part json.RawMessage `json:"part,omitempty"`
	Rung *RungTaken      `json:"rung,omitempty"`
	Sent bool            `json:"sent,omitempty"` // the prompt is about to go out
	End  *End            `json:"end,omitempty"`
}

// RungTaken says how the agent got its memory. It is written before the prompt goes out.
type RungTaken struct {
	Rung         string   `json:"rung"`
	AgentSession string   `json:"agentSession"`
	Failed       []string `json:"failed,omitempty"` // rungs tried before, each with its reason
}

// Outcomes of a turn as the driver saw it.
const (
	OutcomeEndTurn    = "end_turn"
	OutcomeMaxTokens  = "max_tokens"
	OutcomeMaxRequest = "max_turn_requests"
	OutcomeRefusal    = "refusal"
	OutcomeCanceled   = "canceled"
	OutcomeFailed     = "failed"
)

// End is the last record of a turn's log.
type End struct {
	Outcome string `json:"outcome"`
	Code    string `json:"code,omitempty"` // for failed: a code of internal/fault
	Message string `json:"message,omitempty"`
	Exit    string `json:"exit,omitempty"` // for an agent that ended: "exit status 3", "signal: killed"
	// Clean: the agent lives and can take another prompt.
	Clean  bool            `json:"clean"`
	Stderr string          `json:"stderr,omitempty"` // last 4 KiB
	Usage  json.RawMessage `json:"usage,omitempty"`  // as the agent reported
	Parts  int64           `json:"parts"`
	Noise  int64           `json:"noise,omitempty"` // lines on stdout that were not ACP
}

// CancelRequest ends a turn: ACP cancel, grace, kill; then every process that
// was started since the turn began is ended. Within Grace + 1 s the log has its end.
type CancelRequest struct {
	Grace time.Duration `json:"grace"`
	// Code and Message become the end's when the turn fails rather than being canceled (a refused key, a limit of the server's).
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// QuestionID names the n-th question of a turn, n from 1. A question is shown by the part
// data-permission, a form by data-question, whose id this is; the part comes again with an
// outcome once it is settled.
func QuestionID(turn string, n int64) string {
	return fmt.Sprintf("qst_%s-%d", strings.TrimPrefix(turn, "trn_"), n)
}

// AnswerRequest settles a question of a turn.
type AnswerRequest struct {
	Question string `json:"question"`
	Allow    bool   `json:"allow"`            // else it is denied; a form: it is accepted, else declined
	Option   string `json:"option,omitempty"` // id of the option to choose; empty: one that fits Allow
	// Of a form: its values when it is accepted, JSON object, and whether it is canceled
	// rather than declined.
	Content json.RawMessage `json:"content,omitempty"`
	Cancel  bool            `json:"cancel,omitempty"`
}

// PackRequest packs the work tree. A final pack commits what is uncommitted on
// the session's branch; an interim one makes the same commit beside it and moves nothing.
// The same final request again gives the same commit when nothing changed.
type PackRequest struct {
	Turn     string    `json:"turn"`
	Interim  bool      `json:"interim,omitempty"`
	Have     []string  `json:"have"` // commits that the server has; the pack leaves their objects out
	Base     string    `json:"base"` // the commit that the session began from or last packed
	Message  string    `json:"message"`
	Author   Person    `json:"author"`
	Commit   Person    `json:"commit"`
	At       time.Time `json:"at"`
	MaxBytes int64     `json:"maxBytes"`
}

// PackResult tells what was packed.
type PackResult struct {
	Changed bool     `json:"changed"` // Head differs from Base
	Head    string   `json:"head"`    // commit; empty when there is none at all
	Tree    string   `json:"tree"`
	Commits int64    `json:"commits"`         // from Base to Head
	Notes   []string `json:"notes,omitempty"` // what was left out or altered, in sentences
}

// ResetRequest sets branch, index and work tree back to a commit and removes untracked files.
type ResetRequest struct {
	OID string `json:"oid"`
}
