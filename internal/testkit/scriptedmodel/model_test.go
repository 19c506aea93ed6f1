package scriptedmodel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// each runs a test for every dialect, streamed and whole.
func each(t *testing.T, f func(t *testing.T, d dialect, stream bool)) {
	t.Helper()
	for _, d := range dialects {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%t", d.name, stream), func(t *testing.T) {
				t.Parallel()
				f(t, d, stream)
			})
		}
	}
}

// work runs the loop of an agent: it asks until no tool is called, answering
// each call with result.
func work(t *testing.T, d dialect, url string, conv []said, stream bool, result func(toolCall) string) ([]said, []toolCall) {
	t.Helper()
	var calls []toolCall
	for range 20 {
		a := d.ask(t, url, "You are an agent. Working directory: /workspace/repo", conv, agentTools, stream)
		conv = append(conv, said{role: "assistant", text: a.text, call: a.call})
		if a.call == nil {
			if a.stop != "end" {
				t.Errorf("stop %q at the end of a turn", a.stop)
			}
			return conv, calls
		}
		if a.stop != "tool" {
			t.Errorf("stop %q with a tool call", a.stop)
		}
		calls = append(calls, *a.call)
		conv = append(conv, said{role: "tool", id: a.call.ID, text: result(*a.call)})
	}
	t.Fatal("the script does not end")
	return nil, nil
}

func lastText(conv []said) string { return conv[len(conv)-1].text }

