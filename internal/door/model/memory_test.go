package model_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/door/model"
)

// beginPost sends part of a request that announces more, and keeps its connection open.
func beginPost(t *testing.T, base, path, headers, body string, announced int) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n", path, headers, announced); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, body) // the door may have refused by then
	return c
}

// answerOf reads an answer in due time.
func answerOf(t *testing.T, c net.Conn) (status int, code string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header.Get(door.CodeHeader)
}

// TestMemory: many large requests that do not end cost one sandbox no more than its share, and
// all sandboxes no more than the server's.
func TestMemory(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); io.WriteString(w, "{}") })
	rigOf := func(t *testing.T, memory *door.Memory, share int64, body time.Duration) *rig {
		return newRig(t, echo, func(c *model.Config) {
			c.Memory = memory
			c.Limits.MemoryBytes, c.Limits.RequestBytes, c.Limits.Body = share, size, body
		})
	}
	part := strings.Repeat("x", size-1000)

	t.Run("one sandbox", func(t *testing.T) {
		t.Parallel()
		const share = 4 * size
		memory := door.NewMemory(100 * size)
		r := rigOf(t, memory, share, time.Minute)
		var most atomic.Int64
		stop, watched := make(chan struct{}), make(chan struct{})
		go func() { // ends with stop
			defer close(watched)
			for {
				most.Store(max(most.Load(), memory.Used()))
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		var wg sync.WaitGroup
		var conns []net.Conn
		var mu sync.Mutex
		for range 16 {
			wg.Go(func() {
				c := beginPost(t, r.url, messagesPath, "", part, size)
				mu.Lock()
				defer mu.Unlock()
				conns = append(conns, c)
			})
		}
		wg.Wait()
		eventually(t, "the memory is in use", func() bool { return r.door.Open() > 0 && r.door.Open() <= 4 && memory.Used() > size })
		resp, _ := do(t, request(t, http.MethodPost, r.url+messagesPath, strings.Repeat("x", size)))
		// What is left may or may not be enough for this one; it is answered in any case.
		if code := resp.Header.Get(door.CodeHeader); resp.StatusCode != 200 && (resp.StatusCode != 429 || code != "DOOR_BUSY" || resp.Header.Get("Retry-After") == "") {
			t.Errorf("%s %s", resp.Status, code)
		}
		// Others are not touched.
		other := rigOf(t, memory, share, time.Minute)
		if resp, body := do(t, request(t, http.MethodPost, other.url+messagesPath, part)); resp.StatusCode != 200 {
			t.Errorf("another sandbox: %s %s", resp.Status, body)
		}
		close(stop)
		<-watched
		if most.Load() > share+2*size {
			t.Errorf("%d bytes were held", most.Load())
		}
		for _, c := range conns {
			c.Close()
		}
		eventually(t, "all is given back", func() bool { return memory.Used() == 0 && r.door.Open() == 0 })
		if resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, part)); resp.StatusCode != 200 {
			t.Errorf("afterwards: %s %s", resp.Status, body)
		}
	})

	t.Run("all sandboxes", func(t *testing.T) {
		t.Parallel()
		memory := door.NewMemory(3 * size)
		var rigs []*rig
		for range 4 {
			rigs = append(rigs, rigOf(t, memory, 2*size, time.Minute))
		}
		refused, held := 0, []net.Conn{}
		for i := range 12 {
			c := beginPost(t, rigs[i%4].url, messagesPath, "", part, size)
			if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				held = append(held, c)
				continue
			}
			resp.Body.Close()
			refused++
			if code := resp.Header.Get(door.CodeHeader); resp.StatusCode != 429 || code != "SERVER_BUSY" && code != "DOOR_BUSY" {
				t.Errorf("%s %s", resp.Status, code)
			}
		}
		eventually(t, "two are held whole", func() bool { return memory.Used() >= 2*size })
		if used := memory.Used(); used > 3*size || refused == 0 || len(held) == 0 {
			t.Errorf("%d bytes held, %d requests refused, %d held", used, refused, len(held))
		}
		resp, _ := do(t, request(t, http.MethodPost, rigOf(t, memory, 2*size, time.Minute).url+messagesPath, part))
		if code := resp.Header.Get(door.CodeHeader); resp.StatusCode != 429 || code != "SERVER_BUSY" {
			t.Errorf("a fresh sandbox: %s %s", resp.Status, code)
		}
		for _, c := range held {
			c.Close()
		}
		eventually(t, "all is given back", func() bool { return memory.Used() == 0 })
	})

	t.Run("slow ones end by themselves", func(t *testing.T) {
		t.Parallel()
		memory := door.NewMemory(100 * size)
		r := rigOf(t, memory, 100*size, 300*time.Millisecond)
		for range 3 {
			c := beginPost(t, r.url, messagesPath, "", part, size)
			if status, code := answerOf(t, c); status != 408 || code != "DOOR_SLOW" {
				t.Errorf("%d %s", status, code)
			}
		}
		eventually(t, "all is given back", func() bool { return memory.Used() == 0 })
	})

	t.Run("what is announced costs nothing", func(t *testing.T) {
		t.Parallel()
		memory := door.NewMemory(100 * size)
		r := rigOf(t, memory, 100*size, time.Minute)
		beginPost(t, r.url, messagesPath, "", "{", size)
		eventually(t, "it is read", func() bool { return memory.Used() > 0 })
		if used := memory.Used(); used > 8<<10 {
			t.Errorf("%d bytes are held for one that came", used)
		}
	})

	t.Run("what is packed counts unpacked", func(t *testing.T) {
		t.Parallel()
		var unpacked atomic.Int64
		memory := door.NewMemory(100 * size)
		hold := make(chan struct{})
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			if n > 100_000 {
				unpacked.Add(1)
			}
			<-hold
			io.WriteString(w, "{}")
		}), func(c *model.Config) {
			c.Memory = memory
			c.Limits.MemoryBytes, c.Limits.RequestBytes = 3*size, size
		})
		bomb := zipped(`{"model":"m","stream":true,"x":"` + strings.Repeat("0", size-100) + `"}`)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				req := request(t, http.MethodPost, r.url+chatPath, bomb)
				req.Header.Set("Content-Encoding", "gzip")
				if resp, _ := do(t, req); resp.StatusCode != 200 {
					t.Errorf("%s", resp.Status)
				}
			})
		}
		eventually(t, "all are at the provider", func() bool { return r.door.Open() == 8 })
		if used := memory.Used(); used > 3*size {
			t.Errorf("%d bytes are held", used)
		}
		close(hold)
		wg.Wait()
		// The others passed as they came: only what there was room for was unpacked.
		if n := unpacked.Load(); n == 0 || n > 3 {
			t.Errorf("%d were unpacked", n)
		}
		eventually(t, "all is given back", func() bool { return memory.Used() == 0 })
	})

	t.Run("large answers", func(t *testing.T) {
		t.Parallel()
		memory := door.NewMemory(100 * size)
		hold := make(chan struct{})
		r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: "+part)
			http.NewResponseController(w).Flush()
			<-hold
			io.WriteString(w, "\n\n"+start1+delta2+stop1)
		}), func(c *model.Config) {
			c.Memory = memory
			c.Limits.MemoryBytes = 3 * size
		})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}")); resp.StatusCode != 200 || !strings.HasSuffix(body, stop1) || len(body) < size-1000 {
					t.Errorf("%s, %d bytes", resp.Status, len(body))
				}
			})
		}
		eventually(t, "all are read", func() bool { return r.door.Open() == 8 && memory.Used() > size })
		if used := memory.Used(); used > 3*size {
			t.Errorf("%d bytes are held", used)
		}
		close(hold)
		wg.Wait()
		usages, _ := r.told()
		for _, u := range usages {
			if u.Input != 100 || u.Output < 42 { // what comes behind a large event is read again
				t.Errorf("usage %+v", u)
			}
		}
		eventually(t, "all is given back", func() bool { return memory.Used() == 0 })
	})
}
