package rest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

type reply struct {
	status int
	header http.Header
	body   string
}

func ask(t *testing.T, w *resttest.World, method, path, body string, header ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+resttest.Token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

// at reads a path of dots out of a JSON body.
func (r reply) at(t *testing.T, path string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	for _, k := range strings.Split(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := string(w.Create("one"))
	idle, err := w.Sessions.Create(t.Context(), w.Owner(), session.CreateInput{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	empty := string(idle.Aggregate.Session.ID)
	const root = "/v1/agent-sessions"
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code                     string
		has                      string // within the message
	}{
		{"no token", "GET", root, "", []string{"Authorization", ""}, 401, "UNAUTHENTICATED", ""},
		{"wrong token", "GET", root, "", []string{"Authorization", "Bearer nope"}, 401, "UNAUTHENTICATED", ""},
		{"basic instead of bearer", "GET", root, "", []string{"Authorization", "Basic " + resttest.Token}, 401, "UNAUTHENTICATED", ""},
		{"unknown path", "GET", "/v1/agent-session", "", nil, 404, "ROUTE_NOT_FOUND", ""},
		{"unknown path at the root", "POST", "/", "", nil, 404, "ROUTE_NOT_FOUND", ""},
		{"doubled slash", "GET", root + "//export", "", nil, 404, "ROUTE_NOT_FOUND", ""},
		{"doubled slash at the root", "GET", "//v1/agent-sessions", "", nil, 404, "ROUTE_NOT_FOUND", ""},
		{"dots in the path", "DELETE", root + "/x/../" + id, "", nil, 404, "ROUTE_NOT_FOUND", ""},
		{"slash behind the path", "GET", root + "/", "", nil, 404, "ROUTE_NOT_FOUND", ""},
		{"wrong method", "PUT", root + "/" + id, "", nil, 404, "ROUTE_NOT_FOUND", "GET, DELETE"},
		{"text that is no UTF-8", "POST", root, "{\"prompt\":\"Stra\xdfe\"}", nil, 422, "INVALID_INPUT", "byte 16 is 0xDF"},
		{"half a character", "POST", root, `{"prompt":"\ud83d"}`, nil, 422, "INVALID_INPUT", "byte 12"},
		{"field twice", "POST", root, `{"prompt":"a","prompt":"b"}`, nil, 422, "INVALID_INPUT", `"prompt" is given twice`},
		{"two bodies", "POST", root, `{"prompt":"a"}{"prompt":"b"}`, nil, 422, "INVALID_INPUT", "byte 15"},
		{"query that is no UTF-8", "GET", root + "?repo=%ff", "", nil, 422, "INVALID_INPUT", "repo"},
		{"query that is torn", "GET", root + "?limit=%z", "", nil, 422, "INVALID_INPUT", "query"},
		{"query twice", "GET", root + "?limit=1&limit=2", "", nil, 422, "INVALID_INPUT", "limit"},
		{"bundle of nothing", "GET", root + "/" + empty + "/bundle", "", nil, 404, "NOTHING_PACKED", ""},
		{"bundle before the first pack", "GET", root + "/" + id + "/bundle", "", nil, 404, "NOTHING_PACKED", ""},
		{"bundle of an unknown session", "GET", root + "/ses_none/bundle", "", nil, 404, "SESSION_NOT_FOUND", ""},
		{"foreign bundle", "GET", root + "/" + id + "/bundle", "", []string{"Authorization", "Bearer " + resttest.Foreign}, 404, "SESSION_NOT_FOUND", ""},
		{"unknown field", "POST", root, `{"promptt":"x"}`, nil, 422, "INVALID_INPUT", "promptt"},
		{"field in other case", "POST", root, `{"Prompt":"x"}`, nil, 422, "INVALID_INPUT", "Prompt"},
		{"wrong type", "POST", root, `{"prompt":7}`, nil, 422, "INVALID_INPUT", "prompt"},
		{"fraction", "POST", root, `{"totalLimitSeconds":1.5}`, nil, 422, "INVALID_INPUT", "totalLimitSeconds"},
		{"beyond the maximum", "POST", root, `{"totalLimitSeconds":86401}`, nil, 422, "INVALID_INPUT", "totalLimitSeconds"},
		{"huge number", "POST", root, `{"totalLimitSeconds":1e300}`, nil, 422, "INVALID_INPUT", "totalLimitSeconds"},
		{"array body", "POST", root, `[]`, nil, 422, "INVALID_INPUT", "object"},
		{"null body", "POST", root, `null`, nil, 422, "INVALID_INPUT", "object"},
		{"not JSON", "POST", root, `{"prompt":`, nil, 422, "INVALID_INPUT", "JSON"},
		{"two values", "POST", root, `{} {}`, nil, 422, "INVALID_INPUT", "JSON"},
		{"form body", "POST", root, `{"prompt":"x"}`, []string{"Content-Type", "text/plain"}, 422, "INVALID_INPUT", "application/json"},
		{"body too large", "POST", root, `{"prompt":"` + strings.Repeat("x", 1<<20) + `"}`, nil, 422, "INVALID_INPUT", "1048576"},
		{"prompt too large", "POST", root, `{"prompt":"` + strings.Repeat("x", 100<<10+1) + `"}`, nil, 422, "PROMPT_TOO_LARGE", "102400"},
		{"blank prompt", "POST", root, `{"prompt":" \n"}`, nil, 422, "INVALID_INPUT", "empty"},
		{"NUL in prompt", "POST", root, `{"prompt":"a\u0000b"}`, nil, 422, "INVALID_INPUT", "NUL"},
		{"unknown agent", "POST", root, `{"agent":"nobody"}`, nil, 422, "AGENT_UNKNOWN", "nobody"},
		{"agent not installed", "POST", root, `{"agent":"absent"}`, nil, 503, "AGENT_NOT_INSTALLED", ""},
		{"repository gone", "POST", root, `{"repo":"https://git.example.org/gone.git"}`, nil, 422, "REPOSITORY_UNREACHABLE", ""},
		{"branch without repository", "POST", root, `{"branch":"x"}`, nil, 422, "INVALID_INPUT", "repository"},
		{"torn query on a POST", "POST", root + "?a%zz=1", `{}`, nil, 422, "INVALID_INPUT", "query"},
		{"watch with a query twice", "GET", "/v1/watch?after=a.1&after=a.1", "", nil, 422, "INVALID_INPUT", "after: is given more than once"},
		{"watch with a torn query", "GET", "/v1/watch?a%zz=1", "", nil, 422, "INVALID_INPUT", "query"},
		{"query on a POST", "POST", root + "?prompt=x", `{}`, nil, 422, "INVALID_INPUT", "prompt"},
		{"key too long", "POST", root, `{}`, []string{"Idempotency-Key", strings.Repeat("k", 256)}, 422, "INVALID_INPUT", "key"},
		{"key with a space", "POST", root, `{}`, []string{"Idempotency-Key", "a b"}, 422, "INVALID_INPUT", "key"},
		{"unknown query", "GET", root + "?limt=3", "", nil, 422, "INVALID_INPUT", "limt"},
		{"limit not a number", "GET", root + "?limit=many", "", nil, 422, "INVALID_INPUT", "limit"},
		{"limit too high", "GET", root + "?limit=201", "", nil, 422, "INVALID_INPUT", "limit"},
		{"unknown phase", "GET", root + "?phase=idle,tired", "", nil, 422, "INVALID_INPUT", "tired"},
		{"unknown session", "GET", root + "/ses_none", "", nil, 404, "SESSION_NOT_FOUND", ""},
		{"foreign session", "GET", root + "/" + id, "", []string{"Authorization", "Bearer " + resttest.Foreign}, 404, "SESSION_NOT_FOUND", ""},
		{"foreign cancel", "POST", root + "/" + id + "/cancel", "", []string{"Authorization", "Bearer " + resttest.Foreign}, 404, "SESSION_NOT_FOUND", ""},
		{"prompt missing", "POST", root + "/" + id + "/turns", `{}`, nil, 422, "INVALID_INPUT", "prompt"},
		{"id in the body", "POST", root + "/" + id + "/turns", `{"id":"ses_other","prompt":"x"}`, nil, 422, "INVALID_INPUT", "id"},
		{"unknown mode", "POST", root + "/" + id + "/turns", `{"prompt":"x","mode":"now"}`, nil, 422, "INVALID_INPUT", "mode"},
		{"reject while busy", "POST", root + "/" + id + "/turns", `{"prompt":"x","mode":"reject"}`, nil, 409, "TURN_IN_FLIGHT", ""},
		{"unknown turn", "GET", root + "/" + id + "/turns/trn_none", "", nil, 404, "TURN_NOT_FOUND", ""},
		{"cancel unknown turn", "POST", root + "/" + id + "/cancel", `{"turn":"trn_none"}`, nil, 404, "TURN_NOT_FOUND", ""},
		{"cancel nothing", "POST", root + "/" + empty + "/cancel", "", nil, 409, "NOTHING_TO_CANCEL", ""},
		{"deliver nothing", "POST", root + "/" + empty + "/deliver", "", nil, 409, "NOTHING_TO_DELIVER", ""},
		{"discard nothing", "POST", root + "/" + empty + "/discard", "", nil, 409, "NOTHING_TO_DISCARD", ""},
		{"bad cursor", "GET", root + "/" + id + "/transcript?after=x", "", nil, 422, "INVALID_INPUT", "after"},
		{"bad format", "GET", root + "/" + id + "/diff?format=html", "", nil, 422, "INVALID_INPUT", "format"},
		{"delete at work", "DELETE", root + "/" + id, "", nil, 409, "TURN_IN_FLIGHT", ""},
		{"delete with a strange flag", "DELETE", root + "/" + id + "?force=maybe", "", nil, 422, "INVALID_INPUT", "force"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := ask(t, w, c.method, c.path, c.body, c.header...)
			if r.status != c.status || r.at(t, "error.code") != c.code {
				t.Fatalf("got %d %s", r.status, r.body)
			}
			if m, _ := r.at(t, "error.message").(string); m == "" || !strings.Contains(m, c.has) {
				t.Errorf("message %q lacks %q", m, c.has)
			}
			if r.at(t, "error.requestId") != r.header.Get(rest.HeaderRequestID) || r.header.Get(rest.HeaderRequestID) == "" {
				t.Errorf("request id: body %v, header %q", r.at(t, "error.requestId"), r.header.Get(rest.HeaderRequestID))
			}
			if r.at(t, "error.remedy") == "" || r.at(t, "error.kind") == "" {
				t.Errorf("no remedy or kind: %s", r.body)
			}
		})
	}
}

func TestUncodedErrorShowsOnlyTheRequestID(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	r := ask(t, w, "POST", "/v1/agent-sessions", `{"repo":"https://git.example.org/bug.git","prompt":"x"}`)
	if r.status != 500 || r.at(t, "error.code") != "INTERNAL_ERROR" || strings.Contains(r.body, "secret detail") {
		t.Fatalf("got %d %s", r.status, r.body)
	}
}

func TestLifeOfASession(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	const root = "/v1/agent-sessions"
	created := ask(t, w, "POST", root, `{"repo":"https://git.example.org/a.git","prompt":"Fix it","agent":"codex","toolLimitSeconds":60}`, "Idempotency-Key", "k1")
	if created.status != 201 || created.at(t, "turn.state") != "starting" || created.at(t, "session.phase") != "starting" || created.at(t, "session.limits.toolSeconds") != 60.0 {
		t.Fatalf("create: %d %s", created.status, created.body)
	}
	again := ask(t, w, "POST", root, `{"agent":"codex","toolLimitSeconds":60,"prompt":"Fix it","repo":"https://git.example.org/a.git"}`, "Idempotency-Key", "k1")
	if again.status != 201 || again.at(t, "session.id") != created.at(t, "session.id") || again.at(t, "turn.id") != created.at(t, "turn.id") {
		t.Fatalf("the same key and body: %d %s", again.status, again.body)
	}
	other := ask(t, w, "POST", root, `{"prompt":"Other"}`, "Idempotency-Key", "k1")
	if other.status != 409 || other.at(t, "error.code") != "IDEMPOTENCY_CONFLICT" {
		t.Fatalf("the same key, another body: %d %s", other.status, other.body)
	}
	id := created.at(t, "session.id").(string)
	one := root + "/" + id

	queued := ask(t, w, "POST", one+"/turns", `{"prompt":"And then"}`)
	if queued.status != 202 || queued.at(t, "position") != 1.0 || queued.at(t, "turn.state") != "accepted" {
		t.Fatalf("prompt: %d %s", queued.status, queued.body)
	}
	if q := ask(t, w, "GET", one+"/queue", ""); q.status != 200 || len(q.at(t, "items").([]any)) != 1 {
		t.Fatalf("queue: %s", q.body)
	}
	if r := ask(t, w, "POST", one+"/cancel", `{"turn":"`+queued.at(t, "turn.id").(string)+`"}`); r.status != 202 {
		t.Fatalf("cancel in the queue: %d %s", r.status, r.body)
	}

	w.Begin(session.ID(id))
	w.Say(session.ID(id), resttest.Text("a", "done")...)
	w.End(session.ID(id))

	turn := ask(t, w, "GET", one+"/turns/"+created.at(t, "turn.id").(string), "")
	got := map[string]any{}
	for _, f := range []string{"state", "rung", "end", "commits", "complete", "delivery.state", "delivery.commit", "diffStat"} {
		got[f] = turn.at(t, f)
	}
	want := map[string]any{"state": "completed", "rung": "fresh", "end": "end_turn", "commits": 1.0, "complete": true, "delivery.state": "pushed",
		"delivery.commit": strings.Repeat("0", 39) + "1", "diffStat": "1 file changed, 2 insertions(+)"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, f := range []string{"acceptedMs", "sandboxMs", "agentReadyMs", "firstPartMs", "turnMs", "packedMs", "deliveredMs", "totalMs"} {
		if _, ok := turn.at(t, "times."+f).(float64); !ok {
			t.Errorf("times.%s is missing in %s", f, turn.body)
		}
	}
	if r := ask(t, w, "GET", one+"/turns", ""); len(r.at(t, "items").([]any)) != 2 {
		t.Errorf("turns: %s", r.body)
	}
	if r := ask(t, w, "GET", one+"/transcript?after=1.1&limit=2", ""); len(r.at(t, "items").([]any)) != 2 || r.at(t, "next") != "1.3" {
		t.Errorf("transcript: %s", r.body)
	}
	if r := ask(t, w, "GET", one+"/diff?format=stat", ""); r.status != 200 || r.at(t, "text") != "diff --git a/x b/x\n" {
		t.Errorf("diff: %s", r.body)
	}
	if r := ask(t, w, "POST", one+"/queue/release", ""); r.status != 200 {
		t.Errorf("release: %s", r.body)
	}
	if r := ask(t, w, "GET", root+"?phase=idle&limit=1", ""); r.status != 200 || len(r.at(t, "items").([]any)) != 1 {
		t.Errorf("list: %s", r.body)
	}
	if r := ask(t, w, "GET", "/v1/capabilities", ""); r.status != 200 || r.at(t, "sandbox.isolation") != "gvisor" {
		t.Errorf("capabilities: %s", r.body)
	}
	if r := ask(t, w, "DELETE", one, ""); r.status != 202 || r.at(t, "phase") != "deleting" {
		t.Errorf("delete: %d %s", r.status, r.body)
	}
}

func TestBundle(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	path := "/v1/agent-sessions/" + string(id) + "/bundle"
	w.Begin(id)
	w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.PushRefused})
	r := ask(t, w, "GET", path, "")
	if r.status != 200 || !strings.HasPrefix(r.body, "# v2 git bundle\n"+string(id)+"\n") || len(r.body) < 100<<10 {
		t.Errorf("%d, %d bytes: %.80q", r.status, len(r.body), r.body)
	}
	got := map[string]string{"type": r.header.Get("Content-Type"), "as": r.header.Get("Content-Disposition"), "cache": r.header.Get("Cache-Control")}
	want := map[string]string{"type": "application/x-git-bundle", "as": "attachment; filename=" + operation.BundleName(w.Get(id).Session.Branch), "cache": "no-store"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	w.Cut.Store(true)
	q, err := http.NewRequestWithContext(t.Context(), "GET", w.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+resttest.Token)
	res, err := web.Do(q)
	if err == nil {
		defer res.Body.Close()
		var b []byte
		if b, err = io.ReadAll(res.Body); strings.Contains(string(b), "secret") {
			t.Errorf("it tells %q", b)
		}
	}
	if err == nil {
		t.Error("a bundle that broke off looks whole")
	}
	w.Cut.Store(false)
	w.Apply(id, session.Discarded{})
	if r := ask(t, w, "GET", path, ""); r.status != 404 || r.at(t, "error.code") != "NOTHING_PACKED" {
		t.Errorf("after a discard: %d %s", r.status, r.body)
	}
}

// In HTTP/1.0 the end of the connection is the end of the file.
func TestFilesInHTTP10(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	w.Begin(id)
	w.Say(id, resttest.Text("a", strings.Repeat("x", 200<<10))...)
	w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.PushRefused})
	fetch := func(name string) error {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET /v1/agent-sessions/%s/%s HTTP/1.0\r\nAuthorization: Bearer %s\r\n\r\n", id, name, resttest.Token)
		b, err := io.ReadAll(c)
		if !strings.Contains(string(b), "200 OK") || len(b) < 10<<10 && err == nil {
			t.Errorf("%s: %.200q", name, b)
		}
		return err
	}
	for _, name := range []string{"bundle", "export", "export?format=markdown"} {
		if err := fetch(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.Cut.Store(true)
	if err := fetch("bundle"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a bundle that broke off ends with %v", err)
	}
}

// HEAD tells what GET would, and begins nothing.
func TestHead(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	w.Begin(id)
	w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.PushRefused})
	one := "/v1/agent-sessions/" + string(id)
	w.Cut.Store(true)
	for _, path := range []string{"", "/messages", "/export", "/bundle"} {
		if r := ask(t, w, "HEAD", one+path, ""); r.status != 200 || r.body != "" || r.header.Get("Content-Type") == "" {
			t.Errorf("%s: %d %v", path, r.status, r.header)
		}
	}
	made := ask(t, w, "POST", one+"/attach-ticket", `{"action":"watch"}`)
	key, _ := made.at(t, "ticket").(string)
	for _, path := range []string{one + "/stream", "/v1/watch"} {
		if r := ask(t, w, "HEAD", path, "", "Authorization", "", ticketHeader, key); r.status != 404 || !strings.HasPrefix(r.header.Get("Allow"), "GET") {
			t.Errorf("%s: %d %v", path, r.status, r.header)
		}
	}
	if r := ask(t, w, "GET", one+"/stream", "", "Authorization", "", ticketHeader, key); r.status != 204 {
		t.Errorf("the ticket opens nothing any more: %d %s", r.status, r.body)
	}
}

