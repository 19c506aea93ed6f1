package delivery

import (
	"strings"

	"github.com/hearthd/hearth/internal/delivery/forge"
)

// clip cuts text at a line's end, to at most n bytes.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "�")
	if len(s) <= n {
		return s
	}
	s = s[:n]
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[:i+1]
	}
	return strings.ToValidUTF8(s, "")
}

// remoteWords are the lines that a remote said during a push, without git's own.
func remoteWords(stderr string) string {
	var out []string
	for line := range strings.Lines(stderr) {
		// A progress line ends in a carriage return and is written over by the next.
		line = strings.TrimRight(line, "\r\n")
		if i := strings.LastIndexByte(line, '\r'); i >= 0 {
			line = line[i+1:]
		}
		text, ok := strings.CutPrefix(line, "remote:")
		if !ok {
			continue
		}
		if text = forge.OneLine(text, 300); text != "" {
			out = append(out, text)
		}
		if len(out) == 40 {
			break
		}
	}
	return clip(strings.Join(out, "\n"), 4<<10)
}
