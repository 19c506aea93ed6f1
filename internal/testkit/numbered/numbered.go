// Package numbered makes text whose every piece carries its number and the time
// at which it was sent, and counts what of it arrives. The scripted agent and the
// scripted model speak it; what loses, doubles, joins or cuts their pieces on the
// way is found by the text alone. Start at [Run] and [Tally].
package numbered

import (
	"bytes"
	"context"
	"strconv"
	"time"

	"github.com/hearthd/hearth/internal/testkit/script"
)

// A piece is "#", the number in 7 digits, a space, nanoseconds since 1970 in 19
// digits, a space, as many x as it takes, and ";". None of it is escaped in JSON.
const (
	numberDigits = 7
	timeDigits   = 19
	// MinBytes is the size of the smallest piece.
	MinBytes = 1 + numberDigits + 1 + timeDigits + 1 + 1
	// MaxCount is the most pieces of one run.
	MaxCount = 9_999_999
)

// Spec says what is sent.
type Spec struct {
	Count  int           // pieces, numbered from 1
	Bytes  int           // of a piece; fewer than MinBytes are MinBytes
	PerSec int           // pieces a second; 0: as fast as they are taken
	Wait   time.Duration // before the first
}

// SpecOf reads the directive @@numbered COUNT BYTES PER-SECOND WAIT-MS@@.
func SpecOf(d script.Directive) Spec {
	return Spec{
		Count: min(d.Int(0, 1000), MaxCount), Bytes: max(d.Int(1, 200), MinBytes), PerSec: d.Int(2, 0),
		Wait: time.Duration(d.Int(3, 0)) * time.Millisecond,
	}
}

// Directive is the directive that [SpecOf] reads.
func (s Spec) Directive() string {
	return script.Directive{
		Name: "numbered",
		Args: strconv.Itoa(s.Count) + " " + strconv.Itoa(s.Bytes) + " " + strconv.Itoa(s.PerSec) + " " + strconv.FormatInt(s.Wait.Milliseconds(), 10),
	}.String()
}

// Run gives each piece to emit at its time; a piece that is late is given at
// once. The bytes are valid until emit returns. An error of emit or wait ends it.
func (s Spec) Run(ctx context.Context, now func() time.Time, wait func(context.Context, time.Duration) error, emit func([]byte) error) error {
	if s.Wait > 0 {
		if err := wait(ctx, s.Wait); err != nil {
			return err
		}
	}
	began := now()
	var b []byte
	for i := range s.Count {
		if s.PerSec > 0 {
			due := began.Add(time.Duration(i) * time.Second / time.Duration(s.PerSec))
			if d := due.Sub(now()); d > 0 {
				if err := wait(ctx, d); err != nil {
					return err
				}
			}
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		b = Append(b[:0], i+1, s.Bytes, now())
		if err := emit(b); err != nil {
			return err
		}
	}
	return nil
}

// Append appends piece n, sent at a time.
func Append(dst []byte, n, size int, at time.Time) []byte {
	end := len(dst) + max(size, MinBytes)
	dst = append(dst, '#')
	dst = digits(dst, int64(n), numberDigits)
	dst = append(dst, ' ')
	dst = digits(dst, at.UnixNano(), timeDigits)
	dst = append(dst, ' ')
	for len(dst) < end-1 {
		dst = append(dst, 'x')
	}
	return append(dst, ';')
}

func digits(dst []byte, v int64, width int) []byte {
	var b [20]byte
	s := strconv.AppendInt(b[:0], v, 10)
	for range width - len(s) {
		dst = append(dst, '0')
	}
	return append(dst, s...)
}

// Tally counts the pieces in a text that comes bit by bit, cut and joined
// anywhere. What is no whole piece counts as nothing, so its number as lost. It
// is not safe for concurrent use. Make it with [NewTally].
type Tally struct {
	size        int
	seen        []uint64 // a bit for each number
	part        []byte   // a piece that has begun
	first, last int

	// At, when set, is told of each whole piece that came the first time.
	At func(n int, sent time.Time)

	Pieces  int // that came, each number once
	Doubled int // that had come before
	Back    int // that came after a higher number
	Strange int // whose number is not between 1 and the count, or that were cut short
}

// NewTally counts pieces of a spec.
func NewTally(s Spec) *Tally {
	return &Tally{size: max(s.Bytes, MinBytes), seen: make([]uint64, s.Count/64+1), part: make([]byte, 0, max(s.Bytes, MinBytes))}
}

// Lost is how many of the first count pieces have not come.
func (t *Tally) Lost(count int) int { return count - t.Pieces }

// Whole tells whether every one of the first count pieces came once and in order.
func (t *Tally) Whole(count int) bool {
	return t.Pieces == count && t.Doubled == 0 && t.Back == 0 && t.Strange == 0
}

// First is the number of the piece that came first, 0 for none.
func (t *Tally) First() int { return t.first }

// Last is the number of the newest piece, 0 for none.
func (t *Tally) Last() int { return t.last }

// Add takes what follows of the text.
func (t *Tally) Add(text []byte) {
	for len(text) > 0 {
		if len(t.part) == 0 {
			i := bytes.IndexByte(text, '#')
			if i < 0 {
				return
			}
			text = text[i:]
			if len(text) >= t.size { // whole: the common case
				if n := t.piece(text[:t.size]); n > 0 {
					text = text[n:]
					continue
				}
			}
		}
		n := min(t.size-len(t.part), len(text))
		t.part = append(t.part, text[:n]...)
		text = text[n:]
		if len(t.part) == t.size {
			whole := t.part
			t.part = t.part[:0]
			if n := t.piece(whole); n < t.size { // another may begin in what was taken for this one
				rest := bytes.Clone(whole[n:])
				t.Add(rest)
			}
		}
	}
}

// piece counts one, and returns how much of p is done with: all of a whole piece,
// otherwise what is before the next that may begin.
func (t *Tally) piece(p []byte) int {
	n, ok := number(p[1 : 1+numberDigits])
	sent, okTime := number(p[2+numberDigits : 2+numberDigits+timeDigits])
	if !ok || !okTime || p[len(p)-1] != ';' || p[1+numberDigits] != ' ' || bytes.IndexByte(p[1:], '#') >= 0 {
		t.Strange++
		if i := bytes.IndexByte(p[1:], '#'); i >= 0 {
			return i + 1
		}
		return len(p)
	}
	if n < 1 || n/64 >= int64(len(t.seen)) {
		t.Strange++
		return len(p)
	}
	bit := uint64(1) << (n % 64)
	if t.seen[n/64]&bit != 0 {
		t.Doubled++
		return len(p)
	}
	t.seen[n/64] |= bit
	t.Pieces++
	if int(n) < t.last {
		t.Back++
	}
	t.last = int(n)
	if t.first == 0 {
		t.first = int(n)
	}
	if t.At != nil {
		t.At(int(n), time.Unix(0, sent))
	}
	return len(p)
}

func number(b []byte) (v int64, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + int64(c-'0')
	}
	return v, true
}
