package rest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

type uiMessage struct {
	ID       string           `json:"id"`
	Role     string           `json:"role"`
	Metadata map[string]any   `json:"metadata"`
	Parts    []map[string]any `json:"parts"`
}

type page struct {
	Items []uiMessage `json:"items"`
	Next  int64       `json:"next"`
}

func messages(t *testing.T, w *resttest.World, id session.ID, query string) page {
	t.Helper()
	r := ask(t, w, "GET", "/v1/agent-sessions/"+string(id)+"/messages"+query, "")
	var p page
	if r.status != 200 || r.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatalf("%v in %.300s", err, r.body)
	}
	return p
}

// conversation has a turn that completed, one that failed, one that was canceled
// before it began, and one at work, with a prompt in the queue.
func conversation(t *testing.T, w *resttest.World) (id session.ID, turns []session.TurnID) {
	t.Helper()
	id = w.Create("one <b>\n```")
	w.Begin(id)
	turns = append(turns, w.Get(id).Open.ID)
	w.Say(id, uistream.MessageMetadata{MessageMetadata: uistream.Value(`{"usage":{"n":1},"hearth":{"state":"a lie"}}`)}.Part().Raw)
	w.Say(id, resttest.Text("a", "Hello ", "<world>\u2028", `\ud83d\ude00`)...)
	w.Say(id, uistream.ToolInputAvailable{ToolCallID: "c", ToolName: "run", Title: "Run `ls`", Input: uistream.Value(`{"command":"ls </details>"}`), Dynamic: true}.Part().Raw,
		uistream.ToolOutputAvailable{ToolCallID: "c", Dynamic: true, Output: uistream.Value("{\"content\":[{\"type\":\"content\",\"content\":{\"type\":\"text\",\"text\":\"```\\n\\u001b[2J<script>\"}}],\"rawOutput\":null}")}.Part().Raw)
	turns = append(turns, w.Prompt(id, "two"))
	w.End(id)
	w.Begin(id)
	w.Say(id, uistream.BlockStart{Kind: uistream.Text, ID: "t"}.Part().Raw, uistream.BlockDelta{Kind: uistream.Text, ID: "t", Delta: "half"}.Part().Raw)
	turns = append(turns, w.Prompt(id, "three"))
	w.EndWith(id, "failed", fault.AgentExited, session.Delivery{State: session.DeliveryHeld})
	if _, err := w.Sessions.Release(t.Context(), w.Owner(), id); err != nil {
		t.Fatal(err)
	}
	return id, turns
}

