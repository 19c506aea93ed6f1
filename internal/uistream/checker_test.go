package uistream_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

const (
	start = `{"type":"start","messageId":"turn_1"}`
	step  = `{"type":"start-step"}`
	tool  = `{"type":"tool-input-start","toolCallId":"c","toolName":"edit","dynamic":true}`
	input = `{"type":"tool-input-available","toolCallId":"c","toolName":"edit","input":{},"dynamic":true}`
	done  = `{"type":"tool-output-available","toolCallId":"c","output":1,"dynamic":true}`
)

// refusals are streams whose last part a driver may not send. Where sdk is set
// the readers of the AI SDK end their stream at it as well.
var refusals = []struct {
	name  string
	parts []string
	why   string
	sdk   bool
}{
	{"no JSON", []string{start, `{nope`}, "not valid JSON", true},
	{"no object", []string{start, `[1]`}, "not a JSON object", true},
	{"empty", []string{start, ``}, "not valid JSON", false},
	{"two lines", []string{start, "{\"type\":\n\"start-step\"}"}, "more than one line", false},
	{"bad UTF-8", []string{start, "{\"type\":\"data-x\",\"data\":\"\xff\"}"}, "UTF-8", false},
	{"no type", []string{start, `{"a":1}`}, "no type", true},
	{"type in capitals", []string{start, `{"Type":"start-step"}`}, "no type", true},
	{"type twice", []string{start, `{"type":"start-step","type":"finish"}`}, "twice", false},
	{"unknown type", []string{start, `{"type":"whatever"}`}, "unknown", true},
	{"type of line 7 only", []string{start, `{"type":"reset-step"}`}, "unknown", false},
	{"prototype name", []string{start, `{"type":"data-x","data":{"a":[{"__proto__":1}]}}`}, "readers refuse", true},
	{"escaped prototype name", []string{start, `{"type":"data-x","data":{"\u005f_proto__":1}}`}, "readers refuse", true},
	{"constructor's prototype", []string{start, `{"type":"data-x","data":{"constructor":{"a":1,"prototype":2}}}`}, "readers refuse", true},
	{"too deep", []string{start, `{"type":"data-x","data":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`}, "deeper", false},
	{"delta missing", []string{start, `{"type":"text-start","id":"t"}`, `{"type":"text-delta","id":"t"}`}, "no field delta", true},
	{"delta null", []string{start, `{"type":"text-start","id":"t"}`, `{"type":"text-delta","id":"t","delta":null}`}, "wrong type", true},
	{"id a number", []string{start, `{"type":"text-start","id":1}`}, "wrong type", true},
	{"title null", []string{start, `{"type":"tool-input-start","toolCallId":"c","toolName":"x","title":null}`}, "wrong type", true},
	{"dynamic a string", []string{start, `{"type":"tool-input-start","toolCallId":"c","toolName":"x","dynamic":"true"}`}, "wrong type", true},
	{"provider metadata flat", []string{start, `{"type":"text-start","id":"t","providerMetadata":{"k":"v"}}`}, "wrong type", true},
	{"tool metadata a list", []string{start, `{"type":"tool-input-start","toolCallId":"c","toolName":"x","toolMetadata":[]}`}, "wrong type", true},
	{"data id a number", []string{start, `{"type":"data-x","id":1,"data":1}`}, "wrong type", true},
	{"input missing", []string{start, `{"type":"tool-input-available","toolCallId":"c","toolName":"x"}`}, "no field input", false},
	{"data name empty", []string{start, `{"type":"data-","data":1}`}, "name", false},
	{"data name odd", []string{start, `{"type":"data-a b","data":1}`}, "name", false},
	{"text before start", []string{`{"type":"text-start","id":"t"}`}, "before the start", false},
	{"start without id", []string{`{"type":"start"}`}, "not the turn", false},
	{"start of another", []string{`{"type":"start","messageId":"turn_2"}`}, "not the turn", false},
	{"start twice", []string{start, start}, "second start", false},
	{"step in step", []string{start, step, step}, "inside another", false},
	{"step ends unbegun", []string{start, `{"type":"finish-step"}`}, "not begun", false},
	{"step ends over text", []string{start, step, `{"type":"text-start","id":"t"}`, `{"type":"finish-step"}`}, "open", false},
	{"step ends over tool", []string{start, step, tool, `{"type":"finish-step"}`}, "open", false},
	{"delta without start", []string{start, `{"type":"text-delta","id":"t","delta":"x"}`}, "not open", true},
	{"delta after end", []string{start, `{"type":"text-start","id":"t"}`, `{"type":"text-end","id":"t"}`, `{"type":"text-delta","id":"t","delta":"x"}`}, "not open", true},
	{"reasoning in a text block", []string{start, `{"type":"text-start","id":"t"}`, `{"type":"reasoning-delta","id":"t","delta":"x"}`}, "not open", true},
	{"block twice", []string{start, `{"type":"text-start","id":"t"}`, `{"type":"text-start","id":"t"}`}, "twice", false},
	{"end twice", []string{start, `{"type":"text-start","id":"t"}`, `{"type":"text-end","id":"t"}`, `{"type":"text-end","id":"t"}`}, "not open", true},
	{"tool twice", []string{start, tool, tool}, "twice", false},
	{"output of nobody", []string{start, done}, "not announced", true},
	{"approval of nobody", []string{start, `{"type":"tool-approval-request","approvalId":"a","toolCallId":"c"}`}, "not announced", true},
	{"denial of nobody", []string{start, `{"type":"tool-output-denied","toolCallId":"c"}`}, "not announced", true},
	{"input delta of nobody", []string{start, `{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"x"}`}, "not announced", true},
	{"input delta after input", []string{start, tool, input, `{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"x"}`}, "input had ended", false},
	{"approval after the end", []string{start, input, done, `{"type":"tool-approval-request","approvalId":"a","toolCallId":"c"}`}, "has ended", false},
	{"finish", []string{start, `{"type":"finish"}`}, "only the server", false},
	{"error", []string{start, `{"type":"error","errorText":"x"}`}, "only the server", true},
	{"abort", []string{start, `{"type":"abort"}`}, "only the server", false},
	{"turn end", []string{start, `{"type":"data-turn-end","data":{}}`}, "only the server", false},
	{"user prompt", []string{start, `{"type":"data-user-prompt","data":{}}`}, "only the server", false},
	{"script address", []string{start, `{"type":"source-url","sourceId":"s","url":"javascript:alert(1)"}`}, "not http", false},
	{"script address in disguise", []string{start, `{"type":"source-url","sourceId":"s","url":"java\tscript:alert(1)"}`}, "not http", false},
	{"file address", []string{start, `{"type":"file","url":"file:///etc/passwd","mediaType":"text/plain"}`}, "not http", false},
	{"page in a data address", []string{start, `{"type":"file","url":"data:text/html,<script>","mediaType":"text/html"}`}, "not http", false},
	{"address without scheme", []string{start, `{"type":"file","url":"//x/y","mediaType":"image/png"}`}, "not http", false},
	{"too large", []string{start, `{"type":"data-x","data":"` + strings.Repeat("x", uistream.MaxPartBytes) + `"}`}, "bytes, more than", false},
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := uistream.NewChecker("turn_1")
			last := len(tt.parts) - 1
			for _, p := range tt.parts[:last] {
				if _, err := c.Check([]byte(p)); err != nil {
					t.Fatalf("an earlier part: %v", err)
				}
			}
			_, err := c.Check([]byte(tt.parts[last]))
			if fault.CodeOf(err) != fault.DriverInvalid || !strings.Contains(fault.From(err).Sentence(), tt.why) {
				t.Fatalf("got %v, want DRIVER_INVALID with %q", err, tt.why)
			}
			if c.Parts() != last {
				t.Errorf("%d parts counted, want %d", c.Parts(), last)
			}
			if len(err.Error()) > 400 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// rich uses every type that a driver sends.
func rich() []uistream.Part {
	at := uistream.At(time.Date(2026, 3, 4, 5, 6, 7, 8900, time.FixedZone("x", 3600)))
	pm := uistream.HearthMeta(uistream.Hearth{At: at, EndAt: at, Lossy: true})
	return []uistream.Part{
		uistream.Start{MessageID: "turn_1", MessageMetadata: uistream.Value(`{"a":{"b":1}}`), At: at}.Part(),
		uistream.StartStep{At: at}.Part(),
		uistream.BlockStart{Kind: uistream.Reasoning, ID: "r", At: at}.Part(),
		uistream.BlockDelta{Kind: uistream.Reasoning, ID: "r", Delta: "hm\u2028m"}.Part(),
		uistream.BlockEnd{Kind: uistream.Reasoning, ID: "r", EndAt: at}.Part(),
		uistream.BlockStart{Kind: uistream.Text, ID: "t", At: at, ProviderMetadata: pm}.Part(),
		uistream.BlockDelta{Kind: uistream.Text, ID: "t", Delta: "a<b>&\x00\x1b[1m \U0001F600"}.Part(),
		uistream.ToolInputStart{ToolCallID: "c", ToolName: "edit", Dynamic: true, Title: "Edit", ToolMetadata: uistream.Value(`{"acp":{"kind":"edit"}}`), ProviderMetadata: pm, At: at}.Part(),
		uistream.BlockDelta{Kind: uistream.Text, ID: "t", Delta: "!", Lossy: true}.Part(),
		uistream.BlockEnd{Kind: uistream.Text, ID: "t", EndAt: at, ProviderMetadata: pm}.Part(),
		uistream.ToolInputDelta{ToolCallID: "c", InputTextDelta: `{"pa`}.Part(),
		uistream.ToolInputAvailable{ToolCallID: "c", ToolName: "edit", Input: uistream.Value(`{"path":"a","__proto__":1}`), Dynamic: true, Title: "Edit a"}.Part(),
		uistream.ToolApprovalRequest{ApprovalID: "q", ToolCallID: "c", At: at}.Part(),
		uistream.Data{Name: uistream.DataPermission, ID: "q", Data: uistream.Value(`{"options":[]}`), At: at}.Part(),
		uistream.ToolOutputAvailable{ToolCallID: "c", Output: uistream.Value(`"so far"`), Preliminary: true, Dynamic: true}.Part(),
		uistream.ToolOutputAvailable{ToolCallID: "c", Output: uistream.Value(`{"ok":true}`), Dynamic: true, ProviderMetadata: pm, EndAt: at}.Part(),
		uistream.ToolInputAvailable{ToolCallID: "d", ToolName: "run", Dynamic: true}.Part(),
		uistream.ToolOutputDenied{ToolCallID: "d", EndAt: at}.Part(),
		uistream.ToolInputError{ToolCallID: "e", ToolName: "run", Input: uistream.Value(`nonsense`), ErrorText: "bad", Dynamic: true}.Part(),
		uistream.ToolInputStart{ToolCallID: "f", ToolName: "run", Dynamic: true}.Part(),
		uistream.ToolOutputError{ToolCallID: "f", ErrorText: "boom", Dynamic: true, EndAt: at}.Part(),
		uistream.SourceURL{SourceID: "s1", URL: "https://example.org/?a=b&c", Title: "E", At: at}.Part(),
		uistream.SourceDocument{SourceID: "s2", MediaType: "text/plain", Title: "notes", Filename: "n.txt"}.Part(),
		uistream.File{URL: "data:image/png;base64,AAAA", MediaType: "image/png"}.Part(),
		uistream.Data{Name: uistream.DataPlan, ID: "plan", Data: uistream.Value(`{"n":1}`)}.Part(),
		uistream.Data{Name: uistream.DataPlan, ID: "plan", Data: uistream.Value(`{"n":2}`)}.Part(),
		uistream.Data{Name: uistream.DataMode, Data: uistream.Value(`1`), Transient: true}.Part(),
		uistream.MessageMetadata{MessageMetadata: uistream.Value(`{"a":{"c":2}}`)}.Part(),
		uistream.FinishStep{EndAt: at}.Part(),
		uistream.Data{Name: uistream.DataDiff, ID: "diff", Data: uistream.Value(`{}`)}.Part(),
	}
}

var ending = []uistream.Part{
	uistream.Data{Name: uistream.DataTurnEnd, Data: uistream.Value(`{"state":"completed"}`)}.Part(),
	uistream.Finish{FinishReason: uistream.FinishStop}.Part(),
}

func TestRichTurnIsAccepted(t *testing.T) {
	t.Parallel()
	c := uistream.NewChecker("turn_1")
	var size int64
	for _, p := range rich() {
		got, err := c.Check(p.Raw)
		if err != nil {
			t.Fatalf("%v\n%s", err, p.Raw)
		}
		if got.Type != p.Type {
			t.Errorf("type %q of %s", got.Type, p.Raw)
		}
		size += int64(len(p.Raw))
	}
	if c.Parts() != len(rich()) || c.Bytes() != size {
		t.Errorf("%d parts of %d bytes", c.Parts(), c.Bytes())
	}
	if left := c.Close("x", time.Time{}); len(left) != 0 {
		t.Errorf("something was open: %s", left[0].Raw)
	}
	for _, p := range ending {
		if _, err := c.Stored(p.Raw); err != nil {
			t.Fatal(err)
		}
	}
	if !c.Finished() {
		t.Error("not finished")
	}
	if _, err := c.Check([]byte(`{"type":"data-x","data":1}`)); err == nil {
		t.Error("a part after the finish was taken")
	}
	if c.Close("x", time.Time{}) != nil {
		t.Error("closed after the finish")
	}
}

// TestCloseAnywhere cuts the turn after each part, as a driver's death does,
// rebuilds the checker from what was stored, and closes.
func TestCloseAnywhere(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for n := range len(rich()) + 1 {
		first, again := uistream.NewChecker("turn_1"), uistream.NewChecker("turn_1")
		var stored []uistream.Part
		for _, p := range rich()[:n] {
			if _, err := first.Check(p.Raw); err != nil {
				t.Fatal(err)
			}
			if _, err := again.Stored(p.Raw); err != nil {
				t.Fatal(err)
			}
			stored = append(stored, p)
		}
		want := first.Close("the driver ended", now)
		got := again.Close("the driver ended", now)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("after %d parts the rebuilt checker closes differently:\n%s", n, d)
		}
		if len(again.OpenTools()) != 0 || again.Close("x", now) != nil {
			t.Errorf("after %d parts something stayed open", n)
		}
		// A fresh judge must take the closing parts and the server's end.
		judge := uistream.NewChecker("turn_1")
		for _, p := range append(append(stored, got...), ending...) {
			if _, err := judge.Stored(p.Raw); err != nil {
				t.Fatalf("after %d parts: %v\n%s", n, err, p.Raw)
			}
		}
	}
}

