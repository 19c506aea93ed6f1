package uistream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// document is the top level of a JSON object. Names are compared exactly, as
// JavaScript does and encoding/json does not.
type document struct {
	fields []docField
}

type docField struct {
	name  string
	value []byte
}

func (d document) value(name string) (json.RawMessage, bool) {
	for _, f := range d.fields {
		if f.name == name {
			return json.RawMessage(f.value), true
		}
	}
	return nil, false
}

func (d document) text(name string) string {
	v, ok := d.value(name)
	if !ok || len(v) == 0 || v[0] != '"' {
		return ""
	}
	return unquote(v)
}

func unquote(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return ""
	}
	return s
}

// scan reads a part's text: valid UTF-8, one line, one JSON object, no name
// twice, no deeper than MaxDepth, and none of the names that the AI SDK's
// parser refuses.
func scan(raw []byte) (document, error) {
	var d document
	switch {
	case !utf8.Valid(raw):
		return d, errors.New("it is not valid UTF-8")
	case bytes.ContainsAny(raw, "\r\n"):
		return d, errors.New("it is more than one line")
	case !json.Valid(raw):
		return d, errors.New("it is not valid JSON")
	}
	raw = bytes.TrimSpace(raw)
	if raw[0] != '{' {
		return d, errors.New("it is not a JSON object")
	}
	w := walk(raw)
	switch {
	case w.depth > MaxDepth:
		return d, fmt.Errorf("it is nested deeper than %d levels", MaxDepth)
	case len(w.forbidden) > 0:
		return d, fmt.Errorf("it has the field name %s, which readers refuse", raw[w.forbidden[0].from:w.forbidden[0].to])
	}
	d.fields = w.top
	for i, f := range d.fields {
		for _, g := range d.fields[:i] {
			if f.name == g.name {
				return d, fmt.Errorf("it has the field %s twice", strconv.Quote(f.name))
			}
		}
		if i >= 64 {
			return d, errors.New("it has more than 64 fields")
		}
	}
	return d, nil
}

type span struct{ from, to int }

type walked struct {
	top       []docField
	depth     int
	forbidden []span // quoted names, in order
}

// walk goes once through valid JSON text. secure-json-parse inside the AI SDK
// ends the stream at an object with an own `__proto__`, or with a `constructor`
// that is an object with an own `prototype`.
func walk(raw []byte) walked {
	type level struct {
		object, wantName, constructor bool
		name                          string // only "constructor" or empty, below the top
	}
	var (
		w     walked
		stack []level
		from  = -1 // where the value of the newest top field begins
		name  string
	)
	endTop := func(at int) {
		if len(stack) == 1 && from >= 0 {
			w.top = append(w.top, docField{name, bytes.TrimSpace(raw[from:at])})
			from = -1
		}
	}
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; c {
		case '{', '[':
			in := level{object: c == '{', wantName: c == '{'}
			if n := len(stack); n > 0 && stack[n-1].object {
				in.constructor = stack[n-1].name == "constructor"
			}
			stack = append(stack, in)
			w.depth = max(w.depth, len(stack))
		case '}', ']':
			endTop(i)
			stack = stack[:len(stack)-1]
		case ',':
			endTop(i)
			if n := len(stack); n > 0 {
				stack[n-1].wantName, stack[n-1].name = stack[n-1].object, ""
			}
		case '"':
			end := i + 1
			for raw[end] != '"' {
				if raw[end] == '\\' {
					end++
				}
				end++
			}
			if n := len(stack); n > 0 && stack[n-1].wantName {
				l := &stack[n-1]
				l.wantName = false
				quoted := raw[i : end+1]
				var s string
				// Long names are none of those looked for; the top's are all kept.
				if n == 1 || len(quoted) <= 6*len("constructor")+2 {
					s = unquote(quoted)
				}
				switch {
				case s == "__proto__", s == "prototype" && l.constructor:
					w.forbidden = append(w.forbidden, span{i, end + 1})
				case s == "constructor":
					l.name = s
				}
				if n == 1 {
					name = s
					colon := end + 1
					for raw[colon] != ':' {
						colon++
					}
					from, i = colon+1, colon
					continue
				}
			}
			i = end
		}
	}
	return w
}

// cleanDepth leaves room for the objects that a value is put into.
const cleanDepth = MaxDepth - 16

// Clean makes any bytes a JSON value that may stand in a part, on one line:
// nothing becomes null, bytes that are no UTF-8 become U+FFFD, text that is no
// JSON becomes a string, and so does what is nested too deeply; names that
// readers refuse are put in parentheses. lossy tells that it had to change more
// than white space.
func Clean(raw []byte) (value Value, lossy bool) {
	b := bytes.Trim(raw, " \t\r\n")
	if len(b) == 0 {
		return Value("null"), false
	}
	if !utf8.Valid(b) {
		b, lossy = bytes.ToValidUTF8(b, []byte("\uFFFD")), true
	}
	if !json.Valid(b) {
		return quote(b), true
	}
	if bytes.ContainsAny(b, "\r\n") {
		var c bytes.Buffer
		if json.Compact(&c, b) != nil {
			return quote(b), true
		}
		b = c.Bytes()
	}
	w := walk(b)
	if w.depth > cleanDepth {
		return quote(b), true
	}
	if len(w.forbidden) > 0 {
		lossy = true
		var out []byte
		last := 0
		for _, s := range w.forbidden {
			out = append(out, b[last:s.from]...)
			out = append(out, `"(`...)
			out = append(out, unquote(b[s.from:s.to])...)
			out = append(out, `)"`...)
			last = s.to
		}
		b = append(out, b[last:]...)
	}
	return Value(b), lossy
}

func quote(b []byte) Value {
	q, err := marshal(string(b))
	if err != nil {
		return Value("null")
	}
	return Value(q)
}
