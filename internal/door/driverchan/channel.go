// Package driverchan is the door at which the driver of a sandbox arrives, and
// the server's way to call it: HTTP/2 in reverse over the connection that the
// driver dialed. A [Channel] is the door's handler and keeps the newest
// connection; a [Client] has the calls of package driverapi, and outlives connections.
//
// The driver is a guest. What it says is held against its contract here: who it
// says it is, shapes, sizes and order. What the parts mean is judged elsewhere.
package driverchan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

const (
	pingAfter   = 15 * time.Second // of silence, then the peer is asked
	pingTimeout = 10 * time.Second // for its answer
	maxHeader   = 256 << 10
)

// Expect is who may arrive.
type Expect struct {
	Session    string
	Sandbox    string
	Generation int64
}

// Channel is the driver door of one sandbox. It is for concurrent use.
type Channel struct {
	expect  Expect
	log     *slog.Logger
	onHello func(driverapi.Hello)

	mu      sync.Mutex
	conn    *conn
	changed chan struct{} // closed when conn changes
}

// conn is one connection of the driver.
type conn struct {
	hello driverapi.Hello
	http  *http.ClientConn
	gone  <-chan struct{}
}

// New makes the handler of a door. onHello, which may be nil, is told each
// greeting that was accepted, before calls go over its connection.
func New(expect Expect, log *slog.Logger, onHello func(driverapi.Hello)) *Channel {
	return &Channel{expect: expect, log: log, onHello: onHello, changed: make(chan struct{})}
}

// ServeDoor takes one connection and returns when it has ended.
func (c *Channel) ServeDoor(ctx context.Context, nc net.Conn, rest string) {
	hello, err := c.greet(rest)
	if err != nil {
		c.log.Warn("driver refused", "error", err)
		return
	}
	wrapped, gone := door.NotifyClose(nc) // by either side
	tr := &http.Transport{
		Protocols:              new(http.Protocols),
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return wrapped, nil },
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	tr.Protocols.SetUnencryptedHTTP2(true)
	cc, err := tr.NewClientConn(ctx, "http", "driver:80")
	if err != nil {
		c.log.Warn("driver connection not opened", "error", err)
		return
	}
	defer func() { _ = cc.Close() }() // it is over, however it ends
	if c.onHello != nil {
		c.onHello(hello)
	}
	x := &conn{hello: hello, http: cc, gone: gone}
	if old := c.swap(x); old != nil {
		_ = old.http.Close() // a newer connection replaces an older one
	}
	c.log.Debug("driver connected", "boot", hello.Boot, "turn", hello.Turn, "part", hello.Part)
	select {
	case <-gone:
	case <-ctx.Done():
	}
	c.drop(x)
}

// greet reads the greeting and holds it against what is expected.
func (c *Channel) greet(rest string) (driverapi.Hello, error) {
	var h driverapi.Hello
	d := json.NewDecoder(bytes.NewReader([]byte(rest)))
	if err := d.Decode(&h); err != nil || d.More() {
		return h, errors.New("the greeting is not JSON")
	}
	switch {
	case h.Version != driverapi.Version:
		return h, fmt.Errorf("the driver speaks version %d, not %d", h.Version, driverapi.Version)
	case h.Session != c.expect.Session || h.Sandbox != c.expect.Sandbox || h.Generation != c.expect.Generation:
		return h, fmt.Errorf("the driver is of session %.80q, sandbox %.80q, generation %d", h.Session, h.Sandbox, h.Generation)
	case h.Boot < 1 || h.Part < 0 || len(h.Turn) > 64 || len(h.Driver) > 200:
		return h, errors.New("the greeting has values that cannot be")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil && c.conn.hello.Boot > h.Boot {
		return h, fmt.Errorf("the driver is of boot %d, one of boot %d is connected", h.Boot, c.conn.hello.Boot)
	}
	return h, nil
}

func (c *Channel) swap(x *conn) (old *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, c.conn = c.conn, x
	close(c.changed)
	c.changed = make(chan struct{})
	return old
}

func (c *Channel) drop(x *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == x {
		c.conn = nil
	}
}

// current is the connection to use, or a channel that tells when to look again.
func (c *Channel) current() (*conn, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		select {
		case <-c.conn.gone:
		default:
			return c.conn, c.changed
		}
	}
	return nil, c.changed
}

// wait gives a connection, at once or when one comes.
func (c *Channel) wait(ctx context.Context, patient bool) (*conn, error) {
	for {
		x, changed := c.current()
		if x != nil {
			return x, nil
		}
		if !patient {
			return nil, fault.New(fault.SandboxUnreachable, "The sandbox's driver is not connected.")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fault.Wrap(context.Cause(ctx), fault.SandboxUnreachable, "The sandbox's driver did not connect in time.")
		}
	}
}

// Connected waits until the driver is connected and returns its greeting.
// SANDBOX_UNREACHABLE when ctx ends before.
func (c *Channel) Connected(ctx context.Context) (driverapi.Hello, error) {
	x, err := c.wait(ctx, true)
	if err != nil {
		return driverapi.Hello{}, err
	}
	return x.hello, nil
}

// Hello is the greeting of the connection that is there now.
func (c *Channel) Hello() (h driverapi.Hello, connected bool) {
	x, _ := c.current()
	if x == nil {
		return driverapi.Hello{}, false
	}
	return x.hello, true
}

// Client makes calls with a lease's fence. They wait for a connection until their context ends.
func (c *Channel) Client(fence int64) *Client { return &Client{ch: c, fence: fence, patient: true} }
