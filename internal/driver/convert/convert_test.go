package convert_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
)

// turn drives a converter and holds every part against the checker at once.
type turn struct {
	t     testing.TB
	c     *convert.Converter
	check *uistream.Checker
	now   time.Time
	parts []uistream.Part
	kept  *kept
}

func begin(t testing.TB, o convert.Options) *turn {
	t.Helper()
	x := &turn{t: t, check: uistream.NewChecker("turn_1"), now: epoch, kept: &kept{}}
	o.Blobs = x.kept
	x.c = convert.New("turn_1", func() time.Time { return x.now }, o)
	x.take(x.c.Begin())
	return x
}

// take checks parts and returns them without times, one a line.
func (x *turn) take(parts []uistream.Part) []string {
	x.t.Helper()
	var out []string
	for _, p := range parts {
		if _, err := x.check.Check(p.Raw); err != nil {
			x.t.Fatalf("%v\n%.2000s", err, p.Raw)
		}
		if _, changed := uistream.PlainJSON(p.Raw); changed {
			x.t.Fatalf("a part steers terminals: %.2000q", p.Raw)
		}
		out = append(out, plain(p))
	}
	x.parts = append(x.parts, parts...)
	return out
}

func (x *turn) say(update string) []string {
	x.t.Helper()
	return x.take(x.c.Update(json.RawMessage(update)))
}

func (x *turn) later(d time.Duration) { x.now = x.now.Add(d) }

func (x *turn) end(e convert.End) []string {
	x.t.Helper()
	out := x.take(x.c.End(e))
	if left := x.check.Close("x", x.now); len(left) > 0 {
		x.t.Errorf("left open: %s", left[0].Raw)
	}
	return out
}

// plain is a part without times and the metadata that holds only them.
func plain(p uistream.Part) string {
	d := json.NewDecoder(bytes.NewReader(p.Raw))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return err.Error()
	}
	delete(m, "at")
	delete(m, "endAt")
	delete(m, "dynamic")
	if pm, ok := m["providerMetadata"].(map[string]any); ok {
		h, _ := pm["hearth"].(map[string]any)
		delete(h, "at")
		delete(h, "endAt")
		delete(m, "providerMetadata")
		for k, v := range h {
			m["hearth."+k] = v
		}
	}
	kind := m["type"]
	delete(m, "type")
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(m)
	return fmt.Sprintf("%s %s", kind, strings.TrimSpace(b.String()))
}

func chunk(text, id string) string {
	b, _ := json.Marshal(text)
	if id != "" {
		id = `,"messageId":"` + id + `"`
	}
	return `{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":` + string(b) + `}` + id + `}`
}

func thought(text string) string {
	return strings.Replace(chunk(text, ""), "message_chunk", "thought_chunk", 1)
}

func toolUpdate(fields string) string {
	return `{"sessionUpdate":"tool_call_update","toolCallId":"c",` + fields + `}`
}

