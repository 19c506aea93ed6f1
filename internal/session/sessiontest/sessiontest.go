// Package sessiontest is the suite that every session.Store and transcript.Log
// passes. Call [Run] from the implementation's test with a function that makes an
// empty store. It is one file over 600 lines: a suite is read as one list of cases.
package sessiontest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
)

// Store is what is tested together: both live in one database.
type Store interface {
	session.Store
	transcript.Log
}

var at = time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC)

// Run runs the suite; each case gets a store of its own.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Store)
	}{
		{"what is saved is read", saved},
		{"unknown ids", unknown},
		{"a refused event saves nothing", refused},
		{"the version is compared", version},
		{"idempotency keys", keys},
		{"concurrent twins of one key", twins},
		{"lists page and filter", lists},
		{"turns by number, queue by rank", turns},
		{"effects are claimed once", claims},
		{"one effect of a session at a time", oneAtATime},
		{"racing writers lose nothing", racing},
		{"an ended turn is sealed in the same transaction", sealed},
		{"parts page, keep their first body, and come in order", parts},
		{"removal takes everything along", removal},
		{"fences grow", fences},
		{"text of every kind survives", texts},
		{"questions wait, are settled once, and stay", questions},
		{"a form's values go when the agent has them", forms},
		{"prompts that wait are changed", edits},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, open(t))
		})
	}
}

var ids atomic.Int64

func newID(prefix string) string { return fmt.Sprintf("%s_%08d", prefix, ids.Add(1)) }

func blank() session.Session {
	return session.Session{
		ID: session.ID(newID("ses")), Workspace: "w", Title: "A title", Author: session.Author{Name: "Ann", Email: "ann@example.org"},
		Repo: "https://git.test/r.git", Base: "main", BaseOID: "b0", Format: "sha1", Branch: "hearth/x", Agent: "pi", Model: "m",
		Limits: session.Limits{Total: time.Minute}, Sandbox: session.SandboxNone, Phase: session.PhaseIdle, CreatedAt: at, UpdatedAt: at,
	}
}

func create(t *testing.T, s Store, sess session.Session) session.ID {
	t.Helper()
	if _, err := s.Create(t.Context(), session.Change{Aggregate: session.Aggregate{Session: sess}}, nil); err != nil {
		t.Fatal(err)
	}
	return sess.ID
}

// apply runs the machine over the store, as the service does.
func apply(t *testing.T, s Store, id session.ID, ev session.Event) session.Result {
	t.Helper()
	r, err := tryApply(t, s, id, nil, ev)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryApply(t *testing.T, s Store, id session.ID, key *session.Key, ev session.Event) (session.Result, error) {
	return s.Update(t.Context(), id, key, func(a session.Aggregate) (session.Change, error) {
		next, effects, err := session.Apply(a, ev, at)
		for i := range effects {
			effects[i].ID = session.EffectID(newID("eff"))
		}
		return session.Change{Aggregate: next, Effects: effects, Result: "r-" + newID("x")}, err
	})
}

func prompt(text string) session.Prompted {
	return session.Prompted{Turn: session.Turn{ID: session.TurnID(newID("trn")), Prompt: text, Author: session.Author{Name: "Ann"}}}
}

func saved(t *testing.T, s Store) {
	id := create(t, s, blank())
	p := prompt("first")
	apply(t, s, id, p)
	apply(t, s, id, prompt("second"))
	apply(t, s, id, session.SandboxCreated{Generation: 1, Handle: `{"id":"x"}`})
	apply(t, s, id, session.SandboxReady{Generation: 1})
	apply(t, s, id, session.Handed{Turn: p.Turn.ID, Agent: "pi", Build: "b", Fingerprint: "f"})
	r := apply(t, s, id, session.Sent{Turn: p.Turn.ID, Rung: "fresh", AgentSession: "as", At: at})
	got, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	want := r.Aggregate
	want.Ended = nil
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("saved and read differ:\n%s", d)
	}
	last, err := s.LastReached(t.Context(), id)
	if err != nil || last.ID != p.Turn.ID {
		t.Fatalf("last reached: %v %v", last.ID, err)
	}
	active, err := s.Active(t.Context())
	if err != nil || len(active) != 1 || active[0] != id {
		t.Fatalf("active: %v %v", active, err)
	}
	one, err := s.Turn(t.Context(), id, p.Turn.ID)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(*got.Open, one); d != "" {
		t.Fatal(d)
	}
}

