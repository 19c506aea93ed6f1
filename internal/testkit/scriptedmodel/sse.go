package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// stream writes server-sent events, each flushed.
type stream struct {
	x      *exchange
	flush  *http.ResponseController
	broken bool
}

func (x *exchange) startStream(contentType string) *stream {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache")
	x.w.WriteHeader(http.StatusOK)
	return &stream{x: x, flush: http.NewResponseController(x.w)}
}

// event writes one event; name may be empty.
func (s *stream) event(name string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("scriptedmodel: encode event: %v", err)) // our own values only
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	s.raw(name + "data: " + string(b) + "\n\n")
}

func (s *stream) raw(text string) {
	if s.broken {
		return
	}
	if _, err := s.x.w.Write([]byte(text)); err != nil {
		s.broken = true
		return
	}
	s.broken = s.flush.Flush() != nil
}

// text streams the reply's pieces through emit, with their pauses. A reply that
// is to be cut ends the connection half way.
func (s *stream) text(r reply, emit func(string)) {
	for i, p := range r.pieces {
		if r.cut && i == len(r.pieces)/2 {
			s.cut()
		}
		if p.pause > 0 && s.x.s.opts.Wait(s.x.r.Context(), p.pause) != nil {
			panic(http.ErrAbortHandler) // the client has gone
		}
		if s.broken {
			panic(http.ErrAbortHandler)
		}
		if p.text != "" {
			emit(p.text)
		}
		if p.run != nil {
			err := p.run.Run(s.x.r.Context(), s.x.s.opts.Now, s.x.s.opts.Wait, func(b []byte) error {
				if emit(string(b)); s.broken {
					return http.ErrAbortHandler
				}
				return nil
			})
			if err != nil {
				panic(http.ErrAbortHandler) // the client has gone
			}
		}
	}
}

// cut breaks the connection without the end that the protocol asks for.
func (s *stream) cut() { panic(http.ErrAbortHandler) }

// pauseAll waits out the pauses of a reply that is not streamed, and breaks the
// connection of one that is to be cut.
func (x *exchange) pauseAll(r reply) {
	for _, p := range r.pieces {
		if p.pause > 0 && x.s.opts.Wait(x.r.Context(), p.pause) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if r.cut {
		panic(http.ErrAbortHandler)
	}
}