func TestSeveralSteps(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	each(t, func(t *testing.T, d dialect, stream bool) {
		conv := []said{{role: "user", text: "Mend it. @@mark blue@@ @@run make test@@ @@say Now I know.@@ @@run sed -i 's/ - / + /' calc.sh@@ @@write notes/done.txt all\nwell@@ @@run make test@@"}}
		n := 0
		conv, calls := work(t, d, url, conv, stream, func(toolCall) string {
			if n++; n == 1 {
				return "FAIL: add\nmake: *** [Makefile:3: test] Error 1"
			}
			return "ok"
		})
		var got []string
		for _, c := range calls {
			got = append(got, c.Name+" "+jsonOf(c.Args))
		}
		want := []string{
			`Bash {"command":"make test"}`,
			`Bash {"command":"sed -i 's/ - / + /' calc.sh"}`,
			`Write {"content":"all\nwell\n","file_path":"/workspace/repo/notes/done.txt"}`,
			`Bash {"command":"make test"}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		var texts []string
		for _, s := range conv {
			if s.role == "assistant" {
				texts = append(texts, s.text)
			}
		}
		wantTexts := []string{
			"I will run the tests.",
			"Now I know.\n\nThat failed, as the output shows. I will change calc.sh.",
			"I will write done.txt.",
			"I will run the tests.",
			"Done: I ran the tests, changed calc.sh, wrote done.txt and ran the tests.\n\n[directives seen: 6; earlier: 0]",
		}
		if diff := cmp.Diff(wantTexts, texts); diff != "" {
			t.Error(diff)
		}
		// The next turn sees the former one, and takes its own script only.
		conv = append(conv, said{role: "user", text: "@@recall@@ @@recall sed -i@@ @@recall green@@"})
		conv, calls = work(t, d, url, conv, stream, nil)
		if len(calls) != 0 {
			t.Errorf("calls %v", calls)
		}
		if diff := cmp.Diff("The marker is blue.\n\nI remember sed -i.\n\nI do not remember green.\n\n[directives seen: 9; earlier: 6]", lastText(conv)); diff != "" {
			t.Error(diff)
		}
		// A turn without directives does not take up an old script again.
		conv, calls = work(t, d, url, append(conv, said{role: "user", text: "Thank you."}), stream, nil)
		if len(calls) != 0 || lastText(conv) != "You asked: Thank you.\n\n[directives seen: 9; earlier: 9]" {
			t.Errorf("calls %v, text %q", calls, lastText(conv))
		}
	})
}

func TestWords(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	tests := []struct {
		name, prompt, want string
		tools              []toolDef
	}{
		{"say", "@@say Hello, world.@@", "Hello, world.\n\n[directives seen: 1; earlier: 0]", agentTools},
		{"no directive", "What is this?", "You asked: What is this?\n\n[directives seen: 0; earlier: 0]", agentTools},
		{"no marker", "@@recall@@", "I see no marker in this conversation.\n\n[directives seen: 1; earlier: 0]", agentTools},
		{"unknown directive", "@@dance@@", "I do not know the directive dance.\n\n[directives seen: 1; earlier: 0]", agentTools},
		{"quoted history is not done again", "<earlier>\n@@mark red@@ @@run rm -rf x@@\n</earlier>\n@@recall@@", "The marker is red.\n\n[directives seen: 3; earlier: 2]", agentTools},
		{"a tool that is missing", "@@tool fly {}@@", "I have no tool fly; there are Bash, Write.\n\n[directives seen: 1; earlier: 0]", agentTools},
		{"no tools at all", "@@run make@@", "You asked: \n\n", nil},
		{"say without tools", "@@say a@@ @@run make@@", "a\n\nI have no tool for that here.\n\n[directives seen: 2; earlier: 0]", nil},
		{"unicode", "@@say grün 火 \U0001F525 " + strings.Repeat("é", 60) + "@@", "grün 火 \U0001F525 " + strings.Repeat("é", 60) + "\n\n[directives seen: 1; earlier: 0]", agentTools},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, d dialect, stream bool) {
				a := d.ask(t, url, "You are an agent.", []said{{role: "user", text: tt.prompt}}, tt.tools, stream)
				if tt.name == "no tools at all" {
					if a.call != nil || a.text == "" {
						t.Errorf("call %v, text %q", a.call, a.text)
					}
					return
				}
				if diff := cmp.Diff(tt.want, a.text); diff != "" || a.call != nil {
					t.Errorf("call %v, text %s", a.call, diff)
				}
			})
		})
	}
}

func TestFailedTurnIsNotRepeated(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	each(t, func(t *testing.T, d dialect, stream bool) {
		// The refused prompt stays in the agent's history without an answer.
		conv := []said{{role: "user", text: "@@status 401@@"}, {role: "user", text: "@@say again@@"}}
		if a := d.ask(t, url, "", conv, agentTools, stream); !strings.HasPrefix(a.text, "again") {
			t.Errorf("text %q", a.text)
		}
	})
}

func TestUsage(t *testing.T) {
	t.Parallel()
	m, url := start(t, scriptedmodel.Options{})
	for _, d := range dialects {
		t.Run(string(d.name), func(t *testing.T) {
			conv := []said{{role: "user", text: "@@say " + strings.Repeat("x", 400) + "@@"}}
			first := d.ask(t, url, strings.Repeat("s", 800), conv, agentTools, true)
			if first.in < 300 || first.cached != 0 || first.out < 100 || first.out > 120 {
				t.Errorf("first usage %+v", first)
			}
			conv = append(conv, said{role: "assistant", text: first.text}, said{role: "user", text: "@@say y@@"})
			second := d.ask(t, url, strings.Repeat("s", 800), conv, agentTools, true)
			if second.cached < first.in-2 || second.cached > first.in || second.in <= first.in+100 {
				t.Errorf("first %d, second in %d cached %d", first.in, second.in, second.cached)
			}
			whole := d.ask(t, url, strings.Repeat("s", 800), conv, agentTools, false)
			if whole.in != second.in || whole.cached != second.cached || whole.out != second.out {
				t.Errorf("whole %+v and streamed %+v differ", whole, second)
			}
			last := m.Requests()[len(m.Requests())-1]
			if diff := cmp.Diff(scriptedmodel.Usage{Input: whole.in, Cached: whole.cached, Output: whole.out}, last.Usage); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTokenLimit(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	fields := map[scriptedmodel.Dialect]string{
		scriptedmodel.Anthropic: "max_tokens", scriptedmodel.Chat: "max_completion_tokens", scriptedmodel.Responses: "max_output_tokens",
	}
	each(t, func(t *testing.T, d dialect, stream bool) {
		body := d.body("", []said{{role: "user", text: "@@say " + strings.Repeat("word ", 100) + "@@"}}, nil, stream)
		if d.name == scriptedmodel.Gemini {
			body["generationConfig"] = map[string]any{"maxOutputTokens": 5}
		} else {
			body[fields[d.name]] = 5
		}
		resp := d.post(t, url, key, body, stream)
		read := d.sse
		if !stream {
			read = func(r io.Reader) (answer, error) {
				b, err := io.ReadAll(r)
				if err != nil {
					return answer{}, err
				}
				return d.whole(b)
			}
		}
		a, err := read(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if a.text != "word word word word " || a.stop != "limit" || a.out != 5 {
			t.Errorf("%+v", a)
		}
	})
}

func TestSlow(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var waits []time.Duration
	_, url := start(t, scriptedmodel.Options{Wait: func(_ context.Context, d time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		waits = append(waits, d)
		return nil
	}})
	for _, d := range dialects {
		waits = nil
		a := d.ask(t, url, "", []said{{role: "user", text: "@@slow 7 250@@"}}, agentTools, true)
		if a.deltas < 7 || !strings.HasPrefix(a.text, "Step 1 of 7. Step 2 of 7. ") {
			t.Errorf("%s: %d deltas, text %q", d.name, a.deltas, a.text)
		}
		if len(waits) != 7 || waits[3] != 250*time.Millisecond {
			t.Errorf("%s: waits %v", d.name, waits)
		}
	}
}

func TestSlowEndsWithTheClient(t *testing.T) {
	t.Parallel()
	m, url := start(t, scriptedmodel.Options{})
	d := dialects[0]
	ctx, cancel := context.WithCancel(t.Context())
	b, _ := json.Marshal(d.body("", []said{{role: "user", text: "@@slow 100 600000@@"}}, agentTools, true))
	resp, err := web.Do(d.request(t, url, key, b, true).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = resp.Body.Close()
	eventually(t, func() bool { return len(m.Requests()) == 1 })
}

func TestCut(t *testing.T) {
	t.Parallel()
	m, url := start(t, scriptedmodel.Options{})
	each(t, func(t *testing.T, d dialect, stream bool) {
		body := d.body("", []said{{role: "user", text: fmt.Sprintf("@@say %s@@ @@cut 1@@ %s %t", strings.Repeat("many words ", 20), d.name, stream)}}, agentTools, stream)
		if !stream {
			b, _ := json.Marshal(body)
			if resp, err := web.Do(d.request(t, url, key, b, stream)); err == nil {
				_ = resp.Body.Close()
				t.Fatalf("an answer, status %d", resp.StatusCode)
			}
			return
		}
		resp := d.post(t, url, key, body, stream)
		b, err := io.ReadAll(resp.Body)
		if err == nil {
			t.Error("the stream ended well")
		}
		if !strings.Contains(string(b), "many words") {
			t.Errorf("nothing came before the cut: %s", b)
		}
		// Only the first such request was to be cut.
		resp = d.post(t, url, key, body, stream)
		a, err := d.sse(resp.Body)
		if err != nil || a.stop != "end" {
			t.Errorf("second try: %+v, %v", a, err)
		}
	})
	t.Cleanup(func() {
		cuts := 0
		for _, r := range m.Requests() {
			if r.Reply == "cut" {
				cuts++
			}
		}
		if cuts != 8 {
			t.Errorf("%d cuts in the log", cuts)
		}
	})
}

// eventually polls for what another goroutine of the server does.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("did not happen within 10 s")
		}
	}
}