func unknown(t *testing.T, s Store) {
	id := create(t, s, blank())
	other := create(t, s, blank())
	p := prompt("x")
	apply(t, s, other, p)
	_, err := s.Get(t.Context(), "ses_none")
	wantCode(t, err, fault.SessionNotFound)
	_, err = tryApply(t, s, "ses_none", nil, session.QueueReleased{})
	wantCode(t, err, fault.SessionNotFound)
	_, err = s.Turn(t.Context(), id, p.Turn.ID)
	wantCode(t, err, fault.TurnNotFound)
	_, err = s.LastReached(t.Context(), id)
	wantCode(t, err, fault.TurnNotFound)
	wantCode(t, s.Remove(t.Context(), "ses_none"), fault.SessionNotFound)
}

func wantCode(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Fatalf("got %v, want %s", err, code)
	}
}

func refused(t *testing.T, s Store) {
	id := create(t, s, blank())
	before, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tryApply(t, s, id, nil, session.CancelAsked{})
	wantCode(t, err, fault.NothingToCancel)
	after, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Fatal(d)
	}
}

func version(t *testing.T, s Store) {
	id := create(t, s, blank())
	a, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	a.Session.Title, a.Session.Version = "changed", a.Session.Version+1
	r, err := s.Update(t.Context(), id, nil, func(session.Aggregate) (session.Change, error) { return session.Change{Aggregate: a}, nil })
	if err != nil || r.Aggregate.Session.Title != "changed" {
		t.Fatal(err)
	}
	// The stored pairs are checked by the database as well.
	bad := a
	bad.Session.Version++
	bad.Open = &session.Turn{ID: session.TurnID(newID("trn")), Session: id, Number: 1, State: session.TurnRunning}
	if _, err := s.Update(t.Context(), id, nil, func(session.Aggregate) (session.Change, error) { return session.Change{Aggregate: bad}, nil }); err == nil {
		t.Fatal("a running turn without a sandbox was saved")
	}
}

func keys(t *testing.T, s Store) {
	id := create(t, s, blank())
	key := &session.Key{Identity: "me", Operation: "prompt", Key: "k", BodyHash: "h", Now: at}
	first, err := tryApply(t, s, id, key, prompt("one"))
	if err != nil || first.Replayed != "" {
		t.Fatalf("%+v %v", first, err)
	}
	if r, err := s.Replay(t.Context(), key); err != nil || r == "" {
		t.Fatalf("the key is not known: %q %v", r, err)
	}
	if r, err := s.Replay(t.Context(), &session.Key{Identity: "me", Operation: "prompt", Key: "unused", BodyHash: "h", Now: at}); err != nil || r != "" {
		t.Fatalf("an unused key names %q, %v", r, err)
	}
	again, err := tryApply(t, s, id, key, prompt("one"))
	if err != nil || again.Replayed == "" || len(again.Aggregate.Queue) != 0 {
		t.Fatalf("the second use stored something or answered anew: %+v %v", again, err)
	}
	_, err = tryApply(t, s, id, &session.Key{Identity: "me", Operation: "prompt", Key: "k", BodyHash: "other", Now: at}, prompt("two"))
	wantCode(t, err, fault.IdempotencyConflict)
	for _, k := range []session.Key{{Identity: "you", Operation: "prompt"}, {Identity: "me", Operation: "create"}} {
		k.Key, k.BodyHash, k.Now = "k", "h", at
		if r, err := tryApply(t, s, id, &k, prompt("other")); err != nil || r.Replayed != "" {
			t.Fatalf("%+v: keys of others are mixed up: %v", k, err)
		}
	}
	late := *key
	late.Now = at.Add(session.KeyLifetime)
	if r, err := tryApply(t, s, id, &late, prompt("one")); err != nil || r.Replayed != "" {
		t.Fatalf("an expired key was replayed: %v", err)
	}
	// A refused event must not use up its key.
	fail := &session.Key{Identity: "me", Operation: "cancel", Key: "k2", BodyHash: "h", Now: at}
	empty := create(t, s, blank())
	_, err = tryApply(t, s, empty, fail, session.CancelAsked{})
	wantCode(t, err, fault.NothingToCancel)
	if r, err := tryApply(t, s, empty, fail, prompt("x")); err != nil || r.Replayed != "" {
		t.Fatalf("%+v %v", r, err)
	}
}

