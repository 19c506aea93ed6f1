// Package markdown puts text of others into a Markdown document (CommonMark with
// GitHub's tables) so that it can neither leave its place nor bring HTML along. It
// renders nothing. Control characters are made visible, see package visible.
// [Line] is for words in a line, [Code] for a name in it, [Fence] for text to the
// letter, [Quote] for text that is Markdown itself.
package markdown

import (
	"fmt"
	"io"
	"strings"

	"github.com/hearthd/hearth/internal/visible"
)

// Line is text for a place within a line; it means only itself.
func Line(s string) string {
	var b strings.Builder
	for _, r := range oneLine(s) {
		if strings.ContainsRune("\\`*_[]<>&|~#", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

func oneLine(s string) string { return strings.Join(strings.Fields(visible.Text(s)), " ") }

// Code is a code span with the text, empty for an empty one.
func Code(s string) string {
	if s = oneLine(s); s == "" {
		return ""
	}
	mark := strings.Repeat("`", longest(s, '`')+1)
	if s[0] == '`' || s[len(s)-1] == '`' {
		s = " " + s + " "
	}
	return mark + s + mark
}

// Fence is a block of the text to the letter, with a last line feed; info names
// its language and is one of the program's own words.
func Fence(info, s string) string {
	s = visible.Text(s)
	mark := strings.Repeat("`", max(3, longest(s, '`')+1))
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return mark + info + "\n" + s + mark + "\n"
}

// longest is the longest run of the byte.
func longest(s string, c byte) int {
	n, most := 0, 0
	for i := 0; i < len(s); i++ {
		if n++; s[i] != c {
			n = 0
		}
		most = max(most, n)
	}
	return most
}

// Quote writes a block quote of Markdown text, with a last line feed. Blocks that the
// text leaves open end with the quote. What could be HTML is written as text, but
// for code: there the text is as it was, where it is sure to be code for every
// reader, and else shows &lt; for <.
func Quote(w io.Writer, s string) error {
	lines := strings.Split(strings.TrimRight(visible.Text(s), " \t\n"), "\n")
	for _, l := range safe(lines) {
		mark := "> "
		if l == "" {
			mark = ">"
		}
		for _, x := range []string{mark, l, "\n"} {
			if _, err := io.WriteString(w, x); err != nil {
				return fmt.Errorf("write a quote: %w", err)
			}
		}
	}
	return nil
}

// spaces makes the tabs that a line begins with spaces: how wide they are depends on
// the column, and the quote's mark moves the line.
func spaces(l string) string {
	rest := strings.TrimLeft(l, " \t")
	if rest == "" {
		return ""
	}
	n := 0
	for _, c := range l[:len(l)-len(rest)] {
		if n++; c == '\t' {
			n = (n + 3) / 4 * 4
		}
	}
	return strings.Repeat(" ", n) + rest
}

// safe writes what could be HTML as text. A fence in the first column is one for every
// reader; one that is indented may belong to a list, so that from there on no line is
// taken for code because of a fence.
func safe(lines []string) []string {
	out := make([]string, 0, len(lines))
	unsure := false
	for i := 0; i < len(lines); {
		for j := i; j < len(lines) && (j == i || lines[j] != ""); j++ {
			if lines[j] = spaces(lines[j]); opens(lines[j]) != "" && !unsure {
				break // what is in a fence keeps its tabs
			}
		}
		mark := opens(lines[i])
		if mark != "" && !unsure {
			for out, i = append(out, lines[i]), i+1; i < len(lines); i++ {
				if strings.HasPrefix(strings.TrimLeft(lines[i], " \t"), mark) {
					lines[i] = spaces(lines[i])
				}
				out = append(out, lines[i])
				if closes(lines[i], mark) {
					i++
					break
				}
			}
			continue
		}
		from := i
		for i < len(lines) && lines[i] != "" && (unsure || opens(lines[i]) == "") {
			l := strings.TrimLeft(lines[i], " ")
			if n := len(lines[i]) - len(l); n > 0 && n < 4 && opens(l) != "" {
				unsure = true
			}
			i++
		}
		out = append(out, paragraph(lines[from:i])...)
		if i < len(lines) && lines[i] == "" {
			out = append(out, "")
			i++
		}
	}
	return out
}

// opens is the mark of the fence that the line opens in its first column.
func opens(l string) string {
	if l == "" || l[0] != '`' && l[0] != '~' {
		return ""
	}
	rest := strings.TrimLeft(l, l[:1])
	n := len(l) - len(rest)
	if n < 3 || l[0] == '`' && strings.Contains(rest, "`") {
		return ""
	}
	return l[:n]
}

// closes tells whether the line ends the fence with the mark.
func closes(l, mark string) bool {
	t := strings.TrimLeft(l, " ")
	if len(l)-len(t) > 3 {
		return false
	}
	rest := strings.TrimLeft(t, mark[:1])
	return len(t)-len(rest) >= len(mark) && strings.Trim(rest, " \t") == ""
}

// paragraph treats lines without an empty one in between. Their code spans are sure
// when each ends on its line: then it does not matter how the lines make up blocks.
func paragraph(lines []string) []string {
	all := make([][]int, len(lines))
	sure := true
	for i, l := range lines {
		var ok bool
		all[i], ok = spans(l)
		sure = sure && ok
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		if !sure || len(all[i]) == 0 {
			out[i] = text(l, "")
			continue
		}
		at := 0
		var b strings.Builder
		for j := 0; j < len(all[i]); j += 2 {
			b.WriteString(text(l[at:all[i][j]], l[all[i][j]:]))
			b.WriteString(l[all[i][j]:all[i][j+1]])
			at = all[i][j+1]
		}
		b.WriteString(text(l[at:], ""))
		out[i] = b.String()
	}
	return out
}

// spans are where the code spans of a line begin and end. ok is false when some
// reader might see others: a mark without its twin, one that is escaped or could be
// part of a link's address, a span with a bar, which may divide the cells of a table.
func spans(l string) (at []int, ok bool) {
	if strings.Contains(l, "\\`") || strings.Contains(l, "](") {
		return nil, !strings.Contains(l, "`")
	}
	for i := 0; i < len(l); {
		if l[i] != '`' {
			i++
			continue
		}
		n := len(l[i:]) - len(strings.TrimLeft(l[i:], "`"))
		end := twin(l, i+n, n)
		if end < 0 || strings.Contains(l[i:end], "|") {
			return nil, false
		}
		at = append(at, i, end)
		i = end
	}
	return at, true
}

// twin is the end of the next run of exactly n marks, −1 when there is none.
func twin(l string, from, n int) int {
	for i := from; i < len(l); i++ {
		if l[i] != '`' {
			continue
		}
		run := len(l[i:]) - len(strings.TrimLeft(l[i:], "`"))
		if run == n {
			return i + n
		}
		i += run - 1
	}
	return -1
}

// text writes < as text where a tag could begin; next is what follows the text.
func text(s, next string) string {
	if !strings.Contains(s, "<") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '<' {
			b.WriteByte(s[i])
			continue
		}
		after := s[i+1:]
		if after == "" {
			after = next
		}
		if after != "" && (after[0] == '/' || after[0] == '!' || after[0] == '?' || after[0]|0x20 >= 'a' && after[0]|0x20 <= 'z') {
			b.WriteString("&lt;")
			continue
		}
		b.WriteByte('<')
	}
	return b.String()
}
