package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// event is one event as a viewer saw it.
type event struct{ Name, ID, Data string }

type answer struct {
	status int
	header http.Header
	events []event
	notes  []string // comments
	done   bool
	err    error // how the body ended; nil: well
}

// open begins a stream; the answer's body is the caller's.
func open(ctx context.Context, t testing.TB, w *resttest.World, id session.ID, query, last string) *http.Response {
	t.Helper()
	return openAs(ctx, t, w, resttest.Token, id, query, last)
}

func openAs(ctx context.Context, t testing.TB, w *resttest.World, token string, id session.ID, query, last string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+"/v1/agent-sessions/"+string(id)+"/stream"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	res, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// read takes at most limit events.
func read(res *http.Response, limit int) answer {
	a := answer{status: res.StatusCode, header: res.Header}
	d := uistream.NewDecoder(res.Body, 0)
	defer res.Body.Close()
	for len(a.events) < limit {
		e, err := d.Next()
		switch {
		case errors.Is(err, io.EOF):
			return a
		case err != nil:
			a.err = err
			return a
		case e.Comment != "":
			a.notes = append(a.notes, e.Comment)
		case e.Done:
			a.done = true
		default:
			a.events = append(a.events, event{e.Name, e.ID, string(e.Data)})
		}
	}
	return a
}

func stream(t testing.TB, w *resttest.World, id session.ID, query, last string) answer {
	t.Helper()
	return read(open(t.Context(), t, w, id, query, last), 1<<30)
}

// stored is the transcript as a viewer should see it.
func stored(w *resttest.World, id session.ID) []event {
	var out []event
	for _, p := range w.Transcript(id) {
		out = append(out, event{"", p.Cursor.String(), string(p.Body)})
	}
	return out
}

func numbered(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("word %d ", i))
	}
	return out
}

func TestIdleSessionIs204(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	a, err := w.Sessions.Create(t.Context(), w.Owner(), session.CreateInput{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	empty := a.Aggregate.Session.ID
	for _, q := range []string{"", "?from=beginning"} {
		if r := stream(t, w, empty, q, ""); r.status != 204 {
			t.Errorf("without turns, %q: %d", q, r.status)
		}
	}
	id := w.Create("x")
	w.Begin(id)
	w.End(id)
	if r := stream(t, w, id, "", ""); r.status != 204 {
		t.Errorf("after the turn: %d", r.status)
	}
	all := stored(w, id)
	if r := stream(t, w, id, "", all[len(all)-1].ID); r.status != 204 {
		t.Errorf("resumed at the end: %d", r.status)
	}
}

func TestReplayOfAnIdleSession(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("first task")
	w.Begin(id)
	w.Say(id, resttest.Text("a", "hello ", "there")...)
	w.End(id)
	second := w.Prompt(id, "second task")
	w.Begin(id)
	w.Say(id, resttest.Text("b", "again")...)
	w.EndWith(id, "refusal", "", session.Delivery{})

	r := stream(t, w, id, "?from=beginning", "")
	if r.status != 200 || !r.done || r.err != nil {
		t.Fatalf("status %d, done %v, error %v", r.status, r.done, r.err)
	}
	var got []event
	prompts := map[string]string{}
	for i, e := range r.events {
		if !strings.Contains(e.Data, `"data-user-prompt"`) {
			got = append(got, e)
			continue
		}
		// The decoder repeats the id before it: the event has none of its own.
		before := r.events[i-1]
		if e.ID != before.ID || !strings.HasPrefix(before.Data, `{"type":"start"`) {
			t.Errorf("the prompt has id %q and comes after %q", e.ID, before.Data)
		}
		prompts[before.ID] = e.Data
	}
	if d := cmp.Diff(stored(w, id), got); d != "" {
		t.Error(d)
	}
	for k, text := range map[string]string{"1.1": `"text":"first task"`, "2.1": `"turn":"` + string(second) + `"`} {
		if !strings.Contains(prompts[k], text) {
			t.Errorf("prompt after %s is %s", k, prompts[k])
		}
	}
	want := map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", "X-Vercel-Ai-Ui-Message-Stream": "v1",
	}
	for k, v := range want {
		if r.header.Get(k) != v {
			t.Errorf("%s is %q, want %q", k, r.header.Get(k), v)
		}
	}
}

func TestLiveThenQueuedTurnThenDone(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	res := open(t.Context(), t, w, id, "", "") // the turn is starting: headers come before any part
	if res.StatusCode != 200 {
		t.Fatalf("status %d", res.StatusCode)
	}
	got, seen := make(chan answer), make(chan struct{})
	go func() {
		var r answer
		d := uistream.NewDecoder(res.Body, 0)
		defer res.Body.Close()
		for {
			e, err := d.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					r.err = err
				}
				got <- r
				return
			}
			r.done = r.done || e.Done
			if e.Comment == "" && !e.Done {
				r.events = append(r.events, event{e.Name, e.ID, string(e.Data)})
			}
			if strings.Contains(string(e.Data), "never stored") {
				close(seen)
			}
		}
	}()
	w.Begin(id)
	w.Say(id, resttest.Text("a", numbered(50)...)...)
	w.Prompt(id, "two")
	w.End(id)
	w.Begin(id)
	w.Publish(id, resttest.Text("b", "never stored by the recorder")...)
	<-seen
	w.End(id) // the seal stores something else than was published
	r := <-got
	if r.err == nil {
		t.Errorf("a viewer that saw parts which the transcript has otherwise must be broken off; it got %d events, done %v", len(r.events), r.done)
	}
	// Coming again with its last id it is told to drop them.
	last := r.events[len(r.events)-1].ID
	again := stream(t, w, id, "", last)
	all := stored(w, id)
	if strings.HasPrefix(last, "2.") && last != "2.1" {
		if len(again.events) == 0 {
			t.Fatal("nothing came after the break")
		}
	}
	if again.err != nil || again.status == 200 && !again.done {
		t.Errorf("again: %d %v", again.status, again.err)
	}
	whole := stream(t, w, id, "", "0.0")
	if d := cmp.Diff(all, whole.events); d != "" {
		t.Error(d)
	}
}

