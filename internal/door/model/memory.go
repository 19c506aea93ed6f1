package model

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

// holding is the memory that one exchange holds, taken from its session's and
// from the server's. It is not for concurrent use; nil holds without a limit.
type holding struct {
	session, server *door.Memory
	n               int64
}

// take takes n bytes. Codes: DOOR_BUSY, SERVER_BUSY.
func (h *holding) take(n int64) error {
	switch {
	case h == nil:
		return nil
	case !h.session.Take(n):
		return fault.New(fault.DoorBusy, "The calls to models that this session has open are too large together.")
	case !h.server.Take(n):
		h.session.Give(n)
		return fault.New(fault.ServerBusy, "")
	}
	h.n += n
	return nil
}

// give brings back what a buffer held.
func (h *holding) give(buf []byte) {
	if h != nil {
		h.free(int64(cap(buf)))
	}
}

func (h *holding) free(n int64) {
	h.session.Give(n)
	h.server.Give(n)
	h.n -= n
}

// release gives everything back.
func (h *holding) release() { h.free(h.n) }

const minBuffer = 4 << 10

// grow gives buf room for need bytes in all, of most that it may come to have.
func (h *holding) grow(buf []byte, need, most int64) ([]byte, error) {
	if need <= int64(cap(buf)) {
		return buf, nil
	}
	size := min(max(need, 2*int64(cap(buf)), minBuffer), max(need, most))
	if err := h.take(size); err != nil {
		return buf, err
	}
	next := make([]byte, len(buf), size)
	copy(next, buf)
	h.give(buf)
	return next, nil
}

// readAll reads to the end, or one byte past most. Memory is taken as bytes
// arrive; expect is how many are announced, -1 when that is not known. What was
// read comes back, and is held, with an error too.
func (h *holding) readAll(src io.Reader, expect, most int64) (buf []byte, err error) {
	top := most + 1
	if expect >= 0 {
		top = min(top, expect+1) // one more, to see the end without growing again
	}
	for int64(len(buf)) < top {
		if buf, err = h.grow(buf, int64(len(buf))+1, top); err != nil {
			return buf, err
		}
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}

// giveBody puts pieces into a request, as its body.
func giveBody(r *http.Request, pieces [][]byte) {
	open := func() (io.ReadCloser, error) {
		readers := make([]io.Reader, 0, len(pieces))
		for _, p := range pieces {
			readers = append(readers, bytes.NewReader(p))
		}
		return io.NopCloser(io.MultiReader(readers...)), nil
	}
	for _, p := range pieces {
		r.ContentLength += int64(len(p))
	}
	r.Body, r.GetBody = http.NoBody, nil
	if r.ContentLength > 0 {
		r.Body, _ = open()
		r.GetBody = open
	}
}
