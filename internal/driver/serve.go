package driver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthd/hearth/internal/driver/worktree"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

const (
	maxBody     = 32 << 20
	pingAfter   = 15 * time.Second // of silence on the connection
	pingTimeout = 10 * time.Second
	longEnough  = time.Second     // a connection that lived so long was a good one
	refusedMost = 5 * time.Second // between dials that end right after the greeting
)

// dialForEver keeps one connection to the driver door and serves on it.
func (d *Driver) dialForEver(ctx context.Context) {
	var called atomic.Bool // on the connection at hand
	h := d.handler()
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called.Store(true)
		h.ServeHTTP(w, r)
	})
	wait := dialFirst
	for ctx.Err() == nil {
		begun := d.o.Now()
		hello, err := json.Marshal(d.hello())
		most := dialMost
		if err == nil {
			var c net.Conn
			if c, err = d.dialDoor(ctx, driverapi.DoorDriver+" "+string(hello), 0); err == nil {
				called.Store(false)
				d.serveConn(ctx, c, counted)
				most = refusedMost
			}
		}
		if err != nil && !nobodyThere(err) && ctx.Err() == nil {
			d.o.Log.Warn("driver door not reached", "error", err)
		}
		if called.Load() || d.o.Now().Sub(begun) >= longEnough {
			wait = dialFirst
		}
		wait = min(wait, most)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait *= 2
	}
}

// serveConn serves HTTP/2 with prior knowledge (RFC 9113, 3.3) until the connection ends.
func (d *Driver) serveConn(ctx context.Context, c net.Conn, h http.Handler) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	l := &oneListener{conn: &closeNotify{Conn: c, closed: sync.OnceFunc(func() { close(closed) })}, done: closed}
	srv := &http.Server{
		Handler:     h,
		Protocols:   new(http.Protocols),
		HTTP2:       &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(d.o.Log.Handler(), slog.LevelDebug),
	}
	srv.Protocols.SetUnencryptedHTTP2(true)
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	_ = srv.Serve(l) // always an error: the listener ends with its only connection
	_ = c.Close()
}

// closeNotify tells when the connection was closed.
type closeNotify struct {
	net.Conn
	closed func()
}

func (c *closeNotify) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// oneListener gives one connection and ends with it.
type oneListener struct {
	conn  net.Conn
	given bool
	done  chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		return l.conn, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return l.conn.LocalAddr() }

// handler has the calls of package driverapi.
func (d *Driver) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET "+driverapi.PathStatus, func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, d.status()) })
	m.HandleFunc("POST "+driverapi.PathSetup, d.handleSetup)
	m.HandleFunc("POST "+driverapi.PathAgent, d.handleAgent)
	m.HandleFunc("PUT "+driverapi.PathTurn, d.handleTurn)
	m.HandleFunc("GET "+driverapi.PathLog, d.handleLog)
	m.HandleFunc("POST "+driverapi.PathCancel, d.handleCancel)
	m.HandleFunc("POST "+driverapi.PathAnswer, d.handleAnswer)
	m.HandleFunc("GET "+driverapi.PathBlob, d.handleBlob)
	m.HandleFunc("DELETE "+driverapi.PathBlob, d.handleBlobDone)
	m.HandleFunc("POST "+driverapi.PathPack, d.handlePack)
	m.HandleFunc("POST "+driverapi.PathReset, d.handleReset)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := strconv.ParseInt(r.Header.Get(driverapi.HeaderFence), 10, 64)
		if err != nil {
			refuse(w, fault.New(fault.InvalidInput, "The call has no fence."))
			return
		}
		if err := d.fence(f); err != nil {
			refuse(w, err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		m.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a caller who has gone needs no answer
}

func refuse(w http.ResponseWriter, err error) {
	f := fault.From(err)
	message := f.Sentence()
	if f.Code == fault.InternalError {
		message = err.Error() // the server's log wants it; the driver knows no secret
	}
	reply(w, f.Kind().HTTPStatus(), driverapi.Failure{Code: string(f.Code), Message: message})
}

func decode[T any](w http.ResponseWriter, r *http.Request) (T, bool) {
	var v T
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		refuse(w, fault.Wrap(err, fault.InvalidInput, "The body cannot be read: %v", err))
		return v, false
	}
	return v, true
}

