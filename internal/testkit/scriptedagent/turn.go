package scriptedagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/testkit/script"
)

func text(s string) object { return object{"type": "text", "text": s} }

func title(prompt string) string {
	words := strings.Fields(script.Strip(prompt))
	if len(words) == 0 {
		return "Scripted work"
	}
	return strings.Join(words[:min(len(words), 6)], " ")
}

// update sends one session/update without keeping it.
func (a *agent) update(s *session, u object) {
	a.wire.notify("session/update", object{"sessionId": s.id, "update": u})
}

// turn is one prompt at work.
type turn struct {
	a       *agent
	s       *session
	request json.RawMessage
	prompt  string // its text
	dirs    []script.Directive
	stop    string                // reason, when not end_turn
	in, out int                   // tokens, when the script tells them
	said    int                   // bytes of text
	late    func(context.Context) // runs once the prompt is answered
	message string                // id of the message that is being said
	seq     int
}

// errTurn ends a turn with a JSON-RPC error.
type errTurn struct{ Failure }

func (e errTurn) Error() string { return e.Message }

// errSilent ends a turn without an answer.
var errSilent = errors.New("no answer")

// prompt starts a turn; it is answered when the turn ends.
func (a *agent) prompt(ctx context.Context, m message) {
	var p struct {
		SessionID string `json:"sessionId"`
		Prompt    []struct {
			Type     string `json:"type"`
			Text     string `json:"text"`
			Resource struct {
				Text string `json:"text"`
			} `json:"resource"`
		} `json:"prompt"`
	}
	refuse := func(code int, format string, args ...any) { a.wire.answer(m.ID, nil, failure(code, format, args...)) }
	if err := json.Unmarshal(m.Params, &p); err != nil {
		refuse(codeInvalidParams, "Invalid params: %v", err)
		return
	}
	s := a.session(p.SessionID)
	if s == nil {
		refuse(codeNotFound, "Session not found: %s", p.SessionID)
		return
	}
	var words []string
	for _, b := range p.Prompt {
		if t := b.Text + b.Resource.Text; t != "" {
			words = append(words, t)
		}
	}
	if len(words) == 0 {
		refuse(codeInvalidParams, "The prompt has no text")
		return
	}
	whole := ctx
	ctx, stop := context.WithCancelCause(ctx)
	if !s.begin(string(m.ID), stop) {
		stop(nil)
		refuse(codeInvalidRequest, "A prompt is already at work in this session")
		return
	}
	t := &turn{a: a, s: s, request: m.ID, prompt: strings.Join(words, "\n")}
	now, _ := script.SplitQuoted(t.prompt)
	t.dirs = script.Parse(now)
	a.turns.Go(func() {
		defer stop(nil)
		t.run(ctx, whole)
	})
}

// run carries out the turn and answers it. whole outlives the turn.
func (t *turn) run(ctx, whole context.Context) {
	err := t.s.keep(record{User: t.prompt})
	if err == nil {
		err = t.follow(ctx)
	}
	if errors.Is(err, errSilent) {
		t.s.end()
		return
	}
	// A turn that obeys ends as it was told to, whatever it was doing.
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = cause
	}
	used := t.in + t.out
	if used == 0 {
		t.in, t.out = (len(t.prompt)+3)/4, (t.said+3)/4
		used = t.in + t.out
	}
	t.a.update(t.s, object{"sessionUpdate": "usage_update", "used": used, "size": 200_000})
	t.s.end()
	var own errTurn
	switch {
	case err == nil:
		if t.stop == "" {
			t.stop = "end_turn"
		}
		t.answer(t.stop)
	case errors.Is(err, errCanceled):
		t.answer("cancelled")
	case errors.Is(err, errRequestCanceled):
		t.a.wire.answer(t.request, nil, failure(codeRequestCanceled, "Request cancelled"))
	case errors.As(err, &own):
		t.a.wire.answer(t.request, nil, &own.Failure)
	default:
		t.a.wire.answer(t.request, nil, failure(codeInternal, "Internal error: %v", err))
	}
	if t.late != nil && whole.Err() == nil {
		t.late(whole)
	}
}

