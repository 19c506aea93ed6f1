package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/hop"
	"github.com/hearthd/hearth/internal/uistream"
	"github.com/hearthd/hearth/internal/uistream/npmtest"
)

// nginx starts an nginx in front of the world's server and returns an address for each
// list of further directives. It ends with the test.
func (w *world) nginx(directives ...string) []string {
	w.t.Helper()
	program := os.Getenv("HEARTH_TEST_NGINX")
	if program == "" {
		program = "/usr/sbin/nginx" // not in everybody's path
	}
	dir := w.t.TempDir()
	var conf strings.Builder
	fmt.Fprintf(&conf, "daemon off;\npid %[1]s/pid;\nerror_log %[1]s/error.log;\n", dir)
	if os.Geteuid() == 0 {
		conf.WriteString("user root;\n") // the folder is root's alone
	}
	conf.WriteString("events {}\nhttp {\n  access_log off;\n")
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "scgi", "uwsgi"} {
		fmt.Fprintf(&conf, "  %s_temp_path %s/%s;\n", kind, dir, kind)
	}
	cmd := exec.Command(program, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", filepath.Join(dir, "error.log"))
	inherited := "NGINX="
	var urls []string
	for i, d := range directives {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			w.t.Fatal(err)
		}
		defer ln.Close()
		f, err := ln.(*net.TCPListener).File() // handed over, so that nobody takes the port meanwhile
		if err != nil {
			w.t.Fatal(err)
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		inherited += fmt.Sprintf("%d;", 3+i)
		urls = append(urls, "http://"+ln.Addr().String())
		fmt.Fprintf(&conf, "  server {\n    listen %s;\n    location / {\n      proxy_pass %s;\n      %s\n    }\n  }\n", ln.Addr(), w.address, d)
	}
	conf.WriteString("}\n")
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf.String()), 0o600); err != nil {
		w.t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), inherited)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		w.t.Fatalf("start nginx: %v (`make test` fetches it)", err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		err := cmd.Wait()
		log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
		if err != nil || w.t.Failed() {
			w.t.Logf("nginx: %v\n%s%s", err, out.String(), clipEnd(string(log)))
		}
	})
	return urls
}

// sight is what a viewer saw through one way, and when.
type sight struct {
	ids   []string
	at    map[string]time.Time
	first time.Duration // from the request to the first event
	done  bool
	err   error
	res   *http.Response
}

// look reads the stream at an address to its end.
func (w *world) look(ctx context.Context, url string) sight {
	s := sight{at: map[string]time.Time{}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return sight{err: err}
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	began := time.Now()
	if s.res, err = web.Do(r); err != nil {
		return sight{err: err}
	}
	defer s.res.Body.Close()
	for d := uistream.NewDecoder(s.res.Body, 0); ; {
		e, err := d.Next()
		switch {
		case errors.Is(err, io.EOF):
			return s
		case err != nil:
			s.err = err
			return s
		case e.Done:
			s.done = true
		case e.ID != "":
			if len(s.ids) == 0 {
				s.first = time.Since(began)
			}
			s.ids = append(s.ids, e.ID)
			s.at[e.ID] = time.Now()
		}
	}
}

// looks reads the stream of a session at several addresses at once; meanwhile runs while they do.
func (w *world) looks(id string, meanwhile func(), addresses ...string) []sight {
	results := make([]chan sight, len(addresses))
	for i, a := range addresses {
		results[i] = make(chan sight, 1)
		base, query, _ := strings.Cut(a, "?")
		go func() { results[i] <- w.look(w.t.Context(), base+"/v1/agent-sessions/"+id+"/stream?"+query) }() // looks waits for it
	}
	meanwhile()
	out := make([]sight, len(addresses))
	for i := range results {
		out[i] = <-results[i]
	}
	return out
}

// late is by how much the latest event came behind the same one in another sight.
func (s sight) late(than sight) time.Duration {
	var worst time.Duration
	for id, at := range s.at {
		if first, ok := than.at[id]; ok {
			worst = max(worst, at.Sub(first))
		}
	}
	return worst
}

// speaking makes a session of the scripted agent, and waits until its turn has said something.
func (w *world) speaking(prompt string) client.Accepted {
	w.t.Helper()
	s := w.create(client.CreateInput{Prompt: prompt})
	w.until(deadline, "it to speak", func() (bool, string) {
		out := text(w.transcript(s.Session.ID), 1)
		return strings.Contains(out, "Step 2 "), out
	})
	return s
}

// Debian's nginx in front, as its own defaults have it: events come at once and live, with
// and without compression, chats work, and what breaks does not look whole.
func TestBehindNginx(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	urls := w.nginx("", "gzip on; gzip_types *; gzip_proxied any; gzip_http_version 1.0; gzip_min_length 1;", "proxy_http_version 1.1;")
	names := []string{"direct", "defaults", "compressed", "HTTP/1.1"}
	ways := append([]string{w.address}, urls...)
	s := w.speaking("@@slow 60 50@@ @@say Done.@@")
	id := s.Session.ID
	seen := w.looks(id, func() {}, ways...)
	want := lines(w.transcript(id))
	for i, v := range seen {
		late := v.late(seen[0])
		t.Logf("%s: first event after %s, at most %s behind", names[i], v.first, late)
		if v.err != nil || !v.done || len(v.ids) != len(want) {
			t.Fatalf("%s: %d of %d events, done %t, %v", names[i], len(v.ids), len(want), v.done, v.err)
		}
		if v.first > time.Second || late > time.Second {
			t.Errorf("%s: the first event after %s, one %s late", names[i], v.first, late)
		}
		if v.res.Uncompressed != (names[i] == "compressed") {
			t.Errorf("%s: compressed %t", names[i], v.res.Uncompressed)
		}
		if ct := v.res.Header.Get("Content-Type"); ct != "text/event-stream" || v.res.Header.Get("Cache-Control") != "no-cache, no-transform" {
			t.Errorf("%s: %v", names[i], v.res.Header)
		}
	}
	for i, u := range urls {
		through := *w
		through.address = u
		got, err := through.watch(t.Context(), id, 13)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s, with Last-Event-ID: %v %s", names[i+1], err, clip(d))
		}
	}

	var pages []*chats
	for line := range npmtest.ChatLines {
		c := &chats{world: w, page: npmtest.Open(t, line), id: id}
		pages = append(pages, c)
		for i, u := range urls {
			name := names[i+1]
			c.open(name, npmtest.Step{Session: u})
			c.send(name, "@@say "+line+" "+name+".@@")
			if v := c.rests(name, "ready"); !strings.Contains(saidIn(v.Last()), line+" "+name) {
				t.Errorf("%s through %s: %s", line, name, v.Raw)
			}
		}
	}

	// The server dies in mid-turn. Nobody may take that for the end of the message.
	w.prompt(id, "@@slow 200 50@@")
	for _, c := range pages {
		for _, name := range names[1:] {
			c.do("resume", name)
		}
	}
	seen = w.looks(id, func() {
		for _, c := range pages {
			for _, name := range names[1:] {
				c.says(name, "Step 10 of")
			}
		}
		w.kill()
	}, ways...)
	for i, v := range seen {
		if v.err == nil || v.done {
			t.Errorf("%s: the stream of a killed server ends with %v after %d events, done %t", names[i], v.err, len(v.ids), v.done)
		}
	}
	for _, c := range pages {
		for _, name := range names[1:] {
			c.rests(name, "error")
		}
	}
	w.start()
	for _, c := range pages {
		for _, name := range names[1:] {
			c.do("resume", name)
		}
		for _, name := range names[1:] {
			c.rests(name, "ready")
		}
	}
}

