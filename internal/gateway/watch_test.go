package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/uistream"
)

// watcher reads a watch.
type watcher struct {
	t    *testing.T
	res  *http.Response
	d    *uistream.Decoder
	stop func()
}

func watchAs(t *testing.T, w *resttest.World, token, query, last string) *watcher {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL+"/v1/watch"+query, nil)
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
	t.Cleanup(func() { _ = res.Body.Close() })
	return &watcher{t: t, res: res, d: uistream.NewDecoder(res.Body, 0), stop: stop}
}

// opened is watchAs, and waits for the first comment.
func opened(t *testing.T, w *resttest.World, query, last string) *watcher {
	t.Helper()
	x := watchAs(t, w, resttest.Token, query, last)
	if e, err := x.d.Next(); err != nil || e.Comment != "watching" || x.res.StatusCode != 200 {
		t.Fatalf("%d %+v %v", x.res.StatusCode, e, err)
	}
	return x
}

func (x *watcher) next() event {
	x.t.Helper()
	for {
		e, err := x.d.Next()
		if err != nil {
			x.t.Fatal(err)
		}
		if e.Comment == "" {
			return event{e.Name, e.ID, string(e.Data)}
		}
	}
}

// until reads up to a change, and returns the changes as "kind session".
func (x *watcher) until(kind string, id session.ID) (out []string, last string) {
	x.t.Helper()
	for {
		e := x.next()
		var c struct{ Kind, Session string }
		if err := json.Unmarshal([]byte(e.Data), &c); err != nil || e.Name != "" || e.ID == "" {
			x.t.Fatalf("%+v %v", e, err)
		}
		out = append(out, c.Kind+" "+c.Session)
		if c.Kind == kind && c.Session == string(id) {
			return out, e.ID
		}
	}
}

func TestWatchTellsWhatChanged(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	x := opened(t, w, "", "")
	for k, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"} {
		if got := x.res.Header.Get(k); got != want {
			t.Errorf("%s: %q", k, got)
		}
	}
	id := w.Create("one")
	said, _ := x.until("start", id)
	name := " " + string(id)
	if d := cmp.Diff([]string{"session" + name, "start" + name}, said); d != "" {
		t.Errorf("created: %s", d)
	}
	w.Prompt(id, "two")
	if said, _ := x.until("queue", id); !slices.Contains(said, "session"+name) {
		t.Errorf("queued: %v", said)
	}
	w.Sessions.Progress(&session.Session{ID: id, Workspace: "default"})
	if said, _ := x.until("start", id); len(said) != 1 {
		t.Errorf("progress: %v", said)
	}
	turn := w.Begin(id)
	for told := []string{}; !slices.Contains(told, "session"+name) || !slices.Contains(told, "start"+name); { // in any order: they come again and again
		var c struct{ Kind, Session string }
		if err := json.Unmarshal([]byte(x.next().Data), &c); err != nil {
			t.Fatal(err)
		}
		told = append(told, c.Kind+" "+c.Session)
	}
	q := session.Question{ID: session.QuestionIDOf(turn.ID, 1), Session: id, Turn: turn.ID, Number: 1, Kind: session.QuestionPermission, State: session.QuestionPending, Title: "secret title",
		Options: []session.Option{{ID: "a", Name: "Allow", Kind: "allow_once"}}}
	w.Apply(id, session.QuestionAsked{Question: q})
	if said, _ := x.until("question", id); !slices.Contains(said, "session"+name) {
		t.Errorf("asked: %v", said)
	}
	if _, err := w.Sessions.Answer(t.Context(), w.Owner(), id, q.ID, session.AnswerInput{Verdict: "allow"}); err != nil {
		t.Fatal(err)
	}
	x.until("question", id)
	w.End(id) // the next one leaves the queue
	x.until("queue", id)
	other := w.Create("two")
	x.until("session", other)
	a := w.Get(id)
	if err := w.Sessions.Remove(t.Context(), &a.Session); err != nil {
		t.Fatal(err)
	}
	x.until("session", id)
}

