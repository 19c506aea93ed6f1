package uistream_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/uistream"
	"github.com/hearthd/hearth/internal/uistream/npmtest"
)

func messageOf(t testing.TB, parts []uistream.Part) *uistream.Message {
	t.Helper()
	m := uistream.NewMessage("turn_1")
	for _, p := range parts {
		if err := m.Add(p.Raw); err != nil {
			t.Fatalf("%v\n%s", err, p.Raw)
		}
	}
	return m
}

func valueOf(t testing.TB, v any) any {
	t.Helper()
	raw, ok := v.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(v); err != nil {
			t.Fatal(err)
		}
	}
	var out any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return out
}

// written makes a reader show all that it has: it does so with every data part.
var written = uistream.Data{Name: "written", Data: uistream.Value("1")}.Part()

func lines(texts ...string) []uistream.Part {
	var out []uistream.Part
	for _, l := range texts {
		out = append(out, uistream.Part{Raw: []byte(l)})
	}
	return out
}

// sameAsSDK holds the messages that the reducer makes against those of the SDK.
func sameAsSDK(t *testing.T, streams []npmtest.Stream) {
	t.Helper()
	eachLine(t, streams, func(t *testing.T, all map[string]npmtest.Result) {
		for _, s := range streams {
			got := all[s.Name]
			if got.Error != "" || len(got.JSON) != 1 {
				t.Errorf("%s: the SDK made %d messages: %s", s.Name, len(got.JSON), got.Error)
				continue
			}
			if d := cmp.Diff(valueOf(t, got.JSON[0]), valueOf(t, messageOf(t, s.Parts))); d != "" {
				var b strings.Builder
				for _, p := range s.Parts {
					fmt.Fprintf(&b, "%.300s\n", p.Raw)
				}
				t.Errorf("%s (-SDK +ours):\n%s\nof\n%s", s.Name, d, b.String())
			}
		}
	})
}

// TestMessageIsTheSDKs cuts a turn with every kind of part behind each of them: a
// page is seeded with the message of a turn at work.
func TestMessageIsTheSDKs(t *testing.T) {
	t.Parallel()
	all := append(rich(), ending...)
	var streams []npmtest.Stream
	for n := 1; n <= len(all); n++ {
		parts := append([]uistream.Part{}, all[:n]...)
		if n < len(all) {
			parts = append(parts, written)
		}
		streams = append(streams, npmtest.Stream{Name: fmt.Sprintf("rich-%d", n), Parts: parts})
	}
	sameAsSDK(t, streams)
}

