// Package hop stands between a client and a server, as networks and proxies do. A
// [Hop] passes bytes on and breaks connections by reset; it knows no HTTP. A [Buffer]
// is an HTTP proxy that holds back what the server sends. Neither changes a byte of
// a body. Start at [New] or [Buffer].
package hop

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Hop is a place on a line. It is safe for concurrent use.
type Hop struct {
	to    string
	ln    net.Listener
	mu    sync.Mutex
	pairs map[*pair]struct{} // nil when it is closed
	cut   atomic.Bool
	wg    sync.WaitGroup
}

// pair is one connection, both sides of it.
type pair struct{ client, server *net.TCPConn }

// reset breaks both sides without a proper end.
func (p *pair) reset() {
	for _, c := range []*net.TCPConn{p.client, p.server} {
		_ = c.SetLinger(0) // it may be closed
		_ = c.Close()
	}
}

// New opens a hop on loopback to a TCP address. It makes no connection after the
// context. Close it.
func New(ctx context.Context, to string) (*Hop, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &Hop{to: to, ln: ln, pairs: map[*pair]struct{}{}}
	h.wg.Go(func() { h.accept(ctx) }) // Close waits for it
	return h, nil
}

// URL is the hop's address for HTTP.
func (h *Hop) URL() string { return "http://" + h.ln.Addr().String() }

// Close resets what is open and waits until all is gone.
func (h *Hop) Close() {
	h.ln.Close()
	h.mu.Lock()
	for p := range h.pairs {
		p.reset()
	}
	h.pairs = nil
	h.mu.Unlock()
	h.wg.Wait()
}

// Reset breaks every connection, and says how many there were.
func (h *Hop) Reset() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.pairs)
	for p := range h.pairs {
		p.reset()
	}
	clear(h.pairs)
	return n
}

// CutNext breaks the next connection on which the server answers, before the first
// byte of the answer is passed on: the server has done what it was asked, and the
// client does not know.
func (h *Hop) CutNext() { h.cut.Store(true) }

func (h *Hop) accept(ctx context.Context) {
	for {
		c, err := h.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		s, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.to)
		if err != nil {
			_ = c.(*net.TCPConn).SetLinger(0) // it is closed anyway
			c.Close()
			continue
		}
		p := &pair{c.(*net.TCPConn), s.(*net.TCPConn)}
		h.mu.Lock()
		if h.pairs == nil {
			p.reset()
		} else {
			h.pairs[p] = struct{}{}
			h.wg.Go(func() { h.pass(p) }) // Close waits for it
		}
		h.mu.Unlock()
	}
}

// pass moves the bytes of one connection until both directions have ended. An end
// that is a reset is passed on as one.
func (h *Hop) pass(p *pair) {
	var up sync.WaitGroup
	up.Go(func() {
		if _, err := io.Copy(p.server, p.client); err != nil {
			p.reset()
			return
		}
		_ = p.server.CloseWrite() // it may be reset
	})
	if err := h.down(p); err != nil {
		p.reset()
	} else {
		_ = p.client.CloseWrite() // it may be reset
	}
	up.Wait()
	_ = p.client.Close() // both may be closed
	_ = p.server.Close()
	h.mu.Lock()
	delete(h.pairs, p)
	h.mu.Unlock()
}

// down passes on what the server sends.
func (h *Hop) down(p *pair) error {
	b := make([]byte, 32<<10)
	for {
		n, err := p.server.Read(b)
		if n > 0 {
			if h.cut.CompareAndSwap(true, false) {
				return errors.New("cut")
			}
			if _, err := p.client.Write(b[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
