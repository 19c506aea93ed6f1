package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/uistream"
)

// post sends a chat's request; the answer's body is the caller's.
func post(t testing.TB, w *resttest.World, id session.ID, query, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/v1/agent-sessions/"+string(id)+"/stream"+query, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+resttest.Token)
	r.Header.Set("Content-Type", "application/json")
	res, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func said(id, text string) string {
	return fmt.Sprintf(`{"id":"chat","messages":[{"id":%q,"role":"user","parts":[{"type":"text","text":%q}]}],"trigger":"submit-message"}`, id, text)
}

// verdict is the body that answers questions of a turn; later ones first.
func verdict(turn session.TurnID, answers ...string) string {
	var parts []string
	for _, a := range answers {
		q, v, _ := strings.Cut(a, "=")
		parts = append(parts, fmt.Sprintf(`{"type":"dynamic-tool","state":"approval-responded","approval":{"id":%q,"approved":%s}}`, q, v))
	}
	return fmt.Sprintf(`{"messages":[{"id":%q,"role":"assistant","parts":[%s]}],"messageId":%q}`, turn, strings.Join(parts, ","), turn)
}

// refusal reads an answer that is one sentence.
func refusal(t testing.TB, res *http.Response) (int, string, string) {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if ct := res.Header.Get("Content-Type"); res.StatusCode >= 400 && ct != "text/plain; charset=utf-8" {
		t.Errorf("the refusal is %s: %s", ct, b)
	}
	return res.StatusCode, res.Header.Get("Hearth-Error-Code"), strings.TrimSuffix(string(b), "\n")
}

// idle is a session whose first turn has ended.
func idle(w *resttest.World) session.ID {
	id := w.Create("first")
	w.Begin(id)
	w.Say(id, resttest.Text("a", "hello")...)
	w.End(id)
	return id
}

func kinds(events []event) (out []string) {
	for _, e := range events {
		var p struct{ Type, Delta, ErrorText string }
		_ = json.Unmarshal([]byte(e.Data), &p)
		out = append(out, p.Type+p.Delta+p.ErrorText)
	}
	return out
}

// ask shows a question and makes its row; the row may come later.
func ask(w *resttest.World, id session.ID, n int64) session.QuestionID {
	q := showQuestion(w, id, n)
	w.Apply(id, session.QuestionAsked{Question: session.Question{Turn: w.Get(id).Open.ID, Number: n, Kind: session.QuestionPermission}})
	return q
}

func showQuestion(w *resttest.World, id session.ID, n int64) session.QuestionID {
	q := session.QuestionIDOf(w.Get(id).Open.ID, n)
	call := fmt.Sprint("call", n)
	w.Say(
		id,
		uistream.ToolInputStart{ToolCallID: call, ToolName: "run", Dynamic: true}.Part().Raw,
		uistream.ToolInputAvailable{ToolCallID: call, ToolName: "run", Dynamic: true, Input: uistream.Value("{}")}.Part().Raw,
		uistream.ToolApprovalRequest{ApprovalID: string(q), ToolCallID: call}.Part().Raw,
		uistream.Data{Name: uistream.DataPermission, ID: string(q), Data: uistream.Value(`{"options":[]}`)}.Part().Raw,
	)
	return q
}

func settle(w *resttest.World, id session.ID, q session.QuestionID) {
	w.Say(id, uistream.Data{Name: uistream.DataPermission, ID: string(q), Data: uistream.Value(`{"options":[],"outcome":{"allowed":true}}`)}.Part().Raw)
}

func TestChat(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(w)
	res := post(t, w, id, "", said("m1", "second"))
	turn := w.Get(id).Open
	if res.StatusCode != 200 || res.Header.Get("X-Vercel-AI-UI-Message-Stream") != "v1" || res.Header.Get("Hearth-Turn") != string(turn.ID) {
		t.Fatalf("status %d, %v", res.StatusCode, res.Header)
	}
	if turn.Prompt != "second" || turn.Author.Name != "Ada" {
		t.Errorf("accepted %+v", turn)
	}
	w.Begin(id)
	w.Say(id, resttest.Text("a", "well")...)
	later := w.Prompt(id, "third") // goes to another turn: not of this message
	w.End(id)
	w.Begin(id)
	a := read(res, 1<<30)
	if !a.done || a.err != nil {
		t.Fatalf("done %v, %v", a.done, a.err)
	}
	var want []event
	for _, e := range stored(w, id) {
		if strings.HasPrefix(e.ID, "2.") {
			want = append(want, e)
		}
	}
	if d := cmp.Diff(want, a.events); d != "" {
		t.Error(d)
	}
	// The same once more: the same turn from its start, and nothing new.
	again := read(post(t, w, id, "", said("m1", "second")), 1<<30)
	if d := cmp.Diff(want, again.events); d != "" || !again.done {
		t.Errorf("repeated: %v %s", again.err, d)
	}
	if s := w.Get(id); s.Open.ID != later || len(s.Queue) != 0 {
		t.Errorf("after the repetition: open %v, queue %v", s.Open, s.Queue)
	}
	status, code, text := refusal(t, post(t, w, id, "", said("m1", "something else")))
	if status != 422 || code != string(fault.HistoryImmutable) || !strings.Contains(text, "with another text or mode") {
		t.Errorf("edited: %d %s %q", status, code, text)
	}
}

func TestChatInTheQueue(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("first")
	w.Begin(id)
	res := post(t, w, id, "", said("m1", "second"))
	gone := post(t, w, id, "", said("m2", "third"))
	w.Say(id, resttest.Text("a", "of the first")...)
	s := w.Get(id)
	if len(s.Queue) != 2 || res.Header.Get("Hearth-Turn") != string(s.Queue[0].ID) {
		t.Fatalf("queue %v", s.Queue)
	}
	if _, err := w.Sessions.Cancel(t.Context(), w.Owner(), id, s.Queue[1].ID); err != nil {
		t.Fatal(err)
	}
	w.End(id)
	w.Begin(id)
	w.Say(id, resttest.Text("a", "of the second")...)
	w.End(id)
	a := read(res, 1<<30)
	if got := strings.Join(kinds(a.events), " "); strings.Contains(got, "first") || !strings.Contains(got, "of the second") || !a.done {
		t.Errorf("got %s, %v", got, a.err)
	}
	if len(a.notes) == 0 {
		t.Error("no comment while it waited")
	}
	if d := cmp.Diff([]string{"start", "data-turn-end", "finish"}, kinds(read(gone, 1<<30).events)); d != "" {
		t.Error(d)
	}
	reject := func(m string) string { return strings.Replace(said(m, "x"), "{", `{"mode":"reject",`, 1) }
	res = post(t, w, id, "", reject("m3"))
	defer res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("reject when idle: %d", res.StatusCode)
	}
	if status, code, _ := refusal(t, post(t, w, id, "", reject("m4"))); status != 409 || code != string(fault.TurnInFlight) {
		t.Errorf("reject when busy: %d %s", status, code)
	}
}

