package model

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sse(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString("data: " + e + "\n\n")
	}
	return b.String()
}

// answers are what providers send, with the usage that is in it.
var answers = []struct {
	name string
	kind kind
	sse  bool
	body string
	want Usage
}{
	{"messages stream", kindMessages, true, sse(
		`{"type":"message_start","message":{"model":"c","usage":{"input_tokens":3,"cache_creation_input_tokens":5,"cache_read_input_tokens":7,"output_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":1,"ephemeral_1h_input_tokens":4}}}}`,
		`{"type":"ping"}`, `{"type":"content_block_delta","delta":{"type":"text_delta","text":"hello"}}`,
		`{"type":"message_delta","usage":{"output_tokens":11}}`, `{"type":"message_delta","usage":{"output_tokens":12}}`, `{"type":"message_stop"}`),
		Usage{Model: "c", Input: 3, Output: 12, CacheRead: 7, CacheWrite: 5, CacheWriteHour: 4}},
	{"messages with the input at the end", kindMessages, true, sse(
		`{"type":"message_start","message":{"model":"c","usage":{"input_tokens":0,"output_tokens":0}}}`,
		`{"type":"message_delta","usage":{"input_tokens":30,"output_tokens":11}}`, `{"type":"message_stop"}`),
		Usage{Model: "c", Input: 30, Output: 11}},
	{"messages error in mid-stream", kindMessages, true, sse(
		`{"type":"message_start","message":{"model":"c","usage":{"input_tokens":3,"output_tokens":1}}}`,
		`{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a\":12}"}}`,
		`{"type":"error","error":{"type":"overloaded_error"}}`),
		Usage{Model: "c", Input: 3, Output: 2, Estimated: true}},
	{"messages whole", kindMessages, false, `{"type":"message","model":"c","content":[],"usage":{"input_tokens":3,"output_tokens":9,"cache_read_input_tokens":1}}`,
		Usage{Model: "c", Input: 3, Output: 9, CacheRead: 1}},
	{"responses stream", kindResponses, true, sse(
		`{"type":"response.created","response":{"model":"g","usage":null}}`, `{"type":"response.output_text.delta","delta":"hello"}`,
		`{"type":"response.completed","response":{"model":"g-2","usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":120}}}`),
		Usage{Model: "g-2", Input: 40, Output: 20, CacheRead: 60}},
	{"responses incomplete", kindResponses, true, sse(`{"type":"response.incomplete","response":{"model":"g","usage":{"input_tokens":1,"output_tokens":2}}}`),
		Usage{Model: "g", Input: 1, Output: 2}},
	{"responses without an end", kindResponses, true, sse(`{"type":"response.created","response":{"model":"g"}}`, `{"type":"response.output_text.delta","delta":"123456"}`),
		Usage{Model: "g", Input: 25, Output: 2, Estimated: true}},
	{"responses whole", kindResponses, false, `{"model":"g","usage":{"input_tokens":5,"output_tokens":6,"input_tokens_details":{"cached_tokens":9}}}`,
		Usage{Model: "g", Input: 0, CacheRead: 5, Output: 6}},
	{"chat stream", kindChat, true, sse(`{"model":"g","choices":[{"delta":{"content":"a"}}]}`, `{"model":"g","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":null}}`, `[DONE]`),
		Usage{Model: "g", Input: 9, Output: 4}},
	{"chat with counts on the way", kindChat, true, sse(`{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`, `{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`),
		Usage{Input: 9, Output: 2}},
	{"chat without usage", kindChat, true, sse(`{"choices":[{"delta":{"reasoning_content":"1234","tool_calls":[{"function":{"arguments":"{\"a\":1}"}}]}}]}`, `[DONE]`),
		Usage{Input: 25, Output: 3, Estimated: true}},
	{"chat whole", kindChat, false, `{"model":"g","choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}}`,
		Usage{Model: "g", Input: 1, CacheRead: 8, Output: 4}},
	{"gemini stream", kindGemini, true, sse(
		`{"candidates":[{"content":{"parts":[{"text":"hello"}]}}],"usageMetadata":{"promptTokenCount":50,"cachedContentTokenCount":20,"candidatesTokenCount":2,"thoughtsTokenCount":10},"modelVersion":"gem"}`,
		`{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":50,"cachedContentTokenCount":20,"candidatesTokenCount":5,"thoughtsTokenCount":10,"toolUsePromptTokenCount":3},"modelVersion":"gem"}`),
		Usage{Model: "gem", Input: 33, Output: 15, CacheRead: 20}},
	{"gemini without an end", kindGemini, true, sse(`{"candidates":[{"content":{"parts":[{"text":"` + strings.Repeat("x", 400) + `"}]}}],"usageMetadata":{"promptTokenCount":50,"candidatesTokenCount":2}}`),
		Usage{Input: 50, Output: 100, Estimated: true}},
	{"gemini as an array", kindGemini, false, `[{"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":2}},` + "\n" + `{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":6},"modelVersion":"gem"}]`,
		Usage{Model: "gem", Input: 5, Output: 6}},
	{"gemini blocked", kindGemini, true, sse(`{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":5}}`), Usage{Input: 5}},
	{"embedding", kindEmbed, false, `{"embedding":{"values":[1,2,3]}}`, Usage{Input: 25, Estimated: true}},
	{"no JSON", kindMessages, false, `<html>` + strings.Repeat("x", 34), Usage{Input: 25, Output: 10, Estimated: true}},
	{"odd numbers", kindChat, false, `{"usage":{"prompt_tokens":-4,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":-9}}}`, Usage{}},
	{"comments, ids, other line ends, no last blank line", kindChat, true,
		": hi\r\n\r\nid: 1\r\nevent: x\r\ndata:{\"choices\":[{\"delta\":\r\ndata: {\"content\":\"a\"}}]}\r\n\r\n\r\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\r\n\r\ndata: [DONE]",
		Usage{Input: 1, Output: 2}},
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range answers {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, step := range []int{1, 2, 7, 64, len(tc.body)} {
				rd := newReader(tc.kind, tc.sse, false, nil)
				var out bytes.Buffer
				collect := func(p []byte) { out.Write(p) }
				for rest := []byte(tc.body); len(rest) > 0; rest = rest[min(step, len(rest)):] {
					rd.pass(rest[:min(step, len(rest))], collect)
				}
				rd.end(false, collect)
				if out.String() != tc.body {
					t.Errorf("step %d: the answer changed: %q", step, out.String())
				}
				if diff := cmp.Diff(tc.want, rd.usage(100)); diff != "" {
					t.Errorf("step %d: %s", step, diff)
				}
			}
		})
	}
}

