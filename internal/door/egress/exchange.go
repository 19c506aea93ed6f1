package egress

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

// maxWords bounds in bytes what is told of a stranger's words.
const maxWords = 260

// errCut ends an answer that had begun, so that the client sees that it is not whole.
var errCut = errors.New("answer cut")

// exchange is one request or connection, for the audit line.
type exchange struct {
	door     *Door
	entrance string // connect, proxy, host, tls
	host     string // as asked for, until it is known to be one
	method   string
	addr     string // dialed
	status   int    // answered over HTTP; 0: none
	up, down atomic.Int64
	started  time.Time
	fault    *fault.Error
}

// enter takes a place in the door. leave must be called in any case.
// Codes: DOOR_BUSY, DOOR_LIMIT.
func (d *Door) enter(entrance string) (x *exchange, leave func(context.Context), err error) {
	x = &exchange{door: d, entrance: entrance, started: d.cfg.Now()}
	select {
	case d.slots <- struct{}{}:
	default:
		err = fault.New(fault.DoorBusy, "This session has %d connections open through the egress door, more do not pass.", cap(d.slots))
		return x, func(ctx context.Context) { x.audit(ctx) }, err
	}
	d.open.Add(1)
	leave = func(ctx context.Context) {
		d.open.Add(-1)
		<-d.slots
		x.audit(ctx)
	}
	if most := d.cfg.Limits.Requests; most > 0 && d.taken.Add(1) > most {
		err = fault.New(fault.DoorLimit, "This session has used up its %d connections through the egress door.", most)
	}
	return x, leave, err
}

// failed keeps the fault of an exchange for its audit line.
func (x *exchange) failed(err error) { x.fault = fault.From(err) }

// bound is what ends an exchange from outside.
type bound struct {
	cancel context.CancelCauseFunc
	gone   chan struct{}
}

// bind bounds an exchange by the total time and by [Door.Cut]. It comes before
// the host is judged, so that a host that may not be reached any more is either
// refused or cut. release must be called when nothing of the exchange is open.
func (d *Door) bind(ctx context.Context) (bounded context.Context, release func()) {
	ctx, stop := context.WithTimeoutCause(ctx, d.cfg.Limits.Total, fault.New(fault.DoorTimeout, ""))
	b := &bound{gone: make(chan struct{})}
	ctx, b.cancel = context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bounds[b] = struct{}{}
	return ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.bounds, b)
		close(b.gone)
		b.cancel(nil)
		stop()
	}
}

func (x *exchange) audit(ctx context.Context) {
	attrs := []slog.Attr{
		slog.String("entrance", x.entrance), slog.String("host", door.Printable(x.host, maxWords)), slog.String("method", door.Printable(x.method, maxWords)),
		slog.String("address", x.addr), slog.Int("status", x.status),
		slog.Int64("upBytes", x.up.Load()), slog.Int64("downBytes", x.down.Load()),
		slog.Duration("took", x.door.cfg.Now().Sub(x.started)),
	}
	level := slog.LevelInfo
	if x.fault != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("code", string(x.fault.Code)), slog.String("error", door.Printable(x.fault.Error(), maxWords)))
	}
	x.door.cfg.Log.LogAttrs(ctx, level, "egress exchange", attrs...)
}

// refuse answers over HTTP with a fault, as text that tools print.
func (x *exchange) refuse(w http.ResponseWriter, err error) {
	x.failed(err)
	f := x.fault
	x.status = door.Status(f.Code)
	body := door.Words(f) + "\n"
	h := w.Header()
	door.Head(h, x.status, f.Code)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(x.status)
	_, _ = w.Write([]byte(body)) // nobody is left to tell
}