func TestUpdates(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		updates []string
		want    []string
	}{
		{"a kind of its own begins a block", []string{thought("a"), thought("b"), chunk("c", ""), chunk("", ""), chunk("d", "")}, []string{
			`reasoning-start {"id":"reasoning-1"}`, `reasoning-delta {"delta":"a","id":"reasoning-1"}`, `reasoning-delta {"delta":"b","id":"reasoning-1"}`,
			`reasoning-end {"id":"reasoning-1"}`, `text-start {"id":"text-2"}`, `text-delta {"delta":"c","id":"text-2"}`, `text-delta {"delta":"d","id":"text-2"}`,
		}},
		{"a message id begins a block", []string{chunk("a", "m1"), chunk("b", "m1"), chunk("c", ""), chunk("d", "m2")}, []string{
			`text-start {"hearth.agent":"m1","id":"text-1"}`, `text-delta {"delta":"a","id":"text-1"}`, `text-delta {"delta":"b","id":"text-1"}`,
			`text-delta {"delta":"c","id":"text-1"}`, `text-end {"hearth.agent":"m1","id":"text-1"}`,
			`text-start {"hearth.agent":"m2","id":"text-2"}`, `text-delta {"delta":"d","id":"text-2"}`,
		}},
		{"a tool call ends a block, its progress does not, its end does", []string{
			chunk("a", ""), toolUpdate(`"status":"pending"`), chunk("b", ""), toolUpdate(`"title":"T"`), chunk("c", ""), toolUpdate(`"status":"completed"`), chunk("d", ""),
		}, []string{
			`text-start {"id":"text-1"}`, `text-delta {"delta":"a","id":"text-1"}`, `text-end {"id":"text-1"}`, `tool-input-start {"toolCallId":"c","toolName":"tool"}`,
			`text-start {"id":"text-2"}`, `text-delta {"delta":"b","id":"text-2"}`, `text-delta {"delta":"c","id":"text-2"}`, `text-end {"id":"text-2"}`,
			`tool-input-available {"input":{},"title":"T","toolCallId":"c","toolName":"tool"}`,
			`tool-output-available {"output":{"content":[],"rawOutput":null},"toolCallId":"c"}`,
			`text-start {"id":"text-3"}`, `text-delta {"delta":"d","id":"text-3"}`,
		}},
		{"an update comes first and all at once", []string{toolUpdate(`"name":"Edit","kind":"edit","title":"Edit a","status":"completed","rawInput":{"p":1},"rawOutput":"ok","locations":[{"path":"/a"}]`)}, []string{
			`tool-input-start {"title":"Edit a","toolCallId":"c","toolMetadata":{"acp":{"kind":"edit","locations":[{"path":"/a"}]}},"toolName":"Edit"}`,
			`tool-input-available {"input":{"p":1},"title":"Edit a","toolCallId":"c","toolMetadata":{"acp":{"kind":"edit","locations":[{"path":"/a"}]}},"toolName":"Edit"}`,
			`tool-output-available {"output":{"content":[],"rawOutput":"ok"},"toolCallId":"c"}`,
		}},
		{"an input that comes late and goes again", []string{
			toolUpdate(`"rawInput":{}`), toolUpdate(`"rawInput":{"a":1}`), toolUpdate(`"rawInput":{},"status":"completed"`), toolUpdate(`"status":"completed"`),
		}, []string{
			`tool-input-start {"toolCallId":"c","toolName":"tool"}`, `tool-input-available {"input":{"a":1},"toolCallId":"c","toolName":"tool"}`,
			`tool-output-available {"output":{"content":[],"rawOutput":null},"toolCallId":"c"}`,
		}},
		{"a failure says why", []string{
			toolUpdate(`"status":"failed","content":[{"type":"content","content":{"type":"text","text":"no such file"}}]`),
		}, []string{
			`tool-input-start {"toolCallId":"c","toolName":"tool"}`, `tool-input-available {"input":{},"toolCallId":"c","toolName":"tool"}`,
			`tool-output-error {"errorText":"no such file","toolCallId":"c","toolMetadata":{"acp":{"output":{"content":[{"content":{"text":"no such file","type":"text"},"type":"content"}],"rawOutput":null}}}}`,
		}},
		{"a failure that says nothing", []string{toolUpdate(`"status":"failed","rawOutput":{"error":""}`)}, []string{
			`tool-input-start {"toolCallId":"c","toolName":"tool"}`, `tool-input-available {"input":{},"toolCallId":"c","toolName":"tool"}`,
			`tool-output-error {"errorText":"The tool call failed.","toolCallId":"c","toolMetadata":{"acp":{"output":{"content":[],"rawOutput":{"error":""}}}}}`,
		}},
		{"a proposed change is no output", []string{toolUpdate(`"status":"pending","rawInput":{"a":1},"content":[{"type":"diff","path":"/a","newText":"x"}]`)}, []string{
			`tool-input-start {"toolCallId":"c","toolName":"tool"}`, `tool-input-available {"input":{"a":1},"toolCallId":"c","toolName":"tool"}`,
		}},
		{"data with a fixed id comes when it changes", []string{
			`{"sessionUpdate":"plan","entries":[{"content":"a"}]}`, `{"sessionUpdate":"plan","entries":[{"content":"a"}]}`, `{"sessionUpdate":"plan","entries":[]}`,
			`{"sessionUpdate":"usage_update","used":1,"size":"x","cost":{"amount":0.10,"currency":"USD"}}`, `{"sessionUpdate":"usage_update","used":1,"size":"y","cost":{"amount":0.10,"currency":"USD"}}`,
		}, []string{
			`data-plan {"data":{"entries":[{"content":"a"}]},"id":"plan"}`, `data-plan {"data":{"entries":[]},"id":"plan"}`,
			`data-usage {"data":{"cost":{"amount":0.10,"currency":"USD"},"used":1},"id":"usage"}`,
		}},
		{"what only describes the session is transient", []string{
			`{"sessionUpdate":"current_mode_update","currentModeId":"yolo"}`, `{"sessionUpdate":"config_option_update","configOptions":[{"id":"m","x":1}]}`,
			`{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"plan"}]}`, `{"sessionUpdate":"session_info_update","title":"T"}`,
			`{"sessionUpdate":"session_info_update","_meta":{"a":1}}`, `{"sessionUpdate":"from_the_future","b":1,"a":2}`, `[7]`, `nonsense`,
			`{"sessionUpdate":"tool_call","title":"no id"}`,
		}, []string{
			`data-mode {"data":{"currentModeId":"yolo"},"transient":true}`, `data-config {"data":{"configOptions":[{"id":"m","x":1}]},"transient":true}`,
			`data-commands {"data":{"availableCommands":[{"name":"plan"}]},"transient":true}`, `data-session {"data":{"title":"T"},"transient":true}`,
			`data-acp {"data":{"_meta":{"a":1},"sessionUpdate":"session_info_update"},"transient":true}`, `data-acp {"data":{"a":2,"b":1,"sessionUpdate":"from_the_future"},"transient":true}`,
			`data-acp {"data":[7],"transient":true}`, `data-acp {"data":"nonsense","lossy":true,"transient":true}`,
			`data-acp {"data":{"sessionUpdate":"tool_call","title":"no id"},"transient":true}`,
		}},
		{"notices stay", []string{`{"sessionUpdate":"notice","level":"warning","text":"x"}`, `{"sessionUpdate":"compaction_update","status":"done"}`}, []string{
			`data-notice {"data":{"level":"warning","text":"x"}}`, `data-compaction {"data":{"sessionUpdate":"compaction_update","status":"done"}}`,
		}},
		{"noise is no answer", []string{chunk("a", ""), chunk("[MODE_UPDATE] yolo", ""), chunk("b", "")}, []string{
			`text-start {"id":"text-1"}`, `text-delta {"delta":"a","id":"text-1"}`, `text-end {"id":"text-1"}`, `data-notice {"data":{"source":"agent","text":"[MODE_UPDATE] yolo"}}`,
			`text-start {"id":"text-2"}`, `text-delta {"delta":"b","id":"text-2"}`,
		}},
		{"the prompt's echo is left out", []string{`{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"hi"}}`}, nil},
		{"content that is no text", []string{
			chunk("a", ""),
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"AAAA","mimeType":"image/png"}}`,
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"A\"A","mimeType":"image/png"}}`,
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"AAAA","mimeType":"text/html"}}`,
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"audio","data":"AAAA","mimeType":"audio/wav"}}`,
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"resource_link","uri":"https://x.org/a","name":"a"}}`,
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"resource_link","uri":"file:///a.txt","name":"a.txt","mimeType":"text/plain"}}`,
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"resource_link","uri":"javascript:alert(1)"}}`,
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"resource","resource":{"uri":"file:///a","text":"t"}}}`,
			`{"sessionUpdate":"agent_message_chunk","content":{"type":"resource","resource":{"uri":"file:///a","blob":"AAAA","mimeType":"image/gif"}}}`,
			`{"sessionUpdate":"agent_thought_chunk","content":{"type":"hologram","x":1}}`,
			`{"sessionUpdate":"agent_message_chunk"}`,
		}, []string{
			`text-start {"id":"text-1"}`, `text-delta {"delta":"a","id":"text-1"}`, `text-end {"id":"text-1"}`,
			`file {"mediaType":"image/png","url":"data:image/png;base64,AAAA"}`,
			`data-content {"data":{"data":"A\"A","mimeType":"image/png","type":"image"}}`,
			`data-content {"data":{"data":"AAAA","mimeType":"text/html","type":"image"}}`,
			`data-content {"data":{"data":"AAAA","mimeType":"audio/wav","type":"audio"}}`,
			`source-url {"sourceId":"source-1","title":"a","url":"https://x.org/a"}`,
			`source-document {"filename":"a.txt","mediaType":"text/plain","sourceId":"source-2","title":"a.txt"}`,
			`source-document {"mediaType":"application/octet-stream","sourceId":"source-3","title":"javascript:alert(1)"}`,
			`data-content {"data":{"resource":{"text":"t","uri":"file:///a"},"type":"resource"}}`,
			`file {"mediaType":"image/gif","url":"data:image/gif;base64,AAAA"}`,
			`data-content {"data":{"type":"hologram","x":1}}`,
			`data-content {"data":null}`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := begin(t, convert.Options{NoisePrefixes: []string{"", "[MODE_UPDATE]"}})
			var got []string
			for _, u := range tt.updates {
				got = append(got, x.say(u)...)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			x.end(convert.End{StopReason: acp.StopEndTurn})
		})
	}
}

