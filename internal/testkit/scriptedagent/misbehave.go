package scriptedagent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/testkit/script"
)

func (t *turn) flood(ctx context.Context, d script.Directive) error {
	n, size := d.Int(0, 1000), d.Int(1, 20)
	t.message = ""
	for i := range n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		words := fmt.Sprintf("Update %d. ", i+1)
		if pad := size - len(words); pad > 0 {
			words += strings.Repeat("x", pad)
		}
		if err := t.chunk("agent_message_chunk", words); err != nil {
			return err
		}
	}
	return nil
}

// rubbish writes lines that a JSON-RPC reader cannot use, of several kinds.
func (t *turn) rubbish(_ context.Context, d script.Directive) error {
	kinds := []string{
		"npm warn deprecated this is not JSON", "{\"jsonrpc\":\"2.0\",", "[1,2,3]", "null", "\"text\"",
		"\xff\xfe\x00 binary", "", "{}", "{\"jsonrpc\":\"2.0\",\"id\":987654,\"result\":{}}",
	}
	for i := range d.Int(0, len(kinds)) {
		t.a.wire.line([]byte(kinds[i%len(kinds)]))
	}
	return nil
}

func (t *turn) line(_ context.Context, d script.Directive) error {
	t.message = ""
	return t.chunk("agent_message_chunk", strings.Repeat("x", d.Int(0, 100<<20)))
}

func (t *turn) stderr(_ context.Context, d script.Directive) error {
	for i := range d.Int(0, 10) {
		if _, err := fmt.Fprintf(t.a.opts.Err, "scripted agent: noise %d \x1b[31mred\x1b[0m\n", i+1); err != nil {
			return fmt.Errorf("write to stderr: %w", err)
		}
	}
	return nil
}

func (t *turn) exit(_ context.Context, d script.Directive) error {
	t.a.opts.Exit(d.Int(0, 1))
	return errSilent
}

func (t *turn) kill(context.Context, script.Directive) error {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill this process: %w", err)
	}
	return errSilent
}

func (t *turn) hang(ctx context.Context, _ script.Directive) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (t *turn) ignoreCancel(context.Context, script.Directive) error {
	t.s.ignoreCancel()
	return nil
}

// orphan leaves a process behind that is in a session of its own, is no child of
// the agent and does not end on the usual signals.
func (t *turn) orphan(ctx context.Context, d script.Directive) error {
	seconds := strconv.Itoa(d.Int(0, 600))
	cmd := exec.CommandContext(ctx, "sh", "-c", "trap '' HUP INT TERM; sleep "+seconds+" </dev/null >/dev/null 2>&1 & echo $!")
	cmd.Dir = t.s.cwd
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("leave a process behind: %w", err)
	}
	return t.say("agent_message_chunk", "Left behind: pid "+strings.TrimSpace(string(out))+".")
}

func (t *turn) unknownUpdate(context.Context, script.Directive) error {
	t.message = ""
	for _, u := range []object{
		{"sessionUpdate": "scripted_surprise", "content": text("unknown kind"), "depth": 3},
		{"sessionUpdate": "agent_message_chunk", "content": object{"type": "hologram", "data": "unknown content"}},
		{
			"sessionUpdate": "tool_call", "toolCallId": "call-unknown", "title": "Unknown content", "kind": "levitate", "status": "completed",
			"content": []any{object{"type": "hologram", "data": "unknown tool content"}},
		},
	} {
		if err := t.send(u); err != nil {
			return err
		}
	}
	t.a.wire.notify("_scripted/status_update", object{"status": "unknown notification"})
	return nil
}

// unknownRequest sends requests that the client has not offered, and says how each
// was answered.
func (t *turn) unknownRequest(ctx context.Context, _ script.Directive) error {
	for _, q := range []struct {
		method string
		params object
	}{
		{"scripted/unknown", object{}},
		{"_scripted/unknown", object{}},
		{"fs/write_text_file", object{"sessionId": t.s.id, "path": t.s.cwd + "/unasked.txt", "content": "unasked"}},
		{"terminal/create", object{"sessionId": t.s.id, "command": "true"}},
	} {
		m, err := t.a.wire.call(ctx, q.method, q.params)
		if err != nil {
			return err
		}
		words := q.method + ": a result."
		if m.Error != nil {
			words = fmt.Sprintf("%s: error %d.", q.method, m.Error.Code)
		}
		if err := t.say("agent_message_chunk", words); err != nil {
			return err
		}
	}
	return nil
}

