package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/uistream"
)

// watch follows a session by the bare protocol from the beginning, cutting its connection
// after every few events and going on with Last-Event-ID, until the stream is done.
func (w *world) watch(ctx context.Context, id string, every int) ([]string, error) {
	var got []string
	last := ""
	for range 10000 {
		ctx, cancel := context.WithCancel(ctx)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.address+"/v1/agent-sessions/"+id+"/stream?from=beginning", nil)
		if err != nil {
			cancel()
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+w.token)
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		res, err := web.Do(r)
		if err != nil {
			cancel()
			return nil, err
		}
		done, err := func() (bool, error) {
			defer cancel()
			defer res.Body.Close()
			if res.StatusCode == http.StatusNoContent {
				return true, nil
			}
			if res.StatusCode != http.StatusOK {
				b, err := io.ReadAll(res.Body)
				return false, fmt.Errorf("status %d: %s, %w", res.StatusCode, b, err)
			}
			d := uistream.NewDecoder(res.Body, 0)
			for n := 0; n < every; {
				e, err := d.Next()
				if err != nil {
					return false, err
				}
				switch {
				case e.Done:
					return true, nil
				case e.Name == "reset":
					return false, errors.New("reset")
				case strings.Contains(string(e.Data), `"type":"data-user-prompt"`): // made for the reader, it has no cursor
				case e.ID != "":
					last = e.ID
					got = append(got, e.ID+" "+string(e.Data))
					n++
				}
			}
			return false, nil
		}()
		if err != nil || done {
			return got, err
		}
	}
	return got, errors.New("too many cuts")
}

func lines(parts []stored) []string {
	var out []string
	for _, p := range parts {
		out = append(out, fmt.Sprintf("%d.%d %s", p.turn, p.part, p.raw))
	}
	return out
}

// Viewers that are cut again and again see what is stored, part for part: live, over two
// turns, and from the store.
func TestStreamOverCuts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	_, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@think hmm@@ @@plan a; b@@ @@run echo hello@@ @@slow 60 30@@ @@write a.txt one@@"})
	id := s.Session.ID
	p := w.prompt(id, "@@flood 300 30@@ @@say done@@")
	type result struct {
		got []string
		err error
	}
	results := make(chan result)
	every := []int{1, 7, 40, 1 << 30}
	for _, n := range every {
		go func() {
			got, err := w.watch(t.Context(), id, n)
			results <- result{got, err}
		}()
	}
	var seen []result
	for range every {
		seen = append(seen, <-results)
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	w.wantTurn(w.ended(id, p.Turn.ID, deadline), "completed", "")
	want := lines(w.transcript(id))
	for _, r := range seen {
		if r.err != nil {
			t.Errorf("a viewer failed: %v", r.err)
		}
		if d := cmp.Diff(want, r.got); d != "" {
			t.Errorf("a viewer saw something else than is stored: %s", clip(d))
		}
	}
	got, err := w.watch(t.Context(), id, 13)
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("from the store: %v %s", err, clip(d))
	}
	w.delete(id, false)
}

// Our own client follows over the death of the server, without a gap or a double.
func TestStreamOverServerKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	_, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@slow 120 50@@ @@write a.txt one@@"})
	id := s.Session.ID
	type event struct{ at time.Time }
	var got []string
	var beats []event
	finished := make(chan error, 1)
	c := w.c
	go func() {
		finished <- c.Stream(t.Context(), id, client.StreamOptions{Beginning: true}, func(e client.Event) error {
			if e.Reset {
				return errors.New("reset")
			}
			if e.Type != "data-user-prompt" {
				got = append(got, e.ID()+" "+string(e.Data))
				beats = append(beats, event{time.Now()})
			}
			return nil
		})
	}()
	w.until(deadline, "it to speak", func() (bool, string) { out := text(w.transcript(id), 1); return strings.Contains(out, "Step 20"), out })
	w.kill()
	killed := time.Now()
	w.start()
	started := time.Now()
	turn := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(turn, "completed", "")
	if err := <-finished; err != nil {
		t.Fatalf("the stream ended: %v", err)
	}
	if d := cmp.Diff(lines(w.transcript(id)), got); d != "" {
		t.Errorf("the viewer saw something else than is stored: %s", clip(d))
	}
	for _, b := range beats {
		if b.at.After(killed) {
			t.Logf("streams again %s after the kill, %s after the start", b.at.Sub(killed), b.at.Sub(started))
			if b.at.Sub(started) > 5*time.Second {
				t.Error("that is too long")
			}
			break
		}
	}
	w.delete(id, false)
}
