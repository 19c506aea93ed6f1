package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// connect asks for a tunnel and gives the answer's status, 0 for none. The connection is the tunnel then.
func connect(c net.Conn, host string) int {
	io.WriteString(c, "CONNECT "+host+":443 HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestCut: when less is allowed, nothing of before stays open, whatever it is doing.
func TestCut(t *testing.T) {
	t.Parallel()
	var narrow atomic.Bool
	inside := make(chan struct{}, 8)
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside <- struct{}{}
		switch r.URL.Path {
		case "/flood": // to somebody who does not read
			for b := make([]byte, 64<<10); ; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		case "/answer":
			io.WriteString(w, "begun")
			http.NewResponseController(w).Flush()
		}
		io.Copy(io.Discard, r.Body) // the server notices the end of a connection only behind its body
		<-r.Context().Done()
	}), func(c *Config) {
		c.Allow = func() []string {
			if narrow.Load() {
				return []string{"other.example"}
			}
			return []string{"example.com"}
		}
	})
	request := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: example.com\r\n\r\n" }
	var conns []net.Conn
	open := func(entrance string) net.Conn {
		c := r.enterDoor(t, entrance)
		conns = append(conns, c)
		return c
	}
	tunnel := func(c net.Conn) *tls.Conn {
		if status := connect(c, "example.com"); status != 200 {
			t.Fatal(status)
		}
		return tls.Client(c, &tls.Config{ServerName: "example.com", RootCAs: r.pool})
	}
	fmt.Fprint(tunnel(open("egress")), request("/"))
	fmt.Fprint(tunnel(open("egress")), request("/flood"))
	fmt.Fprint(tls.Client(open("tls"), &tls.Config{ServerName: "example.com", RootCAs: r.pool}), request("/"))
	fmt.Fprint(open("egress"), request("http://example.com/flood"))
	fmt.Fprint(open("http"), request("/answer"))
	waits := open("http")
	fmt.Fprint(waits, request("/"))
	upload := open("http") // whose body never ends
	fmt.Fprint(upload, "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 10\r\n\r\nx")
	tunnel(open("egress")) // which has said nothing yet
	for range 7 {
		<-inside
	}
	eventually(t, "all open", func() bool { return r.Open() == 8 })

	narrow.Store(true)
	begun := time.Now()
	r.Cut()
	if d := time.Since(begun); d > cutTime*9/10 {
		t.Errorf("it took %v", d)
	}
	eventually(t, "none open", func() bool { return r.Open() == 0 })
	eventually(t, "audit", func() bool { return strings.Count(r.log.String(), `"code":"EGRESS_REFUSED"`) == 8 })
	for _, c := range []net.Conn{waits, upload} { // nothing was answered yet: it is told
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 403 {
			t.Errorf("%v %v", resp, err)
		} else {
			resp.Body.Close()
		}
	}
	for i, c := range conns {
		if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if status := connect(r.enterDoor(t, "egress"), "example.com"); status != 403 {
		t.Error(status)
	}
	resp, err := r.client(t).Get("http://other.example/answer")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// TestCutRace: what begins while the list changes is refused or cut, never left.
func TestCutRace(t *testing.T) {
	t.Parallel()
	var narrow atomic.Bool
	r := newRig(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), func(c *Config) {
		c.Allow = func() []string {
			if narrow.Load() {
				return nil
			}
			return []string{"example.com"}
		}
	})
	var wg sync.WaitGroup
	for i := range 40 {
		c := r.enterDoor(t, []string{"egress", "tls"}[i%2])
		wg.Go(func() {
			if i%2 == 0 {
				if connect(c, "example.com") != 200 {
					return
				}
			}
			s := tls.Client(c, &tls.Config{ServerName: "example.com", RootCAs: r.pool})
			if s.HandshakeContext(t.Context()) != nil {
				return
			}
			if _, err := io.Copy(io.Discard, s); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Error("a tunnel outlived the cut")
			}
		})
	}
	eventually(t, "some open", func() bool { return r.Open() > 5 })
	narrow.Store(true)
	r.Cut()
	wg.Wait()
}
