package rest_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

const ticketHeader = "Hearth-Attach-Ticket"

func attachTicket(t *testing.T, w *resttest.World, id, body string) string {
	t.Helper()
	r := ask(t, w, "POST", "/v1/agent-sessions/"+id+"/attach-ticket", body)
	text, _ := r.at(t, "ticket").(string)
	if r.status != 201 || text == "" || r.at(t, "header") != ticketHeader {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if at, err := time.Parse(time.RFC3339Nano, r.at(t, "expiresAt").(string)); err != nil || time.Until(at) < 80*time.Second || time.Until(at) > 90*time.Second {
		t.Errorf("expires %s, %v", at, err)
	}
	return text
}

// idle makes a session whose stream is a 204.
func idle(t *testing.T, w *resttest.World) string {
	t.Helper()
	a, err := w.Sessions.Create(t.Context(), w.Owner(), session.CreateInput{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(a.Aggregate.Session.ID)
}

func TestTicketOpensAStreamOnce(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(t, w)
	path := "/v1/agent-sessions/" + id + "/stream"
	for _, body := range []string{"", `{}`, `{"action":"watch"}`, `{"action":"prompt"}`} {
		text := attachTicket(t, w, id, body)
		if r := ask(t, w, "GET", path, "", "Authorization", "", ticketHeader, text); r.status != 204 {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
		r := ask(t, w, "GET", path, "", "Authorization", "", ticketHeader, text)
		if r.status != 401 || r.header.Get("WWW-Authenticate") != "Bearer" || r.header.Get("Hearth-Error-Code") != "TICKET_INVALID" || r.body != "The attach ticket is not valid.\n" {
			t.Errorf("%s, again: %d %s", body, r.status, r.body)
		}
		if strings.Contains(w.Logged(), text) {
			t.Error("the ticket was logged")
		}
	}
	for _, e := range w.Audited(session.ID(id), 4) {
		if e.Action != "ticket_issued" || e.Subject != "owner" || !strings.HasPrefix(e.Details["request"].(string), "req_") {
			t.Errorf("%+v", e)
		}
	}
}

func TestTicketRefusals(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id, other := idle(t, w), idle(t, w)
	root := "/v1/agent-sessions/"
	for _, c := range []struct {
		name, path, body string
		header           []string
		status           int
		code             string
	}{
		{"no token", id, "", []string{"Authorization", ""}, 401, "UNAUTHENTICATED"},
		{"unknown session", "ses_none", "", nil, 404, "SESSION_NOT_FOUND"},
		{"foreign session", id, "", []string{"Authorization", "Bearer " + resttest.Foreign}, 404, "SESSION_NOT_FOUND"},
		{"action that is none", id, `{"action":"write"}`, nil, 422, "INVALID_INPUT"},
		{"unknown field", id, `{"actoin":"watch"}`, nil, 422, "INVALID_INPUT"},
	} {
		r := ask(t, w, "POST", root+c.path+"/attach-ticket", c.body, c.header...)
		if r.status != c.status || r.at(t, "error.code") != c.code {
			t.Errorf("ask, %s: %d %s", c.name, r.status, r.body)
		}
	}
	text := attachTicket(t, w, id, "")
	for _, c := range []struct {
		name, path string
		header     []string
		status     int
		code       string
		has        string
	}{
		{"another session", root + other + "/stream", []string{ticketHeader, text}, 401, "TICKET_INVALID", "not valid"},
		{"forged", root + id + "/stream", []string{ticketHeader, "A" + text}, 401, "TICKET_INVALID", "not valid"},
		{"empty", root + id + "/stream", []string{ticketHeader, ""}, 401, "TICKET_INVALID", "not valid"},
		{"beside a token", root + id + "/stream", []string{ticketHeader, text, "Authorization", "Bearer " + resttest.Token}, 422, "INVALID_INPUT", "not both"},
		{"in the address", root + id + "/stream?ticket=" + text, nil, 422, "INVALID_INPUT", ticketHeader},
		{"in the address, by the header's name", root + id + "/stream?hearth-attach-ticket=" + text, nil, 422, "INVALID_INPUT", ticketHeader},
		{"as a token", root + id + "/stream", []string{"Authorization", "Bearer " + text}, 401, "UNAUTHENTICATED", ""},
	} {
		r := ask(t, w, "GET", c.path, "", append([]string{"Authorization", ""}, c.header...)...)
		if r.status != c.status || r.header.Get("Hearth-Error-Code") != c.code || !strings.Contains(r.body, c.has) || strings.Contains(r.body, text) {
			t.Errorf("stream, %s: %d %s %s", c.name, r.status, r.header.Get("Hearth-Error-Code"), r.body)
		}
	}
	// It opens nothing but streams.
	for _, path := range []string{strings.TrimSuffix(root, "/"), root + id, "/v1/watch", "/v1/capabilities"} {
		if r := ask(t, w, "GET", path, "", "Authorization", "", ticketHeader, text); r.status != 401 || r.at(t, "error.code") != "UNAUTHENTICATED" {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", w.URL+root+id+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header[ticketHeader] = []string{text, text}
	res, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _ = res.Body.Close(); res.StatusCode != 422 {
		t.Errorf("twice: %d", res.StatusCode)
	}
	if r := ask(t, w, "GET", root+id+"/stream", "", "Authorization", "", ticketHeader, text); r.status != 204 {
		t.Errorf("none of that used it up, and now: %d %s", r.status, r.body)
	}
	if strings.Contains(w.Logged(), text) {
		t.Error("the ticket was logged")
	}
}

func TestRightsAreAskedWithTheTicket(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(t, w)
	path := "/v1/agent-sessions/" + id
	one, two := attachTicket(t, w, id, `{"action":"prompt"}`), attachTicket(t, w, id, "")
	w.Identity.Deny(operation.RightWrite)
	if r := ask(t, w, "POST", path+"/attach-ticket", `{"action":"prompt"}`); r.status != 404 {
		t.Errorf("a ticket to prompt without the right to: %d %s", r.status, r.body)
	}
	w.Identity.Deny(operation.RightRead)
	r := ask(t, w, "GET", path+"/stream", "", "Authorization", "", ticketHeader, one)
	if r.status != 404 || r.header.Get("Hearth-Error-Code") != "SESSION_NOT_FOUND" {
		t.Errorf("without the right to read: %d %s", r.status, r.body)
	}
	if r := ask(t, w, "GET", path+"/stream", "", "Authorization", "", ticketHeader, one); r.status != 401 {
		t.Errorf("it was not used up: %d %s", r.status, r.body)
	}
	w.Identity.Revoke(resttest.Token)
	r = ask(t, w, "GET", path+"/stream", "", "Authorization", "", ticketHeader, two)
	if r.status != 401 || r.header.Get("Hearth-Error-Code") != "UNAUTHENTICATED" {
		t.Errorf("of a token that is void: %d %s", r.status, r.body)
	}
}

func TestAuditOfStreams(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Begin(id)
	text := attachTicket(t, w, string(id), "")
	done := make(chan reply)
	go func() {
		done <- ask(t, w, "GET", "/v1/agent-sessions/"+string(id)+"/stream", "", "Authorization", "", ticketHeader, text)
	}()
	w.Audited(id, 2)
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", w.URL+"/v1/agent-sessions/"+string(id)+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+resttest.Guest(1))
	res, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	w.Audited(id, 3)
	leave()
	_ = res.Body.Close()
	w.Audited(id, 4)
	w.End(id)
	if r := <-done; !strings.HasSuffix(r.body, "data: [DONE]\n\n") {
		t.Error(r.body)
	}
	w.Audited(id, 5)
	if r := ask(t, w, "GET", "/v1/agent-sessions/"+string(id)+"/stream", ""); r.status != 204 { // is no stream
		t.Errorf("%d", r.status)
	}
	a := w.Get(id)
	if err := w.Sessions.Remove(t.Context(), &a.Session); err != nil {
		t.Fatal(err)
	}
	type row struct {
		Action, Subject string
		Details         map[string]any
	}
	var got []row
	requests := map[string]int{}
	for _, e := range w.Audited(id, 5) {
		requests[e.Details["request"].(string)]++
		delete(e.Details, "request")
		delete(e.Details, "expires")
		delete(e.Details, "seconds")
		if e.Workspace != "default" || time.Since(e.At) > time.Minute {
			t.Errorf("%+v", e)
		}
		got = append(got, row{e.Action, e.Subject, e.Details})
	}
	if n := len(w.Transcript(id)); n != 0 {
		t.Fatalf("%d parts of the session are left", n)
	}
	want := []row{
		{"ticket_issued", "owner", map[string]any{"action": "watch"}},
		{"stream_opened", "owner", map[string]any{"method": "GET", "ticket": true}},
		{"stream_opened", "guest-1", map[string]any{"method": "GET", "ticket": false}},
		{"stream_closed", "guest-1", map[string]any{"reason": "left", "parts": 1.0}},
		{"stream_closed", "owner", map[string]any{"reason": "done", "parts": 3.0}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(requests) != 3 {
		t.Errorf("requests: %v", requests)
	}
}

// What is wrong with the request itself is told before the ticket is used.
func TestMalformedDoesNotUseTheTicket(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(t, w)
	path := "/v1/agent-sessions/" + id + "/stream"
	text := attachTicket(t, w, id, `{"action":"prompt"}`)
	for _, c := range []struct {
		method, query, body string
		header              []string
	}{
		{"GET", "?padding=0", "", nil},
		{"GET", "?approvals=perhaps", "", nil},
		{"GET", "?after=x", "", nil},
		{"GET", "?frm=beginning", "", nil},
		{"GET", "?from=beginning&from=beginning", "", nil},
		{"GET", "?after=1.2&after=1.5", "", nil},
		{"GET", "?approvals=close&approvals=open", "", nil},
		{"GET", "?a%zz=1", "", nil},
		{"POST", "?padding=0", "{}", nil},
		{"POST", "?from=beginning", "{}", nil},
		{"POST", "", "{}", nil},
		{"POST", "", "hello", nil},
		{"POST", "", "{}", []string{"Content-Type", "text/plain"}},
	} {
		r := ask(t, w, c.method, path+c.query, c.body, append([]string{"Authorization", "", ticketHeader, text}, c.header...)...)
		if r.status != 422 || r.header.Get("Hearth-Error-Code") != "INVALID_INPUT" {
			t.Errorf("%s %s %s: %d %s", c.method, c.query, c.body, r.status, r.body)
		}
	}
	if r := ask(t, w, "GET", path, "", "Authorization", "", ticketHeader, text); r.status != 204 {
		t.Errorf("none of that used it up, and now: %d %s", r.status, r.body)
	}
}

// untouched is a body that must not be read.
type untouched struct{ t *testing.T }

func (u untouched) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// A chat's body can be large: nobody's is read without a token or a ticket for that.
func TestNoBodyIsReadForStrangers(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(t, w)
	watching := attachTicket(t, w, id, "")
	for name, header := range map[string][2]string{
		"nothing":               {"Accept", "*/*"},
		"no token of ours":      {"Authorization", "Bearer x"},
		"no ticket of ours":     {ticketHeader, "A" + watching},
		"a ticket for watching": {ticketHeader, watching},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/agent-sessions/"+id+"/stream", untouched{t})
		r.Header.Set(header[0], header[1])
		out := httptest.NewRecorder()
		w.Server.Config.Handler.ServeHTTP(out, r)
		if out.Code != 401 {
			t.Errorf("%s: %d %s", name, out.Code, out.Body)
		}
	}
}
