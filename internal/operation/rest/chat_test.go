package rest_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/uistream"
	"github.com/hearthd/hearth/internal/uistream/npmtest"
)

// TestChatBeginsWithMessages: a page that is loaded while a turn is at work takes the
// messages, resumes the stream, and has each message once and whole.
func TestChatBeginsWithMessages(t *testing.T) {
	t.Parallel()
	for _, line := range npmtest.Lines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			w := resttest.New(t)
			id, turns := conversation(t, w)
			w.Begin(id)
			w.Say(id, uistream.BlockStart{Kind: uistream.Text, ID: "t"}.Part().Raw, uistream.BlockDelta{Kind: uistream.Text, ID: "t", Delta: "the beginning"}.Part().Raw)
			got := npmtest.Seed(t, line, w.URL+"/v1/agent-sessions", resttest.Token, string(id), func() {
				w.Say(id, uistream.BlockDelta{Kind: uistream.Text, ID: "t", Delta: " and the end"}.Part().Raw, uistream.BlockEnd{Kind: uistream.Text, ID: "t"}.Part().Raw)
				w.End(id)
			})
			if got.Error != "" || got.Status != "ready" || len(got.Seeded) != 6 {
				t.Fatalf("%d messages, status %s, %s", len(got.Seeded), got.Status, got.Error)
			}
			type seen struct{ ID, Text string }
			var all []seen
			for _, raw := range got.Messages {
				var m uiMessage
				if err := json.Unmarshal(raw, &m); err != nil {
					t.Fatal(err)
				}
				s := seen{ID: m.ID}
				for _, p := range m.Parts {
					if text, ok := p["text"].(string); ok {
						s.Text += text
					}
				}
				all = append(all, s)
			}
			var want []seen
			for i, text := range []string{"one <b>\n```", "Hello <world>\u2028\\ud83d\\ude00", "two", "half", "three", "the beginning and the end"} {
				s := seen{ID: string(turns[i/2]), Text: text}
				if i%2 == 0 {
					s.ID += "-user"
				}
				want = append(want, s)
			}
			if d := cmp.Diff(want, all); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
