package model

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/secret"
)

// maxErrorBody bounds a provider's error answer, which is read whole.
const maxErrorBody = 4 << 20

// maxWords bounds in bytes what is told of a stranger's words.
const maxWords = 300

// exchange is one request and its answer.
type exchange struct {
	door    *Door
	w       http.ResponseWriter
	rc      *http.ResponseController
	dialect Dialect
	call    passed
	route   Route
	key     secret.Secret
	started time.Time

	held    *holding // memory
	in, out int64    // bytes of the bodies
	status  int      // what the agent got; 0: nothing
	fault   *fault.Error
	cut     bool // the answer began and did not come to its end
	usage   *Usage
}

// errCut ends an answer that had begun, so that the agent sees that it is not whole.
var errCut = errors.New("answer cut")

// ServeHTTP takes a call of the agent. The request's context ending ends the exchange.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dialect, path := splitDialect(r.URL.EscapedPath())
	x := &exchange{door: d, w: w, rc: http.NewResponseController(w), dialect: dialect, started: d.cfg.Now(),
		held: &holding{session: d.memory, server: d.cfg.Memory}}
	defer x.held.release()
	select {
	case d.slots <- struct{}{}:
	default:
		x.refuse(fault.New(fault.DoorBusy, "This session has %d calls to models open, more do not pass.", cap(d.slots)))
		x.audit(r)
		return
	}
	defer func() { <-d.slots }()
	d.opened(1)
	defer d.opened(-1)
	defer x.audit(r)
	defer func() {
		if d.cfg.OnEnd != nil && x.call.kind.metered() && x.status != 0 {
			d.cfg.OnEnd(x.status)
		}
	}()
	if most := d.cfg.Limits.Requests; most > 0 && d.taken.Add(1) > most {
		x.refuse(fault.New(fault.DoorLimit, "This session has used up its %d calls to models.", most))
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), d.cfg.Limits.Total, fault.New(fault.DoorTimeout, ""))
	defer cancel()
	err := x.serve(ctx, r, path)
	var f *fault.Error
	switch {
	case err == nil:
	case errors.Is(err, errCut):
		x.cut = x.status != 0
		panic(http.ErrAbortHandler) // the server closes the connection: not a clean end
	case errors.As(err, &f):
		x.refuse(f)
	default:
		x.refuse(fault.Wrap(err, fault.InternalError, ""))
	}
}

func (x *exchange) serve(ctx context.Context, r *http.Request, path string) error {
	if r.Header.Get("Upgrade") != "" {
		return fault.New(fault.Unsupported, "The model door speaks plain HTTP/1.1: no WebSocket, no upgrade.")
	}
	var ok bool
	if x.call, ok = match(x.dialect, path, r); !ok {
		return fault.New(fault.ModelPathRefused, "The model door does not pass %s %s.", door.Printable(r.Method, maxWords), door.Printable(r.URL.Path, maxWords))
	}
	if x.route, ok = x.door.cfg.Routes[x.dialect]; !ok {
		return fault.New(fault.ModelKeyMissing, "This session has no model provider for the calls of %q.", x.dialect)
	}
	if x.call.kind == kindLocal {
		x.status = http.StatusOK
		x.w.WriteHeader(http.StatusOK)
		return nil
	}
	body, err := x.readBody(r)
	if err != nil {
		return err
	}
	if err := x.getKey(ctx); err != nil {
		return err
	}
	return x.exchange(ctx, r, body)
}

// readBody takes the whole request, so that nothing goes out before its size is known.
func (x *exchange) readBody(r *http.Request) ([]byte, error) {
	limits := x.door.cfg.Limits
	tooLarge := fault.New(fault.DoorTooLarge, "The request is larger than %d bytes.", limits.RequestBytes)
	if r.ContentLength > limits.RequestBytes {
		return nil, tooLarge
	}
	// Not every writer has deadlines; those of a door have.
	_ = x.rc.SetReadDeadline(time.Now().Add(limits.Body)) // a socket deadline is wall time
	body, err := x.held.readAll(r.Body, r.ContentLength, limits.RequestBytes)
	x.in = int64(len(body))
	var f *fault.Error
	switch {
	case errors.As(err, &f): // no memory
		return nil, f
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fault.Wrap(err, fault.DoorSlow, "The request was not there after %s.", limits.Body)
	case err != nil:
		return nil, fmt.Errorf("read request: %w", errors.Join(errCut, err))
	case x.in > limits.RequestBytes:
		return nil, tooLarge
	}
	_ = x.rc.SetReadDeadline(time.Time{})
	return body, nil
}

