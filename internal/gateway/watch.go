package gateway

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/http10"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/uistream"
)

// Limits of watches.
const (
	maxChanges  = 4096 // of one workspace that can still be told
	maxWatches  = 20   // of one identity
	maxWatchID  = 100  // bytes of an id to go on from
	changeBatch = 256  // told at once
)

// feed is what changed in one workspace lately: of each session and kind the last change
// only, oldest first. Who watches is a place in it, so that a slow one costs nothing and
// finds many changes of one thing as one.
type feed struct {
	life string // tells this feed's ids from those of another workspace or server

	mu      sync.Mutex
	last    int64                     // number of the newest change; 0: none
	floor   int64                     // changes up to it may have been forgotten
	order   *list.List                // of change
	entries map[change]*list.Element  // by change without number
	watches map[*watch]session.Caller // who they are of
}

// change is that something of a session changed.
type change struct {
	n       int64
	kind    session.Kind
	session session.ID
}

// watch is one who watches a workspace.
type watch struct{ notify chan struct{} }

// feed finds or makes a workspace's feed.
func (h *Hub) feed(workspace string) *feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.feeds[workspace]
	if f == nil {
		f = &feed{life: rand.Text(), order: list.New(), entries: map[change]*list.Element{}, watches: map[*watch]session.Caller{}}
		h.feeds[workspace] = f
	}
	return f
}

// add notes changes and wakes those who watch. It waits for nobody.
func (f *feed) add(id session.ID, kinds []session.Kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range kinds {
		key := change{kind: k, session: id}
		if e := f.entries[key]; e != nil {
			f.order.Remove(e)
		}
		f.last++
		f.entries[key] = f.order.PushBack(change{f.last, k, id})
	}
	for f.order.Len() > maxChanges {
		oldest := f.order.Remove(f.order.Front()).(change)
		f.floor = oldest.n
		delete(f.entries, change{kind: oldest.kind, session: oldest.session})
	}
	for w := range f.watches {
		select {
		case w.notify <- struct{}{}:
		default:
		}
	}
}

// after is what changed after a number, oldest first, at most a batch. known: nothing
// after it was forgotten.
func (f *feed) after(n int64) (out []change, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n < f.floor || n > f.last {
		return nil, false
	}
	for e := f.order.Back(); e != nil && e.Value.(change).n > n; e = e.Prev() {
		out = append(out, e.Value.(change))
	}
	slices.Reverse(out)
	return out[:min(len(out), changeBatch)], true
}

func (f *feed) newest() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// open adds a watch, which must leave. Code: STREAM_LIMIT.
func (f *feed) open(who session.Caller) (*watch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mine := 0
	for _, c := range f.watches {
		if c.Subject == who.Subject {
			mine++
		}
	}
	if mine >= maxWatches {
		return nil, fault.New(fault.StreamLimit, "%d watches of yours are open already.", maxWatches)
	}
	w := &watch{notify: make(chan struct{}, 1)}
	f.watches[w] = who
	return w, nil
}

func (f *feed) leave(w *watch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watches, w)
}

func (f *feed) id(n int64) string { return f.life + "." + strconv.FormatInt(n, 10) }

// parse reads an id of this feed; -1: it is none.
func (f *feed) parse(id string) int64 {
	tail, ours := strings.CutPrefix(id, f.life+".")
	if !ours || len(id) > maxWatchID {
		return -1
	}
	n, err := strconv.ParseInt(tail, 10, 64)
	if err != nil || n < 0 || f.id(n) != id {
		return -1
	}
	return n
}

