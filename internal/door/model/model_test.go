package model_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/secret"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

const (
	canary      = "sk-canary-key-0123456789abcdef"
	placeholder = "hearth-placeholder-key"
)

// rig is a door in front of an upstream, with everything it tells.
type rig struct {
	url string
	log *syncBuffer

	mu       sync.Mutex
	usages   []model.Usage
	rejected []string
	opens    []int
	door     *model.Door
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

func key(text string) func(context.Context) (secret.Secret, error) {
	return func(context.Context) (secret.Secret, error) { return secret.New(text), nil }
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// routes lead all dialects to one upstream.
func routes(t *testing.T, base string) map[model.Dialect]model.Route {
	return map[model.Dialect]model.Route{
		model.Anthropic: {Name: "a", BaseURL: mustURL(t, base), Auth: model.AuthAPIKey, Key: key(canary)},
		model.OpenAI:    {Name: "o", BaseURL: mustURL(t, base+"/v1"), Auth: model.AuthBearer, Key: key(canary)},
		model.Gemini:    {Name: "g", BaseURL: mustURL(t, base), Auth: model.AuthGoogleKey, Key: key(canary)},
	}
}

func newRig(t *testing.T, upstream http.Handler, change func(*model.Config)) *rig {
	t.Helper()
	up := httptest.NewServer(upstream)
	t.Cleanup(up.Close)
	r := &rig{log: &syncBuffer{}}
	transport := model.NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	cfg := model.Config{
		Routes:    routes(t, up.URL),
		Transport: transport,
		Log:       slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnUsage: func(u model.Usage) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.usages = append(r.usages, u)
		},
		OnKeyRejected: func(status int, sentence string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.rejected = append(r.rejected, fmt.Sprintf("%d %s", status, sentence))
		},
		OnOpen: func(n int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.opens = append(r.opens, n)
		},
	}
	if change != nil {
		change(&cfg)
	}
	r.door = model.New(cfg)
	front := httptest.NewServer(r.door)
	t.Cleanup(front.Close)
	r.url = front.URL
	return r
}

func (r *rig) told() (usages []model.Usage, rejected []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]model.Usage(nil), r.usages...), append([]string(nil), r.rejected...)
}

// request as an agent makes it, with placeholders wherever a key can be.
func request(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []string{"X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Proxy-Authorization", "Cookie"} {
		req.Header.Set(h, placeholder)
	}
	req.Header.Set("Authorization", "Bearer "+placeholder)
	req.Header.Set("Content-Type", "application/json")
	return req
}

// answered is an answer that was read whole.
type answered struct {
	Status     string
	StatusCode int
	Header     http.Header
}

func do(t *testing.T, req *http.Request) (answered, string) {
	t.Helper()
	resp, err := web.Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read answer: %v after %q", err, b)
	}
	return answered{resp.Status, resp.StatusCode, resp.Header}, string(b)
}

// TestScriptedModel runs the calls of every dialect against the scripted model,
// which accepts nothing but the real key.
func TestScriptedModel(t *testing.T) {
	t.Parallel()
	const prompt = "Please @@say the quick brown fox jumps over the lazy dog@@"
	for _, tc := range []struct {
		name, path, body string
		stream           bool
		headers          map[string]string
	}{
		{"anthropic whole", "/anthropic/v1/messages", `{"model":"m","max_tokens":99,"messages":[{"role":"user","content":"` + prompt + `"}]}`, false, map[string]string{"Anthropic-Version": "2023-06-01"}},
		{"anthropic stream", "/anthropic/v1/messages?beta=true", `{"model":"m","stream":true,"max_tokens":99,"messages":[{"role":"user","content":"` + prompt + `"}]}`, true, map[string]string{"Anthropic-Version": "2023-06-01"}},
		{"anthropic cached", "/anthropic/v1/messages", `{"model":"m","stream":true,"max_tokens":99,"system":[{"type":"text","text":"` + strings.Repeat("You are. ", 2000) + `","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"` + prompt + `"}]}`, true, map[string]string{"Anthropic-Version": "2023-06-01"}},
		{"responses whole", "/openai/v1/responses", `{"model":"m","input":"` + prompt + `"}`, false, nil},
		{"responses stream", "/openai/v1/responses", `{"model":"m","stream":true,"input":"` + prompt + `"}`, true, nil},
		{"chat whole", "/openai/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"` + prompt + `"}]}`, false, nil},
		{"chat stream", "/openai/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + prompt + `"}]}`, true, nil},
		{"gemini whole", "/gemini/v1beta/models/m:generateContent?key=" + placeholder, `{"contents":[{"role":"user","parts":[{"text":"` + prompt + `"}]}]}`, false, nil},
		{"gemini stream", "/gemini/v1beta/models/m:streamGenerateContent?alt=sse", `{"contents":[{"role":"user","parts":[{"text":"` + prompt + `"}]}]}`, true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			scripted := scriptedmodel.New(scriptedmodel.Options{Keys: []string{canary}})
			r := newRig(t, scripted, nil)
			req := request(t, http.MethodPost, r.url+tc.path, tc.body)
			for k, v := range tc.headers {
				req.Header.Set(k, v)
			}
			resp, body := do(t, req)
			if resp.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(body, `\"`, ""), "fox") {
				t.Fatalf("%s: %s", resp.Status, body)
			}
			if got := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"); got != tc.stream {
				t.Errorf("content type %s", resp.Header.Get("Content-Type"))
			}
			asked := scripted.Requests()
			if len(asked) != 1 {
				t.Fatalf("%d requests upstream", len(asked))
			}
			if asked[0].KeyFingerprint != scriptedmodel.Fingerprint(canary) {
				t.Error("the real key did not arrive")
			}
			usages, _ := r.told()
			if len(usages) != 1 {
				t.Fatalf("usage told %d times", len(usages))
			}
			u := usages[0]
			want := asked[0].Usage
			if u.Estimated || int(u.Input+u.CacheRead+u.CacheWrite) != want.Input || int(u.CacheRead) != want.Cached || int(u.Output) != want.Output || want.Output == 0 {
				t.Errorf("read %+v, told by the model %+v", u, want)
			}
			if u.Model != "m" || u.Status != http.StatusOK {
				t.Errorf("%+v", u)
			}
			if strings.Contains(r.log.String()+body+fmt.Sprint(resp.Header), canary) {
				t.Error("the key got out")
			}
			if !strings.Contains(r.log.String(), `"msg":"model exchange"`) {
				t.Errorf("no audit line: %s", r.log)
			}
		})
	}
}

