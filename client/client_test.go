package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

func connect(t *testing.T, address string) *client.Client {
	t.Helper()
	c, err := client.New(address, resttest.Token, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Retry = time.Millisecond
	return c
}

// fields lists the JSON names of a type and of what is in it.
func fields(ty reflect.Type, at string, seen []reflect.Type) []string {
	for ty.Kind() == reflect.Pointer || ty.Kind() == reflect.Slice {
		ty = ty.Elem()
	}
	if ty.Kind() != reflect.Struct || ty == reflect.TypeFor[time.Time]() || slices.Contains(seen, ty) {
		return []string{at}
	}
	var out []string
	for i := range ty.NumField() {
		name, _, _ := strings.Cut(ty.Field(i).Tag.Get("json"), ",")
		if name != "-" {
			out = append(out, fields(ty.Field(i).Type, at+"."+name, append(seen, ty))...)
		}
	}
	slices.Sort(out)
	return out
}

func TestTypesAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	for _, p := range []struct{ server, client any }{
		{operation.SessionView{}, client.Session{}}, {operation.TurnView{}, client.Turn{}}, {operation.AcceptedView{}, client.Accepted{}},
		{operation.CreateInput{}, client.CreateInput{}}, {operation.SessionList{}, client.SessionList{}}, {operation.TurnList{}, client.TurnList{}},
		{operation.QueueView{}, client.Queue{}}, {operation.PartList{}, client.PartList{}}, {operation.DiffView{}, client.Diff{}},
		{operation.Capabilities{}, client.Capabilities{}},
	} {
		if d := cmp.Diff(fields(reflect.TypeOf(p.server), "", nil), fields(reflect.TypeOf(p.client), "", nil)); d != "" {
			t.Errorf("%T: %s", p.client, d)
		}
	}
}

