package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

const established = "HTTP/1.1 200 Connection Established\r\n\r\n"

// connect serves CONNECT (RFC 9110, section 9.3.6). The host is judged and
// dialed before the answer, so that refusals can be read; the ClientHello after.
func (d *Door) connect(ctx context.Context, x *exchange, w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return fault.New(fault.InvalidInput, "A CONNECT request has no body.")
	}
	x.host = r.RequestURI
	host, port, err := splitTarget(r.RequestURI, 0)
	if err != nil {
		return fault.Wrap(err, fault.InvalidInput, "CONNECT wants host:port.")
	}
	t, err := d.permit(host, port, 443)
	if err != nil {
		return err
	}
	x.host = t.String()
	upstream, err := d.dial(ctx, t)
	if err != nil {
		return err
	}
	defer upstream.Close()
	x.addr = upstream.RemoteAddr().String()
	client, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close(); upstream.Close() })()
	x.status = http.StatusOK
	ahead, err := rw.Reader.Peek(rw.Reader.Buffered())
	if err != nil {
		return errors.Join(errCut, err)
	}
	// Not through rw: the server ends the request's context at the end of what that reads.
	from := io.MultiReader(bytes.NewReader(ahead), client)
	if err := d.tunnel(ctx, x, t, end{client, from}, end{upstream, upstream}); err != nil {
		return errors.Join(errCut, err) // no HTTP any more
	}
	return nil
}

func (d *Door) tunnel(ctx context.Context, x *exchange, t target, client, upstream end) error {
	if _, err := io.WriteString(client.conn, established); err != nil {
		return fmt.Errorf("answer CONNECT: %w", err)
	}
	h, err := d.hello(ctx, client.conn, client.r)
	if err == nil {
		err = t.sameName(h)
	}
	if err != nil {
		d.sendAlert(client.conn, err)
		return err
	}
	return d.relay(ctx, x, client, upstream, h.raw)
}

// TLS is the entrance for bare TLS connections to port 443 of the host that
// their ClientHello names. Refusals are TLS alerts.
func (d *Door) TLS() door.Handler {
	return door.HandlerFunc(func(ctx context.Context, client net.Conn, _ string) {
		x, leave, err := d.enter("tls")
		defer func() { leave(ctx) }()
		if err == nil {
			ctx, release := d.bind(ctx)
			defer release()
			defer context.AfterFunc(ctx, func() { client.Close() })()
			err = because(ctx, d.serveTLS(ctx, x, client))
		}
		if err != nil {
			x.failed(err)
			d.sendAlert(client, err)
		}
	})
}

func (d *Door) serveTLS(ctx context.Context, x *exchange, client net.Conn) error {
	h, err := d.hello(ctx, client, client)
	if err != nil {
		return err
	}
	x.host = h.name
	if h.name == "" || h.hidden {
		return fault.New(fault.EgressNameRefused, "")
	}
	t, err := d.permit(h.name, 443, 443)
	if err != nil {
		return err
	}
	x.host = t.String()
	upstream, err := d.dial(ctx, t)
	if err != nil {
		return err
	}
	defer upstream.Close()
	defer context.AfterFunc(ctx, func() { upstream.Close() })()
	x.addr = upstream.RemoteAddr().String()
	return d.relay(ctx, x, end{client, client}, end{upstream, upstream}, h.raw)
}

// hello reads the client's first words in due time.
func (d *Door) hello(ctx context.Context, conn net.Conn, r io.Reader) (hello, error) {
	if err := conn.SetReadDeadline(time.Now().Add(d.cfg.Limits.Slow)); err != nil { // a socket deadline is wall time
		return hello{}, fmt.Errorf("set deadline: %w", err)
	}
	h, err := readHello(ctx, r)
	if timedOut(err) {
		return h, fault.Wrap(err, fault.DoorSlow, "There was no ClientHello after %s.", d.cfg.Limits.Slow)
	}
	if err != nil {
		return h, err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return h, fmt.Errorf("clear deadline: %w", err)
	}
	return h, nil
}

