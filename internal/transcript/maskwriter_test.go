package transcript

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// A text that comes in pieces is masked as one that comes whole.
func TestMaskWriter(t *testing.T) {
	t.Parallel()
	const long = "sk-CANARY-0123456789abcdefghij"
	const round = "abababababababababab"
	secrets := [][]byte{[]byte(long), []byte(round)}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var b strings.Builder
		for range r.IntN(12) {
			switch r.IntN(6) {
			case 0:
				b.WriteString(long)
			case 1:
				b.WriteString(strings.Repeat("ab", r.IntN(40)))
			case 2:
				b.WriteString(long[:r.IntN(len(long))])
			case 3:
				fmt.Fprintf(&b, `%s\u00%02x%s`, long[:5], long[5], long[6:])
			case 4:
				b.WriteString("\\\xff\x00%")
			default:
				b.WriteString(strings.Repeat("text ", r.IntN(50)))
			}
		}
		whole := b.String()
		want := NewMasker(secrets).Text(whole)
		var got bytes.Buffer
		w := NewMaskWriter(secrets, &got)
		for rest := whole; rest != ""; {
			n := min(len(rest), 1+r.IntN(20))
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got.String() != want || int(w.Masked()) != strings.Count(want, Mask) {
			t.Fatalf("seed %d:\n%q\n%q\n%q, %d", seed, whole, want, got.String(), w.Masked())
		}
	}
}

// A secret without end takes no memory, and what has none is what it was.
func TestMaskWriterIsBounded(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	w := NewMaskWriter([][]byte{[]byte("abababababababababab")}, &got)
	piece := bytes.Repeat([]byte("ab"), 32<<10)
	held := 0
	for range 100 {
		if _, err := w.Write(piece); err != nil {
			t.Fatal(err)
		}
		held = max(held, len(w.held))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got.String() != Mask || held > 200<<10 {
		t.Errorf("%d bytes given, %d held", got.Len(), held)
	}
	got.Reset()
	w = NewMaskWriter(nil, &got)
	if _, err := w.Write([]byte("x\x00")); err != nil || got.String() != "x\x00" {
		t.Errorf("%q %v", got.String(), err)
	}
}