func (x *exchange) getKey(ctx context.Context) error {
	if x.route.Auth == AuthNone {
		return nil
	}
	err := errors.New("the route has no key")
	if x.route.Key != nil {
		if x.key, err = x.route.Key(ctx); err == nil && x.key.Empty() {
			err = errors.New("the key is empty")
		}
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return x.ended(ctx, err)
	}
	f := fault.Wrap(err, fault.ModelKeyMissing, "")
	if x.call.kind.metered() && x.door.cfg.OnKeyRejected != nil {
		x.door.cfg.OnKeyRejected(0, f.Sentence())
	}
	return f
}

// exchange asks the provider and passes the answer on.
func (x *exchange) exchange(ctx context.Context, r *http.Request, body []byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(x.door.cfg.Limits.Idle, func() {
		cancel(fault.New(fault.DoorTimeout, "The model provider sent nothing for %s.", x.door.cfg.Limits.Idle))
	})
	defer idle.Stop()

	encoding := r.Header.Get("Content-Encoding")
	sent, hide := [][]byte{body}, false
	if x.call.kind == kindChat && !x.door.plainChat.Load() {
		body, encoding, sent, hide = x.askForUsage(body, encoding)
	}
	resp, err := x.send(ctx, r, sent, encoding)
	if err != nil {
		return x.ended(ctx, err)
	}
	if hide && (resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusUnprocessableEntity) {
		data, err := x.errorBody(ctx, resp)
		if err != nil {
			return err
		}
		if bytes.Contains(data, []byte("stream_options")) {
			x.door.plainChat.Store(true)
			hide = false
			if resp, err = x.send(ctx, r, [][]byte{body}, encoding); err != nil {
				return x.ended(ctx, err)
			}
		} else {
			resp.Body = io.NopCloser(bytes.NewReader(data))
			resp.Header.Del("Content-Encoding")
		}
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return fault.New(fault.ModelUnreachable, "The model provider answers with a redirect (%d), which is not followed: its base URL must be where that leads.", resp.StatusCode)
	case resp.StatusCode >= 400:
		return x.passError(ctx, resp)
	default:
		return x.passAnswer(ctx, resp, body, hide, idle)
	}
}

// askForUsage makes a Chat request ask for its usage, where it can be read. It
// gives the body from now on, its encoding, and what is to be sent of it.
func (x *exchange) askForUsage(body []byte, encoding string) (_ []byte, _ string, sent [][]byte, hide bool) {
	if !strings.EqualFold(encoding, "gzip") {
		sent, hide = askForUsage(body)
		return body, encoding, sent, hide
	}
	plain := x.unzip(body)
	if sent, hide = askForUsage(plain); hide {
		x.held.give(body)
		return plain, "", sent, true
	}
	x.held.give(plain)
	return body, encoding, [][]byte{body}, false
}

// unzip gives a gzip request plain; nil when it does not fit the limits.
func (x *exchange) unzip(body []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil
	}
	most := x.door.cfg.Limits.RequestBytes
	plain, err := x.held.readAll(z, -1, most)
	if err != nil || int64(len(plain)) > most {
		x.held.give(plain)
		return nil
	}
	return plain
}

func (x *exchange) send(ctx context.Context, r *http.Request, body [][]byte, encoding string) (*http.Response, error) {
	u := *x.route.BaseURL
	path := x.call.path
	if x.dialect == OpenAI { // its base has the version
		path = strings.TrimPrefix(path, "/v1")
	}
	u.RawPath = strings.TrimRight(u.EscapedPath(), "/") + path
	var err error
	if u.Path, err = url.PathUnescape(u.RawPath); err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	u.RawQuery, u.Fragment, u.User = x.call.query, "", nil
	out, err := http.NewRequestWithContext(ctx, r.Method, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if r.Method != http.MethodGet {
		giveBody(out, body)
	}
	passHeaders(out.Header, r.Header, requestHeaders, requestPrefixes)
	out.Header.Del("Content-Encoding")
	if encoding != "" {
		out.Header.Set("Content-Encoding", encoding)
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "hearth")
	}
	out.Header.Set("Accept-Encoding", "identity") // the usage is read from what comes
	authorize(out.Header, x.route.Auth, x.key)
	return x.door.cfg.Transport.RoundTrip(out) // follows no redirect
}

