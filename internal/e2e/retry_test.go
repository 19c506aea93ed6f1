package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/uistream"
)

// The model's answer breaks off in the middle. Each real agent asks again by itself and says
// the whole anew; what it said first stays and is marked.
func TestModelAnswerIsCut(t *testing.T) {
	t.Parallel()
	const whole = "I will look at the three files first and then tell what each of them is for, one after the other."
	for _, a := range []struct{ name, model string }{{"claude", ""}, {"codex", "scripted"}, {"pi", ""}} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options{agents: needed(t, "HEARTH_TEST_AGENTS")})
			_, url := w.repo("acme/calc")
			s := w.create(client.CreateInput{Repo: url, Agent: a.name, Model: a.model, Prompt: "@@say " + whole + "@@ @@cut 1@@"})
			id := s.Session.ID
			w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
			parts := w.transcript(id)
			var old strings.Builder
			marks := 0
			for _, p := range parts {
				var d struct {
					Type string
					Data struct{ From, To int64 }
				}
				if err := json.Unmarshal([]byte(p.raw), &d); err != nil {
					t.Fatal(err)
				}
				if d.Type != string(uistream.DataType(uistream.DataSuperseded)) {
					continue
				}
				marks++
				for _, q := range parts {
					var delta struct{ Type, Delta string }
					if int64(q.part) < d.Data.From || int64(q.part) > d.Data.To || json.Unmarshal([]byte(q.raw), &delta) != nil || delta.Type != string(uistream.TypeTextDelta) {
						continue
					}
					old.WriteString(delta.Delta)
				}
			}
			// An agent that had not passed on enough of the first answer when it broke off shows it once.
			want := 0
			if strings.Count(text(parts, 1), whole[:24]) > 1 {
				want = 1
			}
			if got := old.String(); marks != want || want == 1 && (len(got) < 24 || !strings.HasPrefix(whole, got)) {
				t.Errorf("%d marks, of %q; want %d", marks, got, want)
			}
			if got := text(parts, 1); !strings.Contains(got, whole) {
				t.Errorf("the whole is not there: %q", got)
			}
			if shown, gone := saidOnce(t, w, id); strings.Count(shown, whole[:24]) != 1 || !strings.Contains(shown, whole) || gone != old.String() {
				t.Errorf("the message shows %q and takes back %q", shown, gone)
			}
			w.delete(id, true)
		})
	}
}

// saidOnce is the text of the first turn's message without the parts that are superseded, and
// the text of those.
func saidOnce(t *testing.T, w *world, id string) (shown, gone string) {
	t.Helper()
	page, err := w.c.Messages(t.Context(), id, 0)
	if err != nil || len(page.Items) < 2 {
		t.Fatalf("%d messages: %v", len(page.Items), err)
	}
	type part struct {
		Type, Text string
		Data       struct{ Block int }
	}
	var said []part
	old := map[int]bool{}
	for _, raw := range page.Items[1].Parts {
		var p part
		if json.Unmarshal(raw, &p) != nil { // the data of another kind
			continue
		}
		switch p.Type {
		case string(uistream.Text), string(uistream.Reasoning):
			said = append(said, p)
		case string(uistream.DataType(uistream.DataSuperseded)):
			old[p.Data.Block] = true
		}
	}
	for i, p := range said {
		switch {
		case old[i+1]:
			gone += p.Text
		case p.Type == string(uistream.Text):
			shown += p.Text + "\n"
		}
	}
	return shown, gone
}