func TestChatOfAFailedTurn(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(w)
	res := post(t, w, id, "", said("m1", "second"))
	w.Begin(id)
	w.EndWith(id, "failed", fault.ModelFailed, session.Delivery{})
	got := kinds(read(res, 1<<30).events)
	if n := len(got); n < 3 || got[n-2] != "finish" || got[n-1] != "error"+fault.Lookup(fault.ModelFailed).Sentence {
		t.Errorf("got %q", got)
	}
	for _, p := range w.Transcript(id) {
		if strings.Contains(string(p.Body), `"type":"error"`) {
			t.Errorf("stored: %s", p.Body)
		}
	}
}

func TestChatClosesAtAQuestion(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(w)
	res := post(t, w, id, "?approvals=close", said("m1", "second"))
	turn := w.Begin(id)
	w.Say(id, resttest.Text("a", "may I?")...)
	q := ask(w, id, 1)
	a := read(res, 1<<30)
	got := kinds(a.events)
	if n := len(got); !a.done || got[n-3] != "tool-approval-request" || got[n-2] != "data-permission" || got[n-1] != "finish" {
		t.Fatalf("got %q, %v", got, a.err)
	}
	seen := a.events[:len(a.events)-1] // without the finish of the transport

	// Another chat reads it from the start, and ends at the same place.
	if d := cmp.Diff(a.events, stream(t, w, id, "?approvals=close", "").events); d != "" {
		t.Error(d)
	}
	// Meanwhile the agent goes on with something else.
	w.Say(id, resttest.Text("b", "meanwhile")...)
	status, code, text := refusal(t, post(t, w, id, "", verdict("trn_other", string(q)+"=true")))
	if status != 404 || code != string(fault.TurnNotFound) {
		t.Errorf("another turn: %d %s %q", status, code, text)
	}

	res = post(t, w, id, "?approvals=close", verdict(turn.ID, string(q)+"=true"))
	if x, err := w.Sessions.Question(t.Context(), w.Owner(), id, q); err != nil || x.Verdict != session.VerdictAllow || x.By != "owner" {
		t.Errorf("answered: %+v, %v", x, err)
	}
	settle(w, id, q)
	second := ask(w, id, 2)
	b := read(res, 1<<30)
	if got := kinds(b.events); got[0] != "start" || !strings.Contains(b.events[0].Data, string(turn.ID)) || got[len(got)-1] != "finish" || b.events[0].ID != "" {
		t.Fatalf("the answer's reply: %q", got)
	}
	seen = append(seen, b.events[1:len(b.events)-1]...)

	// The other question is denied elsewhere: the same verdict goes on, another one is refused.
	if _, err := w.Sessions.Answer(t.Context(), w.Owner(), id, second, session.AnswerInput{Verdict: session.VerdictDeny}); err != nil {
		t.Fatal(err)
	}
	status, code, _ = refusal(t, post(t, w, id, "", verdict(turn.ID, string(q)+"=true", string(second)+"=true")))
	if status != 409 || code != string(fault.QuestionSettled) {
		t.Errorf("answered otherwise: %d %s", status, code)
	}
	res = post(t, w, id, "", verdict(turn.ID, string(q)+"=true", string(second)+"=false"))
	w.End(id)
	c := read(res, 1<<30)
	seen = append(seen, c.events[1:]...)
	var want []event
	for _, e := range stored(w, id) {
		if strings.HasPrefix(e.ID, "2.") {
			want = append(want, e)
		}
	}
	if d := cmp.Diff(want, seen); d != "" {
		t.Errorf("together the three replies are not the message:\n%s", d)
	}
}

