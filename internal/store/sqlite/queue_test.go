package sqlite_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite"
	"github.com/hearthd/hearth/internal/transcript"
)

// memory is a folder whose files need no disk, where the machine has one: what is tested is
// the order of transactions, not what they cost.
func memory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "hearth-queue-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

type willing struct{ session.Judge }

func (willing) Agent(context.Context, string, string, string) error { return nil }

type nobody struct{}

func (nobody) Appended(session.ID, []transcript.Part)      {}
func (nobody) Changed(string, session.ID, ...session.Kind) {}

// stranded is how long nothing happens before the prompts that wait are given up. However
// slow the machine is, one step takes a small part of it.
const stranded = time.Minute

// rush is a service over a real store, with runners that do what its effects say and
// agents that end at any moment.
type rush struct {
	t     *testing.T
	s     *session.Service
	store *sqlite.Store
	who   session.Caller
	wake  chan struct{}

	mu        sync.Mutex
	delivered map[session.TurnID]string
	order     map[session.ID][]session.TurnID
	waits     map[session.ID]int // accepted and not ended
	changed   *sync.Cond         // a turn was delivered or has ended
	still     *time.Timer        // nothing has changed for long
	late      bool
}

func newRush(t *testing.T) *rush {
	r := &rush{t: t, store: open(t, filepath.Join(memory(t), "q.db")), who: session.Caller{Subject: "owner", Workspace: "w"}, wake: make(chan struct{}, 1),
		delivered: map[session.TurnID]string{}, order: map[session.ID][]session.TurnID{}, waits: map[session.ID]int{}}
	r.changed = sync.NewCond(&r.mu)
	r.still = time.AfterFunc(stranded, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.late = true
		t.Errorf("stranded: %v", r.waits)
		r.changed.Broadcast()
	})
	t.Cleanup(func() { r.still.Stop() })
	var ids atomic.Int64
	r.s = &session.Service{
		Store: r.store, Log: r.store, Judge: willing{}, Viewers: nobody{}, NewID: func(p string) string { return fmt.Sprintf("%s_%09d", p, ids.Add(1)) }, Now: time.Now,
		Wake: func() {
			select {
			case r.wake <- struct{}{}:
			default:
			}
		},
		Slog: slog.New(slog.DiscardHandler),
		Seal: func(*session.Turn, []transcript.Part) ([]transcript.Part, error) { return nil, nil },
		Ended: func(t *session.Turn) {
			r.count(t.Session, -1)
		},
	}
	return r
}

// run does effects until ctx ends.
func (r *rush) run(ctx context.Context, owner string, rnd *rand.Rand) {
	var agents []session.Effect // turns whose agent is at work
	for {
		due, err := r.store.Claim(ctx, owner, time.Now(), time.Now().Add(time.Hour), 16, []session.EffectKind{session.EffectCancelTurn})
		if err != nil {
			if ctx.Err() == nil {
				r.t.Error(err)
			}
			return
		}
		for _, e := range due {
			r.do(e, rnd, &agents)
			if err := r.store.Done(ctx, e.ID, owner); err != nil && ctx.Err() == nil {
				r.t.Error(err)
			}
		}
		for i := len(agents) - 1; i >= 0; i-- {
			if len(due) == 0 || rnd.IntN(2) == 0 {
				r.apply(agents[i].Session, session.AgentDone{Turn: agents[i].Turn, Outcome: "end_turn", Clean: true})
				agents = append(agents[:i], agents[i+1:]...)
			}
		}
		if len(due) > 0 || len(agents) > 0 {
			continue
		}
		select {
		case <-r.wake:
		case <-time.After(20 * time.Millisecond): // the other runner may have been woken instead
		case <-ctx.Done():
			return
		}
	}
}

// do carries one effect out, as far as the queue is concerned.
func (r *rush) do(e session.Effect, rnd *rand.Rand, agents *[]session.Effect) {
	switch e.Kind {
	case session.EffectStartSandbox:
		r.apply(e.Session, session.SandboxReady{Generation: e.Generation})
	case session.EffectSendPrompt:
		a, ok := r.apply(e.Session, session.Handed{Turn: e.Turn, Agent: "a"})
		if !ok {
			return // canceled first
		}
		r.mu.Lock()
		if _, twice := r.delivered[e.Turn]; twice {
			r.t.Errorf("turn %s is delivered twice", e.Turn)
		}
		r.delivered[e.Turn] = a.Open.Prompt
		r.order[e.Session] = append(r.order[e.Session], e.Turn)
		r.moved()
		r.mu.Unlock()
		if rnd.IntN(2) == 0 {
			r.apply(e.Session, session.AgentDone{Turn: e.Turn, Outcome: "end_turn", Clean: true})
		} else {
			*agents = append(*agents, e)
		}
	case session.EffectCancelTurn:
		r.apply(e.Session, session.AgentDone{Turn: e.Turn, Outcome: "canceled", Clean: true})
	case session.EffectPack:
		r.apply(e.Session, session.Packed{Turn: e.Turn})
	}
}

