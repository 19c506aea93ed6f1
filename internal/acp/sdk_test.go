package acp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/hearthd/hearth/internal/acp"
)

// sdkAgent is an agent on an independent implementation of the protocol.
type sdkAgent struct {
	conn     *sdk.AgentSideConnection
	canceled chan struct{}
	gone     chan struct{}
}

func (a *sdkAgent) Authenticate(context.Context, sdk.AuthenticateRequest) (sdk.AuthenticateResponse, error) {
	return sdk.AuthenticateResponse{}, nil
}

func (a *sdkAgent) Initialize(_ context.Context, r sdk.InitializeRequest) (sdk.InitializeResponse, error) {
	if r.ClientCapabilities.Terminal || r.ClientCapabilities.Fs.ReadTextFile {
		return sdk.InitializeResponse{}, errors.New("too much is offered")
	}
	return sdk.InitializeResponse{ProtocolVersion: r.ProtocolVersion, AgentCapabilities: sdk.AgentCapabilities{LoadSession: true}}, nil
}

func (a *sdkAgent) Cancel(context.Context, sdk.CancelNotification) error {
	close(a.canceled)
	return nil
}

func (a *sdkAgent) NewSession(_ context.Context, r sdk.NewSessionRequest) (sdk.NewSessionResponse, error) {
	if r.McpServers == nil || r.Cwd != "/workspace/repo" {
		return sdk.NewSessionResponse{}, sdk.NewInvalidParams(nil)
	}
	return sdk.NewSessionResponse{SessionId: "s1", Modes: &sdk.SessionModeState{CurrentModeId: "ask", AvailableModes: []sdk.SessionMode{{Id: "ask", Name: "Ask"}, {Id: "yolo", Name: "All"}}}}, nil
}

func (a *sdkAgent) SetSessionMode(_ context.Context, r sdk.SetSessionModeRequest) (sdk.SetSessionModeResponse, error) {
	if r.ModeId != "yolo" {
		return sdk.SetSessionModeResponse{}, sdk.NewInvalidParams(nil)
	}
	return sdk.SetSessionModeResponse{}, nil
}

func (a *sdkAgent) SetSessionConfigOption(context.Context, sdk.SetSessionConfigOptionRequest) (sdk.SetSessionConfigOptionResponse, error) {
	return sdk.SetSessionConfigOptionResponse{}, nil
}

func (a *sdkAgent) ListSessions(context.Context, sdk.ListSessionsRequest) (sdk.ListSessionsResponse, error) {
	return sdk.ListSessionsResponse{}, nil
}

func (a *sdkAgent) CloseSession(context.Context, sdk.CloseSessionRequest) (sdk.CloseSessionResponse, error) {
	return sdk.CloseSessionResponse{}, nil
}

func (a *sdkAgent) ResumeSession(context.Context, sdk.ResumeSessionRequest) (sdk.ResumeSessionResponse, error) {
	return sdk.ResumeSessionResponse{}, nil
}

func (a *sdkAgent) LoadSession(ctx context.Context, r sdk.LoadSessionRequest) (sdk.LoadSessionResponse, error) {
	for i := range 3000 {
		if err := a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: r.SessionId, Update: sdk.UpdateAgentMessageText(fmt.Sprint(i))}); err != nil {
			return sdk.LoadSessionResponse{}, err
		}
	}
	return sdk.LoadSessionResponse{}, nil
}

