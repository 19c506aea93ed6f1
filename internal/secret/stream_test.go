package secret

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	gocmp "github.com/google/go-cmp/cmp"
)

// reading is a text as it is read in one view: its bytes, each with the place it has in the text.
type reading struct {
	bytes []byte
	at    []Span
}

// readings reads a whole text in the three views.
func readings(text []byte) []reading {
	var plain, js, percent reading
	hexOf := func(p []byte) rune {
		var r rune
		for _, b := range p {
			i := strings.IndexByte("0123456789abcdef", b|0x20)
			if b < '0' || b > '9' && b < 'A' || i < 0 {
				return -1
			}
			r = r<<4 + rune(i)
		}
		return r
	}
	unit := func(i int) rune {
		if i+6 > len(text) || text[i] != '\\' || text[i+1] != 'u' {
			return -1
		}
		return hexOf(text[i+2 : i+6])
	}
	for i, b := range text {
		plain.bytes, plain.at = append(plain.bytes, b), append(plain.at, Span{int64(i), int64(i + 1)})
	}
	put := func(r *reading, s string, from, to int) {
		for _, b := range []byte(s) {
			r.bytes, r.at = append(r.bytes, b), append(r.at, Span{int64(from), int64(to)})
		}
	}
	for i := 0; i < len(text); {
		s, n := string(text[i:i+1]), 1
		if text[i] == '\\' && i+1 < len(text) {
			if k := strings.IndexByte(`"\/bfnrt`, text[i+1]); k >= 0 {
				s, n = "\"\\/\b\f\n\r\t"[k:k+1], 2
			} else if u := unit(i); u >= 0 {
				s, n = string(u), 6
				if p := utf16.DecodeRune(u, unit(i+6)); p != 0xfffd {
					s, n = string(p), 12
				}
			}
		}
		put(&js, s, i, i+n)
		i += n
	}
	for i := 0; i < len(text); {
		s, n := string(text[i:i+1]), 1
		if text[i] == '%' && i+3 <= len(text) {
			if h := hexOf(text[i+1 : i+3]); h >= 0 {
				s, n = string([]byte{byte(h)}), 3
			}
		}
		put(&percent, s, i, i+n)
		i += n
	}
	return []reading{plain, js, percent}
}

// places are all forms in all readings of a text.
func places(text []byte, forms [][]byte) []Span {
	var out []Span
	for _, r := range readings(text) {
		for _, f := range forms {
			for i := 0; i+len(f) <= len(r.bytes); i++ {
				if bytes.Equal(r.bytes[i:i+len(f)], f) {
					out = append(out, Span{r.at[i].Start, r.at[i+len(f)-1].End})
				}
			}
		}
	}
	return out
}

