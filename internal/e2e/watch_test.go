package e2e

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/hearthd/hearth/client"
)

// Who watches the workspace is told of a session from its start to its end, also over the
// death of the server; a ticket shows the conversation once.
func TestWatchAndTicket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	_, url := w.repo("acme/calc")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	seen := map[string]int{} // "kind session", and "reset", "open"
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		err := w.c.Watch(ctx, client.WatchOptions{States: true}, func(c client.Change) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case c.State != "":
				seen[string(c.State)]++
			case c.Reset:
				seen["reset"]++
			default:
				seen[c.Kind+" "+c.Session]++
			}
			return nil
		})
		if ctx.Err() == nil {
			t.Errorf("the watch ended: %v", err)
		}
	})
	told := func(what string, n int) {
		t.Helper()
		w.until(deadline, what, func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return seen[what] >= n, ""
		})
	}
	told("open", 1)
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@run echo hello@@ @@slow 60 30@@ @@say done@@"})
	id := s.Session.ID
	told("session "+id, 1)
	told("start "+id, 3) // accepted, clone, ready
	ticket, err := w.c.AttachTicket(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	status, body := w.raw("GET", "/v1/agent-sessions/"+id+"/stream?from=beginning", "", "Authorization", "", ticket.Header, ticket.Ticket)
	if status != 200 || !strings.HasSuffix(body, "data: [DONE]\n\n") || !strings.Contains(body, "hello") {
		t.Errorf("%d %s", status, clip(body))
	}
	if status, body := w.raw("GET", "/v1/agent-sessions/"+id+"/stream", "", "Authorization", "", ticket.Header, ticket.Ticket); status != 401 {
		t.Errorf("again: %d %s", status, body)
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	w.kill()
	w.start()
	told("reset", 1) // another life of the server
	w.delete(id, true)
	mu.Lock()
	n := seen["session "+id]
	mu.Unlock()
	if n < 3 {
		t.Errorf("told %d times of the session", n)
	}
	log, err := os.ReadFile(w.logFile())
	if err != nil || strings.Contains(string(log), ticket.Ticket) {
		t.Errorf("the ticket is in the server's log, or: %v", err)
	}
}
