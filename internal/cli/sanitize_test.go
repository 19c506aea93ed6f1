package cli

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/visible"
)

func FuzzSanitize(f *testing.F) {
	for _, s := range []string{"plain\ttext\n", "\x1b[31m", "a\r\nb\rc", "\x80\xff", "\u202e\u2028", "\u009b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := sanitize(s)
		if !utf8.ValidString(got) {
			t.Fatalf("%q is not valid", got)
		}
		for _, r := range got {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || visible.TurnsText(r) {
				t.Fatalf("%U is left in %q", r, got)
			}
		}
		if again := sanitize(got); again != got {
			t.Fatalf("%q becomes %q the second time", got, again)
		}
	})
}

func FuzzEscapeJSON(f *testing.F) {
	f.Add("\u009b\u202e\x7f plain")
	f.Fuzz(func(t *testing.T, s string) {
		line, err := json.Marshal(s)
		if err != nil {
			t.Skip()
		}
		var b bytes.Buffer
		if err := escapeJSON(&b, line); err != nil {
			t.Fatal(err)
		}
		var before, after string
		if json.Unmarshal(line, &before) != nil || json.Unmarshal(b.Bytes(), &after) != nil || before != after {
			t.Fatalf("%q became %q", before, after)
		}
	})
}

func TestSanitizeLine(t *testing.T) {
	t.Parallel()
	if d := cmp.Diff("a b ␛[2J c", sanitizeLine("a\n b\t\x1b[2J\r\nc ")); d != "" {
		t.Error(d)
	}
}
