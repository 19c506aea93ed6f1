package recorder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
)

// stuck is a store that does nothing until its gate opens, and refuses with err until then
// where there is one.
type stuck struct {
	*world
	gate chan struct{}
	err  error
}

func (s *stuck) wait(ctx context.Context) error {
	if s.err != nil {
		select {
		case <-s.gate:
			return nil
		default:
			return s.err
		}
	}
	select {
	case <-s.gate:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *stuck) Append(ctx context.Context, id string, parts []transcript.Part) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.world.Append(ctx, id, parts)
}

func (s *stuck) Apply(ctx context.Context, id session.ID, ev session.Event) (session.Aggregate, error) {
	if s.err == nil { // the session's rows are in the same file
		if err := s.wait(ctx); err != nil {
			return session.Aggregate{}, err
		}
	}
	return s.world.Apply(ctx, id, ev)
}

func (s *stuck) recorder() *Recorder {
	r := s.world.recorder()
	r.Sessions, r.Log = s, s
	return r
}

// counted tells how far a driver's log was read.
type counted struct {
	driver
	read int
}

func (c *counted) Log(ctx context.Context, turn string, after int64, fn func(driverapi.Record) error) error {
	return c.driver.Log(ctx, turn, after, func(r driverapi.Record) error {
		c.read++
		return fn(r)
	})
}

// long is a turn of n deltas of a size.
func long(n, size int) []driverapi.Record {
	out := talk()[:5:5]
	for i := range n {
		out = append(out, part(int64(len(out)-1), delta("a", fmt.Sprintf("%07d%s", i, strings.Repeat("x", size-7)))))
	}
	last := int64(len(out) - 2)
	return append(out, driverapi.Record{N: last, End: &driverapi.End{Outcome: driverapi.OutcomeEndTurn, Clean: true, Parts: last}})
}

func (w *world) sizes() (shown, stored int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.shown {
		shown += len(p.Body)
	}
	for _, p := range w.stored {
		stored += len(p.Body)
	}
	return shown, stored
}

// A store that stands still keeps no viewer waiting, not even for the first part, until
// 2 MiB are not stored; then the driver waits. Once the store goes on nothing is missing.
func TestStoreStandsStill(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"small parts": 200, "parts of half a megabyte": 512 << 10, "parts of all sizes": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				records := long(14_000, 200)
				switch {
				case size > 200:
					records = long(8, size)
				case size == 0:
					records = append(long(3000, 100)[:3000], long(4, 900<<10)[5:]...)
					for i := range records[5:] {
						records[i+5].N = int64(i + 4)
					}
					records[len(records)-1].N--
				}
				s := &stuck{world: &world{}, gate: make(chan struct{})}
				src := &counted{driver: driver{records: records}}
				ended := make(chan error)
				go func() {
					ended <- s.recorder().Record(t.Context(), src, "ses_1", theTurn, func() Told { return Told{} })
				}()
				synctest.Wait()
				shown, stored := s.sizes()
				if stored != 0 || shown > 2<<20 || shown < 1<<20 {
					t.Errorf("%d bytes shown, %d stored", shown, stored)
				}
				if src.read > len(s.shown)+8 {
					t.Errorf("%d records read, %d parts shown", src.read, len(s.shown))
				}
				close(s.gate)
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				if !same(s.shown, s.stored) {
					t.Error("what was stored is not what was shown")
				}
				if n := int(records[len(records)-1].N); len(s.stored) != n || transcript.Check(transcript.Cursor{Turn: 3}, s.stored) != nil {
					t.Errorf("%d of %d parts stored", len(s.stored), n)
				}
				wantOnce(t, s.world)
			})
		})
	}
}

func same(a, b []transcript.Part) bool {
	return slices.EqualFunc(a, b, func(p, q transcript.Part) bool { return p.Cursor == q.Cursor && bytes.Equal(p.Body, q.Body) })
}

func wantOnce(t *testing.T, w *world) {
	t.Helper()
	var order []string
	for _, e := range w.events {
		order = append(order, strings.TrimPrefix(fmt.Sprintf("%T", e), "session."))
	}
	if d := cmp.Diff([]string{"Sent", "FirstPart", "AgentDone"}, order); d != "" {
		t.Error(d)
	}
}

// A store that refuses for ten minutes, as on a full disk, is tried again and again and
// gets everything; nothing that comes later is told to the session before.
func TestStoreRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{world: &world{}, gate: make(chan struct{}), err: syscall.ENOSPC}
		ended := make(chan error)
		go func() {
			ended <- s.recorder().Record(t.Context(), &driver{records: long(14_000, 200)}, "ses_1", theTurn, func() Told { return Told{} })
		}()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if shown, stored := s.sizes(); stored != 0 || shown > 2<<20 || shown < 1<<20 || len(s.events) != 0 {
			t.Errorf("%d bytes shown, %d stored, told %v", shown, stored, s.events)
		}
		close(s.gate)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if !same(s.shown, s.stored) || len(s.stored) != 14_003 {
			t.Errorf("%d parts shown, %d stored", len(s.shown), len(s.stored))
		}
		wantOnce(t, s.world)
	})
}