func TestEveryMethod(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	c := connect(t, w.URL)
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("ready", c.Ready(ctx))
	w.Unready.Store(true)
	var e *client.Error
	if err := c.Ready(ctx); !errors.As(err, &e) || e.Status != 503 || e.Code != "SERVER_UNAVAILABLE" || !strings.Contains(e.Remedy, "Free space") {
		t.Fatalf("a full disk: %#v", err)
	}
	w.Unready.Store(false)
	a, err := c.Create(ctx, client.CreateInput{Repo: "https://git.example.org/a.git", Prompt: "Fix", Key: "k"})
	must("create", err)
	b, err := c.Create(ctx, client.CreateInput{Repo: "https://git.example.org/a.git", Prompt: "Fix", Key: "k"})
	if err != nil || b.Session.ID != a.Session.ID {
		t.Fatalf("the same key: %v, %s", err, b.Session.ID)
	}
	id := session.ID(a.Session.ID)
	q, err := c.Prompt(ctx, a.Session.ID, client.PromptInput{Prompt: "More"})
	must("prompt", err)
	queue, err := c.Queue(ctx, a.Session.ID)
	if err != nil || len(queue.Items) != 1 || queue.Items[0].ID != q.Turn.ID || q.Position != 1 {
		t.Fatalf("queue %+v, %v", queue, err)
	}
	edited, err := c.EditQueued(ctx, a.Session.ID, q.Turn.ID, client.Edit{Prompt: "Less", Position: 1})
	if err != nil || edited.Turn.Prompt != "Less" || edited.Position != 1 || edited.Turn.EditedAt == nil {
		t.Fatalf("edited %+v, %v", edited, err)
	}
	held, err := c.HoldQueue(ctx, a.Session.ID)
	if err != nil || !held.QueueHeld {
		t.Fatalf("held %+v, %v", held, err)
	}
	removed, err := c.RemoveQueued(ctx, a.Session.ID, q.Turn.ID)
	if err != nil || removed.End != "never_started" {
		t.Fatalf("removed %+v, %v", removed, err)
	}
	if _, err := c.EditQueued(ctx, a.Session.ID, q.Turn.ID, client.Edit{Prompt: "Late"}); !errors.As(err, &e) || e.Code != "TURN_NOT_QUEUED" || e.Details["state"] != "canceled" {
		t.Fatalf("too late: %#v", err)
	}
	_, err = c.Cancel(ctx, a.Session.ID, q.Turn.ID)
	must("cancel", err)
	w.Begin(id)
	w.Say(id, resttest.Text("x", "hello")...)
	w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: "BRANCH_MOVED"})
	turn, err := c.Turn(ctx, a.Session.ID, a.Turn.ID)
	if err != nil || !turn.Ended() || turn.Delivery.Code != "BRANCH_MOVED" || turn.Delivery.Remedy == "" {
		t.Fatalf("turn %+v, %v", turn, err)
	}
	turns, err := c.Turns(ctx, a.Session.ID, 1)
	if err != nil || len(turns.Items) != 1 {
		t.Fatalf("turns %+v, %v", turns, err)
	}
	page, err := c.Transcript(ctx, a.Session.ID, "1.2")
	if err != nil || len(page.Items) == 0 || page.Items[0].Cursor != "1.3" {
		t.Fatalf("transcript %+v, %v", page, err)
	}
	said, err := c.Messages(ctx, a.Session.ID, 0)
	if err != nil || len(said.Items) != 4 || said.Next != 0 || said.Items[1].ID != a.Turn.ID || len(said.Items[1].Parts) < 2 {
		t.Fatalf("messages %+v, %v", said, err)
	}
	if said, err = c.Messages(ctx, a.Session.ID, 2); err != nil || len(said.Items) != 0 {
		t.Fatalf("messages behind the end %+v, %v", said, err)
	}
	for format, begin := range map[string]string{"": `{"type":"session","version":1,`, "markdown": "# "} {
		f, err := c.Export(ctx, a.Session.ID, format)
		must("export", err)
		if b, err := io.ReadAll(f); err != nil || !strings.HasPrefix(string(b), begin) || !strings.Contains(string(b), "hello") || !strings.Contains(f.Name, a.Session.ID) {
			t.Fatalf("export %q as %q: %.200s, %v", format, f.Name, b, err)
		}
		must("close", f.Close())
	}
	if _, err := c.Export(ctx, a.Session.ID, "html"); client.CodeOf(err) != "INVALID_INPUT" {
		t.Fatalf("export in an unknown format: %v", err)
	}
	if _, err := c.Messages(ctx, "ses_none", 0); client.CodeOf(err) != "SESSION_NOT_FOUND" {
		t.Fatalf("messages of an unknown session: %v", err)
	}
	diff, err := c.Diff(ctx, a.Session.ID, a.Turn.ID, "stat")
	if err != nil || diff.Text == "" {
		t.Fatalf("diff %+v, %v", diff, err)
	}
	bundle, err := c.Bundle(ctx, a.Session.ID)
	must("bundle", err)
	if b, err := io.ReadAll(bundle); err != nil || !strings.HasPrefix(string(b), "# v2 git bundle\n"+a.Session.ID) || bundle.Name != strings.ReplaceAll(a.Session.Branch, "/", "-")+".bundle" {
		t.Fatalf("bundle %q of %d bytes, %v", bundle.Name, len(b), err)
	}
	must("close", bundle.Close())
	w.Cut.Store(true)
	if bundle, err = c.Bundle(ctx, a.Session.ID); err == nil {
		_, err = io.Copy(io.Discard, bundle)
		must("close", bundle.Close())
	}
	if client.CodeOf(err) != "SERVER_UNAVAILABLE" {
		t.Fatalf("a bundle that breaks off: %v", err)
	}
	_, err = c.Deliver(ctx, a.Session.ID)
	must("deliver", err)
	_, err = c.Discard(ctx, a.Session.ID)
	must("discard", err)
	_, err = c.ReleaseQueue(ctx, a.Session.ID)
	must("release", err)
	list, err := c.List(ctx, client.ListInput{Phases: []string{"idle", "failed"}, Limit: 5})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("list %+v, %v", list, err)
	}
	caps, err := c.Capabilities(ctx)
	if err != nil || caps.Sandbox.Isolation != "gvisor" {
		t.Fatalf("capabilities %+v, %v", caps, err)
	}
	v, err := c.Version(ctx)
	if err != nil || v.Version != "test" {
		t.Fatalf("version %+v, %v", v, err)
	}
	if _, err = c.Delete(ctx, a.Session.ID, false); client.CodeOf(err) != "UNDELIVERED_WORK" {
		t.Fatalf("delete: %v", err)
	}
	s, err := c.Delete(ctx, a.Session.ID, true)
	if err != nil || s.Phase != "deleting" {
		t.Fatalf("delete with force: %+v, %v", s, err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	c := connect(t, w.URL)
	none := func(client.Event) error { return nil }

	var e *client.Error
	_, err := c.Get(t.Context(), "ses_none")
	if !errors.As(err, &e) || e.Code != "SESSION_NOT_FOUND" || e.Status != 404 || e.Remedy == "" || e.RequestID == "" {
		t.Errorf("unknown session: %#v", err)
	}
	if err := c.Stream(t.Context(), "ses_none", client.StreamOptions{}, none); client.CodeOf(err) != "SESSION_NOT_FOUND" {
		t.Errorf("stream of an unknown session: %v", err)
	}
	if _, err := c.Bundle(t.Context(), string(w.Create("x"))); client.CodeOf(err) != "NOTHING_PACKED" {
		t.Errorf("bundle of nothing: %v", err)
	}
	wrong, err := client.New(w.URL, "wrong", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := wrong.Stream(t.Context(), "ses_none", client.StreamOptions{}, none); client.CodeOf(err) != "UNAUTHENTICATED" {
		t.Errorf("wrong token: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	nobody := connect(t, address)
	nobody.GiveUp = 20 * time.Millisecond
	if _, err := nobody.List(t.Context(), client.ListInput{}); client.CodeOf(err) != "SERVER_UNAVAILABLE" {
		t.Errorf("nobody there: %v", err)
	}
	if err := nobody.Stream(t.Context(), "x", client.StreamOptions{}, none); client.CodeOf(err) != "SERVER_UNAVAILABLE" {
		t.Errorf("stream with nobody there: %v", err)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer other.Close()
	if _, err := connect(t, other.URL).List(t.Context(), client.ListInput{}); !strings.Contains(fmt.Sprint(err), "not a Hearth server") {
		t.Errorf("another server: %v", err)
	}
	if _, err := connect(t, other.URL).Bundle(t.Context(), "x"); !strings.Contains(fmt.Sprint(err), "not a Hearth server") {
		t.Errorf("bundle of another server: %v", err)
	}
	for _, a := range []string{"", "127.0.0.1:7747", "ftp://x", "http://", "http://u:p@x", "http://x?y"} {
		if _, err := client.New(a, "", nil); client.CodeOf(err) != "INVALID_INPUT" {
			t.Errorf("address %q: %v", a, err)
		}
	}
}

// cutter passes connections on and cuts each after some bytes of the answer.
func cutter(t *testing.T, to string, bytes func() int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				up, err := net.Dial("tcp", strings.TrimPrefix(to, "http://"))
				if err != nil {
					return
				}
				wg.Go(func() { _, _ = io.Copy(up, c) })
				_, _ = io.CopyN(c, up, bytes())
				_ = up.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return "http://" + l.Addr().String()
}

func TestStreamComesAgainAfterCuts(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	address := cutter(t, w.URL, func() int64 {
		mu.Lock()
		defer mu.Unlock()
		return 400 + rng.Int64N(4000)
	})
	id := w.Create("one")
	w.Prompt(id, "two")
	for _, o := range []client.StreamOptions{{Beginning: true}, {Beginning: true, States: true}} {
		c, err := client.New(address, resttest.Token, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}})
		if err != nil {
			t.Fatal(err)
		}
		c.Retry = time.Millisecond
		var got, prompts []string
		broken := 0
		finished := make(chan error)
		go func() {
			finished <- c.Stream(t.Context(), string(id), o, func(e client.Event) error {
				switch {
				case e.State == client.StateBroken:
					broken++
				case e.State != "":
				case e.Reset:
					t.Error("reset")
				case e.Type == "data-user-prompt":
					prompts = append(prompts, e.ID())
				default:
					got = append(got, e.ID()+" "+string(e.Data))
				}
				return nil
			})
		}()
		for range 2 {
			if w.Get(id).Open == nil {
				break // the second round reads what is stored
			}
			w.Begin(id)
			for i := range 30 {
				w.Say(id, resttest.Text(fmt.Sprint(i), "some ", "words ", "of text")...)
			}
			w.End(id)
		}
		if err := <-finished; err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, p := range w.Transcript(id) {
			want = append(want, p.Cursor.String()+" "+string(p.Body))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"1.1", "2.1"}, prompts); d != "" {
			t.Error(d)
		}
		if o.States && broken == 0 {
			t.Error("nothing was cut: the test shows nothing")
		}
	}
}

func TestStreamEndsWithItsReader(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	c := connect(t, w.URL)
	id := w.Create("one")
	w.Begin(id)
	stop := errors.New("enough")
	if err := c.Stream(t.Context(), string(id), client.StreamOptions{}, func(client.Event) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Stream(ctx, string(id), client.StreamOptions{}, func(client.Event) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	var reset []client.Event
	w.End(id)
	err := c.Stream(t.Context(), string(id), client.StreamOptions{After: "1.77"}, func(e client.Event) error {
		if e.Reset {
			reset = append(reset, e)
		}
		return nil
	})
	if d := cmp.Diff([]client.Event{{Turn: 1, Reset: true}}, reset); d != "" || err != nil {
		t.Error(d, err)
	}
}

func TestSilentConnectionIsLeft(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	calls := 0
	stop := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		calls++
		n := calls
		mu.Unlock()
		if n == 2 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		select { // a connection that hangs without a word
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(stop)
	c := connect(t, s.URL)
	c.Silence = 50 * time.Millisecond
	if err := c.Stream(t.Context(), "x", client.StreamOptions{}, func(client.Event) error { return nil }); err != nil {
		t.Error(err)
	}
}

// TestPublicPathsGetNoToken: who answers there is not known yet.
func TestPublicPathsGetNoToken(t *testing.T) {
	t.Parallel()
	got := map[string]bool{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got[r.URL.Path] = r.Header.Get("Authorization") != ""
		_, _ = io.WriteString(w, `{}`)
	}))
	defer s.Close()
	c := connect(t, s.URL)
	_ = c.Ready(t.Context())
	_, _ = c.Version(t.Context())
	_, _ = c.Capabilities(t.Context())
	if d := cmp.Diff(map[string]bool{"/readyz": false, "/version": false, "/v1/capabilities": true}, got); d != "" {
		t.Error(d)
	}
}

// TestReadyTellsWhatIsMissing: a self-test that runs is told only when nothing worse is.
func TestReadyTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ checks, code string }{
		{`{"name":"store"},{"name":"sandbox","code":"SELF_TEST_RUNNING","message":"m"}`, "SELF_TEST_RUNNING"},
		{`{"name":"disk","code":"DISK_FULL","message":"m"},{"name":"sandbox","code":"SELF_TEST_RUNNING","message":"m"}`, "DISK_FULL"},
		{`{"name":"sandbox","code":"SANDBOX_UNSUPPORTED","message":"m"}`, "SANDBOX_UNSUPPORTED"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"ready":false,"checks":[`+c.checks+`]}`)
		}))
		var e *client.Error
		if err := connect(t, s.URL).Ready(t.Context()); !errors.As(err, &e) || e.Details["code"] != c.code {
			t.Errorf("%s: %#v", c.code, err)
		}
		s.Close()
	}
}
