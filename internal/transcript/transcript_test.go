package transcript

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/fault"
)

const canary = "sk-CANARY-0123456789abcdefghij"

func TestCursorText(t *testing.T) {
	t.Parallel()
	for _, c := range []Cursor{{}, {1, 0}, {3, 7}, {1 << 40, 1 << 50}} {
		got, err := ParseCursor(c.String())
		if err != nil || got != c {
			t.Errorf("%v came back as %v, %v", c, got, err)
		}
	}
	for _, bad := range []string{"", "1", "1.", ".1", "-1.2", "1.2.3", "1.x", " 1.2", "99999999999999999999.1", "1,2", strings.Repeat("9", 500)} {
		if _, err := ParseCursor(bad); fault.CodeOf(err) != fault.InvalidInput {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add("1.2")
	f.Add("0.0")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCursor(s)
		if err == nil && (c.Turn < 0 || c.Part < 0) {
			t.Fatalf("%q gave %v", s, c)
		}
	})
}

func TestCheckFindsGaps(t *testing.T) {
	t.Parallel()
	p := func(turn, part int64) Part { return Part{Cursor: Cursor{turn, part}} }
	for _, c := range []struct {
		after Cursor
		parts []Part
		ok    bool
	}{
		{Cursor{}, []Part{p(1, 1), p(1, 2), p(2, 1)}, true},
		{Cursor{1, 2}, []Part{p(1, 3), p(3, 1)}, true},
		{Cursor{1, 2}, []Part{p(1, 4)}, false},
		{Cursor{1, 2}, []Part{p(1, 2)}, false},
		{Cursor{1, 2}, []Part{p(2, 2)}, false},
		{Cursor{2, 2}, []Part{p(1, 1)}, false},
	} {
		if err := Check(c.after, c.parts); (err == nil) != c.ok {
			t.Errorf("after %v, %v: %v", c.after, c.parts, err)
		}
	}
}

func text(id, s string) json.RawMessage {
	b, _ := json.Marshal(map[string]string{"type": "text-delta", "id": id, "delta": s})
	return b
}

// run gives parts to a masker and returns what came out, checking numbers and order.
func run(t *testing.T, m *Masker, parts []json.RawMessage) []Numbered {
	t.Helper()
	var out []Numbered
	for i, p := range parts {
		out = append(out, m.Add(int64(i+1), p)...)
	}
	out = append(out, m.Flush()...)
	if len(out) != len(parts) {
		t.Fatalf("%d parts in, %d out", len(parts), len(out))
	}
	for i, o := range out {
		if o.N != int64(i+1) {
			t.Fatalf("part %d came out as number %d", o.N, i+1)
		}
		if !json.Valid(o.Body) {
			t.Fatalf("part %d is no JSON any more: %s", o.N, o.Body)
		}
	}
	return out
}

// joined is the text of each block of the parts.
func joined(t *testing.T, parts []Numbered) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, p := range parts {
		var d struct{ Type, ID, Delta string }
		if err := json.Unmarshal(p.Body, &d); err != nil {
			t.Fatal(err)
		}
		if d.Type == "text-delta" {
			out[d.ID] += d.Delta
		}
	}
	return out
}

func TestMaskerFindsEveryForm(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]string{
		"raw": canary, "base64": base64.StdEncoding.EncodeToString([]byte(canary)), "hex": hex.EncodeToString([]byte(canary)),
		"base64 after one byte": base64.StdEncoding.EncodeToString([]byte(":" + canary)), "base64 after two, url": base64.URLEncoding.EncodeToString([]byte("u:" + canary + "?")),
	} {
		m := NewMasker([][]byte{[]byte(canary), []byte("short")})
		got := joined(t, run(t, m, []json.RawMessage{text("a", "key is "+form+" and short stays")}))["a"]
		if strings.Contains(got, form[4:len(form)-4]) || !strings.Contains(got, Mask) {
			t.Errorf("%s: %q", name, got)
		}
		if !strings.HasSuffix(got, "short stays") || !strings.HasPrefix(got, "key is ") {
			t.Errorf("%s: what is around it changed: %q", name, got)
		}
	}
}

// TestMaskerJoinsDeltas cuts a text with secrets at random places, in two blocks
// that come interleaved, with other parts between.
func TestMaskerJoinsDeltas(t *testing.T) {
	t.Parallel()
	want := "start " + Mask + " middle " + Mask + Mask + " end sk-CANARY-0123"
	whole := strings.ReplaceAll(want, Mask, canary)
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 7))
		cut := func() []string {
			var out []string
			for s := whole; s != ""; {
				n := 1 + r.IntN(min(len(s), 1+r.IntN(20)))
				out = append(out, s[:n])
				s = s[n:]
			}
			return out
		}
		a, b := cut(), cut()
		var parts []json.RawMessage
		for len(a)+len(b) > 0 {
			switch {
			case r.IntN(8) == 0:
				parts = append(parts, json.RawMessage(`{"type":"data-plan","id":"plan","data":[]}`))
			case len(b) == 0 || len(a) > 0 && r.IntN(2) == 0:
				parts = append(parts, text("a", a[0]))
				a = a[1:]
			default:
				parts = append(parts, text("b", b[0]))
				b = b[1:]
			}
		}
		m := NewMasker([][]byte{[]byte(canary)})
		got := joined(t, run(t, m, parts))
		for _, id := range []string{"a", "b"} {
			if got[id] != want {
				t.Fatalf("seed %d, block %s:\n got %q\nwant %q", seed, id, got[id], want)
			}
		}
	}
}

func TestMaskerHoldsBackOnlyWhatItMust(t *testing.T) {
	t.Parallel()
	m := NewMasker([][]byte{[]byte(canary)})
	if out := m.Add(1, text("a", "plain text")); len(out) != 1 {
		t.Fatalf("a plain part was held back")
	}
	if out := m.Add(2, text("a", "the key is sk-CAN")); len(out) != 0 {
		t.Fatalf("the beginning of a secret was given out")
	}
	if out := m.Add(3, text("a", "ning is not a key")); len(out) != 2 {
		t.Fatalf("%d parts after it was clear", len(out))
	}
	none := NewMasker(nil)
	body := text("a", "sk-")
	if out := none.Add(1, body); len(out) != 1 || &out[0].Body[0] != &body[0] {
		t.Fatal("without secrets parts must pass as they are")
	}
}

func FuzzMasker(f *testing.F) {
	f.Add("a "+canary+" b", 3, 5)
	f.Add(canary+canary, 17, 1)
	f.Fuzz(func(t *testing.T, s string, a, b int) {
		if a < 0 || b < 0 || a > len(s) || b > len(s)-a {
			return
		}
		parts := []json.RawMessage{text("x", s[:a]), text("x", s[a:a+b]), text("x", s[a+b:])}
		m := NewMasker([][]byte{[]byte(canary)})
		if got := joined(t, run(t, m, parts))["x"]; strings.Contains(got, canary) {
			t.Fatalf("%q kept the secret: %q", s, got)
		}
	})
}
