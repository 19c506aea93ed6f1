package convert_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
)

// kept keeps blobs in memory.
type kept struct {
	all   []*keptBlob
	taken []string
	none  bool // but for the last ones
}

type keptBlob struct {
	bytes.Buffer
	sealed bool
}

func (k *kept) Create(last bool) convert.BlobWriter {
	if k.none && !last {
		return nil
	}
	b := &keptBlob{}
	k.all = append(k.all, b)
	return b
}

func (k *kept) Take(file string) (string, int64, string) {
	k.taken = append(k.taken, file)
	return idOf([]byte(file)), 1, ""
}

func (b *keptBlob) Seal() (string, int64, string) {
	b.sealed = true
	return idOf(b.Bytes()), int64(b.Len()), ""
}

func idOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// blobs are what the data-blob parts tell.
func (x *turn) blobs() []uistream.Blob {
	x.t.Helper()
	var out []uistream.Blob
	for _, p := range x.parts {
		if p.Type != "data-blob" {
			continue
		}
		var d struct {
			Data uistream.Blob `json:"data"`
		}
		if err := p.Decode(&d); err != nil {
			x.t.Fatal(err)
		}
		out = append(out, d.Data)
	}
	for _, b := range x.kept.all {
		if !b.sealed {
			x.t.Error("a blob was not sealed")
		}
	}
	return out
}

// raw is text as a JSON string whose bytes are as they are where JSON lets them be.
func raw(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ':
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}

func everyByte() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

// mouse is what programs write that take over a terminal.
const mouse = "\x1b[?1049h\x1b[?1000h\x1b[?1006hlist\x1b]0;title\x07\r\n\x1bPq#0\x1b\\end\x1b(B\u009b31m"

