package driverchan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

var expect = Expect{Session: "ses_1", Sandbox: "sb-1", Generation: 2}

func hello(boot int64) driverapi.Hello {
	return driverapi.Hello{Version: driverapi.Version, Session: "ses_1", Sandbox: "sb-1", Generation: 2, Boot: boot}
}

// rogue serves a handler as a driver would, over one connection; the returned function cuts it.
func rogue(t *testing.T, c *Channel, h driverapi.Hello, handler http.Handler) (cut func()) {
	t.Helper()
	theirs, ours := net.Pipe()
	line, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served, door := make(chan struct{}), make(chan struct{})
	srv := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	srv.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(&one{conn: theirs, done: ended})
	}()
	go func() {
		defer close(door)
		c.ServeDoor(ctx, ours, string(line))
		ours.Close()
	}()
	cut = func() {
		theirs.Close()
		ours.Close()
		<-door
	}
	t.Cleanup(func() {
		cancel()
		cut()
		close(ended)
		srv.Close()
		<-served
	})
	return cut
}

type one struct {
	conn  net.Conn
	given bool
	done  chan struct{}
}

func (l *one) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		return l.conn, nil
	}
	<-l.done
	return nil, net.ErrClosed
}
func (l *one) Close() error   { return nil }
func (l *one) Addr() net.Addr { return &net.UnixAddr{} }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestGreeting(t *testing.T) {
	t.Parallel()
	change := func(f func(*driverapi.Hello)) string {
		h := hello(3)
		f(&h)
		b, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	tests := map[string]struct {
		line string
		ok   bool
	}{
		"right":            {change(func(*driverapi.Hello) {}), true},
		"nothing":          {"", false},
		"rubbish":          {"{", false},
		"two":              {change(func(*driverapi.Hello) {}) + "{}", false},
		"other session":    {change(func(h *driverapi.Hello) { h.Session = "ses_2" }), false},
		"other sandbox":    {change(func(h *driverapi.Hello) { h.Sandbox = "sb-2" }), false},
		"other generation": {change(func(h *driverapi.Hello) { h.Generation = 1 }), false},
		"other version":    {change(func(h *driverapi.Hello) { h.Version = 9 }), false},
		"no boot":          {change(func(h *driverapi.Hello) { h.Boot = 0 }), false},
		"long turn":        {change(func(h *driverapi.Hello) { h.Turn = strings.Repeat("x", 65) }), false},
	}
	for name, tt := range tests {
		if _, err := New(expect, quiet(), nil).greet(tt.line); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzGreet(f *testing.F) {
	f.Add(`{"version":1,"session":"ses_1","sandbox":"sb-1","generation":2,"boot":1}`)
	f.Fuzz(func(t *testing.T, line string) {
		if h, err := New(expect, quiet(), nil).greet(line); err == nil && (h.Session != "ses_1" || h.Boot < 1) {
			t.Errorf("%q was taken", line)
		}
	})
}

func TestConnections(t *testing.T) {
	t.Parallel()
	var greeted []int64
	c := New(expect, quiet(), func(h driverapi.Hello) { greeted = append(greeted, h.Boot) })
	if _, err := c.Client(1).Now().Status(t.Context()); fault.CodeOf(err) != fault.SandboxUnreachable {
		t.Errorf("without a driver: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Client(1).Status(ctx); fault.CodeOf(err) != fault.SandboxUnreachable {
		t.Errorf("with patience: %v", err)
	}
	status := func(head string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(driverapi.HeaderFence) != "5" {
				t.Errorf("fence %q", r.Header.Get(driverapi.HeaderFence))
			}
			fmt.Fprintf(w, `{"hello":{},"head":%q}`, head)
		})
	}
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	got := make(chan string, 1)
	go func() { // waits for the first connection
		s, err := c.Client(5).Status(t.Context())
		got <- fmt.Sprint(s.Head, err)
	}()
	rogue(t, c, hello(1), status(a))
	if s := <-got; s != a+"<nil>" {
		t.Errorf("first: %s", s)
	}
	cut := rogue(t, c, hello(2), status(b))
	for { // a newer connection replaces an older one
		h, err := c.Connected(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if h.Boot == 2 {
			break
		}
	}
	if s, err := c.Client(5).Status(t.Context()); err != nil || s.Head != b {
		t.Errorf("second: %+v %v", s, err)
	}
	rogue(t, c, hello(1), status(a)) // an older driver is refused
	if s, err := c.Client(5).Status(t.Context()); err != nil || s.Head != b {
		t.Errorf("third: %+v %v", s, err)
	}
	cut()
	if _, connected := c.Hello(); connected {
		t.Error("still connected")
	}
	if d := cmp.Diff([]int64{1, 2}, greeted); d != "" {
		t.Error(d)
	}
}

func TestRogueAnswers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300<<10)
	tests := map[string]struct {
		status int
		header string
		body   string
		call   func(context.Context, *Client) error
		want   fault.Code
	}{
		"not JSON":        {200, "", "<html>", status, fault.DriverInvalid},
		"too long":        {200, "", `{"head":"` + long + `"}`, status, fault.DriverInvalid},
		"bad head":        {200, "", `{"head":"../x"}`, status, fault.DriverInvalid},
		"redirect":        {302, "", "", status, fault.DriverInvalid},
		"no code":         {500, "", `{}`, status, fault.DriverInvalid},
		"made-up code":    {500, "", `{"code":"MADE_UP","message":"x"}`, status, fault.DriverInvalid},
		"failure":         {409, "", `{"code":"FENCE_STALE","message":"x"}`, status, fault.FenceStale},
		"other turn":      {202, "", `{"turn":"turn_2"}`, turnCall, fault.DriverInvalid},
		"no pack header":  {200, "", "", packCall, fault.DriverInvalid},
		"bad pack head":   {200, `{"changed":true,"head":"HEAD"}`, "", packCall, fault.DriverInvalid},
		"changed nothing": {200, `{"changed":true}`, "", packCall, fault.DriverInvalid},
		"large pack":      {200, `{"changed":false}`, long, packCall, fault.PackTooLarge},
		"setup line":      {200, "", `{"phase":"` + long + `"}` + "\n", setupCall, fault.DriverInvalid},
		"setup rubbish":   {200, "", "x\n", setupCall, fault.DriverInvalid},
		"setup failed":    {200, "", `{"phase":"setup","done":true,"failure":{"code":"SETUP_FAILED","message":"m","output":"o"}}` + "\n", setupCall, fault.SetupFailed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New(expect, quiet(), nil)
			rogue(t, c, hello(1), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tt.header != "" {
					w.Header().Set(driverapi.HeaderPack, tt.header)
				}
				w.Header().Set("Location", "http://example.com/")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := tt.call(ctx, c.Client(1)); fault.CodeOf(err) != tt.want {
				t.Errorf("%v", err)
			}
		})
	}
}

func status(ctx context.Context, c *Client) error {
	_, err := c.Status(ctx)
	return err
}

func turnCall(ctx context.Context, c *Client) error {
	_, _, err := c.Turn(ctx, "turn_1", driverapi.TurnRequest{})
	return err
}

func packCall(ctx context.Context, c *Client) error {
	_, r, err := c.Pack(ctx, driverapi.PackRequest{MaxBytes: 1000})
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

func setupCall(ctx context.Context, c *Client) error {
	_, err := c.Setup(ctx, driverapi.SetupRequest{}, func(driverapi.SetupEvent) {})
	return err
}

func TestLogIsHeldToItsOrder(t *testing.T) {
	t.Parallel()
	part := func(n int) string {
		return fmt.Sprintf(`{"n":%d,"at":"2026-01-01T00:00:00Z","part":{"type":"x"}}`+"\n", n)
	}
	end := func(n int) string {
		return fmt.Sprintf(`{"n":%d,"at":"2026-01-01T00:00:00Z","end":{"outcome":"end_turn","clean":true,"parts":%d}}`+"\n", n, n)
	}
	rung, sent := `{"n":1,"rung":{"rung":"fresh","agentSession":"s"}}`+"\n", `{"n":1,"sent":true}`+"\n"
	tests := map[string]struct {
		serve []string // one connection each, cut afterwards
		want  []string
		err   fault.Code
	}{
		"whole":              {[]string{part(1) + rung + sent + part(2) + end(2)}, []string{"part 1", "rung 1", "sent 1", "part 2", "end 2"}, ""},
		"cut between":        {[]string{part(1) + rung, rung + sent + part(2), end(2)}, []string{"part 1", "rung 1", "sent 1", "part 2", "end 2"}, ""},
		"cut in a line":      {[]string{part(1) + rung + part(2)[:20], rung + sent + part(2) + end(2)}, []string{"part 1", "rung 1", "sent 1", "part 2", "end 2"}, ""},
		"a gap":              {[]string{part(1) + part(3)}, []string{"part 1"}, fault.DriverInvalid},
		"doubled":            {[]string{part(1) + part(1)}, []string{"part 1"}, fault.DriverInvalid},
		"backwards":          {[]string{part(1) + part(2) + sent}, []string{"part 1", "part 2"}, fault.DriverInvalid},
		"end counts wrongly": {[]string{part(1) + end(1)[:len(end(1))-4] + "7}}\n"}, []string{"part 1"}, fault.DriverInvalid},
		"two kinds":          {[]string{`{"n":1,"part":{},"sent":true}` + "\n"}, nil, fault.DriverInvalid},
		"no kind":            {[]string{`{"n":0}` + "\n"}, nil, fault.DriverInvalid},
		"rubbish":            {[]string{"\n"}, nil, fault.DriverInvalid},
		"long":               {[]string{`{"n":1,"part":"` + strings.Repeat("x", 2<<20) + "\"}\n"}, nil, fault.DriverInvalid},
		"large part":         {[]string{`{"n":1,"part":"` + strings.Repeat("x", 1<<20) + "\"}\n"}, nil, fault.DriverInvalid},
		"odd outcome":        {[]string{`{"n":0,"end":{"outcome":"great","parts":0}}` + "\n"}, nil, fault.DriverInvalid},
		"odd code":           {[]string{`{"n":0,"end":{"outcome":"failed","code":"X","parts":0}}` + "\n"}, nil, fault.DriverInvalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New(expect, quiet(), nil)
			served := 0
			var afters []string
			rogue(t, c, hello(1), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				afters = append(afters, r.URL.Query().Get("after"))
				if served < len(tt.serve) {
					_, _ = io.WriteString(w, tt.serve[served])
					served++
				}
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler) // a stream that breaks
			}))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var got []string
			err := c.Client(1).Log(ctx, "turn_1", 0, func(r driverapi.Record) error {
				got = append(got, summary(r))
				return nil
			})
			if fault.CodeOf(err) != tt.err {
				t.Errorf("error %v", err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func summary(r driverapi.Record) string {
	switch {
	case r.Rung != nil:
		return fmt.Sprintf("rung %d", r.N)
	case r.Sent:
		return fmt.Sprintf("sent %d", r.N)
	case r.End != nil:
		return fmt.Sprintf("end %d", r.N)
	}
	return fmt.Sprintf("part %d", r.N)
}

func TestLogStopsWhenTheCallerDoes(t *testing.T) {
	t.Parallel()
	c := New(expect, quiet(), nil)
	rogue(t, c, hello(1), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"n":1,"part":{"type":"x"}}`+"\n")
	}))
	full := errors.New("full")
	if err := c.Client(1).Log(t.Context(), "t", 0, func(driverapi.Record) error { return full }); !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
}

func FuzzFollower(f *testing.F) {
	f.Add([]byte(`{"n":1,"part":{"type":"x"}}` + "\n" + `{"n":1,"end":{"outcome":"failed","code":"AGENT_LOST","parts":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		next := int64(1)
		fo := &follower{each: func(r driverapi.Record) error {
			if r.Part != nil {
				if r.N != next {
					t.Errorf("part %d in the place of %d", r.N, next)
				}
				next++
			}
			return nil
		}}
		for line := range bytes.Lines(b) {
			if fo.ended || fo.take(line) != nil {
				return
			}
		}
	})
}