// united makes one place of those that overlap.
func united(in []Span) []Span {
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b Span) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End)) })
	var out []Span
	for _, s := range in {
		if n := len(out); n > 0 && out[n-1].End > s.Start {
			out[n-1].End = max(out[n-1].End, s.End)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// check reads a text in pieces and compares with what reading it whole finds.
func check(t *testing.T, r *rand.Rand, text []byte, forms [][]byte) {
	t.Helper()
	all := places(text, forms)
	s := NewFinder(forms).Stream()
	if r.IntN(2) == 0 { // a stream that was used before
		s.Write(text[:r.IntN(len(text)+1)])
		s.Reset()
	}
	most := []int{2, 20, 200}[r.IntN(3)]
	for at := 0; at < len(text); {
		n := 1 + r.IntN(min(len(text)-at, 1+r.IntN(most)))
		s.Write(text[at : at+n])
		at += n
		settled := s.Settled()
		if s.Size() != int64(at) || settled > s.Size() {
			t.Fatalf("after %d bytes: size %d, settled at %d", at, s.Size(), settled)
		}
		for _, p := range all {
			if p.End > int64(at) && p.Start < settled {
				t.Fatalf("after %d bytes of %q (forms %q) settled at %d, but %v was yet to be found", at, text, forms, settled, p)
			}
		}
		if bytes.ContainsAny(text, `\%`) {
			continue
		}
		held := 0
		for _, f := range forms {
			for k := 1; k < len(f); k++ {
				if bytes.HasSuffix(text[:at], f[:k]) {
					held = max(held, k)
				}
			}
		}
		if settled != int64(at-held) {
			t.Fatalf("after %q (forms %q) settled at %d, want %d", text[:at], forms, settled, at-held)
		}
	}
	want := united(all)
	if d := gocmp.Diff(want, slices.Clone(s.Found())); d != "" && len(want)+len(s.Found()) > 0 {
		t.Fatalf("text %q, forms %q:\n%s", text, forms, d)
	}
	if len(want) > 0 {
		cut := r.IntN(len(want))
		if n := s.Forget(want[cut].End); n != cut+1 || len(s.Found()) != len(want)-n {
			t.Fatalf("forgot %d places, want %d", n, cut+1)
		}
	}
}

// TestStreamFindsWhatReadingWholeFinds makes forms and texts of few characters, so
// that they meet often.
func TestStreamFindsWhatReadingWholeFinds(t *testing.T) {
	t.Parallel()
	pick := func(r *rand.Rand, from []string, n int) []byte {
		var b []byte
		for range n {
			b = append(b, from[r.IntN(len(from))]...)
		}
		return b
	}
	alphabets := [][]string{
		{"a", "b"}, {"a", "b", "c", "d"}, {"a", "1", `\`, "u", "0", "6"},
		{"a", "b", `\u0061`, `\u0062`, `\`, `\\`, "u", "%61", "%", "é", `\u00e9`, `\u00E9`, "%c3%A9", `\ud83d`, `\ude00`, "😀", `\n`, "\n"},
	}
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 3))
		alphabet := alphabets[r.IntN(len(alphabets))]
		least := []int{1, 6, 16}[r.IntN(3)]
		var forms [][]byte
		for range 1 + r.IntN(6) {
			forms = append(forms, pick(r, alphabet, least+r.IntN(5)))
		}
		text := pick(r, alphabet, r.IntN(60))
		for range r.IntN(4) { // ends and beginnings of forms, and whole ones
			f := forms[r.IntN(len(forms))]
			text = append(text, f[r.IntN(len(f))*r.IntN(2):]...)
			text = append(text, pick(r, alphabet, r.IntN(10))...)
			text = append(text, f[:r.IntN(len(f))]...)
		}
		check(t, r, text, forms)
	}
}

// TestManyForms has more states than rows.
func TestManyForms(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 5))
	var values [][]byte
	for i := range 60 {
		b := make([]byte, 16+r.IntN(60))
		for k := range b {
			b[k] = byte(r.IntN(255)) + 1
		}
		values = append(values, append(b, fmt.Sprint(i)...))
	}
	forms := Forms(values)
	for range 8 {
		var text []byte
		for range 20 {
			f := forms[r.IntN(len(forms))]
			from := r.IntN(len(f))
			if r.IntN(3) == 0 {
				from = 0
			}
			text = append(text, f[from:from+r.IntN(len(f)-from)+1]...)
		}
		check(t, r, text, forms)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(`a\u0061b%61\\u0061`), []byte("aa"), []byte(`\u0`), uint64(1))
	f.Add([]byte(`\ud83d\ude00x\ud83d`), []byte("😀x"), []byte(`e00x`), uint64(2))
	f.Add([]byte(`%2541%41%4`), []byte("%41"), []byte(`A`), uint64(3))
	f.Fuzz(func(t *testing.T, text, a, b []byte, seed uint64) {
		if len(text) > 300 || len(a)+len(b) > 100 {
			return
		}
		forms := slices.DeleteFunc([][]byte{a, b}, func(x []byte) bool { return len(x) == 0 })
		check(t, rand.New(rand.NewPCG(seed, 1)), text, forms)
	})
}

func BenchmarkStream(b *testing.B) {
	for _, n := range []int{3, 10} {
		var values [][]byte
		for i := range n {
			values = append(values, fmt.Appendf(nil, "sk-%d-%s", i, "0123456789abcdefghijklmnopqrstuvwxyz"))
		}
		f := NewFinder(Forms(values))
		text := []byte(strings.Repeat("func (s *Stream) plain(p []byte) int { return len(p) } // some words, 100% \"ordinary\"\n", 700))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			s := f.Stream()
			for b.Loop() {
				s.Reset()
				s.Write(text)
			}
		})
	}
}

func BenchmarkNewFinder(b *testing.B) {
	var values [][]byte
	for i := range 10 {
		values = append(values, fmt.Appendf(nil, "sk-%d-%s", i, "0123456789abcdefghijklmnopqrstuvwxyz"))
	}
	for b.Loop() {
		NewFinder(Forms(values))
	}
}
