package scriptedmodel_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

const key = "sk-accepted-key-0001"

// said is one message of a conversation, before a dialect shapes it.
type said struct {
	role string // user, assistant, tool
	text string
	call *toolCall // assistant
	id   string    // tool: the call answered
}

type toolCall struct {
	ID   string
	Name string
	Args map[string]any
}

// answer is what a stream or a whole response said, read strictly.
type answer struct {
	text   string
	call   *toolCall
	stop   string // end, tool, limit
	in     int    // whole prompt
	cached int
	out    int
	deltas int
}

type toolDef struct {
	Name   string
	Schema map[string]any
}

var agentTools = []toolDef{
	{"Bash", map[string]any{
		"type": "object", "required": []string{"command"},
		"properties": map[string]any{"command": map[string]any{"type": "string"}, "timeout": map[string]any{"type": "number"}},
	}},
	{"Write", map[string]any{
		"type": "object", "required": []string{"file_path", "content"},
		"properties": map[string]any{"file_path": map[string]any{"type": "string"}, "content": map[string]any{"type": "string"}},
	}},
}

func start(t *testing.T, o scriptedmodel.Options) (*scriptedmodel.Server, string) {
	t.Helper()
	if o.Keys == nil {
		o.Keys = []string{key}
	}
	m := scriptedmodel.New(o)
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	return m, srv.URL
}

// dialect shapes requests and reads answers of one API.
type dialect struct {
	name  scriptedmodel.Dialect
	auth  string // header
	path  func(stream bool) string
	body  func(system string, conv []said, tools []toolDef, stream bool) map[string]any
	whole func([]byte) (answer, error)
	sse   func(io.Reader) (answer, error)
}

var dialects = []dialect{
	{scriptedmodel.Anthropic, "X-Api-Key", fixed("/v1/messages"), anthropicBody, anthropicWhole, anthropicSSE},
	{scriptedmodel.Responses, "Authorization", fixed("/v1/responses"), responsesBody, responsesWhole, responsesSSE},
	{scriptedmodel.Chat, "Authorization", fixed("/v1/chat/completions"), chatBody, chatWhole, chatSSE},
	{scriptedmodel.Gemini, "X-Goog-Api-Key", func(stream bool) string {
		if stream {
			return "/v1beta/models/scripted:streamGenerateContent?alt=sse"
		}
		return "/v1beta/models/scripted:generateContent"
	}, geminiBody, geminiWhole, geminiSSE},
}

func fixed(p string) func(bool) string { return func(bool) string { return p } }

func (d dialect) request(t *testing.T, url, key string, body []byte, stream bool) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+d.path(stream), bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if d.name == scriptedmodel.Anthropic {
		r.Header.Set("Anthropic-Version", "2023-06-01")
	}
	if key != "" {
		if d.auth == "Authorization" {
			key = "Bearer " + key
		}
		r.Header.Set(d.auth, key)
	}
	return r
}

func (d dialect) post(t *testing.T, url, key string, body any, stream bool) *http.Response {
	t.Helper()
	b, ok := body.([]byte)
	if !ok {
		var err error
		if b, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := web.Do(d.request(t, url, key, b, stream))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// ask sends a conversation and reads the answer, which must be a good one.
func (d dialect) ask(t *testing.T, url, system string, conv []said, tools []toolDef, stream bool) answer {
	t.Helper()
	resp := d.post(t, url, key, d.body(system, conv, tools, stream), stream)
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	var a answer
	var err error
	if stream {
		if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
			t.Fatalf("content type %q", ct)
		}
		a, err = d.sse(resp.Body)
	} else {
		var b []byte
		if b, err = io.ReadAll(resp.Body); err == nil {
			a, err = d.whole(b)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", d.name, err)
	}
	return a
}

type event struct {
	name string
	data []byte
}

// events reads server-sent events by the HTML standard, section 9.2.6, as far as
// these services use it: no comments, one data line each.
func events(r io.Reader) ([]event, error) {
	br := bufio.NewReader(r)
	var out []event
	var cur event
	for {
		line, err := br.ReadString('\n')
		if err == io.EOF && line == "" {
			if cur.data != nil || cur.name != "" {
				return out, fmt.Errorf("stream ends inside an event")
			}
			return out, nil
		}
		if err != nil {
			return out, err
		}
		line = strings.TrimRight(line, "\r\n")
		switch {
		case line == "":
			if cur.data == nil {
				return out, fmt.Errorf("event %q without data", cur.name)
			}
			out = append(out, cur)
			cur = event{}
		case strings.HasPrefix(line, "event: "):
			cur.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: ") && cur.data == nil:
			cur.data = []byte(line[len("data: "):])
		default:
			return out, fmt.Errorf("unexpected line %q", line)
		}
	}
}

// strict decodes and refuses nothing missing: the fields asked for must be there.
func strict(b []byte, fields ...string) (map[string]any, error) {
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("%w in %s", err, b)
	}
	for _, f := range fields {
		if _, ok := m[f]; !ok {
			return nil, fmt.Errorf("no %q in %s", f, b)
		}
	}
	return m, nil
}

func num(m any, path ...string) int {
	for _, p := range path {
		o, ok := m.(map[string]any)
		if !ok {
			return -1
		}
		m = o[p]
	}
	f, ok := m.(float64)
	if !ok {
		return -1
	}
	return int(f)
}

func str(m any, path ...string) string {
	for _, p := range path {
		o, ok := m.(map[string]any)
		if !ok {
			return ""
		}
		m = o[p]
	}
	s, _ := m.(string)
	return s
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func parseArgs(s string) (map[string]any, error) {
	var m map[string]any
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		return nil, fmt.Errorf("arguments %q: %w", s, err)
	}
	return m, nil
}

var stops = map[string]string{
	"end_turn": "end", "tool_use": "tool", "max_tokens": "limit",
	"stop": "end", "tool_calls": "tool", "length": "limit",
	"STOP": "end", "MAX_TOKENS": "limit", "completed": "end", "incomplete": "limit",
}
