package model

import "bytes"

// maxEvent bounds what is kept of one server-sent event, and of one JSON
// answer, to read the usage from: 8 MiB. Larger ones, and those for which there
// is no memory, pass unread.
const maxEvent = 8 << 20

// splitter cuts a stream into server-sent events (WHATWG HTML, section 9.2). A
// bare carriage return does not end a line here: no provider sends one.
type splitter struct {
	max   int64
	held  *holding // memory for buf
	buf   []byte
	blank bool // nothing but carriage returns since the last line feed
	large bool // in an event that is too large to keep
}

func newSplitter(held *holding) *splitter { return &splitter{max: maxEvent, held: held, blank: true} }

// feed takes bytes and gives events with their ends, in order. whole is false
// for the pieces of an event that is too large. What emit gets is valid during
// the call only.
func (s *splitter) feed(p []byte, emit func(raw []byte, whole bool)) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			s.blank = s.blank && onlyCR(p)
			s.keep(p, emit)
			return
		}
		ends := s.blank && onlyCR(p[:i])
		s.keep(p[:i+1], emit)
		if ends {
			emit(s.buf, !s.large)
			s.buf, s.large = s.buf[:0], false
		}
		s.blank = true
		p = p[i+1:]
	}
}

func (s *splitter) keep(p []byte, emit func(raw []byte, whole bool)) {
	need := int64(len(s.buf) + len(p))
	grown, err := s.held.grow(s.buf, need, s.max)
	if need > s.max || err != nil {
		s.large = true
		emit(s.buf, false)
		emit(p, false)
		s.buf = s.buf[:0]
		return
	}
	s.buf = append(grown, p...)
}

// rest gives what is left when the stream ended without a blank line.
func (s *splitter) rest(emit func(raw []byte, whole bool)) {
	if len(s.buf) > 0 {
		emit(s.buf, !s.large)
		s.buf = s.buf[:0]
	}
}

func onlyCR(p []byte) bool { return len(bytes.Trim(p, "\r")) == 0 }

// eventData joins the data lines of an event.
func eventData(raw []byte) []byte {
	var data []byte
	found := false
	for line := range bytes.Lines(raw) {
		rest, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data:"))
		if !ok {
			continue
		}
		rest = bytes.TrimPrefix(rest, []byte(" "))
		if !found {
			data, found = rest, true
			continue
		}
		data = append(append(bytes.Clone(data), '\n'), rest...)
	}
	return data
}
