package acp

import (
	"encoding/json"
	"errors"
	"reflect"
)

// Kinds of update (the field sessionUpdate).
const (
	UpdateUserMessage      = "user_message_chunk"
	UpdateAgentMessage     = "agent_message_chunk"
	UpdateAgentThought     = "agent_thought_chunk"
	UpdateToolCall         = "tool_call"
	UpdateToolCallUpdate   = "tool_call_update"
	UpdatePlan             = "plan"
	UpdateCommands         = "available_commands_update"
	UpdateMode             = "current_mode_update"
	UpdateConfig           = "config_option_update"
	UpdateSessionInfo      = "session_info_update"
	UpdateUsage            = "usage_update"
	UpdateNotice           = "notice"
	UpdateCompaction       = "compaction_update"
	UpdateCompactionReport = "compaction_summary_chunk"
)

// ContentBlock is a piece of a message or of a tool's output. Type says which
// fields hold: text, image, audio, resource_link, resource.
type ContentBlock struct {
	Type     string          `json:"type"`
	Text     string          `json:"text,omitempty"`
	Data     string          `json:"data,omitempty"` // base64
	MimeType string          `json:"mimeType,omitempty"`
	URI      string          `json:"uri,omitempty"`
	Name     string          `json:"name,omitempty"`
	Title    string          `json:"title,omitempty"`
	Resource json.RawMessage `json:"resource,omitempty"` // {uri, mimeType?, text | blob}
	Raw      json.RawMessage `json:"-"`
}

// MarshalJSON writes text even when it is empty, as the protocol wants it.
func (b ContentBlock) MarshalJSON() ([]byte, error) {
	if b.Type == "text" {
		return marshal(struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}{b.Type, b.Text})
	}
	type plain ContentBlock
	return marshal(plain(b))
}

// TextBlock makes a text block.
func TextBlock(text string) ContentBlock { return ContentBlock{Type: "text", Text: text} }

// Chunk is a piece of a message. Chunks of the same MessageID are one message;
// without ids a message ends where something else begins.
type Chunk struct {
	MessageID string       `json:"messageId,omitempty"`
	Content   ContentBlock `json:"content"`
}

// Tool call states.
const (
	ToolPending    = "pending"
	ToolInProgress = "in_progress"
	ToolCompleted  = "completed"
	ToolFailed     = "failed"
)

// ToolContent is one piece of what a tool call shows: content, diff or terminal.
type ToolContent struct {
	Type       string          `json:"type"`
	Content    *ContentBlock   `json:"content,omitempty"`
	Path       string          `json:"path,omitempty"`
	OldText    *string         `json:"oldText,omitempty"`
	NewText    string          `json:"newText,omitempty"`
	TerminalID string          `json:"terminalId,omitempty"`
	Raw        json.RawMessage `json:"-"`
}

// ToolCall is an upsert by ToolCallID: both tool_call and tool_call_update, in
// whichever order they come. A nil field was not told and leaves what was known.
type ToolCall struct {
	ToolCallID string          `json:"toolCallId"`
	Name       *string         `json:"name,omitempty"`
	Title      *string         `json:"title,omitempty"`
	Kind       *string         `json:"kind,omitempty"`
	Status     *string         `json:"status,omitempty"`
	Content    json.RawMessage `json:"content,omitempty"`   // list of [ToolContent]
	Locations  json.RawMessage `json:"locations,omitempty"` // list of {path, line?}
	RawInput   json.RawMessage `json:"rawInput,omitempty"`
	RawOutput  json.RawMessage `json:"rawOutput,omitempty"`
	Meta       json.RawMessage `json:"_meta,omitempty"`
	Raw        json.RawMessage `json:"-"`
}

// Merge takes over what the update tells.
func (t *ToolCall) Merge(u ToolCall) {
	t.ToolCallID = u.ToolCallID
	for _, f := range []struct{ old, new **string }{{&t.Name, &u.Name}, {&t.Title, &u.Title}, {&t.Kind, &u.Kind}, {&t.Status, &u.Status}} {
		if *f.new != nil {
			*f.old = *f.new
		}
	}
	for _, f := range []struct{ old, new *json.RawMessage }{
		{&t.Content, &u.Content}, {&t.Locations, &u.Locations}, {&t.RawInput, &u.RawInput}, {&t.RawOutput, &u.RawOutput}, {&t.Meta, &u.Meta},
	} {
		if *f.new != nil {
			*f.old = *f.new
		}
	}
	t.Raw = u.Raw
}