// sameName holds the name inside a tunnel against the one that was asked for. An
// IP address of the operator's has none: TLS clients send no name for it (RFC 6066, section 3).
func (t target) sameName(h hello) error {
	_, err := Host(t.host)
	literal := err != nil
	switch {
	case h.hidden:
		return fault.New(fault.EgressNameRefused, "The ClientHello for %s hides the server's name.", t.host)
	case literal && h.name == "":
		return nil
	case h.name == "":
		return fault.New(fault.EgressNameRefused, "The ClientHello for %s names no server.", t.host)
	case h.name != t.host:
		return fault.New(fault.EgressNameRefused, "The ClientHello names %s, the tunnel was asked for %s.", h.name, t.host)
	}
	return nil
}

// sendAlert tells a TLS client that it was refused; nothing was said to it yet.
func (d *Door) sendAlert(client net.Conn, err error) {
	description := byte(alertInternalError)
	switch fault.CodeOf(err) {
	case fault.EgressNameRefused:
		description = alertUnrecognizedName
	case fault.EgressRefused, fault.EgressAddressRefused, fault.DoorLimit:
		description = alertAccessDenied
	case "":
		return
	}
	// It is closed next. What the client still sends is read for a moment, or the
	// alert would be lost with it.
	_ = client.SetDeadline(time.Now().Add(linger)) // a socket deadline is wall time
	_, _ = client.Write(alert(description))
	if c, ok := client.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	_, _ = io.CopyN(io.Discard, client, 64<<10)
}

const linger = 500 * time.Millisecond

// end is one end of a tunnel; r gives what was read ahead, too.
type end struct {
	conn net.Conn
	r    io.Reader
}

// relay copies both ways until both ends have finished, one has failed, or a limit is met.
func (d *Door) relay(ctx context.Context, x *exchange, client, upstream end, first []byte) error {
	shut := func() { client.conn.Close(); upstream.conn.Close() }
	var mu sync.Mutex
	var failed error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil {
			failed = err
			shut()
		}
	}
	idle := time.AfterFunc(d.cfg.Limits.Idle, func() {
		fail(fault.New(fault.DoorTimeout, "Nothing was sent for %s.", d.cfg.Limits.Idle))
	})
	defer idle.Stop()
	active := func() { idle.Reset(d.cfg.Limits.Idle) }

	x.up.Add(int64(len(first)))
	if _, err := upstream.conn.Write(first); err != nil {
		return fault.Wrap(err, fault.EgressUnreachable, "The connection to %s broke.", x.host)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := pump(upstream.conn, client.r, d.cfg.Limits.Bytes, x.up.Add, active); err != nil {
			fail(err)
		}
	})
	if err := pump(client.conn, upstream.r, d.cfg.Limits.Bytes, x.down.Add, active); err != nil {
		fail(err)
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	var f *fault.Error
	switch {
	case failed == nil:
		return nil
	case errors.As(failed, &f), errors.As(context.Cause(ctx), &f):
		return f
	}
	return nil // one end broke off: the other was closed as well, and that is all a tunnel can say
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// pump copies one direction and passes its end on.
func pump(dst net.Conn, src io.Reader, most int64, count func(int64) int64, active func()) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := src.Read(*buf)
		if n > 0 {
			active()
			if count(int64(n)) > most {
				return fault.New(fault.DoorTooLarge, "More than %d bytes in one connection.", most)
			}
			if _, err := dst.Write((*buf)[:n]); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			active()
		}
		switch {
		case errors.Is(err, io.EOF):
			if c, ok := dst.(interface{ CloseWrite() error }); ok {
				if err := c.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
					return fmt.Errorf("close: %w", err)
				}
			}
			return nil
		case err != nil:
			return fmt.Errorf("read: %w", err)
		}
	}
}

func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
