// Package acp speaks the Agent Client Protocol, wire version 1, on either side:
// newline-delimited JSON-RPC 2.0 ([Conn]) and the protocol's types, decoded
// tolerantly ([Decode]).
//
// It starts no process and keeps no session. It is made for peers that are
// foreign programs: one reader hands over everything in order and stops reading
// while its handler runs, so that nothing is ever dropped; lines of any length
// pass; what is not JSON-RPC is counted and sampled; the JSON text of each
// message is kept beside what was decoded. Start at [Conn]; [Client] has the
// calls of a client, [Spawn] is for whoever answers calls.
//
// Source: agentclientprotocol.com, schema version 1.
package acp

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ProtocolVersion is the wire version spoken here.
const ProtocolVersion = 1

// Methods and notifications of the protocol.
const (
	MethodInitialize        = "initialize"
	MethodAuthenticate      = "authenticate"
	MethodSessionNew        = "session/new"
	MethodSessionLoad       = "session/load"
	MethodSessionResume     = "session/resume"
	MethodSessionList       = "session/list"
	MethodSessionClose      = "session/close"
	MethodSessionPrompt     = "session/prompt"
	MethodSessionCancel     = "session/cancel" // notification
	MethodSetMode           = "session/set_mode"
	MethodSetConfigOption   = "session/set_config_option"
	MethodSetModel          = "session/set_model" // removed from the protocol, still answered by some agents
	MethodSessionUpdate     = "session/update"    // notification
	MethodRequestPermission = "session/request_permission"
	MethodElicit            = "elicitation/create"
	MethodCancelRequest     = "$/cancel_request" // notification, both ways
)

// Error codes of JSON-RPC 2.0 (section 5.1) and of the protocol.
const (
	CodeParseError       = -32700
	CodeInvalidRequest   = -32600
	CodeMethodNotFound   = -32601
	CodeInvalidParams    = -32602
	CodeInternalError    = -32603
	CodeAuthRequired     = -32000
	CodeResourceNotFound = -32002
	CodeRequestCancelled = -32800
)

// RPCError is an error answer of the peer, or one to give.
type RPCError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error has the code, the message and what data says, shortened.
func (e *RPCError) Error() string {
	if len(e.Data) > 0 && string(e.Data) != "null" {
		return fmt.Sprintf("%s (%d): %.500s", e.Message, e.Code, e.Data)
	}
	return fmt.Sprintf("%s (%d)", e.Message, e.Code)
}

// Errorf makes an error answer.
func Errorf(code int, format string, args ...any) *RPCError {
	return &RPCError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// IsCode tells whether err is an answer of the peer with this code.
func IsCode(err error, code int) bool {
	var e *RPCError
	return errors.As(err, &e) && e.Code == code
}
