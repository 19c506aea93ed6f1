package gateway

import (
	"fmt"
	"testing"

	"github.com/hearthd/hearth/internal/session"
)

// Ids of a feed are read back; whatever else is sent to go on from is no place in it.
func FuzzWatchID(f *testing.F) {
	feed := NewHub().feed("w")
	f.Add(feed.id(0))
	f.Add(feed.id(1 << 40))
	f.Add(feed.life)
	f.Add(feed.life + ".+1")
	f.Add(feed.life + ".01")
	f.Add("")
	f.Fuzz(func(t *testing.T, id string) {
		if n := feed.parse(id); n >= 0 && feed.id(n) != id || n < -1 {
			t.Errorf("%q is %d", id, n)
		}
	})
}

// What a feed keeps is bounded, and a place is known exactly as long as nothing after it is forgotten.
func TestFeedIsBounded(t *testing.T) {
	t.Parallel()
	f := NewHub().feed("w")
	for i := range 3 * maxChanges {
		f.add(session.ID(fmt.Sprint(i)), []session.Kind{session.KindSession})
		f.add("same", []session.Kind{session.KindSession, session.KindQueue})
	}
	if f.order.Len() != maxChanges || len(f.entries) != maxChanges {
		t.Errorf("%d kept, %d by name", f.order.Len(), len(f.entries))
	}
	if _, known := f.after(0); known {
		t.Error("the start is still known")
	}
	if _, known := f.after(f.last + 1); known {
		t.Error("what is to come is known")
	}
	seen := map[session.ID]int{}
	at, n := f.floor, 0
	for {
		out, known := f.after(at)
		if !known {
			t.Fatalf("%d is forgotten", at)
		}
		if len(out) == 0 {
			break
		}
		for _, c := range out {
			if c.n <= at {
				t.Fatalf("%d after %d", c.n, at)
			}
			at = c.n
			n++
			seen[c.session]++
		}
	}
	if n != maxChanges || seen["same"] != 2 || at != f.last {
		t.Errorf("%d read, %d of the same, up to %d of %d", n, seen["same"], at, f.last)
	}
}