func TestLiveWithoutConflict(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	res := open(t.Context(), t, w, id, "", "")
	got := make(chan answer)
	go func() { got <- read(res, 1<<30) }()
	w.Begin(id)
	w.Say(id, resttest.Text("a", numbered(50)...)...)
	w.Prompt(id, "two")
	late := w.Prompt(id, "three, taken back")
	if _, err := w.Sessions.Cancel(t.Context(), w.Owner(), id, late); err != nil { // it gets number 2 and parts while turn 1 runs
		t.Fatal(err)
	}
	w.Say(id, resttest.Text("c", "more of turn one")...)
	w.End(id)
	w.Begin(id)
	w.Say(id, resttest.Text("b", "x")...)
	w.End(id)
	r := <-got
	if r.err != nil || !r.done {
		t.Fatalf("done %v, error %v", r.done, r.err)
	}
	if d := cmp.Diff(stored(w, id), r.events); d != "" {
		t.Error(d)
	}
}

// Viewers are cut at random places and come again with their last id; together
// each saw the transcript once, in order.
func TestCutsLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Prompt(id, "two")
	w.Prompt(id, "three")
	var wg sync.WaitGroup
	results := make([][]event, 8)
	for i := range results {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			last := "0.0"
			for t.Context().Err() == nil {
				res := open(t.Context(), t, w, id, "", last)
				r := read(res, 1+rng.IntN(200))
				if r.err != nil {
					t.Errorf("viewer %d: %v", i, r.err)
					return
				}
				results[i] = append(results[i], r.events...)
				if n := len(r.events); n > 0 {
					last = r.events[n-1].ID
				}
				if r.done || r.status == http.StatusNoContent {
					return
				}
			}
		})
	}
	for turn := range 3 {
		w.Begin(id)
		for i := range 40 {
			parts := w.Publish(id, resttest.Text(fmt.Sprint("b", i), numbered(10)...)...)
			if err := w.Sessions.Log.Append(t.Context(), string(id), parts); err != nil { // viewers first, store second
				t.Error(err)
			}
			if i%5 == turn {
				w.Hub.Stored(id, parts[len(parts)-1].Cursor)
			}
		}
		w.End(id)
	}
	wg.Wait()
	want := stored(w, id)
	for i, got := range results {
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("viewer %d of %d parts: %s", i, len(want), d)
		}
	}
}