// stream prepares an answer in lines.
func stream(w http.ResponseWriter) (send func(v any) error, flush func() error, buf *bufio.Writer) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	buf = bufio.NewWriterSize(w, 32<<10)
	rc := http.NewResponseController(w)
	flush = func() error {
		if err := buf.Flush(); err != nil {
			return err
		}
		return rc.Flush()
	}
	enc := json.NewEncoder(buf)
	return func(v any) error {
		if err := enc.Encode(v); err != nil {
			return err
		}
		return flush()
	}, flush, buf
}

func (d *Driver) handleSetup(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[driverapi.SetupRequest](w, r)
	if !ok {
		return
	}
	run := d.startSetup(r.Context(), req)
	send, _, _ := stream(w)
	d.ended(run.watch(r.Context(), func(e driverapi.SetupEvent) error { return send(e) }))
}

// ended breaks a stream that was not sent whole, so that nobody takes it for one that was.
func (d *Driver) ended(err error) {
	if err != nil {
		d.o.Log.Debug("stream ended", "error", err)
		panic(http.ErrAbortHandler)
	}
}

func (d *Driver) handleAgent(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[driverapi.AgentRequest](w, r)
	if !ok {
		return
	}
	a, reused, err := d.startAgent(r.Context(), req)
	if err != nil {
		refuse(w, err)
		return
	}
	res := a.Result
	res.Reused = reused
	reply(w, 200, res)
}

func (d *Driver) handleTurn(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[driverapi.TurnRequest](w, r)
	if !ok {
		return
	}
	id := r.PathValue("turn")
	part, taken, err := d.startTurn(r.Context(), id, req)
	if err != nil {
		refuse(w, err)
		return
	}
	status := http.StatusOK
	if taken {
		status = http.StatusAccepted
	}
	reply(w, status, driverapi.TurnTaken{Turn: id, Part: part})
}

func (d *Driver) handleLog(w http.ResponseWriter, r *http.Request) {
	l := d.logs.Get(r.PathValue("turn"))
	if l == nil {
		refuse(w, fault.New(fault.TurnNotFound, "The driver does not know this turn."))
		return
	}
	after := int64(0)
	if s := r.URL.Query().Get("after"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			refuse(w, fault.New(fault.InvalidInput, "after is not a number: %.40q", s))
			return
		}
		after = n
	}
	_, flush, buf := stream(w)
	d.ended(l.Read(r.Context(), after, buf, flush))
}

func (d *Driver) handleCancel(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[driverapi.CancelRequest](w, r)
	if !ok {
		return
	}
	if err := d.cancelTurn(r.PathValue("turn"), req); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

func (d *Driver) handleAnswer(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[driverapi.AnswerRequest](w, r)
	if !ok {
		return
	}
	if err := d.answer(r.PathValue("turn"), req); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (d *Driver) handlePack(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[driverapi.PackRequest](w, r)
	if !ok {
		return
	}
	var p *worktree.Packed
	pack := func() (err error) {
		p, err = d.tree.Pack(r.Context(), req)
		return err
	}
	with := d.withRoom
	if req.Interim { // the reserve would be the agent's
		with = func(f func() error) error { return f() }
	} else if err := d.idle(); err != nil {
		refuse(w, err)
		return
	}
	if err := with(pack); err != nil {
		refuse(w, err)
		return
	}
	defer func() {
		if err := p.Close(); err != nil {
			d.o.Log.Warn("close pack", "error", err)
		}
	}()
	head, err := asciiJSON(p.Result)
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-git-pack")
	w.Header().Set("Content-Length", strconv.FormatInt(p.Bytes, 10))
	w.Header().Set(driverapi.HeaderPack, head)
	w.WriteHeader(http.StatusOK)
	_, err = io.Copy(w, p)
	d.ended(err)
}

// asciiJSON is JSON that fits a header field.
func asciiJSON(r driverapi.PackResult) (string, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode the pack's result: %w", err)
	}
	var out strings.Builder
	for _, c := range string(b) {
		switch {
		case c < 0x7f:
			out.WriteRune(c)
		case c > 0xffff:
			c -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+(c>>10), 0xdc00+(c&0x3ff))
		default:
			fmt.Fprintf(&out, `\u%04x`, c)
		}
	}
	return out.String(), nil
}

func (d *Driver) handleReset(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[driverapi.ResetRequest](w, r)
	if !ok {
		return
	}
	if err := d.idle(); err != nil {
		refuse(w, err)
		return
	}
	if err := d.withRoom(func() error { return d.tree.Reset(r.Context(), req.OID) }); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