func TestMessagesOfRecordings(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../driver/convert/testdata/golden/*.jsonl")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	var streams []npmtest.Stream
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		c := uistream.NewChecker("turn_1")
		var parts []uistream.Part
		for _, p := range lines(strings.Split(strings.TrimSpace(string(b)), "\n")...) {
			if _, err := c.Stored(p.Raw); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			parts = append(parts, p)
		}
		if !c.Finished() {
			parts = append(append(parts, c.Close("cut", time.Time{})...), ending...)
		}
		streams = append(streams, npmtest.Stream{Name: filepath.Base(f), Parts: parts})
	}
	sameAsSDK(t, streams)
}

// odd are sequences that no agent of ours brings and a checker takes.
var odd = map[string][]string{
	"half characters": {
		`{"type":"text-start","id":"a"}`, `{"type":"text-delta","id":"a","delta":"\ud83d"}`, `{"type":"text-delta","id":"a","delta":"\ude00 \ud83d"}`,
		`{"type":"tool-input-start","toolCallId":"c","toolName":"n","dynamic":true}`, `{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"{\"a\":\"\ud83d"}`,
		`{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"\ude00"}`,
	},
	"a block again": {
		`{"type":"reasoning-start","id":"a","providerMetadata":{"p":{"n":1}}}`, `{"type":"reasoning-delta","id":"a","delta":"x","providerMetadata":{"p":{"n":2}}}`, `{"type":"reasoning-end","id":"a"}`,
		`{"type":"reasoning-start","id":"a"}`, `{"type":"text-start","id":"a"}`, `{"type":"text-delta","id":"a","delta":""}`,
	},
	"a call of both kinds": {
		`{"type":"tool-input-start","toolCallId":"c","toolName":"n","dynamic":true,"title":"T"}`, `{"type":"tool-input-available","toolCallId":"c","toolName":"m","input":{"a":1}}`,
		`{"type":"tool-output-available","toolCallId":"c","output":1,"preliminary":false,"providerExecuted":false}`, `{"type":"tool-output-error","toolCallId":"c","errorText":"e"}`,
	},
	"a call over steps": {
		`{"type":"tool-input-start","toolCallId":"c","toolName":"n","dynamic":true,"providerExecuted":true}`, `{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"{\"a\""}`, `{"type":"start-step"}`,
		`{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":":tr"}`, `{"type":"tool-output-available","toolCallId":"c","output":null,"preliminary":true}`,
		`{"type":"tool-input-available","toolCallId":"c","toolName":"n2","input":null,"dynamic":true,"title":""}`,
	},
	"an end of the step before": {
		`{"type":"tool-input-available","toolCallId":"c","toolName":"n","input":1,"dynamic":true}`, `{"type":"tool-input-available","toolCallId":"c","toolName":"s","input":2}`, `{"type":"start-step"}`,
		`{"type":"tool-output-available","toolCallId":"c","output":{"x":[1]},"toolMetadata":{"k":1}}`,
	},
	"input as text": {
		`{"type":"tool-input-start","toolCallId":"c","toolName":"n","inputEncoding":"text"}`, `{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"{\"a\":"}`, `{"type":"tool-output-error","toolCallId":"c","errorText":"e"}`,
	},
	"questions": {
		`{"type":"tool-input-available","toolCallId":"c","toolName":"n","input":1,"dynamic":true}`,
		`{"type":"tool-approval-request","approvalId":"q","toolCallId":"c","approvalDescriptor":{"a":1},"inputSchemaInput":null,"signature":"s"}`,
		`{"type":"tool-input-available","toolCallId":"c","toolName":"n","input":2,"dynamic":true}`, `{"type":"tool-approval-request","approvalId":"r","toolCallId":"c","approvalDescriptor":null}`, `{"type":"tool-output-denied","toolCallId":"c"}`,
	},
	"data": {
		`{"type":"data-a","id":"1","data":{"n":1},"at":"x","more":[1]}`, `{"type":"data-a","id":"1","data":null,"at":"y"}`, `{"type":"data-a","data":1}`, `{"type":"data-a","data":2,"transient":false}`, `{"type":"data-a","id":"","data":1}`,
		`{"type":"data-a","id":"","data":2}`, `{"type":"data-b","id":"1","data":3}`, `{"type":"data-b","id":"1","data":4,"transient":true}`,
	},
	"metadata": {
		`{"type":"message-metadata","messageMetadata":{"a":{"b":{"c":1},"l":[1]},"constructor":1,"toString":2,"n":null}}`, `{"type":"message-metadata","messageMetadata":{"a":{"b":{"d":2},"l":[2],"constructor":3},"constructor":5,"prototype":4,"valueOf":{"x":1},"n":{"prototype":1}}}`,
		`{"type":"message-metadata","messageMetadata":{"a":{"b":7,"b":{"e":1}},"toString":{"y":1}}}`, `{"type":"message-metadata","messageMetadata":{"a":null}}`, `{"type":"message-metadata","messageMetadata":{}}`,
	},
}

func TestOddMessagesAreTheSDKs(t *testing.T) {
	t.Parallel()
	var streams []npmtest.Stream
	for name, parts := range odd {
		for n := 1; n <= len(parts); n++ {
			s := npmtest.Stream{Name: fmt.Sprintf("%s-%d", strings.ReplaceAll(name, " ", "-"), n), Parts: lines(`{"type":"start","messageId":"turn_1"}`)}
			s.Parts = append(append(s.Parts, lines(parts[:n]...)...), written)
			c := uistream.NewChecker("turn_1")
			for _, p := range s.Parts {
				if _, err := c.Stored(p.Raw); err != nil {
					t.Fatalf("%s: %v", s.Name, err)
				}
			}
			streams = append(streams, s)
		}
	}
	sameAsSDK(t, streams)
}

// cuts are texts of a tool's input, read at every place.
var cuts = []string{
	`{"path":"a\"b\\\u00e9\n","n":-12.5e+3,"t":true,"f":false,"z":null,"l":[1,"x",{"y":[]}],"o":{}}`, `[ 1,-2,[2],"3" ,true ]`, ` "text`, `12`, `tru`, `{"a":1}}`, `{"a":nul,`, `{"__proto__":1,"b":`, "{\n \"a\" : [ 1 , 2 ] }",
	`{"ü":"größe`, `{"constructor":{"prototype":1}`, `{"a":01`, `]`, `{"a" "b"`, "\"a\x01",
}

func TestInputsThatWereCutAreTheSDKs(t *testing.T) {
	t.Parallel()
	var streams []npmtest.Stream
	for i, text := range cuts {
		for n := range []byte(text) {
			prefix := strings.ToValidUTF8(text[:n+1], "")
			streams = append(streams, npmtest.Stream{Name: fmt.Sprintf("cut-%d-%d", i, n), Parts: []uistream.Part{
				uistream.Start{MessageID: "turn_1"}.Part(), uistream.ToolInputStart{ToolCallID: "c", ToolName: "n", Dynamic: true}.Part(),
				uistream.ToolInputDelta{ToolCallID: "c", InputTextDelta: prefix}.Part(),
			}})
		}
	}
	sameAsSDK(t, streams)
}

// draw makes a part that a checker may take or not; ids are few, so that parts meet.
func draw(r *rand.Rand) string {
	of := func(s ...string) string { return s[r.IntN(len(s))] }
	id := of("a", "b", "c")
	call := of(id, id, "e")
	meta := of("", "", `,"providerMetadata":{"p":{"n":1}}`, `,"providerMetadata":{"q":{}}`)
	tool := of("", `,"dynamic":true`, `,"dynamic":true`, `,"dynamic":true`, `,"dynamic":false`) + of("", "", `,"providerExecuted":true`, `,"providerExecuted":false`) + of("", "", `,"toolMetadata":{"a":1}`, `,"toolMetadata":{}`) + meta
	name := of("edit", "run")
	value := of("null", "1", `"s"`, `{"a":[1,{"b":"<"}]}`, "[]", "true")
	title := of("", `,"title":"One"`, `,"title":"Two"`, `,"title":""`)
	switch kind := of("text", "reasoning"); r.IntN(17) {
	case 0, 1:
		return fmt.Sprintf(`{"type":"%s-start","id":"%s"%s}`, kind, id, meta)
	case 2, 3:
		return fmt.Sprintf(`{"type":"%s-delta","id":"%s","delta":"%s"%s}`, kind, id, of("x", "", `\n`, "é", `\ud83d`, `\ude00`, `\"`), meta)
	case 4:
		return fmt.Sprintf(`{"type":"%s-end","id":"%s"%s}`, kind, id, meta)
	case 5:
		return fmt.Sprintf(`{"type":"tool-input-start","toolCallId":"%s","toolName":"%s"%s%s%s}`, id, name, tool, title, of("", "", `,"inputEncoding":"text"`, `,"inputEncoding":"json"`))
	case 6, 7:
		return fmt.Sprintf(`{"type":"tool-input-delta","toolCallId":"%s","inputTextDelta":"%s"}`, id, of(`{\"a\":`, `1`, `,\"b\":\"x`, `\"`, `}`, `tr`, `ue`))
	case 8:
		return fmt.Sprintf(`{"type":"tool-input-available","toolCallId":"%s","toolName":"%s","input":%s%s%s}`, id, name, value, tool, title)
	case 9: // a call that is always dynamic: else the lines differ
		return of(
			fmt.Sprintf(`{"type":"tool-input-error","toolCallId":"e","toolName":"%s","input":%s,"errorText":"no"%s,"dynamic":true%s}`, name, value, meta, title),
			fmt.Sprintf(`{"type":"tool-input-available","toolCallId":"e","toolName":"%s","input":%s%s,"dynamic":true%s}`, name, value, meta, title))
	case 10:
		return fmt.Sprintf(`{"type":"tool-approval-request","toolCallId":"%s","approvalId":"%s"}`, call, of("q", "r"))
	case 11, 12:
		return fmt.Sprintf(`{"type":"tool-output-available","toolCallId":"%s","output":%s%s%s}`, call, value, tool, of("", `,"preliminary":true`, `,"preliminary":false`))
	case 13:
		return fmt.Sprintf(`{"type":"tool-output-error","toolCallId":"%s","errorText":"e"%s}`, call, tool)
	case 14:
		return of(fmt.Sprintf(`{"type":"tool-output-denied","toolCallId":"%s"}`, call), `{"type":"start-step"}`, `{"type":"finish-step"}`, `{"type":"start-step","at":"x"}`)
	case 15:
		return of(
			fmt.Sprintf(`{"type":"data-%s","id":"%s","data":%s%s}`, of("plan", "usage"), id, value, of("", `,"at":"x"`, `,"transient":true`, `,"transient":false`)),
			fmt.Sprintf(`{"type":"data-note","data":%s}`, value), `{"type":"source-url","sourceId":"s","url":"https://example.org/"}`, `{"type":"file","url":"https://example.org/a.png","mediaType":"image/png"}`,
			`{"type":"source-document","sourceId":"s","mediaType":"text/plain","title":"t"}`)
	}
	return fmt.Sprintf(`{"type":"message-metadata","messageMetadata":{"%s":%s}}`, of("k", "l"), of("1", "null", `{"x":1}`, `{"y":{"z":1}}`, `{"y":{"w":[]}}`, "[1]"))
}

func TestRandomMessagesAreTheSDKs(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same sequences each time
	var streams []npmtest.Stream
	for i := range 30 {
		c := uistream.NewChecker("turn_1")
		parts := []uistream.Part{uistream.Start{MessageID: "turn_1"}.Part()}
		if _, err := c.Stored(parts[0].Raw); err != nil {
			t.Fatal(err)
		}
		for range 90 {
			if p, err := c.Stored([]byte(draw(r))); err == nil {
				parts = append(parts, p)
			}
		}
		if i%2 == 0 {
			parts = append(append(parts, c.Close("cut", time.Time{})...), ending...)
		} else {
			parts = append(parts, written)
		}
		streams = append(streams, npmtest.Stream{Name: fmt.Sprintf("random-%d", i), Parts: parts})
	}
	sameAsSDK(t, streams)
}

// TestWhereTheLinesDiffer: the reducer does as version 7, and version 6 does not.
func TestWhereTheLinesDiffer(t *testing.T) {
	t.Parallel()
	const start = `{"type":"start","messageId":"turn_1"}`
	streams := []npmtest.Stream{
		{Name: "static-input-error", Parts: lines(start, `{"type":"tool-input-error","toolCallId":"c","toolName":"n","input":{"a":1},"errorText":"e"}`)},
		{Name: "reason", Parts: lines(start, `{"type":"tool-input-available","toolCallId":"c","toolName":"n","input":1,"dynamic":true}`, `{"type":"tool-approval-request","approvalId":"q","toolCallId":"c","reason":"why","isAutomatic":true}`)},
		{Name: "list", Parts: lines(start, `{"type":"tool-input-start","toolCallId":"c","toolName":"n","dynamic":true}`, `{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"[1,[-"}`)},
	}
	eachLine(t, streams, func(t *testing.T, all map[string]npmtest.Result) {
		for _, s := range streams {
			got := all[s.Name]
			if got.Error != "" || len(got.JSON) != 1 {
				t.Fatalf("%s: %d messages, %s", s.Name, len(got.JSON), got.Error)
			}
			d := cmp.Diff(valueOf(t, got.JSON[0]), valueOf(t, messageOf(t, s.Parts)))
			if v6 := strings.HasSuffix(t.Name(), "/ai6"); v6 != (d != "") {
				t.Errorf("%s (-SDK +ours):\n%s", s.Name, d)
			}
		}
	})
}

// TestFieldsOfOneLine: version 7 ends its stream at what it reads strictly and version
// 6 does not know; a checker does not let it through.
func TestFieldsOfOneLine(t *testing.T) {
	t.Parallel()
	const start, call = `{"type":"start","messageId":"turn_1"}`, `{"type":"tool-input-available","toolCallId":"c","toolName":"n","input":1,"dynamic":true}`
	streams := []npmtest.Stream{
		{Name: "citations", Parts: lines(start, `{"type":"text-start","id":"t"}`, `{"type":"text-end","id":"t","citations":5}`)},
		{Name: "reason", Parts: lines(start, call, `{"type":"tool-approval-request","approvalId":"q","toolCallId":"c","reason":5}`)},
		{Name: "automatic", Parts: lines(start, call, `{"type":"tool-approval-request","approvalId":"q","toolCallId":"c","isAutomatic":"yes"}`)},
	}
	for _, s := range streams {
		c := uistream.NewChecker("turn_1")
		var err error
		for _, p := range s.Parts {
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			_, err = c.Stored(p.Raw)
		}
		if err == nil {
			t.Errorf("%s is taken", s.Name)
		}
	}
	eachLine(t, streams, func(t *testing.T, all map[string]npmtest.Result) {
		for name, got := range all {
			if v7 := strings.HasSuffix(t.Name(), "/ai7"); v7 != (got.Error != "") {
				t.Errorf("%s: %q", name, got.Error)
			}
		}
	})
}

func TestMessageRefuses(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]string{
		"an error part":  {`{"type":"error","errorText":"x"}`},
		"another start":  {`{"type":"start","messageId":"turn_1"}`, `{"type":"start","messageId":"turn_2"}`},
		"a delta alone":  {`{"type":"text-delta","id":"a","delta":"x"}`},
		"input alone":    {`{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"x"}`},
		"output alone":   {`{"type":"tool-output-denied","toolCallId":"c"}`},
		"no JSON":        {`{"type":`},
		"a missing name": {`{"type":"tool-input-available","toolCallId":"c","input":1}`},
	} {
		m := uistream.NewMessage("turn_1")
		var err error
		for _, p := range parts {
			err = m.Add([]byte(p))
		}
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestMessageKeepsTheLetter: values are as the parts had them, beyond what a JavaScript number holds.
func TestMessageKeepsTheLetter(t *testing.T) {
	t.Parallel()
	const input, output = `{"n":12345678901234567890.10, "n":1e999}`, `"<a>&\u003c\/"`
	m := messageOf(t, lines(`{"type":"tool-input-available","toolCallId":"c","toolName":"n","input":`+input+`,"dynamic":true}`, `{"type":"tool-output-available","toolCallId":"c","output":`+output+`}`))
	p := m.Parts()[0]
	in, _ := p.Field("input")
	out, _ := p.Field("output")
	if string(in) != input || string(out) != output || p.Text("output") != "<a>&</" {
		t.Errorf("%s %s", in, out)
	}
	b, err := m.MarshalJSON()
	if err != nil || !strings.Contains(string(b), input) || !strings.Contains(string(b), output) {
		t.Errorf("%v %s", err, b)
	}
}

func TestMessageSizeIsBounded(t *testing.T) {
	t.Parallel()
	m := uistream.NewMessage("turn_1")
	big := `"` + strings.Repeat("x", 100<<10) + `"`
	add := func(p string) {
		if err := m.Add([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	add(`{"type":"tool-input-available","toolCallId":"c","toolName":"n","input":{},"dynamic":true}`)
	for range 50 {
		add(`{"type":"tool-output-available","toolCallId":"c","preliminary":true,"output":` + big + `}`)
		add(`{"type":"data-plan","id":"plan","data":` + big + `}`)
	}
	if n := m.Size(); n < 200<<10 || n > 210<<10 {
		t.Errorf("%d bytes for two values of 100 KiB", n)
	}
}

func FuzzMessage(f *testing.F) {
	var all []string
	for _, p := range append(rich(), ending...) {
		all = append(all, string(p.Raw))
	}
	f.Add(strings.Join(all, "\n"))
	for _, parts := range odd {
		f.Add("{\"type\":\"start\",\"messageId\":\"turn_1\"}\n" + strings.Join(parts, "\n"))
	}
	for _, tt := range refusals {
		f.Add(strings.Join(tt.parts, "\n"))
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, m, any := uistream.NewChecker("turn_1"), uistream.NewMessage("turn_1"), uistream.NewMessage("")
		for _, l := range strings.Split(text, "\n") {
			_ = any.Add([]byte(l)) // never panics
			if _, err := c.Stored([]byte(l)); err != nil {
				continue
			}
			if err := m.Add([]byte(l)); err != nil {
				t.Fatalf("a checker takes it: %v", err)
			}
		}
		for _, m := range []*uistream.Message{m, any} {
			b, err := m.MarshalJSON()
			if err != nil || !json.Valid(b) || m.Size() < 0 {
				t.Fatalf("%v, size %d: %q", err, m.Size(), b)
			}
		}
	})
}