func TestFiftyViewersSeeTheSame(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Begin(id)
	var wg sync.WaitGroup
	results := make([]answer, 50)
	for i := range results {
		res := openAs(t.Context(), t, w, resttest.Token, id, "", "")
		wg.Go(func() { results[i] = read(res, 1<<30) })
	}
	for i := range 20 {
		w.Say(id, resttest.Text(fmt.Sprint(i), numbered(30)...)...)
	}
	w.End(id)
	wg.Wait()
	want := stored(w, id)
	for i, r := range results {
		if d := cmp.Diff(want, r.events); d != "" || !r.done {
			t.Fatalf("viewer %d: done %v, error %v, %s", i, r.done, r.err, d)
		}
	}
}

func TestSlowViewerSlowsNobody(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	w.Gateway.WriteWait = 10 * time.Minute
	id := w.Create("one")
	w.Begin(id)
	slow := open(t.Context(), t, w, id, "", "") // not read until the end
	res := open(t.Context(), t, w, id, "", "")
	fast := make(chan answer)
	go func() { fast <- read(res, 1<<30) }()
	body := strings.Repeat("x", 200_000)
	for i := range 120 { // together more than the kernel's buffers and the hub's memory hold
		w.Say(id, resttest.Text(fmt.Sprint(i), body)...)
	}
	w.End(id)
	want := stored(w, id)
	if r := <-fast; cmp.Diff(want, r.events) != "" || !r.done {
		t.Errorf("fast viewer: done %v, error %v, %d of %d events", r.done, r.err, len(r.events), len(want))
	}
	// The slow one still gets everything, from the store.
	if r := read(slow, 1<<30); cmp.Diff(want, r.events) != "" || !r.done {
		t.Errorf("slow viewer: done %v, error %v, %d of %d events", r.done, r.err, len(r.events), len(want))
	}
}

func TestUnknownIDsAreReset(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Begin(id)
	w.Say(id, resttest.Text("a", "x")...)
	w.End(id)
	all := stored(w, id)
	for _, c := range []struct{ last, after string }{{"1.99", "1.0"}, {"7.1", "0.0"}, {"7.0", "0.0"}, {"0.4", "0.0"}, {"not ours", "0.0"}} {
		r := stream(t, w, id, "", c.last)
		if r.status != 200 || !r.done || len(r.events) == 0 {
			t.Fatalf("%s: %d, %v, %v", c.last, r.status, r.events, r.err)
		}
		if e := r.events[0]; e.Name != "reset" || !strings.Contains(e.Data, `"after":"`+c.after+`"`) {
			t.Errorf("%s: first event is %+v", c.last, e)
		}
		if d := cmp.Diff(all, r.events[1:]); d != "" {
			t.Errorf("%s: %s", c.last, d)
		}
	}
}

func TestBrokenStoreBreaksTheConnection(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Begin(id)
	w.Say(id, resttest.Text("a", "x")...)

	w.Broken.Store(true)
	r := stream(t, w, id, "", "")
	if r.status != 500 || strings.Contains(fmt.Sprint(r.events), "secret") {
		t.Errorf("nothing was sent: want a refusal, got %d", r.status)
	}
	w.Broken.Store(false)
	res := open(t.Context(), t, w, id, "", "")
	first := make(chan struct{})
	got := make(chan answer)
	go func() {
		begun := false
		d := uistream.NewDecoder(res.Body, 0)
		var a answer
		for {
			e, err := d.Next()
			if err != nil {
				a.err = err
				break
			}
			a.done = a.done || e.Done
			if e.ID == "1.1" && !begun {
				close(first)
				begun = true
			}
		}
		_ = res.Body.Close()
		got <- a
	}()
	<-first
	w.Broken.Store(true)
	// A turn ends; the viewer must look whether the store has a next one.
	w.Prompt(id, "two")
	w.End(id)
	if a := <-got; a.done || a.err == nil || errors.Is(a.err, io.EOF) {
		t.Errorf("done %v, error %v: want a broken connection", a.done, a.err)
	}
}

