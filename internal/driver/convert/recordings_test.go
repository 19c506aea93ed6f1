package convert_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
	"github.com/hearthd/hearth/internal/uistream/npmtest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// recorded is one turn of a recording.
type recorded struct {
	name     string
	turnID   string
	parts    []uistream.Part
	checker  *uistream.Checker
	texts    []string            // of the agent's messages, as recorded
	statuses map[string][]string // of its tool calls, as recorded
}

type message struct {
	MS   int64  `json:"ms"`
	Proc int    `json:"proc"`
	Dir  string `json:"dir"`
	Msg  struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	} `json:"msg"`
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// turns plays a recording: every prompt in it is a turn.
func turns(t *testing.T, file string) []recorded {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var (
		out    []recorded
		now    time.Time
		cur    *recorded
		c      *convert.Converter
		prompt string
		proc   int
		asked  = map[string]string{} // question by request id
		base   = strings.TrimSuffix(filepath.Base(file), ".jsonl")
	)
	add := func(parts []uistream.Part) {
		t.Helper()
		for _, p := range parts {
			if _, err := cur.checker.Check(p.Raw); err != nil {
				t.Fatalf("%s: %v\n%s", cur.name, err, p.Raw)
			}
		}
		cur.parts = append(cur.parts, parts...)
	}
	end := func(e convert.End) {
		t.Helper()
		add(c.End(e))
		if rest := cur.checker.Close("left open", now); len(rest) > 0 {
			t.Errorf("%s: the converter left open: %s", cur.name, rest[0].Raw)
		}
		fin := uistream.Finish{FinishReason: uistream.FinishStop, EndAt: uistream.At(now)}.Part()
		if _, err := cur.checker.Stored(fin.Raw); err != nil {
			t.Fatal(err)
		}
		cur.parts = append(cur.parts, fin)
		out = append(out, *cur)
		cur, c = nil, nil
	}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var m message
		if err := json.Unmarshal(sc.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		if cur != nil && m.Proc != proc {
			end(convert.End{Failure: "the agent was killed."})
		}
		now, proc = epoch.Add(time.Duration(m.MS)*time.Millisecond), m.Proc
		switch {
		case m.Msg.Method == acp.MethodSessionPrompt:
			n := len(out) + 1
			cur = &recorded{
				name: fmt.Sprintf("%s-turn%d", base, n), turnID: fmt.Sprintf("turn_%d", n),
				statuses: map[string][]string{},
			}
			cur.checker = uistream.NewChecker(cur.turnID)
			c = convert.New(cur.turnID, func() time.Time { return now }, convert.Options{NoisePrefixes: []string{"[MODE_UPDATE]"}})
			prompt = string(m.Msg.ID)
			add(c.Begin())
		case cur == nil:
		case m.Dir == "client->agent":
			if q := asked[string(m.Msg.ID)]; q != "" && m.Msg.Method == "" {
				var r acp.PermissionResponse
				if err := acp.Decode(m.Msg.Result, &r); err != nil {
					t.Fatal(err)
				}
				add(c.Answered(q, convert.Answer{Allowed: true, OptionID: r.Outcome.OptionID}))
			}
		case m.Msg.Method == acp.MethodRequestPermission:
			var r acp.PermissionRequest
			if err := acp.Decode(m.Msg.Params, &r); err != nil {
				t.Fatal(err)
			}
			q := fmt.Sprintf("q_%d", len(asked)+1)
			asked[string(m.Msg.ID)] = q
			add(c.Ask(q, r))
		case m.Msg.Method == acp.MethodSessionUpdate:
			var n acp.SessionNotification
			if err := acp.Decode(m.Msg.Params, &n); err != nil {
				t.Fatal(err)
			}
			u, err := acp.ParseUpdate(n.Update)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case u.Kind == acp.UpdateAgentMessage:
				cur.texts = append(cur.texts, u.Chunk.Content.Text)
			case u.Tool != nil && u.Tool.Status != nil:
				cur.statuses[u.Tool.ToolCallID] = append(cur.statuses[u.Tool.ToolCallID], *u.Tool.Status)
			}
			add(c.Update(n.Update))
		case m.Msg.Method == "" && string(m.Msg.ID) == prompt:
			var r acp.PromptResponse
			if m.Msg.Result == nil {
				end(convert.End{Failure: string(m.Msg.Error)})
				continue
			}
			if err := acp.Decode(m.Msg.Result, &r); err != nil {
				t.Fatal(err)
			}
			end(convert.End{StopReason: r.StopReason, Usage: r.Usage})
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	if cur != nil {
		end(convert.End{Failure: "the recording ends here."})
	}
	return out
}

func allTurns(t *testing.T) []recorded {
	t.Helper()
	files, err := filepath.Glob("testdata/recordings/*.jsonl")
	if err != nil || len(files) < 19 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	var out []recorded
	for _, f := range files {
		out = append(out, turns(t, f)...)
	}
	return out
}

func TestRecordingsGolden(t *testing.T) {
	t.Parallel()
	for _, r := range allTurns(t) {
		var got bytes.Buffer
		for _, p := range r.parts {
			got.Write(p.Raw)
			got.WriteByte('\n')
		}
		file := filepath.Join("testdata", "golden", r.name+".jsonl")
		if *update {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v (go test -update writes it)", err)
		}
		if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); d != "" {
			t.Errorf("%s differs (-want +got):\n%s", r.name, d)
		}
	}
}

