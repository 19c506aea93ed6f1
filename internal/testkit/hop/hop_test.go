package hop_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/testkit/hop"
)

// echo answers each line with the same line, and "end" with its end.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { // ends with its connection
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan() && s.Text() != "end"; {
					if _, err := io.WriteString(c, s.Text()+"\n"); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func dial(t *testing.T, h *hop.Hop) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

func open(t *testing.T) *hop.Hop {
	t.Helper()
	h, err := hop.New(t.Context(), echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func TestHop(t *testing.T) {
	t.Parallel()
	h := open(t)
	c, r := dial(t, h)
	for _, word := range []string{"one\n", "two\n"} {
		if _, err := io.WriteString(c, word); err != nil {
			t.Fatal(err)
		}
		if got, err := r.ReadString('\n'); got != word || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if n := h.Reset(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if _, err := r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after a reset: %v", err)
	}
	c, r = dial(t, h)
	h.CutNext()
	if _, err := io.WriteString(c, "three\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after a cut: %v", err)
	}
	c, r = dial(t, h)
	if _, err := io.WriteString(c, "four\nend\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "four\n" || err != nil {
		t.Errorf("a proper end: %q, %v", got, err)
	}
}

func TestBuffer(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 220))
		_ = http.NewResponseController(w).Flush()
		<-over
		_, _ = io.WriteString(w, "the end")
	}))
	t.Cleanup(server.Close)
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	const hold = 400 * time.Millisecond
	proxy := httptest.NewServer(&hop.Buffer{To: to, Bytes: 100, For: hold})
	t.Cleanup(proxy.Close)
	began := time.Now()
	res, err := proxy.Client().Get(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b := make([]byte, 200)
	if _, err := io.ReadFull(res.Body, b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(res.Body, b[:20]); err != nil || time.Since(began) < hold {
		t.Errorf("the rest after %s, %v", time.Since(began), err)
	}
	close(over)
	if rest, err := io.ReadAll(res.Body); string(rest) != "the end" || err != nil {
		t.Errorf("at the end: %q, %v", rest, err)
	}
}
