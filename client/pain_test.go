package client_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/gateway"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
)

// The page of a proxy or of somebody else's server is never taken for ours: the status is
// kept and the words say what is wrong, for a call, a download and a stream alike.
func TestPagesOfOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status    int
		kind      string
		retryable bool
		words     string
	}{
		{401, "text/html", false, "not a Hearth server (status 401)"},
		{403, "text/html; charset=utf-8", false, "not a Hearth server (status 403)"},
		{404, "text/plain", false, "not a Hearth server (status 404)"},
		{200, "text/html", false, "not a Hearth server (status 200)"},
		{302, "text/html", false, "not a Hearth server (status 302)"},
		{502, "text/html", true, "does not reach the server (status 502)"},
		{503, "text/html", true, "does not reach the server (status 503)"},
		{504, "", true, "does not reach the server (status 504)"},
	} {
		calls := 0
		var mu sync.Mutex
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			calls++
			mu.Unlock()
			w.Header().Set("Content-Type", c.kind)
			w.Header().Set("Location", "/login")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, "<html>\ndata: {\"type\":\"start\"}\n\n</html>")
		}))
		cl := connect(t, s.URL)
		cl.GiveUp = 30 * time.Millisecond
		_, get := cl.Get(t.Context(), "x")
		_, create := cl.Create(t.Context(), client.CreateInput{Prompt: "x"})
		_, bundle := cl.Bundle(t.Context(), "x")
		mu.Lock()
		before := calls
		mu.Unlock()
		given := 0
		stream := cl.Stream(t.Context(), "x", client.StreamOptions{}, func(client.Event) error { given++; return nil })
		for what, err := range map[string]error{"get": get, "create": create, "bundle": bundle, "stream": stream} {
			var e *client.Error
			if !errors.As(err, &e) || e.Status != c.status || e.Retryable != c.retryable || e.Code != "SERVER_UNAVAILABLE" || !strings.Contains(e.Message, c.words) || e.Remedy == "" {
				t.Errorf("%d %s, %s: %#v", c.status, c.kind, what, err)
			}
		}
		if given != 0 {
			t.Errorf("%d %s: %d events were made of the page", c.status, c.kind, given)
		}
		mu.Lock()
		if again := calls - before; (again > 1) != c.retryable {
			t.Errorf("%d %s: the stream was asked for %d times", c.status, c.kind, again)
		}
		mu.Unlock()
		s.Close()
	}
}

// A refusal of our own server behind a proxy that leaves bodies alone keeps all that it says.
func TestProblemsAreKept(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 409, 429, 500, 503} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/stream") {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				w.Header().Set("Hearth-Error-Code", "DISK_FULL")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "A sentence.\n")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error":{"code":"DISK_FULL","kind":"exhausted","message":"A sentence.","remedy":"Do.","details":{"a":1},"requestId":"req_1"}}`)
		}))
		c := connect(t, s.URL)
		c.GiveUp = 20 * time.Millisecond
		var e *client.Error
		if _, err := c.Get(t.Context(), "x"); !errors.As(err, &e) || e.Code != "DISK_FULL" || e.Status != status || e.Message != "A sentence." || e.RequestID != "req_1" || e.Details["a"] == nil {
			t.Errorf("%d: %#v", status, err)
		}
		if err := c.Stream(t.Context(), "x", client.StreamOptions{}, func(client.Event) error { return nil }); !errors.As(err, &e) || e.Code != "DISK_FULL" || e.Status != status || e.Message != "A sentence." {
			t.Errorf("%d, stream: %#v", status, err)
		}
		s.Close()
	}
}

// blackhole passes connections on until it is closed to what comes: the connection stays, and
// nothing moves any more in either direction, as when the other end has vanished.
type blackhole struct {
	mu    sync.Mutex
	after int64 // bytes of the answer that still pass, for the next connection
}

func (b *blackhole) listen(t *testing.T, to string) string {
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
			b.mu.Lock()
			after := b.after
			b.after = 1 << 40
			b.mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				up, err := net.Dial("tcp", strings.TrimPrefix(to, "http://"))
				if err != nil {
					return
				}
				defer up.Close()
				gone := make(chan struct{})
				wg.Go(func() { defer close(gone); _, _ = io.Copy(up, c) })
				_, _ = io.CopyN(c, up, after)
				<-gone // the client has left
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return "http://" + l.Addr().String()
}

// A connection that has died without a word is noticed within two heartbeats, right after it
// was accepted or later, and the stream goes on elsewhere without a gap.
func TestDeadConnectionIsNoticed(t *testing.T) {
	t.Parallel()
	c, err := client.New("http://127.0.0.1:1", "", nil)
	if err != nil || c.Silence > 2*gateway.DefaultHeartbeat {
		t.Errorf("the client waits %v for a sign of life, the server gives one each %v, %v", c.Silence, gateway.DefaultHeartbeat, err)
	}
	const heartbeat = 250 * time.Millisecond
	for _, after := range []int64{0, 100, 900, 3000} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			t.Parallel()
			w := resttest.New(t)
			w.Gateway.Heartbeat = heartbeat
			hole := &blackhole{after: after}
			c, err := client.New(hole.listen(t, w.URL), resttest.Token, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}})
			if err != nil {
				t.Fatal(err)
			}
			c.Retry, c.Silence = time.Millisecond, 2*heartbeat
			id := w.Create("one")
			w.Begin(id)
			for i := range 30 {
				w.Say(id, resttest.Text(fmt.Sprint(i), "some ", "words")...)
			}
			var got []string
			last := time.Now()
			var longest time.Duration
			err = c.Stream(t.Context(), string(id), client.StreamOptions{After: "0.0", States: true}, func(e client.Event) error {
				switch {
				case e.State == client.StateBroken:
					longest = time.Since(last)
				case e.State == "" && !e.Reset:
					got = append(got, e.ID()+" "+string(e.Data))
					if len(got) == 100 {
						w.End(id)
					}
				case e.Reset:
					t.Error("reset")
				}
				last = time.Now()
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, p := range w.Transcript(id) {
				want = append(want, p.Cursor.String()+" "+string(p.Body))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			if longest == 0 || longest > 2*heartbeat+2*time.Second { // a busy machine's delay
				t.Errorf("it was noticed after %v", longest)
			}
		})
	}
}
