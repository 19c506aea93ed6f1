package scriptedmodel_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// refused reads an error body in a dialect's shape: its type or status, and words.
func refused(t *testing.T, d scriptedmodel.Dialect, b []byte) (kind, message string) {
	t.Helper()
	m, err := strict(b, "error")
	if err != nil {
		t.Fatal(err)
	}
	e := m["error"]
	switch d {
	case scriptedmodel.Anthropic:
		if str(m, "type") != "error" || str(m, "request_id") == "" {
			t.Errorf("shape of %s", b)
		}
		return str(e, "type"), str(e, "message")
	case scriptedmodel.Gemini:
		if num(e, "code") < 400 {
			t.Errorf("shape of %s", b)
		}
		return str(e, "status"), str(e, "message")
	default:
		for _, f := range []string{"message", "type", "param", "code"} {
			if _, ok := e.(map[string]any)[f]; !ok {
				t.Errorf("no %q in %s", f, b)
			}
		}
		if c := str(e, "code"); c != "" {
			return c, str(e, "message")
		}
		return str(e, "type"), str(e, "message")
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	m, url := start(t, scriptedmodel.Options{})
	kinds := map[scriptedmodel.Dialect][2]string{
		scriptedmodel.Anthropic: {"authentication_error", "authentication_error"},
		scriptedmodel.Responses: {"invalid_api_key", "invalid_request_error"},
		scriptedmodel.Chat:      {"invalid_api_key", "invalid_request_error"},
		scriptedmodel.Gemini:    {"UNAUTHENTICATED", "UNAUTHENTICATED"},
	}
	for _, d := range dialects {
		body := d.body("", []said{{role: "user", text: "@@say x@@"}}, agentTools, true)
		for i, k := range []string{"sk-wrong-key-000000002", ""} {
			resp := d.post(t, url, k, body, true)
			b, _ := io.ReadAll(resp.Body)
			kind, msg := refused(t, d.name, b)
			if resp.StatusCode != 401 || kind != kinds[d.name][i] || msg == "" {
				t.Errorf("%s key %q: status %d, %s", d.name, k, resp.StatusCode, b)
			}
			if k != "" && strings.Contains(string(b), k) {
				t.Errorf("%s: the answer tells the key: %s", d.name, b)
			}
		}
	}
	log := m.Requests()
	if len(log) != 8 || log[0].KeyFingerprint != scriptedmodel.Fingerprint("sk-wrong-key-000000002") || log[1].KeyFingerprint != "" || log[0].Status != 401 {
		t.Errorf("log %+v", log)
	}
	if s := jsonOf(log); strings.Contains(s, "sk-wrong") {
		t.Errorf("the log holds a key: %s", s)
	}

	// Another way to send it: Anthropic's bearer, Google's query.
	r := dialects[0].request(t, url, "", []byte(jsonOf(dialects[0].body("", []said{{role: "user", text: "x"}}, nil, false))), false)
	r.Header.Set("Authorization", "Bearer "+key)
	if resp, err := web.Do(r); err != nil || resp.StatusCode != 200 {
		t.Errorf("bearer: %v %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}
	resp, err := web.Get(url + "/v1beta/models?key=" + key)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("query key: %v %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}

	// Rotation works at once, and the old key is refused.
	m.SetKeys("sk-new")
	for k, want := range map[string]int{key: 401, "sk-new": 200} {
		if resp := dialects[2].post(t, url, k, dialects[2].body("", []said{{role: "user", text: "x"}}, nil, false), false); resp.StatusCode != want {
			t.Errorf("after rotation key %q: status %d, want %d", k, resp.StatusCode, want)
		}
	}
}

func TestGeminiRealKeyErrors(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{GeminiKeyError400: true})
	d := dialects[3]
	body := d.body("", []said{{role: "user", text: "x"}}, nil, false)
	for k, want := range map[string]int{"wrong": 400, "": 403} {
		resp := d.post(t, url, k, body, false)
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != want || (k != "" && !strings.Contains(string(b), `"reason":"API_KEY_INVALID"`)) {
			t.Errorf("key %q: status %d, %s", k, resp.StatusCode, b)
		}
	}
}

func TestStatusDirective(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	want := map[scriptedmodel.Dialect]map[int]string{
		scriptedmodel.Anthropic: {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"},
		scriptedmodel.Responses: {400: "invalid_request_error", 401: "invalid_api_key", 403: "insufficient_permissions", 429: "rate_limit_exceeded", 500: "server_error", 529: "server_error"},
		scriptedmodel.Chat:      {400: "invalid_request_error", 401: "invalid_api_key", 403: "insufficient_permissions", 429: "rate_limit_exceeded", 500: "server_error", 529: "server_error"},
		scriptedmodel.Gemini:    {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 529: "UNAVAILABLE"},
	}
	each(t, func(t *testing.T, d dialect, stream bool) {
		for status, kind := range want[d.name] {
			body := d.body("", []said{{role: "user", text: fmt.Sprintf("@@status %d 0 7@@", status)}}, agentTools, stream)
			resp := d.post(t, url, key, body, stream)
			b, _ := io.ReadAll(resp.Body)
			got, msg := refused(t, d.name, b)
			if resp.StatusCode != status || got != kind || msg == "" || resp.Header.Get("Retry-After") != "7" {
				t.Errorf("%d: status %d, retry after %q, %s", status, resp.StatusCode, resp.Header.Get("Retry-After"), b)
			}
		}
		// For the first two requests only; then the script goes on.
		body := d.body("", []said{{role: "user", text: fmt.Sprintf("@@status 429 2@@ @@say through@@ %s %t", d.name, stream)}}, agentTools, stream)
		var got []int
		for range 3 {
			got = append(got, d.post(t, url, key, body, stream).StatusCode)
		}
		if diff := cmp.Diff([]int{429, 429, 200}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{MaxBodyBytes: 4000, Models: []string{"scripted"}})
	hello := []said{{role: "user", text: "hello"}}
	dangling := []said{{role: "user", text: "a"}, {role: "assistant", text: "b", call: &toolCall{"call_9", "Bash", map[string]any{}}}, {role: "user", text: "c"}}
	without := func(d dialect, field string) []byte {
		b := d.body("", hello, nil, false)
		delete(b, field)
		return []byte(jsonOf(b))
	}
	for _, d := range dialects {
		list := map[scriptedmodel.Dialect]string{scriptedmodel.Responses: "input", scriptedmodel.Gemini: "contents"}[d.name]
		if list == "" {
			list = "messages"
		}
		other := d.body("", hello, nil, false)
		other["model"] = "gpt-unknown"
		tests := []struct {
			name   string
			body   []byte
			status int
			words  string
		}{
			{"not JSON", []byte(`{"model": `), 400, "JSON"},
			{"not an object", []byte(`[1]`), 400, "JSON"},
			{"no messages", without(d, list), 400, list},
			{"empty", nil, 400, ""},
			{"too large", []byte(jsonOf(d.body(strings.Repeat("x", 5000), hello, nil, false))), 413, "size"},
			{"unknown model", []byte(jsonOf(other)), 404, "gpt-unknown"},
			{"call without its result", []byte(jsonOf(d.body("", dangling, nil, false))), 400, "call_9"},
		}
		for _, tt := range tests {
			if d.name == scriptedmodel.Gemini && (tt.name == "unknown model" || tt.name == "call without its result") {
				continue // the model is in the path, see below; calls have no ids to miss
			}
			t.Run(fmt.Sprintf("%s/%s", d.name, tt.name), func(t *testing.T) {
				t.Parallel()
				resp := d.post(t, url, key, tt.body, false)
				b, _ := io.ReadAll(resp.Body)
				_, msg := refused(t, d.name, b)
				if resp.StatusCode != tt.status || !strings.Contains(msg, tt.words) {
					t.Errorf("status %d, %s", resp.StatusCode, b)
				}
			})
		}
	}
}

func TestGzipBodyIsBounded(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{MaxBodyBytes: 4000})
	d := dialects[2]
	send := func(system string) int {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(jsonOf(d.body(system, []said{{role: "user", text: "x"}}, nil, false))))
		_ = z.Close()
		r := d.request(t, url, key, b.Bytes(), false)
		r.Header.Set("Content-Encoding", "gzip")
		resp, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := []int{send("short"), send(strings.Repeat("x", 100_000))}; !cmp.Equal(got, []int{200, 413}) {
		t.Errorf("statuses %v", got)
	}
}

func TestSideCalls(t *testing.T) {
	t.Parallel()
	m, url := start(t, scriptedmodel.Options{})
	call := func(method, path string, h map[string]string, body string) (int, map[string]any) {
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range h {
			r.Header.Set(k, v)
		}
		resp, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, _ := io.ReadAll(resp.Body)
		var o map[string]any
		_ = json.Unmarshal(b, &o)
		return resp.StatusCode, o
	}
	anthropic := map[string]string{"X-Api-Key": key, "Anthropic-Version": "2023-06-01"}
	openAI := map[string]string{"Authorization": "Bearer " + key}
	google := map[string]string{"X-Goog-Api-Key": key}
	tests := []struct {
		name, method, path string
		header             map[string]string
		body               string
		status             int
		has                string // dotted path that must be there
	}{
		{"root", "HEAD", "/", nil, "", 200, ""},
		{"upgrade", "GET", "/v1/responses", map[string]string{"Connection": "Upgrade", "Upgrade": "websocket"}, "", 426, "error.message"},
		{"count, Anthropic", "POST", "/v1/messages/count_tokens", anthropic, `{"model":"m","messages":[{"role":"user","content":"hello there"}]}`, 200, "input_tokens"},
		{"count, Gemini", "POST", "/v1beta/models/m:countTokens", google, `{"contents":[{"parts":[{"text":"hello there"}]}]}`, 200, "totalTokens"},
		{"count, Gemini, wrapped", "POST", "/v1beta/models/m:countTokens", google, `{"generateContentRequest":{"contents":[{"parts":[{"text":"hello there"}]}]}}`, 200, "totalTokens"},
		{"models, OpenAI", "GET", "/v1/models", openAI, "", 200, "object"},
		{"models, Anthropic", "GET", "/v1/models", anthropic, "", 200, "first_id"},
		{"models, Gemini", "GET", "/v1beta/models", google, "", 200, "models"},
		{"a model", "GET", "/v1/models/scripted", openAI, "", 200, "owned_by"},
		{"models without a key", "GET", "/v1/models", nil, "", 401, "error.message"},
		{"unknown path", "POST", "/v1/embeddings", openAI, "{}", 404, "error.code"},
		{"unknown Gemini method", "POST", "/v1beta/models/m:embedContent", google, "{}", 404, "error.status"},
		{"wrong method", "GET", "/v1/chat/completions", openAI, "", 405, "error.message"},
		{"no version", "POST", "/v1/messages", map[string]string{"X-Api-Key": key}, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, 400, "error.message"},
	}
	for _, tt := range tests {
		status, o := call(tt.method, tt.path, tt.header, tt.body)
		if status != tt.status {
			t.Errorf("%s: status %d: %v", tt.name, status, o)
		}
		if tt.has == "" {
			continue
		}
		var at any = o
		for p := range strings.SplitSeq(tt.has, ".") {
			e, _ := at.(map[string]any)
			at = e[p]
		}
		if at == nil {
			t.Errorf("%s: no %s in %v", tt.name, tt.has, o)
		}
	}

	schema := `{"type":"object","properties":{"reasoning":{"type":"string"},"next_speaker":{"type":"string","enum":["user","model"]},"score":{"type":"integer","minimum":3},"list":{"type":"array","minItems":1,"items":{"type":"boolean"}}}}`
	want := map[string]any{"reasoning": "scripted", "next_speaker": "user", "score": 3.0, "list": []any{false}}
	shaped := map[string]string{
		"Gemini":    `{"contents":[{"role":"user","parts":[{"text":"@@run make@@"}]}],"generationConfig":{"responseMimeType":"application/json","responseJsonSchema":` + schema + `}}`,
		"chat":      `{"model":"m","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":` + schema + `}}}`,
		"responses": `{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"n","schema":` + schema + `}}}`,
		"Anthropic": `{"model":"m","max_tokens":500,"messages":[{"role":"user","content":"x"}],"output_config":{"format":{"type":"json_schema","schema":` + schema + `}}}`,
	}
	paths := map[string]string{"Gemini": "/v1beta/models/m:generateContent", "chat": "/v1/chat/completions", "responses": "/v1/responses", "Anthropic": "/v1/messages"}
	readers := map[string]func([]byte) (answer, error){"Gemini": geminiWhole, "chat": chatWhole, "responses": responsesWhole, "Anthropic": anthropicWhole}
	headers := map[string]map[string]string{"Gemini": google, "chat": openAI, "responses": openAI, "Anthropic": anthropic}
	for name, body := range shaped {
		_, o := call("POST", paths[name], headers[name], body)
		a, err := readers[name]([]byte(jsonOf(o)))
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(a.text), &got); err != nil {
			t.Errorf("%s: %q is no JSON", name, a.text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}

	// A title is asked for without tools; the script is not taken up.
	d := dialects[2]
	a := d.ask(t, url, "You are a title generator.", []said{{role: "user", text: "Please mend the sum: @@run make test@@"}}, nil, true)
	if a.text != "Please mend the sum:" || a.call != nil {
		t.Errorf("title %q", a.text)
	}
	if n := len(m.Requests()); n == 0 || m.Requests()[n-1].Reply != "text" {
		t.Errorf("log %+v", m.Requests())
	}
}

func TestToolsOfRealAgents(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	s := map[string]any{"type": "string"}
	props := func(required []string, p map[string]any) map[string]any {
		return map[string]any{"type": "object", "properties": p, "required": required}
	}
	tests := []struct {
		name, prompt string
		tools        []toolDef
		want         string
	}{
		{"Codex run", "@@run make test@@", []toolDef{{"exec_command", props([]string{"cmd"}, map[string]any{"cmd": s, "workdir": s, "yield_time_ms": map[string]any{"type": "number"}})}, {"write_stdin", props(nil, nil)}}, `exec_command {"cmd":"make test"}`},
		{"Codex write", "@@write a/b c.txt it's@@", []toolDef{{"exec_command", props([]string{"cmd"}, map[string]any{"cmd": s})}}, `exec_command {"cmd":"mkdir -p a \u0026\u0026 printf '%s\\n' 'c.txt it'\\''s' \u003e a/b"}`},
		{"argument vector", "@@run ls@@", []toolDef{{"shell", props([]string{"command"}, map[string]any{"command": map[string]any{"type": "array"}})}}, `shell {"command":["sh","-c","ls"]}`},
		{"opencode", "@@run ls@@", []toolDef{{"bash", props([]string{"command", "description"}, map[string]any{"command": s, "description": s})}}, "bash {\"command\":\"ls\",\"description\":\"Look at the files\"}"},
		{"qwen", "@@run make@@", []toolDef{{"run_shell_command", props([]string{"command", "is_background"}, map[string]any{"command": s, "is_background": map[string]any{"type": "boolean"}})}}, `run_shell_command {"command":"make","is_background":false}`},
		{"Copilot", "@@write x.txt y@@", []toolDef{{"create", props([]string{"path", "file_text"}, map[string]any{"path": s, "file_text": s})}}, `create {"file_text":"y\n","path":"x.txt"}`},
		{"edit tool of many commands", "@@write x.txt y@@", []toolDef{{"str_replace_editor", props([]string{"command", "path"}, map[string]any{"command": map[string]any{"enum": []string{"view", "create", "undo"}}, "path": s, "file_text": s})}}, `str_replace_editor {"command":"create","file_text":"y\n","path":"x.txt"}`},
		{"tool of an MCP server", `@@tool lookup {"q":[1]}@@`, []toolDef{{"mcp__docs__lookup", props(nil, nil)}}, `mcp__docs__lookup {"q":[1]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, d dialect, stream bool) {
				a := d.ask(t, url, "", []said{{role: "user", text: tt.prompt}}, tt.tools, stream)
				if a.call == nil {
					t.Fatalf("no call: %q", a.text)
				}
				if diff := cmp.Diff(tt.want, a.call.Name+" "+jsonOf(a.call.Args)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestUnreadFileIsWrittenByShell(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	each(t, func(t *testing.T, d dialect, stream bool) {
		_, calls := work(t, d, url, []said{{role: "user", text: "@@write a.txt b@@ @@run ls@@"}}, stream, func(c toolCall) string {
			if c.Name == "Write" {
				return "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>"
			}
			return "ok"
		})
		var got []string
		for _, c := range calls {
			got = append(got, c.Name)
		}
		if diff := cmp.Diff([]string{"Write", "Bash", "Bash"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFreeFormTool(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	body := `{"model":"m","stream":true,"input":[{"role":"user","content":"@@run ls -l@@"}],"tools":[{"type":"custom","name":"shell"}]}`
	resp := dialects[1].post(t, url, key, []byte(body), true)
	evs, err := events(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	final := evs[len(evs)-1]
	var o struct {
		Response struct{ Output []map[string]any }
	}
	if err := json.Unmarshal(final.data, &o); err != nil {
		t.Fatal(err)
	}
	item := o.Response.Output[len(o.Response.Output)-1]
	if item["type"] != "custom_tool_call" || item["input"] != "ls -l" {
		t.Errorf("item %v", item)
	}
}

func TestGeminiArrayStream(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	r := dialects[3].request(t, url, key, []byte(jsonOf(geminiBody("", []said{{role: "user", text: "@@run ls@@"}}, agentTools, true))), true)
	r.URL.RawQuery = ""
	resp, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var frames []json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&frames); err != nil {
		t.Fatal(err)
	}
	if a, err := geminiFrames(frames); err != nil || a.call == nil {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestRequestLog(t *testing.T) {
	t.Parallel()
	m, url := start(t, scriptedmodel.Options{LogSize: 3})
	d := dialects[0]
	for range 5 {
		d.ask(t, url, "", []said{{role: "user", text: "@@run ls@@"}}, agentTools, true)
	}
	log := m.Requests()
	if len(log) != 3 {
		t.Fatalf("%d requests kept", len(log))
	}
	r := log[2]
	got := []any{r.Method, r.Path, r.Dialect, r.KeyFingerprint, r.Model, r.Stream, r.Tools, r.Messages, r.Reply, r.Status, r.Headers.Get("X-Api-Key")}
	want := []any{"POST", "/v1/messages", scriptedmodel.Anthropic, scriptedmodel.Fingerprint(key), "scripted", true, []string{"Bash", "Write"}, 1, "tool Bash", 200, "[hidden]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	admin := httptest.NewServer(m.RequestsHandler())
	defer admin.Close()
	resp, err := web.Get(admin.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var served []scriptedmodel.Request
	if err := json.NewDecoder(resp.Body).Decode(&served); err != nil || len(served) != 3 {
		t.Errorf("%d served, %v", len(served), err)
	}
	m.ResetRequests()
	if n := len(m.Requests()); n != 0 {
		t.Errorf("%d requests after a reset", n)
	}
}

func FuzzServer(f *testing.F) {
	for _, d := range dialects {
		f.Add(d.path(true), []byte(jsonOf(d.body("s", []said{{role: "user", text: "@@run ls@@ @@say x@@"}}, agentTools, true))))
	}
	f.Add("/v1/responses", []byte(`{"model":"m","input":[{"type":"function_call","call_id":"a"},{"type":"function_call_output","call_id":"a"}]}`))
	f.Add("/v1/chat/completions", []byte(`{"model":"m","messages":[{"role":"user","content":[{"text":"a"},{"content":[[[]]]}]}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":["array"],"minItems":9e9,"items":{"anyOf":[{}]}}}}}`))
	m := scriptedmodel.New(scriptedmodel.Options{Keys: []string{key}})
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		if !strings.HasPrefix(path, "/") || bytes.Contains(body, []byte("slow")) || bytes.Contains(body, []byte("cut")) {
			return
		}
		r, err := http.NewRequest(http.MethodPost, "http://model.test/", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(path, "?")
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Anthropic-Version", "2023-06-01")
		w := httptest.NewRecorder()
		m.ServeHTTP(w, r)
		if w.Code == 0 || w.Code >= 500 && !bytes.Contains(body, []byte("tatus")) && !bytes.Contains(body, []byte(`\u`)) {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	})
}