// A proxy that holds back what does not fill its buffer: with padding events come live all
// the same, for the SDK's chats, too.
func TestBehindABuffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	to, err := url.Parse(w.address)
	if err != nil {
		t.Fatal(err)
	}
	buffer := httptest.NewServer(&hop.Buffer{To: to, Bytes: 8 << 10, For: 5 * time.Second})
	t.Cleanup(buffer.Close)
	s := w.speaking("@@slow 80 100@@ @@say Done.@@")
	id := s.Session.ID
	page := npmtest.Open(t, "react4")
	c := &chats{world: w, page: page, id: id}
	c.open("padded", npmtest.Step{Session: buffer.URL, Query: "?padding=8192"})
	c.do("resume", "padded")
	seen := w.looks(id, func() {}, w.address, buffer.URL+"?padding=8192", buffer.URL)
	for i, v := range seen {
		if v.err != nil || !v.done || len(v.ids) != len(seen[0].ids) {
			t.Errorf("way %d: %d events, done %t, %v", i, len(v.ids), v.done, v.err)
		}
		t.Logf("way %d: first event after %s, at most %s behind", i, v.first, v.late(seen[0]))
	}
	if v := seen[1]; v.first > time.Second || v.late(seen[0]) > time.Second {
		t.Errorf("padded: first event after %s, at most %s behind", v.first, v.late(seen[0]))
	}
	if v := seen[2]; v.late(seen[0]) < 2*time.Second {
		t.Errorf("the buffer holds nothing: at most %s behind", v.late(seen[0]))
	}
	turn := w.ended(id, s.Turn.ID, deadline)
	c.same(c.rests("padded", "ready"), turn)
	c.send("padded", "@@say Again.@@")
	c.same(c.rests("padded", "ready"), c.turns(2)[1])
}

// What a person sees with curl -N: headers and events at once.
func TestCurl(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	s := w.speaking("@@slow 60 50@@")
	id := s.Session.ID
	cmd := exec.CommandContext(t.Context(), "curl", "-sSN", "-i", "-H", "Authorization: Bearer "+w.token, w.address+"/v1/agent-sessions/"+id+"/stream")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	header := map[string]string{}
	var events, last int
	for sc := bufio.NewScanner(out); sc.Scan(); {
		line := sc.Text()
		if name, value, ok := strings.Cut(line, ": "); ok && events == 0 {
			header[strings.ToLower(name)] = value
		}
		if !strings.HasPrefix(line, "data: ") {
			continue
		}
		if events++; events == 1 {
			if took := time.Since(began); took > time.Second {
				t.Errorf("the first event after %s", took)
			}
			if w.get(id).OpenTurn == nil {
				t.Error("the turn had ended")
			}
		}
		if line == "data: [DONE]" {
			last = events
		}
	}
	if err := cmd.Wait(); err != nil || last == 0 || last != events {
		t.Errorf("curl: %v, [DONE] is event %d of %d", err, last, events)
	}
	for name, want := range map[string]string{
		"content-type": "text/event-stream", "cache-control": "no-cache, no-transform", "x-accel-buffering": "no", "x-vercel-ai-ui-message-stream": "v1",
	} {
		if header[name] != want {
			t.Errorf("%s: %q, want %q", name, header[name], want)
		}
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
}
