package gateway_test

import (
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

// Whoever may not watch any more is cut off, and it does not look as if the stream had ended.
func TestRevokedInMidStream(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(t *testing.T, w *resttest.World, id session.ID)
		busy bool // parts come all the time
	}{
		{"the token is void", func(_ *testing.T, w *resttest.World, _ session.ID) { w.Identity.Revoke(resttest.Token) }, false},
		{"the right is withdrawn", func(_ *testing.T, w *resttest.World, _ session.ID) { w.Identity.Deny(operation.RightRead) }, false},
		{"the right is withdrawn, busy", func(_ *testing.T, w *resttest.World, _ session.ID) { w.Identity.Deny(operation.RightRead) }, true},
		{"the session is gone", func(t *testing.T, w *resttest.World, id session.ID) {
			a := w.Get(id)
			if err := w.Store.Remove(t.Context(), a.Session.ID); err != nil { // nobody is told
				t.Error(err)
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := resttest.New(t)
			w.Gateway.RecheckEvery = 20 * time.Millisecond
			id := w.Create("one")
			w.Begin(id)
			res := open(t.Context(), t, w, id, "", "")
			got := make(chan answer, 1)
			go func() { got <- read(res, 1<<30) }()
			w.Audited(id, 1)
			select {
			case a := <-got:
				t.Fatalf("it ended before: %v", a.err)
			case <-time.After(100 * time.Millisecond): // several checks
			}
			c.do(t, w, id)
			var a answer
			for end := time.Now().Add(20 * time.Second); ; {
				if c.busy {
					w.Say(id, resttest.Text("x", "y")...)
				}
				select {
				case a = <-got:
				case <-time.After(time.Millisecond):
					if time.Now().Before(end) {
						continue
					}
					t.Fatal("it goes on")
				}
				break
			}
			if a.done || a.err == nil {
				t.Errorf("done %v, error %v", a.done, a.err)
			}
			list := w.Audited(id, 2)
			if reason := list[1].Details["reason"]; list[1].Action != "stream_closed" || reason != "revoked" {
				t.Errorf("%+v", list[1])
			}
		})
	}
}

func TestStopIsAudited(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	w.Begin(id)
	res := open(t.Context(), t, w, id, "", "")
	w.Audited(id, 1)
	w.Hub.Close()
	if a := read(res, 1<<30); a.err == nil || a.done {
		t.Errorf("%+v", a)
	}
	if list := w.Audited(id, 2); list[1].Details["reason"] != "server_stopped" {
		t.Errorf("%+v", list[1])
	}
}
