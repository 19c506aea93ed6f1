// Package visible makes text of others harmless to look at, in a terminal and in a
// document. It knows no markup. Start at [Text].
package visible

import (
	"strings"
	"unicode/utf8"
)

// Text makes control characters and escape codes visible symbols; characters that
// turn the direction of text are dropped (they can make code look like other code).
// Line feed and tab stay.
func Text(s string) string {
	clean := true
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' && c != '\n' && c != '\t' || c == 0x7f || c >= 0x80 {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for i, r := range s {
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r == '\r':
			// In front of a line feed it says nothing; alone it would write over the line.
			if i+1 == len(s) || s[i+1] != '\n' {
				b.WriteRune('␍')
			}
		case r < ' ':
			b.WriteRune('␀' + r)
		case r == 0x7f:
			b.WriteRune('␡')
		case r >= 0x80 && r < 0xa0 || r == utf8.RuneError:
			b.WriteRune(utf8.RuneError)
		case TurnsText(r):
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// TurnsText tells of the characters of Unicode that set the direction of text, and
// of line separators that terminals treat as they like.
func TurnsText(r rune) bool {
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f || r == 0x061c || r == 0x2028 || r == 0x2029
}