// ended says why there is no answer: the agent left, a limit, or the provider.
func (x *exchange) ended(ctx context.Context, err error) error {
	var f *fault.Error
	if cause := context.Cause(ctx); errors.As(cause, &f) {
		return f
	} else if cause != nil {
		return errors.Join(errCut, cause)
	} else if errors.As(err, &f) { // a limit of the door's own
		return f
	}
	return unreachable(err)
}

// plainBody undoes a gzip that nobody asked for. Other encodings pass as they are.
func plainBody(resp *http.Response) (io.Reader, error) {
	if !strings.EqualFold(resp.Header.Get("Content-Encoding"), "gzip") {
		return resp.Body, nil
	}
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read gzip answer: %w", err)
	}
	resp.Header.Del("Content-Encoding")
	resp.ContentLength = -1
	return z, nil
}

// errorBody reads a provider's error answer whole and takes the key out, which some servers repeat.
func (x *exchange) errorBody(ctx context.Context, resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	src, err := plainBody(resp)
	if err != nil {
		return nil, x.ended(ctx, err)
	}
	data, err := x.held.readAll(src, -1, maxErrorBody)
	if err != nil {
		return nil, x.ended(ctx, err)
	}
	if len(data) > maxErrorBody {
		return nil, fault.New(fault.ModelUnreachable, "The model provider's error answer (%d) is larger than %d bytes.", resp.StatusCode, maxErrorBody)
	}
	return x.mask().body(data), nil
}

// mask finds the exchange's key, which may change from one to the next.
func (x *exchange) mask() *masker {
	key := x.key.Reveal()
	if key == "" {
		return &masker{}
	}
	m := x.door.mask.Load()
	if m == nil || m.key != key {
		m = newMasker(key)
		x.door.mask.Store(m)
	}
	return m
}

// passError passes an error answer on, and tells of a refused key.
func (x *exchange) passError(ctx context.Context, resp *http.Response) error {
	data, err := x.errorBody(ctx, resp)
	if err != nil {
		return err
	}
	if x.call.kind.metered() && x.keyRejected(resp.StatusCode, data) {
		x.fault = fault.New(fault.ModelKeyRejected, "The model provider refused the key (%d)%s", resp.StatusCode, providerWords(data))
		if x.door.cfg.OnKeyRejected != nil {
			x.door.cfg.OnKeyRejected(resp.StatusCode, x.fault.Sentence())
		}
	}
	x.head(resp, int64(len(data)))
	n, _ := x.w.Write(data) // the agent has left, or not: the exchange is over
	x.out = int64(n)
	return nil
}

// keyRejected: Gemini calls a wrong key a bad request.
func (x *exchange) keyRejected(status int, data []byte) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return true
	case http.StatusBadRequest:
		return x.dialect == Gemini && (bytes.Contains(data, []byte("API_KEY_INVALID")) || bytes.Contains(data, []byte("API key not valid")))
	}
	return false
}

// providerWords is what a provider says in its error, as the end of a sentence.
func providerWords(data []byte) string {
	var v struct {
		Message string          `json:"message"`
		Error   json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &v) != nil {
		return "."
	}
	var inner struct {
		Message string `json:"message"`
	}
	said := v.Message
	if json.Unmarshal(v.Error, &inner) == nil && inner.Message != "" {
		said = inner.Message
	} else if said == "" && json.Unmarshal(v.Error, &said) != nil {
		return "."
	}
	if said = door.Printable(said, maxWords); said == "" {
		return "."
	}
	return ": " + said
}

