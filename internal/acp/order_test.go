package acp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/acp"
)

// A hundred thousand numbered updates are handled in their order, one at a time
// (clients that gave each a goroutine of its own had up to 80 % out of order).
func TestManyUpdatesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	const n = 100_000
	next, wrong := 0, 0
	done := make(chan struct{})
	p := connect(t, acp.Handlers{Notification: func(_ context.Context, m acp.Notification) {
		if want := fmt.Sprintf(`"text":"%d"`, next); !strings.Contains(string(m.Params), want) {
			wrong++
		}
		if next++; next == n {
			close(done)
		}
	}}, acp.Options{})
	go func() {
		w := bufio.NewWriterSize(p.w, 32<<10)
		for i := range n {
			if _, err := io.WriteString(w, update(i)+"\n"); err != nil {
				t.Error(err)
				return
			}
		}
		if err := w.Flush(); err != nil {
			t.Error(err)
		}
	}()
	within(t, done, "the last update")
	if wrong > 0 {
		t.Errorf("%d updates out of their order", wrong)
	}
}

// Answers and updates of one write are handled as they stand on the wire, wherever the
// answer is among them and wherever the write is cut.
func TestOneWriteKeepsItsOrder(t *testing.T) {
	t.Parallel()
	const updates = 5
	var order []string
	seen := make(chan struct{}, 1)
	p := connect(t, acp.Handlers{Notification: func(_ context.Context, m acp.Notification) {
		order = append(order, m.Method)
		if m.Method == "last" {
			seen <- struct{}{}
		}
	}}, acp.Options{})
	pass := func(at, cut int) (length int) {
		order = nil
		called := make(chan struct{})
		go func() {
			defer close(called)
			_, _ = p.conn.CallThen(t.Context(), "ask", nil, func(json.RawMessage, error) { order = append(order, "answer") })
		}()
		id := p.hear(t)["id"]
		var wire strings.Builder
		var want []string
		for i := range updates + 1 {
			if i == at {
				fmt.Fprintf(&wire, `{"jsonrpc":"2.0","id":%v,"result":{}}`+"\n", id)
				want = append(want, "answer")
			}
			if i < updates {
				fmt.Fprintf(&wire, `{"jsonrpc":"2.0","method":"u%d"}`+"\n", i)
				want = append(want, fmt.Sprint("u", i))
			}
		}
		wire.WriteString(`{"jsonrpc":"2.0","method":"last"}` + "\n")
		whole := wire.String()
		for _, piece := range []string{whole[:min(cut, len(whole))], whole[min(cut, len(whole)):]} {
			if piece == "" {
				continue
			}
			if _, err := io.WriteString(p.w, piece); err != nil {
				t.Fatal(err)
			}
		}
		within(t, seen, "the last update")
		within(t, called, "the answer")
		if d := cmp.Diff(append(want, "last"), order); d != "" {
			t.Fatalf("answer at %d, cut at %d: %s", at, cut, d)
		}
		return len(whole)
	}
	for at := range updates + 1 {
		length := pass(at, 0)
		for cut := 1; cut < length; cut += 3 {
			pass(at, cut)
		}
	}
}