// Questions that were asked at once are shown before the reply ends.
func TestChatClosesAtAllQuestions(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	turn := w.Begin(id)
	one, two := showQuestion(w, id, 1), showQuestion(w, id, 2)
	res := open(t.Context(), t, w, id, "?approvals=close", "") // before there are rows
	for n := range int64(2) {
		w.Apply(id, session.QuestionAsked{Question: session.Question{Turn: turn.ID, Number: n + 1, Kind: session.QuestionPermission}})
	}
	a := read(res, 1<<30)
	got := strings.Join(kinds(a.events), " ")
	if strings.Count(got, "tool-approval-request") != 2 || !strings.HasSuffix(got, " finish") || !a.done {
		t.Fatalf("got %s, %v", got, a.err)
	}
	res = post(t, w, id, "", verdict(turn.ID, string(two)+"=false", string(one)+"=true"))
	w.End(id)
	if got := strings.Join(kinds(read(res, 1<<30).events), " "); strings.Contains(got, "tool-approval-request") {
		t.Errorf("the questions came again: %s", got)
	}
	for q, want := range map[session.QuestionID]string{one: session.VerdictAllow, two: session.VerdictDeny} {
		if x, err := w.Sessions.Question(t.Context(), w.Owner(), id, q); err != nil || x.Verdict != want {
			t.Errorf("%s: %+v, %v", q, x, err)
		}
	}
	// Settled questions close nothing.
	if r := stream(t, w, id, "?from=beginning&approvals=close", ""); !strings.HasSuffix(strings.Join(kinds(r.events), " "), "data-turn-end finish") {
		t.Errorf("replayed: %q", kinds(r.events))
	}
}

