package numbered_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/testkit/numbered"
	"github.com/hearthd/hearth/internal/testkit/script"
)

type counts struct{ Pieces, Lost, Doubled, Back, Strange int }

func of(t *numbered.Tally, n int) counts {
	return counts{t.Pieces, t.Lost(n), t.Doubled, t.Back, t.Strange}
}

// pieces are some of a run, in the order given.
func pieces(size int, numbers ...int) []byte {
	var b []byte
	for _, n := range numbers {
		b = numbered.Append(b, n, size, time.Unix(0, int64(n)*1000))
	}
	return b
}

func TestTally(t *testing.T) {
	t.Parallel()
	const size = 50
	four := numbered.Spec{Count: 4, Bytes: size}
	all := pieces(size, 1, 2, 3, 4)
	for _, c := range []struct {
		name string
		text []byte
		want counts
	}{
		{"nothing", nil, counts{Lost: 4}},
		{"all", all, counts{Pieces: 4}},
		{"with other text", bytes.Join([][]byte{[]byte("hello "), all, []byte("[directives seen: 1; earlier: 0]")}, nil), counts{Pieces: 4}},
		{"one lost", pieces(size, 1, 3, 4), counts{Pieces: 3, Lost: 1}},
		{"one doubled", pieces(size, 1, 2, 2, 3, 4), counts{Pieces: 4, Doubled: 1}},
		{"all doubled", bytes.Repeat(all, 2), counts{Pieces: 4, Doubled: 4}},
		{"out of order", pieces(size, 1, 3, 2, 4), counts{Pieces: 4, Back: 1}},
		{"one that was never sent", pieces(size, 1, 2, 3, 4, 70), counts{Pieces: 4, Strange: 1}},
		{"number 0", pieces(size, 0, 1, 2, 3, 4), counts{Pieces: 4, Strange: 1}},
		{"bytes lost within one", append(bytes.Clone(all[:size+10]), all[size+20:]...), counts{Pieces: 3, Lost: 1, Strange: 1}},
		{"bytes lost across two", append(bytes.Clone(all[:size+30]), all[3*size-10:]...), counts{Pieces: 2, Lost: 2, Strange: 1}},
		{"cut at the end", all[:4*size-1], counts{Pieces: 3, Lost: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, step := range []int{1, 7, size - 1, size, size + 1, 3 * size, 1 << 20} { // events cut and joined
				got := numbered.NewTally(four)
				for rest := c.text; len(rest) > 0; {
					n := min(step, len(rest))
					got.Add(rest[:n])
					rest = rest[n:]
				}
				if diff := cmp.Diff(c.want, of(got, 4)); diff != "" {
					t.Errorf("%d bytes at a time: %s", step, diff)
				}
				if whole := c.want == (counts{Pieces: 4}); got.Whole(4) != whole {
					t.Errorf("%d bytes at a time: whole %t", step, !whole)
				}
			}
		})
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	s := numbered.Spec{Count: 3, Bytes: 10}
	got := numbered.NewTally(s)
	var at []int64
	got.At = func(n int, sent time.Time) { at = append(at, int64(n), sent.UnixNano()) }
	got.Add(pieces(s.Bytes, 2, 2, 3))
	if diff := cmp.Diff([]int64{2, 2000, 3, 3000}, at); diff != "" {
		t.Error(diff)
	}
	if got.First() != 2 {
		t.Errorf("first %d", got.First())
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var waits []time.Duration
	wait := func(_ context.Context, d time.Duration) error {
		waits = append(waits, d)
		now = now.Add(d)
		return nil
	}
	s := numbered.SpecOf(script.Directive{Name: "numbered", Args: "4 60 100 250"})
	if diff := cmp.Diff(numbered.Spec{Count: 4, Bytes: 60, PerSec: 100, Wait: 250 * time.Millisecond}, s); diff != "" {
		t.Error(diff)
	}
	if d := script.Parse(s.Directive()); len(d) != 1 || numbered.SpecOf(d[0]) != s {
		t.Errorf("%s reads as %v", s.Directive(), d)
	}
	got := numbered.NewTally(s)
	err := s.Run(t.Context(), func() time.Time { return now }, wait, func(b []byte) error {
		if len(b) != 60 {
			t.Errorf("%d bytes", len(b))
		}
		if got.Pieces == 1 { // the agent is held up for longer than a piece: the next comes at once
			now = now.Add(15 * time.Millisecond)
		}
		got.Add(b)
		return nil
	})
	if err != nil || !got.Whole(4) {
		t.Errorf("%+v, %v", of(got, 4), err)
	}
	if diff := cmp.Diff([]time.Duration{250 * time.Millisecond, 10 * time.Millisecond, 5 * time.Millisecond}, waits); diff != "" {
		t.Error(diff)
	}
	stop := errors.New("stop")
	if err := s.Run(t.Context(), time.Now, wait, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}

func FuzzTally(f *testing.F) {
	f.Add(pieces(40, 1, 2, 3), 7)
	f.Add([]byte("##1 #;"), 1)
	f.Fuzz(func(t *testing.T, text []byte, step int) {
		s := numbered.Spec{Count: 10, Bytes: 40}
		whole, parts := numbered.NewTally(s), numbered.NewTally(s)
		whole.Add(text)
		step = max(1, step%64)
		for rest := text; len(rest) > 0; {
			n := min(step, len(rest))
			parts.Add(rest[:n])
			rest = rest[n:]
		}
		if diff := cmp.Diff(of(whole, 10), of(parts, 10)); diff != "" {
			t.Error(diff)
		}
	})
}
