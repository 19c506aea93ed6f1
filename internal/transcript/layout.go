package transcript

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/secret"
)

// span is a piece of a part's JSON text.
type span struct{ from, to int }

// token is a string, without its quotes, or a number in a part's JSON text.
type token struct {
	span
	ownName bool // the name of a field of the part itself
	number  bool
}

// layout is where the strings of a part are.
type layout struct {
	tokens          []token // in order
	kind, id, call  token   // the part's own fields; empty when it has none
	delta           token
	text, inputText token
}

// read goes once through a part, which is JSON. Tokens that cannot have a secret
// in them and numbers are noted only when all are asked for.
func (l *layout) read(body []byte, all bool) {
	*l = layout{tokens: l.tokens[:0]}
	depth := 0
	wantName := false
	var field *token // whose value comes next
	for i := 0; i < len(body); i++ {
		switch c := body[i]; c {
		case '{', '[':
			depth++
			wantName, field = depth == 1, nil
		case '}', ']':
			depth--
		case ',':
			wantName, field = depth == 1, nil
		case '"':
			t := token{span: span{i + 1, stringEnd(body, i+1)}}
			i = t.to
			if wantName {
				wantName, t.ownName = false, true
				field = l.field(body[t.from:t.to])
			} else if depth == 1 && field != nil {
				*field = t
			}
			if all || t.to-t.from >= secret.MinBytes || depth == 1 && !t.ownName {
				l.tokens = append(l.tokens, t)
			}
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			from := i
			for i < len(body) && bytes.IndexByte([]byte("+-.0123456789eE"), body[i]) >= 0 {
				i++
			}
			if all {
				l.tokens = append(l.tokens, token{span: span{from, i}, number: true})
			}
			i--
		}
	}
}

// field is the place for the value of a field of the part, nil for one that is not needed.
func (l *layout) field(name []byte) *token {
	if bytes.IndexByte(name, '\\') >= 0 {
		name = decode(nil, name)
	}
	switch string(name) {
	case "type":
		return &l.kind
	case "id":
		return &l.id
	case "toolCallId":
		return &l.call
	case "delta":
		return &l.text
	case "inputTextDelta":
		return &l.inputText
	}
	return nil
}

// stringEnd is where the string ends whose inside begins at from.
func stringEnd(body []byte, from int) int {
	n := bytes.IndexByte(body[from:], '"')
	if n < 0 {
		return len(body)
	}
	e := bytes.IndexByte(body[from:from+n], '\\')
	if e < 0 {
		return from + n
	}
	for i := from + e; i < len(body); i++ {
		switch body[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(body)
}

// What a part is to a text that comes in deltas.
type role int

const (
	another role = iota
	isDelta
	endsBlock
)

// block tells what a part is to which text. A tool's input ends with whatever else
// is said of the call, save what may come in between.
func (l *layout) block(body []byte) (blockKey, role) {
	str := func(t token) string { return string(decode(nil, body[t.from:t.to])) }
	switch kind := str(l.kind); kind {
	case "text-delta", "reasoning-delta":
		l.delta = l.text
		return blockKey{kind, str(l.id)}, isDelta
	case "tool-input-delta":
		l.delta = l.inputText
		return blockKey{kind, str(l.call)}, isDelta
	case "text-start", "text-end":
		return blockKey{"text-delta", str(l.id)}, endsBlock
	case "reasoning-start", "reasoning-end":
		return blockKey{"reasoning-delta", str(l.id)}, endsBlock
	case "tool-input-start", "tool-input-available", "tool-input-error", "tool-output-available", "tool-output-error":
		return blockKey{"tool-input-delta", str(l.call)}, endsBlock
	}
	return blockKey{}, another
}

// decode appends what the inside of a JSON string stands for.
func decode(dst, raw []byte) []byte {
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:n]...)
		raw = raw[n:]
		r, size := escaped(raw)
		dst = utf8.AppendRune(dst, r)
		raw = raw[size:]
	}
	return dst
}

// decodedLen is the length of what decode appends.
func decodedLen(raw []byte) int {
	n := 0
	for len(raw) > 0 {
		size, stands := character(raw)
		n += stands
		raw = raw[size:]
	}
	return n
}

// character is how long the first character of a JSON string's inside is, and what
// it stands for.
func character(raw []byte) (size, stands int) {
	if raw[0] != '\\' {
		_, size := utf8.DecodeRune(raw)
		return size, size
	}
	r, size := escaped(raw)
	return size, utf8.RuneLen(r)
}

// escaped reads the escape at the beginning of raw (RFC 8259, section 7), as
// encoding/json does: half a pair stands for U+FFFD.
func escaped(raw []byte) (r rune, size int) {
	if len(raw) < 2 {
		return utf8.RuneError, len(raw)
	}
	switch raw[1] {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r := unit(raw)
		if r < 0 {
			return utf8.RuneError, 2
		}
		if !utf16.IsSurrogate(r) {
			return r, 6
		}
		if pair := utf16.DecodeRune(r, unit(raw[6:])); pair != utf8.RuneError {
			return pair, 12
		}
		return utf8.RuneError, 6
	}
	if raw[1] < utf8.RuneSelf {
		return rune(raw[1]), 2
	}
	return utf8.RuneError, 1
}

// unit reads \uXXXX, −1 when that is not there.
func unit(raw []byte) rune {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// cut appends the inside of a JSON string without the places found in what it stands
// for, which is the piece of a text that begins at start. A place's first piece
// gives way to word. Characters that a place has a part of go with it.
func cut(dst, raw []byte, start int64, found []secret.Span, word string) []byte {
	at := start
	for len(raw) > 0 {
		size, stands := character(raw)
		to := at + int64(stands)
		for len(found) > 0 && found[0].End <= at {
			found = found[1:]
		}
		if len(found) == 0 {
			return append(dst, raw...)
		}
		if found[0].Start >= to {
			dst = append(dst, raw[:size]...)
		} else if found[0].Start >= at {
			dst = append(dst, word...)
		}
		raw, at = raw[size:], to
	}
	return dst
}
