package uistream_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/uistream"
)

func TestPartText(t *testing.T) {
	t.Parallel()
	at := uistream.At(time.Date(2026, 3, 4, 5, 6, 7, 8900, time.FixedZone("x", 3600)))
	for _, tt := range []struct {
		part uistream.Part
		want string
	}{
		{uistream.StartStep{}.Part(), `{"type":"start-step"}`},
		{uistream.Start{MessageID: "t", At: at}.Part(), `{"type":"start","messageId":"t","at":"2026-03-04T04:06:07.000008Z"}`},
		{uistream.BlockDelta{Kind: uistream.Text, ID: "a", Delta: "<&>\n"}.Part(), `{"type":"text-delta","id":"a","delta":"<&>\n"}`},
		{uistream.ToolInputAvailable{ToolCallID: "c", ToolName: "n", Dynamic: true}.Part(), `{"type":"tool-input-available","toolCallId":"c","toolName":"n","input":null,"dynamic":true}`},
		{uistream.ToolOutputAvailable{ToolCallID: "c", Output: uistream.Value("{\n \"a\": 1 }")}.Part(), `{"type":"tool-output-available","toolCallId":"c","output":{"a":1},"dynamic":false}`},
		{uistream.Data{Name: "a b\"", Data: uistream.Value(`1`)}.Part(), `{"type":"data-a-b-","data":1}`},
		{uistream.Finish{}.Part(), `{"type":"finish"}`},
	} {
		if d := cmp.Diff(tt.want, string(tt.part.Raw)); d != "" {
			t.Error(d)
		}
		if p, err := uistream.Parse(tt.part.Raw); err != nil || p.Type != tt.part.Type {
			t.Errorf("%s: parsed as %q: %v", tt.part.Raw, p.Type, err)
		}
	}
	if got := at.Time(); !got.Equal(time.Date(2026, 3, 4, 4, 6, 7, 8000, time.UTC)) {
		t.Errorf("stamp read as %v", got)
	}
}

func TestFieldsAreExact(t *testing.T) {
	t.Parallel()
	p, err := uistream.Parse([]byte(` {"ID":"wrong", "type" : "text-delta" ,"id":"a\"}{", "delta":"x","more":{"id":[1,{"id":2}]} } `))
	if err != nil {
		t.Fatal(err)
	}
	if p.Text("id") != `a"}{` || p.Text("more") != "" || p.Text("delta") != "x" {
		t.Errorf("id %q, delta %q", p.Text("id"), p.Text("delta"))
	}
	if raw, ok := p.Field("more"); !ok || string(raw) != `{"id":[1,{"id":2}]}` {
		t.Errorf("more: %s", raw)
	}
	if _, ok := p.Field("less"); ok {
		t.Error("a field that is not there")
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	for _, tt := range []struct {
		name, in, want string
		lossy          bool
	}{
		{"nothing", "", "null", false},
		{"kept", `{"b":1,"a":"\ud83d"}`, `{"b":1,"a":"\ud83d"}`, false},
		{"lines", "{\"a\":\r\n1}", `{"a":1}`, false},
		{"bad UTF-8", "\"a\xffb\"", "\"a\uFFFDb\"", true},
		{"no JSON", "abc\n", `"abc"`, true},
		{"NUL", "\"a\x00\"", `"\"a\u0000\""`, true},
		{"prototype", `{"__proto__":{"constructor":{"prototype":1},"prototype":2}}`, `{"(__proto__)":{"constructor":{"(prototype)":1},"prototype":2}}`, true},
		{"prototype in a list is not own", `{"constructor":[{"prototype":1}]}`, `{"constructor":[{"prototype":1}]}`, false},
		{"prototype as text", `["__proto__"]`, `["__proto__"]`, false},
		{"deep", deep, `"` + deep + `"`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, lossy := uistream.Clean([]byte(tt.in))
			if string(got) != tt.want || lossy != tt.lossy {
				t.Errorf("got %.200s, %v", got, lossy)
			}
		})
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	delta := func(k uistream.BlockKind, id, s string) uistream.Part {
		return uistream.BlockDelta{Kind: k, ID: id, Delta: s}.Part()
	}
	p, ok := uistream.Join(delta(uistream.Text, "a", "x\n"), delta(uistream.Text, "a", "y"))
	if !ok || string(p.Raw) != `{"type":"text-delta","id":"a","delta":"x\ny"}` {
		t.Errorf("%v %s", ok, p.Raw)
	}
	for _, b := range []uistream.Part{
		delta(uistream.Text, "b", "y"), delta(uistream.Reasoning, "a", "y"),
		uistream.BlockEnd{Kind: uistream.Text, ID: "a"}.Part(), delta(uistream.Text, "a", strings.Repeat("y", uistream.MaxPartBytes)),
	} {
		if _, ok := uistream.Join(delta(uistream.Text, "a", "x"), b); ok {
			t.Errorf("joined with %.60s", b.Raw)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{`{"__proto__":1}`, "\xff", `{"constructor":{"prototype":1}}`, `{"a":"\u005f_proto__"}`, "0\f", "[[[", "{\"a\"\n:1}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		v, lossy := uistream.Clean(in)
		if !json.Valid(v) || !utf8.Valid(v) {
			t.Fatalf("not valid: %q", v)
		}
		p := uistream.Data{Name: "x", Data: uistream.Value(in)}.Part()
		if _, err := uistream.Parse(p.Raw); err != nil {
			t.Fatalf("a part with it is refused: %v: %s", err, p.Raw)
		}
		if lossy {
			return
		}
		var a, b any
		if len(strings.Trim(string(in), " \t\r\n")) > 0 && (json.Unmarshal(in, &a) != nil || json.Unmarshal(v, &b) != nil || !cmp.Equal(a, b)) {
			t.Fatalf("changed without saying: %q to %q", in, v)
		}
		if again, l := uistream.Clean(v); l || string(again) != string(v) {
			t.Fatalf("cleaning twice changes: %q to %q", v, again)
		}
	})
}