func TestMessages(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id, turns := conversation(t, w)
	if w.Get(id).Open == nil {
		t.Fatal("no turn is at work")
	}
	// Not begun: there is a prompt and no answer.
	if p := messages(t, w, id, "?after=2"); len(p.Items) != 1 || p.Items[0].Role != "user" {
		t.Errorf("a turn that starts: %+v", p)
	}
	w.Apply(id, session.CancelAsked{Turn: turns[2], By: "owner"})
	turns = append(turns, w.Prompt(id, "four"))
	if _, err := w.Sessions.Release(t.Context(), w.Owner(), id); err != nil {
		t.Fatal(err)
	}
	w.Begin(id)
	w.Say(id, uistream.BlockStart{Kind: uistream.Text, ID: "t"}.Part().Raw, uistream.BlockDelta{Kind: uistream.Text, ID: "t", Delta: "so far"}.Part().Raw)
	w.Prompt(id, "in the queue")

	all := messages(t, w, id, "")
	var got []string
	for i, m := range all.Items {
		text := ""
		for _, p := range m.Parts {
			if p["type"] == "text" {
				text += fmt.Sprintf("%v", p["text"])
			}
		}
		turn := string(turns[i/2])
		if m.Role == "user" {
			if m.ID != turn+"-user" || m.Metadata["turn"] != turn || m.Metadata["number"] != float64(i/2+1) {
				t.Errorf("message %d: %+v", i, m)
			}
			got = append(got, "user: "+text)
			continue
		}
		h, _ := m.Metadata["hearth"].(map[string]any)
		if m.ID != turn || h["turn"] != turn || h["number"] != float64(i/2+1) {
			t.Errorf("message %d: %+v", i, m)
		}
		got = append(got, fmt.Sprintf("assistant: %s [%v %v, complete %v]", text, h["state"], h["code"], h["complete"]))
	}
	want := []string{
		"user: one <b>\n```", "assistant: Hello <world>\u2028" + `\ud83d\ude00` + " [completed <nil>, complete true]",
		"user: two", "assistant: half [failed AGENT_EXITED, complete true]",
		"user: three", "assistant:  [canceled TURN_CANCELED, complete true]",
		"user: four", "assistant: so far [running <nil>, complete false]",
	}
	for i, s := range got { // whether the world's turns are whole is not of interest here
		if i < 4 {
			got[i] = strings.Replace(s, "complete false", "complete true", 1)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if all.Next != 0 || all.Items[1].Metadata["usage"] == nil {
		t.Errorf("next %d, metadata %v", all.Next, all.Items[1].Metadata)
	}
	if p := all.Items[5].Parts; len(p) != 1 || p[0]["type"] != "data-turn-end" {
		t.Errorf("a turn that never began: %v", p)
	}
	if p := all.Items[7].Parts; p[0]["state"] != "streaming" {
		t.Errorf("a turn at work: %v", p)
	}
	var paged []uiMessage
	for after, n := int64(0), 0; n < 10; n++ {
		p := messages(t, w, id, fmt.Sprintf("?limit=1&after=%d", after))
		paged = append(paged, p.Items...)
		if after = p.Next; after == 0 {
			break
		}
	}
	if d := cmp.Diff(all.Items, paged); d != "" {
		t.Errorf("in pages (-whole +paged):\n%s", d)
	}
	if p := messages(t, w, id, "?after=99"); len(p.Items) != 0 || p.Next != 0 {
		t.Errorf("behind the end: %+v", p)
	}
	root := "/v1/agent-sessions/" + string(id)
	for path, code := range map[string]string{
		root + "/messages?limit=51": "INVALID_INPUT", root + "/messages?after=x": "INVALID_INPUT", "/v1/agent-sessions/ses_none/messages": "SESSION_NOT_FOUND",
		root + "/export?format=html": "INVALID_INPUT", "/v1/agent-sessions/ses_none/export": "SESSION_NOT_FOUND",
	} {
		if r := ask(t, w, "GET", path, ""); r.at(t, "error.code") != code {
			t.Errorf("%s: %s", path, r.body)
		}
	}
	for _, p := range []string{"/messages", "/export"} {
		if r := ask(t, w, "GET", root+p, "", "Authorization", "Bearer "+resttest.Foreign); r.status != 404 {
			t.Errorf("foreign %s: %d", p, r.status)
		}
	}
	w.Broken.Store(true)
	for _, p := range []string{"/messages", "/export", "/export?format=markdown"} {
		if r := ask(t, w, "GET", root+p, ""); r.status != 500 || strings.Contains(r.body, "secret") {
			t.Errorf("%s with a broken store: %d %s", p, r.status, r.body)
		}
	}
}

func TestMessagesPageIsBounded(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("1")
	for n, mib := range []int{1, 6, 1, 2, 2} {
		w.Begin(id)
		for i := range mib {
			w.Say(id, uistream.Data{Name: "content", Data: uistream.ValueOf(strings.Repeat("x", 1<<20-1000)), ID: fmt.Sprint(i)}.Part().Raw)
		}
		if n < 4 {
			w.Prompt(id, "next")
		}
		w.End(id)
	}
	var got [][]float64
	for after := int64(0); ; {
		p := messages(t, w, id, fmt.Sprintf("?after=%d", after))
		var turns []float64
		for _, m := range p.Items {
			if m.Role == "user" {
				turns = append(turns, m.Metadata["number"].(float64))
			}
		}
		got = append(got, turns)
		if after = p.Next; after == 0 {
			break
		}
	}
	if d := cmp.Diff([][]float64{{1}, {2}, {3, 4}, {5}}, got); d != "" {
		t.Errorf("turns on each page (-want +got):\n%s", d)
	}
}

func TestExportLines(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id, turns := conversation(t, w)
	w.Begin(id)
	type line struct {
		Type     string
		Version  int
		ID       string
		AtWork   string
		Cursor   string
		Part     json.RawMessage
		Turns    int64
		Parts    int64
		Complete bool
		Prompt   string
	}
	read := func() (kinds []string, parts []transcript.Part, last line, r reply) {
		r = ask(t, w, "GET", "/v1/agent-sessions/"+string(id)+"/export", "")
		if r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		for _, l := range strings.Split(strings.TrimSuffix(r.body, "\n"), "\n") {
			last = line{}
			if err := json.Unmarshal([]byte(l), &last); err != nil {
				t.Fatalf("%v: %s", err, l)
			}
			if last.Type != "part" {
				kinds = append(kinds, strings.TrimSpace(last.Type+" "+last.ID+" "+last.AtWork))
				continue
			}
			c, err := transcript.ParseCursor(last.Cursor)
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, transcript.Part{Cursor: c, Body: last.Part})
		}
		return kinds, parts, last, r
	}
	kinds, parts, end, r := read()
	if d := cmp.Diff([]string{fmt.Sprintf("session %s %s", id, turns[2]), "turn " + string(turns[0]), "turn " + string(turns[1]), "turn " + string(turns[2]), "end"}, kinds); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
	if d := cmp.Diff(w.Transcript(id), parts); d != "" {
		t.Errorf("parts are not to the letter (-want +got):\n%s", d)
	}
	if end.Complete || end.Turns != 3 || end.Parts != int64(len(parts)) {
		t.Errorf("the end while a turn is at work: %+v", end)
	}
	got := []string{r.header.Get("Content-Type"), r.header.Get("Content-Disposition")}
	if d := cmp.Diff([]string{"application/jsonl", "attachment; filename=one-b-" + string(id) + ".jsonl"}, got); d != "" {
		t.Error(d)
	}
	if !strings.HasPrefix(r.body, `{"type":"session","version":1,`) {
		t.Errorf("begins %.100s", r.body)
	}
}

func TestExportIsBrokenOff(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	w.Begin(id)
	for i := range 40 {
		w.Say(id, uistream.Data{Name: "content", Data: uistream.ValueOf(strings.Repeat("x", 1<<20-1000)), ID: fmt.Sprint(i)}.Part().Raw)
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", w.URL+"/v1/agent-sessions/"+string(id)+"/export", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+resttest.Token)
	res, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b := bufio.NewReader(res.Body)
	if _, err := b.Peek(1); err != nil {
		t.Fatal(err)
	}
	w.Broken.Store(true)
	rest, err := io.ReadAll(b)
	if err == nil || bytes.Contains(rest, []byte(`"type":"end"`)) || bytes.Contains(rest, []byte("secret")) {
		t.Errorf("an export that broke off looks whole: %d bytes, %v", len(rest), err)
	}
}

func TestExportDocument(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id, _ := conversation(t, w)
	w.Prompt(id, "in the queue")
	r := ask(t, w, "GET", "/v1/agent-sessions/"+string(id)+"/export?format=markdown", "")
	if r.status != 200 || r.header.Get("Content-Type") != "text/markdown; charset=utf-8" || !strings.HasSuffix(r.header.Get("Content-Disposition"), ".md") {
		t.Fatalf("%d %v", r.status, r.header)
	}
	for _, want := range []string{
		"# one \\<b\\>\n\n- Session: `" + string(id) + "`\n- Repository: `https://git.example.org/a.git`\n",
		"\n**Turn 3 was at work when this was written. It ends here with what was stored by then.**\n", "Prompts in the queue, which are not part of this: 1.",
		"## Turn 1\n\n**Ada (ada@example.org)**, ", "\n````text\none <b>\n```\n````\n",
		"\n> Hello &lt;world>\\ud83d\\ude00\n", "\n**Tool** `run`: Run \\`ls\\`, done\n",
		"\n<details><summary>Input</summary>\n\n```json\n{\n  \"command\": \"ls </details>\"\n}\n```\n\n</details>\n",
		"\n<details><summary>Output</summary>\n\n````text\n```\n␛[2J<script>\n````\n\n</details>\n",
		"\n**End:** completed\n", "\n```text\n1 file changed, 2 insertions(+)\n```\n", "\n> half\n", "\n**End:** failed, `AGENT_EXITED`. ", "## Turn 3\n", "\nNothing was said.\n",
	} {
		if !strings.Contains(r.body, want) {
			t.Errorf("it has no %q", want)
		}
	}
	if t.Failed() {
		t.Log(r.body)
	}
	if strings.ContainsAny(r.body, "\x1b\r") || strings.Contains(r.body, "in the queue\n") {
		t.Error("it has what it must not have")
	}
}

// What an agent said again is in the document once; what it had said before is folded away.
func TestExportDocumentFoldsWhatIsSuperseded(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	w.Begin(id)
	for _, l := range []string{
		`{"type":"reasoning-start","id":"1"}`, `{"type":"reasoning-delta","id":"1","delta":"thought"}`, `{"type":"reasoning-end","id":"1"}`,
		`{"type":"text-start","id":"2"}`, `{"type":"text-delta","id":"2","delta":"older </details>"}`, `{"type":"text-end","id":"2"}`,
		`{"type":"text-start","id":"3"}`, `{"type":"text-delta","id":"3","delta":"newer"}`,
		`{"type":"data-superseded","data":{"from":7,"to":7,"block":2}}`,
		`{"type":"data-superseded","data":{"block":0}}`, `{"type":"data-superseded","data":{"block":4}}`, `{"type":"data-superseded","data":[]}`,
	} {
		w.Say(id, json.RawMessage(l))
	}
	r := ask(t, w, "GET", "/v1/agent-sessions/"+string(id)+"/export?format=markdown", "")
	want := "\n<details><summary>Reasoning</summary>\n\n> thought\n\n</details>\n" +
		"\n<details><summary>Broke off, and was said again</summary>\n\n> older &lt;/details>\n\n</details>\n\n> newer\n"
	if !strings.Contains(r.body, want) {
		t.Errorf("no %q in\n%s", want, r.body)
	}
}
