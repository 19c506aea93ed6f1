package model_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/secret"
)

const (
	messagesPath = "/anthropic/v1/messages"
	chatPath     = "/openai/v1/chat/completions"
	start1       = `event: message_start` + "\n" + `data: {"type":"message_start","message":{"model":"claude-x","usage":{"input_tokens":100,"output_tokens":1,"cache_read_input_tokens":30,"cache_creation_input_tokens":20,"cache_creation":{"ephemeral_1h_input_tokens":5}}}}` + "\n\n"
	delta1       = `event: content_block_delta` + "\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"0123456789abcdef0123456789abcdef"}}` + "\n\n"
	delta2       = `event: message_delta` + "\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":42}}` + "\n\n"
	stop1        = `event: message_stop` + "\n" + `data: {"type":"message_stop"}` + "\n\n"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// events is an upstream that sends each piece when it is told to.
func events(pieces ...string) (http.Handler, chan<- struct{}) {
	next := make(chan struct{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		http.NewResponseController(w).Flush()
		for _, p := range pieces {
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
			if p == "CUT" {
				panic(http.ErrAbortHandler)
			}
			io.WriteString(w, p)
			http.NewResponseController(w).Flush()
		}
	}), next
}

// TestUnbuffered: the status is there before the first event, and each event before the next is sent.
func TestUnbuffered(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, path string
		pieces     []string
		want       []string
	}{
		{"anthropic", messagesPath, []string{start1, delta1, delta2, stop1}, nil},
		{"half an event", messagesPath, []string{start1[:20], start1[20:] + delta1[:5], delta1[5:]}, nil},
		{"chat that hides", chatPath, []string{"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", ": ping\n\n", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n"},
			[]string{"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", ": ping\n\n", "data: [DONE]\n\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.want == nil {
				tc.want = tc.pieces
			}
			upstream, next := events(tc.pieces...)
			r := newRig(t, upstream, nil)
			resp, err := web.Transport.RoundTrip(request(t, http.MethodPost, r.url+tc.path, `{"stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if r.door.Open() != 1 {
				t.Errorf("open: %d", r.door.Open())
			}
			for i, want := range tc.want {
				next <- struct{}{}
				got := make([]byte, len(want))
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
					t.Fatalf("piece %d: %q %v", i, got, err)
				}
			}
			if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
				t.Errorf("rest %q %v", rest, err)
			}
			eventually(t, "closed", func() bool { return r.door.Open() == 0 })
			r.mu.Lock()
			defer r.mu.Unlock()
			if diff := cmp.Diff([]int{1, 0}, r.opens); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCutStreams: the agent sees that the answer is not whole, and what was used is reckoned.
func TestCutStreams(t *testing.T) {
	t.Parallel()
	ignore := cmpopts.IgnoreFields(model.Usage{}, "Took", "Route", "Dialect", "Status")
	for _, tc := range []struct {
		name, path string
		pieces     []string
		clean      bool // the stream ends well as HTTP, but early
		want       model.Usage
	}{
		{"after the start", messagesPath, []string{start1, delta1, "CUT"}, false,
			model.Usage{Model: "claude-x", Input: 100, CacheRead: 30, CacheWrite: 20, CacheWriteHour: 5, Output: 8, Estimated: true}},
		{"before the start", messagesPath, []string{"", "CUT"}, false, model.Usage{Model: "asked", Input: 9, Estimated: true}},
		{"early clean end", messagesPath, []string{start1, delta1}, true,
			model.Usage{Model: "claude-x", Input: 100, CacheRead: 30, CacheWrite: 20, CacheWriteHour: 5, Output: 8, Estimated: true}},
		{"after the counts", messagesPath, []string{start1, delta1, delta2, "CUT"}, false,
			model.Usage{Model: "claude-x", Input: 100, CacheRead: 30, CacheWrite: 20, CacheWriteHour: 5, Output: 42, Estimated: true}},
		{"chat", chatPath, []string{"data: {\"model\":\"g\",\"choices\":[{\"delta\":{\"content\":\"01234567\"}}]}\n\ndata: {\"cho", "CUT"}, false,
			model.Usage{Model: "g", Input: 9, Output: 2, Estimated: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			upstream, next := events(tc.pieces...)
			r := newRig(t, upstream, nil)
			go func() {
				for range tc.pieces {
					next <- struct{}{}
				}
			}()
			resp, err := web.Transport.RoundTrip(request(t, http.MethodPost, r.url+tc.path, `{"model":"asked","stream":true   }`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if (err == nil) != tc.clean {
				t.Errorf("read: %v", err)
			}
			if want := strings.TrimSuffix(strings.Join(tc.pieces, ""), "CUT"); string(got) != want {
				t.Errorf("got %q", got)
			}
			eventually(t, "usage", func() bool { u, _ := r.told(); return len(u) == 1 })
			usages, _ := r.told()
			if diff := cmp.Diff(tc.want, usages[0], ignore); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestAgentLeaves: the provider's stream is given up, and what was used is told.
func TestAgentLeaves(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, start1)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}), nil)
	ctx, cancel := context.WithCancel(t.Context())
	req := request(t, http.MethodPost, r.url+messagesPath, `{}`).WithContext(ctx)
	resp, err := web.Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len(start1))); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-gone
	eventually(t, "end", func() bool { return r.door.Open() == 0 })
	usages, _ := r.told()
	if len(usages) != 1 || usages[0].Input != 100 || !usages[0].Estimated {
		t.Errorf("%+v", usages)
	}
	if !strings.Contains(r.log.String(), `"cut":true`) {
		t.Errorf("log: %s", r.log)
	}
}

