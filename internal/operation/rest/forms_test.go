package rest_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

// A form is answered over REST: what does not fit names its fields and changes nothing, and
// no call gives the values back.
func TestForms(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	turn := w.Begin(id)
	w.Apply(id, session.QuestionAsked{Question: session.Question{
		Turn: turn.ID, Number: 1, Kind: session.QuestionForm, Title: "Which?",
		Detail: `{"message":"Which?","schema":{"properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["s"]}}`,
	}})
	path := "/v1/agent-sessions/" + string(id) + "/questions/" + string(session.QuestionIDOf(turn.ID, 1))
	for _, c := range []struct{ body, field string }{
		{`{"verdict":"accept","content":{"n":9007199254740993,"s":"x"}}`, "content.n"},
		{`{"verdict":"accept","content":{"n":1}}`, "content.s"},
		{`{"verdict":"accept"}`, "content.s"},
		{`{"verdict":"accept","content":{"s":"x","S":"y"}}`, "content.S"},
		{`{"verdict":"accept","content":"s"}`, "content"},
		{`{"verdict":"accept","content":["s"]}`, "content"},
		{`{"verdict":"agree"}`, "verdict"},
	} {
		r := ask(t, w, http.MethodPost, path+"/answer", c.body)
		fields, _ := r.at(t, "error.details.fields").([]any)
		if r.status != http.StatusUnprocessableEntity || r.at(t, "error.code") != "INVALID_INPUT" || len(fields) != 1 || fields[0].(map[string]any)["field"] != c.field {
			t.Errorf("%s: %d %s", c.body, r.status, r.body)
		}
	}
	if r := ask(t, w, http.MethodGet, path, ""); r.at(t, "state") != "pending" || r.at(t, "kind") != "form" {
		t.Fatalf("%d %s", r.status, r.body)
	}
	answered := ask(t, w, http.MethodPost, path+"/answer", `{"verdict":"accept","content":{"s":"my-own-words","n":-0}}`)
	if answered.status != http.StatusOK || answered.at(t, "verdict") != "accept" {
		t.Fatalf("%d %s", answered.status, answered.body)
	}
	for _, r := range []reply{
		answered, ask(t, w, http.MethodGet, path, ""), ask(t, w, http.MethodGet, "/v1/agent-sessions/"+string(id)+"/questions", ""), ask(t, w, http.MethodGet, "/v1/agent-sessions/"+string(id), ""),
	} {
		if strings.Contains(r.body, "my-own-words") {
			t.Errorf("the values are given back: %s", r.body)
		}
	}
	if r := ask(t, w, http.MethodPost, path+"/answer", `{"verdict":"decline"}`); r.status != http.StatusConflict || r.at(t, "error.code") != "QUESTION_SETTLED" {
		t.Errorf("answered twice: %d %s", r.status, r.body)
	}
}
