package model_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/door/model"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	t.Run("request", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if len(b) != 100 {
				t.Errorf("passed: %d", len(b))
			}
		}), func(c *model.Config) { c.Limits.RequestBytes = 100 })
		for _, chunked := range []bool{false, true} {
			for n, want := range map[int]int{100: 200, 101: 413} {
				req := request(t, http.MethodPost, r.url+messagesPath, strings.Repeat("x", n))
				if chunked {
					req.ContentLength = -1
				}
				if resp, body := do(t, req); resp.StatusCode != want {
					t.Errorf("%d chunked=%t: %s %s", n, chunked, resp.Status, body)
				}
			}
		}
	})
	t.Run("answer of known length", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1001")
			w.Write(make([]byte, 1001))
		}), func(c *model.Config) { c.Limits.ResponseBytes = 1000 })
		resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}"))
		if resp.StatusCode != 413 || !strings.Contains(body, "DOOR_TOO_LARGE: The model provider's answer") {
			t.Errorf("%s %s", resp.Status, body)
		}
	})
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		for path, want := range map[string]string{
			messagesPath:           "event: error\ndata: {\"error\":{",
			"/openai/v1/responses": "event: error\ndata: {\"code\":\"DOOR_TOO_LARGE\"",
			chatPath:               "data: {\"error\":{\"code\":\"DOOR_TOO_LARGE\"",
			"/gemini/v1beta/models/m:streamGenerateContent?alt=sse": "data: {\"error\":{\"code\":413",
		} {
			r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				for range 100 {
					if _, err := io.WriteString(w, "data: {}\n\n"); err != nil {
						return
					}
					http.NewResponseController(w).Flush()
				}
			}), func(c *model.Config) { c.Limits.ResponseBytes = 300 })
			resp, err := web.Transport.RoundTrip(request(t, http.MethodPost, r.url+path, "{}"))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil {
				t.Errorf("%s: the cut answer looks whole", path)
			}
			if !strings.Contains(string(b), want) {
				t.Errorf("%s: %s", path, b)
			}
			eventually(t, "usage", func() bool { u, _ := r.told(); return len(u) == 1 && u[0].Estimated })
		}
	})
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		release := make(chan struct{})
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-release }), func(c *model.Config) { c.Limits.Concurrency = 2 })
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { do(t, request(t, http.MethodPost, r.url+messagesPath, "{}")) })
		}
		eventually(t, "two open", func() bool { return r.door.Open() == 2 })
		resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}"))
		if resp.StatusCode != 429 || resp.Header.Get("Hearth-Code") != "DOOR_BUSY" || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "rate_limit_error") {
			t.Errorf("%s %s", resp.Status, body)
		}
		close(release)
		wg.Wait()
		if resp, _ := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}")); resp.StatusCode != 200 {
			t.Errorf("after release: %s", resp.Status)
		}
	})
	t.Run("requests", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(c *model.Config) { c.Limits.Requests = 2 })
		for i, want := range []int{200, 200, 403, 403} {
			if resp, _ := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}")); resp.StatusCode != want {
				t.Errorf("%d: %s", i, resp.Status)
			}
		}
	})
	t.Run("slow body", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("passed") }), func(c *model.Config) { c.Limits.Body = 150 * time.Millisecond })
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "POST "+messagesPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 408 || !strings.Contains(string(b), "DOOR_SLOW") {
			t.Errorf("%s %s", resp.Status, b)
		}
	})
	t.Run("silent provider", func(t *testing.T) {
		t.Parallel()
		silent := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() })
		r := newRig(t, silent, func(c *model.Config) { c.Limits.Idle = 100 * time.Millisecond })
		resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}"))
		if resp.StatusCode != 504 || !strings.Contains(body, "sent nothing for") {
			t.Errorf("%s %s", resp.Status, body)
		}
		r = newRig(t, silent, func(c *model.Config) { c.Limits.Total = 100 * time.Millisecond })
		if resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}")); resp.StatusCode != 504 || !strings.Contains(body, "DOOR_TIMEOUT") {
			t.Errorf("%s %s", resp.Status, body)
		}
	})
}
