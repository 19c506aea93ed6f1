package rest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

// prompts of the queue in order.
func prompts(t *testing.T, w *resttest.World, one string) []string {
	t.Helper()
	var out []string
	for _, i := range ask(t, w, "GET", one+"/queue", "").at(t, "items").([]any) {
		out = append(out, i.(map[string]any)["prompt"].(string))
	}
	return out
}

func TestQueueIsChanged(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("at work")
	one := "/v1/agent-sessions/" + string(id)
	var turns []string
	for _, p := range []string{"one", "two", "three"} {
		r := ask(t, w, "POST", one+"/turns", `{"prompt":"`+p+`"}`, "Idempotency-Key", p)
		turns = append(turns, r.at(t, "turn.id").(string))
	}
	at := func(n int) string { return one + "/queue/" + turns[n] }
	r := ask(t, w, "PATCH", at(1), `{"prompt":"zwei"}`)
	if r.status != 200 || r.at(t, "position") != 2.0 || r.at(t, "turn.prompt") != "zwei" || r.at(t, "turn.editedBy") != "owner" || r.at(t, "turn.editedAt") == nil || r.at(t, "turn.state") != "accepted" {
		t.Fatalf("edit: %d %s", r.status, r.body)
	}
	if r := ask(t, w, "PATCH", at(2), `{"position":1}`); r.status != 200 || r.at(t, "position") != 1.0 || r.at(t, "turn.editedAt") != nil {
		t.Fatalf("move: %d %s", r.status, r.body)
	}
	if d := cmp.Diff([]string{"three", "one", "zwei"}, prompts(t, w, one)); d != "" {
		t.Fatal(d)
	}
	for range 2 {
		if r := ask(t, w, "DELETE", at(0), ""); r.status != 200 || r.at(t, "state") != "canceled" || r.at(t, "end") != "never_started" || r.at(t, "code") != "TURN_CANCELED" {
			t.Fatalf("remove: %d %s", r.status, r.body)
		}
	}
	// Its turn stays, its key answers what became of it, a cancel of it changes nothing.
	if r := ask(t, w, "POST", one+"/turns", `{"prompt":"one"}`, "Idempotency-Key", "one"); r.status != 202 || r.at(t, "turn.id") != turns[0] || r.at(t, "turn.end") != "never_started" {
		t.Errorf("the same key: %d %s", r.status, r.body)
	}
	if r := ask(t, w, "POST", one+"/cancel", `{"turn":"`+turns[0]+`"}`); r.status != 202 || r.at(t, "openTurn.state") != "starting" {
		t.Errorf("cancel: %d %s", r.status, r.body)
	}
	for range 2 {
		if r := ask(t, w, "POST", one+"/queue/hold", ""); r.status != 200 || r.at(t, "queueHeld") != true || r.at(t, "openTurn.state") != "starting" {
			t.Fatalf("hold: %d %s", r.status, r.body)
		}
	}
	w.Begin(id)
	w.End(id)
	if r := ask(t, w, "GET", one, ""); r.at(t, "openTurn") != nil || r.at(t, "phase") != "idle" || r.at(t, "queueHeld") != true {
		t.Fatalf("held: %s", r.body)
	}
	if r := ask(t, w, "POST", one+"/queue/release", ""); r.status != 200 || r.at(t, "openTurn.prompt") != "three" {
		t.Fatalf("release: %d %s", r.status, r.body)
	}
	if r := ask(t, w, "POST", one+"/cancel", `{"turn":"`+string(w.Get(id).Last.ID)+`"}`); r.status != 409 || r.at(t, "error.code") != "NOTHING_TO_CANCEL" || r.at(t, "error.details.state") != "completed" {
		t.Errorf("cancel of what has ended: %d %s", r.status, r.body)
	}
	w.Begin(id)
	w.End(id)
	if last := w.Begin(id); last.Prompt != "zwei" {
		t.Fatalf("%q went out", last.Prompt)
	}
	// What has gone out is not changed.
	for what, r := range map[string]reply{
		"edit": ask(t, w, "PATCH", at(1), `{"prompt":"late"}`), "move": ask(t, w, "PATCH", at(1), `{"position":1}`), "remove": ask(t, w, "DELETE", at(1), ""),
	} {
		if r.status != 409 || r.at(t, "error.code") != "TURN_NOT_QUEUED" || r.at(t, "error.details.state") != "running" {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}
	if r := ask(t, w, "DELETE", at(2), ""); r.status != 409 || r.at(t, "error.details.state") != "completed" {
		t.Errorf("remove of what has ended: %d %s", r.status, r.body)
	}
	other := w.Create("canceled while it starts")
	turn := string(w.Get(other).Open.ID)
	w.Apply(other, session.CancelAsked{})
	if r := ask(t, w, "DELETE", "/v1/agent-sessions/"+string(other)+"/queue/"+turn, ""); r.status != 409 || r.at(t, "error.details.state") != "canceled" {
		t.Errorf("remove of what was canceled at work: %d %s", r.status, r.body)
	}
	if got := w.Get(id).Open; got.Prompt != "zwei" || got.State != session.TurnRunning {
		t.Errorf("at work: %+v", got)
	}
}

// A prompt that is refused is nowhere: neither stored nor counted.
func TestRefusedPromptsAreNotStored(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("at work")
	one := "/v1/agent-sessions/" + string(id)
	for i := range session.MaxQueue {
		w.Prompt(id, fmt.Sprint(i))
	}
	first := string(w.Get(id).Queue[0].ID)
	before := w.Get(id)
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code                     string
	}{
		{"full", "POST", "/turns", `{"prompt":"x"}`, 429, "QUEUE_FULL"},
		{"full, interrupt", "POST", "/turns", `{"prompt":"x","mode":"interrupt"}`, 429, "QUEUE_FULL"},
		{"reject", "POST", "/turns", `{"prompt":"x","mode":"reject"}`, 409, "TURN_IN_FLIGHT"},
		{"too large", "POST", "/turns", `{"prompt":"` + strings.Repeat("x", session.MaxPromptBytes+1) + `"}`, 422, "PROMPT_TOO_LARGE"},
		{"edit that is too large", "PATCH", "/queue/" + first, `{"prompt":"` + strings.Repeat("x", session.MaxPromptBytes+1) + `"}`, 422, "PROMPT_TOO_LARGE"},
		{"blank edit", "PATCH", "/queue/" + first, `{"prompt":" \n"}`, 422, "INVALID_INPUT"},
		{"NUL", "PATCH", "/queue/" + first, `{"prompt":"a\u0000"}`, 422, "INVALID_INPUT"},
		{"no edit", "PATCH", "/queue/" + first, `{}`, 422, "INVALID_INPUT"},
		{"place 0", "PATCH", "/queue/" + first, `{"position":0}`, 422, "INVALID_INPUT"},
		{"unknown field", "PATCH", "/queue/" + first, `{"mode":"interrupt"}`, 422, "INVALID_INPUT"},
		{"unknown turn", "PATCH", "/queue/trn_none", `{"prompt":"x"}`, 404, "TURN_NOT_FOUND"},
		{"unknown turn to remove", "DELETE", "/queue/trn_none", "", 404, "TURN_NOT_FOUND"},
	} {
		r := ask(t, w, c.method, one+c.path, c.body)
		if r.status != c.status || r.at(t, "error.code") != c.code || r.at(t, "error.message") == "" {
			t.Errorf("%s: %d %s", c.name, r.status, r.body)
		}
	}
	for _, path := range []string{"/queue/" + first, "/queue/hold"} {
		method, body := "PATCH", `{"prompt":"mine"}`
		if strings.HasSuffix(path, "hold") {
			method, body = "POST", ""
		}
		if r := ask(t, w, method, one+path, body, "Authorization", "Bearer "+resttest.Foreign); r.status != 404 || r.at(t, "error.code") != "SESSION_NOT_FOUND" {
			t.Errorf("foreign %s: %d %s", path, r.status, r.body)
		}
	}
	if r := ask(t, w, "DELETE", one+"/queue/"+first, "", "Authorization", "Bearer "+resttest.Foreign); r.status != 404 {
		t.Errorf("foreign remove: %d %s", r.status, r.body)
	}
	if d := cmp.Diff(before, w.Get(id)); d != "" {
		t.Errorf("a refused request left something: %s", d)
	}
}
