package uistream

import (
	"bytes"
	"encoding/json"
)

// ropePiece is how large a piece of a rope gets.
const ropePiece = 64 << 10

// rope is the inside of a JSON string that comes in pieces, each with its escapes
// as they came: half of a character may end one piece and the other half begin the
// next. It grows without copying what it has.
type rope struct {
	pieces [][]byte
	size   int
}

func (r *rope) add(inside []byte) {
	r.size += len(inside)
	if n := len(r.pieces); n > 0 && len(r.pieces[n-1])+len(inside) <= ropePiece {
		r.pieces[n-1] = append(r.pieces[n-1], inside...)
		return
	}
	r.pieces = append(r.pieces, bytes.Clone(inside))
}

// appendTo appends the first n bytes.
func (r *rope) appendTo(dst []byte, n int) []byte {
	for _, p := range r.pieces {
		if n <= 0 {
			break
		}
		p = p[:min(n, len(p))]
		dst = append(dst, p...)
		n -= len(p)
	}
	return dst
}

// quoted is the JSON string of the first n bytes.
func (r *rope) quoted(n int) []byte {
	out := append(make([]byte, 0, n+2), '"')
	return append(r.appendTo(out, n), '"')
}

// partial is the value of JSON text that may have been cut anywhere, as the AI SDK
// reads it (parsePartialJson); nil when it makes none of it. Text nested deeper than
// [MaxDepth] gives none here, either.
func partial(text []byte) json.RawMessage {
	for range 2 {
		if v, ok := safeValue(text); ok {
			return v
		}
		text = fixJSON(text)
	}
	return nil
}

// safeValue is JSON text on one line; it is not taken with names that readers refuse.
func safeValue(text []byte) (json.RawMessage, bool) {
	if !json.Valid(text) {
		return nil, false
	}
	if w := walk(text); w.depth > MaxDepth || len(w.forbidden) > 0 {
		return nil, false
	}
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return nil, false
	}
	return b.Bytes(), true
}

// place is where [fixJSON] is in the text.
type place uint8

const (
	atRoot place = iota
	atEnd
	inString
	inEscape
	inUnicode
	inLiteral
	inNumber
	objectStart
	objectKey
	objectAfterKey
	objectBeforeValue
	objectAfterValue
	objectAfterComma
	arrayStart
	arrayAfterValue
	arrayAfterComma
)

// fixer closes JSON text that was cut. It is the AI SDK's fixJson (version 7), so
// that both make the same of the same text.
type fixer struct {
	stack   []place
	valid   int // how much of the text can stay
	literal int // where the literal begins
	digits  int // of an escape
}

func (f *fixer) pop() { f.stack = f.stack[:len(f.stack)-1] }

func (f *fixer) top() place { return f.stack[len(f.stack)-1] }

func (f *fixer) swap(p ...place) {
	f.pop()
	f.stack = append(f.stack, p...)
}

// value begins a value at i; after is where its end leads.
func (f *fixer) value(c byte, i int, after place) {
	var in place
	switch {
	case c == '"':
		in = inString
	case c == 'f' || c == 't' || c == 'n':
		in, f.literal = inLiteral, i
	case c == '-':
		f.swap(after, inNumber)
		return
	case c >= '0' && c <= '9':
		in = inNumber
	case c == '{':
		in = objectStart
	case c == '[':
		in = arrayStart
	default:
		return
	}
	f.valid = i + 1
	f.swap(after, in)
}

// ended handles what follows a value in an object or a list.
func (f *fixer) ended(c byte, i int) {
	switch p := f.top(); {
	case c == ',' && p == objectAfterValue:
		f.swap(objectAfterComma)
	case c == ',' && p == arrayAfterValue:
		f.swap(arrayAfterComma)
	case c == '}' && p == objectAfterValue, c == ']' && p == arrayAfterValue:
		f.valid = i + 1
		f.pop()
	}
}

func fixJSON(text []byte) []byte {
	f := fixer{stack: []place{atRoot}}
	for i, c := range text {
		if len(f.stack) == 0 {
			break
		}
		f.step(text, c, i)
	}
	return f.closed(text)
}

func (f *fixer) step(text []byte, c byte, i int) {
	switch f.top() {
	case atRoot:
		f.value(c, i, atEnd)
	case objectStart, objectAfterComma:
		if c == '"' {
			f.swap(objectKey)
		} else if c == '}' && f.top() == objectStart {
			f.valid = i + 1
			f.pop()
		}
	case objectKey:
		if c == '"' {
			f.swap(objectAfterKey)
		}
	case objectAfterKey:
		if c == ':' {
			f.swap(objectBeforeValue)
		}
	case objectBeforeValue:
		f.value(c, i, objectAfterValue)
	case objectAfterValue:
		f.ended(c, i)
	case inString:
		switch c {
		case '"':
			f.pop()
			f.valid = i + 1
		case '\\':
			f.stack = append(f.stack, inEscape)
		default:
			f.valid = i + 1
		}
	case arrayStart:
		if c == ']' {
			f.valid = i + 1
			f.pop()
		} else {
			f.value(c, i, arrayAfterValue)
		}
	case arrayAfterValue:
		switch c {
		case ',', ']':
			f.ended(c, i)
		default:
			f.valid = i + 1
		}
	case arrayAfterComma:
		f.value(c, i, arrayAfterValue)
	case inEscape:
		f.pop()
		if c == 'u' {
			f.digits = 0
			f.stack = append(f.stack, inUnicode)
		} else {
			f.valid = i + 1
		}
	case inUnicode:
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'F' || c >= 'a' && c <= 'f' {
			if f.digits++; f.digits == 4 {
				f.pop()
				f.valid = i + 1
			}
		}
	case inNumber:
		switch {
		case c >= '0' && c <= '9':
			f.valid = i + 1
		case c == 'e' || c == 'E' || c == '-' || c == '.':
		default:
			f.pop()
			f.afterNumber(c, i)
		}
	case inLiteral:
		if literalFor(text[f.literal:i+1]) != "" {
			f.valid = i + 1
			return
		}
		f.pop()
		f.ended(c, i)
	}
}

// afterNumber is ended for what can follow a number.
func (f *fixer) afterNumber(c byte, i int) {
	switch p := f.top(); c {
	case ',':
		f.ended(c, i)
	case '}':
		if p == objectAfterValue {
			f.ended(c, i)
		}
	case ']':
		if p == arrayAfterValue {
			f.ended(c, i)
		}
	}
}

// literalFor is the literal that begins so.
func literalFor(begin []byte) string {
	for _, l := range []string{"false", "true", "null"} {
		if len(begin) <= len(l) && l[:len(begin)] == string(begin) {
			return l
		}
	}
	return ""
}

func (f *fixer) closed(text []byte) []byte {
	out := append(make([]byte, 0, f.valid+len(f.stack)), text[:f.valid]...)
	for i := len(f.stack) - 1; i >= 0; i-- {
		switch f.stack[i] {
		case inString:
			out = append(out, '"')
		case objectStart, objectKey, objectAfterKey, objectBeforeValue, objectAfterValue, objectAfterComma:
			out = append(out, '}')
		case arrayStart, arrayAfterValue, arrayAfterComma:
			out = append(out, ']')
		case inLiteral:
			begin := text[f.literal:]
			if l := literalFor(begin); l != "" {
				out = append(out, l[len(begin):]...)
			}
		}
	}
	return out
}
