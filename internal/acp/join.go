package acp

// Bounds of a message over several lines.
const (
	joinLines = 256
	joinBytes = 1 << 20
)

// joiner puts together a message that a peer has printed over several lines, as a
// pretty-printer does. What begins like one and is none is given back line by line. A
// line that is a message by itself is never waited with.
type joiner struct {
	lines [][]byte
	text  []byte
	depth int // of open objects and lists
}

// add takes a line that is no message. held: it may be part of one. Else whole is the
// message's text, or nil, and noise are the lines that belong to none.
func (j *joiner) add(text []byte) (held bool, whole []byte, noise [][]byte) {
	if len(j.lines) == 0 && (len(text) == 0 || text[0] != '{') {
		return false, nil, [][]byte{text}
	}
	depth, ok := nesting(text, j.depth)
	if !ok || len(j.lines) == joinLines || len(j.text)+len(text) > joinBytes {
		return false, nil, append(j.giveUp(), text)
	}
	j.lines = append(j.lines, text)
	j.text = append(j.text, text...)
	j.depth = depth
	if depth > 0 {
		return true, nil, nil
	}
	whole = j.text
	noise = j.giveUp()
	if _, ok := parseEnvelope(whole); !ok {
		return false, nil, noise
	}
	return false, whole, nil
}

// giveUp returns what was held.
func (j *joiner) giveUp() [][]byte {
	lines := j.lines
	*j = joiner{}
	return lines
}

// nesting is how deep a JSON text is after a line that begins so deep; false when no
// text can be broken there.
func nesting(line []byte, depth int) (int, bool) {
	quoted := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth < 0 || depth == 0 && i < len(line)-1 {
				return 0, false
			}
		}
	}
	return depth, !quoted
}
