package gateway

import (
	"context"
	"net"
	"net/http"
	"strings"

	"github.com/hearthd/hearth/internal/uistream"
)

// maxPadding is the largest comment that a viewer can have behind every write.
const maxPadding = 64 << 10

var padding = strings.Repeat("-", maxPadding)

// appendPadding appends a comment of n bytes. It comes last, so that a proxy which
// passes on whole blocks keeps some of the comment back and nothing of the events.
func appendPadding(buf []byte, n int) []byte {
	if n == 0 {
		return buf
	}
	return uistream.AppendComment(buf, padding[:n])
}

type connKey struct{}

// WithConn is a [http.Server]'s ConnContext. With it a stream that is broken off, or
// whose process dies, ends in HTTP/1.0 with a reset. There the end of the connection is the
// end of the body, and without the reset a proxy takes what there is for the whole of it.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// closer decides how the connection of a HTTP/1.0 answer ends; the zero one leaves it as it is.
type closer struct{ conn *net.TCPConn }

func closing(r *http.Request) closer {
	if r.ProtoAtLeast(1, 1) {
		return closer{} // broken chunks tell
	}
	c, _ := r.Context().Value(connKey{}).(*net.TCPConn)
	return closer{c}
}

// badly has the connection reset, whoever closes it.
func (c closer) badly() {
	if c.conn != nil {
		_ = c.conn.SetLinger(0) // a connection that is gone needs no end
	}
}

// well has it closed properly.
func (c closer) well() {
	if c.conn != nil {
		_ = c.conn.SetLinger(-1) // a connection that is gone needs no end
	}
}