func TestServerStopBreaksStreamsAndLeavingCancelsNothing(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Begin(id)
	left := open(t.Context(), t, w, id, "", "")
	if err := left.Body.Close(); err != nil {
		t.Fatal(err)
	}
	res := open(t.Context(), t, w, id, "", "")
	w.Hub.Close()
	if r := read(res, 1<<30); r.done || r.err == nil {
		t.Errorf("done %v, error %v: want a broken connection", r.done, r.err)
	}
	if a := w.Get(id); a.Open == nil || a.Open.State != session.TurnRunning {
		t.Errorf("the turn is %+v", a.Open)
	}
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	w.Gateway.Heartbeat = 20 * time.Millisecond
	id := w.Create("one")
	res := open(t.Context(), t, w, id, "?heartbeat=event", "")
	r := read(res, 2)
	if len(r.events) != 2 || !strings.Contains(r.events[0].Data, "data-heartbeat") || r.events[0].ID != "" {
		t.Errorf("got %+v", r.events)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res = open(ctx, t, w, id, "", "")
	defer res.Body.Close()
	d := uistream.NewDecoder(res.Body, 0)
	var notes []string
	for len(notes) < 3 {
		e, err := d.Next()
		if err != nil {
			t.Fatal(err)
		}
		notes = append(notes, e.Comment)
	}
	if d := cmp.Diff([]string{"stream-open", "keep-alive", "keep-alive"}, notes); d != "" {
		t.Error(d)
	}
}

func TestLimitOfViewersHolds(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	var all []*http.Response
	attach := func(token string) *http.Response {
		t.Helper()
		url := w.URL + "/v1/agent-sessions/" + string(id)
		ask := func(method, path string, header ...string) *http.Response {
			r, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set(header[0], header[1])
			res, err := web.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		res := ask(http.MethodPost, "/attach-ticket", "Authorization", "Bearer "+token)
		defer res.Body.Close()
		var made struct{ Ticket, Header string }
		if err := json.NewDecoder(res.Body).Decode(&made); err != nil || made.Ticket == "" {
			t.Fatal(err)
		}
		return ask(http.MethodGet, "/stream", made.Header, made.Ticket)
	}
	refused := func(what string, res *http.Response, want string) {
		t.Helper()
		defer res.Body.Close()
		if b, _ := io.ReadAll(res.Body); res.StatusCode != 429 || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s: %d %q", what, res.StatusCode, b)
		}
	}
	for range 10 {
		all = append(all, attach(resttest.Token))
	}
	refused("the 11th ticket of one identity", attach(resttest.Token), "10 streams that your tickets opened show this session already.")
	all = append(all, attach(resttest.Guest(1)))
	for len(all) < 100 { // tokens may be of services that serve many people
		all = append(all, open(t.Context(), t, w, id, "", ""))
	}
	for _, r := range all {
		if r.StatusCode != 200 {
			t.Errorf("within the limits: %d", r.StatusCode)
		}
	}
	const full = "100 viewers watch this session already."
	refused("the 101st", open(t.Context(), t, w, id, "", ""), full)
	refused("the 101st, with a ticket", attach(resttest.Guest(2)), full)
	for _, r := range all {
		_ = r.Body.Close()
	}
}

func TestAgedStreamIsBroken(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	w.Gateway.MaxAge = 30 * time.Millisecond
	if r := stream(t, w, w.Create("one"), "", ""); r.done || r.err == nil {
		t.Errorf("done %v, error %v: want a broken connection", r.done, r.err)
	}
}

func FuzzLastEventID(f *testing.F) {
	w := resttest.New(f)
	id := w.Create("one")
	w.Begin(id)
	w.Say(id, resttest.Text("a", "x", "y")...)
	w.End(id)
	all := stored(w, id)
	for _, s := range []string{"1.1", "1.3", "0.0", "1.7", "9999999999999999999.1", "1", ".", "1.-1", "+1.1", "1.1.1", " 1.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, last string) {
		for _, r := range last {
			if r < ' ' || r > '~' {
				return // net/http refuses to send it
			}
		}
		last = strings.TrimSpace(last)
		if last == "" {
			return
		}
		r := stream(t, w, id, "", last)
		got := r.events
		switch {
		case r.status == http.StatusNoContent:
			if last != all[len(all)-1].ID {
				if c, err := transcript.ParseCursor(last); err != nil || c.String() != all[len(all)-1].ID {
					t.Fatalf("%q: 204", last)
				}
			}
			return
		case r.status != 200 || !r.done || len(got) == 0:
			t.Fatalf("%q: %d, done %v, %d events", last, r.status, r.done, len(got))
		}
		if got[0].Name == "reset" {
			got = got[1:]
		}
		// Whatever was asked, what comes is an end of the transcript.
		if d := cmp.Diff(all[len(all)-len(got):], got); d != "" {
			t.Fatalf("%q: %s", last, d)
		}
	})
}