func (t *turn) answer(reason string) {
	t.a.wire.answer(t.request, object{
		"stopReason": reason,
		"usage": object{
			"inputTokens": t.in, "outputTokens": t.out, "cachedReadTokens": 0, "cachedWriteTokens": 0, "totalTokens": t.in + t.out,
		},
	}, nil)
}

// send sends an update and keeps it for a replay.
func (t *turn) send(u object) error {
	t.a.update(t.s, u)
	return t.s.keep(record{Update: u})
}

func (t *turn) chunk(kind, words string) error {
	u := object{"sessionUpdate": kind, "content": text(words)}
	if !t.a.opts.NoMessageIDs {
		if t.message == "" {
			t.message = "msg-" + t.a.opts.NewID()
		}
		u["messageId"] = t.message
	}
	t.said += len(words)
	return t.send(u)
}

// say streams a text in pieces, as a message of its own.
func (t *turn) say(kind, words string) error {
	t.message = ""
	r := []rune(words)
	for len(r) > 0 {
		n := min(len(r), 24)
		if err := t.chunk(kind, string(r[:n])); err != nil {
			return err
		}
		r = r[n:]
	}
	return nil
}

// actions carry out directives.
var actions map[string]func(*turn, context.Context, script.Directive) error

func init() {
	actions = map[string]func(*turn, context.Context, script.Directive) error{
		"say": func(t *turn, _ context.Context, d script.Directive) error {
			return t.say("agent_message_chunk", d.Args)
		},
		"think": func(t *turn, _ context.Context, d script.Directive) error {
			return t.say("agent_thought_chunk", d.Args)
		},
		"mark": func(*turn, context.Context, script.Directive) error { return nil },
		"recall": func(t *turn, _ context.Context, d script.Directive) error {
			return t.say("agent_message_chunk", t.recall(d.Args))
		},
		"plan": (*turn).plan, "write": (*turn).write, "run": (*turn).runCommand, "slow": (*turn).slow, "numbered": (*turn).numbered,
		"ask": (*turn).ask, "form": (*turn).form, "fields": (*turn).fields, "form-url": (*turn).formURL, "offered": (*turn).offered,
		"ask-many": (*turn).askMany, "ask-twice": (*turn).askTwice, "ask-withdraw": (*turn).askWithdraw, "ask-exit": (*turn).askExit, "late-ask": (*turn).lateAsk,
		"model": (*turn).model, "fetch": (*turn).fetch,
		"usage": func(t *turn, _ context.Context, d script.Directive) error {
			t.in, t.out = d.Int(0, 0), d.Int(1, 0)
			return nil
		},
		"flood": (*turn).flood, "rubbish": (*turn).rubbish, "bytes": (*turn).rawBytes, "line": (*turn).line, "stderr": (*turn).stderr,
		"exit": (*turn).exit, "kill": (*turn).kill, "hang": (*turn).hang, "ignore-cancel": (*turn).ignoreCancel,
		"orphan": (*turn).orphan, "unknown-update": (*turn).unknownUpdate, "unknown-request": (*turn).unknownRequest,
		"update-first": (*turn).updateFirst, "dangling": (*turn).dangling, "late": (*turn).lateUpdates, "late-text": (*turn).lateUpdates,
		"error": func(_ *turn, _ context.Context, d script.Directive) error {
			word, rest := d.Split()
			code := codeInternal
			if _, err := fmt.Sscan(word, &code); err != nil {
				rest = d.Args
			}
			return errTurn{Failure{code, rest}}
		},
		"stop": func(t *turn, _ context.Context, d script.Directive) error { t.stop = d.Args; return nil },
		"provider-failure": func(t *turn, _ context.Context, d script.Directive) error {
			return t.say("agent_message_chunk", "API Error: "+d.Args)
		},
	}
}