func twins(t *testing.T, s Store) {
	key := &session.Key{Identity: "me", Operation: "create", Key: "k", BodyHash: "h", Now: at}
	var wg sync.WaitGroup
	var stored atomic.Int64
	results := make([]string, 16)
	for i := range results {
		wg.Go(func() {
			sess := blank()
			r, err := s.Create(t.Context(), session.Change{Aggregate: session.Aggregate{Session: sess}, Result: string(sess.ID)}, key)
			switch {
			case err != nil:
				t.Error(err)
			case r.Replayed == "":
				stored.Add(1)
				results[i] = string(sess.ID)
			default:
				results[i] = r.Replayed
			}
		})
	}
	wg.Wait()
	if stored.Load() != 1 {
		t.Fatalf("%d of the twins stored a session", stored.Load())
	}
	for _, r := range results {
		if r != results[0] {
			t.Fatalf("answers differ: %v", results)
		}
	}
}

func lists(t *testing.T, s Store) {
	var all []session.ID
	for i := range 7 {
		sess := blank()
		if i%2 == 0 {
			sess.Phase = session.PhaseFailed
		}
		all = append(all, create(t, s, sess))
	}
	foreign := blank()
	foreign.Workspace = "other"
	create(t, s, foreign)
	var got []session.ID
	below := session.ID("")
	for {
		page, err := s.List(t.Context(), session.ListQuery{Workspace: "w", Below: below, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, x := range page {
			got = append(got, x.ID)
		}
		below = got[len(got)-1]
	}
	if len(got) != 7 || got[0] != all[6] || got[6] != all[0] {
		t.Fatalf("paged %v", got)
	}
	failed, err := s.List(t.Context(), session.ListQuery{Workspace: "w", Phases: []session.Phase{session.PhaseFailed, session.PhaseRunning}, Limit: 100})
	if err != nil || len(failed) != 4 {
		t.Fatalf("%d failed, %v", len(failed), err)
	}
	none, err := s.List(t.Context(), session.ListQuery{Workspace: "w", Repo: "https://else.test/", Limit: 100})
	if err != nil || len(none) != 0 {
		t.Fatalf("%d of another repository, %v", len(none), err)
	}
}

func turns(t *testing.T, s Store) {
	id := create(t, s, blank())
	var last session.TurnID
	for i := range 4 {
		p := prompt(fmt.Sprint("p", i))
		last = p.Turn.ID
		apply(t, s, id, p)
	}
	apply(t, s, id, session.CancelAsked{Turn: last})
	got, err := s.Turns(t.Context(), id, 0, 100)
	if err != nil || len(got) != 2 || got[0].Number != 1 || got[1].ID != last {
		t.Fatalf("%+v %v", got, err)
	}
	a, err := s.Get(t.Context(), id)
	if err != nil || len(a.Queue) != 2 || a.Queue[0].Prompt != "p1" || a.Queue[1].Prompt != "p2" {
		t.Fatalf("%+v %v", a.Queue, err)
	}
	if got, err := s.Turns(t.Context(), id, 1, 100); err != nil || len(got) != 1 {
		t.Fatalf("after 1: %+v %v", got, err)
	}
}

func claims(t *testing.T, s Store) {
	for range 20 {
		apply(t, s, create(t, s, blank()), prompt("x"))
	}
	var mu sync.Mutex
	seen := map[session.EffectID]string{}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			owner := fmt.Sprint("o", w)
			for {
				got, err := s.Claim(t.Context(), owner, at, at.Add(time.Minute), 3, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if len(got) == 0 {
					return
				}
				mu.Lock()
				for _, e := range got {
					if o, ok := seen[e.ID]; ok {
						t.Errorf("%s is held by %s and %s", e.ID, o, owner)
					}
					seen[e.ID] = owner
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 20 {
		t.Fatalf("%d of 20 claimed", len(seen))
	}
	for id, owner := range seen {
		if err := s.Done(t.Context(), id, "stranger"); err != nil {
			t.Fatal(err)
		}
		if ok, err := s.Renew(t.Context(), id, owner, at.Add(2*time.Minute)); err != nil || !ok {
			t.Fatalf("a stranger removed an effect: %v %v", ok, err)
		}
		if err := s.Retry(t.Context(), id, owner, at.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Claim(t.Context(), "o", at.Add(time.Minute), at.Add(2*time.Minute), 100, nil); err != nil || len(got) != 0 {
		t.Fatalf("%d claimed before they are due, %v", len(got), err)
	}
	due, err := s.NextDue(t.Context())
	if err != nil || !due.Equal(at.Add(time.Hour)) {
		t.Fatalf("next due %s %v", due, err)
	}
	got, err := s.Claim(t.Context(), "o", at.Add(time.Hour), at.Add(2*time.Hour), 100, nil)
	if err != nil || len(got) != 20 || got[0].Attempts != 1 {
		t.Fatalf("%d claimed, attempts %v, %v", len(got), got, err)
	}
	// A lease that ran out can be taken over; a server that knows it is alone need not wait.
	if err := s.Unlease(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Claim(t.Context(), "new", at.Add(time.Hour), at.Add(2*time.Hour), 100, nil); err != nil || len(got) != 20 {
		t.Fatalf("%d after unlease, %v", len(got), err)
	}
}

func oneAtATime(t *testing.T, s Store) {
	id := create(t, s, blank())
	p := prompt("x")
	apply(t, s, id, p)
	apply(t, s, id, session.SandboxCreated{Generation: 1, Handle: "h"})
	apply(t, s, id, session.SandboxReady{Generation: 1})
	apply(t, s, id, session.Handed{Turn: p.Turn.ID})
	free := []session.EffectKind{session.EffectCancelTurn, session.EffectForceEnd}
	first, err := s.Claim(t.Context(), "o", at, at.Add(time.Minute), 10, free)
	if err != nil || len(first) != 1 || first[0].Kind != session.EffectStartSandbox {
		t.Fatalf("%+v %v", first, err)
	}
	apply(t, s, id, session.CancelAsked{})
	next, err := s.Claim(t.Context(), "o", at.Add(time.Second), at.Add(time.Minute), 10, free)
	if err != nil || len(next) != 1 || next[0].Kind != session.EffectCancelTurn {
		t.Fatalf("a cancel must not wait behind other work: %+v %v", next, err)
	}
	if err := s.Done(t.Context(), first[0].ID, "o"); err != nil {
		t.Fatal(err)
	}
	next, err = s.Claim(t.Context(), "o", at.Add(time.Second), at.Add(time.Minute), 10, free)
	if err != nil || len(next) != 1 || next[0].Kind != session.EffectSendPrompt {
		t.Fatalf("%+v %v", next, err)
	}
}

func racing(t *testing.T, s Store) {
	id := create(t, s, blank())
	var wg sync.WaitGroup
	var accepted atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 5 {
				_, err := tryApply(t, s, id, nil, prompt("x"))
				switch {
				case err == nil:
					accepted.Add(1)
				case !errors.Is(err, &fault.Error{Code: fault.QueueFull}):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	a, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if n := int64(len(a.Queue)) + 1; n != accepted.Load() || n != session.MaxQueue+1 {
		t.Fatalf("%d accepted, %d there", accepted.Load(), n)
	}
	if a.Session.Version != accepted.Load() {
		t.Fatalf("version %d after %d changes", a.Session.Version, accepted.Load())
	}
}

func part(turn, n int64, body string) transcript.Part {
	return transcript.Part{Cursor: transcript.Cursor{Turn: turn, Part: n}, Body: json.RawMessage(body)}
}

func sealed(t *testing.T, s Store) {
	id := create(t, s, blank())
	p := prompt("x")
	apply(t, s, id, p)
	if err := s.Append(t.Context(), string(id), []transcript.Part{part(1, 1, `{"type":"start"}`)}); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	fail := true
	do := func() (session.Result, error) {
		return s.Update(t.Context(), id, nil, func(a session.Aggregate) (session.Change, error) {
			next, effects, err := session.Apply(a, session.CancelAsked{}, at)
			for i := range effects {
				effects[i].ID = session.EffectID(newID("eff"))
			}
			return session.Change{Aggregate: next, Effects: effects, Seal: func(turn *session.Turn, stored []transcript.Part) ([]transcript.Part, error) {
				if fail {
					return nil, boom
				}
				if turn.ID != p.Turn.ID || len(stored) != 1 {
					t.Errorf("sealing %s with %d parts", turn.ID, len(stored))
				}
				return []transcript.Part{part(1, 2, `{"type":"finish"}`)}, nil
			}}, err
		})
	}
	if _, err := do(); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if a, err := s.Get(t.Context(), id); err != nil || a.Open == nil {
		t.Fatalf("a turn ended without its transcript being closed: %v", err)
	}
	fail = false
	r, err := do()
	if err != nil || len(r.Sealed) != 1 || len(r.Aggregate.Ended) != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	got, err := s.Read(t.Context(), string(id), transcript.Cursor{}, 10)
	if err != nil || len(got) != 2 || string(got[1].Body) != `{"type":"finish"}` {
		t.Fatalf("%v %v", got, err)
	}
}

func parts(t *testing.T, s Store) {
	id := create(t, s, blank())
	var all []transcript.Part
	for turn := int64(1); turn <= 3; turn++ {
		for n := int64(1); n <= 400; n++ {
			all = append(all, part(turn, n, fmt.Sprintf(`{"type":"text-delta","n":%d}`, n)))
		}
	}
	if err := s.Append(t.Context(), string(id), all); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), string(id), []transcript.Part{part(2, 7, `{"changed":true}`)}); err != nil {
		t.Fatal(err)
	}
	var got []transcript.Part
	var c transcript.Cursor
	for {
		page, err := s.Read(t.Context(), string(id), c, 97)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		if err := transcript.Check(c, page); err != nil {
			t.Fatal(err)
		}
		got = append(got, page...)
		c = page[len(page)-1].Cursor
	}
	if d := cmp.Diff(all, got); d != "" {
		t.Fatal(d)
	}
	if last, err := s.Last(t.Context(), string(id), 2); err != nil || last.Part != 400 {
		t.Fatalf("%v %v", last, err)
	}
	if last, err := s.Last(t.Context(), string(id), 9); err != nil || last.Part != 0 {
		t.Fatalf("%v %v", last, err)
	}
	big := make([]byte, 3<<20)
	for i := range big {
		big[i] = 'x'
	}
	body := `{"x":"` + string(big) + `"}`
	other := create(t, s, blank())
	if err := s.Append(t.Context(), string(other), []transcript.Part{part(1, 1, body), part(1, 2, body)}); err != nil {
		t.Fatal(err)
	}
	if page, err := s.Read(t.Context(), string(other), transcript.Cursor{}, 10); err != nil || len(page) != 1 {
		t.Fatalf("a page of %d parts of 3 MiB, %v", len(page), err)
	}
}

func removal(t *testing.T, s Store) {
	id, stays := create(t, s, blank()), create(t, s, blank())
	for _, x := range []session.ID{id, stays} {
		key := &session.Key{Identity: "me", Operation: "prompt", Key: string(x), BodyHash: "h", Now: at}
		if _, err := tryApply(t, s, x, key, prompt("x")); err != nil {
			t.Fatal(err)
		}
		if err := s.Append(t.Context(), string(x), []transcript.Part{part(1, 1, `{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(t.Context(), id)
	wantCode(t, err, fault.SessionNotFound)
	if p, err := s.Read(t.Context(), string(id), transcript.Cursor{}, 10); err != nil || len(p) != 0 {
		t.Fatalf("%d parts left, %v", len(p), err)
	}
	due, err := s.Claim(t.Context(), "o", at, at.Add(time.Minute), 10, nil)
	if err != nil || len(due) != 1 || due[0].Session != stays {
		t.Fatalf("effects left: %+v %v", due, err)
	}
	if p, err := s.Read(t.Context(), string(stays), transcript.Cursor{}, 10); err != nil || len(p) != 1 {
		t.Fatalf("the other session lost its parts: %v", err)
	}
}

func fences(t *testing.T, s Store) {
	a, err := s.NextFence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.NextFence(t.Context())
	if err != nil || b != a+1 {
		t.Fatalf("%d then %d, %v", a, b, err)
	}
}

func texts(t *testing.T, s Store) {
	for _, text := range []string{"plain", "ünïcode 漢字 🙂", "tab\tnew\nline\r\n", `quote " back \ slash '`, "%_like", "\u2028\u200d", "a\u0001b\u001b[31m"} {
		sess := blank()
		sess.Title = text
		id := create(t, s, sess)
		p := prompt(text)
		apply(t, s, id, p)
		a, err := s.Get(t.Context(), id)
		if err != nil || a.Session.Title != text || a.Open.Prompt != text {
			t.Errorf("%q came back as %q, %q, %v", text, a.Session.Title, a.Open.Prompt, err)
		}
	}
}

// running brings a new session to a running turn.
func running(t *testing.T, s Store) (session.ID, session.TurnID) {
	t.Helper()
	sess := blank()
	sess.Approvals = `"ask"`
	id := create(t, s, sess)
	p := prompt("ask me")
	apply(t, s, id, p)
	apply(t, s, id, session.SandboxCreated{Generation: 1, Handle: "h"})
	apply(t, s, id, session.SandboxReady{Generation: 1})
	apply(t, s, id, session.Handed{Turn: p.Turn.ID, Agent: "pi"})
	apply(t, s, id, session.Sent{Turn: p.Turn.ID, Rung: "fresh", At: at})
	return id, p.Turn.ID
}

func questions(t *testing.T, s Store) {
	id, turn := running(t, s)
	ask := func(n int64) session.Question {
		return session.Question{
			Turn: turn, Number: n, Kind: session.QuestionPermission, Title: "Run \x00 rm \u2028", Tool: "execute", ToolCall: "call",
			Options: []session.Option{{ID: "y", Name: "Yes", Kind: "allow_once"}, {ID: "n", Name: "No", Kind: "reject_once"}}, Detail: `{"command":"rm"}`,
		}
	}
	apply(t, s, id, session.QuestionAsked{Question: ask(1)})
	r := apply(t, s, id, session.QuestionAsked{Question: ask(2)})
	got, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r.Aggregate, got); d != "" {
		t.Fatalf("saved and read differ:\n%s", d)
	}
	if got.Session.Approvals != `"ask"` || len(got.Questions) != 2 || got.Open.State != session.TurnWaiting || got.Open.Asked != 2 {
		t.Fatalf("%+v", got)
	}
	// Many answer at once: one wins, all others are told.
	one := session.QuestionIDOf(turn, 1)
	var won, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			verdict := session.VerdictAllow
			if i%2 == 1 {
				verdict = session.VerdictDeny
			}
			_, err := tryApply(t, s, id, nil, session.QuestionAnswered{ID: one, Verdict: verdict, By: fmt.Sprint(i), Message: "so"})
			switch fault.CodeOf(err) {
			case "":
				won.Add(1)
			case fault.QuestionSettled:
				lost.Add(1)
			default:
				t.Errorf("answer %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 7 {
		t.Errorf("%d answers won, %d lost", won.Load(), lost.Load())
	}
	answered, err := s.Question(t.Context(), id, one)
	if err != nil || answered.State != session.QuestionDone || answered.By == "" || answered.Message != "so" {
		t.Errorf("answered: %+v, %v", answered, err)
	}
	pending, err := s.Questions(t.Context(), id, session.QuestionPending, 10)
	if err != nil || len(pending) != 1 || pending[0].Number != 2 {
		t.Errorf("pending: %+v, %v", pending, err)
	}
	if d := cmp.Diff(*r.Aggregate.Questions[1], pending[0]); d != "" {
		t.Error(d)
	}
	apply(t, s, id, session.CancelAsked{})
	all, err := s.Questions(t.Context(), id, "", 10)
	if err != nil || len(all) != 2 || all[0].State != session.QuestionCanceled {
		t.Errorf("all: %+v, %v", all, err)
	}
	if _, err := s.Question(t.Context(), id, "qst_x-1"); fault.CodeOf(err) != fault.QuestionNotFound {
		t.Errorf("unknown: %v", err)
	}
	other := create(t, s, blank())
	if _, err := s.Question(t.Context(), other, one); fault.CodeOf(err) != fault.QuestionNotFound {
		t.Errorf("of another session: %v", err)
	}
	// The effects that follow name their question.
	claimed, err := s.Claim(t.Context(), "o", at, at.Add(time.Minute), 10, []session.EffectKind{session.EffectAnswerQuestion, session.EffectSendPrompt, session.EffectStartSandbox})
	if err != nil || !slices.ContainsFunc(claimed, func(e session.Effect) bool { return e.Kind == session.EffectAnswerQuestion && e.Question == one }) {
		t.Errorf("claimed: %+v, %v", claimed, err)
	}
	if err := s.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Question(t.Context(), id, one); fault.CodeOf(err) != fault.QuestionNotFound {
		t.Errorf("after removal: %v", err)
	}
}
