package acp

import (
	"context"
	"encoding/json"
	"fmt"
)

// Client makes the calls of a client over a connection. Every call ends with
// its context; session/prompt lasts as long as the turn.
type Client struct{ *Conn }

func ask[R any](ctx context.Context, c *Conn, method string, params any) (R, error) {
	return askThen[R](ctx, c, method, params, nil)
}

func askThen[R any](ctx context.Context, c *Conn, method string, params any, over func()) (R, error) {
	var r R
	var then func(json.RawMessage, error)
	if over != nil {
		then = func(json.RawMessage, error) { over() }
	}
	raw, err := c.CallThen(ctx, method, params, then)
	if err != nil {
		return r, err
	}
	if err := Decode(raw, &r); err != nil && string(raw) != "null" {
		return r, fmt.Errorf("the answer to %s: %w", method, err)
	}
	return r, nil
}

// Initialize opens the connection; it is the first call.
func (c Client) Initialize(ctx context.Context, r InitializeRequest) (InitializeResponse, error) {
	return ask[InitializeResponse](ctx, c.Conn, MethodInitialize, r)
}

// Authenticate by one of the agent's methods.
func (c Client) Authenticate(ctx context.Context, r AuthenticateRequest) error {
	_, err := c.Call(ctx, MethodAuthenticate, r)
	return err
}

// NewSession begins a session. Code [CodeAuthRequired] asks for Authenticate.
func (c Client) NewSession(ctx context.Context, r NewSessionRequest) (SessionResponse, error) {
	if r.MCPServers == nil {
		r.MCPServers = []json.RawMessage{}
	}
	return ask[SessionResponse](ctx, c.Conn, MethodSessionNew, r)
}

// LoadSession goes on with a session; its history comes as updates, usually
// before the answer.
func (c Client) LoadSession(ctx context.Context, r LoadSessionRequest) (SessionResponse, error) {
	if r.MCPServers == nil {
		r.MCPServers = []json.RawMessage{}
	}
	return ask[SessionResponse](ctx, c.Conn, MethodSessionLoad, r)
}

// ResumeSession goes on with a session without its history.
func (c Client) ResumeSession(ctx context.Context, r LoadSessionRequest) (SessionResponse, error) {
	if r.MCPServers == nil {
		r.MCPServers = []json.RawMessage{}
	}
	return ask[SessionResponse](ctx, c.Conn, MethodSessionResume, r)
}

// CloseSession frees a session in the agent; it can be loaded again.
func (c Client) CloseSession(ctx context.Context, sessionID string) error {
	_, err := c.Call(ctx, MethodSessionClose, SessionRef{sessionID})
	return err
}

// Prompt runs a turn. Whatever the agent sent before its end was handled when
// Prompt returns.
func (c Client) Prompt(ctx context.Context, r PromptRequest) (PromptResponse, error) {
	return c.PromptThen(ctx, r, nil)
}

// PromptThen is Prompt with a function that is called at its end, before anything that the
// agent sent behind the answer is handled. It must not wait; see [Conn.CallThen].
func (c Client) PromptThen(ctx context.Context, r PromptRequest, over func()) (PromptResponse, error) {
	if r.Prompt == nil {
		r.Prompt = []ContentBlock{}
	}
	return askThen[PromptResponse](ctx, c.Conn, MethodSessionPrompt, r, over)
}

// Cancel asks the agent to end the turn; the prompt's answer tells when it did.
func (c Client) Cancel(sessionID string) error {
	return c.Notify(MethodSessionCancel, SessionRef{sessionID})
}

// SetMode sets the mode.
func (c Client) SetMode(ctx context.Context, sessionID, modeID string) error {
	_, err := c.Call(ctx, MethodSetMode, SetModeRequest{sessionID, modeID})
	return err
}

// SetModel sets the model of agents that have no option for it.
func (c Client) SetModel(ctx context.Context, sessionID, modelID string) error {
	_, err := c.Call(ctx, MethodSetModel, SetModelRequest{sessionID, modelID})
	return err
}

// SetConfigOption sets an option and returns all of them.
func (c Client) SetConfigOption(ctx context.Context, r SetConfigOptionRequest) (SetConfigOptionResponse, error) {
	return ask[SetConfigOptionResponse](ctx, c.Conn, MethodSetConfigOption, r)
}