func (t *turn) follow(ctx context.Context) error {
	for _, d := range t.dirs {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		do, ok := actions[d.Name]
		if !ok {
			do = func(t *turn, _ context.Context, d script.Directive) error {
				return t.say("agent_message_chunk", "I do not know the directive "+d.Name+".")
			}
		}
		if err := do(t, ctx, d); err != nil {
			return err
		}
	}
	if len(t.dirs) == 0 {
		now, _ := script.SplitQuoted(t.prompt)
		if err := t.say("agent_message_chunk", "You asked: "+strings.Join(strings.Fields(now), " ")); err != nil {
			return err
		}
	}
	all := 0
	for _, u := range t.s.users() {
		all += len(script.Parse(u))
	}
	return t.say("agent_message_chunk", fmt.Sprintf("[directives seen: %d; earlier: %d]", all, all-len(t.dirs)))
}

func (t *turn) recall(word string) string {
	users := t.s.users()
	if word == "" {
		for _, u := range users {
			for _, d := range script.Parse(u) {
				if d.Name == "mark" {
					return "The marker is " + d.Args + "."
				}
			}
		}
		return "I see no marker in this conversation."
	}
	_, users[len(users)-1] = script.SplitQuoted(t.prompt)
	if strings.Contains(strings.Join(users, "\n"), word) {
		return "I remember " + word + "."
	}
	return "I do not remember " + word + "."
}

func (t *turn) plan(_ context.Context, d script.Directive) error {
	var entries []object
	for e := range strings.SplitSeq(d.Args, ";") {
		if e = strings.TrimSpace(e); e != "" {
			entries = append(entries, object{"content": e, "priority": "medium", "status": "pending"})
		}
	}
	show := func() error {
		copied := make([]any, 0, len(entries))
		for _, e := range entries {
			copied = append(copied, object{"content": e["content"], "priority": e["priority"], "status": e["status"]})
		}
		return t.send(object{"sessionUpdate": "plan", "entries": copied})
	}
	if err := show(); err != nil {
		return err
	}
	for _, e := range entries {
		e["status"] = "completed"
		if err := show(); err != nil {
			return err
		}
	}
	return nil
}

func (t *turn) slow(ctx context.Context, d script.Directive) error {
	n, pause := d.Int(0, 10), time.Duration(d.Int(1, 100))*time.Millisecond
	t.message = ""
	for i := range n {
		if err := t.a.opts.Wait(ctx, pause); err != nil {
			return err
		}
		if err := t.chunk("agent_message_chunk", fmt.Sprintf("Step %d of %d. ", i+1, n)); err != nil {
			return err
		}
	}
	return nil
}

// call opens a tool call and asks for it in the mode that asks. It returns the
// call's id, empty when the person refused.
func (t *turn) call(ctx context.Context, kind, name, what string, input object, content []any) (string, error) {
	t.message = ""
	t.seq++
	id := fmt.Sprintf("call-%s-%d", t.a.opts.NewID(), t.seq)
	u := object{
		"sessionUpdate": "tool_call", "toolCallId": id, "title": what, "kind": kind, "name": name,
		"status": "pending", "rawInput": input, "content": content,
	}
	if p, ok := input["path"]; ok {
		u["locations"] = []any{object{"path": p}}
	}
	if err := t.send(u); err != nil {
		return "", err
	}
	if t.s.currentMode() == "ask" {
		allowed, _, err := t.permission(ctx, id, what, kind, input)
		if err != nil {
			return "", err
		}
		if !allowed {
			return "", t.result(id, "failed", "The person said no.", nil)
		}
	}
	return id, t.send(object{"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "in_progress"})
}

func (t *turn) result(id, status, words string, raw any) error {
	u := object{"sessionUpdate": "tool_call_update", "toolCallId": id, "status": status}
	if words != "" {
		u["content"] = []any{object{"type": "content", "content": text(words)}}
	}
	if raw != nil {
		u["rawOutput"] = raw
	}
	return t.send(u)
}

func (t *turn) write(ctx context.Context, d script.Directive) error {
	name, words := d.Split()
	if name == "" {
		return t.say("agent_message_chunk", "A write directive needs a path and a text.")
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(t.s.cwd, name)
	}
	content := words + "\n"
	var old any
	if b, err := os.ReadFile(name); err == nil {
		old = string(b)
	}
	diff := []any{object{"type": "diff", "path": name, "oldText": old, "newText": content}}
	id, err := t.call(ctx, "edit", "write", "Write "+filepath.Base(name), object{"path": name, "content": content}, diff)
	if err != nil || id == "" {
		return err
	}
	err = os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(content), 0o644)
	}
	if err != nil {
		return t.result(id, "failed", err.Error(), nil)
	}
	return t.result(id, "completed", "", object{"written": len(content)})
}

