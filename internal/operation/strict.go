package operation

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/fault"
)

// DecodeObject reads one JSON object, for surfaces whose input comes as text.
// An empty text is an empty object. What encoding/json would mend or pass over in
// silence is refused: bytes and escapes that are no character, a field given twice,
// anything after the object. Positions count from 1. Code: INVALID_INPUT.
func DecodeObject(raw []byte) (map[string]any, error) {
	m := map[string]any{}
	if at := invalidUTF8(raw); at > 0 {
		return nil, fault.New(fault.InvalidInput, "The body is not valid UTF-8: byte %d is 0x%02X.", at, raw[at-1]).With("byte", at)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return m, nil
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		var s *json.SyntaxError
		if errors.As(err, &s) {
			return nil, fault.New(fault.InvalidInput, "The body is not valid JSON: %s at byte %d.", s.Error(), s.Offset).With("byte", s.Offset)
		}
		return nil, fault.New(fault.InvalidInput, "The body is not a JSON object.")
	}
	if m == nil {
		return nil, fault.New(fault.InvalidInput, "The body is not a JSON object.")
	}
	if at := loneSurrogate(raw); at > 0 {
		return nil, fault.New(fault.InvalidInput, "The body is not valid Unicode: the escape at byte %d is half of a character.", at).With("byte", at)
	}
	name, at, err := twice(raw)
	if err != nil {
		return nil, err
	}
	if at > 0 {
		return nil, fault.New(fault.InvalidInput, "The field %.80q is given twice; the second ends at byte %d.", name, at).With("byte", at)
	}
	return m, nil
}

// invalidUTF8 is the position of the first byte that begins no character, 0 when there is none.
func invalidUTF8(raw []byte) int {
	for i := 0; i < len(raw); {
		r, n := utf8.DecodeRune(raw[i:])
		if r == utf8.RuneError && n == 1 {
			return i + 1
		}
		i += n
	}
	return 0
}

// loneSurrogate is the position of the first \u escape that is half of a pair
// (RFC 8259, section 8.2), 0 when there is none. The text is valid JSON, where a
// backslash is only in strings.
func loneSurrogate(raw []byte) int {
	high := 0 // position of a first half whose second must come now
	for i := 0; i < len(raw); i++ {
		escape := raw[i] == '\\' && raw[i+1] == 'u'
		unit := 0
		if escape {
			for _, c := range raw[i+2 : i+6] {
				unit = unit<<4 | hexDigit(c)
			}
		}
		second := unit >= 0xdc00 && unit <= 0xdfff
		switch {
		case high > 0 && !second:
			return high
		case high == 0 && second:
			return i + 1
		case unit >= 0xd800 && unit < 0xdc00:
			high = i + 1
		default:
			high = 0
		}
		switch {
		case escape:
			i += 5
		case raw[i] == '\\':
			i++
		}
	}
	return 0
}

func hexDigit(c byte) int {
	switch {
	case c <= '9':
		return int(c - '0')
	case c <= 'F':
		return int(c-'A') + 10
	}
	return int(c-'a') + 10
}

// twice finds a field that an object has twice, at any depth, and where the second
// name ends. The text is valid JSON.
func twice(raw []byte) (name string, at int64, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // a number is of no interest, whatever its size
	type level struct {
		names map[string]bool // nil: an array
		value bool            // a value comes next, not a name
	}
	var open []level
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return "", 0, nil
		}
		if err != nil {
			return "", 0, fault.Wrap(err, fault.InvalidInput, "The body is not valid JSON.")
		}
		top := len(open) - 1
		if s, ok := t.(string); ok && top >= 0 && open[top].names != nil && !open[top].value {
			if open[top].names[s] {
				return s, d.InputOffset(), nil
			}
			open[top].names[s], open[top].value = true, true
			continue
		}
		if top >= 0 {
			open[top].value = false
		}
		switch t {
		case json.Delim('{'):
			open = append(open, level{names: map[string]bool{}})
		case json.Delim('['):
			open = append(open, level{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:top]
		}
	}
}
