package secret

import (
	"bytes"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Span is a piece of a text, by byte offsets; End is behind it.
type Span struct{ Start, End int64 }

// Stream looks for the forms of a [Finder] in one text that comes in pieces. It
// reads the text as it is and, where that has escapes, also as what they stand for
// in JSON and in URLs, whichever characters are escaped. Its cost is linear in the
// text and does not depend on the number of forms or pieces. It is not for
// concurrent use.
type Stream struct {
	f     *Finder
	state int32
	size  int64
	spans []Span // found, in order; they do not overlap
	views [2]view
}

// Stream begins a text.
func (f *Finder) Stream() *Stream {
	return &Stream{f: f, views: [2]view{{mark: '\\', read: readJSON}, {mark: '%', read: readPercent}}}
}

// Reset begins another text. What Found gave is not valid any more.
func (s *Stream) Reset() {
	s.state, s.size, s.spans = 0, 0, s.spans[:0]
	for i := range s.views {
		s.views[i].apart, s.views[i].pending = false, 0
	}
}

// Size is the length of the text so far.
func (s *Stream) Size() int64 { return s.size }

// Found are the places where forms are, in order. Forms that overlap are one
// place; such a place can still grow at its end, and at its beginning as far
// back as Settled.
func (s *Stream) Found() []Span { return s.spans }

// Forget drops the places that end at or before an offset and says how many they were.
func (s *Stream) Forget(before int64) int {
	n := 0
	for n < len(s.spans) && s.spans[n].End <= before {
		n++
	}
	if n > 0 {
		s.spans = s.spans[:copy(s.spans, s.spans[n:])]
	}
	return n
}

// Settled is the offset before which no form begins that is yet to be found.
func (s *Stream) Settled() int64 {
	at := s.size - int64(s.f.open[s.state])
	for i := range s.views {
		v := &s.views[i]
		if !v.apart {
			continue
		}
		at = min(at, s.size-int64(v.pending))
		if n := int(s.f.open[v.state]); n > 0 {
			at = min(at, v.start(n))
		}
	}
	return at
}

// Write takes the next piece.
func (s *Stream) Write(p []byte) {
	for len(p) > 0 {
		if !s.views[0].apart && !s.views[1].apart {
			p = p[s.plain(p):]
			if len(p) == 0 {
				return
			}
		}
		s.step(p)
		p = p[1:]
	}
}

// plain reads up to where an escape may begin, or some hundred bytes, and says how much
// that was.
func (s *Stream) plain(p []byte) int {
	p = p[:min(len(p), 512)]
	for i := range s.views {
		if n := bytes.IndexByte(p, s.views[i].mark); n >= 0 {
			p = p[:n]
		}
	}
	f, state := s.f, s.state
	for i := 0; i < len(p); i++ {
		if state == 0 && f.width > 0 {
			// No form has begun. Where the end of a window says that none begins in the
			// next bytes, these need not be read.
			for end := i + f.width; end <= len(p); end = i + f.width {
				n := f.skip[gramHash(p[end-gram:])]
				if n == 0 {
					break
				}
				i += int(n)
			}
		}
		b := p[i]
		if state < f.dense {
			state = f.rows[int(state)<<f.shift|int(f.class[b])]
		} else {
			state = f.next(state, b)
		}
		if n := f.hit[state]; n > 0 {
			end := s.size + int64(i) + 1
			s.found(end-int64(n), end)
		}
	}
	s.state, s.size = state, s.size+int64(len(p))
	return len(p)
}

// step reads the first byte of p in every view. What follows is looked at only to see
// that no escape begins there.
func (s *Stream) step(p []byte) {
	b, before := p[0], s.state
	s.state = s.f.next(s.state, b)
	s.size++
	if n := s.f.hit[s.state]; n > 0 {
		s.found(s.size-int64(n), s.size)
	}
	for i := range s.views {
		v := &s.views[i]
		if !v.apart && b == v.mark {
			var out [utf8.UTFMax]byte
			if _, size := v.read(p[:min(len(p), maxEscape)], &out); size == 0 {
				continue
			}
			v.leave(s.f, before, s.size-1)
		}
		if v.apart {
			v.take(s, b)
		}
	}
}

// found notes a place. A view finds later than the text does by what it had
// pending, so that the place may have to go before others.
func (s *Stream) found(from, to int64) {
	i := len(s.spans)
	for i > 0 && s.spans[i-1].End > from {
		i--
	}
	k := i
	for ; k < len(s.spans) && s.spans[k].Start < to; k++ {
		from, to = min(from, s.spans[k].Start), max(to, s.spans[k].End)
	}
	s.spans = slices.Replace(s.spans, i, k, Span{from, to})
}

// view reads a text with escapes as what they stand for. From the first byte of an
// escape on it has a state of its own, until that is the same again as the text's.
type view struct {
	mark byte // what every escape begins with
	read func(p []byte, out *[utf8.UTFMax]byte) (n, size int)

	apart   bool
	state   int32
	escape  [maxEscape]byte
	pending int // bytes in escape: it is not complete
	since   int // bytes read since the newest escape

	// starts has for each byte read where in the text it begins: a ring with room
	// for the longest form.
	starts []int64
	bytes  int
}

// maxEscape is the longest escape: a pair of surrogates in JSON.
const maxEscape = 12

// more is the size of an escape that goes on.
const more = -1

// leave begins to read apart, at the text's state and size.
func (v *view) leave(f *Finder, state int32, size int64) {
	if v.starts == nil {
		n := 1
		for n < f.longest {
			n *= 2
		}
		v.starts = make([]int64, n)
	}
	v.apart, v.state, v.pending = true, state, 0
	// These are needed: the bytes of the form that may have begun.
	v.bytes = int(f.depth[state])
	v.since = v.bytes
	for i := range v.bytes {
		v.starts[i] = size - int64(v.bytes-i)
	}
}

// start is where the last n bytes read begin in the text.
func (v *view) start(n int) int64 { return v.starts[(v.bytes-n)&(len(v.starts)-1)] }

func (v *view) take(s *Stream, b byte) {
	if v.pending == 0 && b != v.mark {
		v.give(s, b, s.size-1, s.size)
		v.since++
	} else {
		v.escape[v.pending] = b
		v.pending++
		v.resolve(s)
	}
	if v.pending == 0 && v.state == s.state && v.since >= int(s.f.depth[s.state]) {
		v.apart = false
	}
}

// resolve reads as much as is clear of what is pending.
func (v *view) resolve(s *Stream) {
	for v.pending > 0 {
		at := s.size - int64(v.pending)
		var out [utf8.UTFMax]byte
		n, size := 0, 0
		if v.escape[0] == v.mark {
			n, size = v.read(v.escape[:v.pending], &out)
		}
		switch size {
		case more:
			return
		case 0: // no escape: it stands for itself
			size = 1
			v.give(s, v.escape[0], at, at+1)
			v.since++
		default:
			for _, b := range out[:n] {
				v.give(s, b, at, at+int64(size))
			}
			v.since = 0
		}
		v.pending = copy(v.escape[:], v.escape[size:v.pending])
	}
}

// give reads one byte that the text has from one offset to another.
func (v *view) give(s *Stream, b byte, from, to int64) {
	v.starts[v.bytes&(len(v.starts)-1)] = from
	v.bytes++
	v.state = s.f.next(v.state, b)
	if n := int(s.f.hit[v.state]); n > 0 {
		s.found(v.start(n), to)
	}
}

// readJSON reads the escape at the beginning of p (RFC 8259, section 7): n bytes
// of out are what it stands for, size is its length. Half a pair stands for U+FFFD.
func readJSON(p []byte, out *[utf8.UTFMax]byte) (n, size int) {
	if len(p) < 2 {
		return 0, more
	}
	switch p[1] {
	case '"', '\\', '/':
		out[0] = p[1]
	case 'b':
		out[0] = '\b'
	case 'f':
		out[0] = '\f'
	case 'n':
		out[0] = '\n'
	case 'r':
		out[0] = '\r'
	case 't':
		out[0] = '\t'
	case 'u':
		r, size := readUnit(p)
		if size <= 0 {
			return 0, size
		}
		if utf16.IsSurrogate(r) {
			low, n := rune(0), 0
			if r < 0xdc00 {
				low, n = readUnit(p[size:])
			}
			if n == more {
				return 0, more
			}
			if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
				size += n
			}
		}
		return utf8.EncodeRune(out[:], r), size
	default:
		return 0, 0
	}
	return 1, 2
}

// readUnit reads \uXXXX.
func readUnit(p []byte) (r rune, size int) {
	for i := range 6 {
		if i >= len(p) {
			return 0, more
		}
		switch d := unhex(p[i]); {
		case i == 0 && p[i] == '\\', i == 1 && p[i] == 'u':
		case i < 2 || d < 0:
			return 0, 0
		default:
			r = r<<4 | d
		}
	}
	return r, 6
}

// readPercent reads %XX (RFC 3986, section 2.1).
func readPercent(p []byte, out *[utf8.UTFMax]byte) (n, size int) {
	for _, b := range p[1:min(len(p), 3)] {
		d := unhex(b)
		if d < 0 {
			return 0, 0
		}
		out[0] = out[0]<<4 | byte(d)
	}
	if len(p) < 3 {
		return 0, more
	}
	return 1, 3
}

// unhex is the value of a digit in either case, −1 for other bytes.
func unhex(b byte) rune {
	switch {
	case '0' <= b && b <= '9':
		return rune(b - '0')
	case 'a' <= b && b <= 'f':
		return rune(b-'a') + 10
	case 'A' <= b && b <= 'F':
		return rune(b-'A') + 10
	}
	return -1
}