// Of two questions that were asked at once, the second is settled elsewhere: the first still waits.
func TestChatClosesAtAnEarlierQuestion(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	turn := w.Begin(id)
	one, two := ask(w, id, 1), ask(w, id, 2)
	w.Say(id, resttest.Text("a", "meanwhile")...)
	shown := stored(w, id)[8].ID // the second question's own part
	if _, err := w.Sessions.Answer(t.Context(), w.Owner(), id, two, session.AnswerInput{Verdict: session.VerdictDeny}); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]answer{
		"watched":         stream(t, w, id, "?approvals=close", ""),
		"from the start":  stream(t, w, id, "?approvals=close&from=beginning", ""),
		"behind them":     stream(t, w, id, "?approvals=close", shown),
		"answered so":     read(post(t, w, id, "?approvals=close", verdict(turn.ID, string(two)+"=false")), 1<<30),
		"between the two": stream(t, w, id, "?approvals=close", "1.6"),
	} {
		k := kinds(got.events)
		n := map[string]int{"watched": 2, "from the start": 2, "between the two": 1}[name]
		if !got.done || k[len(k)-1] != "finish" || !strings.Contains(got.events[len(k)-1].Data, string(uistream.FinishToolCalls)) || strings.Count(strings.Join(k, " "), "data-permission") != n || strings.Contains(strings.Join(k, " "), "meanwhile") {
			t.Errorf("%s: %q, done %v, %v", name, k, got.done, got.err)
		}
	}
	// A message that shows both and answers the first is gone on with behind the second.
	body := strings.Replace(verdict(turn.ID, string(one)+"=true"), `"parts":[`, fmt.Sprintf(`"parts":[{"type":"dynamic-tool","state":"approval-requested","approval":{"id":%q}},`, two), 1)
	res := post(t, w, id, "?approvals=close", body)
	w.End(id)
	if d := cmp.Diff([]string{"start", "text-start", "text-deltameanwhile", "text-end", "tool-output-errorThe turn has ended.", "tool-output-errorThe turn has ended.", "data-turn-end", "finish"}, kinds(read(res, 1<<30).events)); d != "" {
		t.Error(d)
	}
}

// Several answers are all given, or none.
func TestChatAnswersAllOrNone(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	turn := w.Begin(id)
	one := ask(w, id, 1)
	form := showQuestion(w, id, 2)
	w.Apply(id, session.QuestionAsked{Question: session.Question{Turn: turn.ID, Number: 2, Kind: session.QuestionForm, Detail: `{"schema":{"type":"object","properties":{}}}`}})
	three := ask(w, id, 3)
	long := strings.Replace(verdict(turn.ID, string(one)+"=true", string(three)+"=true"), `{"id":"`+string(three)+`"`, `{"reason":"`+strings.Repeat("x", session.MaxAnswerMessage+1)+`","id":"`+string(three)+`"`, 1)
	for name, body := range map[string]string{
		"a form":        verdict(turn.ID, string(one)+"=true", string(form)+"=true"),
		"a long reason": long,
		"unknown":       verdict(turn.ID, string(one)+"=true", "qst_x-1=true"),
	} {
		if status, code, text := refusal(t, post(t, w, id, "", body)); status < 400 || status >= 500 || text == "" {
			t.Errorf("%s: %d %s %q", name, status, code, text)
		}
		if q, err := w.Sessions.Question(t.Context(), w.Owner(), id, one); err != nil || q.State != session.QuestionPending {
			t.Errorf("%s: the first question is %s, %v", name, q.State, err)
		}
	}
}

// What was accepted is not refused afterwards: a chat would send it again as something new.
func TestChatBrokenBehindItsAcceptance(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(w)
	w.Broken.Store(true)
	res := post(t, w, id, "", said("m1", "second"))
	if turn := w.Get(id).Open; res.StatusCode != 200 || turn == nil || res.Header.Get("Hearth-Turn") != string(turn.ID) {
		t.Errorf("status %d, %v", res.StatusCode, turn)
	}
	if a := read(res, 1<<30); a.err == nil || a.done || len(a.events) > 0 {
		t.Errorf("it ended with %v: %v", a.err, a.events)
	}
}

