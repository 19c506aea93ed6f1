package convert_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
	"github.com/hearthd/hearth/internal/uistream/npmtest"
)

// TestHostileTurnReadByTheSDK: what agents can put into a turn does not end a
// page's stream.
func TestHostileTurnReadByTheSDK(t *testing.T) {
	t.Parallel()
	x := begin(t, convert.Options{})
	deep := strings.Repeat(`{"a":`, 3000) + "1" + strings.Repeat("}", 3000)
	for _, u := range []string{
		chunk("a\x00\x1b[1m\u2028", "__proto__"),
		`{"sessionUpdate":"tool_call","toolCallId":"__proto__","title":"T","name":"constructor","status":"completed","rawInput":{"__proto__":{"x":1},"constructor":{"prototype":1}},"rawOutput":` + deep + `}`,
		`{"sessionUpdate":"tool_call","toolCallId":"b","status":"in_progress","rawInput":"just text","content":[{"__proto__":1}],"locations":[{"\u005f_proto__":1}]}`,
		"{\"sessionUpdate\":\"tool_call_update\",\"toolCallId\":\"b\",\"rawOutput\":\"\xff\",\"_meta\":{\"terminal_output\":{\"data\":\"x\"}}}",
		`{"sessionUpdate":"from_the_future","__proto__":1,"x":` + deep + `}`,
		`{"sessionUpdate":"config_option_update","configOptions":{"__proto__":1}}`,
		`{"sessionUpdate":"usage_update","used":-1,"cost":{"amount":1e999,"currency":"\ud800"}}`,
		`{"sessionUpdate":"agent_message_chunk","content":{"type":"resource","resource":{"__proto__":1}}}`,
		`{"sessionUpdate":"notice","__proto__":1}`,
		`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"b\ud800"}}`,
	} {
		x.say(u)
	}
	x.end(convert.End{StopReason: acp.StopEndTurn})
	x.parts = append(x.parts, uistream.Finish{}.Part())
	for _, line := range npmtest.Lines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			got := npmtest.Read(t, line, []npmtest.Stream{{Name: "hostile", Parts: x.parts}})["hostile"]
			if got.Error != "" || len(got.Messages) != 1 {
				t.Fatalf("%q, %d messages", got.Error, len(got.Messages))
			}
			if want := "a\uFFFD\u2028b\uFFFD"; got.Text() != want {
				t.Errorf("text %q, want %q", got.Text(), want)
			}
			if d := cmp.Diff([]string{"input-streaming", "input-available", "output-available"}, got.States["__proto__"]); d != "" {
				t.Errorf("states (-want +got):\n%s", d)
			}
		})
	}
}

// FuzzTurn: any updates make a turn that the checker takes and that closes.
func FuzzTurn(f *testing.F) {
	f.Add(chunk("a", "m") + "\n" + toolUpdate(`"status":"in_progress","rawInput":{"a":1},"rawOutput":"x"`) + "\n?\n" + toolUpdate(`"status":"completed"`) + "\n!y\n.\n")
	f.Add(toolUpdate(`"status":"failed"`) + "\n?\n!n\n" + toolUpdate(`"status":"completed"`) + "\n?\n.\n")
	f.Add(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\ud83d"}}` + "\n" + `{"sessionUpdate":"plan","entries":[{"__proto__":1}]}`)
	f.Add(thought("x") + "\n" + `{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"AAAA","mimeType":"image/png"}}`)
	f.Fuzz(func(t *testing.T, lines string) {
		x := begin(t, convert.Options{NoisePrefixes: []string{"[N]"}})
		asked := 0
		for _, l := range strings.Split(lines, "\n") {
			x.later(90 * time.Millisecond)
			switch {
			case l == ".":
				x.take(x.c.Tick())
			case strings.HasPrefix(l, "?"):
				var r acp.PermissionRequest
				if acp.Decode([]byte(l[1:]), &r) != nil {
					_ = acp.Decode([]byte(`{"toolCall":{"toolCallId":"c"}}`), &r)
				}
				asked++
				x.take(x.c.Ask(fmt.Sprint("q", asked), r))
			case strings.HasPrefix(l, "!"):
				a := convert.Answer{Allowed: l == "!y", Denied: l == "!n", Canceled: l != "!y" && l != "!n"}
				x.take(x.c.Answered(fmt.Sprint("q", asked), a))
			default:
				x.say(l)
			}
		}
		x.end(convert.End{StopReason: "end_turn"})
	})
}
