package uistream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Header is what the AI SDK's own servers answer with, beside a 200 status; the
// last one keeps proxies from holding events back.
var Header = []struct{ Name, Value string }{
	{"Content-Type", "text/event-stream"},
	{"Cache-Control", "no-cache"},
	{"Connection", "keep-alive"},
	{"X-Vercel-AI-UI-Message-Stream", "v1"},
	{"X-Accel-Buffering", "no"},
}

// AppendEvent appends one server-sent event to dst: the id when there is one,
// the data, an empty line. Data of several lines becomes several data lines, as
// the HTML standard says (section 9.2, server-sent events); a part is one line
// and so arrives byte for byte. The id must have no line break and no NUL.
func AppendEvent(dst []byte, id string, data []byte) []byte {
	return AppendNamedEvent(dst, "", id, data)
}

// AppendNamedEvent is AppendEvent with an event name, which the AI SDK passes over.
func AppendNamedEvent(dst []byte, name, id string, data []byte) []byte {
	if name != "" {
		dst = append(append(append(dst, "event: "...), oneLine(name)...), '\n')
	}
	if id != "" {
		dst = append(append(append(dst, "id: "...), oneLine(id)...), '\n')
	}
	for {
		i := bytes.IndexAny(data, "\r\n")
		line := data
		if i >= 0 {
			line = data[:i]
		}
		dst = append(append(append(dst, "data: "...), line...), '\n')
		if i < 0 {
			return append(dst, '\n')
		}
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
}

// AppendComment appends a comment, which readers pass over: a sign of life.
func AppendComment(dst []byte, text string) []byte {
	return append(append(append(dst, ": "...), oneLine(text)...), "\n\n"...)
}

// AppendDone appends the event that ends a stream well.
func AppendDone(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }

func oneLine(s string) string {
	if strings.ContainsAny(s, "\r\n\x00") {
		return strings.NewReplacer("\r", " ", "\n", " ", "\x00", "").Replace(s)
	}
	return s
}

// ErrEventTooLong is returned by [Decoder.Next] for an event beyond the limit.
var ErrEventTooLong = errors.New("the event is longer than the limit")

// Event is one event or comment of a stream.
type Event struct {
	ID      string // the last id seen, as the standard says
	Name    string // empty for an ordinary event
	Data    []byte // valid until the next call of Next
	Comment string // set for a comment: then nothing else is
	Done    bool   // the [DONE] event
}

// Decoder reads server-sent events. It is not for concurrent use.
type Decoder struct {
	r     *bufio.Reader
	limit int
	data  []byte
	line  []byte
	id    string
	first bool
	skip  bool // the last line ended in CR: an LF that follows belongs to it
}

// DefaultEventBytes is the limit of an event when none is named: a part and room around it.
const DefaultEventBytes = 2 * MaxPartBytes

// NewDecoder reads from r events of at most limit bytes; 0 means DefaultEventBytes.
func NewDecoder(r io.Reader, limit int) *Decoder {
	if limit <= 0 {
		limit = DefaultEventBytes
	}
	return &Decoder{r: bufio.NewReaderSize(r, 32<<10), limit: limit, first: true}
}

// Next returns the next event or comment. At the end of the stream it returns
// [io.EOF]; an event that had not ended by then is dropped, as the standard says.
// A stream that ended well had an event with Done.
func (d *Decoder) Next() (Event, error) {
	var (
		e    Event
		has  bool
		name string
	)
	d.data = d.data[:0]
	for {
		line, err := d.readLine()
		if err != nil {
			return Event{}, err
		}
		if len(line) == 0 {
			if !has {
				name = ""
				continue
			}
			e.ID, e.Name, e.Data = d.id, name, d.data
			e.Done = string(d.data) == "[DONE]"
			return e, nil
		}
		if line[0] == ':' {
			// A comment between two lines of one event is not worth breaking the event for.
			if !has && name == "" {
				return Event{Comment: strings.TrimPrefix(string(line[1:]), " ")}, nil
			}
			continue
		}
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(key) {
		case "data":
			if has {
				d.data = append(d.data, '\n')
			}
			if len(d.data)+len(value) > d.limit {
				return Event{}, fmt.Errorf("after event %.80q: %w", d.id, ErrEventTooLong)
			}
			d.data = append(d.data, value...)
			has = true
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				d.id = string(value)
			}
		case "event":
			name = string(value)
		}
	}
}

// LastID is the newest id that was read, also one that no event came with.
func (d *Decoder) LastID() string { return d.id }

// readLine returns a line without its end: LF, CR or CRLF. After a CR it does
// not wait for the byte behind it.
func (d *Decoder) readLine() ([]byte, error) {
	d.line = d.line[:0]
	for {
		b, err := d.r.ReadByte()
		if err != nil {
			return nil, err
		}
		if d.skip {
			d.skip = false
			if b == '\n' {
				continue
			}
		}
		switch b {
		case '\r':
			d.skip = true
			return d.endLine(), nil
		case '\n':
			return d.endLine(), nil
		}
		if len(d.line) > d.limit+len("data: ") {
			return nil, fmt.Errorf("after event %.80q: %w", d.id, ErrEventTooLong)
		}
		d.line = append(d.line, b)
	}
}

func (d *Decoder) endLine() []byte {
	if d.first {
		d.first = false
		return bytes.TrimPrefix(d.line, []byte("\uFEFF"))
	}
	return d.line
}
