package egress

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/door"
)

const publicIP = "93.184.216.34"

// rig is a door on a doors socket, whose resolver and dialer are the test's:
// names lead to public addresses, and these to a server on loopback.
type rig struct {
	*Door
	path string
	log  *syncBuffer
	tls  string // address of the TLS server
	http string // address of the HTTP server
	pool *x509.CertPool

	mu      sync.Mutex
	names   map[string][][]string // answers in turn, the last one stays
	dialed  []string
	refused []string
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}
func (b *syncBuffer) String() string { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

func (r *rig) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := r.names[host]
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(answers) > 1 {
		r.names[host] = answers[1:]
	}
	var out []netip.Addr
	for _, a := range answers[0] {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func (r *rig) dialTest(ctx context.Context, network, addr string) (net.Conn, error) {
	r.mu.Lock()
	r.dialed = append(r.dialed, addr)
	r.mu.Unlock()
	to := addr
	switch addr {
	case publicIP + ":443":
		to = r.tls
	case publicIP + ":80":
		to = r.http
	case "1.0.0.1:443": // leads nowhere
		return nil, errors.New("unreachable")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}

func (r *rig) dials() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dialed)
}

func newRig(t *testing.T, h http.Handler, change func(*Config)) *rig {
	t.Helper()
	r := &rig{log: &syncBuffer{}, names: map[string][][]string{"example.com": {{publicIP}}, "other.example": {{publicIP}}}}
	secure, plain := httptest.NewTLSServer(h), httptest.NewServer(h)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(secure.Close)
	t.Cleanup(plain.Close)
	r.tls, r.http = secure.Listener.Addr().String(), plain.Listener.Addr().String()
	r.pool = x509.NewCertPool()
	r.pool.AddCert(secure.Certificate()) // for example.com, among others
	log := slog.New(slog.NewJSONHandler(r.log, nil))
	cfg := Config{
		Allow:    func() []string { return []string{"Example.com.", "other.example", "bad name", ""} },
		Resolver: r, Dial: r.dialTest, Log: log,
		Local: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("8.8.4.4")}, nil },
		Refused: func(host string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.refused = append(r.refused, host)
		},
	}
	if change != nil {
		change(&cfg)
	}
	r.Door = New(cfg)
	t.Cleanup(r.Close)

	dir, err := os.MkdirTemp("", "eg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r.path = filepath.Join(dir, "s")
	set, err := door.Listen(r.path, log)
	if err != nil {
		t.Fatal(err)
	}
	set.Handle("egress", door.HTTP(r.Door, log))
	set.Handle("http", door.HTTP(r.ByHost(), log))
	set.Handle("tls", r.TLS())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }() // the cleanup waits for it
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if r.Open() != 0 {
			t.Errorf("%d exchanges are open at the end", r.Open())
		}
	})
	return r
}

// enterDoor dials one of the doors.
func (r *rig) enterDoor(t testing.TB, name string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, name+"\n"); err != nil {
		t.Fatal(err)
	}
	return c
}

// client goes through the forward proxy as programs in the sandbox do.
func (r *rig) client(t testing.TB) *http.Client {
	tr := &http.Transport{
		Proxy:              func(*http.Request) (*url.URL, error) { return url.Parse("http://127.0.0.1:3128") },
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return r.enterDoor(t, "egress"), nil },
		TLSClientConfig:    &tls.Config{RootCAs: r.pool},
		DisableCompression: true,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answered is an answer that was read whole.
type answered struct {
	Status     string
	StatusCode int
	Header     http.Header
}

// ask sends one raw request to a door and gives its answer.
func (r *rig) ask(t testing.TB, name, request string) (answered, string) {
	t.Helper()
	c := r.enterDoor(t, name)
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp.Status, resp.StatusCode, resp.Header}, string(b)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

var hi = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "hi %s %s %s", r.Method, r.Host+r.URL.String(), b)
})

