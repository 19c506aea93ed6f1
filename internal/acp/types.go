package acp

import "encoding/json"

// Implementation names a client or agent.
type Implementation struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Version string `json:"version"`
}

// FSCapabilities of a client; Hearth advertises none.
type FSCapabilities struct {
	ReadTextFile  bool `json:"readTextFile"`
	WriteTextFile bool `json:"writeTextFile"`
}

// ClientCapabilities of version 1. The zero value offers nothing.
type ClientCapabilities struct {
	FS          *FSCapabilities `json:"fs,omitempty"`
	Terminal    bool            `json:"terminal,omitempty"`
	Auth        json.RawMessage `json:"auth,omitempty"`
	Elicitation json.RawMessage `json:"elicitation,omitempty"`
	Session     json.RawMessage `json:"session,omitempty"`
	Meta        json.RawMessage `json:"_meta,omitempty"`
}

// InitializeRequest opens a connection.
type InitializeRequest struct {
	ProtocolVersion    int                `json:"protocolVersion"`
	ClientCapabilities ClientCapabilities `json:"clientCapabilities"`
	ClientInfo         *Implementation    `json:"clientInfo,omitempty"`
}

// PromptCapabilities of an agent; text and resource links are always allowed.
type PromptCapabilities struct {
	Image           bool `json:"image,omitempty"`
	Audio           bool `json:"audio,omitempty"`
	EmbeddedContext bool `json:"embeddedContext,omitempty"`
}

// MCPCapabilities of an agent; stdio is always allowed.
type MCPCapabilities struct {
	HTTP bool `json:"http,omitempty"`
	SSE  bool `json:"sse,omitempty"`
}

// Flag is a capability that is there when it is an object, whatever is in it.
type Flag struct{}

// SessionCapabilities of an agent.
type SessionCapabilities struct {
	List   *Flag `json:"list,omitempty"`
	Resume *Flag `json:"resume,omitempty"`
	Close  *Flag `json:"close,omitempty"`
	Delete *Flag `json:"delete,omitempty"`
	Fork   *Flag `json:"fork,omitempty"`
}

// AgentCapabilities of version 1.
type AgentCapabilities struct {
	LoadSession         bool                `json:"loadSession,omitempty"`
	PromptCapabilities  PromptCapabilities  `json:"promptCapabilities"`
	MCPCapabilities     MCPCapabilities     `json:"mcpCapabilities"`
	SessionCapabilities SessionCapabilities `json:"sessionCapabilities"`
	Meta                json.RawMessage     `json:"_meta,omitempty"`
}

// AuthMethod is a way to authenticate.
type AuthMethod struct {
	ID          string          `json:"id"`
	Type        string          `json:"type,omitempty"` // empty: the agent does it itself; "terminal"
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Meta        json.RawMessage `json:"_meta,omitempty"`
}

// InitializeResponse is the agent's answer.
type InitializeResponse struct {
	ProtocolVersion   int               `json:"protocolVersion"`
	AgentCapabilities AgentCapabilities `json:"agentCapabilities"`
	AgentInfo         *Implementation   `json:"agentInfo,omitempty"`
	AuthMethods       []AuthMethod      `json:"authMethods,omitempty"`
	Raw               json.RawMessage   `json:"-"`
}

// AuthenticateRequest picks a method.
type AuthenticateRequest struct {
	MethodID string          `json:"methodId"`
	Meta     json.RawMessage `json:"_meta,omitempty"`
}

// NewSessionRequest is for session/new. CWD is absolute; MCPServers is never nil on the wire.
type NewSessionRequest struct {
	CWD        string            `json:"cwd"`
	MCPServers []json.RawMessage `json:"mcpServers"`
	Meta       json.RawMessage   `json:"_meta,omitempty"`
}

// LoadSessionRequest is for session/load and session/resume.
type LoadSessionRequest struct {
	SessionID  string            `json:"sessionId"`
	CWD        string            `json:"cwd"`
	MCPServers []json.RawMessage `json:"mcpServers"`
	Meta       json.RawMessage   `json:"_meta,omitempty"`
}

// Mode is one of an agent's modes.
type Mode struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// ModeState is the modes and the one in force.
type ModeState struct {
	CurrentModeID  string `json:"currentModeId"`
	AvailableModes []Mode `json:"availableModes"`
}

// ConfigOption is an option of an agent's session. Value is a string for selects
// and a boolean for switches.
type ConfigOption struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	Category     string          `json:"category,omitempty"` // mode, model, thought_level, …
	Type         string          `json:"type,omitempty"`     // select, boolean
	CurrentValue json.RawMessage `json:"currentValue,omitempty"`
	Options      json.RawMessage `json:"options,omitempty"` // values, or groups of values
	Raw          json.RawMessage `json:"-"`
}

// Value is the current value of a select, else empty.
func (o ConfigOption) Value() string {
	var s string
	_ = json.Unmarshal(o.CurrentValue, &s)
	return s
}

// Choices are the values that a select offers, those in groups too.
func (o ConfigOption) Choices() []string {
	var out []string
	var read func(raw json.RawMessage)
	read = func(raw json.RawMessage) {
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil {
			return
		}
		for _, e := range list {
			var c struct {
				Value   string          `json:"value"`
				Options json.RawMessage `json:"options"`
			}
			if Decode(e, &c) != nil {
				continue
			}
			if c.Value != "" {
				out = append(out, c.Value)
			}
			read(c.Options)
		}
	}
	read(o.Options)
	return out
}