// TestChatUsage: the door asks, and hides what it asked for only.
func TestChatUsage(t *testing.T) {
	t.Parallel()
	const (
		chunk = "data: {\"model\":\"g\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\n\n"
		usage = "data: {\"model\":\"g\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n"
		both  = "data: {\"model\":\"g\",\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n"
		done  = "data: [DONE]\n\n"
	)
	want := model.Usage{Model: "g", Input: 7, CacheRead: 3, Output: 4}
	for _, tc := range []struct {
		name, body, sent, answer, got string
		zip                           bool
	}{
		{"not asked for", `{"model":"g","stream":true, "x" : 1.0}`, `{"stream_options":{"include_usage":true},"model":"g","stream":true, "x" : 1.0}`, chunk + usage + done, chunk + done, false},
		{"asked for", `{"stream":true,"stream_options":{"include_usage":true}}`, `{"stream":true,"stream_options":{"include_usage":true}}`, chunk + usage + done, chunk + usage + done, false},
		{"asked against", `{"stream":true,"stream_options":{"include_usage":false,"a":1},"b":"<>"}`, `{"stream":true,"stream_options":{"a":1,"include_usage":true},"b":"<>"}`, chunk + usage + done, chunk + done, false},
		{"null options", `{"stream_options": null,"stream":true}`, `{"stream_options": {"include_usage":true},"stream":true}`, chunk + usage + done, chunk + done, false},
		{"with a choice it stays", `{"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`, chunk + both, chunk + both, false},
		{"carriage returns", `{"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`, strings.ReplaceAll(chunk+usage+done, "\n", "\r\n"), strings.ReplaceAll(chunk+done, "\n", "\r\n"), false},
		{"gzip request", `{"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`, chunk + usage + done, chunk + done, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var sent, encoding string
			r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				sent, encoding = string(b), r.Header.Get("Content-Encoding")
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, tc.answer)
			}), nil)
			body := tc.body
			if tc.zip {
				body = zipped(body)
			}
			req := request(t, http.MethodPost, r.url+chatPath, body)
			if tc.zip {
				req.Header.Set("Content-Encoding", "gzip")
			}
			_, got := do(t, req)
			if diff := cmp.Diff([]string{tc.sent, "", tc.got}, []string{sent, encoding, got}); diff != "" {
				t.Error(diff)
			}
			usages, _ := r.told()
			if diff := cmp.Diff([]model.Usage{want}, usages, cmpopts.IgnoreFields(model.Usage{}, "Took", "Route", "Dialect", "Status")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestChatUsageUnknown: a server that does not know stream_options is not asked again.
func TestChatUsageUnknown(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var sent []string
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		sent = append(sent, string(b))
		mu.Unlock()
		if strings.Contains(string(b), "stream_options") {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"error":{"message":"Unknown field: stream_options"}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n")
	}), nil)
	for range 2 {
		if resp, body := do(t, request(t, http.MethodPost, r.url+chatPath, `{"stream":true}`)); resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s", resp.Status, body)
		}
	}
	if diff := cmp.Diff([]string{`{"stream_options":{"include_usage":true},"stream":true}`, `{"stream":true}`, `{"stream":true}`}, sent); diff != "" {
		t.Error(diff)
	}
	if usages, _ := r.told(); len(usages) != 2 || !usages[0].Estimated || usages[0].Output != 1 {
		t.Errorf("%+v", usages)
	}
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	return b.String()
}