// apply tells the service of an event; one that came too late is nothing.
func (r *rush) apply(id session.ID, ev session.Event) (session.Aggregate, bool) {
	a, err := r.s.Apply(context.WithoutCancel(r.t.Context()), id, ev)
	if err != nil && fault.CodeOf(err) != fault.IllegalMove {
		r.t.Errorf("%+v: %v", ev, err)
	}
	return a, err == nil
}

func (r *rush) count(id session.ID, by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits[id] += by
	r.moved()
}

// moved tells those who wait that something has changed. The caller holds mu.
func (r *rush) moved() {
	r.still.Reset(stranded)
	r.changed.Broadcast()
}

// until waits until at most a number of turns wait or are at work.
func (r *rush) until(id session.ID, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.waits[id] > most && !r.late {
		r.changed.Wait()
	}
}

// further waits until more than n turns were delivered, or none waits, and says how many.
func (r *rush) further(id session.ID, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order[id]) <= n && r.waits[id] > 0 && !r.late {
		r.changed.Wait()
	}
	return len(r.order[id])
}

// sender is what one person has sent to one session, and what was acknowledged.
type sender struct {
	mode    session.Mode
	sent    []session.TurnID
	text    map[session.TurnID]string // as acknowledged last
	removed map[session.TurnID]bool
}

// prompt sends one prompt and keeps what was acknowledged.
func (r *rush) prompt(id session.ID, x *sender, text string) bool {
	a, err := r.s.Prompt(r.t.Context(), r.who, id, session.PromptInput{Prompt: text, Mode: x.mode}, nil)
	if err != nil {
		r.t.Errorf("prompt: %v", err)
		return false
	}
	r.count(id, 1)
	x.sent = append(x.sent, a.Turn.ID)
	x.text[a.Turn.ID] = a.Turn.Prompt
	return true
}

// send sends a number of prompts, and changes or takes back some of those that wait.
func (r *rush) send(id session.ID, x *sender, n int, rnd *rand.Rand) {
	ctx := r.t.Context()
	seen := -1
	for k := range n {
		if x.mode == session.ModeInterrupt { // else nothing would ever be delivered
			seen = r.further(id, seen)
		}
		r.until(id, rnd.IntN(5)) // near an empty queue a prompt meets the end of a turn
		if !r.prompt(id, x, fmt.Sprintf("%s %d", x.mode, k)) {
			return
		}
		// One of the newest, which may be going out right now.
		turn := x.sent[max(0, len(x.sent)-1-rnd.IntN(4))]
		switch rnd.IntN(6) {
		case 0, 1:
			text := fmt.Sprintf("edited %d", k)
			switch _, err := r.s.EditQueued(ctx, r.who, id, turn, session.EditInput{Prompt: text}); {
			case err == nil:
				x.text[turn] = text
			case fault.CodeOf(err) != fault.TurnNotQueued:
				r.t.Errorf("edit: %v", err)
			}
		case 2:
			switch a, err := r.s.RemoveQueued(ctx, r.who, id, turn); {
			case err == nil && a.Turn.End == session.EndNeverSent:
				x.removed[turn] = true
			case fault.CodeOf(err) != fault.TurnNotQueued:
				r.t.Errorf("remove: %+v, %v", a.Turn, err)
			}
		}
	}
}

// judge holds what was delivered against what was acknowledged.
func (r *rush) judge(id session.ID, senders []*sender, calm bool) {
	ctx := r.t.Context()
	a, err := r.store.Get(ctx, id)
	if err != nil || a.Open != nil || len(a.Queue) != 0 {
		r.t.Fatalf("%d wait, open %+v, %v", len(a.Queue), a.Open, err)
	}
	place := map[session.TurnID]int{}
	for i, turn := range r.order[id] {
		place[turn] = i
	}
	n := 0
	for _, x := range senders {
		last := -1
		for _, turn := range x.sent {
			got, was := r.delivered[turn]
			n++
			row, err := r.store.Turn(ctx, id, turn)
			if err != nil || !row.State.Terminal() {
				r.t.Fatalf("turn %s: %+v, %v", turn, row, err)
			}
			switch {
			case was && x.removed[turn]:
				r.t.Errorf("turn %s was removed, and delivered", turn)
			case was && (got != x.text[turn] || row.Prompt != got):
				r.t.Errorf("turn %s: %q was delivered, %q acknowledged, %q is stored", turn, got, x.text[turn], row.Prompt)
			case !was && (row.End != session.EndNeverSent || calm && !x.removed[turn]):
				r.t.Errorf("turn %s was not delivered, and ended as %s %s", turn, row.State, row.End)
			case was == row.StartedAt.IsZero():
				r.t.Errorf("turn %s: delivered %t, started at %s", turn, was, row.StartedAt)
			}
			if was && x.mode == session.ModeQueue {
				if place[turn] < last {
					r.t.Errorf("turn %s went out of order", turn)
				}
				last = place[turn]
			}
		}
	}
	if a.Session.Turns != int64(n) {
		r.t.Errorf("%d turns are numbered, %d were accepted", a.Session.Turns, n)
	}
}