// TestLargeEvents: what is too large to be read passes whole, in order, and the next event is read.
func TestLargeEvents(t *testing.T) {
	t.Parallel()
	body := sse(`{"choices":[{"delta":{"content":"`+strings.Repeat("y", 200)+`"}}]}`, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, `[DONE]`)
	for _, hide := range []bool{false, true} {
		for _, step := range []int{1, 50, 120, 1000} {
			rd := newReader(kindChat, true, hide, nil)
			rd.split.max = 100
			var out bytes.Buffer
			for rest := []byte(body); len(rest) > 0; rest = rest[min(step, len(rest)):] {
				rd.pass(rest[:min(step, len(rest))], func(p []byte) { out.Write(p) })
			}
			rd.end(false, func(p []byte) { out.Write(p) })
			want := body
			if hide {
				want = strings.Replace(body, sse(`{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`), "", 1)
			}
			if out.String() != want {
				t.Errorf("hide=%t step=%d: %q", hide, step, out.String())
			}
			if diff := cmp.Diff(Usage{Input: 1, Output: 2}, rd.usage(1)); diff != "" {
				t.Errorf("hide=%t step=%d: %s", hide, step, diff)
			}
		}
	}
}

func FuzzReader(f *testing.F) {
	for _, a := range answers {
		f.Add(int(a.kind), a.sse, []byte(a.body), 7)
	}
	f.Fuzz(func(t *testing.T, k int, events bool, body []byte, step int) {
		if step <= 0 || k < int(kindPlain) || k > int(kindEmbed) {
			return
		}
		feed := func(hide bool, step int) (string, Usage) {
			rd := newReader(kind(k), events, hide, nil)
			if rd.split != nil {
				rd.split.max = 512
			}
			var out bytes.Buffer
			for rest := body; len(rest) > 0; rest = rest[min(step, len(rest)):] {
				rd.pass(rest[:min(step, len(rest))], func(p []byte) { out.Write(p) })
			}
			rd.end(false, func(p []byte) { out.Write(p) })
			return out.String(), rd.usage(8)
		}
		got, u := feed(false, step)
		if got != string(body) {
			t.Errorf("the answer changed: %q", got)
		}
		if u.Input < 0 || u.Output < 0 || u.CacheRead < 0 || u.CacheWrite < 0 || u.CacheWriteHour < 0 {
			t.Errorf("negative usage %+v", u)
		}
		if kind(k) == kindChat && events {
			a, _ := feed(true, step)
			b, _ := feed(true, 1)
			if a != b && len(body) < 512 {
				t.Errorf("what is hidden depends on the pieces: %q %q", a, b)
			}
			if len(a) > len(body) {
				t.Error("grew")
			}
		}
	})
}

func FuzzAskForUsage(f *testing.F) {
	for _, s := range []string{`{"stream":true}`, `{"stream":true,"stream_options":null}`, `{"stream":true,"stream_options":{"a":[1]}}`, `{"stream":true,"stream":false}`, `{}`, `[]`, ` { "stream" : true } `,
		`{"stream":true,"stream_options":3}`, `{"stream_options":{},"stream_options":{"include_usage":false},"stream":true}`, `{"stream":true}x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		pieces, ok := askForUsage(body)
		out := bytes.Join(pieces, nil)
		if !ok && !bytes.Equal(out, body) {
			t.Fatalf("%q became %q", body, out)
		}
		if !ok || !json.Valid(body) {
			return
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal(body, &before) != nil || json.Unmarshal(out, &after) != nil {
			t.Fatalf("%q became %q", body, out)
		}
		var options map[string]any
		if json.Unmarshal(after["stream_options"], &options) != nil || options["include_usage"] != true {
			t.Errorf("%q does not ask", out)
		}
		delete(before, "stream_options")
		delete(after, "stream_options")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Error(diff)
		}
	})
}
