package convert

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"strconv"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/uistream"
)

// fitted is a value that fits, with what was done to it.
type fitted struct {
	value     uistream.Value
	lossy     bool  // something was replaced
	truncated int64 // size before, 0 = whole
}

// fit cleans a value and cuts its long texts until it has at most limit bytes.
func (c *Converter) fit(raw uistream.Value, limit int) fitted {
	v, lossy := uistream.Clean(raw)
	v, controls := uistream.PlainJSON(v)
	f := fitted{value: v, lossy: lossy || controls || c.bad}
	if len(v) > limit {
		f.value, f.truncated = shrink(v, limit), int64(len(v))
	}
	return f
}

// shrinkBytes is the largest value whose texts are looked at one by one.
const shrinkBytes = 16 << 20

// shrink cuts the texts in a value, keeping beginnings and ends, or where that
// is not enough keeps the beginning of its JSON text.
func shrink(v uistream.Value, limit int) uistream.Value {
	if len(v) <= shrinkBytes {
		d := json.NewDecoder(bytes.NewReader(v))
		d.UseNumber()
		var x any
		if d.Decode(&x) == nil {
			for keep := limit / 2; keep >= 64; keep /= 4 {
				if size(x, keep) > limit {
					continue
				}
				if out := uistream.ValueOf(cutTexts(x, keep)); out != nil && len(out) <= limit {
					return out
				}
			}
		}
	}
	// At worst a byte of the text takes six in the new text, escapes in escapes.
	return uistream.ValueOf(map[string]any{"truncated": true, "bytes": len(v), "head": cutText(string(v), limit/8)})
}

// size is how many bytes x has at least once its texts are cut.
func size(x any, keep int) int {
	switch x := x.(type) {
	case string:
		return min(len(x), keep) + 2
	case json.Number:
		return len(x)
	case []any:
		n := 1 + len(x)
		for _, e := range x {
			n += size(e, keep)
		}
		return n
	case map[string]any:
		n := 1
		for k, e := range x {
			n += len(k) + 4 + size(e, keep)
		}
		return n
	}
	return 4
}

func cutTexts(x any, keep int) any {
	switch x := x.(type) {
	case string:
		if len(x) <= keep {
			return x
		}
		return headOf(x, keep/2) + "\n… " + strconv.Itoa(len(x)-2*(keep/2)) + " bytes left out …\n" + tailOf(x, keep/2)
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = cutTexts(x[i], keep)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, v := range x {
			out[k] = cutTexts(v, keep)
		}
		return out
	}
	return x
}

// cutText keeps the beginning of a text that is longer than n bytes.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return headOf(s, n) + "…"
}

func headOf(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func tailOf(s string, n int) string {
	at := len(s) - n
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return s[at:]
}

func hash(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}

func itoa(n int) string { return strconv.Itoa(n) }

func firstOf(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}
