package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/driverapi"
)

const (
	dialFirst = time.Millisecond
	dialMost  = 100 * time.Millisecond
)

// openPort listens on a loopback address and leads each connection to its door.
func (d *Driver) openPort(ctx context.Context, wg *sync.WaitGroup, p driverapi.Port) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", p.Listen)
	if err != nil {
		d.o.Log.Error("port not opened", "port", p.Listen, "door", p.Door, "error", err)
		d.mu.Lock()
		d.portsFailed = append(d.portsFailed, fmt.Sprintf("%s: %v", p.Listen, err))
		d.mu.Unlock()
		return
	}
	wg.Go(func() {
		stop := context.AfterFunc(ctx, func() { ln.Close() })
		defer stop()
		for {
			c, err := ln.Accept()
			if err != nil {
				if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
					return
				}
				d.o.Log.Warn("accept", "port", p.Listen, "error", err)
				select { // out of descriptors, most likely
				case <-time.After(dialMost):
				case <-ctx.Done():
				}
				continue
			}
			wg.Go(func() { d.lead(ctx, c, p.Door) })
		}
	})
}

// lead carries one connection to a door.
func (d *Driver) lead(ctx context.Context, c net.Conn, door string) {
	defer c.Close()
	u, err := d.dialDoor(ctx, door, d.cfg.HoldDoors)
	if err != nil {
		d.o.Log.Warn("door not reached", "door", door, "error", err)
		return
	}
	defer u.Close()
	stop := context.AfterFunc(ctx, func() {
		c.Close()
		u.Close()
	})
	defer stop()
	splice(c, u)
}

// dialDoor connects to the doors socket and names the door. While nobody
// listens it tries again for hold.
func (d *Driver) dialDoor(ctx context.Context, line string, hold time.Duration) (net.Conn, error) {
	var dialer net.Dialer
	begun := d.o.Now()
	for wait := dialFirst; ; wait = min(2*wait, dialMost) {
		c, err := dialer.DialContext(ctx, "unix", d.cfg.Socket)
		if err == nil {
			if _, err = io.WriteString(c, line+"\n"); err == nil {
				return c, nil
			}
			c.Close()
		}
		if !nobodyThere(err) || d.o.Now().Sub(begun) >= hold {
			return nil, fmt.Errorf("dial doors: %w", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("dial doors: %w", context.Cause(ctx))
		}
	}
}

// nobodyThere tells whether the server is just not there at the moment.
func nobodyThere(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EAGAIN)
}

// splice copies both ways until both have ended; one direction may end before the other.
func splice(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if err != nil { // broken rather than ended: the other side must not wait
			dst.Close()
			src.Close()
			return
		}
		if x, ok := dst.(interface{ CloseWrite() error }); ok {
			_ = x.CloseWrite()
		}
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
}
