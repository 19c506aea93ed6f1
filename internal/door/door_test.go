package door

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// socketPath is short enough for a socket, unlike t.TempDir of a long name.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "door")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// start runs a set until stop is called or the test ends; stop fails the test when Run does not return.
func start(t *testing.T, path string, doors map[string]Handler) (stop func()) {
	t.Helper()
	s, err := Listen(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range doors {
		s.Handle(name, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // stop waits for it
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run does not return")
		}
	})
	t.Cleanup(stop)
	return stop
}

func dial(t *testing.T, path, first string) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, first); err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn)
}

// echo says what it was given, then all it reads, once the client has ended its direction.
var echo = HandlerFunc(func(_ context.Context, conn net.Conn, rest string) {
	all, err := io.ReadAll(conn)
	fmt.Fprintf(conn, "%s|%s|%v", rest, all, err)
})

func TestFirstLine(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	start(t, path, map[string]Handler{"echo": echo, "boom": HandlerFunc(func(context.Context, net.Conn, string) { panic("boom") })})
	for _, tc := range []struct{ name, send, want string }{
		{"name only", "echo\n", "||<nil>"},
		{"rest and bytes behind it", "echo {\"a\": 1} x\nhello\nworld", `{"a": 1} x|hello` + "\nworld|<nil>"},
		{"carriage return", "echo rest\r\nbody", "rest|body|<nil>"},
		{"unknown", "nowhere\nbody", ""},
		{"empty line", "\nbody", ""},
		{"another case", "ECHO\n", ""},
		{"no line end", "echo", ""},
		{"line as long as may be", "echo " + strings.Repeat("x", maxLine-6) + "\nb", strings.Repeat("x", maxLine-6) + "|b|<nil>"},
		{"line too long", "echo " + strings.Repeat("x", maxLine) + "\nb", ""},
		{"handler panics", "boom\n", ""},
		{"and the set lives on", "echo\nstill", "|still|<nil>"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dial(t, path, tc.send)
			if err := c.CloseWrite(); err != nil && tc.want != "" {
				t.Fatal(err)
			}
			got, err := io.ReadAll(c)
			if err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSlowFirstLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		called := false
		s := &Set{log: slog.New(slog.DiscardHandler), doors: map[string]Handler{
			"echo": HandlerFunc(func(_ context.Context, conn net.Conn, _ string) {
				called = true
				io.Copy(io.Discard, conn)
			}),
		}}
		client, server := net.Pipe()
		began := time.Now()
		done := make(chan struct{})
		go func() { defer close(done); s.serve(t.Context(), server) }()
		for range 3 { // a byte now and then does not help
			io.WriteString(client, "e")
			time.Sleep(4 * time.Second)
		}
		<-done
		if took := time.Since(began); called || took < lineDeadline || took > 13*time.Second {
			t.Errorf("called %v, served for %s", called, took)
		}

		// Once the line is there, silence is the door's own business.
		client, server = net.Pipe()
		done = make(chan struct{})
		go func() { defer close(done); s.serve(t.Context(), server) }()
		io.WriteString(client, "echo\n")
		time.Sleep(time.Hour)
		select {
		case <-done:
			t.Error("a silent connection was ended")
		default:
		}
		client.Close()
		<-done
	})
}

func TestManyConnections(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	start(t, path, map[string]Handler{"hold": HandlerFunc(func(_ context.Context, conn net.Conn, _ string) {
		io.WriteString(conn, "in")
		io.Copy(io.Discard, conn)
	})})
	held := make([]*net.UnixConn, 0, maxConns)
	buf := make([]byte, 2)
	for i := range maxConns {
		c := dial(t, path, "hold\n")
		if _, err := io.ReadFull(c, buf); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		held = append(held, c)
	}
	refused := func() bool {
		c, err := net.Dial("unix", path)
		if err != nil {
			return true
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(c, "hold\n") // may be closed already
		_, err = io.ReadFull(c, buf)
		return err != nil
	}
	for i := range 20 {
		if !refused() {
			t.Fatalf("connection %d above the limit passed", i)
		}
	}
	for _, c := range held[:10] {
		c.Close()
	}
	eventually(t, func() bool { return !refused() })
}

// eventually polls until the condition holds.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("never came true")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestRunEndsEverything(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	var ended atomic.Int32
	inside := make(chan struct{}, 8)
	wait := HandlerFunc(func(_ context.Context, conn net.Conn, _ string) {
		inside <- struct{}{}
		io.Copy(io.Discard, conn)
		ended.Add(1)
	})
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside <- struct{}{}
		<-r.Context().Done()
		ended.Add(1)
	})
	leaky := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Hijack() // and never closed
		ended.Add(1)
		inside <- struct{}{}
	})
	tunnel := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		inside <- struct{}{}
		io.Copy(io.Discard, rw)
		c.Close()
		time.Sleep(50 * time.Millisecond) // the handler's own end is waited for, not the connection's
		ended.Add(1)
	})
	log := slog.New(slog.DiscardHandler)
	stop := start(t, path, map[string]Handler{"wait": wait, "slow": HTTP(slow, log), "leaky": HTTP(leaky, log), "tunnel": HTTP(tunnel, log)})
	const request = "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"
	conns := []*net.UnixConn{dial(t, path, "wait\n"), dial(t, path, "slow"+request), dial(t, path, "leaky"+request), dial(t, path, "tunnel"+request)}
	idle := dial(t, path, "slow\n") // nothing asked yet
	noLine := dial(t, path, "wa")
	for range conns {
		<-inside
	}
	stop()
	if got := ended.Load(); got != int32(len(conns)) {
		t.Errorf("%d of %d handlers had ended when Run returned", got, len(conns))
	}
	for i, c := range append(conns, idle, noLine) {
		if _, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("connection %d is not closed: %v", i, err)
		}
	}
}

