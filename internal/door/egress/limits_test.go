package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	hold := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() })
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, hold, func(c *Config) { c.Limits.Concurrency = 2 })
		for range 2 {
			io.WriteString(r.enterDoor(t, "egress"), "GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		eventually(t, "two open", func() bool { return r.Open() == 2 })
		for _, request := range []string{"CONNECT example.com:443", "GET http://example.com/"} {
			resp, body := r.ask(t, "egress", request+" HTTP/1.1\r\nHost: x\r\n\r\n")
			if resp.StatusCode != 429 || !strings.HasPrefix(body, "DOOR_BUSY: ") || resp.Header.Get("Retry-After") == "" {
				t.Errorf("%s %s", resp.Status, body)
			}
		}
		if err := tls.Client(r.enterDoor(t, "tls"), &tls.Config{ServerName: "example.com"}).Handshake(); err == nil || !strings.Contains(err.Error(), "internal error") {
			t.Errorf("%v", err)
		}
	})
	t.Run("requests", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, hi, func(c *Config) { c.Limits.Requests = 1 })
		for _, want := range []int{200, 403} {
			if resp, body := r.ask(t, "egress", "GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != want {
				t.Errorf("%s %s", resp.Status, body)
			}
		}
	})
	t.Run("slow hello", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, hi, func(c *Config) { c.Limits.Slow = 100 * time.Millisecond })
		c := r.enterDoor(t, "egress")
		io.WriteString(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03")
		if b, err := io.ReadAll(c); err != nil || !bytes.HasSuffix(b, alert(alertInternalError)) {
			t.Errorf("%q %v", b, err)
		}
		if b, err := io.ReadAll(r.enterDoor(t, "tls")); err != nil || !bytes.Equal(b, alert(alertInternalError)) {
			t.Errorf("%q %v", b, err)
		}
		eventually(t, "audit", func() bool { return strings.Count(r.log.String(), `"code":"DOOR_SLOW"`) == 2 })
	})
	t.Run("slow body", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, hi, func(c *Config) { c.Limits.Slow = 100 * time.Millisecond })
		for range 5 {
			resp, body := r.ask(t, "egress", "POST http://example.com/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
			if resp.StatusCode != 408 || !strings.HasPrefix(body, "DOOR_SLOW: ") {
				t.Errorf("%s %s", resp.Status, body)
			}
		}
	})
	t.Run("large request", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, hi, func(c *Config) { c.Limits.Bytes = 10 })
		for _, framing := range []string{"Content-Length: 11\r\n\r\n01234567890", "Transfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n"} {
			resp, body := r.ask(t, "egress", "POST http://example.com/ HTTP/1.1\r\nHost: x\r\n"+framing)
			if resp.StatusCode != 413 || !strings.HasPrefix(body, "DOOR_TOO_LARGE: ") {
				t.Errorf("%s %s", resp.Status, body)
			}
		}
	})
	t.Run("large answer", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/known" {
				w.Header().Set("Content-Length", "5000")
			}
			w.Write(make([]byte, 2500))
			http.NewResponseController(w).Flush()
			w.Write(make([]byte, 2500))
		}), func(c *Config) { c.Limits.Bytes = 4000 })
		if resp, body := r.ask(t, "egress", "GET http://example.com/known HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 413 {
			t.Errorf("%s %s", resp.Status, body)
		}
		resp, err := r.client(t).Get("http://example.com/stream")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); err == nil || len(b) > 4000 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		resp.Body.Close()
		resp, err = r.client(t).Get("https://example.com/stream")
		if err == nil {
			if _, err = io.ReadAll(resp.Body); err == nil {
				t.Error("the cut tunnel looks whole")
			}
			resp.Body.Close()
		}
		eventually(t, "audit", func() bool { return strings.Count(r.log.String(), `"code":"DOOR_TOO_LARGE"`) == 3 })
	})
	t.Run("idle and total", func(t *testing.T) {
		t.Parallel()
		for _, change := range []func(*Config){
			func(c *Config) { c.Limits.Idle = 150 * time.Millisecond },
			func(c *Config) { c.Limits.Total = 150 * time.Millisecond },
		} {
			r := newRig(t, hold, change)
			if resp, body := r.ask(t, "egress", "GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 504 || !strings.HasPrefix(body, "DOOR_TIMEOUT: ") {
				t.Errorf("%s %s", resp.Status, body)
			}
			if resp, err := r.client(t).Get("https://example.com/"); err == nil {
				resp.Body.Close()
				t.Error("a silent tunnel stays")
			}
			eventually(t, "audit", func() bool { return strings.Count(r.log.String(), `"code":"DOOR_TIMEOUT"`) == 2 })
		}
	})
}

// TestClientLeaves: nothing stays behind, on whichever side the end comes from.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	inside, gone := make(chan struct{}, 2), make(chan struct{}, 2)
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}), nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, u := range []string{"http://example.com/", "https://example.com/"} {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
			if resp, err := r.client(t).Do(req); err == nil {
				resp.Body.Close()
				t.Error("answered")
			}
		})
	}
	<-inside
	<-inside
	cancel()
	wg.Wait()
	<-gone
	<-gone
	eventually(t, "none open", func() bool { return r.Open() == 0 })
}