// TestGzip: what the agent sends zipped passes so; an answer that was zipped without being asked for is undone, piece by piece.
func TestGzip(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	const body = `{"model":"m","stream":true}`
	var sent, encoding string
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		sent, encoding = string(b), r.Header.Get("Content-Encoding")
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		for _, p := range []string{start1, delta1, delta2 + stop1} {
			io.WriteString(z, p)
			z.Flush()
			http.NewResponseController(w).Flush()
			<-next
		}
		z.Close()
	}), nil)
	req := request(t, http.MethodPost, r.url+messagesPath, zipped(body))
	req.Header.Set("Content-Encoding", "gzip")
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := web.Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if sent != zipped(body) || encoding != "gzip" {
		t.Errorf("sent %q as %q", sent, encoding)
	}
	if resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("answer is %s", resp.Header.Get("Content-Encoding"))
	}
	for _, want := range []string{start1, delta1, delta2 + stop1} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
			t.Fatalf("%q %v", got, err)
		}
		next <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q %v", rest, err)
	}
	if usages, _ := r.told(); len(usages) != 1 || usages[0].Output != 42 || usages[0].Estimated {
		t.Errorf("%+v", usages)
	}
}

// TestOtherEncodingPasses: an encoding that the door cannot read passes with its header.
func TestOtherEncodingPasses(t *testing.T) {
	t.Parallel()
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "br")
		io.WriteString(w, "\x1b\x03\x00")
	}), nil)
	resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, `{"model":"m"}`))
	if resp.Header.Get("Content-Encoding") != "br" || body != "\x1b\x03\x00" {
		t.Errorf("%v %q", resp.Header, body)
	}
	if usages, _ := r.told(); len(usages) != 1 || !usages[0].Estimated || usages[0].Model != "m" {
		t.Errorf("%+v", usages)
	}
}

func TestKeyRejected(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, path string
		status     int
		body       string
		want       []string
		wantBody   string // when not body
	}{
		{name: "401", path: messagesPath, status: 401, body: `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`,
			want: []string{"401 The model provider refused the key (401): invalid x-api-key"}},
		{name: "403", path: "/openai/v1/responses", status: 403, body: `{"error":{"message":"no access"}}`,
			want: []string{"403 The model provider refused the key (403): no access"}},
		{name: "the key is not shown", path: chatPath, status: 401, body: `{"error":{"message":"Incorrect API key provided: ` + canary + `"}}`,
			want:     []string{"401 The model provider refused the key (401): Incorrect API key provided: [hidden]"},
			wantBody: `{"error":{"message":"Incorrect API key provided: [hidden]"}}`},
		{name: "error as text", path: chatPath, status: 401, body: `{"error":"unauthorized"}`, want: []string{"401 The model provider refused the key (401): unauthorized"}},
		{name: "no JSON", path: chatPath, status: 401, body: `<html>`, want: []string{"401 The model provider refused the key (401)."}},
		{name: "empty", path: chatPath, status: 403, body: ``, want: []string{"403 The model provider refused the key (403)."}},
		{name: "gemini calls it a bad request", path: "/gemini/v1beta/models/m:generateContent", status: 400,
			body: `{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}`,
			want: []string{"400 The model provider refused the key (400): API key not valid. Please pass a valid API key."}},
		{name: "400", path: "/gemini/v1beta/models/m:generateContent", status: 400, body: `{"error":{"message":"no"}}`},
		{name: "429", path: messagesPath, status: 429, body: `{"type":"error"}`},
		{name: "529", path: messagesPath, status: 529, body: `{"type":"error","error":{"type":"overloaded_error"}}`},
		{name: "500", path: messagesPath, status: 500, body: "oops"},
		{name: "404", path: "/anthropic/v1/messages/count_tokens", status: 404, body: "no such"},
		{name: "a key without a right to count", path: "/anthropic/v1/messages/count_tokens", status: 403, body: "no"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls++
				w.Header().Set("Retry-After", "17")
				w.Header().Set("X-Request-Id", canary)
				w.WriteHeader(tc.status)
				io.WriteString(w, tc.body)
			}), nil)
			resp, body := do(t, request(t, http.MethodPost, r.url+tc.path, "{}"))
			if tc.wantBody == "" {
				tc.wantBody = tc.body
			}
			if resp.StatusCode != tc.status || body != tc.wantBody || resp.Header.Get("Retry-After") != "17" || calls != 1 {
				t.Errorf("%s %q %v, %d calls", resp.Status, body, resp.Header, calls)
			}
			usages, rejected := r.told()
			if diff := cmp.Diff(tc.want, rejected); diff != "" || len(usages) > 0 {
				t.Error(diff, usages)
			}
			if strings.Contains(r.log.String()+fmt.Sprint(resp.Header), canary) {
				t.Error("the key got out")
			}
		})
	}
}