// Contents decodes Content.
func (t ToolCall) Contents() []ToolContent {
	var c struct {
		Content []ToolContent `json:"content"`
	}
	raw, err := marshal(map[string]json.RawMessage{"content": t.Content})
	if err != nil || Decode(raw, &c) != nil {
		return nil
	}
	return c.Content
}

// Plan is the whole plan; each replaces the former one.
type Plan struct {
	Entries json.RawMessage `json:"entries"` // list of {content, priority, status}
}

// Usage is the state of the agent's context.
type Usage struct {
	Used *int64 `json:"used,omitempty"` // tokens
	Size *int64 `json:"size,omitempty"` // tokens
	Cost *Cost  `json:"cost,omitempty"`
}

// Cost is money as the agent counts it.
type Cost struct {
	Amount   json.Number `json:"amount"`
	Currency string      `json:"currency"`
}

// Commands are the agent's own commands.
type Commands struct {
	AvailableCommands json.RawMessage `json:"availableCommands"`
}

// ModeUpdate tells the mode in force.
type ModeUpdate struct {
	CurrentModeID string `json:"currentModeId"`
}

// ConfigUpdate has all options as they are now.
type ConfigUpdate struct {
	ConfigOptions []ConfigOption `json:"configOptions"`
}

// SessionInfo tells of the agent's session; nil is not told.
type SessionInfo struct {
	Title     *string `json:"title,omitempty"`
	UpdatedAt *string `json:"updatedAt,omitempty"`
}

// Update is one session update. At most one of the pointers is set, by Kind;
// for a kind unknown here none is, and Raw has it all.
type Update struct {
	Kind     string
	Raw      json.RawMessage
	Cut      *Cut // the update is a stand-in of a longer one
	Chunk    *Chunk
	Tool     *ToolCall
	Plan     *Plan
	Usage    *Usage
	Commands *Commands
	Mode     *ModeUpdate
	Config   *ConfigUpdate
	Info     *SessionInfo
}

// ParseUpdate decodes the `update` of a session/update. The error is text that
// is no JSON object or has no kind; whatever else does not fit is left out.
func ParseUpdate(raw json.RawMessage) (Update, error) {
	var (
		m    map[string]json.RawMessage
		head struct {
			Kind string          `json:"sessionUpdate"`
			Cut  json.RawMessage `json:"_hearthCut"`
		}
	)
	if json.Unmarshal(raw, &m) != nil || m == nil {
		return Update{Raw: raw}, errors.New("the update is not a JSON object")
	}
	fill(m, raw, reflect.ValueOf(&head).Elem())
	u := Update{Kind: head.Kind, Raw: raw}
	if head.Kind == "" {
		return u, errors.New("the update has no kind")
	}
	if head.Cut != nil {
		u.Cut = &Cut{}
		_ = json.Unmarshal(head.Cut, u.Cut)
	}
	var dst any
	switch head.Kind {
	case UpdateUserMessage, UpdateAgentMessage, UpdateAgentThought:
		u.Chunk = &Chunk{}
		dst = u.Chunk
	case UpdateToolCall, UpdateToolCallUpdate:
		u.Tool = &ToolCall{}
		dst = u.Tool
	case UpdatePlan:
		u.Plan = &Plan{}
		dst = u.Plan
	case UpdateUsage:
		u.Usage = &Usage{}
		dst = u.Usage
	case UpdateCommands:
		u.Commands = &Commands{}
		dst = u.Commands
	case UpdateMode:
		u.Mode = &ModeUpdate{}
		dst = u.Mode
	case UpdateConfig:
		u.Config = &ConfigUpdate{}
		dst = u.Config
	case UpdateSessionInfo:
		u.Info = &SessionInfo{}
		dst = u.Info
	default:
		return u, nil
	}
	fill(m, raw, reflect.ValueOf(dst).Elem())
	return u, nil
}
