package gateway_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/uistream"
)

// differs tells where what was seen is not what is stored; empty: nowhere.
func differs(want, got []event) string {
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return fmt.Sprintf("event %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	if len(want) != len(got) {
		return fmt.Sprintf("%d events, want %d", len(got), len(want))
	}
	return ""
}

// take reads so many bytes of a body and gives the events that are whole in them.
func take(res *http.Response, bytesRead int64) (events []event, done bool, err error) {
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, bytesRead))
	if err != nil {
		return nil, false, err
	}
	d := uistream.NewDecoder(bytes.NewReader(b), 0)
	for {
		e, err := d.Next()
		switch {
		case err != nil:
			return events, done, nil
		case e.Done:
			done = true
		case e.Comment == "":
			events = append(events, event{e.Name, e.ID, string(e.Data)})
		}
	}
}

// A thousand cuts at random bytes, in the middle of events too, over real connections and
// a real store while the turn runs: going on by header or query, each viewer has seen the
// transcript, each part once.
func TestThousandCuts(t *testing.T) {
	t.Parallel()
	const cuts, viewers = 1000, 10
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := resttest.New(t)
	id := w.Create("one")
	w.Prompt(id, "two")
	var made atomic.Int64
	var wg sync.WaitGroup
	results := make([][]event, viewers)
	for v := range viewers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(v)))
			last := "0.0"
			for t.Context().Err() == nil {
				query, header := "", last
				if rng.IntN(2) == 0 {
					query, header = "?after="+last, ""
				}
				res := open(t.Context(), t, w, id, query, header)
				if res.StatusCode == http.StatusNoContent {
					_ = res.Body.Close()
					return
				}
				events, done, err := take(res, 1+rng.Int64N(3000))
				if err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("viewer %d: %d, %v", v, res.StatusCode, err)
					return
				}
				results[v] = append(results[v], events...)
				if n := len(events); n > 0 {
					last = events[n-1].ID
				}
				if done {
					return
				}
				made.Add(1)
			}
		})
	}
	for turn := range 2 {
		w.Begin(id)
		for i := 0; made.Load() < int64(turn+1)*cuts/2 && i < 3000; i++ {
			bodies := resttest.Text(fmt.Sprint(turn, "-", i), numbered(1+i%7)...)
			if i%5 == 0 { // shown for a while before it is stored
				parts := w.Publish(id, bodies...)
				if err := w.Sessions.Log.Append(t.Context(), string(id), parts); err != nil {
					t.Error(err)
				}
				continue
			}
			w.Say(id, bodies...)
		}
		w.End(id)
	}
	wg.Wait()
	want := stored(w, id)
	for v, got := range results {
		if d := differs(want, got); d != "" {
			t.Errorf("seed %d, viewer %d of %d parts: %s", seed, v, len(want), d)
		}
	}
	if n := made.Load(); n < cuts {
		t.Errorf("only %d cuts were made", n)
	}
}

// Five hundred viewers who vanish with a reset while they are written to disturb nobody,
// and nothing of them is left. Not beside other tests: it counts goroutines.
func TestResetsDisturbNobody(t *testing.T) {
	const resets = 500
	w := resttest.New(t)
	id := w.Create("one")
	w.Begin(id)
	web.CloseIdleConnections()
	base := runtime.NumGoroutine()
	res := open(t.Context(), t, w, id, "", "")
	got := make(chan answer, 1)
	go func() { got <- read(res, 1<<30) }()
	var gone atomic.Int64
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for gone.Load() < resets && t.Context().Err() == nil {
				if reset(t, w, id) {
					gone.Add(1)
				}
			}
		})
	}
	body := strings.Repeat("x", 2000)
	for i := 0; gone.Load() < resets && i < 20_000; i++ {
		w.Say(id, resttest.Text(fmt.Sprint(i), body, body)...)
	}
	wg.Wait()
	w.End(id)
	want := stored(w, id)
	if r := <-got; !r.done || r.err != nil || differs(want, r.events) != "" {
		t.Errorf("the other viewer: done %v, %v, %s", r.done, r.err, differs(want, r.events))
	}
	if n := gone.Load(); n < resets {
		t.Errorf("only %d vanished", n)
	}
	web.CloseIdleConnections()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > base+2 {
		select {
		case <-tick.C:
		case <-deadline:
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), base, buf[:runtime.Stack(buf, true)])
		}
	}
}

// reset watches for a moment and ends the connection with a reset; false where it was not let in.
func reset(t *testing.T, w *resttest.World, id session.ID) bool {
	c, err := net.Dial("tcp", strings.TrimPrefix(w.URL, "http://"))
	if err != nil {
		t.Error(err)
		return false
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		t.Error(err)
	}
	fmt.Fprintf(c, "GET /v1/agent-sessions/%s/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", id, resttest.Token)
	r := bufio.NewReader(c)
	status, err := r.ReadString('\n')
	if err != nil || !strings.Contains(status, " 200 ") {
		return false
	}
	_, err = io.CopyN(io.Discard, r, 3000)
	return err == nil
}