func TestWhatIsSaidSurvives(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("a line of output\n", 64<<10)
	said := func(text string) string {
		return `{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":` + raw(text) + `}}`
	}
	content := func(text string) string {
		return `"content":[{"type":"content","content":{"type":"text","text":` + raw(text) + `}}]`
	}
	term := func(text string) string {
		return toolUpdate(`"status":"in_progress","_meta":{"terminal_output_delta":{"data":` + raw(text) + `}}`)
	}
	done := toolUpdate(`"status":"completed"`)
	type told struct {
		Why, Media, Of string
		Bytes          string
	}
	for name, tt := range map[string]struct {
		updates []string
		want    []told
	}{
		"every byte, said":               {[]string{said("ok " + everyByte()[:200]), said(everyByte()[200:])}, []told{{"not_text", "application/octet-stream", "text-1", "ok " + everyByte()}}},
		"every byte, content":            {[]string{toolUpdate(`"status":"completed",` + content(everyByte()))}, []told{{"not_text", "application/octet-stream", "c", everyByte()}}},
		"every byte, output":             {[]string{toolUpdate(`"status":"completed","rawOutput":` + raw(everyByte()))}, []told{{"not_text", "application/octet-stream", "c", everyByte()}}},
		"the same as content and output": {[]string{toolUpdate(`"status":"completed",` + content(mouse) + `,"rawOutput":` + raw(mouse))}, []told{{"control_codes", "text/plain; charset=utf-8", "c", mouse}}},
		"every byte, terminal":           {[]string{term("ok " + everyByte()[:200]), term(everyByte()[200:]), done}, []told{{"not_text", "application/octet-stream", "c", "ok " + everyByte()}}},
		"an interrupted terminal":        {[]string{term("\x1b[1mbold")}, []told{{"control_codes", "text/plain; charset=utf-8", "c", "\x1b[1mbold"}}},
		"a long terminal":                {[]string{term(big), term("end"), done}, []told{{"too_large", "text/plain; charset=utf-8", "c", big + "end"}}},
		"a terminal of quotes":           {[]string{term(strings.Repeat(`"`, 250<<10)), done}, []told{{"too_large", "text/plain; charset=utf-8", "c", strings.Repeat(`"`, 250<<10)}}},
		"large content, small output":    {[]string{toolUpdate(`"status":"completed",` + content(big) + `,"rawOutput":{"exit":0}`)}, []told{{"too_large", "text/plain; charset=utf-8", "c", big}}},
		"codes in a small output beside": {[]string{toolUpdate(`"status":"completed",` + content("x") + `,"rawOutput":{"out":"\u001b[1m"}`)}, []told{{"control_codes", "application/json", "c", `{"rawOutput":{"out":"\u001b[1m"}}`}}},
		"codes in an input":              {[]string{toolUpdate(`"status":"completed","rawInput":{"text":"\u000c"}`)}, []told{{"control_codes", "application/json", "c", `{"input":{"text":"\u000c"}}`}}},
		"a failed call":                  {[]string{toolUpdate(`"status":"failed",` + content(mouse))}, []told{{"control_codes", "text/plain; charset=utf-8", "c", mouse}}},
		"live output":                    {[]string{toolUpdate(`"status":"in_progress",` + content("\x1b[1mx")), toolUpdate(`"status":"in_progress",` + content("\x1b[1mxy")), toolUpdate(`"status":"completed",` + content("\x1b[1mxyz"))}, []told{{"control_codes", "text/plain; charset=utf-8", "c", "\x1b[1mxyz"}}},
		"half pairs":                     {[]string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\ud83d"}}`, said("b")}, []told{{"not_text", "application/octet-stream", "text-1", "a\xed\xa0\xbdb"}}},
		"a title":                        {[]string{`{"sessionUpdate":"tool_call","toolCallId":"c","title":"\u001b[1mx","status":"completed"}`}, []told{{"too_large", "application/x-ndjson", "turn updates", `{"sessionUpdate":"tool_call","toolCallId":"c","title":"\u001b[1mx","status":"completed"}` + "\n"}}},
		"a plan and a kind unknown":      {[]string{`{"sessionUpdate":"plan","entries":["\u0000"]}`, `{"sessionUpdate":"x","y":"\u001b"}`}, []told{{"too_large", "application/x-ndjson", "turn updates", `{"sessionUpdate":"plan","entries":["\u0000"]}` + "\n" + `{"sessionUpdate":"x","y":"\u001b"}` + "\n"}}},
		"nothing":                        {[]string{said("é€😀\r\n\t"), term("x\r\n"), done, toolUpdate(`"rawOutput":"é\ud83d\ude00\u00e9 \\u001b"`)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := begin(t, convert.Options{})
			for _, u := range tt.updates {
				x.later(time.Hour)
				x.say(u)
			}
			x.end(convert.End{})
			var got []told
			for i, b := range x.blobs() {
				of := b.Of.ToolCallID + b.Of.Block
				if b.Of.Turn != "" {
					of = "turn " + b.Of.Turn
				}
				got = append(got, told{b.Why, b.MediaType, of, x.kept.all[i].String()})
				if b.ID != idOf(x.kept.all[i].Bytes()) || b.Bytes != int64(x.kept.all[i].Len()) || b.From != 0 {
					t.Errorf("%+v", b)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%.4000s", d)
			}
			for _, p := range x.parts {
				harmless(t, p)
			}
		})
	}
}

// harmless looks for what no part may have.
func harmless(t *testing.T, p uistream.Part) {
	t.Helper()
	var v any
	if err := json.Unmarshal(p.Raw, &v); err != nil || !utf8.Valid(p.Raw) {
		t.Errorf("%q: %v", p.Raw, err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			if i := strings.IndexFunc(v, func(r rune) bool { return r < ' ' && !strings.ContainsRune("\n\t\r", r) || r >= 0x7f && r < 0xa0 }); i >= 0 {
				t.Errorf("a control character in %.200q", v[i:])
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for k, e := range v {
				walk(k)
				walk(e)
			}
		}
	}
	walk(v)
}

// Colours in every output of a turn, and no more blobs than calls; where there may be no more, all of it goes to one.
func TestManyCallsWithColours(t *testing.T) {
	t.Parallel()
	for _, none := range []bool{false, true} {
		x := begin(t, convert.Options{})
		x.kept.none = none
		for i := range 50 {
			for j := range 20 {
				x.say(fmt.Sprintf(`{"sessionUpdate":"tool_call_update","toolCallId":"c%d","status":"in_progress","rawOutput":"\u001b[3%dm"}`, i, j))
			}
			x.say(fmt.Sprintf(`{"sessionUpdate":"tool_call_update","toolCallId":"c%d","status":"completed","rawOutput":"\u001b[31m%d"}`, i, i))
		}
		x.end(convert.End{})
		want := 50
		if none {
			want = 1
			lines := strings.Split(x.kept.all[0].String(), "\n")
			if len(lines) != 51 || lines[7] != `{"toolCallId":"c7","rawOutput":"\u001b[31m7"}` {
				t.Errorf("%d lines, %s", len(lines), lines[7])
			}
		}
		if got := len(x.blobs()); got != want {
			t.Errorf("%d blobs, want %d", got, want)
		}
	}
}

// A blob of a long text begins where something was lost, or a little before.
func TestLateLoss(t *testing.T) {
	t.Parallel()
	x := begin(t, convert.Options{})
	var whole strings.Builder
	say := func(s string) {
		whole.WriteString(s)
		x.say(chunk(s, ""))
	}
	for range 100 {
		say(strings.Repeat("text ", 1000))
	}
	say("\x1b[1m")
	say("end")
	x.end(convert.End{})
	b := x.blobs()
	if len(b) != 1 || b[0].From == 0 || whole.String()[b[0].From:] != x.kept.all[0].String() {
		t.Errorf("%+v", b)
	}
	if i := slices.IndexFunc(x.parts, func(p uistream.Part) bool { return p.Type == "data-blob" }); x.parts[i-1].Type != "text-end" {
		t.Error("the blob is not told behind its text")
	}
}
