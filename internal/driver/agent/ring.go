package agent

import (
	"io"
	"strings"
	"sync"
)

// ring keeps the last bytes that were written.
type ring struct {
	max int

	mu sync.Mutex
	b  []byte
}

func (r *ring) readFrom(f io.Reader) {
	buf := make([]byte, 8<<10)
	for {
		n, err := f.Read(buf)
		r.mu.Lock()
		r.b = append(r.b, buf[:n]...)
		if len(r.b) > 2*r.max {
			r.b = append(r.b[:0], r.b[len(r.b)-r.max:]...)
		}
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (r *ring) last(n int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.b
	if n = min(n, r.max); len(b) > n {
		b = b[len(b)-n:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "\uFFFD"))
}
