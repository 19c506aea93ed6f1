package forge

import (
	"strings"
	"unicode"
)

// OneLine makes text from elsewhere fit for a sentence: one line, valid UTF-8, no
// control or invisible characters, at most n bytes and then an ellipsis. Line breaks
// and tabs become one space together with the spaces beside them.
func OneLine(s string, n int) string {
	var b strings.Builder
	gap := false
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case r == '\u2028' || r == '\u2029' || unicode.IsControl(r) && unicode.IsSpace(r):
			gap = true
			continue
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || gap && r == ' ':
			continue
		}
		if gap && !strings.HasSuffix(b.String(), " ") {
			b.WriteByte(' ')
		}
		gap = false
		b.WriteRune(r)
	}
	s = strings.TrimSpace(b.String())
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}