func TestTimesAreGivenOnce(t *testing.T) {
	t.Parallel()
	x := begin(t, convert.Options{})
	x.say(chunk("a", ""))
	x.later(1500 * time.Microsecond)
	x.say(toolUpdate(`"status":"in_progress"`))
	x.later(time.Second)
	x.end(convert.End{StopReason: acp.StopEndTurn})
	var got []string
	for _, p := range x.parts {
		var h struct {
			At    string `json:"at"`
			EndAt string `json:"endAt"`
			PM    struct {
				Hearth struct {
					At    string `json:"at"`
					EndAt string `json:"endAt"`
				} `json:"hearth"`
			} `json:"providerMetadata"`
		}
		if err := p.Decode(&h); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s %s %s", p.Type, h.At, h.EndAt, h.PM.Hearth.At, h.PM.Hearth.EndAt))
	}
	const a, b, c = "2026-01-02T03:04:05.000000Z", "2026-01-02T03:04:05.001500Z", "2026-01-02T03:04:06.001500Z"
	want := []string{
		"start " + a + "   ", "start-step " + a + "   ", "text-start " + a + "  " + a + " ", "text-delta    ", "text-end  " + b + " " + a + " " + b,
		"tool-input-start " + b + "  " + b + " ", "tool-input-available    ", "tool-output-error  " + c + " " + b + " " + c, "finish-step  " + c + "  ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	request := func(s string) acp.PermissionRequest {
		var r acp.PermissionRequest
		if err := acp.Decode([]byte(s), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := request(`{"toolCall":{"toolCallId":"c","title":"Run x","kind":"execute","rawInput":{"cmd":"x"}},"options":[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"n","name":"No","kind":"reject_once"}]}`)
	const (
		inputPart = `tool-input-available {"input":{"cmd":"x"},"title":"Run x","toolCallId":"c","toolMetadata":{"acp":{"kind":"execute"}},"toolName":"execute"}`
		question  = `{"content":null,"input":{"cmd":"x"},"kind":"execute","options":[{"kind":"allow_once","name":"Yes","optionId":"y"},{"kind":"reject_once","name":"No","optionId":"n"}]%s,"title":"Run x","toolCallId":"c"}`
	)
	asked := []string{
		`text-end {"id":"text-1"}`, `tool-input-start {"title":"Run x","toolCallId":"c","toolMetadata":{"acp":{"kind":"execute"}},"toolName":"execute"}`, inputPart,
		`tool-approval-request {"approvalId":"q1","toolCallId":"c"}`, `data-permission {"data":` + fmt.Sprintf(question, "") + `,"id":"q1"}`,
	}
	answered := func(outcome string) string {
		return `data-permission {"data":` + fmt.Sprintf(question, `,"outcome":`+outcome) + `,"id":"q1"}`
	}
	open := func(t *testing.T) *turn {
		x := begin(t, convert.Options{})
		x.say(chunk("a", ""))
		if d := cmp.Diff(asked, x.take(x.c.Ask("q1", r))); d != "" {
			t.Error(d)
		}
		if _, _, running := x.c.OldestOpenTool(); running {
			t.Error("a call that waits counts as running")
		}
		x.later(time.Second)
		if got := x.say(toolUpdate(`"title":"Run X","status":"in_progress","content":[{"type":"content","content":{"type":"text","text":"t"}}]`)); got != nil {
			t.Errorf("the question was taken off the screen: %v", got)
		}
		if got := x.take(x.c.Tick()); got != nil {
			t.Errorf("a tick took the question off the screen: %v", got)
		}
		return x
	}
	t.Run("allowed", func(t *testing.T) {
		t.Parallel()
		x := open(t)
		got := x.take(x.c.Answered("q1", convert.Answer{Allowed: true, OptionID: "y"}))
		want := []string{
			answered(`{"allowed":true,"optionId":"y"}`), strings.Replace(inputPart, "Run x", "Run X", 1),
			`tool-output-available {"output":{"content":[{"content":{"text":"t","type":"text"},"type":"content"}],"rawOutput":null},"preliminary":true,"toolCallId":"c"}`,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if id, _, running := x.c.OldestOpenTool(); id != "c" || !running {
			t.Error("not running")
		}
		if got := x.c.Answered("q1", convert.Answer{Denied: true}); got != nil {
			t.Errorf("answered twice: %v", got)
		}
		x.end(convert.End{})
	})
	t.Run("denied", func(t *testing.T) {
		t.Parallel()
		x := open(t)
		got := x.take(x.c.Answered("q1", convert.Answer{Denied: true, OptionID: "n"}))
		if d := cmp.Diff([]string{answered(`{"denied":true,"optionId":"n"}`), `tool-output-denied {"toolCallId":"c"}`}, got); d != "" {
			t.Error(d)
		}
		x.later(time.Second)
		if got := x.say(toolUpdate(`"status":"failed"`)); got != nil {
			t.Errorf("a refused call failed: %v", got)
		}
		// It asks once more, and an agent that runs it all the same is shown to.
		x.take(x.c.Ask("q2", r))
		x.take(x.c.Answered("q2", convert.Answer{Denied: true}))
		x.later(time.Second)
		if got := x.say(toolUpdate(`"status":"completed"`)); len(got) == 0 || !strings.HasPrefix(got[len(got)-1], "tool-output-available ") {
			t.Errorf("%v", got)
		}
		x.end(convert.End{})
	})
	t.Run("withdrawn", func(t *testing.T) {
		t.Parallel()
		x := open(t)
		x.take(x.c.Answered("q1", convert.Answer{Canceled: true}))
		got := x.end(convert.End{StopReason: acp.StopCancelled})
		if len(got) != 3 || !strings.HasPrefix(got[1], `tool-output-error {"errorText":"Interrupted: the turn was canceled.","hearth.interrupted":true`) {
			t.Errorf("%v", got)
		}
	})
	t.Run("left open", func(t *testing.T) {
		t.Parallel()
		x := open(t)
		x.end(convert.End{Failure: "the agent ended."})
		if x.c.Answered("q1", convert.Answer{Allowed: true}) != nil || x.c.Update(json.RawMessage(chunk("x", ""))) != nil || x.c.Tick() != nil || x.c.End(convert.End{}) != nil {
			t.Error("something came after the end")
		}
	})
}

// TestLiveOutputStaysSmall: an agent sends its whole output again with every
// line of it, for half an hour.
func TestLiveOutputStaysSmall(t *testing.T) {
	t.Parallel()
	x := begin(t, convert.Options{})
	x.say(toolUpdate(`"status":"in_progress","rawInput":{"cmd":"make"}`))
	var text strings.Builder
	sent, biggest, live := 0, 0, 0
	note := func(parts []string) {
		for _, p := range parts {
			sent, biggest, live = sent+len(p), max(biggest, len(p)), live+1
		}
	}
	for i := range 18_000 {
		x.later(100 * time.Millisecond)
		if i < 6000 && i%4 == 0 {
			fmt.Fprintf(&text, "line %d of the build, which says much\n", i)
		}
		if i < 6000 && i%60 == 0 || i == 6001 {
			b, _ := json.Marshal(text.String())
			note(x.say(toolUpdate(`"status":"in_progress","content":[{"type":"content","content":{"type":"text","text":` + string(b) + `}}]`)))
		}
		if x.c.Held() {
			note(x.take(x.c.Tick()))
		}
	}
	if live < 40 || sent > 12<<20 || biggest > 20<<10 {
		t.Errorf("%d parts of %d bytes, the biggest %d", live, sent, biggest)
	}
	if x.c.Held() {
		t.Error("something is held for ever")
	}
	got := x.say(toolUpdate(`"status":"completed"`))
	if len(got) != 1 || !strings.Contains(got[0], "line 5996 of") || !strings.Contains(got[0], "line 3000 of") || strings.Contains(got[0], "truncated") {
		t.Errorf("%.300s", got)
	}
	// The same content once more is nothing new; a changed one is.
	x.later(time.Hour)
	if got := x.say(toolUpdate(`"status":"completed"`)); got != nil {
		t.Errorf("%.300s", got)
	}
	if got := x.say(toolUpdate(`"rawOutput":"late"`)); len(got) != 1 || !strings.Contains(got[0], `"rawOutput":"late"`) {
		t.Errorf("%.300s", got)
	}
	x.end(convert.End{})
}

func TestTerminalOfTheAgent(t *testing.T) {
	t.Parallel()
	x := begin(t, convert.Options{})
	var got []string
	got = append(got, x.say(toolUpdate(`"status":"in_progress","rawInput":{"a":1},"content":[{"type":"terminal","terminalId":"t"}]`))...)
	got = append(got, x.say(toolUpdate(`"_meta":{"terminal_output":{"terminal_id":"t","data":"one\n"}}`))...)
	got = append(got, x.say(toolUpdate(`"_meta":{"terminal_output_delta":{"terminal_id":"t","data":"two\n"}}`))...)
	x.later(time.Second)
	got = append(got, x.take(x.c.Tick())...)
	got = append(got, x.say(toolUpdate(`"status":"completed","_meta":{"terminal_exit":{"exit_code":0}}`))...)
	term := `tool-output-available {"output":{"content":[{"terminalId":"t","type":"terminal"}],"rawOutput":null,"terminal":{%s}},%s"toolCallId":"c"}`
	want := []string{
		`tool-input-start {"toolCallId":"c","toolName":"tool"}`, `tool-input-available {"input":{"a":1},"toolCallId":"c","toolName":"tool"}`,
		fmt.Sprintf(term, `"exit":null,"output":"one\n"`, `"preliminary":true,`), fmt.Sprintf(term, `"exit":null,"output":"one\ntwo\n"`, `"preliminary":true,`),
		fmt.Sprintf(term, `"exit":{"exit_code":0},"output":"one\ntwo\n"`, ``),
	}
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], `"exit":null,`, "")
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	x.end(convert.End{})
}

func TestBytesThatAreNoText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		updates []string
		text    string
		lossy   bool
	}{
		{"escapes and NUL", []string{chunk("\x1b[31mred\x00\x07", "")}, "red\uFFFD\uFFFD", true},
		{"an escape sequence cut in two", []string{chunk("a\x1b", ""), chunk("[3", ""), chunk("1mred", "")}, "ared", true},
		{"UTF-8 cut in two", []string{"{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"a\xe2\x82\"}}", "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"\xacb\"}}"}, "a€b", false},
		{"bytes that are no UTF-8", []string{"{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"a\xff\xfeb\"}}"}, "a\uFFFD\uFFFDb", true},
		{"a pair cut in two", []string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\ud83d"}}`, `{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\ude00b"}}`}, "a😀b", false},
		{"a pair cut in two by capitals", []string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\uD83D"}}`, `{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\uDE00"}}`}, "😀", false},
		{"a whole pair, and a backslash that looks like one", []string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\ud83d\ude00\\ud83d é\n"}}`}, "😀\\ud83d é\n", false},
		{"half a pair for ever", []string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\ud83d"}}`, `{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"b"}}`}, "a\uFFFDb", true},
		{"half a pair at the end", []string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\ud83d"}}`}, "a\uFFFD", true},
		{"the wrong half", []string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\ude00a"}}`}, "\uFFFDa", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := begin(t, convert.Options{})
			for _, u := range tt.updates {
				x.say(u)
			}
			x.end(convert.End{})
			var text string
			lossy := false
			for _, p := range x.parts {
				text += p.Text("delta")
				lossy = lossy || p.Type == uistream.TypeTextEnd && strings.Contains(string(p.Raw), `"lossy":true`)
			}
			if text != tt.text || lossy != tt.lossy {
				t.Errorf("%q, lossy %v", text, lossy)
			}
			if tt.lossy != (len(x.kept.all) == 1) {
				t.Errorf("%d blobs", len(x.kept.all))
			}
		})
	}
}

