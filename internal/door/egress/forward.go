package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

// ServeHTTP is the forward proxy: CONNECT to port 443, and requests in absolute
// form for plain HTTP at port 80.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		d.serve("connect", w, r, d.connect)
		return
	}
	d.serve("proxy", w, r, func(ctx context.Context, x *exchange, w http.ResponseWriter, r *http.Request) error {
		switch r.URL.Scheme {
		case "http":
			return d.forward(ctx, x, w, r, r.URL.Host)
		case "https":
			return fault.New(fault.InvalidInput, "https:// goes through this proxy with CONNECT only.")
		}
		return fault.New(fault.InvalidInput, "This is a forward proxy: it takes CONNECT and requests with a whole http:// address.")
	})
}

// ByHost is the entrance for bare HTTP to port 80 of the host that the Host header names.
func (d *Door) ByHost() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.serve("host", w, r, func(ctx context.Context, x *exchange, w http.ResponseWriter, r *http.Request) error {
			if r.Method == http.MethodConnect || r.URL.IsAbs() {
				return fault.New(fault.InvalidInput, "This is no proxy: the host is taken from the Host header.")
			}
			return d.forward(ctx, x, w, r, r.Host)
		})
	})
}

// serve wraps an exchange over HTTP.
func (d *Door) serve(entrance string, w http.ResponseWriter, r *http.Request,
	f func(context.Context, *exchange, http.ResponseWriter, *http.Request) error) {
	x, leave, err := d.enter(entrance)
	x.method = r.Method
	defer leave(r.Context())
	if err == nil {
		ctx, release := d.bind(r.Context())
		defer release()
		if err = because(ctx, f(ctx, x, w, r)); ctx.Err() != nil {
			w.Header().Set("Connection", "close") // or the server would wait for the rest of the body
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, errCut):
		var coded *fault.Error
		if errors.As(err, &coded) {
			x.failed(coded)
		}
		panic(http.ErrAbortHandler) // the server closes the connection: not a clean end
	default:
		x.refuse(w, err)
	}
}

// because gives the limit that ended an exchange in place of what broke by it.
func because(ctx context.Context, err error) error {
	var limit *fault.Error
	switch {
	case err == nil || !errors.As(context.Cause(ctx), &limit):
		return err
	case errors.Is(err, errCut):
		return errors.Join(errCut, limit)
	}
	return limit
}

func (d *Door) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, text, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, fmt.Errorf("split address: %w", err)
			}
			port, err := parsePort(text)
			if err != nil {
				return nil, err
			}
			return d.dial(ctx, target{host: host, port: port, private: d.private[addr]})
		},
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        30 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true, // what comes passes as it is
	}
}

// forward passes one request for plain HTTP.
func (d *Door) forward(ctx context.Context, x *exchange, w http.ResponseWriter, r *http.Request, authority string) error {
	x.host = authority
	host, port, err := splitTarget(authority, 80)
	if err != nil {
		return fault.Wrap(err, fault.InvalidInput, "The host of the request is not valid.")
	}
	if r.URL.User != nil || r.URL.Path == "*" {
		return fault.New(fault.InvalidInput, "The address of the request is not one that is passed.")
	}
	t, err := d.permit(host, port, 80)
	if err != nil {
		return err
	}
	x.host = t.String()
	if most := d.cfg.Limits.Bytes; r.ContentLength > most {
		return fault.New(fault.DoorTooLarge, "The request is larger than %d bytes.", most)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(d.cfg.Limits.Idle, func() {
		cancel(fault.New(fault.DoorTimeout, "Nothing was sent for %s.", d.cfg.Limits.Idle))
	})
	defer idle.Stop()

	u := *r.URL
	u.Scheme, u.Host, u.Opaque, u.Fragment = "http", t.String(), "", ""
	out, err := http.NewRequestWithContext(ctx, r.Method, u.String(), nil)
	if err != nil {
		return fault.Wrap(err, fault.InvalidInput, "The address of the request is not valid.")
	}
	if t.port == 80 {
		out.Host = strings.TrimSuffix(t.String(), ":80")
	}
	out.Header = endToEnd(r.Header)
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "") // else the transport puts its own name there
	}
	var body *requestBody
	if r.ContentLength != 0 {
		body = &requestBody{x: x, src: r.Body, rc: http.NewResponseController(w), idle: idle}
		defer body.finish()
		defer context.AfterFunc(ctx, func() {
			var f *fault.Error
			if errors.As(context.Cause(ctx), &f) { // not where the client has gone: its body says why
				body.abort()
			}
		})()
		out.Body, out.ContentLength = body, r.ContentLength
	}
	resp, err := d.transport.RoundTrip(out) // follows no redirect
	if err != nil {
		return d.noAnswer(ctx, t, body, err)
	}
	defer resp.Body.Close()
	return d.answer(ctx, x, w, resp, idle)
}

