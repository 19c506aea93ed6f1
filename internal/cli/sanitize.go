package cli

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/visible"
)

// sanitize makes text of others harmless for a terminal.
func sanitize(s string) string { return visible.Text(s) }

// sanitizeLine is sanitize for text that must stay on its line.
func sanitizeLine(s string) string {
	return strings.Join(strings.Fields(sanitize(s)), " ")
}

// sanitizeBlock is sanitize for sentences: lines after the first are indented.
func sanitizeBlock(s string) string {
	return strings.ReplaceAll(strings.TrimSpace(sanitize(s)), "\n", "\n  ")
}

// clip shortens a line to so many characters.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// escapeJSON writes the characters that [sanitize] would change as JSON escapes.
// JSON has them only inside strings, where an escape means the same.
func escapeJSON(w io.Writer, line []byte) error {
	const hex = "0123456789abcdef"
	out := make([]byte, 0, len(line)+1)
	for i := 0; i < len(line); {
		r, n := utf8.DecodeRune(line[i:])
		if r == 0x7f || r >= 0x80 && r < 0xa0 || visible.TurnsText(r) {
			out = append(out, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		} else {
			out = append(out, line[i:i+n]...)
		}
		i += n
	}
	_, err := w.Write(append(out, '\n'))
	return err
}

// style colours text, or does not.
type style struct{ on bool }

// style for a stream: colours only on a terminal, and not with NO_COLOR (no-color.org).
func (a *app) style(stream any) style {
	return style{a.IsTerminal(stream) && a.Getenv("NO_COLOR") == "" && a.Getenv("TERM") != "dumb"}
}

func (s style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) dim(t string) string  { return s.paint("2", t) }
func (s style) bold(t string) string { return s.paint("1", t) }
func (s style) good(t string) string { return s.paint("32", t) }
func (s style) bad(t string) string  { return s.paint("31", t) }