// TestRecordingsReadByTheSDK holds what a page shows against what the agent said.
func TestRecordingsReadByTheSDK(t *testing.T) {
	t.Parallel()
	all := allTurns(t)
	streams := make([]npmtest.Stream, len(all))
	for i, r := range all {
		streams[i] = npmtest.Stream{Name: r.name, Parts: r.parts}
	}
	for _, line := range npmtest.Lines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			results := npmtest.Read(t, line, streams)
			for _, r := range all {
				t.Run(r.name, func(t *testing.T) { r.compare(t, results[r.name]) })
			}
		})
	}
}

func (r recorded) compare(t *testing.T, got npmtest.Result) {
	if got.Error != "" {
		t.Fatalf("the SDK ended the stream: %s", got.Error)
	}
	chunks := map[string]int{}
	for _, p := range r.parts {
		chunks[string(p.Type)]++
	}
	if d := cmp.Diff(chunks, got.Chunks); d != "" {
		t.Errorf("chunks read (-sent +read):\n%s", d)
	}
	if len(got.Messages) != 1 || got.Messages[0].ID != r.turnID || got.Messages[0].Role != "assistant" {
		t.Fatalf("messages: %+v", got.Messages)
	}
	var want strings.Builder
	for _, s := range r.texts {
		if !strings.HasPrefix(s, "[MODE_UPDATE]") {
			want.WriteString(s)
		}
	}
	if d := cmp.Diff(want.String(), got.Text()); d != "" {
		t.Errorf("text (-said +shown):\n%s", d)
	}
	states := map[string]string{}
	for _, p := range got.Messages[0].Parts {
		switch p.Type {
		case "dynamic-tool":
			states[p.ToolCallID] = p.State
			if p.ToolName == "" || p.Preliminary {
				t.Errorf("tool call %s: name %q, preliminary %v", p.ToolCallID, p.ToolName, p.Preliminary)
			}
		case "text", "reasoning":
			if p.State != "done" {
				t.Errorf("the block %.40q is %s", p.Text, p.State)
			}
		case "data-acp", "data-mode", "data-config", "data-commands", "data-session":
			t.Errorf("the transient part %s was kept", p.Type)
		}
	}
	wantStates := map[string]string{}
	for id, s := range r.statuses {
		switch s[len(s)-1] {
		case acp.ToolCompleted:
			wantStates[id] = "output-available"
		default: // failed, or cut short
			wantStates[id] = "output-error"
		}
	}
	if d := cmp.Diff(wantStates, states); d != "" {
		t.Errorf("tool states (-want +got):\n%s", d)
	}
}
