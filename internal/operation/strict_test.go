package operation_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
)

func TestDecodeObject(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, raw string
		want      map[string]any
		says      string // empty: it is read
	}{
		{"nothing", " \n", map[string]any{}, ""},
		{"an object", `{"a":"\u00e9\ud83d\ude00é","b":[{"a":1},{"a":2}]}` + "\n", map[string]any{"a": "é😀é", "b": []any{map[string]any{"a": 1.0}, map[string]any{"a": 2.0}}}, ""},
		{"the same name as value", `{"a":"b","b":"a","c":["a","a"]}`, map[string]any{"a": "b", "b": "a", "c": []any{"a", "a"}}, ""},
		{"an escaped backslash before u", `{"a":"\\ud800"}`, map[string]any{"a": `\ud800`}, ""},
		{"the character for lost bytes itself", `{"a":"�"}`, map[string]any{"a": "�"}, ""},
		{"a byte that is none", "{\"a\":\"x\xffy\"}", nil, "not valid UTF-8: byte 8 is 0xFF"},
		{"latin-1", "{\"a\":\"Stra\xdfe\"}", nil, "byte 11 is 0xDF"},
		{"a character cut off", "{\"a\":\"\xe2\x82\"}", nil, "byte 7 is 0xE2"},
		{"a surrogate in UTF-8", "{\"a\":\"\xed\xa0\x80\"}", nil, "byte 7 is 0xED"},
		{"only bytes that are none", "\xff", nil, "byte 1 is 0xFF"},
		{"first half", `{"a":"\ud83dx"}`, nil, "the escape at byte 7 is half"},
		{"first half at the end", `{"a":"\uD83D"}`, nil, "the escape at byte 7 is half"},
		{"first half before another escape", `{"a":"\ud83d\n"}`, nil, "the escape at byte 7 is half"},
		{"second half", `{"a":"x\ude00"}`, nil, "the escape at byte 8 is half"},
		{"halves the wrong way round", `{"a":"\ude00\ud83d"}`, nil, "the escape at byte 7 is half"},
		{"half in a name", `{"\ud83d":1}`, nil, "the escape at byte 3 is half"},
		{"a field twice", `{"prompt":"a","prompt":"b"}`, nil, `The field "prompt" is given twice; the second ends at byte 22.`},
		{"a field twice in other writing", `{"a":1,"\u0061":2}`, nil, `The field "a" is given twice`},
		{"a field twice within", `{"x":[1,{"a":{},"b":1,"a":2}]}`, nil, `The field "a" is given twice`},
		{"something after it", `{"a":1}{"a":2}`, nil, "after top-level value at byte 8"},
		{"garbage after it", "{} x", nil, "at byte 4"},
		{"a byte mark", "\ufeff{}", nil, "at byte 1"},
		{"cut off", `{"a":`, nil, "at byte 5"},
		{"a list", `[]`, nil, "not a JSON object"},
		{"null", `null`, nil, "not a JSON object"},
	} {
		got, err := operation.DecodeObject([]byte(c.raw))
		if c.says == "" {
			if d := cmp.Diff(c.want, got); d != "" || err != nil {
				t.Errorf("%s: %v %s", c.name, err, d)
			}
			continue
		}
		if fault.CodeOf(err) != fault.InvalidInput || !strings.Contains(fault.From(err).Sentence(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

func FuzzDecodeObject(f *testing.F) {
	for _, s := range []string{`{}`, ``, `{"id":"x"}`, `[`, `null`, `{"a":{"b":[1]}}`, "{\"id\":\"\xff\"}", `{"id":"\ud800"}`, `{"id":"\ud83d\ude00"}`, `{"id":1,"id":2}`, `{}{}`, `{"id":"\\u"}`} {
		f.Add([]byte(s))
	}
	r, _ := list(operation.OwnerMay)
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := operation.DecodeObject(raw)
		if err == nil && !utf8.Valid(raw) {
			t.Fatalf("%q was mended", raw)
		}
		if err == nil {
			_, err = r.Invoke(t.Context(), r.Operations[0], operation.Call{Key: "k"}, m)
		}
		if err != nil && fault.CodeOf(err) != fault.InvalidInput {
			t.Fatalf("%q: %v", raw, err)
		}
	})
}