func TestChatRefusalsAcceptNothing(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(w)
	tests := map[string]struct {
		query, body string
		status      int
		code        fault.Code
	}{
		"too large":      {"", said("m", strings.Repeat("x", 200<<10)), 422, fault.PromptTooLarge},
		"no JSON":        {"", "hello", 422, fault.InvalidInput},
		"resumed":        {"?after=1.2", said("m", "x"), 422, fault.InvalidInput},
		"from beginning": {"?from=beginning", said("m", "x"), 422, fault.InvalidInput},
		"unknown":        {"?x=1", said("m", "x"), 422, fault.InvalidInput},
		"no question":    {"", verdict(w.Get(id).Last.ID, "qst_x-1=true"), 404, fault.QuestionNotFound},
		"regenerated":    {"", strings.Replace(said("m", "x"), "submit-", "regenerate-", 1), 422, fault.HistoryImmutable},
	}
	for name, tc := range tests {
		if status, code, text := refusal(t, post(t, w, id, tc.query, tc.body)); status != tc.status || code != string(tc.code) || text == "" || strings.Contains(text, "\n") {
			t.Errorf("%s: %d %s %q", name, status, code, text)
		}
	}
	if status, _, _ := refusal(t, post(t, w, "ses_none", "", said("m", "x"))); status != 404 {
		t.Errorf("an unknown session: %d", status)
	}
	if a := w.Get(id); a.Open != nil || len(a.Queue) != 0 || a.Session.Turns != 1 {
		t.Errorf("something was accepted: %+v", a.Session)
	}
	// A viewer too many.
	busy := w.Create("busy")
	for range 100 {
		res := open(t.Context(), t, w, busy, "", "")
		defer res.Body.Close()
	}
	if status, code, _ := refusal(t, post(t, w, busy, "", said("m", "x"))); status != 429 || code != string(fault.StreamLimit) {
		t.Errorf("a viewer too many: %d %s", status, code)
	}
	if a := w.Get(busy); len(a.Queue) != 0 {
		t.Error("the refused prompt is in the queue")
	}
}

// A chat that leaves has canceled nothing.
func TestChatLeaves(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(w)
	res := post(t, w, id, "", said("m1", "second"))
	res.Body.Close()
	w.Begin(id)
	w.Say(id, resttest.Text("a", "well")...)
	w.End(id)
	if a := w.Get(id); a.Last.State != session.TurnCompleted || a.Last.Number != 2 {
		t.Errorf("the turn: %+v", a.Last)
	}
}

func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(w)
	call := func(method, origin string, preflight bool) http.Header {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, w.URL+"/v1/agent-sessions/"+string(id)+"/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", origin)
		r.Header.Set("Cookie", "session=1")
		if preflight {
			r.Header.Set("Access-Control-Request-Method", "POST")
			r.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
		}
		res, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if !preflight && res.StatusCode != http.StatusUnauthorized { // whatever the cookie says
			t.Errorf("%s from %s: %d", method, origin, res.StatusCode)
		}
		return res.Header
	}
	h := call(http.MethodOptions, resttest.Origin, true)
	if h.Get("Access-Control-Allow-Origin") != resttest.Origin || h.Get("Access-Control-Allow-Methods") != "POST" || !strings.Contains(strings.ToLower(h.Get("Access-Control-Allow-Headers")), "authorization") {
		t.Errorf("preflight: %v", h)
	}
	h = call(http.MethodGet, resttest.Origin, false)
	if h.Get("Access-Control-Allow-Origin") != resttest.Origin || !strings.Contains(h.Get("Access-Control-Expose-Headers"), "Hearth-Error-Code") || !strings.Contains(h.Get("Access-Control-Expose-Headers"), "Content-Disposition") || h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("from the page: %v", h)
	}
	for _, origin := range []string{"https://evil.example.org", "null", "http://chat.example.org", "https://chat.example.org.evil.org"} {
		for _, pre := range []bool{true, false} {
			method := http.MethodGet
			if pre {
				method = http.MethodOptions
			}
			if h := call(method, origin, pre); h.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s is let in: %v", origin, h)
			}
		}
	}
}