func (a *sdkAgent) Prompt(ctx context.Context, r sdk.PromptRequest) (sdk.PromptResponse, error) {
	text := r.Prompt[0].Text.Text
	say := func(u sdk.SessionUpdate) {
		_ = a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: r.SessionId, Update: u})
	}
	switch text {
	case "edit":
		say(sdk.StartToolCall("c1", "Edit", sdk.WithStartKind(sdk.ToolKindEdit), sdk.WithStartStatus(sdk.ToolCallStatusPending)))
		p, err := a.conn.RequestPermission(ctx, sdk.RequestPermissionRequest{
			SessionId: r.SessionId, ToolCall: sdk.ToolCallUpdate{ToolCallId: "c1"},
			Options: []sdk.PermissionOption{{OptionId: "no", Name: "No", Kind: sdk.PermissionOptionKindRejectOnce}, {OptionId: "yes", Name: "Yes", Kind: sdk.PermissionOptionKindAllowOnce}},
		})
		if err != nil || p.Outcome.Selected == nil || p.Outcome.Selected.OptionId != "yes" {
			return sdk.PromptResponse{}, fmt.Errorf("permission: %w", err)
		}
		if _, err := a.conn.WriteTextFile(ctx, sdk.WriteTextFileRequest{SessionId: r.SessionId, Path: "/x", Content: "y"}); err == nil {
			return sdk.PromptResponse{}, errors.New("a file was written that nobody offered to write")
		}
		say(sdk.UpdateToolCall("c1", sdk.WithUpdateStatus(sdk.ToolCallStatusCompleted), sdk.WithUpdateContent([]sdk.ToolCallContent{sdk.ToolDiffContent("/x", "y")})))
		return sdk.PromptResponse{StopReason: sdk.StopReasonEndTurn}, nil
	case "wait for cancel":
		<-a.canceled
		return sdk.PromptResponse{StopReason: sdk.StopReasonCancelled}, nil
	case "wait for nobody":
		<-ctx.Done()
		close(a.gone)
		return sdk.PromptResponse{}, ctx.Err()
	case "ask for ever":
		c, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err := a.conn.RequestPermission(c, sdk.RequestPermissionRequest{SessionId: r.SessionId, ToolCall: sdk.ToolCallUpdate{ToolCallId: "c2"}, Options: []sdk.PermissionOption{}})
		if err == nil {
			return sdk.PromptResponse{}, errors.New("an answer")
		}
		return sdk.PromptResponse{StopReason: sdk.StopReasonRefusal}, nil
	}
	return sdk.PromptResponse{}, sdk.NewInvalidParams(text)
}