// ServeWatch answers GET /v1/watch with server-sent events that say that something of a
// session in the caller's workspace changed, never what:
//
//	id: opaque
//	data: {"kind":"session","session":"ses_…"}
//
// Kinds are those of [session.Kind]. It begins with a comment and the id of now, and tells
// what changes from then on. With Last-Event-ID, or ?after=, it goes on after that id; when
// that cannot be, because it is too old or another server's, the first event is named
// "reset": everything must be read anew. The same comes to a viewer who fell too far behind.
// Many changes of one thing that the viewer has not taken yet are one event, at the place of
// the last. The stream never ends well.
//
// An error means that nothing was written. Codes: INVALID_INPUT, STREAM_LIMIT.
func (g *Gateway) ServeWatch(w http.ResponseWriter, r *http.Request, who session.Caller) error {
	if g.Recheck == nil {
		return errors.New("gateway: no recheck is set")
	}
	given, err := parameters(r)
	if err != nil {
		return err
	}
	for name := range given {
		if name != "after" {
			return operation.Invalid(operation.FieldProblem{Field: name, Problem: "is not a query parameter of the watch"})
		}
	}
	after, err := lastEventID(r)
	if err != nil {
		return err
	}
	after = cmp.Or(after, given["after"])
	f := g.Hub.feed(who.Workspace)
	watch, err := f.open(who)
	if err != nil {
		return err
	}
	defer f.leave(watch)
	out := &writer{w: w, rc: http.NewResponseController(w), now: g.Now, wait: or(g.WriteWait, DefaultWriteWait), plain: true, ending: http10.Of(r)}
	err = g.tell(r.Context(), f, watch, after, who, out)
	if !errors.Is(err, errBroken) && !errors.Is(err, errGone) && r.Context().Err() == nil {
		g.Log.Error("watch broken off", "workspace", who.Workspace, "error", err)
	}
	panic(http.ErrAbortHandler)
}

// tell tells what changes until it must break off.
func (g *Gateway) tell(ctx context.Context, f *feed, watch *watch, after string, who session.Caller, out *writer) error {
	at := f.newest()
	if after != "" {
		at = f.parse(after) // what is not ours is not known either
	} else {
		out.buf = fmt.Appendf(out.buf, "id: %s\n", f.id(at)) // no event, but a place to come back to
	}
	out.buf = uistream.AppendComment(out.buf, "watching")
	if err := out.flush(); err != nil {
		return err
	}
	age := time.NewTimer(or(g.MaxAge, DefaultMaxAge))
	defer age.Stop()
	check := time.NewTicker(or(g.RecheckEvery, DefaultRecheck))
	defer check.Stop()
	beat := time.NewTimer(or(g.Heartbeat, DefaultHeartbeat))
	defer beat.Stop()
	for {
		changes, known := f.after(at)
		if !known {
			at = f.newest()
			out.add(uistream.AppendNamedEvent(nil, "reset", f.id(at), []byte(`{"message":"What changed since is not known any more. Read everything anew."}`)))
		}
		for _, c := range changes {
			at = c.n
			out.add(uistream.AppendEvent(nil, f.id(c.n), uistream.ValueOf(struct {
				Kind    session.Kind `json:"kind"`
				Session session.ID   `json:"session"`
			}{c.kind, c.session})))
		}
		if out.pending() {
			if err := out.flush(); err != nil {
				return err
			}
			beat.Reset(or(g.Heartbeat, DefaultHeartbeat))
		}
		more := watch.notify
		if len(changes) == changeBatch {
			more = nil
		}
		select {
		case <-age.C:
			return errAge
		case <-g.Hub.done:
			return errStopped
		case <-ctx.Done():
			return errGone
		case <-check.C:
			if err := g.recheck(ctx, who, ""); err != nil {
				return err
			}
			continue
		default:
		}
		if more == nil {
			continue
		}
		select {
		case <-more:
		case <-beat.C:
			out.buf = uistream.AppendComment(out.buf, "keep-alive")
			if err := out.flush(); err != nil {
				return err
			}
			beat.Reset(or(g.Heartbeat, DefaultHeartbeat))
		case <-check.C:
			if err := g.recheck(ctx, who, ""); err != nil {
				return err
			}
		case <-age.C:
			return errAge
		case <-g.Hub.done:
			return errStopped
		case <-ctx.Done():
			return errGone
		}
	}
}