func TestRestartOnTheSamePath(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	say := func(what string) map[string]Handler {
		return map[string]Handler{"who": HandlerFunc(func(_ context.Context, conn net.Conn, _ string) { io.WriteString(conn, what) })}
	}
	ask := func() string {
		b, err := io.ReadAll(dial(t, path, "who\n"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	stop := start(t, path, say("first"))
	if got := ask(); got != "first" {
		t.Fatalf("got %q", got)
	}
	stop()
	if _, err := net.Dial("unix", path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("while no server runs: %v, want connection refused", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o666 || info.Mode().Type() != os.ModeSocket {
		t.Errorf("mode %s", info.Mode())
	}

	// Whoever dials while the new server comes up is refused or served.
	quit := make(chan struct{})
	var dials sync.WaitGroup
	dials.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			c, err := net.Dial("unix", path)
			if err == nil {
				c.Close()
			} else if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dial: %v", err)
				return
			}
		}
	})
	stop2 := start(t, path, say("second"))
	if got := ask(); got != "second" {
		t.Errorf("got %q", got)
	}
	// A third takes the place while the second still runs.
	start(t, path, say("third"))
	if got := ask(); got != "third" {
		t.Errorf("got %q", got)
	}
	stop2()
	if got := ask(); got != "third" {
		t.Errorf("the end of a former server took the socket: %q", got)
	}
	close(quit)
	dials.Wait()
	left, err := filepath.Glob(path + "*")
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestListenFails(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	if _, err := Listen("/tmp/"+strings.Repeat("x", maxPath), log); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("long path: %v", err)
	}
	if _, err := Listen(filepath.Join(t.TempDir(), "no", "s"), log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	path := socketPath(t)
	s, err := Listen(path, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if err := s.Run(context.Background()); err == nil {
		t.Error("Run of a closed set says nothing")
	}
}

func TestHTTPKeepsConnection(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	start(t, path, map[string]Handler{"web": HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, b)
	}), slog.New(slog.DiscardHandler))})
	c := dial(t, path, "web\n")
	r := bufio.NewReader(c)
	for i := range 3 {
		fmt.Fprintf(c, "POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi", i)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(b) != fmt.Sprintf("POST /%d hi", i) {
			t.Errorf("%q %v", b, err)
		}
	}
}

// A client that half-closes after its request has left, as net/http sees it.
func TestHTTPHalfCloseEndsTheRequest(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	left := make(chan struct{})
	start(t, path, map[string]Handler{"web": HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(left)
	}), slog.New(slog.DiscardHandler))})
	c := dial(t, path, "web\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	<-left
}

func TestHTTPHijackHalfClose(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	start(t, path, map[string]Handler{"web": HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nready ")
		all, err := io.ReadAll(rw) // until the client's direction ends; ours stays open
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(c, "got %d", len(all))
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
	}), slog.New(slog.DiscardHandler))})
	// The tunnel's first bytes come together with the request.
	c := dial(t, path, "web\nCONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\nearly")
	payload := bytes.Repeat([]byte("x"), 1<<20)
	if _, err := c.Write(payload); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("HTTP/1.1 200 OK\r\n\r\nready got %d", len(payload)+5); string(got) != want {
		t.Errorf("got %q", got)
	}
}

func TestHTTPStreamsUnbuffered(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	seen := make(chan struct{})
	start(t, path, map[string]Handler{"web": HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "one")
		http.NewResponseController(w).Flush()
		<-seen
		io.WriteString(w, "two")
	}), slog.New(slog.DiscardHandler))})
	c := dial(t, path, "web\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	one := make([]byte, 3)
	if _, err := io.ReadFull(resp.Body, one); err != nil {
		t.Fatal(err)
	}
	close(seen)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || string(one)+string(rest) != "onetwo" {
		t.Errorf("%s %s %v", one, rest, err)
	}
}

func FuzzConnection(f *testing.F) {
	f.Add([]byte("echo x\nbody"))
	f.Add([]byte("web\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("web\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	f.Add(bytes.Repeat([]byte("x"), maxLine+1))
	log := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &Set{log: log, doors: map[string]Handler{
			"echo": HandlerFunc(func(_ context.Context, conn net.Conn, rest string) {
				if strings.ContainsAny(rest, "\n") {
					t.Errorf("rest has a line end: %q", rest)
				}
				io.Copy(io.Discard, conn)
			}),
			"web": HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }), log),
		}}
		client, server := net.Pipe()
		done := make(chan struct{})
		go func() { defer close(done); s.serve(context.Background(), server) }()
		go io.Copy(io.Discard, client) // ends with client
		client.Write(in)
		client.Close()
		<-done
	})
}