// noAnswer says why: the client's body, a limit, the client's leaving, or the host.
func (d *Door) noAnswer(ctx context.Context, t target, body *requestBody, err error) error {
	if cause := body.failed(false); cause != nil {
		return cause
	}
	var f *fault.Error
	switch cause := context.Cause(ctx); {
	case errors.As(cause, &f), errors.As(err, &f):
		return f
	case cause != nil: // the server gives up the request as soon as its body fails, before the body's reader knows
		if err := body.failed(true); err != nil {
			return err
		}
		return errors.Join(errCut, cause)
	}
	return fault.Wrap(err, fault.EgressUnreachable, "%s gave no answer.", t)
}

func (d *Door) answer(ctx context.Context, x *exchange, w http.ResponseWriter, resp *http.Response, idle *time.Timer) error {
	most := d.cfg.Limits.Bytes
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return fault.New(fault.EgressUnreachable, "The host switched protocols without being asked.")
	case resp.ContentLength > most:
		return fault.New(fault.DoorTooLarge, "The answer is larger than %d bytes.", most)
	}
	h := w.Header()
	for name, values := range endToEnd(resp.Header) {
		h[name] = values
	}
	x.status = resp.StatusCode
	w.WriteHeader(resp.StatusCode)
	rc := http.NewResponseController(w)
	// A client that does not read must not outlast the exchange. The answer has begun: nothing else is written.
	freed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(freed)
		_ = rc.SetWriteDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-freed // the connection is the server's again
		}
	}()
	_ = rc.Flush() // the status goes at once; a failure shows at the next write
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := resp.Body.Read(*buf)
		idle.Reset(d.cfg.Limits.Idle)
		if n > 0 {
			if x.down.Add(int64(n)) > most {
				return errors.Join(errCut, fault.New(fault.DoorTooLarge, "The answer is larger than %d bytes.", most))
			}
			_ = rc.SetWriteDeadline(time.Now().Add(d.cfg.Limits.Idle)) // a socket deadline is wall time
			if err := context.Cause(ctx); err != nil {                 // after the deadline was set, or that of the end would be lost
				return errors.Join(errCut, err)
			}
			if _, err := w.Write((*buf)[:n]); err != nil {
				return errors.Join(errCut, err)
			}
			if err := rc.Flush(); err != nil {
				return errors.Join(errCut, err)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return errors.Join(errCut, context.Cause(ctx), err)
		}
	}
}

// requestBody passes the client's body on, in due time and within the limit.
type requestBody struct {
	x    *exchange
	src  io.Reader
	rc   *http.ResponseController
	idle *time.Timer

	reading sync.Mutex // held during Read

	mu   sync.Mutex
	done bool // the handler has returned: the connection is not ours any more
	err  error
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	limits := b.x.door.cfg.Limits
	b.mu.Lock()
	if b.done {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	_ = b.rc.SetReadDeadline(time.Now().Add(limits.Slow)) // a socket deadline is wall time
	b.mu.Unlock()
	n, err := b.src.Read(p)
	if n > 0 {
		b.idle.Reset(limits.Idle)
	}
	switch {
	case err != nil && b.ended():
		return n, http.ErrBodyReadAfterClose
	case b.x.up.Add(int64(n)) > limits.Bytes:
		err = b.fail(fault.New(fault.DoorTooLarge, "The request is larger than %d bytes.", limits.Bytes))
	case errors.Is(err, io.EOF):
		b.finish()
	case timedOut(err):
		err = b.fail(fault.Wrap(err, fault.DoorSlow, "The request's body stopped for %s.", limits.Slow))
	case err != nil:
		err = b.fail(errors.Join(errCut, err))
	}
	return n, err
}

// Close is the transport's; the server closes the body itself.
func (b *requestBody) Close() error { return nil }

func (b *requestBody) fail(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	return err
}

// failed is why the body could not be passed on; nil also for no body. With
// wait, a Read that is under way is waited for.
func (b *requestBody) failed(wait bool) error {
	if b == nil {
		return nil
	}
	if wait {
		b.reading.Lock()
		defer b.reading.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (b *requestBody) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}

// abort ends a Read that is under way; the connection is of no further use.
func (b *requestBody) abort() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.done = true
		_ = b.rc.SetReadDeadline(time.Unix(1, 0))
	}
}

// finish gives the connection back.
func (b *requestBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.done = true
		_ = b.rc.SetReadDeadline(time.Time{})
	}
}

// notEndToEnd are the headers that belong to one hop (RFC 9110, section 7.6.1),
// to proxies, or that would tell the host who asks through whom.
var notEndToEnd = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Http2-Settings", "Forwarded", "Via", "X-Real-Ip", door.CodeHeader,
}

// endToEnd copies the headers that pass. What remains is between the program and
// a host that may be reached: as in a TLS tunnel, it is not this door's business.
func endToEnd(src http.Header) http.Header {
	out := src.Clone()
	for _, list := range src.Values("Connection") {
		for name := range strings.SplitSeq(list, ",") {
			out.Del(textproto.TrimString(name))
		}
	}
	for _, name := range notEndToEnd {
		out.Del(name)
	}
	for name := range out {
		if strings.HasPrefix(name, "X-Forwarded-") {
			delete(out, name)
		}
	}
	return out
}
