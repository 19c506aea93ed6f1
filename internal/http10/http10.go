// Package http10 lets clients of HTTP/1.0 tell a broken answer from a whole one. There the
// end of the connection is the end of the body (RFC 9112, section 6.3), and without a
// reset a proxy takes what there is for the whole of it. It answers nothing itself. Start at [Of].
package http10

import (
	"context"
	"net"
	"net/http"
)

type connKey struct{}

// WithConn is a [http.Server]'s ConnContext. Without it [Of] finds no connection.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// Ending decides how the connection of an HTTP/1.0 answer ends; the zero one leaves it as it is.
type Ending struct{ conn *net.TCPConn }

// Of is the ending of a request's answer. In later versions broken chunks tell, and it does nothing.
func Of(r *http.Request) Ending {
	if r.ProtoAtLeast(1, 1) {
		return Ending{}
	}
	c, _ := r.Context().Value(connKey{}).(*net.TCPConn)
	return Ending{c}
}

// Badly has the connection reset by whoever closes it, also when the process dies. Call it
// before the first byte of the body.
func (e Ending) Badly() {
	if e.conn != nil {
		_ = e.conn.SetLinger(0) // a connection that is gone needs no end
	}
}

// Well has it closed properly. Call it behind the last byte.
func (e Ending) Well() {
	if e.conn != nil {
		_ = e.conn.SetLinger(-1) // a connection that is gone needs no end
	}
}
