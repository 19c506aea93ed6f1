package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

var errEnough = errors.New("enough")

// Every session that is made is told of, however often the connection is cut.
func TestWatchComesAgainAfterCuts(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	rng := rand.New(rand.NewPCG(3, 4))
	var mu sync.Mutex
	address := cutter(t, w.URL, func() int64 {
		mu.Lock()
		defer mu.Unlock()
		return 600 + rng.Int64N(1500) // the headers and the first id are in the first 600
	})
	seen := map[string]bool{}
	open, broken := 0, 0
	began := make(chan bool, 1)
	const sessions = 100
	result := make(chan error)
	go func() {
		result <- connect(t, address).Watch(t.Context(), client.WatchOptions{States: true}, func(c client.Change) error {
			switch {
			case c.State == client.StateOpen:
				if open++; open == 1 {
					began <- true
				}
			case c.State == client.StateBroken:
				broken++
			case c.Reset:
				return errors.New("a reset without need")
			case c.ID == "" || c.Kind == "":
				return fmt.Errorf("%+v", c)
			default:
				seen[c.Session] = true
			}
			if len(seen) == sessions {
				return errEnough
			}
			return nil
		})
	}()
	<-began
	for range sessions {
		w.Hub.Changed("default", session.ID(w.Create("x")), session.KindSession)
	}
	if err := <-result; !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if open < 3 || broken != open-1 {
		t.Errorf("open %d times, broken %d times", open, broken)
	}
}

func TestWatchIsToldOfAReset(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	var got []client.Change
	err := connect(t, w.URL).Watch(t.Context(), client.WatchOptions{After: "of another life"}, func(c client.Change) error {
		got = append(got, c)
		if c.Reset {
			w.Create("x")
			return nil
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) || len(got) != 2 || !got[0].Reset || got[1].Kind == "" {
		t.Errorf("%v %+v", err, got)
	}
	// A server that says no id before it breaks off leaves nothing to go on after.
	n := 0
	mute := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, ": watching\n\n")
	}))
	defer mute.Close()
	err = connect(t, mute.URL).Watch(t.Context(), client.WatchOptions{}, func(c client.Change) error {
		if n++; !c.Reset || n > 3 {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || n != 4 {
		t.Errorf("%v after %d", err, n)
	}
}

// An id whose event was cut off does not count.
func TestWatchAfterACutEvent(t *testing.T) {
	t.Parallel()
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Last-Event-ID"))
		_, _ = io.WriteString(w, "id: a.1\ndata: {\"kind\":\"session\",\"session\":\"ses_1\"}\n\nid: a.2\ndata: {\"ki")
	}))
	defer s.Close()
	n := 0
	err := connect(t, s.URL).Watch(t.Context(), client.WatchOptions{}, func(client.Change) error {
		if n++; n == 2 {
			return errEnough
		}
		return nil
	})
	if d := cmp.Diff([]string{"", "a.1"}, asked); d != "" || !errors.Is(err, errEnough) {
		t.Errorf("%v %s", err, d)
	}
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	w.Gateway.RecheckEvery = 10 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	err := connect(t, w.URL).Watch(ctx, client.WatchOptions{States: true}, func(client.Change) error { stop(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	err = connect(t, w.URL).Watch(t.Context(), client.WatchOptions{States: true}, func(c client.Change) error {
		if c.State == client.StateOpen {
			w.Identity.Revoke(resttest.Token)
		}
		return nil
	})
	if client.CodeOf(err) != "UNAUTHENTICATED" {
		t.Errorf("of a token that is void: %v", err)
	}
	nobody := connect(t, "http://127.0.0.1:1")
	nobody.GiveUp = 20 * time.Millisecond
	if err := nobody.Watch(t.Context(), client.WatchOptions{}, func(client.Change) error { return nil }); client.CodeOf(err) != "SERVER_UNAVAILABLE" {
		t.Errorf("nobody there: %v", err)
	}
}

func TestAttachTicket(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	c := connect(t, w.URL)
	id := string(w.Create("x"))
	for _, action := range []string{"", "watch", "prompt"} {
		got, err := c.AttachTicket(t.Context(), id, action)
		if err != nil || got.Ticket == "" || got.Header != "Hearth-Attach-Ticket" || time.Until(got.ExpiresAt) <= 0 {
			t.Errorf("%+v %v", got, err)
		}
	}
	if _, err := c.AttachTicket(t.Context(), id, "x"); client.CodeOf(err) != "INVALID_INPUT" {
		t.Errorf("%v", err)
	}
	_ = operation.AttachTicketView(client.Ticket{}) // of the same shape
}
