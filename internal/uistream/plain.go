package uistream

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// Plain takes out of a text what would steer a terminal that shows it: escape
// sequences (ECMA-48) go, every other control character but newline, tab and
// carriage return becomes U+FFFD. The text may come in pieces. The zero value
// begins a text.
type Plain struct {
	state plainState
	n     int // runes of the sequence at hand
}

type plainState uint8

const (
	plainText   plainState = iota
	plainEscape            // after ESC
	plainInter             // after ESC and intermediate bytes
	plainCSI               // in a control sequence
	plainString            // in an OSC, DCS, SOS, PM or APC string
	plainEnd               // after ESC inside such a string
)

// plainMost is the longest sequence that is taken for one; what follows is text again,
// so that an unfinished one hides little.
const plainMost = 4096

// control tells the characters that no part may have: C0 without \t \n \r, DEL, C1.
func control(r rune) bool {
	return r < ' ' && r != '\n' && r != '\t' && r != '\r' || r >= 0x7f && r <= 0x9f
}

// HasControl tells whether [Plain] would change the text.
func HasControl(s string) bool { return controlAt(s) >= 0 }

func controlAt(s string) int {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f || c == 0xc2 && i+1 < len(s) && s[i+1] >= 0x80 && s[i+1] <= 0x9f {
			return i
		}
	}
	return -1
}

// Text is the next piece, which is valid UTF-8, without what steers; changed tells
// that something was taken out.
func (p *Plain) Text(s string) (out string, changed bool) {
	at := 0
	if p.state == plainText {
		if at = controlAt(s); at < 0 {
			return s, false
		}
	}
	var b strings.Builder
	b.Grow(len(s))
	b.WriteString(s[:at])
	for _, r := range s[at:] {
		p.rune(&b, r)
	}
	return b.String(), true
}

func (p *Plain) rune(b *strings.Builder, r rune) {
	if p.state != plainText {
		if p.n++; p.n > plainMost || r == '\n' {
			p.state = plainText
		}
	}
	switch p.state {
	case plainEscape, plainInter:
		switch {
		case p.state == plainEscape && r == '[':
			p.state = plainCSI
			return
		case p.state == plainEscape && strings.ContainsRune("]PX^_", r):
			p.state = plainString
			return
		case r >= ' ' && r <= '/':
			p.state = plainInter
			return
		case r >= '0' && r <= '~':
			p.state = plainText
			return
		}
	case plainCSI:
		switch {
		case r >= ' ' && r <= '?':
			return
		case r >= '@' && r <= '~':
			p.state = plainText
			return
		}
	case plainString, plainEnd:
		switch {
		case r == '\a' || p.state == plainEnd && r == '\\':
			p.state = plainText
		case r == 0x1b:
			p.state = plainEnd
		default:
			p.state = plainString
		}
		return
	}
	p.state = plainText // also where a sequence was none
	switch {
	case r == 0x1b:
		p.state, p.n = plainEscape, 0
	case control(r):
		b.WriteRune(utf8.RuneError)
	default:
		b.WriteRune(r)
	}
}

// PlainText is [Plain] for a text that comes whole.
func PlainText(s string) (out string, changed bool) {
	var p Plain
	return p.Text(s)
}