// maxOutput bounds what a command's output brings into the conversation.
const maxOutput = 64 << 10

func (t *turn) runCommand(ctx context.Context, d script.Directive) error {
	id, err := t.call(ctx, "execute", "shell", d.Args, object{"command": d.Args}, []any{})
	if err != nil || id == "" {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", d.Args)
	cmd.Dir = t.s.cwd
	// The command has a process group of its own, as in real agents; a cancel
	// that is obeyed ends all of it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	w := &bounded{w: &out, left: maxOutput}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Run()
	code := 0
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		if err := t.result(id, "failed", out.String(), nil); err != nil {
			return err
		}
		return ctx.Err()
	case errors.As(err, &exit):
		if code = exit.ExitCode(); code < 0 {
			code = 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
		}
	case err != nil:
		return t.result(id, "failed", err.Error(), nil)
	}
	status := "completed"
	if code != 0 {
		status = "failed"
	}
	return t.result(id, status, strings.ToValidUTF8(out.String(), "\uFFFD"), object{"exitCode": code})
}

// bounded passes on the first bytes and swallows the rest.
type bounded struct {
	w    io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	if _, err := b.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// permission asks the client; the option's id is returned with the verdict.
func (t *turn) permission(ctx context.Context, id, what, kind string, input object) (allowed bool, option string, err error) {
	kinds := map[string]string{"yes": "allow_once", "always": "allow_always", "no": "reject_once"}
	m, err := t.a.wire.call(ctx, "session/request_permission", object{
		"sessionId": t.s.id,
		"toolCall":  object{"toolCallId": id, "title": what, "kind": kind, "status": "pending", "rawInput": input},
		"options": []any{
			object{"optionId": "yes", "name": "Allow", "kind": kinds["yes"]},
			object{"optionId": "always", "name": "Always allow", "kind": kinds["always"]},
			object{"optionId": "no", "name": "Reject", "kind": kinds["no"]},
		},
	})
	if err != nil {
		return false, "", err
	}
	var r struct {
		Outcome struct {
			Outcome  string `json:"outcome"`
			OptionID string `json:"optionId"`
		} `json:"outcome"`
	}
	switch {
	case m.Error != nil:
		return false, fmt.Sprintf("error %d", m.Error.Code), nil
	case json.Unmarshal(m.Result, &r) != nil:
		return false, "unreadable", nil
	case r.Outcome.Outcome == "cancelled":
		return false, "", errCanceled
	}
	return strings.HasPrefix(kinds[r.Outcome.OptionID], "allow"), r.Outcome.OptionID, nil
}

func (t *turn) ask(ctx context.Context, d script.Directive) error {
	t.message = ""
	t.seq++
	id := fmt.Sprintf("call-%s-%d", t.a.opts.NewID(), t.seq)
	if err := t.send(object{"sessionUpdate": "tool_call", "toolCallId": id, "title": d.Args, "kind": "other", "status": "pending", "rawInput": object{"what": d.Args}}); err != nil {
		return err
	}
	allowed, option, err := t.permission(ctx, id, d.Args, "other", object{"what": d.Args})
	if err != nil {
		_ = t.result(id, "failed", "", nil) // the turn ends with the first error
		return err
	}
	status, verdict := "failed", "Refused"
	if allowed {
		status, verdict = "completed", "Allowed"
	}
	if err := t.result(id, status, "", nil); err != nil {
		return err
	}
	return t.say("agent_message_chunk", fmt.Sprintf("%s: %s (%s).", verdict, d.Args, option))
}