// Going from the stream to pages of the transcript and back at each event leaves no gap
// and doubles nothing: a place is the same thing to both.
func TestOtherTransportAtEachEvent(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Prompt(id, "two")
	page := func(after string) ([]event, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+"/v1/agent-sessions/"+string(id)+"/transcript?after="+after, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+resttest.Token)
		res, err := web.Do(r)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		var list struct {
			Items []struct {
				Cursor string          `json:"cursor"`
				Part   json.RawMessage `json:"part"`
			} `json:"items"`
		}
		if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
			return nil, err
		}
		var out []event
		for _, p := range list.Items {
			out = append(out, event{"", p.Cursor, string(p.Part)})
		}
		return out, nil
	}
	var got []event
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		last := "0.0"
		for n := 0; t.Context().Err() == nil; n++ {
			var events []event
			switch n % 3 {
			case 0, 1:
				query, header := "?after="+last, ""
				if n%3 == 1 {
					query, header = "", last
				}
				r := read(open(t.Context(), t, w, id, query, header), 1)
				if events = r.events; r.done || r.status == http.StatusNoContent {
					return
				}
			default: // which has only what is stored
				p, err := page(last)
				if err != nil {
					t.Error(err)
					return
				}
				events = p[:min(1, len(p))]
			}
			if len(events) > 0 {
				last = events[0].ID
			}
			got = append(got, events...)
		}
	}()
	for range 2 {
		w.Begin(id)
		for i := range 12 {
			w.Say(id, resttest.Text(fmt.Sprint(i), numbered(5)...)...)
		}
		w.End(id)
	}
	<-ended
	if d := differs(stored(w, id), got); d != "" {
		t.Error(d)
	}
}

// A burst of 5,000 parts to 50 viewers with the store on: nobody misses one, neither does
// one who takes five milliseconds for each of the first thousand.
func TestBurst(t *testing.T) {
	t.Parallel()
	const viewers, parts = 50, 5000
	w := resttest.New(t)
	w.Gateway.WriteWait = 10 * time.Minute
	id := w.Create("one")
	w.Begin(id)
	var wg sync.WaitGroup
	results := make([][]event, viewers+1)
	for v := range results {
		res := open(t.Context(), t, w, id, "", "")
		wg.Go(func() {
			defer res.Body.Close()
			d := uistream.NewDecoder(res.Body, 0)
			for {
				e, err := d.Next()
				if err != nil || e.Done {
					if !e.Done {
						t.Errorf("viewer %d: %v", v, err)
					}
					return
				}
				if e.Comment == "" {
					results[v] = append(results[v], event{e.Name, e.ID, string(e.Data)})
				}
				if v == viewers && len(results[v]) < 1000 {
					time.Sleep(5 * time.Millisecond) // its slowness is what is tested
				}
			}
		})
	}
	word := strings.Repeat("x", 150)
	words := slices.Repeat([]string{word}, 48)
	for i := range parts / 50 {
		w.Say(id, resttest.Text(fmt.Sprint(i), words...)...)
	}
	w.End(id)
	wg.Wait()
	want := stored(w, id)
	if len(want) < parts {
		t.Fatalf("%d parts", len(want))
	}
	for v, got := range results {
		if d := differs(want, got); d != "" {
			t.Errorf("viewer %d: %s", v, d)
		}
	}
}

// counter counts what is read.
type counter struct {
	io.ReadCloser
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n += int64(n)
	return n, err
}

// Text goes over the wire once: two thousand pieces of a hundred bytes are at most three
// times their size, and four times as many no more than in proportion.
func TestBytesOnTheWire(t *testing.T) {
	t.Parallel()
	for _, pieces := range []int{2000, 8000} {
		w := resttest.New(t)
		id := w.Create("one")
		w.Begin(id)
		res := open(t.Context(), t, w, id, "", "")
		count := &counter{ReadCloser: res.Body}
		res.Body = count
		got := make(chan answer, 1)
		go func() { got <- read(res, 1<<30) }()
		words := slices.Repeat([]string{strings.Repeat("y", 100)}, pieces)
		for part := range slices.Chunk(resttest.Text("b", words...), 500) {
			w.Say(id, part...)
		}
		w.End(id)
		if r := <-got; !r.done || differs(stored(w, id), r.events) != "" {
			t.Errorf("done %v, %v", r.done, r.err)
		}
		if count.n > int64(3*100*pieces) {
			t.Errorf("%d bytes for %d of text", count.n, 100*pieces)
		}
	}
}

// Viewers who call themselves alike, by request id and by place, are each answered.
func TestViewersAlike(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Begin(id)
	w.Say(id, resttest.Text("a", numbered(10)...)...)
	var wg sync.WaitGroup
	results := make([]answer, 20)
	for i := range results {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+"/v1/agent-sessions/"+string(id)+"/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+resttest.Token)
		r.Header.Set("X-Request-Id", "7")
		r.Header.Set("Last-Event-ID", "1.7")
		res, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { results[i] = read(res, 1<<30) })
	}
	w.Say(id, resttest.Text("b", numbered(10)...)...)
	w.End(id)
	wg.Wait()
	want := stored(w, id)[7:]
	for i, r := range results {
		if d := cmp.Diff(want, r.events); d != "" || !r.done {
			t.Errorf("viewer %d: done %v, %v, %s", i, r.done, r.err, d)
		}
	}
}