func TestTLSThroughConnect(t *testing.T) {
	t.Parallel()
	r := newRig(t, hi, nil)
	c := r.client(t)
	for range 2 {
		resp, err := c.Post("https://example.com/a?b=c", "text/plain", strings.NewReader(strings.Repeat("x", 100)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(b) != "hi POST example.com/a?b=c "+strings.Repeat("x", 100) {
			t.Errorf("%q %v", b, err)
		}
	}
	c.CloseIdleConnections()
	eventually(t, "audit line", func() bool { return strings.Contains(r.log.String(), `"entrance":"connect"`) })
	for _, want := range []string{`"host":"example.com:443"`, `"address":"127.0.0.1`, `"status":200`} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("audit lacks %s: %s", want, r.log)
		}
	}
	if diff := cmp.Diff([]string{publicIP + ":443"}, r.dials()); diff != "" {
		t.Error(diff)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Errorf("passed: %s %s", r.Host, r.URL) }), nil)
	r.names["private.example"] = [][]string{{"10.0.0.1"}}
	r.names["mixed.example"] = [][]string{{publicIP, "169.254.169.254"}}
	r.names["self.example"] = [][]string{{"8.8.4.4"}}
	r.names["mapped.example"] = [][]string{{"::ffff:127.0.0.1"}}
	r.names["far.example"] = [][]string{{"1.0.0.1"}}
	r.cfg.Allow = func() []string {
		return []string{"example.com", "private.example", "mixed.example", "self.example", "mapped.example", "far.example", "nowhere.example", "127.0.0.1", "::1", "2130706433"}
	}
	for _, tc := range []struct {
		request string // "CONNECT target" or "GET target"; a Host header is added
		status  int
		code    string
		refused string // told to learn
	}{
		{"CONNECT denied.example:443", 403, "EGRESS_REFUSED", "denied.example"},
		{"CONNECT DENIED.example.:443", 403, "EGRESS_REFUSED", "denied.example"},
		{"CONNECT sub.example.com:443", 403, "EGRESS_REFUSED", "sub.example.com"},
		{"CONNECT example.com.evil.example:443", 403, "EGRESS_REFUSED", "example.com.evil.example"},
		{"CONNECT example.com:80", 403, "EGRESS_REFUSED", ""},
		{"CONNECT example.com:22", 403, "EGRESS_REFUSED", ""},
		{"CONNECT example.com:0443", 400, "INVALID_INPUT", ""},
		{"CONNECT 127.0.0.1:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT 2130706433:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT 0x7f.1:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT 0177.0.0.1:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT 127.1:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT [::1]:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT [::ffff:127.0.0.1]:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT [fe80::1%25eth0]:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT 93.184.216.34:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT user@example.com:443", 403, "EGRESS_REFUSED", ""},
		{"CONNECT private.example:443", 403, "EGRESS_ADDRESS_REFUSED", ""},
		{"CONNECT mixed.example:443", 403, "EGRESS_ADDRESS_REFUSED", ""},
		{"CONNECT self.example:443", 403, "EGRESS_ADDRESS_REFUSED", ""},
		{"CONNECT mapped.example:443", 403, "EGRESS_ADDRESS_REFUSED", ""},
		{"CONNECT nowhere.example:443", 502, "EGRESS_UNREACHABLE", ""},
		{"CONNECT far.example:443", 502, "EGRESS_UNREACHABLE", ""},
		{"GET http://denied.example/", 403, "EGRESS_REFUSED", "denied.example"},
		{"GET http://example.com:8080/", 403, "EGRESS_REFUSED", ""},
		{"GET http://example.com:443/", 403, "EGRESS_REFUSED", ""},
		{"GET http://private.example/", 403, "EGRESS_ADDRESS_REFUSED", ""},
		{"GET http://127.0.0.1/", 403, "EGRESS_REFUSED", ""},
		{"GET http://2130706433/", 403, "EGRESS_REFUSED", ""},
		{"GET http://[::1]/", 403, "EGRESS_REFUSED", ""},
		{"GET http://user:pw@example.com/", 400, "INVALID_INPUT", ""},
		{"GET https://example.com/", 400, "INVALID_INPUT", ""},
		{"GET ftp://example.com/", 400, "INVALID_INPUT", ""},
		{"GET /path", 400, "INVALID_INPUT", ""},
		{"OPTIONS *", 400, "INVALID_INPUT", ""},
	} {
		t.Run(tc.request, func(t *testing.T) {
			r.mu.Lock()
			r.refused = nil
			r.mu.Unlock()
			resp, body := r.ask(t, "egress", tc.request+" HTTP/1.1\r\nHost: example.com\r\n\r\n")
			if resp.StatusCode != tc.status || resp.Header.Get("Hearth-Code") != tc.code || !strings.HasPrefix(body, tc.code+": ") {
				t.Errorf("%s %q", resp.Status, body)
			}
			got := strings.Join(r.refused, " ")
			if got != tc.refused {
				t.Errorf("learned %q", got)
			}
		})
	}
	for _, d := range r.dials() {
		if d != "1.0.0.1:443" {
			t.Errorf("dialed %s", d)
		}
	}
	// A tunnel's request has no body that could be taken for its first bytes.
	if resp, _ := r.ask(t, "egress", "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\nContent-Length: 2\r\n\r\nxx"); resp.StatusCode != 400 {
		t.Error(resp.Status)
	}
	// Neither a Host header nor HTTP/2 leads elsewhere.
	if resp, _ := r.ask(t, "egress", "CONNECT denied.example:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"); resp.StatusCode != 403 {
		t.Error(resp.Status)
	}
	if resp, _ := r.ask(t, "egress", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); resp.StatusCode != 400 {
		t.Error(resp.Status)
	}
}