func TestBundleDescribed(t *testing.T) {
	t.Parallel()
	r := ask(t, resttest.New(t), "GET", "/openapi.json", "")
	paths, ok := r.at(t, "paths").(map[string]any)
	if !ok {
		t.Fatal(r.body)
	}
	b, err := json.Marshal(paths["/v1/agent-sessions/{id}/bundle"])
	if err != nil || !strings.Contains(string(b), `"200":{"content":{"application/x-git-bundle":{"schema":{`) || !strings.Contains(string(b), `"format":"binary"`) {
		t.Errorf("%v %s", err, b)
	}
}

func TestStartIsShownWhileItGoesOn(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	path := "/v1/agent-sessions/" + string(id)
	step := operation.StepSetup
	w.Step.Store(&step)
	r := ask(t, w, "GET", path, "")
	if ms, ok := r.at(t, "sandbox.start.elapsedMs").(float64); !ok || ms < 0 || r.at(t, "sandbox.start.step") != "setup" {
		t.Errorf("while it starts: %s", r.body)
	}
	strange := "\x1b[2J"
	w.Step.Store(&strange)
	if r := ask(t, w, "GET", path, ""); r.at(t, "sandbox.start") == nil || r.at(t, "sandbox.start.step") != nil {
		t.Errorf("a step that is none: %s", r.body)
	}
	if r := ask(t, w, "GET", "/v1/agent-sessions", ""); strings.Contains(r.body, `"start":`) {
		t.Errorf("in a list: %s", r.body)
	}
	w.Begin(id)
	if r := ask(t, w, "GET", path, ""); r.at(t, "sandbox.start") != nil {
		t.Errorf("once it has started: %s", r.body)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	var want []string
	for range 5 {
		want = append([]string{string(w.Create("x"))}, want...)
	}
	var got []string
	next := ""
	for range 10 {
		path := "/v1/agent-sessions?limit=2"
		if next != "" {
			path += "&below=" + next
		}
		r := ask(t, w, "GET", path, "")
		for _, i := range r.at(t, "items").([]any) {
			got = append(got, i.(map[string]any)["id"].(string))
		}
		n, ok := r.at(t, "next").(string)
		if !ok {
			break
		}
		next = n
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestPublicPaths(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	for _, p := range []string{"/healthz", "/readyz", "/version", "/openapi.json"} {
		if r := ask(t, w, "GET", p, "", "Authorization", ""); r.status != 200 {
			t.Errorf("%s: %d %s", p, r.status, r.body)
		}
	}
	w.Unready.Store(true)
	r := ask(t, w, "GET", "/readyz", "", "Authorization", "")
	if r.status != 503 || !strings.Contains(r.body, "DISK_FULL") {
		t.Errorf("readyz with a full disk: %d %s", r.status, r.body)
	}
}

func TestOpenAPIDescribesEveryPath(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	r := ask(t, w, "GET", "/openapi.json", "")
	if v, _ := r.at(t, "openapi").(string); !strings.HasPrefix(v, "3.1") {
		t.Fatalf("openapi is %q", v)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := json.Unmarshal([]byte(r.body), &doc); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for p, methods := range doc.Paths {
		for m, o := range methods {
			got[o.OperationID] = m + " " + p
		}
	}
	want := map[string]string{
		"create": "post /v1/agent-sessions", "list": "get /v1/agent-sessions", "get": "get /v1/agent-sessions/{id}", "delete": "delete /v1/agent-sessions/{id}",
		"prompt": "post /v1/agent-sessions/{id}/turns", "listTurns": "get /v1/agent-sessions/{id}/turns", "getTurn": "get /v1/agent-sessions/{id}/turns/{turn}",
		"cancel": "post /v1/agent-sessions/{id}/cancel", "deliver": "post /v1/agent-sessions/{id}/deliver", "discard": "post /v1/agent-sessions/{id}/discard",
		"listQueue": "get /v1/agent-sessions/{id}/queue", "releaseQueue": "post /v1/agent-sessions/{id}/queue/release",
		"messages": "get /v1/agent-sessions/{id}/messages", "export": "get /v1/agent-sessions/{id}/export",
		"holdQueue": "post /v1/agent-sessions/{id}/queue/hold", "editQueued": "patch /v1/agent-sessions/{id}/queue/{turn}", "removeQueued": "delete /v1/agent-sessions/{id}/queue/{turn}",
		"transcript": "get /v1/agent-sessions/{id}/transcript", "diff": "get /v1/agent-sessions/{id}/diff", "capabilities": "get /v1/capabilities",
		"listQuestions": "get /v1/agent-sessions/{id}/questions", "getQuestion": "get /v1/agent-sessions/{id}/questions/{question}",
		"answerQuestion": "post /v1/agent-sessions/{id}/questions/{question}/answer",
		"blob":           "get /v1/agent-sessions/{id}/blobs/{blob}", "bundle": "get /v1/agent-sessions/{id}/bundle", "chat": "post /v1/agent-sessions/{id}/stream", "stream": "get /v1/agent-sessions/{id}/stream",
		"attachTicket": "post /v1/agent-sessions/{id}/attach-ticket", "watch": "get /v1/watch",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestStreamRefusalsArePlainSentences(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := string(w.Create("x"))
	for _, c := range []struct {
		name, path string
		header     []string
		status     int
	}{
		{"no token", "/v1/agent-sessions/" + id + "/stream", []string{"Authorization", ""}, 401},
		{"unknown session", "/v1/agent-sessions/ses_none/stream", nil, 404},
		{"foreign session", "/v1/agent-sessions/" + id + "/stream", []string{"Authorization", "Bearer " + resttest.Foreign}, 404},
		{"bad cursor", "/v1/agent-sessions/" + id + "/stream?after=x", nil, 422},
		{"unknown query", "/v1/agent-sessions/" + id + "/stream?form=beginning", nil, 422},
	} {
		r := ask(t, w, "GET", c.path, "", c.header...)
		if r.status != c.status || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") || strings.ContainsAny(strings.TrimSpace(r.body), "{\n") {
			t.Errorf("%s: %d %q", c.name, r.status, r.body)
		}
	}
}

// A header that two values give in turn is refused: nobody can tell which was meant.
func TestHeaderTwice(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := string(w.Create("one"))
	const root = "/v1/agent-sessions"
	for _, c := range []struct {
		method, path, header string
		values               [2]string
		status               int
		code                 fault.Code
	}{
		{"GET", root, "Authorization", [2]string{"Bearer " + resttest.Token, "Bearer x"}, 401, fault.Unauthenticated},
		{"GET", root, "Authorization", [2]string{"Bearer x", "Bearer " + resttest.Token}, 401, fault.Unauthenticated},
		{"POST", root, "Idempotency-Key", [2]string{"a", "b"}, 422, fault.InvalidInput},
		{"GET", root + "/" + id + "/stream", "Last-Event-ID", [2]string{"1.1", "1.2"}, 422, fault.InvalidInput},
		{"GET", "/v1/watch", "Last-Event-ID", [2]string{"a.1", "a.2"}, 422, fault.InvalidInput},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, w.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+resttest.Token)
		r.Header[http.CanonicalHeaderKey(c.header)] = c.values[:]
		res, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != c.status || !strings.Contains(string(b)+res.Header.Get(rest.HeaderCode), string(c.code)) || !strings.Contains(string(b), "more than once") {
			t.Errorf("%s twice: %d %s %v", c.header, res.StatusCode, b, err)
		}
	}
}

// A body that says that it is not JSON in UTF-8 is not read as if it were.
func TestBodyIsPlainJSON(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := string(w.Create("one"))
	for _, path := range []string{"/turns", "/stream"} {
		for _, c := range []struct{ name, value, says string }{
			{"Content-Type", "text/plain", "text/plain"},
			{"Content-Type", "application/json; charset=utf-16", "utf-16"},
			{"Content-Type", "application/json; charset=", "charset"},
			{"Content-Encoding", "gzip", "gzip"},
			{"Content-Encoding", "identity, br", "br"},
			{"Content-Type", "application/json; charset=UTF-8", ""},
			{"Content-Type", "application/json", ""},
			{"Content-Encoding", "identity", ""},
		} {
			r := ask(t, w, "POST", "/v1/agent-sessions/"+id+path, `{"prompt":7,"messages":7}`, c.name, c.value)
			refused := strings.Contains(r.body, "The body's c") // which the others are for their fields
			if r.status != 422 || refused != (c.says != "") || !strings.Contains(r.body, c.says) {
				t.Errorf("%s: %s: %s: %d %s", path, c.name, c.value, r.status, r.body)
			}
		}
	}
}

// Where a field is at fault, the details name it, also where only the domain can tell.
func TestFieldsAreNamed(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("one")
	turn := w.Begin(id)
	w.Apply(id, session.QuestionAsked{Question: session.Question{
		Turn: turn.ID, Number: 1, Kind: session.QuestionPermission, Title: "May I?", Detail: "{}",
		Options: []session.Option{{ID: "yes", Name: "Yes", Kind: "allow_once"}, {ID: "reject", Name: "No", Kind: "reject_once"}},
	}})
	const root = "/v1/agent-sessions"
	one := root + "/" + string(id)
	answer := one + "/questions/" + string(session.QuestionIDOf(turn.ID, 1)) + "/answer"
	for _, c := range []struct{ path, body, field string }{
		{answer, `{"verdict":"allow","option":"reject"}`, "verdict"},
		{answer, `{"option":"nope"}`, "option"},
		{answer, `{"verdict":"allow","content":{}}`, "content"},
		{answer, `{"verdict":"allow","message":"\u0000"}`, "message"},
		{one + "/turns", `{"prompt":" "}`, "prompt"},
		{one + "/turns", `{"prompt":"a\u0000"}`, "prompt"},
		{root, `{"title":"\u0000"}`, "title"},
		{root, `{"branch":"x"}`, "repo"},
		{root, `{"approvals":"perhaps"}`, "approvals"},
		{root, `{"approvals":{"foo":1}}`, "approvals"},
		{root, `{"approvals":{"rules":[{"kind":"read","do":"ask"},{"kind":"read","do":"perhaps"}]}}`, "approvals.rules[1].do"},
	} {
		r := ask(t, w, "POST", c.path, c.body)
		fields, _ := r.at(t, "error.details.fields").([]any)
		if r.status != 422 || r.at(t, "error.code") != "INVALID_INPUT" || len(fields) != 1 || fields[0].(map[string]any)["field"] != c.field || fields[0].(map[string]any)["problem"] == "" {
			t.Errorf("%s %s: %d %s", c.path, c.body, r.status, r.body)
		}
	}
}
