package hop

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Buffer is an HTTP proxy with a buffer that no header empties: of a body it passes on
// whole blocks of so many bytes, and the rest when its oldest byte has waited so long, or
// with the body's end.
type Buffer struct {
	To    *url.URL
	Bytes int
	For   time.Duration
}

// ServeHTTP passes a request on.
func (b *Buffer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	held := &buffered{ResponseWriter: w, o: b}
	defer held.end()
	p := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(b.To) }}
	p.ServeHTTP(held, r)
}

// buffered holds back what is written. Flush does nothing.
type buffered struct {
	http.ResponseWriter
	o    *Buffer
	mu   sync.Mutex
	held []byte
	due  *time.Timer // of what is held
	over bool
}

func (b *buffered) Flush() {}

func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = append(b.held, p...)
	if err := b.pass(len(b.held) - len(b.held)%b.o.Bytes); err != nil {
		return 0, err
	}
	return len(p), nil
}

// pass writes the oldest n bytes. The lock is held.
func (b *buffered) pass(n int) error {
	if n > 0 {
		if _, err := b.ResponseWriter.Write(b.held[:n]); err != nil {
			return err
		}
		if err := http.NewResponseController(b.ResponseWriter).Flush(); err != nil {
			return err
		}
		b.held = b.held[n:]
		if b.due != nil {
			b.due.Stop()
			b.due = nil
		}
	}
	if len(b.held) > 0 && b.due == nil {
		b.due = time.AfterFunc(b.o.For, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.due = nil; !b.over {
				_ = b.pass(len(b.held)) // the next write fails too
			}
		})
	}
	return nil
}

// end passes on the rest. What the server broke off is broken off without it.
func (b *buffered) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if b.due != nil {
		b.due.Stop()
	}
	if v := recover(); v != nil {
		panic(v)
	}
	if len(b.held) > 0 {
		_, _ = b.ResponseWriter.Write(b.held) // a client that is gone needs no end
	}
}