func TestNoKey(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]func(context.Context) (secret.Secret, error){
		"error": func(context.Context) (secret.Secret, error) { return secret.Secret{}, errors.New("vault is sealed") },
		"empty": key(""),
		"none":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("passed") }), func(c *model.Config) {
				rt := c.Routes[model.Anthropic]
				rt.Key = k
				c.Routes[model.Anthropic] = rt
			})
			resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}"))
			if resp.StatusCode != 401 || !strings.Contains(body, "authentication_error") || strings.Contains(body, "vault") {
				t.Errorf("%s %s", resp.Status, body)
			}
			if _, rejected := r.told(); len(rejected) != 1 || !strings.HasPrefix(rejected[0], "0 There is no key") {
				t.Errorf("%q", rejected)
			}
		})
	}
}

// TestUpstreamFails: each failure has words, a code, and a status that makes agents try again.
func TestUpstreamFails(t *testing.T) {
	t.Parallel()
	down, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(untrusted.Close)
	untrusted.Config.ErrorLog = nil
	for _, tc := range []struct{ name, base, want string }{
		{"refused", "http://" + down.Addr().String(), "It refused the connection."},
		{"no TLS", "https://" + plain.Listener.Addr().String(), "does not speak TLS"},
		{"not trusted", untrusted.URL, "certificate is not trusted"},
		{"no such name", "http://does-not-exist.invalid", "could not be resolved"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, http.NotFoundHandler(), func(c *model.Config) { c.Routes = routes(t, tc.base) })
			resp, body := do(t, request(t, http.MethodPost, r.url+messagesPath, "{}"))
			if resp.StatusCode != 502 || resp.Header.Get("Hearth-Code") != "MODEL_UNREACHABLE" || !strings.Contains(body, tc.want) || !strings.Contains(body, `"api_error"`) {
				t.Errorf("%s %s", resp.Status, body)
			}
		})
	}
	t.Run("redirects", func(t *testing.T) {
		t.Parallel()
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("followed") }))
		t.Cleanup(elsewhere.Close)
		for _, status := range []int{301, 302, 303, 304, 307, 308} {
			r := newRig(t, http.RedirectHandler(elsewhere.URL, status), nil)
			resp, body := do(t, request(t, http.MethodPost, r.url+"/openai/v1/responses", "{}"))
			if resp.StatusCode != 502 || resp.Header.Get("Location") != "" || !strings.Contains(body, fmt.Sprintf("redirect (%d)", status)) {
				t.Errorf("%d: %s %s", status, resp.Status, body)
			}
		}
	})
	t.Run("ends before it answers", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), nil)
		resp, body := do(t, request(t, http.MethodPost, r.url+"/gemini/v1beta/models/m:generateContent", "{}"))
		if resp.StatusCode != 502 || !strings.Contains(body, `"status":"UNAVAILABLE"`) {
			t.Errorf("%s %s", resp.Status, body)
		}
	})
}
