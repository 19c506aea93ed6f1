package acp

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Bounds of a stand-in.
const (
	skimDepth  = 6         // objects below the top that are looked into
	skimText   = 32 << 10  // beginning kept of a long text
	skimBudget = 256 << 10 // of all that is kept
)

// skim reads JSON text of any length piece by piece and keeps a stand-in of it:
// the same objects down to skimDepth with their scalars, long texts cut, arrays
// left out. It judges nothing: text that is no JSON gives a stand-in that is
// valid JSON all the same.
type skim struct {
	out    []byte
	levels []skimLevel
	state  skimState
	token  []byte // the string or scalar at hand, bounded
	tooBig bool   // more of the token came than is kept
	escape bool
	array  int // depth inside arrays and objects that are left out
	inText bool
	name   []byte // quoted, of the member whose value is next
	broken bool
}

type skimLevel struct {
	members int
}

type skimState uint8

const (
	skimValue  skimState = iota // a value is next
	skimName                    // a name or } is next
	skimColon                   // : is next
	skimAfter                   // , or } is next
	skimScalar                  // inside a number or word
	skimDone
)

func (s *skim) write(b []byte) {
	for len(b) > 0 && !s.broken {
		if n := s.plain(b); n > 0 {
			if s.array == 0 {
				kept := min(n, max(0, skimText-len(s.token)))
				s.token, s.tooBig = append(s.token, b[:kept]...), s.tooBig || kept < n
			}
			b = b[n:]
			continue
		}
		s.byte(b[0])
		b = b[1:]
	}
}

// plain is how many bytes at the beginning of b are the inside of a text: long
// lines are long texts.
func (s *skim) plain(b []byte) int {
	if !s.inText || s.escape {
		return 0
	}
	// In small windows: what was looked at in vain is looked at again.
	b = b[:min(len(b), 512)]
	n := bytes.IndexByte(b, '"')
	if n < 0 {
		n = len(b)
	}
	if esc := bytes.IndexByte(b[:n], '\\'); esc >= 0 {
		n = esc
	}
	return n
}

func (s *skim) byte(c byte) {
	if s.inText {
		s.text(c)
		return
	}
	if s.array > 0 {
		switch c {
		case '"':
			s.begin(c)
		case '[', '{':
			s.array++
		case ']', '}':
			s.array--
			if s.array == 0 {
				s.state = skimAfter
			}
		}
		return
	}
	if s.state == skimScalar {
		if c != ',' && c != '}' && c > ' ' {
			s.keep(c)
			return
		}
		s.emit(string(s.token))
	}
	if c <= ' ' {
		return
	}
	switch s.state {
	case skimValue:
		switch {
		case c == '{' && len(s.levels) < skimDepth:
			if len(s.levels) > 0 {
				s.member()
			}
			s.out = append(s.out, '{')
			s.levels = append(s.levels, skimLevel{})
			s.state = skimName
		case len(s.levels) == 0:
			s.broken = true
		case c == '[' || c == '{':
			s.array = 1
		case c == '"':
			s.begin(c)
		default:
			s.token, s.tooBig, s.state = append(s.token[:0], c), false, skimScalar
		}
	case skimName:
		switch c {
		case '"':
			s.begin(c)
		case '}':
			s.close()
		default:
			s.broken = true
		}
	case skimColon:
		s.broken = c != ':'
		s.state = skimValue
	case skimAfter:
		switch c {
		case ',':
			s.state = skimName
		case '}':
			s.close()
		default:
			s.broken = true
		}
	default:
		s.broken = true
	}
}

func (s *skim) begin(c byte) {
	s.token, s.tooBig, s.escape, s.inText = append(s.token[:0], c), false, false, true
}

func (s *skim) keep(c byte) {
	if len(s.token) < skimText {
		s.token = append(s.token, c)
	} else {
		s.tooBig = true
	}
}

func (s *skim) text(c byte) {
	s.keep(c)
	switch {
	case s.escape:
		s.escape = false
	case c == '\\':
		s.escape = true
	case c == '"':
		s.inText = false
		if s.array > 0 {
			return
		}
		if s.state == skimName {
			s.name = append(s.name[:0], s.token...)
			if s.tooBig {
				s.name = append(s.name[:0], `"_long"`...)
			}
			s.state = skimColon
			return
		}
		s.emit(closed(s.token, s.tooBig))
	}
}

// closed gives the JSON text of a string whose end may have been cut off.
func closed(token []byte, cut bool) string {
	if !cut {
		return string(token)
	}
	// The cut may be inside an escape or a rune: at most a surrogate pair's length.
	for n := len(token); n > 0 && n > len(token)-12; n-- {
		head := token[:n]
		if r, size := utf8.DecodeLastRune(head); r == utf8.RuneError && size == 1 {
			continue
		}
		var v string
		if text := string(head) + `…"`; json.Unmarshal([]byte(text), &v) == nil {
			return text
		}
	}
	return `"…"`
}

func (s *skim) member() {
	l := &s.levels[len(s.levels)-1]
	if l.members > 0 {
		s.out = append(s.out, ',')
	}
	l.members++
	s.out = append(s.out, s.name...)
	s.out = append(s.out, ':')
}

// emit writes the member at hand; values that are no JSON or beyond the budget
// are left out.
func (s *skim) emit(value string) {
	s.state = skimAfter
	if len(s.out)+len(s.name)+len(value) > skimBudget || !json.Valid([]byte(value)) || !json.Valid(s.name) {
		return
	}
	s.member()
	s.out = append(s.out, value...)
}

func (s *skim) close() {
	s.out = append(s.out, '}')
	s.levels = s.levels[:len(s.levels)-1]
	s.state = skimAfter
	if len(s.levels) == 0 {
		s.state = skimDone
	}
}

// CutField is the member that a stand-in carries in its innermost of top,
// params and params.update: {"bytes": length of the whole line, "file": where it is}.
const CutField = "_hearthCut"

// standIn ends the object at hand and marks it.
func (s *skim) standIn(c *Cut) []byte {
	if s.broken || len(s.levels) > 0 || s.state != skimDone {
		return nil // no whole JSON object: noise
	}
	var top, params, update map[string]json.RawMessage
	if json.Unmarshal(s.out, &top) != nil {
		return nil
	}
	file, _ := marshal(c.File)
	mark := json.RawMessage(`{"bytes":` + strconv.FormatInt(c.Bytes, 10) + `,"file":` + string(file) + `}`)
	switch {
	case json.Unmarshal(top["params"], &params) != nil || params == nil:
		top[CutField] = mark
	case json.Unmarshal(params["update"], &update) != nil || update == nil:
		params[CutField] = mark
	default:
		update[CutField] = mark
		params["update"], _ = marshal(update)
	}
	if params != nil {
		top["params"], _ = marshal(params)
	}
	out, err := marshal(top)
	if err != nil {
		return nil
	}
	return out
}
