package forge_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/delivery/forge"
)

func TestOneLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 10, ""},
		{"plain words", 100, "plain words"},
		{"  a name  with spaces ", 100, "a name  with spaces"},
		{"one \r\n\t two\n\n", 100, "one two"},
		{"a\u2028b\u0085c\vd", 100, "a b c d"},
		{"\x1b[31mred\x1b[0m\x00\x7f", 100, "[31mred[0m"},
		{"a\u202eb\u200bc\ufeff", 100, "abc"},
		{"a\xffb", 100, "a\ufffdb"},
		{"0123456789", 10, "0123456789"},
		{"0123456789x", 10, "0123456789…"},
		{"012345678é", 10, "012345678…"},
	} {
		if got := forge.OneLine(c.in, c.n); got != c.want {
			t.Errorf("%q in %d bytes: %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func FuzzOneLine(f *testing.F) {
	f.Add("a\n b\xff", 3)
	f.Fuzz(func(t *testing.T, s string, n int) {
		if n < 0 || n > 1000 {
			return
		}
		got := forge.OneLine(s, n)
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\t\x00\x1b\u2028\u2029\u202e") || len(got) > n+len("…") {
			t.Errorf("%q in %d bytes: %q", s, n, got)
		}
	})
}