// TestAllowIsAskedEachTime: the phase changes under an open proxy connection.
func TestAllowIsAskedEachTime(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	allowed := []string{"example.com"}
	r := newRig(t, hi, func(c *Config) { c.Allow = func() []string { mu.Lock(); defer mu.Unlock(); return allowed } })
	c := r.client(t)
	for i, want := range []int{200, 403} {
		resp, err := c.Get("http://example.com/")
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d: %s", i, resp.Status)
		}
		mu.Lock()
		allowed = nil
		mu.Unlock()
	}
}

// TestRebinding: the address that was judged is the one that is dialed, and a second look-up is judged again.
func TestRebinding(t *testing.T) {
	t.Parallel()
	r := newRig(t, hi, nil)
	r.names["example.com"] = [][]string{{publicIP}, {"127.0.0.1"}}
	if resp, _ := r.ask(t, "egress", "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	r.Door.Close() // idle connections to the judged address could be used again
	eventually(t, "the second look-up is refused", func() bool {
		resp, _ := r.ask(t, "egress", "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
		r.Door.Close()
		return resp.Header.Get("Hearth-Code") == "EGRESS_ADDRESS_REFUSED"
	})
	r.names["other.example"] = [][]string{{publicIP}, {"127.0.0.1"}}
	for _, want := range []int{200, 403} {
		c := r.enterDoor(t, "egress")
		if got := connect(c, "other.example"); got != want {
			t.Errorf("%d, want %d", got, want)
		}
		c.Close()
	}
	for _, d := range r.dials() {
		if !strings.HasPrefix(d, publicIP+":") {
			t.Errorf("dialed %s", d)
		}
	}
}

func TestNextAddressIsTried(t *testing.T) {
	t.Parallel()
	r := newRig(t, hi, nil)
	r.names["example.com"] = [][]string{{"2606:4700::1", "1.0.0.1", publicIP}}
	resp, err := r.client(t).Get("https://example.com/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if diff := cmp.Diff([]string{"1.0.0.1:443", publicIP + ":443"}, r.dials()); diff != "" {
		t.Error(diff)
	}
}

func TestForward(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen *http.Request
	var body string
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		seen, body = r, string(b)
		mu.Unlock()
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Etag", "e")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.WriteHeader(http.StatusPartialContent)
		z := gzip.NewWriter(w)
		io.WriteString(z, "zipped")
		z.Close()
	}), nil)
	for _, tc := range []struct{ entrance, request string }{
		{"egress", "PUT http://EXAMPLE.com:80/a%2Fb?c=%20d HTTP/1.1\r\nHost: evil.example\r\n"},
		{"http", "PUT /a%2Fb?c=%20d HTTP/1.1\r\nHost: Example.COM.\r\n"},
	} {
		resp, got := r.ask(t, tc.entrance, tc.request+"Accept-Encoding: gzip\r\nConnection: close, X-Own\r\nX-Own: 1\r\nProxy-Authorization: p\r\nProxy-Connection: k\r\n"+
			"X-Forwarded-For: 1\r\nForwarded: f\r\nVia: v\r\nTe: trailers\r\nUpgrade: websocket\r\nRange: bytes=0-\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
		want := map[string]string{"Accept-Encoding": "gzip", "Range": "bytes=0-"}
		flat := map[string]string{}
		for k := range seen.Header {
			flat[k] = seen.Header.Get(k)
		}
		if diff := cmp.Diff(want, flat); diff != "" {
			t.Error(tc.entrance, diff)
		}
		if diff := cmp.Diff([]string{"PUT", "example.com", "/a%2Fb?c=%20d", "body"}, []string{seen.Method, seen.Host, seen.RequestURI, body}); diff != "" {
			t.Error(tc.entrance, diff)
		}
		z, err := gzip.NewReader(strings.NewReader(got))
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := io.ReadAll(z); err != nil || string(plain) != "zipped" {
			t.Errorf("%s %v", plain, err)
		}
		if resp.StatusCode != 206 || resp.Header.Get("Content-Encoding") != "gzip" || resp.Header.Get("Etag") != "e" || resp.Header.Get("X-Hop") != "" {
			t.Errorf("%s %v", resp.Status, resp.Header)
		}
	}
	for _, request := range []string{
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n",
	} {
		if resp, b := r.ask(t, "http", request); resp.StatusCode != 400 {
			t.Errorf("%q: %s %s", request, resp.Status, b)
		}
	}
	for host, code := range map[string]string{"denied.example": "EGRESS_REFUSED", "127.0.0.1": "EGRESS_REFUSED", "example.com:8080": "EGRESS_REFUSED", "[::1]": "EGRESS_REFUSED", "": "EGRESS_REFUSED"} {
		if resp, b := r.ask(t, "http", "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); resp.Header.Get("Hearth-Code") != code {
			t.Errorf("%q: %s %s", host, resp.Status, b)
		}
	}
}