func (t *turn) updateFirst(context.Context, script.Directive) error {
	t.message = ""
	t.seq++
	return t.send(object{
		"sessionUpdate": "tool_call_update", "toolCallId": fmt.Sprintf("call-%s-%d", t.a.opts.NewID(), t.seq),
		"title": "Never announced", "kind": "read", "status": "completed",
		"content": []any{object{"type": "content", "content": text("came without a tool_call")}},
	})
}

func (t *turn) dangling(context.Context, script.Directive) error {
	t.message = ""
	t.seq++
	return t.send(object{
		"sessionUpdate": "tool_call", "toolCallId": fmt.Sprintf("call-%s-%d", t.a.opts.NewID(), t.seq),
		"title": "Never completed", "kind": "execute", "status": "in_progress", "rawInput": object{"command": "true"},
	})
}

func (t *turn) lateUpdates(_ context.Context, d script.Directive) error {
	n, pause := d.Int(0, 1), time.Duration(d.Int(1, 0))*time.Millisecond
	t.late = func(ctx context.Context) {
		for i := range n {
			if pause > 0 && t.a.opts.Wait(ctx, pause) != nil {
				return
			}
			if d.Name == "late-text" {
				t.a.update(t.s, object{"sessionUpdate": "agent_message_chunk", "content": text(fmt.Sprintf("Late %d of %d. ", i+1, n))})
				continue
			}
			t.a.update(t.s, object{"sessionUpdate": "session_info_update", "title": fmt.Sprintf("Late %d of %d", i+1, n)})
		}
	}
	return nil
}

// model asks the model at the base URL, by Anthropic's Messages API.
func (t *turn) model(ctx context.Context, d script.Directive) error {
	if t.a.opts.ModelURL == "" {
		return errTurn{*failure(codeInternal, "No model: set ANTHROPIC_BASE_URL")}
	}
	for {
		words, failed, err := t.askModel(ctx, "@@"+d.Args+"@@")
		switch {
		case err != nil:
			return err
		case failed == "":
			return t.say("agent_message_chunk", words)
		}
		switch t.a.opts.OnModelError {
		case ModelErrorEndTurn:
			return t.say("agent_message_chunk", failed)
		case ModelErrorRetry:
			if err := t.a.opts.Wait(ctx, time.Second); err != nil {
				return err
			}
		default:
			return errTurn{*failure(codeInternal, "%s", failed)}
		}
	}
}

// askModel returns the model's words, or what failed in the words of an agent.
func (t *turn) askModel(ctx context.Context, prompt string) (words, failed string, err error) {
	b, err := json.Marshal(object{"model": t.s.currentModel(), "max_tokens": 1000, "messages": []any{object{"role": "user", "content": prompt}}})
	if err != nil {
		return "", "", fmt.Errorf("encode the request: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(t.a.opts.ModelURL, "/")+"/v1/messages", bytes.NewReader(b))
	if err != nil {
		return "", "", fmt.Errorf("ask the model: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	r.Header.Set("X-Api-Key", t.a.opts.ModelKey)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		return "", "API Error: " + err.Error(), nil
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", "API Error: " + err.Error(), nil
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Sprintf("API Error: %d %s", resp.StatusCode, bytes.TrimSpace(body)), nil
	}
	var m struct {
		Content []struct{ Text string }
		Usage   struct {
			In  int `json:"input_tokens"`
			Out int `json:"output_tokens"`
		}
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return "", "API Error: the answer is no JSON", nil
	}
	t.in, t.out = t.in+m.Usage.In, t.out+m.Usage.Out
	for _, c := range m.Content {
		words += c.Text
	}
	return words, "", nil
}

func (t *turn) fetch(ctx context.Context, d script.Directive) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.Args, nil)
	if err != nil {
		return t.say("agent_message_chunk", "Fetch: "+err.Error())
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return t.say("agent_message_chunk", "Fetch: "+err.Error())
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 200))
	if err != nil {
		return t.say("agent_message_chunk", "Fetch: "+err.Error())
	}
	return t.say("agent_message_chunk", fmt.Sprintf("Fetch: %d %s", resp.StatusCode, strings.ToValidUTF8(string(b), "\uFFFD")))
}
