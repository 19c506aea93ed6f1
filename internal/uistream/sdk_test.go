package uistream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/uistream"
	"github.com/hearthd/hearth/internal/uistream/npmtest"
)

func eachLine(t *testing.T, streams []npmtest.Stream, check func(t *testing.T, got map[string]npmtest.Result)) {
	t.Helper()
	for _, line := range npmtest.Lines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			check(t, npmtest.Read(t, line, streams))
		})
	}
}

// TestSDKReadsEveryType: all that a driver and the server store.
func TestSDKReadsEveryType(t *testing.T) {
	t.Parallel()
	eachLine(t, []npmtest.Stream{{Name: "rich", Parts: append(rich(), ending...)}}, func(t *testing.T, all map[string]npmtest.Result) {
		got := all["rich"]
		if got.Error != "" || len(got.Messages) != 1 {
			t.Fatalf("%q, %d messages", got.Error, len(got.Messages))
		}
		m := got.Messages[0]
		var kinds []string
		for _, p := range m.Parts {
			kinds = append(kinds, strings.TrimSpace(p.Type+" "+p.State))
		}
		want := []string{
			"step-start", "reasoning done", "text done", "dynamic-tool output-available", "data-permission", "dynamic-tool output-denied",
			"dynamic-tool output-error", "dynamic-tool output-error", "source-url", "source-document", "file", "data-plan", "data-diff", "data-turn-end",
		}
		if d := cmp.Diff(want, kinds); d != "" {
			t.Errorf("parts (-want +got):\n%s", d)
		}
		if m.ID != "turn_1" || got.Text() != "a<b>&\x00\x1b[1m \U0001F600!" || string(m.Metadata) != `{"a":{"b":1,"c":2}}` {
			t.Errorf("id %q, text %q, metadata %s", m.ID, got.Text(), m.Metadata)
		}
		edit := m.Parts[3]
		if edit.ToolName != "edit" || edit.Title != "Edit a" || string(edit.Input) != `{"path":"a","(__proto__)":1}` || string(edit.Output) != `{"ok":true}` ||
			string(edit.ToolMetadata) != `{"acp":{"kind":"edit"}}` || !strings.Contains(string(edit.ResultProviderMetadata), `"hearth"`) {
			t.Errorf("tool: %+v", edit)
		}
		if d := cmp.Diff([]string{"input-streaming", "input-available", "approval-requested", "output-available preliminary", "output-available"}, got.States["c"]); d != "" {
			t.Errorf("states (-want +got):\n%s", d)
		}
		if string(m.Parts[11].Data) != `{"n":2}` {
			t.Errorf("the plan was not replaced: %s", m.Parts[11].Data)
		}
	})
}

// TestSDKReadsEveryClosedTurn: a turn cut at any part and closed by the checker
// leaves nothing streaming in a page.
func TestSDKReadsEveryClosedTurn(t *testing.T) {
	t.Parallel()
	var streams []npmtest.Stream
	for n := range len(rich()) + 1 {
		c := uistream.NewChecker("turn_1")
		var parts []uistream.Part
		for _, p := range rich()[:n] {
			if _, err := c.Check(p.Raw); err != nil {
				t.Fatal(err)
			}
			parts = append(parts, p)
		}
		parts = append(append(parts, c.Close("cut", time.Time{})...), ending...)
		streams = append(streams, npmtest.Stream{Name: fmt.Sprintf("cut-%d", n), Parts: parts})
	}
	eachLine(t, streams, func(t *testing.T, all map[string]npmtest.Result) {
		for name, got := range all {
			if got.Error != "" || len(got.Messages) != 1 || got.Messages[0].ID != "turn_1" {
				t.Errorf("%s: %q, %d messages", name, got.Error, len(got.Messages))
				continue
			}
			for _, p := range got.Messages[0].Parts {
				if p.State != "" && p.State != "done" && !strings.HasPrefix(p.State, "output-") || p.Preliminary {
					t.Errorf("%s: %s is left %s", name, p.Type, p.State)
				}
			}
		}
	})
}

// TestSDKRefusesWhatTheCheckerRefuses keeps the table of refusals honest: a row
// marked sdk really ends the stream of a page.
func TestSDKRefusesWhatTheCheckerRefuses(t *testing.T) {
	t.Parallel()
	var streams []npmtest.Stream
	want := map[string]bool{}
	for i, tt := range refusals {
		if tt.name == "too large" {
			continue
		}
		name := fmt.Sprintf("refusal-%d", i)
		s := npmtest.Stream{Name: name}
		for _, p := range tt.parts {
			s.Parts = append(s.Parts, uistream.Part{Raw: []byte(p)})
		}
		streams = append(streams, s)
		want[name] = tt.sdk
	}
	eachLine(t, streams, func(t *testing.T, all map[string]npmtest.Result) {
		for i, tt := range refusals {
			name := fmt.Sprintf("refusal-%d", i)
			if want[name] && all[name].Error == "" {
				t.Errorf("%s: the SDK reads it", tt.name)
			}
		}
	})
}
