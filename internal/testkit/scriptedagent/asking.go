package scriptedagent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/testkit/script"
)

// permissionParams announces a tool call of its own and gives the parameters to ask about it.
func (t *turn) permissionParams(what string) (id string, params object, err error) {
	t.message = ""
	t.seq++
	id = fmt.Sprintf("call-%s-%d", t.a.opts.NewID(), t.seq)
	in := object{"what": what}
	err = t.send(object{"sessionUpdate": "tool_call", "toolCallId": id, "title": what, "kind": "other", "status": "pending", "rawInput": in})
	return id, object{
		"sessionId": t.s.id,
		"toolCall":  object{"toolCallId": id, "title": what, "kind": "other", "status": "pending", "rawInput": in},
		"options": []any{
			object{"optionId": "yes", "name": "Allow", "kind": "allow_once"},
			object{"optionId": "no", "name": "Reject", "kind": "reject_once"},
		},
	}, err
}

// outcome is what an answer to a permission request says.
func outcome(m message) string {
	var r struct {
		Outcome struct{ Outcome, OptionID string }
	}
	switch {
	case m.Error != nil:
		return fmt.Sprintf("error %d", m.Error.Code)
	case json.Unmarshal(m.Result, &r) != nil:
		return "unreadable"
	}
	return strings.TrimSpace(r.Outcome.Outcome + " " + r.Outcome.OptionID)
}

// await waits for one of several answers to come.
func (t *turn) await(ctx context.Context, c <-chan message) (message, error) {
	select {
	case m := <-c:
		return m, nil
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	case <-t.a.wire.closed:
		return message{}, errClientGone
	}
}

// askMany asks several things at once, and says the answers in the order of the questions.
func (t *turn) askMany(ctx context.Context, d script.Directive) error {
	_, title := d.Split()
	var calls []string
	var answers []<-chan message
	for i := range d.Int(0, 2) {
		id, params, err := t.permissionParams(fmt.Sprintf("%s %d", title, i+1))
		if err != nil {
			return err
		}
		_, c := t.a.wire.begin("", "session/request_permission", params)
		calls, answers = append(calls, id), append(answers, c)
	}
	var said []string
	for i, c := range answers {
		m, err := t.await(ctx, c)
		if err != nil {
			return err
		}
		words := outcome(m)
		status := "failed"
		if words == "selected yes" {
			status = "completed"
		}
		if err := t.result(calls[i], status, "", nil); err != nil {
			return err
		}
		said = append(said, fmt.Sprintf("%d %s", i+1, words))
	}
	return t.say("agent_message_chunk", "Answers: "+strings.Join(said, "; ")+".")
}

// askTwice sends two requests with one id, and says each answer when it comes.
func (t *turn) askTwice(ctx context.Context, d script.Directive) error {
	id, params, err := t.permissionParams(d.Args)
	if err != nil {
		return err
	}
	const same = `"twice"`
	answers := t.a.wire.expectAll(same)
	for range 2 {
		t.a.wire.send(object{"id": json.RawMessage(same), "method": "session/request_permission", "params": params})
	}
	for _, which := range []string{"First", "Second"} {
		m, err := t.await(ctx, answers)
		if err != nil {
			return err
		}
		if err := t.say("agent_message_chunk", which+" answer: "+outcome(m)+"."); err != nil {
			return err
		}
	}
	return t.result(id, "completed", "", nil)
}

// askWithdraw asks, takes it back after so many milliseconds, and says what came.
func (t *turn) askWithdraw(ctx context.Context, d script.Directive) error {
	_, title := d.Split()
	call, params, err := t.permissionParams(title)
	if err != nil {
		return err
	}
	id, c := t.a.wire.begin("", "session/request_permission", params)
	if err := t.a.opts.Wait(ctx, time.Duration(d.Int(0, 0))*time.Millisecond); err != nil {
		return err
	}
	t.a.wire.notify("$/cancel_request", object{"requestId": json.RawMessage(id)})
	m, err := t.await(ctx, c)
	if err != nil {
		return err
	}
	if err := t.result(call, "failed", "", nil); err != nil {
		return err
	}
	return t.say("agent_message_chunk", "Taken back: "+outcome(m)+".")
}

// askExit asks and ends the process so many milliseconds later, without waiting for the answer.
func (t *turn) askExit(ctx context.Context, d script.Directive) error {
	_, title := d.Split()
	_, params, err := t.permissionParams(title)
	if err != nil {
		return err
	}
	t.a.wire.begin("", "session/request_permission", params)
	if err := t.a.opts.Wait(ctx, time.Duration(d.Int(0, 0))*time.Millisecond); err != nil {
		return err
	}
	t.a.opts.Exit(3)
	return errSilent
}

// lateAsk asks once the prompt is answered; the answers go to standard error.
func (t *turn) lateAsk(_ context.Context, d script.Directive) error {
	t.late = func(ctx context.Context) {
		_, c := t.a.wire.begin("", "session/request_permission", object{
			"sessionId": t.s.id, "toolCall": object{"toolCallId": "late", "title": d.Args, "kind": "other"},
			"options": []any{object{"optionId": "yes", "name": "Allow", "kind": "allow_once"}},
		})
		m, err := t.await(ctx, c)
		if err != nil {
			return
		}
		f, err := t.a.wire.call(ctx, "elicitation/create", t.formParams(d.Args, plainSchema()))
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(t.a.opts.Err, "late ask: %s; form: %s\n", outcome(m), action(f))
	}
	return nil
}

func plainSchema() object {
	return object{
		"type": "object", "required": []string{"answer"},
		"properties": object{"answer": object{"type": "string", "title": "Answer"}},
	}
}

func (t *turn) formParams(words string, schema any) object {
	return object{"mode": "form", "sessionId": t.s.id, "message": words, "requestedSchema": schema}
}

// action is what an answer to a form says, its content as it came.
func action(m message) string {
	var r struct {
		Action  string
		Content json.RawMessage
	}
	switch {
	case m.Error != nil:
		return fmt.Sprintf("error %d", m.Error.Code)
	case json.Unmarshal(m.Result, &r) != nil:
		return "unreadable"
	}
	return strings.TrimSpace(r.Action + " " + string(r.Content))
}

func (t *turn) form(ctx context.Context, d script.Directive) error {
	return t.elicit(ctx, t.formParams(d.Args, plainSchema()))
}

// fields asks by a form with this schema.
func (t *turn) fields(ctx context.Context, d script.Directive) error {
	if !json.Valid([]byte(d.Args)) {
		return t.say("agent_message_chunk", "A fields directive needs a JSON schema.")
	}
	return t.elicit(ctx, t.formParams("Fill this in", json.RawMessage(d.Args)))
}

// formURL wants a page to be opened.
func (t *turn) formURL(ctx context.Context, d script.Directive) error {
	return t.elicit(ctx, object{"mode": "url", "sessionId": t.s.id, "message": "Log in", "url": d.Args, "elicitationId": "e-1"})
}

func (t *turn) elicit(ctx context.Context, params object) error {
	m, err := t.a.wire.call(ctx, "elicitation/create", params)
	if err != nil {
		return err
	}
	if m.Error != nil {
		return t.say("agent_message_chunk", fmt.Sprintf("The form was refused with error %d.", m.Error.Code))
	}
	return t.say("agent_message_chunk", "The form: "+action(m))
}

// offered says what the client can do, as it said when the connection was opened.
func (t *turn) offered(context.Context, script.Directive) error {
	t.a.mu.Lock()
	words := string(t.a.offered)
	t.a.mu.Unlock()
	return t.say("agent_message_chunk", "Offered: "+words)
}
