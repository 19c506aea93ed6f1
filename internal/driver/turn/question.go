package turn

import (
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/approval"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

// question is a permission request or a form that waits for a person.
type question struct {
	req    acp.PermissionRequest
	answer func(acp.PermissionResponse)
	form   *asked      // nil: it is a permission request
	stop   func() bool // looking whether the agent takes it back
}

// Permission takes what the agent wants to do and judges it by the session's approvals.
// What a person must judge waits for [Turn.Answer]; the agent goes on reading meanwhile.
func (t *Turn) Permission(ctx context.Context, r acp.PermissionRequest, answer func(acp.PermissionResponse)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = t.o.Now()
	if !t.taking || t.over.Load() || t.cancelReq != nil || r.SessionID != t.session {
		answer(acp.Cancelled())
		return
	}
	call, name := t.conv.Call(r.ToolCall)
	switch t.policy.Decide(wish(call, name, t.o.Work)) {
	case approval.Allow:
		answer(chosen(r, true))
		return
	case approval.Deny:
		answer(chosen(r, false))
		return
	}
	if t.cap.full() { // nobody would see the question
		answer(chosen(r, false))
		return
	}
	t.asked++
	id := driverapi.QuestionID(t.o.ID, t.asked)
	parts := t.conv.Ask(id, r)
	if len(parts) == 0 {
		answer(acp.Cancelled())
		return
	}
	t.ask(ctx, id, &question{req: r, answer: answer}, parts)
}

// ask shows a question and has it wait. Called under mu.
func (t *Turn) ask(ctx context.Context, id string, q *question, parts []uistream.Part) {
	t.heard = true
	t.write(parts)
	t.open[id] = q
	if t.waiting.IsZero() {
		t.waiting = t.last
	}
	q.stop = context.AfterFunc(ctx, func() { t.withdraw(id) })
}

// Answer settles a question. The same answer again, and one to a question that was taken
// back, are refused with QUESTION_SETTLED; nothing is changed then.
func (t *Turn) Answer(r driverapi.AnswerRequest) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.open[r.Question]
	switch {
	case q == nil && t.settled[r.Question]:
		return fault.New(fault.QuestionSettled, "")
	case q == nil:
		return fault.New(fault.QuestionNotFound, "")
	}
	if q.form != nil {
		t.answerForm(r, q.form)
		return nil
	}
	res := chosen(q.req, r.Allow)
	if r.Option != "" {
		if !slices.ContainsFunc(q.req.Options, func(o acp.PermissionOption) bool { return o.OptionID == r.Option }) {
			return fault.New(fault.InvalidInput, "The agent did not offer the option %.80q.", r.Option)
		}
		res = acp.Selected(r.Option)
	}
	t.settle(r.Question, t.conv.Answered(r.Question, convert.Answer{Allowed: r.Allow, Denied: !r.Allow, OptionID: res.Outcome.OptionID}))
	q.answer(res)
	return nil
}

// settle shows how a question ended; the caller tells the agent. Called under mu.
func (t *Turn) settle(id string, parts []uistream.Part) {
	q := t.open[id]
	delete(t.open, id)
	t.settled[id] = true
	q.stop()
	t.write(parts)
	t.last = t.o.Now()
	if len(t.open) == 0 {
		t.frozen += t.last.Sub(t.waiting)
		t.waiting = time.Time{}
	}
}

// takeBack settles an open question that nobody answers any more. Called under mu.
func (t *Turn) takeBack(id string) {
	q := t.open[id]
	if q.form != nil {
		t.settle(id, t.conv.FormAnswered(id, convert.FormAnswer{Canceled: true}))
		q.form.answer(acp.ElicitationResponse{Action: acp.ElicitCancel})
		return
	}
	t.settle(id, t.conv.Answered(id, convert.Answer{Canceled: true}))
	q.answer(acp.Cancelled())
}

// withdraw settles a question that the agent waits for no more.
func (t *Turn) withdraw(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[id] != nil {
		t.takeBack(id)
	}
}

func (t *Turn) withdrawAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endQuestions()
}

// endQuestions settles all that are open, in order. Called under mu.
func (t *Turn) endQuestions() {
	for n := int64(1); n <= t.asked && len(t.open) > 0; n++ {
		if id := driverapi.QuestionID(t.o.ID, n); t.open[id] != nil {
			t.takeBack(id)
		}
	}
}

// chosen is the option that allows or denies, preferring the one that lasts the shortest.
// Without any the agent is told that nobody chose.
func chosen(r acp.PermissionRequest, allow bool) acp.PermissionResponse {
	kinds := []string{acp.RejectOnce, acp.RejectAlways}
	if allow {
		kinds = []string{acp.AllowOnce, acp.AllowAlways}
	}
	for _, kind := range kinds {
		if o, ok := r.Option(kind); ok {
			return acp.Selected(o.OptionID)
		}
	}
	return acp.Cancelled()
}

// wish reads from a tool call what it would do.
func wish(call acp.ToolCall, name, work string) approval.Wish {
	w := approval.Wish{Name: name, Work: work}
	if call.Kind != nil {
		w.Kind = *call.Kind
	}
	var in map[string]json.RawMessage
	read := json.Unmarshal(call.RawInput, &in) == nil
	for _, key := range []string{"file_path", "filePath", "path", "abs_path", "notebook_path", "dir", "directory"} {
		var s string
		if json.Unmarshal(in[key], &s) == nil && s != "" {
			w.Paths = append(w.Paths, s)
		}
	}
	w.Paths = append(w.Paths, locations(call)...)
	for i, p := range w.Paths {
		if !path.IsAbs(p) {
			w.Paths[i] = path.Join(work, p)
		}
	}
	slices.Sort(w.Paths)
	w.Paths = slices.Compact(w.Paths)
	if raw, ok := in["command"]; ok {
		w.Commands, ok = commands(raw)
		w.Opaque = !ok
	} else if w.Kind == "execute" {
		w.Opaque = true
	}
	if slices.Contains([]string{"edit", "delete", "move", "read"}, w.Kind) && (!read || len(w.Paths) == 0) {
		w.Opaque = true
	}
	return w
}

// locations are the paths that a call names beside its input.
func locations(call acp.ToolCall) []string {
	var out []string
	var list []struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(call.Locations, &list) == nil {
		for _, l := range list {
			if l.Path != "" {
				out = append(out, l.Path)
			}
		}
	}
	for _, c := range call.Contents() {
		if c.Path != "" {
			out = append(out, c.Path)
		}
	}
	return out
}

// commands reads a command as agents give it: one shell line, or the words of one program.
func commands(raw json.RawMessage) ([][]string, bool) {
	var line string
	if json.Unmarshal(raw, &line) == nil {
		return approval.Split(line)
	}
	var words []string
	if json.Unmarshal(raw, &words) != nil || len(words) == 0 {
		return nil, false
	}
	shell := path.Base(words[0])
	if slices.Contains([]string{"sh", "bash", "zsh", "dash"}, shell) {
		if len(words) == 3 && strings.HasPrefix(words[1], "-") && strings.HasSuffix(words[1], "c") {
			return approval.Split(words[2])
		}
		return nil, false
	}
	return [][]string{words}, true
}
