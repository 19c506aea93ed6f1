// Package gitwire reads and writes the parts of git's wire protocol that the
// server itself must understand: pkt-lines, the advertisement of refs, the
// commands of a push, and the report on them. It knows no HTTP and no objects:
// packs pass through it unread. Start with [Reader] and [ReadPush].
//
// Source: gitprotocol-common(5), gitprotocol-pack(5), gitprotocol-v2(5).
package gitwire

import (
	"errors"
	"fmt"
	"io"
)

// Sizes of a pkt-line in bytes (gitprotocol-common(5), "pkt-line Format").
const (
	MaxPacket = 65520         // whole line, with its four length digits
	MaxData   = MaxPacket - 4 // payload
)

// Kind tells pkt-lines apart.
type Kind int

// The kinds of a pkt-line.
const (
	Data        Kind = iota // has a payload
	Flush                   // 0000
	Delim                   // 0001
	ResponseEnd             // 0002
)

// ErrFormat is wrapped by every complaint about bytes that are not git's protocol.
var ErrFormat = errors.New("not git's wire protocol")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// Reader reads pkt-lines and nothing past them. It is not for concurrent use.
type Reader struct {
	r    io.Reader
	left int64 // bytes that may still be read; negative: no limit
	buf  [MaxPacket]byte
}

// NewReader reads at most limit bytes from r, any number when limit is 0.
// It does no read-ahead, so that r stands right behind the last line.
func NewReader(r io.Reader, limit int64) *Reader {
	if limit == 0 {
		limit = -1
	}
	return &Reader{r: r, left: limit}
}

// ErrTooLong is returned when the lines are longer in all than may be.
var ErrTooLong = errors.New("git request is longer than allowed")

// Next returns the next line. The payload is valid until the next call.
// At the end between two lines the error is io.EOF.
func (r *Reader) Next() (Kind, []byte, error) {
	head := r.buf[:4]
	if err := r.fill(head, true); err != nil {
		return 0, nil, err
	}
	n, ok := length(head)
	if !ok {
		return 0, nil, malformed("length %q", head)
	}
	switch {
	case n == 0:
		return Flush, nil, nil
	case n == 1:
		return Delim, nil, nil
	case n == 2:
		return ResponseEnd, nil, nil
	case n == 3 || n > MaxPacket:
		return 0, nil, malformed("length %d", n)
	}
	data := r.buf[4:n]
	if err := r.fill(data, false); err != nil {
		return 0, nil, err
	}
	return Data, data, nil
}

func (r *Reader) fill(p []byte, between bool) error {
	if r.left >= 0 {
		if int64(len(p)) > r.left {
			return ErrTooLong
		}
		r.left -= int64(len(p))
	}
	if _, err := io.ReadFull(r.r, p); err != nil {
		if errors.Is(err, io.EOF) && !between && len(p) > 0 {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}

func length(head []byte) (int, bool) {
	n := 0
	for _, c := range head {
		var d byte
		switch {
		case c >= '0' && c <= '9':
			d = c - '0'
		case c >= 'a' && c <= 'f':
			d = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			d = c - 'A' + 10
		default:
			return 0, false
		}
		n = n<<4 | int(d)
	}
	return n, true
}

// AppendLine appends data as one pkt-line. It panics above [MaxData] bytes: callers cut.
func AppendLine(b []byte, data string) []byte {
	if len(data) > MaxData {
		panic(fmt.Sprintf("gitwire: pkt-line of %d bytes", len(data)))
	}
	return append(fmt.Appendf(b, "%04x", len(data)+4), data...)
}

// AppendFlush appends a flush packet.
func AppendFlush(b []byte) []byte { return append(b, "0000"...) }

// AppendBand appends data on a side band, in as many lines as it needs
// (gitprotocol-pack(5): 1 is the answer, 2 are words for a person, 3 is a fatal error).
// small is for clients that have only side-band, not side-band-64k.
func AppendBand(b []byte, band byte, data []byte, small bool) []byte {
	most := MaxData - 1
	if small {
		most = 995
	}
	for len(data) > 0 {
		n := min(len(data), most)
		b = AppendLine(b, string(band)+string(data[:n]))
		data = data[n:]
	}
	return b
}