func TestLargeThings(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("0123456789abcdef", 128<<10) // 2 MiB
	quoted, _ := json.Marshal(big)
	t.Run("text is split, not cut", func(t *testing.T) {
		t.Parallel()
		x := begin(t, convert.Options{})
		long := strings.Repeat("é\t\u2028", 200_000)
		x.say(chunk(long, ""))
		x.end(convert.End{})
		var text strings.Builder
		for _, p := range x.parts {
			text.WriteString(p.Text("delta"))
		}
		if text.String() != long {
			t.Error("the text changed")
		}
	})
	t.Run("values are cut and say so", func(t *testing.T) {
		t.Parallel()
		x := begin(t, convert.Options{})
		u := toolUpdate(`"status":"failed","title":` + string(quoted) + `,"rawInput":{"file":"/a","content":` + string(quoted) + `},"content":[{"type":"content","content":{"type":"text","text":` + string(quoted) + `}}],"rawOutput":{"k":` + string(quoted) + `}`)
		got := x.say(u)
		if len(got) != 4 || !strings.Contains(got[1], `"file":"/a"`) || !strings.Contains(got[1], "bytes left out") || !strings.Contains(got[1], `"hearth.truncatedBytes":2097`) || !strings.Contains(got[2], `"hearth.truncatedBytes":4194`) {
			for _, g := range got {
				t.Errorf("%.200s … %.200s", g, g[max(0, len(g)-200):])
			}
		}
		x.end(convert.End{}) // the title is in no blob of the call
		if want := u + "\n"; len(x.kept.all) != 2 || x.kept.all[1].String() != want || !strings.HasPrefix(x.kept.all[0].String(), `{"input":{"file":"/a"`) {
			t.Errorf("%d blobs: the whole was not kept", len(x.kept.all))
		}
	})
	t.Run("what has no texts to cut", func(t *testing.T) {
		t.Parallel()
		mid := `"` + big[:640<<10] + `"`
		x := begin(t, convert.Options{})
		got := x.say(toolUpdate(`"status":"completed","rawOutput":[` + strings.Repeat("1234567,", 100_000) + `0]`))
		if len(got) != 4 || !strings.Contains(got[2], `"truncated":true`) || !strings.Contains(got[2], `"bytes":80`) {
			t.Errorf("%.300s", got)
		}
		x.say(`{"sessionUpdate":"from_the_future","x":` + mid + `}`)
		x.say(`{"sessionUpdate":"agent_message_chunk","content":{"type":"image","mimeType":"image/png","data":` + mid + `}}`)
		x.say(`{"sessionUpdate":"plan","entries":[` + mid + `]}`)
		x.say(`{"sessionUpdate":"tool_call","toolCallId":` + mid + `}`)
		x.say(`{"sessionUpdate":"tool_call_update","toolCallId":` + mid + `,"status":"completed","locations":[` + mid + `]}`)
		x.end(convert.End{Failure: big[:640<<10]})
	})
	t.Run("a line that was too long for memory", func(t *testing.T) {
		t.Parallel()
		x := begin(t, convert.Options{})
		x.say(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"begin…"},"_hearthCut":{"bytes":99999999,"file":"/x"}}`)
		got := x.say(`{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","_hearthCut":{"bytes":77777777,"file":""}}`)
		if len(got) != 5 || !strings.Contains(got[0], `"hearth.truncatedBytes":99999999`) || !strings.Contains(got[3], `"hearth.truncatedBytes":77777777`) || !strings.Contains(got[4], "data-blob") || len(x.kept.taken) != 1 {
			t.Errorf("%v", got)
		}
		x.end(convert.End{})
	})
}

func TestEndUsage(t *testing.T) {
	t.Parallel()
	x := begin(t, convert.Options{})
	x.say(`{"sessionUpdate":"usage_update","used":5,"size":10}`)
	got := x.end(convert.End{StopReason: acp.StopEndTurn, Usage: &acp.TokenUsage{TotalTokens: 7}})
	if len(got) != 2 || !strings.HasPrefix(got[0], `data-usage {"data":{"size":10,"turn":{`) || !strings.Contains(got[0], `"totalTokens":7`) || !strings.Contains(got[0], `"used":5`) {
		t.Errorf("%v", got)
	}
}