// A recording that is stopped stores what was shown, where the store takes it, but
// nothing behind what the session was not told of; the next one goes on from there.
func TestStoppedRecordingGoesOn(t *testing.T) {
	t.Parallel()
	for _, still := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &stuck{world: &world{}, gate: make(chan struct{})}
			if !still {
				close(s.gate)
			}
			records := long(1000, 100)
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan error)
			stop := errors.New("the server stops")
			go func() {
				src := &driver{records: records[:500]}
				ended <- s.recorder().Record(ctx, waits{src}, "ses_1", theTurn, func() Told { return Told{} })
			}()
			synctest.Wait()
			cancel(stop)
			if err := <-ended; !errors.Is(err, stop) {
				t.Fatal(err)
			}
			if sent, n := find[session.Sent](s.events); !still && (n != 1 || len(s.stored) != 498) || still && (n != 0 || len(s.stored) > 0) {
				t.Errorf("stands still %v: %d stored, %d times %+v", still, len(s.stored), n, sent)
			}
			if still {
				close(s.gate)
			}
			if err := s.recorder().Record(t.Context(), &driver{records: records}, "ses_1", theTurn, func() Told { return Told{} }); err != nil {
				t.Fatal(err)
			}
			if len(s.stored) != 1003 || transcript.Check(transcript.Cursor{Turn: 3}, s.stored) != nil {
				t.Errorf("stands still %v: %d stored", still, len(s.stored))
			}
			wantOnce(t, s.world)
		})
	}
}

// waits is a driver whose log goes on for ever.
type waits struct{ *driver }

func (d waits) Log(ctx context.Context, turn string, after int64, fn func(driverapi.Record) error) error {
	if err := d.driver.Log(ctx, turn, after, fn); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// A session that is gone ends its recording.
func TestSessionIsGone(t *testing.T) {
	t.Parallel()
	s := &stuck{world: &world{}, gate: make(chan struct{}), err: fault.New(fault.SessionNotFound, "")}
	err := s.recorder().Record(t.Context(), waits{&driver{records: long(100, 100)}}, "ses_1", theTurn, func() Told { return Told{} })
	if fault.CodeOf(err) != fault.SessionNotFound {
		t.Error(err)
	}
}

// The first part is told of once, wherever the server is killed in between.
func TestFirstPartIsToldOnce(t *testing.T) {
	t.Parallel()
	all := talk()
	for stored := range 7 {
		w := &world{}
		for _, r := range all {
			if r.Part != nil && r.N <= int64(stored) {
				w.stored = append(w.stored, transcript.Part{Cursor: transcript.Cursor{Turn: 3, Part: r.N}, Body: r.Part})
			}
		}
		if err := record(t, w, &driver{records: all}); err != nil {
			t.Fatal(err)
		}
		want := 1
		if stored > 3 { // it was told before the next part was stored
			want = 0
		}
		if _, n := find[session.FirstPart](w.events); n != want {
			t.Errorf("%d parts stored: told %d times", stored, n)
		}
	}
}

// FuzzRecord: whatever a driver sends, what is stored is a beginning of a message that can
// be closed, and each turn ends once.
func FuzzRecord(f *testing.F) {
	var seed strings.Builder
	for _, r := range talk() {
		if r.Part != nil {
			seed.Write(r.Part)
			seed.WriteByte('\n')
		}
	}
	f.Add(seed.String(), int64(0))
	f.Add(seed.String()+`{"type":"data-permission","id":"qst_1-1","data":{"options":[{"optionId":"y","kind":"allow_once"}]}}`+"\n", int64(3))
	f.Add(`{"type":"start","messageId":"trn_1"}`+"\n"+`{"type":"finish"}`+"\n"+`{"type":"text-start","id":"a"}`, int64(1))
	f.Fuzz(func(t *testing.T, lines string, odd int64) {
		w := &world{}
		var records []driverapi.Record
		n := int64(0)
		for line := range strings.SplitSeq(lines, "\n") {
			n++
			if odd > 0 && n == odd {
				records = append(records, driverapi.Record{N: n - 1, Sent: true}, driverapi.Record{N: n * 7, Rung: &driverapi.RungTaken{Rung: line, Failed: []string{line}}})
			}
			if odd < 0 && n == -odd {
				n += 3
			}
			records = append(records, driverapi.Record{N: n, Part: []byte(line)})
		}
		records = append(records, driverapi.Record{N: n, End: &driverapi.End{Outcome: lines[:min(len(lines), 20)], Message: lines, Clean: true}})
		if err := record(t, w, &driver{records: records}); err != nil {
			t.Fatal(err)
		}
		if _, n := find[session.AgentDone](w.events); n != 1 {
			t.Fatalf("ended %d times", n)
		}
		if err := transcript.Check(transcript.Cursor{Turn: 3}, w.stored); err != nil || !same(w.shown, w.stored) {
			t.Fatalf("%v: shown %v, stored %v", err, w.shown, w.stored)
		}
		for _, p := range w.stored {
			if strings.Contains(string(p.Body), secret) {
				t.Fatalf("a secret was stored: %s", p.Body)
			}
		}
		turn := theTurn
		turn.State, turn.EndedAt = session.TurnCompleted, time.Unix(1, 0)
		if _, err := w.recorder().Seal(&turn, w.stored); err != nil {
			t.Fatal(err)
		}
	})
}