// ModelState is the older way to tell of models.
type ModelState struct {
	CurrentModelID  string `json:"currentModelId"`
	AvailableModels []struct {
		ModelID string `json:"modelId"`
		Name    string `json:"name"`
	} `json:"availableModels"`
}

// SessionResponse answers session/new, session/load and session/resume; only
// the first has a session id.
type SessionResponse struct {
	SessionID     string          `json:"sessionId,omitempty"`
	Modes         *ModeState      `json:"modes,omitempty"`
	ConfigOptions []ConfigOption  `json:"configOptions,omitempty"`
	Models        *ModelState     `json:"models,omitempty"`
	Raw           json.RawMessage `json:"-"`
}

// PromptRequest is a turn.
type PromptRequest struct {
	SessionID string          `json:"sessionId"`
	Prompt    []ContentBlock  `json:"prompt"`
	Meta      json.RawMessage `json:"_meta,omitempty"`
}

// Stop reasons of a turn.
const (
	StopEndTurn         = "end_turn"
	StopMaxTokens       = "max_tokens"
	StopMaxTurnRequests = "max_turn_requests"
	StopRefusal         = "refusal"
	StopCancelled       = "cancelled"
)

// TokenUsage of a turn, as some agents tell it (unstable).
type TokenUsage struct {
	TotalTokens       int64 `json:"totalTokens"`
	InputTokens       int64 `json:"inputTokens"`
	OutputTokens      int64 `json:"outputTokens"`
	CachedReadTokens  int64 `json:"cachedReadTokens"`
	CachedWriteTokens int64 `json:"cachedWriteTokens"`
	ThoughtTokens     int64 `json:"thoughtTokens"`
}

// PromptResponse ends a turn.
type PromptResponse struct {
	StopReason string          `json:"stopReason"`
	Usage      *TokenUsage     `json:"usage,omitempty"`
	Meta       json.RawMessage `json:"_meta,omitempty"`
	Raw        json.RawMessage `json:"-"`
}

// SessionRef is the parameters of session/cancel and session/close.
type SessionRef struct {
	SessionID string `json:"sessionId"`
}

// SetModeRequest sets the mode.
type SetModeRequest struct {
	SessionID string `json:"sessionId"`
	ModeID    string `json:"modeId"`
}

// SetModelRequest sets the model of agents that still take it.
type SetModelRequest struct {
	SessionID string `json:"sessionId"`
	ModelID   string `json:"modelId"`
}

// SetConfigOptionRequest sets an option; Value is a string or a boolean, and a
// boolean says so in Type.
type SetConfigOptionRequest struct {
	SessionID string `json:"sessionId"`
	ConfigID  string `json:"configId"`
	Type      string `json:"type,omitempty"`
	Value     any    `json:"value"`
}

// SetConfigOptionResponse has all options as they are now.
type SetConfigOptionResponse struct {
	ConfigOptions []ConfigOption  `json:"configOptions"`
	Raw           json.RawMessage `json:"-"`
}

// PermissionOption is one answer that the agent offers; choose by Kind.
type PermissionOption struct {
	OptionID string `json:"optionId"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`
}

// Kinds of permission options.
const (
	AllowOnce    = "allow_once"
	AllowAlways  = "allow_always"
	RejectOnce   = "reject_once"
	RejectAlways = "reject_always"
)

// PermissionRequest asks whether a tool call may run.
type PermissionRequest struct {
	SessionID string             `json:"sessionId"`
	ToolCall  ToolCall           `json:"toolCall"`
	Options   []PermissionOption `json:"options"`
	Raw       json.RawMessage    `json:"-"`
}

// Option is the first option of a kind.
func (r PermissionRequest) Option(kind string) (PermissionOption, bool) {
	for _, o := range r.Options {
		if o.Kind == kind {
			return o, true
		}
	}
	return PermissionOption{}, false
}

// PermissionOutcome is the answer: a chosen option, or cancelled.
type PermissionOutcome struct {
	Outcome  string `json:"outcome"` // selected, cancelled
	OptionID string `json:"optionId,omitempty"`
}

// PermissionResponse wraps the outcome.
type PermissionResponse struct {
	Outcome PermissionOutcome `json:"outcome"`
}

// Selected answers with an option.
func Selected(optionID string) PermissionResponse {
	return PermissionResponse{PermissionOutcome{Outcome: "selected", OptionID: optionID}}
}

// Cancelled answers that nobody will choose any more.
func Cancelled() PermissionResponse {
	return PermissionResponse{PermissionOutcome{Outcome: "cancelled"}}
}

// SessionNotification is the parameters of session/update. Update is JSON text
// for [ParseUpdate].
type SessionNotification struct {
	SessionID string          `json:"sessionId"`
	Update    json.RawMessage `json:"update"`
	Meta      json.RawMessage `json:"_meta,omitempty"`
}

// ElicitationRequest asks a person for values. It belongs to a session, or to a request of
// the client's when SessionID is empty.
type ElicitationRequest struct {
	SessionID  string          `json:"sessionId"`
	ToolCallID string          `json:"toolCallId,omitempty"`
	Mode       string          `json:"mode"` // form, url, or one to come
	Message    string          `json:"message"`
	Schema     json.RawMessage `json:"requestedSchema,omitempty"` // of a form, JSON text
}

// ElicitationForm is the mode that asks by a form.
const ElicitationForm = "form"

// ElicitationResponse answers it. Content is there with accept only.
type ElicitationResponse struct {
	Action  string          `json:"action"`
	Content json.RawMessage `json:"content,omitempty"`
}

// Actions of an elicitation's answer.
const (
	ElicitAccept  = "accept"
	ElicitDecline = "decline"
	ElicitCancel  = "cancel"
)