func TestAgainstAnotherImplementation(t *testing.T) {
	t.Parallel()
	inR, inW := io.Pipe()   // agent → client
	outR, outW := io.Pipe() // client → agent
	agent := &sdkAgent{canceled: make(chan struct{}), gone: make(chan struct{})}
	agent.conn = sdk.NewAgentSideConnection(agent, inW, outR)

	var (
		kinds     []string
		texts     int
		withdrawn = make(chan struct{})
	)
	conn := acp.NewConn(inR, outW, acp.Handlers{
		Notification: func(_ context.Context, n acp.Notification) {
			var s acp.SessionNotification
			if err := acp.Decode(n.Params, &s); err != nil {
				t.Error(err)
			}
			u, err := acp.ParseUpdate(s.Update)
			if err != nil {
				t.Error(err)
			}
			if u.Chunk != nil {
				texts++
				return
			}
			kinds = append(kinds, u.Kind+" "+*u.Tool.Status)
		},
		Requests: map[string]func(context.Context, *acp.Request){
			acp.MethodRequestPermission: func(ctx context.Context, r *acp.Request) {
				var p acp.PermissionRequest
				if err := acp.Decode(r.Params, &p); err != nil {
					t.Error(err)
				}
				o, ok := p.Option(acp.AllowOnce)
				if !ok {
					context.AfterFunc(ctx, func() {
						close(withdrawn)
						_ = r.Fail(acp.Errorf(acp.CodeRequestCancelled, "withdrawn"))
					})
					return
				}
				_ = r.Reply(acp.Selected(o.OptionID))
			},
		},
	}, acp.Options{})
	ended := make(chan error, 1)
	go func() { ended <- conn.Run(t.Context()) }()
	c := acp.Client{Conn: conn}

	init, err := c.Initialize(t.Context(), acp.InitializeRequest{ProtocolVersion: acp.ProtocolVersion, ClientInfo: &acp.Implementation{Name: "hearth", Version: "1"}})
	if err != nil || init.ProtocolVersion != 1 || !init.AgentCapabilities.LoadSession {
		t.Fatalf("%+v %v", init, err)
	}
	s, err := c.NewSession(t.Context(), acp.NewSessionRequest{CWD: "/workspace/repo"})
	if err != nil || s.SessionID != "s1" || s.Modes == nil || len(s.Modes.AvailableModes) != 2 {
		t.Fatalf("%+v %v", s, err)
	}
	if err := c.SetMode(t.Context(), "s1", "yolo"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetMode(t.Context(), "s1", "nonsense"); !acp.IsCode(err, acp.CodeInvalidParams) {
		t.Errorf("%v", err)
	}
	prompt := func(ctx context.Context, text string) (string, error) {
		r, err := c.Prompt(ctx, acp.PromptRequest{SessionID: "s1", Prompt: []acp.ContentBlock{acp.TextBlock(text)}})
		return r.StopReason, err
	}
	if stop, err := prompt(t.Context(), "edit"); stop != acp.StopEndTurn || err != nil {
		t.Errorf("edit: %s %v", stop, err)
	}
	if d := cmp.Diff([]string{"tool_call pending", "tool_call_update completed"}, kinds); d != "" {
		t.Error(d)
	}
	if _, err := c.LoadSession(t.Context(), acp.LoadSessionRequest{SessionID: "s1", CWD: "/workspace/repo"}); err != nil || texts != 3000 {
		t.Errorf("load: %d updates, %v", texts, err)
	}
	if stop, err := prompt(t.Context(), "ask for ever"); stop != acp.StopRefusal || err != nil {
		t.Errorf("ask: %s %v", stop, err)
	}
	within(t, withdrawn, "the withdrawal of the question")
	go func() { _ = c.Cancel("s1") }()
	if stop, err := prompt(t.Context(), "wait for cancel"); stop != acp.StopCancelled || err != nil {
		t.Errorf("cancel: %s %v", stop, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := prompt(ctx, "wait for nobody"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timeout: %v", err)
	}
	within(t, agent.gone, "the agent hearing of it")
	_ = inW.Close()
	_ = outR.Close()
	if err := within(t, ended, "the end"); !errors.Is(err, acp.ErrEOF) && !errors.Is(err, acp.ErrClosed) {
		t.Error(err)
	}
}

// TestServing: our agent side, driven by another implementation's client.
func TestServing(t *testing.T) {
	t.Parallel()
	aR, aW := io.Pipe()
	bR, bW := io.Pipe()
	var agent *acp.Conn
	agent = acp.NewConn(aR, bW, acp.Handlers{Requests: map[string]func(context.Context, *acp.Request){
		acp.MethodInitialize: acp.Handle(func(_ context.Context, r acp.InitializeRequest) (acp.InitializeResponse, error) {
			return acp.InitializeResponse{ProtocolVersion: r.ProtocolVersion, AgentInfo: &acp.Implementation{Name: "h", Version: "1"}}, nil
		}),
		acp.MethodSessionNew: acp.Handle(func(context.Context, acp.NewSessionRequest) (acp.SessionResponse, error) {
			return acp.SessionResponse{}, acp.Errorf(acp.CodeAuthRequired, "log in")
		}),
		acp.MethodSessionPrompt: acp.Handle(func(_ context.Context, r acp.PromptRequest) (acp.PromptResponse, error) {
			err := agent.Update(r.SessionID, map[string]any{"sessionUpdate": acp.UpdateAgentMessage, "content": acp.TextBlock("you said " + r.Prompt[0].Text)})
			return acp.PromptResponse{StopReason: acp.StopEndTurn}, err
		}),
	}}, acp.Options{})
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(t.Context()) }()
	cl := &sdkClient{}
	peer := sdk.NewClientSideConnection(cl, aW, bR)
	if r, err := peer.Initialize(t.Context(), sdk.InitializeRequest{ProtocolVersion: 1}); err != nil || r.ProtocolVersion != 1 {
		t.Fatal(r, err)
	}
	_, err := peer.NewSession(t.Context(), sdk.NewSessionRequest{Cwd: "/x", McpServers: []sdk.McpServer{}})
	if e := (*sdk.RequestError)(nil); !errors.As(err, &e) || e.Code != acp.CodeAuthRequired {
		t.Errorf("%v", err)
	}
	if r, err := peer.Prompt(t.Context(), sdk.PromptRequest{SessionId: "s", Prompt: []sdk.ContentBlock{sdk.TextBlock("hi")}}); err != nil || r.StopReason != sdk.StopReasonEndTurn {
		t.Error(r, err)
	}
	if cl.text != "you said hi" {
		t.Errorf("%q", cl.text)
	}
	_ = aW.Close()
	if err := within(t, ended, "the end"); !errors.Is(err, acp.ErrEOF) {
		t.Error(err)
	}
}

type sdkClient struct {
	sdk.Client
	text string
}

func (c *sdkClient) SessionUpdate(_ context.Context, n sdk.SessionNotification) error {
	if m := n.Update.AgentMessageChunk; m != nil {
		c.text += m.Content.Text.Text
	}
	return nil
}

func TestDecodeIsTolerant(t *testing.T) {
	t.Parallel()
	u, err := acp.ParseUpdate(json.RawMessage(`{"sessionUpdate":"tool_call","toolCallId":"c","title":7,"Title":"wrong case","kind":null,"status":"completed","content":[{"type":"content","content":{"type":"text","text":"a"}},"junk",{"type":"diff","path":"/x","oldText":null,"newText":"n"}],"locations":"x","extra":{}}`))
	if err != nil || u.Tool == nil {
		t.Fatal(err)
	}
	if u.Tool.Title != nil || u.Tool.Kind != nil || *u.Tool.Status != "completed" || u.Tool.ToolCallID != "c" {
		t.Errorf("%+v", u.Tool)
	}
	c := u.Tool.Contents()
	if len(c) != 2 || c[0].Content.Text != "a" || c[1].Path != "/x" || c[1].OldText != nil || c[1].NewText != "n" {
		t.Errorf("%+v", c)
	}
	var r acp.InitializeResponse
	if err := acp.Decode([]byte(`{"protocolVersion":1,"agentCapabilities":{"loadSession":"yes","sessionCapabilities":{"resume":{},"list":true,"fork":null}},"authMethods":[{"id":"a"},3]}`), &r); err != nil {
		t.Fatal(err)
	}
	if r.ProtocolVersion != 1 || r.AgentCapabilities.LoadSession || r.AgentCapabilities.SessionCapabilities.Resume == nil || r.AgentCapabilities.SessionCapabilities.List != nil ||
		r.AgentCapabilities.SessionCapabilities.Fork != nil || len(r.AuthMethods) != 1 || !strings.Contains(string(r.Raw), "loadSession") {
		t.Errorf("%+v", r)
	}
	for _, bad := range []string{``, `[]`, `"x"`, `{`, `null`} {
		if err := acp.Decode([]byte(bad), &r); err == nil {
			t.Errorf("%q was decoded", bad)
		}
	}
	var s acp.SessionResponse
	_ = acp.Decode([]byte(`{"configOptions":[{"id":"model","type":"select","currentValue":"a","options":[{"value":"a"},{"name":"group","options":[{"value":"b"}]}]},{"id":"fast","type":"boolean","currentValue":true}]}`), &s)
	if len(s.ConfigOptions) != 2 || s.ConfigOptions[0].Value() != "a" || s.ConfigOptions[1].Value() != "" {
		t.Errorf("%+v", s)
	}
	if d := cmp.Diff([]string{"a", "b"}, s.ConfigOptions[0].Choices()); d != "" {
		t.Error(d)
	}
	if u, err := acp.ParseUpdate(json.RawMessage(`{"sessionUpdate":"from_the_future","content":{}}`)); err != nil || u.Kind != "from_the_future" || u.Chunk != nil {
		t.Errorf("%+v %v", u, err)
	}
	if u, err := acp.ParseUpdate(json.RawMessage(`{"sessionUpdate":"plan","entries":[{"content":"a"}]}`)); err != nil || string(u.Plan.Entries) != `[{"content":"a"}]` {
		t.Errorf("%+v %v", u, err)
	}
}

func TestToolCallMerge(t *testing.T) {
	t.Parallel()
	parse := func(s string) acp.ToolCall {
		u, err := acp.ParseUpdate(json.RawMessage(s))
		if err != nil {
			t.Fatal(err)
		}
		return *u.Tool
	}
	var got acp.ToolCall
	got.Merge(parse(`{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"in_progress","rawInput":{"a":1}}`))
	got.Merge(parse(`{"sessionUpdate":"tool_call","toolCallId":"c","title":"T","content":[]}`))
	if *got.Status != "in_progress" || *got.Title != "T" || string(got.RawInput) != `{"a":1}` || string(got.Content) != "[]" {
		t.Errorf("%+v", got)
	}
}
