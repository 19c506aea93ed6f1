// Package door is the one way out of a sandbox: a Unix socket on which every
// connection begins with a line that names a door, and then belongs to that
// door's [Handler]. Which session calls is known from the socket alone. What a
// door lets through is decided by the packages below: git, model, egress, driverchan.
package door

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Handler serves one connection of a door and returns when it is done with it.
// rest is what followed the door's name on the first line. The connection is
// closed afterwards, and when ctx ends.
type Handler interface {
	ServeDoor(ctx context.Context, conn net.Conn, rest string)
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, conn net.Conn, rest string)

// ServeDoor calls f.
func (f HandlerFunc) ServeDoor(ctx context.Context, conn net.Conn, rest string) { f(ctx, conn, rest) }

const (
	maxLine      = 4096             // bytes of the first line
	lineDeadline = 10 * time.Second // until it is there
	maxConns     = 512              // open connections of one sandbox
	maxPath      = 107 - len(aside) // bytes of the socket's path: sun_path less its final zero, unix(7)
	warnEvery    = time.Second      // between warnings that a sandbox can cause at will
)

// aside is added to the path under which a socket is made before it takes its place.
const aside = ".n"

// Set is the doors of one sandbox, served on one socket. Doors may be added
// before Run only.
type Set struct {
	ln     net.Listener
	log    *slog.Logger
	doors  map[string]Handler
	slots  chan struct{}
	warned atomic.Int64 // unix nanoseconds
}

// Listen makes the socket at path, in place of one that a former server left:
// at each moment there is a socket. Everybody may connect: the folder's mode
// guards it. Either Run or Close must follow.
func Listen(path string, log *slog.Logger) (*Set, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("path of doors socket is longer than %d bytes: %s", maxPath, path)
	}
	made := path + aside
	if err := os.Remove(made); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old doors socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on doors socket: %w", err)
	}
	// The file stays when the server ends: a sandbox that dials meanwhile is refused, not told that there is none.
	ln.SetUnlinkOnClose(false)
	if err := os.Chmod(made, 0o666); err != nil {
		return nil, errors.Join(fmt.Errorf("open doors socket: %w", err), ln.Close(), os.Remove(made))
	}
	if err := os.Rename(made, path); err != nil {
		return nil, errors.Join(fmt.Errorf("put doors socket in place: %w", err), ln.Close(), os.Remove(made))
	}
	return &Set{ln: ln, log: log, doors: map[string]Handler{}, slots: make(chan struct{}, maxConns)}, nil
}

// Handle adds a door.
func (s *Set) Handle(name string, h Handler) { s.doors[name] = h }

// Close ends listening, for a set that is not run; after Run it does nothing.
func (s *Set) Close() error {
	if err := s.ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close doors socket: %w", err)
	}
	return nil
}

// Run accepts until ctx ends, then closes every connection and waits for their handlers.
func (s *Set) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait, whatever ended the loop
	defer s.ln.Close()
	stop := context.AfterFunc(ctx, func() { s.ln.Close() })
	defer stop()
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("doors socket: %w", err)
			}
			s.log.Warn("accept on doors socket", "error", err)
			select { // out of descriptors, most likely
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case s.slots <- struct{}{}:
		default:
			conn.Close()
			s.warn("too many connections from one sandbox", "limit", maxConns)
			continue
		}
		wg.Go(func() {
			defer func() { <-s.slots }()
			s.serve(ctx, conn)
		})
	}
}

func (s *Set) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	r := bufio.NewReaderSize(conn, maxLine)
	if err := conn.SetReadDeadline(time.Now().Add(lineDeadline)); err != nil { // a socket deadline is wall time
		return
	}
	line, err := r.ReadSlice('\n')
	if err != nil {
		return
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	name, rest, _ := strings.Cut(strings.TrimRight(string(line), "\r\n"), " ")
	h, ok := s.doors[name]
	if !ok {
		s.warn("unknown door", "door", name[:min(len(name), 64)])
		return
	}
	defer func() {
		// What comes in is the sandbox's: it must not be able to end the server of all others.
		if p := recover(); p != nil {
			s.log.Error("door handler panicked", "door", name, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	h.ServeDoor(ctx, &bufferedConn{Conn: conn, r: r}, rest)
}

// warn logs at most one of its warnings each [warnEvery].
func (s *Set) warn(msg string, args ...any) {
	now, last := time.Now().UnixNano(), s.warned.Load() // only paces the log
	if now-last >= int64(warnEvery) && s.warned.CompareAndSwap(last, now) {
		s.log.Warn(msg, args...)
	}
}

// bufferedConn gives what was read past the first line.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// WriteTo keeps io.Copy from allocating another buffer.
func (c *bufferedConn) WriteTo(w io.Writer) (int64, error) { return c.r.WriteTo(w) }

// CloseWrite ends our direction only.
func (c *bufferedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(conn net.Conn) error {
	if x, ok := conn.(interface{ CloseWrite() error }); ok {
		return x.CloseWrite()
	}
	return nil
}

// HTTP serves HTTP/1.1 on each connection of a door with h. A hijacked
// connection stays open until its holder closes it or the door's context ends.
// A client that ends its direction before the answer has left: the request's
// context ends.
func HTTP(h http.Handler, log *slog.Logger) Handler {
	return HandlerFunc(func(ctx context.Context, conn net.Conn, _ string) {
		c, closed := NotifyClose(conn) // by the server or by whoever hijacked it
		released := make(chan bool, 1) // the server is done with it; whether it was hijacked
		var running sync.WaitGroup
		srv := &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				running.Add(1) // before the connection is released
				defer running.Done()
				h.ServeHTTP(w, r)
			}),
			DisableGeneralOptionsHandler: true, // what passes is the handler's to say
			ReadHeaderTimeout:            30 * time.Second,
			IdleTimeout:                  2 * time.Minute,
			MaxHeaderBytes:               64 << 10,
			BaseContext:                  func(net.Listener) context.Context { return ctx },
			ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
			ConnState: func(_ net.Conn, state http.ConnState) {
				if state == http.StateClosed || state == http.StateHijacked {
					released <- state == http.StateHijacked
				}
			},
		}
		_ = srv.Serve(&oneListener{conn: c}) // always an error: the listener has one connection
		hijacked := <-released
		running.Wait()
		if hijacked {
			select {
			case <-closed:
			case <-ctx.Done():
			}
		}
	})
}

// NotifyClose wraps a connection so that closed is closed when whoever holds it
// has closed it.
func NotifyClose(conn net.Conn) (wrapped net.Conn, closed <-chan struct{}) {
	gone := make(chan struct{})
	return &closeNotify{Conn: conn, closed: sync.OnceFunc(func() { close(gone) })}, gone
}

type closeNotify struct {
	net.Conn
	closed func()
}

func (c *closeNotify) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

func (c *closeNotify) CloseWrite() error { return closeWrite(c.Conn) }

// oneListener gives one connection. The server goes on with it by itself.
type oneListener struct {
	conn  net.Conn
	given bool
}

func (l *oneListener) Accept() (net.Conn, error) {
	if l.given {
		return nil, net.ErrClosed
	}
	l.given = true
	return l.conn, nil
}

func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return l.conn.LocalAddr() }