// Prompts that race with the ends of turns are each delivered once, in order, with the text
// that was acknowledged last; one that was taken back is not; none is stranded.
func TestQueueRacesWithEnds(t *testing.T) {
	t.Parallel()
	total := 10_000
	switch {
	case slow: // the database, which is Go too, is fifteen times slower with the race detector
		total = 500
	case testing.Short():
		total = 1_000
	}
	for _, c := range []struct {
		name  string
		calm  bool // nobody stops turns or the queue
		share int
	}{{"calm", true, total * 3 / 4}, {"steered", false, total / 4}} {
		t.Run(c.name, func(t *testing.T) {
			const sessions = 5
			r := newRush(t)
			modes := []session.Mode{session.ModeQueue, session.ModeQueue, session.ModeQueue}
			if !c.calm {
				modes[2] = session.ModeInterrupt
			}
			all := map[session.ID][]*sender{}
			for range sessions {
				a, err := r.s.Create(t.Context(), r.who, session.CreateInput{Title: "x"}, nil)
				if err != nil {
					t.Fatal(err)
				}
				id := a.Aggregate.Session.ID
				for _, m := range modes {
					all[id] = append(all[id], &sender{mode: m, text: map[session.TurnID]string{}, removed: map[session.TurnID]bool{}})
				}
			}
			ctx, stop := context.WithCancel(t.Context())
			var runners, people, stewards sync.WaitGroup
			for i := range 2 {
				runners.Go(func() { r.run(ctx, fmt.Sprint("runner ", i), rand.New(rand.NewPCG(uint64(i), 1))) })
			}
			done := make(chan struct{})
			seed := uint64(0)
			for id, senders := range all {
				for _, x := range senders {
					seed++
					n := c.share / (sessions * len(modes))
					rnd := rand.New(rand.NewPCG(seed, 2))
					people.Go(func() { r.send(id, x, n, rnd) })
				}
				if !c.calm {
					rnd := rand.New(rand.NewPCG(seed, 3))
					stewards.Go(func() { r.steward(id, done, rnd) })
				}
			}
			people.Wait()
			close(done)
			stewards.Wait()
			for id, senders := range all {
				if !c.calm { // a release that meets a cancel which is still at work lets the queue go on
					seen := r.further(id, -1)
					for k := range 4 {
						r.prompt(id, senders[0], fmt.Sprintf("last %d", k))
					}
					r.further(id, seen)
					if _, err := r.s.Cancel(t.Context(), r.who, id, ""); err != nil && fault.CodeOf(err) != fault.NothingToCancel {
						t.Error(err)
					}
				}
				if a, err := r.s.Release(t.Context(), r.who, id); err != nil {
					t.Fatalf("%+v, %v", a, err)
				}
				r.until(id, 0)
			}
			stop()
			runners.Wait()
			n := 0
			for id, senders := range all {
				r.judge(id, senders, c.calm)
				n += len(r.order[id])
			}
			t.Logf("%d delivered", n)
		})
	}
}

// steward stops turns and the queue now and then, and lets it go on, until done.
func (r *rush) steward(id session.ID, done <-chan struct{}, rnd *rand.Rand) {
	seen := 0
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rnd.IntN(20)) * time.Millisecond):
		}
		r.mu.Lock()
		n := len(r.order[id])
		r.mu.Unlock()
		var err error
		switch do := rnd.IntN(4); {
		case do == 0 && n > seen:
			_, err = r.s.Cancel(r.t.Context(), r.who, id, "")
		case do == 1 && n > seen:
			_, err = r.s.Hold(r.t.Context(), r.who, id)
		default:
			_, err = r.s.Release(r.t.Context(), r.who, id)
		}
		if err != nil && fault.CodeOf(err) != fault.NothingToCancel {
			r.t.Errorf("steward: %v", err)
		}
		seen = n
	}
}