// head writes status and headers. length −1: not known.
func (x *exchange) head(resp *http.Response, length int64) {
	h := x.w.Header()
	passHeaders(h, resp.Header, responseHeaders, responsePrefixes)
	for name, values := range h {
		for i, v := range values {
			h[name][i] = x.mask().text(v)
		}
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" {
		h.Set("Content-Encoding", enc)
	}
	if length >= 0 {
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	x.status = resp.StatusCode
	x.w.WriteHeader(resp.StatusCode)
}

// passAnswer streams a good answer and reads its usage.
func (x *exchange) passAnswer(ctx context.Context, resp *http.Response, body []byte, hide bool, idle *time.Timer) error {
	limits := x.door.cfg.Limits
	tooLarge := fault.New(fault.DoorTooLarge, "The model provider's answer is larger than %d bytes.", limits.ResponseBytes)
	if resp.ContentLength > limits.ResponseBytes {
		return tooLarge
	}
	src, err := plainBody(resp)
	if err != nil {
		return x.ended(ctx, err)
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // an unreadable one is no event stream
	rd := newReader(x.call.kind, media == "text/event-stream", hide, x.held)
	length := resp.ContentLength
	if x.call.kind.metered() {
		length = -1 // the agent knows the end only after OnUsage has returned
	}
	x.head(resp, length)
	err = x.copyAnswer(ctx, src, rd, idle)
	var f *fault.Error
	if errors.As(err, &f) {
		x.fault = f
		if rd.sse && resp.Header.Get("Content-Encoding") == "" {
			_, _ = x.w.Write(faultEvent(x.call.kind, x.dialect, f)) // cut in any case
			_ = x.rc.Flush()
		}
	}
	if x.call.kind.metered() {
		u := rd.usage(int64(len(body)))
		u.Route, u.Dialect, u.Status, u.Took = x.route.Name, x.dialect, resp.StatusCode, x.door.cfg.Now().Sub(x.started)
		if u.Model == "" {
			u.Model = x.call.model
		}
		if u.Model == "" {
			u.Model = modelOf(body)
		}
		x.usage = &u
		if x.door.cfg.OnUsage != nil {
			x.door.cfg.OnUsage(u)
		}
	}
	if err != nil {
		return errors.Join(errCut, err)
	}
	return nil
}

// copyAnswer gives the agent each piece as it comes.
func (x *exchange) copyAnswer(ctx context.Context, src io.Reader, rd *reader, idle *time.Timer) error {
	limits := x.door.cfg.Limits
	buf := make([]byte, 32<<10)
	var total int64
	var failed error
	write := func(p []byte) {
		if failed != nil || len(p) == 0 {
			return
		}
		_ = x.rc.SetWriteDeadline(time.Now().Add(limits.Idle)) // a socket deadline is wall time
		n, err := x.w.Write(p)
		x.out += int64(n)
		if err == nil {
			err = x.rc.Flush()
		}
		if err != nil && !errors.Is(err, http.ErrNotSupported) {
			failed = fmt.Errorf("write to the agent: %w", err)
		}
	}
	_ = x.rc.Flush() // the status goes at once
	for {
		n, err := src.Read(buf)
		idle.Reset(limits.Idle)
		if total += int64(n); total > limits.ResponseBytes {
			rd.end(true, func([]byte) {})
			return fault.New(fault.DoorTooLarge, "The model provider's answer is larger than %d bytes.", limits.ResponseBytes)
		}
		rd.pass(buf[:n], write)
		switch {
		case failed != nil:
			rd.end(true, func([]byte) {})
			return failed
		case errors.Is(err, io.EOF):
			rd.end(false, write)
			return failed
		case err != nil:
			rd.end(true, write)
			var f *fault.Error
			if errors.As(context.Cause(ctx), &f) {
				return f
			}
			return fmt.Errorf("read answer: %w", err)
		}
	}
}

// refuse answers with an error of the door's own.
func (x *exchange) refuse(f *fault.Error) {
	x.fault, x.status = f, door.Status(f.Code)
	answerFault(x.w, x.dialect, x.status, f)
}

// audit writes the exchange's line.
func (x *exchange) audit(r *http.Request) {
	attrs := []slog.Attr{
		slog.String("dialect", door.Printable(string(x.dialect), maxWords)), slog.String("method", door.Printable(r.Method, maxWords)),
		slog.String("path", door.Printable(r.URL.Path, maxWords)), slog.String("route", x.route.Name), slog.Int("status", x.status),
		slog.Int64("requestBytes", x.in), slog.Int64("responseBytes", x.out),
		slog.Duration("took", x.door.cfg.Now().Sub(x.started)),
	}
	level := slog.LevelInfo
	if x.fault != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("code", string(x.fault.Code)))
		if cause := x.fault.Unwrap(); cause != nil {
			attrs = append(attrs, slog.String("error", x.mask().text(cause.Error())))
		}
	}
	if x.cut {
		attrs = append(attrs, slog.Bool("cut", true))
	}
	if u := x.usage; u != nil {
		attrs = append(attrs, slog.String("model", door.Printable(u.Model, maxWords)), slog.Int64("input", u.Input), slog.Int64("output", u.Output),
			slog.Int64("cacheRead", u.CacheRead), slog.Int64("cacheWrite", u.CacheWrite), slog.Bool("estimated", u.Estimated))
	}
	x.door.cfg.Log.LogAttrs(r.Context(), level, "model exchange", attrs...)
}
