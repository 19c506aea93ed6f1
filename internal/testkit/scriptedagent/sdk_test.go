package scriptedagent_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	acp "github.com/coder/acp-go-sdk"

	"github.com/hearthd/hearth/internal/testkit/scriptedagent"
)

// sdkClient is a client made with another implementation of the protocol.
type sdkClient struct {
	acp.Client // of the rest nothing is called

	mu    sync.Mutex
	text  string
	kinds map[string]int
}

func (c *sdkClient) SessionUpdate(_ context.Context, n acp.SessionNotification) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := n.Update
	switch {
	case u.AgentMessageChunk != nil:
		c.kinds["text"]++
		c.text += u.AgentMessageChunk.Content.Text.Text
	case u.AgentThoughtChunk != nil:
		c.kinds["thought"]++
	case u.Plan != nil:
		c.kinds["plan"]++
	case u.ToolCall != nil:
		c.kinds["tool"]++
	case u.ToolCallUpdate != nil:
		c.kinds["tool update"]++
	case u.UserMessageChunk != nil:
		c.kinds["user"]++
	}
	return nil
}

func (c *sdkClient) RequestPermission(_ context.Context, q acp.RequestPermissionRequest) (acp.RequestPermissionResponse, error) {
	for _, o := range q.Options {
		if o.Kind == acp.PermissionOptionKindAllowOnce {
			return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeSelected(o.OptionId)}, nil
		}
	}
	return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeCancelled()}, nil
}

// An implementation that is neither ours nor this package's understands the agent.
func TestWithAnotherImplementation(t *testing.T) {
	t.Parallel()
	agentIn, clientOut := io.Pipe()
	clientIn, agentOut := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := scriptedagent.Run(t.Context(), scriptedagent.Options{In: agentIn, Out: agentOut, Home: t.TempDir(), Mode: "ask"}); err != nil {
			t.Error(err)
		}
		_ = agentOut.Close()
	})
	defer wg.Wait()
	defer func() { _ = clientOut.Close() }()

	c := &sdkClient{kinds: map[string]int{}}
	conn := acp.NewClientSideConnection(c, clientOut, clientIn)
	ctx := t.Context()
	if _, err := conn.Initialize(ctx, acp.InitializeRequest{ProtocolVersion: acp.ProtocolVersionNumber}); err != nil {
		t.Fatal(err)
	}
	s, err := conn.NewSession(ctx, acp.NewSessionRequest{Cwd: t.TempDir(), McpServers: []acp.McpServer{}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Modes == nil || s.Modes.CurrentModeId != "ask" || len(s.ConfigOptions) != 2 {
		t.Errorf("new session %+v", s)
	}
	p, err := conn.Prompt(ctx, acp.PromptRequest{SessionId: s.SessionId, Prompt: []acp.ContentBlock{
		acp.TextBlock("@@think hm@@ @@plan a; b@@ @@write x.txt y@@ @@run cat x.txt@@ @@say Done.@@"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if p.StopReason != acp.StopReasonEndTurn {
		t.Errorf("stop %q", p.StopReason)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !strings.HasPrefix(c.text, "Done.") || c.kinds["tool"] != 2 || c.kinds["tool update"] != 4 || c.kinds["plan"] != 3 || c.kinds["thought"] != 1 {
		t.Errorf("text %q, kinds %v", c.text, c.kinds)
	}
}