// Sixty-four writers at once write whole lines.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	const writers, each = 64, 50
	p := connect(t, acp.Handlers{Requests: map[string]func(context.Context, *acp.Request){
		"ask": func(_ context.Context, r *acp.Request) {
			if err := r.Reply(map[string]string{"text": strings.Repeat("r", 3000)}); err != nil {
				t.Error(err)
			}
		},
	}}, acp.Options{})
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := p.conn.Notify("note", map[string]any{"writer": w, "i": i, "text": strings.Repeat("\n\"x", w*20)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() {
		for i := range each {
			p.say(t, `{"jsonrpc":"2.0","id":"q%d","method":"ask"}`, i)
		}
	}()
	next := make([]int, writers)
	answers := 0
	for range writers*each + each {
		m := p.hear(t) // which fails on what is no JSON
		if m["id"] != nil {
			answers++
			continue
		}
		q, _ := m["params"].(map[string]any)
		w := int(q["writer"].(float64))
		if i := int(q["i"].(float64)); i != next[w] {
			t.Fatalf("writer %d: %d in the place of %d", w, i, next[w])
		}
		next[w]++
	}
	wg.Wait()
	if answers != each {
		t.Errorf("%d answers", answers)
	}
}

// Both sides use the same ids at the same time, and each gets its own answers.
func TestEqualIDs(t *testing.T) {
	t.Parallel()
	const n = 20
	open := make(chan *acp.Request, n)
	p := connect(t, acp.Handlers{Requests: map[string]func(context.Context, *acp.Request){
		"ask": func(_ context.Context, r *acp.Request) { open <- r },
	}}, acp.Options{})
	var calls []<-chan answer
	for range n {
		calls = append(calls, p.call(t.Context(), "do"))
	}
	var ids []any
	for range n {
		ids = append(ids, p.hear(t)["id"])
	}
	for _, id := range ids {
		p.say(t, `{"jsonrpc":"2.0","id":%v,"method":"ask"}`, id)
		r := within(t, open, "the request")
		if r.ID() != fmt.Sprint(id) {
			t.Errorf("request %s, not %v", r.ID(), id)
		}
		if err := r.Reply("ours " + r.ID()); err != nil {
			t.Error(err)
		}
		if m := p.hear(t); m["result"] != "ours "+fmt.Sprint(id) {
			t.Errorf("answer %v", m)
		}
		p.say(t, `{"jsonrpc":"2.0","id":%v,"result":"theirs %v"}`, id, id)
	}
	got := map[string]bool{}
	for _, c := range calls {
		a := within(t, c, "an answer")
		if a.err != nil {
			t.Error(a.err)
		}
		got[string(a.raw)] = true
	}
	if len(got) != n {
		t.Errorf("%d different answers: %v", len(got), got)
	}
}

// A message printed over several lines is put together; what only looks like the
// beginning of one is noise and keeps nothing waiting.
func TestMessagesOverSeveralLines(t *testing.T) {
	t.Parallel()
	pretty := func(s string) string {
		var v any
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			t.Fatal(err)
		}
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	note := `{"jsonrpc":"2.0","method":"session/update","params":{"a":[1,{"b":"} ] \" {"}],"c":{"d":null}}}`
	var got []string
	seen := make(chan struct{}, 1)
	p := connect(t, acp.Handlers{Notification: func(_ context.Context, n acp.Notification) {
		var v any
		_ = json.Unmarshal(n.Params, &v) // nil where there are none
		b, _ := json.Marshal(v)
		got = append(got, n.Method+" "+string(b))
		if n.Method == "last" {
			seen <- struct{}{}
		}
	}}, acp.Options{})
	whole := `session/update {"a":[1,{"b":"} ] \" {"}],"c":{"d":null}}`
	last := `{"jsonrpc":"2.0","method":"last"}`
	for name, c := range map[string]struct {
		say   string
		want  []string
		noise int64
	}{
		"pretty":             {pretty(note), []string{whole}, 0},
		"twice":              {pretty(note) + "\n" + pretty(note), []string{whole, whole}, 0},
		"with empty lines":   {strings.ReplaceAll(pretty(note), "\n", "\n\r\n"), []string{whole}, 0},
		"a log line":         {"{", nil, 1},
		"a log line, then":   {"{ starting\n" + note, []string{whole}, 1},
		"a log block":        {pretty(`{"level":"info","a":{"b":[1,2]}}`), nil, 9},
		"cut off":            {pretty(note)[:40] + "\n" + note, []string{whole}, 3},
		"text after its end": {pretty(note) + " done", nil, 15},
		"too many lines":     {"{" + strings.Repeat("\n[", 400) + "\n" + note, []string{whole}, 401},
		"too long":           {"{\n\"a\":\"" + strings.Repeat("x", 1<<20) + "\",\n\"b\":1", nil, 3},
		"an open string":     {"{\"a\": \"b\nc\"}", nil, 2},
	} {
		got = nil
		before := p.conn.Stats().NoiseLines
		p.say(t, "%s\n%s", c.say, last)
		within(t, seen, "what follows")
		if d := cmp.Diff(append(c.want, "last null"), got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if n := p.conn.Stats().NoiseLines - before; n != c.noise {
			t.Errorf("%s: %d lines of noise, want %d", name, n, c.noise)
		}
	}
	// An answer in twelve lines is an answer.
	done := p.call(t.Context(), "initialize")
	id := p.hear(t)["id"]
	answer := pretty(fmt.Sprintf(`{"jsonrpc":"2.0","id":%v,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"x":{}}}}`, id))
	p.say(t, "%s", answer)
	if a := within(t, done, "the answer"); a.err != nil || !strings.Contains(string(a.raw), "loadSession") || strings.Count(answer, "\n") < 8 {
		t.Errorf("%s, %v", a.raw, a.err)
	}
}

// What a handler puts off is done when nothing more is there, however the lines are
// cut, and before a request or an answer behind it.
func TestCaughtUp(t *testing.T) {
	t.Parallel()
	var got []string
	note := func(s string) { got = append(got, s) }
	p := connect(t, acp.Handlers{
		Notification: func(context.Context, acp.Notification) { note("update") },
		CaughtUp:     func() { note("caught up") },
		Requests:     map[string]func(context.Context, *acp.Request){"ask": func(context.Context, *acp.Request) { note("ask") }},
	}, acp.Options{})
	go func() {
		_, _ = p.conn.CallThen(t.Context(), "call", nil, func(json.RawMessage, error) { note("answer") }) // the error is the connection's end
	}()
	id := p.hear(t)["id"]
	u := update(1) + "\n"
	ask := `{"jsonrpc":"2.0","id":"a","method":"ask"}` + "\n"
	chunks := []string{
		u,
		u + u + u,
		u + u[:20], u[20:] + "noise\n",
		u + "noise\n" + u + ask + u + fmt.Sprintf(`{"jsonrpc":"2.0","id":%v,"result":1}`, id) + "\n" + u,
		"noise\n",
		strings.TrimSuffix(u, "\n"), // the last line has no end
	}
	for _, c := range chunks {
		if _, err := io.WriteString(p.w, c); err != nil {
			t.Fatal(err)
		}
	}
	p.w.Close()
	<-p.conn.Done()
	want := []string{
		"update", "caught up",
		"update", "update", "update", "caught up",
		"update", "caught up", "update", "caught up",
		"update", "update", "caught up", "ask", "update", "caught up", "answer", "update", "caught up",
		"update", "caught up",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