func TestWatchIsOfTheWorkspaceOnly(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	foreign := watchAs(t, w, resttest.Foreign, "", "")
	mine := opened(t, w, "", "")
	id := w.Create("one")
	_, last := mine.until("session", id)
	stranger := session.Caller{Subject: "stranger", Workspace: "elsewhere"}
	a, err := w.Sessions.Create(t.Context(), stranger, session.CreateInput{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs := a.Aggregate.Session.ID
	if said, _ := foreign.until("session", theirs); len(said) != 1 {
		t.Errorf("they were told %v", said)
	}
	// An id of one workspace is none of another.
	if e := watchAs(t, w, resttest.Foreign, "", last).next(); e.Name != "reset" {
		t.Errorf("%+v", e)
	}
	w.Prompt(id, "two")
	if said, _ := mine.until("queue", id); slices.ContainsFunc(said, func(s string) bool { return strings.HasSuffix(s, string(theirs)) }) {
		t.Errorf("we were told %v", said)
	}
}

func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	x := opened(t, w, "", "")
	start := x.d.LastID() // known before anything happened
	id := w.Create("one")
	_, first := x.until("session", id)
	x.stop()
	other := w.Create("two")
	for _, c := range []struct{ query, last string }{{"", first}, {"?after=" + first, ""}, {"?after=nonsense", first}} {
		said, _ := opened(t, w, c.query, c.last).until("start", other)
		if d := cmp.Diff([]string{"start " + string(id), "session " + string(other), "start " + string(other)}, said); d != "" {
			t.Errorf("%+v: %s", c, d)
		}
	}
	if said, _ := opened(t, w, "", start).until("start", other); len(said) != 4 {
		t.Errorf("from the start: %v", said)
	}
}

func TestWatchResets(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	x := opened(t, w, "", "")
	start := x.d.LastID()
	x.stop()
	life, _, _ := strings.Cut(start, ".")
	another := resttest.New(t)
	foreign := opened(t, another, "", "").d.LastID()
	bad := []string{"x", ".", life, life + ".", life + ".-1", life + ".1", life + ".00", life + ".99999999999999999999", foreign, strings.Repeat("a", 5000), life + "." + strings.Repeat("0", 200)}
	for _, last := range bad {
		y := opened(t, w, "", last)
		if e := y.next(); e.Name != "reset" || !json.Valid([]byte(e.Data)) || e.ID != start {
			t.Errorf("%.60q: %+v", last, e)
		}
		y.stop()
	}
	// It goes on after the reset.
	y := opened(t, w, "", "x")
	y.next()
	id := w.Create("one")
	y.until("session", id)
	// What was told so long ago that it is forgotten.
	for i := range 5000 {
		w.Hub.Changed("default", session.ID(fmt.Sprint("ses_", i)), session.KindSession)
	}
	z := opened(t, w, "", start)
	e := z.next()
	if e.Name != "reset" || e.ID == start {
		t.Errorf("%+v", e)
	}
	other := w.Create("two")
	if said, _ := z.until("session", other); len(said) != 1 {
		t.Errorf("after the reset: %v", said)
	}
}

// A watcher who takes nothing holds up nobody, and finds many changes of one thing as one.
func TestSlowWatcher(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	w.Gateway.WriteWait = 10 * time.Minute
	slow := opened(t, w, "", "")
	fast := opened(t, w, "", "")
	done := make(chan int)
	go func() {
		n := 0
		for {
			e := fast.next()
			if n++; strings.Contains(e.Data, "ses_last") {
				done <- n
				return
			}
		}
	}()
	begun := time.Now()
	const rounds = 150_000 // far more than the kernel's buffers hold
	for i := range rounds {
		w.Hub.Changed("default", session.ID(fmt.Sprint("ses_", i%100)), session.KindSession)
	}
	w.Hub.Changed("default", "ses_last", session.KindSession)
	if n := <-done; n > rounds+1 {
		t.Errorf("the fast one was told %d times", n)
	}
	t.Logf("%d changes in %s", rounds, time.Since(begun))
	said, _ := slow.until("session", "ses_last")
	if len(said) == rounds+1 {
		t.Skip("the slow one was not slow: nothing was joined")
	}
	seen := map[string]int{}
	for i, s := range said {
		seen[s] = i
	}
	for i := range 99 { // the order of the last changes
		if a, b := seen[fmt.Sprint("session ses_", i)], seen[fmt.Sprint("session ses_", i+1)]; a >= b {
			t.Fatalf("%d comes at %d, the next at %d", i, a, b)
		}
	}
}

func TestLimitOfWatches(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	var all []*watcher
	for range 20 {
		all = append(all, opened(t, w, "", ""))
	}
	x := watchAs(t, w, resttest.Token, "", "")
	b, err := io.ReadAll(x.res.Body)
	if err != nil || x.res.StatusCode != 429 || !strings.Contains(string(b), "STREAM_LIMIT") || !strings.Contains(string(b), "20 watches of yours are open already.") {
		t.Errorf("%d %s", x.res.StatusCode, b)
	}
	if y := watchAs(t, w, resttest.Guest(1), "", ""); y.res.StatusCode != 200 {
		t.Errorf("somebody else: %d", y.res.StatusCode)
	}
	all[0].stop()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		y := watchAs(t, w, resttest.Token, "", "")
		if y.res.StatusCode == 200 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the place of one that left is not free")
		}
	}
}

func TestWatchIsBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(w *resttest.World)
	}{
		{"stop", func(w *resttest.World) { w.Hub.Close() }},
		{"revoked", func(w *resttest.World) { w.Identity.Revoke(resttest.Token) }},
		{"age", func(*resttest.World) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := resttest.New(t)
			w.Gateway.RecheckEvery = 10 * time.Millisecond
			if c.name == "age" {
				w.Gateway.MaxAge = 100 * time.Millisecond
			}
			w.Gateway.Heartbeat = 20 * time.Millisecond
			x := opened(t, w, "", "")
			if c.name != "age" { // it may end before
				if e, err := x.d.Next(); err != nil || e.Comment != "keep-alive" {
					t.Errorf("%+v %v", e, err)
				}
			}
			c.do(w)
			if rest, err := io.ReadAll(x.res.Body); err == nil {
				t.Errorf("it ended well: %q", rest)
			}
		})
	}
}

func TestWatchRefusals(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	for _, c := range []struct {
		token, query string
		status       int
		code         string
	}{
		{"nope", "", 401, "UNAUTHENTICATED"},
		{resttest.Token, "?from=beginning", 422, "INVALID_INPUT"},
	} {
		x := watchAs(t, w, c.token, c.query, "")
		if b, _ := io.ReadAll(x.res.Body); x.res.StatusCode != c.status || !strings.Contains(string(b), c.code) {
			t.Errorf("%+v: %d %s", c, x.res.StatusCode, b)
		}
	}
}