func TestCloseNamesTheReason(t *testing.T) {
	t.Parallel()
	c := uistream.NewChecker("turn_1")
	for _, p := range []string{start, step, `{"type":"reasoning-start","id":"r"}`, tool} {
		if _, err := c.Check([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, p := range c.Close("The sandbox ended.", time.Time{}) {
		got = append(got, string(p.Raw))
	}
	want := []string{
		`{"type":"reasoning-end","id":"r"}`,
		`{"type":"tool-output-error","toolCallId":"c","errorText":"The sandbox ended.","dynamic":true,"providerMetadata":{"hearth":{"interrupted":true}}}`,
		`{"type":"finish-step"}`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestManyOpenBlocksAreRefused(t *testing.T) {
	t.Parallel()
	c := uistream.NewChecker("turn_1")
	if _, err := c.Check([]byte(start)); err != nil {
		t.Fatal(err)
	}
	for i := range 65 {
		_, err := c.Check(fmt.Appendf(nil, `{"type":"text-start","id":"%d"}`, i))
		if (err != nil) != (i == 64) {
			t.Fatalf("block %d: %v", i, err)
		}
	}
}

func TestStoredTakesNoTransportParts(t *testing.T) {
	t.Parallel()
	for _, p := range []uistream.Part{uistream.Error{ErrorText: "x"}.Part(), uistream.Abort{Reason: "x"}.Part()} {
		c := uistream.NewChecker("turn_1")
		if _, err := c.Stored([]byte(start)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Stored(p.Raw); err == nil {
			t.Errorf("%s was taken", p.Raw)
		}
	}
}

func FuzzChecker(f *testing.F) {
	for _, tt := range refusals {
		f.Add(strings.Join(tt.parts, "\n"))
	}
	var all []string
	for _, p := range rich() {
		all = append(all, string(p.Raw))
	}
	f.Add(strings.Join(all, "\n"))
	f.Fuzz(func(t *testing.T, lines string) {
		c, again := uistream.NewChecker("turn_1"), uistream.NewChecker("turn_1")
		for _, l := range strings.Split(lines, "\n") {
			p, err := c.Check([]byte(l))
			if err != nil {
				continue
			}
			var v struct {
				Type string `json:"type"`
			}
			if err := json.Unmarshal(p.Raw, &v); err != nil || string(p.Raw) != l {
				t.Fatalf("taken, but %v: %q", err, l)
			}
			if _, err := again.Stored(p.Raw); err != nil {
				t.Fatalf("taken and not taken again: %v: %q", err, l)
			}
		}
		c.Close("x", time.Time{})
		if _, err := c.Stored(ending[1].Raw); err != nil {
			t.Fatalf("not finished after closing: %v", err)
		}
	})
}