// PlainJSON is [PlainText] for every string, names too, in valid JSON text.
func PlainJSON(raw []byte) (out []byte, changed bool) {
	if !mayHaveControl(raw) {
		return raw, false
	}
	last := 0
	for i := 0; i < len(raw); i++ {
		if raw[i] != '"' {
			continue
		}
		end := i + 1
		for end < len(raw) && raw[end] != '"' {
			if raw[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(raw) {
			break
		}
		quoted := raw[i : end+1]
		if mayHaveControl(quoted) {
			var s string
			if json.Unmarshal(quoted, &s) == nil {
				if plain, c := PlainText(s); c {
					q, err := marshal(plain)
					if err == nil {
						out = append(append(out, raw[last:i]...), q...)
						last, changed = end+1, true
					}
				}
			}
		}
		i = end
	}
	if !changed {
		return raw, false
	}
	return append(out, raw[last:]...), true
}

// mayHaveControl is quick; false is certain.
func mayHaveControl(raw []byte) bool {
	if bytes.IndexByte(raw, 0x7f) >= 0 {
		return true
	}
	for rest := raw; ; {
		i := bytes.IndexByte(rest, 0xc2)
		if i < 0 {
			break
		}
		if i+1 < len(rest) && rest[i+1] >= 0x80 && rest[i+1] <= 0x9f {
			return true
		}
		rest = rest[i+1:]
	}
	return bytes.Contains(raw, []byte(`\u00`)) || bytes.Contains(raw, []byte(`\b`)) || bytes.Contains(raw, []byte(`\f`))
}

// Joiner makes valid text of the bytes of a text that comes in pieces, which may be
// cut in the middle of a character: UTF-8, where halves of surrogate pairs, as
// JSON can carry them, stand as three bytes each (WTF-8). The zero value begins a text.
type Joiner struct{ hold []byte }

// Text is the next piece. raw are its bytes with what was held back from the piece before, joined
// pairs made one character; lossy tells that text has U+FFFD where raw is no UTF-8.
func (j *Joiner) Text(piece []byte) (text string, raw []byte, lossy bool) {
	if len(j.hold) == 0 && utf8.Valid(piece) {
		return string(piece), piece, false
	}
	in := append(j.hold, piece...)
	j.hold = nil
	if utf8.Valid(in) {
		return string(in), in, false
	}
	var b strings.Builder
	raw = make([]byte, 0, len(in))
	for i := 0; i < len(in); {
		if r, size := utf8.DecodeRune(in[i:]); r != utf8.RuneError || size > 1 {
			b.WriteRune(r)
			raw = append(raw, in[i:i+size]...)
			i += size
			continue
		}
		rest := in[i:]
		if half, ok := surrogate(rest); ok {
			switch low, next := surrogate(rest[3:]); {
			case half < 0xdc00 && len(rest) < 6 && partOfSurrogate(rest[3:]):
				j.hold = bytes.Clone(rest)
				return b.String(), raw, lossy
			case half < 0xdc00 && next && low >= 0xdc00:
				r := (half-0xd800)<<10 | (low - 0xdc00) + 0x10000
				b.WriteRune(r)
				raw = utf8.AppendRune(raw, r)
				i += 6
				continue
			}
			b.WriteRune(utf8.RuneError)
			raw = append(raw, rest[:3]...)
			lossy = true
			i += 3
			continue
		}
		if !utf8.FullRune(rest) || len(rest) < 3 && partOfSurrogate(rest) {
			j.hold = bytes.Clone(rest)
			return b.String(), raw, lossy
		}
		b.WriteRune(utf8.RuneError)
		raw = append(raw, rest[0])
		lossy = true
		i++
	}
	return b.String(), raw, lossy
}

// End is what is left when the text has ended.
func (j *Joiner) End() (text string, raw []byte, lossy bool) {
	if len(j.hold) == 0 {
		return "", nil, false
	}
	raw, j.hold = j.hold, nil
	return strings.ToValidUTF8(string(raw), "\uFFFD"), raw, true
}

// surrogate reads half a pair.
func surrogate(b []byte) (rune, bool) {
	if len(b) < 3 || b[0] != 0xed || b[1] < 0xa0 || b[1] > 0xbf || b[2] < 0x80 || b[2] > 0xbf {
		return 0, false
	}
	return rune(b[0]&0xf)<<12 | rune(b[1]&0x3f)<<6 | rune(b[2]&0x3f), true
}

// partOfSurrogate tells whether b, which is too short to tell, may become half a pair.
func partOfSurrogate(b []byte) bool {
	return len(b) == 0 || b[0] == 0xed && (len(b) == 1 || b[1] >= 0xa0 && b[1] <= 0xbf && len(b) == 2)
}

// Unquote gives the bytes that a JSON string stands for, for [Joiner]: what is no UTF-8
// stays as it is, each half of a surrogate pair becomes three bytes. quoted is valid JSON.
func Unquote(quoted []byte) []byte {
	if len(quoted) < 2 || quoted[0] != '"' {
		return nil
	}
	s := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(s, '\\') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 >= len(s) {
			out = append(out, s[i])
			continue
		}
		i++
		switch s[i] {
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'u':
			if i+5 > len(s) {
				return out
			}
			u := hex4(s[i+1:])
			i += 4
			if u >= 0xd800 && u < 0xe000 {
				out = append(out, 0xe0|byte(u>>12), 0x80|byte(u>>6)&0x3f, 0x80|byte(u)&0x3f)
				continue
			}
			out = utf8.AppendRune(out, u)
		default:
			out = append(out, s[i])
		}
	}
	return out
}

func hex4(b []byte) rune {
	var v rune
	for _, c := range b[:4] {
		v <<= 4
		switch {
		case c >= '0' && c <= '9':
			v |= rune(c - '0')
		case c >= 'a' && c <= 'f':
			v |= rune(c-'a') + 10
		case c >= 'A' && c <= 'F':
			v |= rune(c-'A') + 10
		}
	}
	return v
}
