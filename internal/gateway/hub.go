// Package gateway lets people watch sessions: the [Hub] passes parts from the
// recorder to everyone who watches, and [Gateway.ServeStream] answers one viewer
// with a UI-message stream. It stores nothing, checks no part and changes no
// byte of it: bodies go out as the recorder gave them.
//
// A viewer reads by cursor, never from a queue of its own: it takes what follows
// its place from the hub's memory when that reaches back far enough, else from
// the stored transcript. So nothing is lost or doubled where replay meets live,
// and a slow viewer costs nobody anything. Start at [Gateway.ServeStream].
package gateway

import (
	"bytes"
	"slices"
	"sync"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// Limits of the hub's memory and of its viewers.
const (
	windowBytes   = 512 << 10 // kept of what is stored already, while somebody watches
	maxTailBytes  = 16 << 20  // kept at most; a viewer behind that waits for the store
	maxViewers    = 100       // streams of one session
	maxOwn        = 10        // of these, those that one identity opened with tickets
	maxBatchBytes = 64 << 10
	maxBatchParts = 512
)

// Hub holds, for each session, the parts that are not stored yet and, while
// somebody watches, a recent window of those that are. It starts no goroutine and
// is safe for concurrent use; no method waits for a viewer.
//
// The recorder calls Publish, then stores, then calls Stored. Parts that a
// transaction of the session appended come by Appended.
type Hub struct {
	mu    sync.Mutex
	rooms map[session.ID]*room
	feeds map[string]*feed // by workspace
	done  chan struct{}
	once  sync.Once
}

var _ session.Viewers = (*Hub)(nil)

// NewHub makes an empty hub.
func NewHub() *Hub {
	return &Hub{rooms: map[session.ID]*room{}, feeds: map[string]*feed{}, done: make(chan struct{})}
}

// Close breaks every stream, now and from now on. The server calls it before it
// waits for open requests.
func (h *Hub) Close() { h.once.Do(func() { close(h.done) }) }

// room is what the hub has of one session. The hub's lock is taken before a room's.
type room struct {
	mu      sync.Mutex
	tails   []*tail // by turn; never an empty one
	viewers map[*viewer]struct{}
	bytes   int
}

// tail is the newest parts of one turn, without a gap.
type tail struct {
	turn     int64
	first    int64
	wires    [][]byte // encoded events; the part's number is first + index
	stored   int64    // all up to this part are in the store
	finished bool     // the last one is the message's finish
}

func (t *tail) last() int64 { return t.first + int64(len(t.wires)) - 1 }

// viewer is one who watches a room.
type viewer struct {
	subject string        // of its ticket; empty: it came with a token
	notify  chan struct{} // has a value when there is something to look at
	changed bool          // the ledger may have changed
	broken  bool          // was shown a part that the transcript has otherwise
	behind  bool          // waits for the store
	at      transcript.Cursor
}

func (v *viewer) poke() {
	select {
	case v.notify <- struct{}{}:
	default:
	}
}

// open locks the room of a session, which is made when there is none.
func (h *Hub) open(id session.ID) *room {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.rooms[id]
	if r == nil {
		r = &room{viewers: map[*viewer]struct{}{}}
		h.rooms[id] = r
	}
	r.mu.Lock()
	return r
}

// shut unlocks the room and forgets it when there is nothing in it.
func (h *Hub) shut(id session.ID, r *room) {
	empty := len(r.tails) == 0 && len(r.viewers) == 0
	r.mu.Unlock()
	if !empty {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tails) == 0 && len(r.viewers) == 0 && h.rooms[id] == r {
		delete(h.rooms, id)
	}
}

// Publish shows parts to everyone who watches the session, before they are
// stored. Parts of one turn come in order; one that was published before is
// passed over. Bodies are copied.
func (h *Hub) Publish(id session.ID, parts []transcript.Part) {
	if len(parts) == 0 {
		return
	}
	r := h.open(id)
	for _, p := range parts {
		r.add(p)
	}
	r.trim()
	r.pokeAll(false)
	h.shut(id, r)
}

// Stored says that all parts of the cursor's turn up to it are in the store.
func (h *Hub) Stored(id session.ID, upTo transcript.Cursor) {
	r := h.open(id)
	if t := r.tail(upTo.Turn); t != nil {
		t.stored = max(t.stored, upTo.Part)
		r.trim()
	}
	for v := range r.viewers {
		if v.behind {
			v.poke()
		}
	}
	h.shut(id, r)
}

// Appended shows parts that a transaction stored. Where it stored something else
// than was published, those who saw that are cut off: what they have is not the
// transcript.
func (h *Hub) Appended(id session.ID, parts []transcript.Part) {
	r := h.open(id)
	for _, p := range parts {
		if t := r.tail(p.Cursor.Turn); t != nil && p.Cursor.Part > t.stored && p.Cursor.Part >= t.first && p.Cursor.Part <= t.last() {
			if !bytes.Equal(t.wires[p.Cursor.Part-t.first], wire(p)) {
				r.cut(t, p.Cursor.Part)
			}
		}
		r.add(p)
		if t := r.tail(p.Cursor.Turn); t != nil {
			t.stored = max(t.stored, p.Cursor.Part)
		}
	}
	r.trim()
	r.pokeAll(true)
	h.shut(id, r)
}

// Changed tells the session's viewers to look at the ledger, and those who watch the
// workspace what changed.
func (h *Hub) Changed(workspace string, id session.ID, kinds ...session.Kind) {
	h.feed(workspace).add(id, kinds)
	h.mu.Lock()
	r := h.rooms[id]
	if r == nil {
		h.mu.Unlock()
		return
	}
	r.mu.Lock()
	h.mu.Unlock()
	r.pokeAll(true)
	r.mu.Unlock()
}

// watch adds a viewer, who must leave; subject is whose ticket opened the stream, empty
// when it was a token: that may be of a service that serves many people. Code: STREAM_LIMIT.
func (h *Hub) watch(id session.ID, subject string) (*room, *viewer, error) {
	r := h.open(id)
	defer h.shut(id, r)
	if len(r.viewers) >= maxViewers {
		return nil, nil, fault.New(fault.StreamLimit, "%d viewers watch this session already.", maxViewers)
	}
	own := 0
	for v := range r.viewers {
		if v.subject == subject { // the workspace is the session's
			own++
		}
	}
	if subject != "" && own >= maxOwn {
		return nil, nil, fault.New(fault.StreamLimit, "%d streams that your tickets opened show this session already.", maxOwn)
	}
	v := &viewer{subject: subject, notify: make(chan struct{}, 1)}
	r.viewers[v] = struct{}{}
	return r, v, nil
}

func (h *Hub) leave(id session.ID, r *room, v *viewer) {
	r.mu.Lock()
	delete(r.viewers, v)
	r.trim()
	h.shut(id, r)
}

func (r *room) pokeAll(changed bool) {
	for v := range r.viewers {
		v.changed = v.changed || changed
		v.poke()
	}
}

func (r *room) tail(turn int64) *tail {
	for _, t := range r.tails {
		if t.turn == turn {
			return t
		}
	}
	return nil
}

func wire(p transcript.Part) []byte {
	return uistream.AppendEvent(make([]byte, 0, len(p.Body)+32), p.Cursor.String(), p.Body)
}

func isFinish(body []byte) bool {
	if !bytes.Contains(body, []byte(`"finish"`)) {
		return false
	}
	p, err := uistream.Parse(body)
	return err == nil && p.Type == uistream.TypeFinish
}

// add appends a part to its turn's tail. A part that does not follow begins the
// tail anew: what lies between is in the store or will be.
func (r *room) add(p transcript.Part) {
	t := r.tail(p.Cursor.Turn)
	switch {
	case t == nil:
		t = &tail{turn: p.Cursor.Turn, first: p.Cursor.Part}
		i, _ := slices.BinarySearchFunc(r.tails, t.turn, func(x *tail, n int64) int { return int(x.turn - n) })
		r.tails = slices.Insert(r.tails, i, t)
	case p.Cursor.Part <= t.last() || t.finished:
		return
	case p.Cursor.Part > t.last()+1:
		r.drop(t, len(t.wires))
		t.first = p.Cursor.Part
	}
	w := wire(p)
	t.wires = append(t.wires, w)
	t.finished = isFinish(p.Body)
	r.bytes += len(w)
}

// cut takes back everything from a part on.
func (r *room) cut(t *tail, from int64) {
	for v := range r.viewers {
		if v.at.Turn == t.turn && v.at.Part >= from {
			v.broken = true
		}
	}
	for _, w := range t.wires[from-t.first:] {
		r.bytes -= len(w)
	}
	t.wires = t.wires[:from-t.first]
	t.finished = false
}

// drop forgets the oldest n parts of a tail.
func (r *room) drop(t *tail, n int) {
	for _, w := range t.wires[:n] {
		r.bytes -= len(w)
	}
	clear(t.wires[:n])
	t.wires = t.wires[n:]
	t.first += int64(n)
}

// trim forgets what is stored and not needed, and beyond the bound what is not stored.
func (r *room) trim() {
	for _, t := range r.tails {
		n := 0
		bytes := r.bytes
		for n < len(t.wires) && (bytes > maxTailBytes || t.first+int64(n) <= t.stored && (len(r.viewers) == 0 || bytes > windowBytes)) {
			bytes -= len(t.wires[n])
			n++
		}
		r.drop(t, n)
	}
	r.tails = slices.DeleteFunc(r.tails, func(t *tail) bool { return len(t.wires) == 0 })
}

// batch is what follows a place in the hub's memory.
type batch struct {
	wires    [][]byte
	finished bool // the last of them is the message's finish
	behind   bool // memory begins later: the store has what is between, or will
	changed  bool
	broken   bool
}

// next is what memory has after the viewer's place in a turn.
func (r *room) next(v *viewer, at transcript.Cursor) batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := batch{changed: v.changed, broken: v.broken}
	v.changed, v.behind = false, false
	t := r.tail(at.Turn)
	if t == nil || t.last() <= at.Part {
		v.at = at
		return b
	}
	if t.first > at.Part+1 {
		v.at = at
		b.behind, v.behind = true, true
		return b
	}
	size := 0
	for _, w := range t.wires[at.Part+1-t.first:] {
		if size += len(w); len(b.wires) > 0 && (size > maxBatchBytes || len(b.wires) == maxBatchParts) {
			break
		}
		b.wires = append(b.wires, w)
	}
	v.at = transcript.Cursor{Turn: at.Turn, Part: at.Part + int64(len(b.wires))}
	b.finished = t.finished && v.at.Part == t.last()
	return b
}

// newest is the number of the newest part of a turn that memory has; 0: none.
func (r *room) newest(turn int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tail(turn); t != nil {
		return t.last()
	}
	return 0
}