func TestForwardStreamsAndCuts(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, s := range []string{"data: 1\n\n", "data: 2\n\n"} {
			io.WriteString(w, s)
			http.NewResponseController(w).Flush()
			<-next
		}
		panic(http.ErrAbortHandler)
	}), nil)
	resp, err := r.client(t).Get("http://example.com/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, want := range []string{"data: 1\n\n", "data: 2\n\n"} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
			t.Fatalf("%q %v", got, err)
		}
		next <- struct{}{}
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the cut answer looks whole")
	}
}

func TestForwardFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	r := newRig(t, http.RedirectHandler("http://denied.example/", http.StatusFound), nil)
	resp, _ := r.ask(t, "egress", "GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp.StatusCode != 302 || resp.Header.Get("Location") != "http://denied.example/" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
	if len(r.dials()) != 1 {
		t.Errorf("dialed %v", r.dials())
	}
}

// TestAllowPrivate: the operator's host:port, and nothing beside it.
func TestAllowPrivate(t *testing.T) {
	t.Parallel()
	inner := httptest.NewTLSServer(hi)
	t.Cleanup(inner.Close)
	plain := httptest.NewServer(hi)
	t.Cleanup(plain.Close)
	secureAddr, plainAddr := inner.Listener.Addr().String(), plain.Listener.Addr().String()
	_, plainPort, _ := net.SplitHostPort(plainAddr)
	r := newRig(t, hi, func(c *Config) {
		c.AllowPrivate = []string{secureAddr, "registry.internal:" + plainPort, "nonsense"}
		c.Allow = func() []string { return []string{"127.0.0.1", "registry.internal"} }
	})
	r.names["registry.internal"] = [][]string{{"127.0.0.1"}}
	r.pool.AddCert(inner.Certificate())
	c := r.client(t)
	for u, want := range map[string]string{
		"https://" + secureAddr + "/":                    "hi GET " + secureAddr + "/ ",
		"http://registry.internal:" + plainPort + "/pkg": "hi GET registry.internal:" + plainPort + "/pkg ",
	} {
		resp, err := c.Get(u)
		if err != nil {
			t.Errorf("%s: %v", u, err)
			continue
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(b) != want {
			t.Errorf("%s: %q", u, b)
		}
	}
	for _, target := range []string{"http://" + plainAddr + "/", "http://registry.internal/", "http://127.0.0.1/", "http://[::ffff:127.0.0.1]:" + plainPort + "/"} {
		if resp, body := r.ask(t, "egress", "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 403 {
			t.Errorf("%s: %s %s", target, resp.Status, body)
		}
	}
	r.cfg.Allow = func() []string { return nil }
	if resp, _ := r.ask(t, "egress", "CONNECT "+secureAddr+" HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 403 {
		t.Errorf("not in the list of the phase: %s", resp.Status)
	}
}

func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	addrs, err := interfaceAddrs()
	if err != nil || !slices.Contains(addrs, netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("%v %v", addrs, err)
	}
}
