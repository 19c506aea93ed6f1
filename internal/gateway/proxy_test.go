package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/testkit/hop"
	"github.com/hearthd/hearth/internal/uistream"
)

// raw reads a stream as HTTP/1.0, as nginx asks its upstreams, and says how the connection ended.
func raw(t *testing.T, w *resttest.World, id session.ID, meanwhile func()) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(w.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "GET /v1/agent-sessions/%s/stream HTTP/1.0\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", id, resttest.Token); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	var b strings.Builder
	for !strings.Contains(b.String(), "hello") {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%v after %s", err, b.String())
		}
		b.WriteString(line)
	}
	meanwhile()
	rest, err := io.ReadAll(r)
	return b.String() + string(rest), err
}

// In HTTP/1.0 the connection's end is the body's. One that is broken off ends with a reset.
func TestBrokenInHTTP10(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("first")
	w.Begin(id)
	w.Say(id, resttest.Text("a", "hello")...)
	if got, err := raw(t, w, id, func() { w.End(id) }); err != nil || !strings.HasSuffix(got, "data: [DONE]\n\n") {
		t.Errorf("ended well: %v, %s", err, got)
	}
	w.Prompt(id, "second")
	w.Begin(id)
	w.Say(id, resttest.Text("b", "hello")...)
	if got, err := raw(t, w, id, w.Hub.Close); !errors.Is(err, syscall.ECONNRESET) || strings.Contains(got, "[DONE]") {
		t.Errorf("broken off: %v, %s", err, got)
	}
}

// A client that has closed its sending half is taken for one that left, and can read: what it
// gets must not look whole.
func TestHalfClosed(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("first")
	w.Begin(id)
	w.Say(id, resttest.Text("a", "hello")...)
	for path, until := range map[string]string{"/v1/agent-sessions/" + string(id) + "/stream": "hello", "/v1/watch": "watching"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", path, resttest.Token); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		lines := bufio.NewReader(res.Body)
		for line := ""; !strings.Contains(line, until); {
			if line, err = lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(lines); err == nil {
			t.Errorf("%s: it ended well with %q", path, got)
		}
	}
}

// A proxy that passes on whole blocks keeps no event back when the viewer asks for padding.
func TestPadding(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	const hold = time.Minute // beyond the test's patience
	to, err := url.Parse(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(&hop.Buffer{To: to, Bytes: 8 << 10, For: hold})
	t.Cleanup(h.Close)
	id := w.Create("first")
	w.Begin(id)
	res := open(t.Context(), t, &resttest.World{URL: h.URL}, id, "?padding=8192", "")
	defer res.Body.Close()
	d := uistream.NewDecoder(res.Body, 0)
	var got []event
	see := func(last string) {
		t.Helper()
		for {
			e, err := d.Next()
			if err != nil {
				t.Fatalf("%v after %d events", err, len(got))
			}
			switch {
			case e.Done:
				if last == "" {
					return
				}
			case e.ID != "" && e.Comment == "":
				if got = append(got, event{e.Name, e.ID, string(e.Data)}); strings.Contains(string(e.Data), last) && last != "" {
					return
				}
			}
		}
	}
	for i := range 30 {
		word := fmt.Sprintf("word %d.", i)
		if i%3 == 0 { // events of many sizes
			word = strings.Repeat("x", 700*i) + word
		}
		w.Say(id, resttest.Text(fmt.Sprint("t", i), word)...)
		see(fmt.Sprintf("word %d.", i))
	}
	w.End(id)
	see("")
	if d := cmp.Diff(stored(w, id), got); d != "" {
		t.Error(d)
	}
}

func TestBadPadding(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := idle(w)
	for _, v := range []string{"x", "0", "-1", "65537", "8k", "99999999999999999999"} {
		status, code, text := refusal(t, open(t.Context(), t, w, id, "?padding="+v, ""))
		if status != http.StatusUnprocessableEntity || code != string(fault.InvalidInput) || !strings.Contains(text, "from 1 to 65536") {
			t.Errorf("%s: %d %s %q", v, status, code, text)
		}
	}
}

// Who answers as soon as the stream shows the question is a moment before the session knows it.
func TestAnswerIsFasterThanTheQuestion(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("first")
	w.Begin(id)
	res := open(t.Context(), t, w, id, "", "")
	defer res.Body.Close()
	for n := int64(1); n <= 5; n++ {
		q := showQuestion(w, id, n)
		answered := make(chan string, 1)
		go func() { // the test waits for it
			r, err := http.NewRequest(http.MethodPost, w.URL+"/v1/agent-sessions/"+string(id)+"/questions/"+string(q)+"/answer", strings.NewReader(`{"verdict":"allow"}`))
			if err != nil {
				answered <- err.Error()
				return
			}
			r.Header.Set("Authorization", "Bearer "+resttest.Token)
			r.Header.Set("Content-Type", "application/json")
			res, err := web.Do(r)
			if err != nil {
				answered <- err.Error()
				return
			}
			defer res.Body.Close()
			answered <- res.Status
		}()
		w.Apply(id, session.QuestionAsked{Question: session.Question{Turn: w.Get(id).Open.ID, Number: n, Kind: session.QuestionPermission}})
		if got := <-answered; got != "200 OK" {
			t.Fatalf("question %d: %s", n, got)
		}
	}
}