// TestWhatGoesOut checks method, URL, key and headers at the upstream.
func TestWhatGoesOut(t *testing.T) {
	t.Parallel()
	oauth := func(c *model.Config) {
		rt := c.Routes[model.Anthropic]
		rt.Auth = model.AuthOAuthBearer
		c.Routes[model.Anthropic] = rt
	}
	for _, tc := range []struct {
		name, method, path string
		headers            map[string]string
		change             func(*model.Config)
		want               string // method and URI
		wantHeaders        map[string]string
	}{
		{
			name: "api key", method: "POST", path: "/anthropic/v1/messages?beta=true",
			headers: map[string]string{"Anthropic-Beta": "tools-1", "Anthropic-Version": "v", "X-Stainless-Lang": "js", "X-App": "cli", "User-Agent": "agent/1"},
			want:    "POST /v1/messages?beta=true",
			wantHeaders: map[string]string{"X-Api-Key": canary, "Anthropic-Beta": "tools-1", "Anthropic-Version": "v", "X-Stainless-Lang": "js",
				"X-App": "cli", "User-Agent": "agent/1", "Content-Type": "application/json", "Accept-Encoding": "identity", "Content-Length": "2"},
		},
		{
			name: "oauth adds its beta", method: "POST", path: "/anthropic/v1/messages", change: oauth,
			headers: map[string]string{"Anthropic-Beta": "tools-1", "User-Agent": "x"}, want: "POST /v1/messages",
			wantHeaders: map[string]string{"Authorization": "Bearer " + canary, "Anthropic-Beta": "tools-1,oauth-2025-04-20", "User-Agent": "x",
				"Content-Type": "application/json", "Accept-Encoding": "identity", "Content-Length": "2"},
		},
		{
			name: "oauth beta once", method: "POST", path: "/anthropic/v1/messages", change: oauth,
			headers: map[string]string{"Anthropic-Beta": "oauth-2025-04-20, b", "User-Agent": "x"}, want: "POST /v1/messages",
			wantHeaders: map[string]string{"Authorization": "Bearer " + canary, "Anthropic-Beta": "oauth-2025-04-20, b", "User-Agent": "x",
				"Content-Type": "application/json", "Accept-Encoding": "identity", "Content-Length": "2"},
		},
		{
			name: "bearer below a path", method: "POST", path: "/openai/v1/responses",
			change: func(c *model.Config) {
				rt := c.Routes[model.OpenAI]
				u := *rt.BaseURL
				u.Path = "/api/openai/v1/"
				rt.BaseURL = &u
				c.Routes[model.OpenAI] = rt
			},
			headers: map[string]string{"Openai-Beta": "b", "Openai-Organization": "org-other", "Openai-Project": "p", "Originator": "codex", "Idempotency-Key": "i",
				"Forwarded": "for=1", "X-Forwarded-For": "1.2.3.4", "Accept-Encoding": "gzip, br", "Host": "evil", "User-Agent": "x"},
			want: "POST /api/openai/v1/responses",
			wantHeaders: map[string]string{"Authorization": "Bearer " + canary, "Openai-Beta": "b", "Originator": "codex", "Idempotency-Key": "i", "User-Agent": "x",
				"Content-Type": "application/json", "Accept-Encoding": "identity", "Content-Length": "2"},
		},
		{
			name: "google key, none in the query", method: "POST", path: "/gemini/v1beta/models/gemini-3:streamGenerateContent?alt=sse&key=" + placeholder,
			want:    "POST /v1beta/models/gemini-3:streamGenerateContent?alt=sse",
			headers: map[string]string{"X-Goog-Api-Client": "g", "X-Goog-User-Project": "p"},
			wantHeaders: map[string]string{"X-Goog-Api-Key": canary, "X-Goog-Api-Client": "g", "User-Agent": "Go-http-client/1.1",
				"Content-Type": "application/json", "Accept-Encoding": "identity", "Content-Length": "2"},
		},
		{
			name: "a router's model at a Gemini endpoint", method: "POST", path: "/gemini/v1beta/models/vendor/m-1.5:generateContent",
			want: "POST /v1beta/models/vendor/m-1.5:generateContent",
			wantHeaders: map[string]string{"X-Goog-Api-Key": canary, "User-Agent": "Go-http-client/1.1",
				"Content-Type": "application/json", "Accept-Encoding": "identity", "Content-Length": "2"},
		},
		{
			name: "a slash in an id as the SDKs write it", method: "GET", path: "/openai/v1/models/accounts%2Fx%2fmodels%2Fm:8b",
			want:        "GET /v1/models/accounts%2Fx%2fmodels%2Fm:8b",
			wantHeaders: map[string]string{"Authorization": "Bearer " + canary, "User-Agent": "Go-http-client/1.1", "Content-Type": "application/json", "Accept-Encoding": "identity"},
		},
		{
			name: "no key wanted", method: "GET", path: "/openai/v1/models?client_version=1.2",
			change: func(c *model.Config) {
				c.Routes[model.OpenAI] = model.Route{BaseURL: c.Routes[model.OpenAI].BaseURL, Auth: model.AuthNone}
			},
			want:        "GET /v1/models?client_version=1.2",
			wantHeaders: map[string]string{"User-Agent": "Go-http-client/1.1", "Content-Type": "application/json", "Accept-Encoding": "identity"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var got *http.Request
			r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				got = r
				w.Header().Set("Set-Cookie", "a=b")
				w.Header().Set("Anthropic-Organization-Id", "org")
				w.Header().Set("Anthropic-Ratelimit-Requests-Remaining", "7")
				w.Header().Set("X-Ratelimit-Limit-Requests", "9")
				w.Header().Set("Retry-After", "3")
				w.Header().Set("Request-Id", "r1")
				w.Header().Set("Server", "s")
				io.WriteString(w, "{}")
			}), tc.change)
			req := request(t, tc.method, r.url+tc.path, "{}")
			for k, v := range tc.headers {
				req.Header.Set(k, v)
			}
			resp, _ := do(t, req)
			if got == nil {
				t.Fatalf("did not pass: %s", resp.Status)
			}
			if diff := cmp.Diff(tc.want, got.Method+" "+got.RequestURI); diff != "" {
				t.Error(diff)
			}
			flat := map[string]string{}
			for k, v := range got.Header {
				flat[k] = strings.Join(v, ",")
			}
			if diff := cmp.Diff(tc.wantHeaders, flat); diff != "" {
				t.Error(diff)
			}
			back := map[string]string{}
			for k := range resp.Header {
				back[k] = resp.Header.Get(k)
			}
			want := map[string]string{"Anthropic-Ratelimit-Requests-Remaining": "7", "X-Ratelimit-Limit-Requests": "9", "Retry-After": "3", "Request-Id": "r1",
				"Content-Type": "text/plain; charset=utf-8"}
			if diff := cmp.Diff(want, back, cmpopts.IgnoreMapEntries(func(k, _ string) bool { return k == "Date" || k == "Content-Length" })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestRefusals: nothing of this reaches the upstream, and each dialect's client can print why.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Errorf("passed: %s %s", r.Method, r.RequestURI) }), nil)
	for _, tc := range []struct{ method, path string }{
		{"GET", "/anthropic/v1/messages"},
		{"POST", "/anthropic/v1/messages?beta=false"},
		{"POST", "/anthropic/v1/messages?beta=true&beta=true"},
		{"POST", "/anthropic/v1/messages?x=1"},
		{"POST", "/anthropic/v1/messages?beta=true;x"},
		{"POST", "/anthropic/v1/messages/"},
		{"POST", "/anthropic/v1/messages/batches"},
		{"POST", "/anthropic//v1/messages"},
		{"POST", "/anthropic/v1/%6dessages"},
		{"POST", "/anthropic/v1%2fmessages"},
		{"GET", "/anthropic/v1/models/../files"},
		{"GET", "/anthropic/v1/models/a%2f..%2f..%2ffiles"},
		{"GET", "/anthropic/v1/models/x/./y"},
		{"GET", "/anthropic/v1/models/claude-x/files"},
		{"GET", "/anthropic/v1/models/a%2F.."},
		{"GET", "/anthropic/v1/models/a%2f"},
		{"GET", "/anthropic/v1/models/%2fa"},
		{"GET", "/anthropic/v1/models/a%252fb"},
		{"GET", "/anthropic/v1/models/a%3ab"},
		{"GET", "/openai/v1/models/ft/jobs/events"},
		{"GET", "/openai/v1/models/vendor/model"},
		{"GET", "/openai/v1/models/vendor/model/endpoints"},
		{"GET", "/openai/v1/models/a%2fb%2fc%2fd%2fe"},
		{"GET", "/openai/v1/models/" + strings.Repeat("x", 257)},
		{"GET", "/gemini/v1beta/models/m/permissions"},
		{"GET", "/gemini/v1beta/models/m%2fpermissions"},
		{"GET", "/gemini/v1beta/models/m/operations/o"},
		{"GET", "/gemini/v1beta/models/m:other"},
		{"POST", "/gemini/v1beta/models/m/operations/o:generateContent"},
		{"POST", "/gemini/v1beta/models/m%2fo:generateContent"},
		{"POST", "/gemini/v1beta/models/m:batch:generateContent"},
		{"GET", "/anthropic/v1/files"},
		{"GET", "/anthropic/"},
		{"POST", "/anthropic/api/oauth/token"},
		{"GET", "/openai/v1/files"},
		{"DELETE", "/openai/v1/models/x"},
		{"POST", "/openai/responses"},
		{"GET", "/openai/v1/responses/resp_1"},
		{"POST", "/openai/v1/responses?stream=true"},
		{"POST", "/openai/v1/embeddings"},
		{"POST", "/gemini/v1beta/models/m:streamGenerateContent?alt=json"},
		{"POST", "/gemini/v1beta/models/m:generateContent?$alt=sse"},
		{"POST", "/gemini/v1beta/models/m:predict"},
		{"POST", "/gemini/v1beta/cachedContents"},
		{"POST", "/gemini/upload/v1beta/files"},
		{"OPTIONS", "/openai/v1/models"},
		{"CONNECT", "/openai/v1/models"},
		{"POST", "/v1/messages"},
		{"GET", "/"},
		{"GET", "/other/v1/models"},
		{"PRI", "/anthropic/v1/messages"},
	} {
		t.Run(tc.method+" "+tc.path, func(t *testing.T) {
			resp, body := do(t, request(t, tc.method, r.url+tc.path, ""))
			if resp.StatusCode != http.StatusForbidden || resp.Header.Get("Hearth-Code") != "MODEL_PATH_REFUSED" {
				t.Errorf("%s %s", resp.Status, resp.Header.Get("Hearth-Code"))
			}
			var v struct {
				Error struct{ Message string }
			}
			if err := json.Unmarshal([]byte(body), &v); err != nil || !strings.Contains(v.Error.Message, "MODEL_PATH_REFUSED: The model door does not pass") {
				t.Errorf("%v %s", err, body)
			}
		})
	}
	if usages, rejected := r.told(); len(usages)+len(rejected) > 0 {
		t.Errorf("told %v %v", usages, rejected)
	}
}

func TestLocalAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Errorf("passed: %s", r.RequestURI) }),
		func(c *model.Config) { delete(c.Routes, model.Gemini) })
	for _, path := range []string{"/anthropic", "/anthropic/"} {
		if resp, _ := do(t, request(t, http.MethodHead, r.url+path, "")); resp.StatusCode != http.StatusOK {
			t.Errorf("HEAD %s: %s", path, resp.Status)
		}
	}
	for _, upgrade := range []string{"websocket", "h2c"} {
		req := request(t, http.MethodGet, r.url+"/openai/v1/responses", "")
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", upgrade)
		resp, body := do(t, req)
		if resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Upgrade") != "HTTP/1.1" {
			t.Errorf("%s: %s %v %s", upgrade, resp.Status, resp.Header, body)
		}
	}
	resp, body := do(t, request(t, http.MethodPost, r.url+"/gemini/v1beta/models/m:generateContent", "{}"))
	if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("Hearth-Code") != "MODEL_KEY_MISSING" || !strings.Contains(body, "UNAUTHENTICATED") {
		t.Errorf("no route: %s %s", resp.Status, body)
	}
}
