package e2e

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/uistream"
)

// stored is one part of a transcript.
type stored struct {
	turn, part int64
	kind       string
	raw        string
}

// transcript reads the whole stored transcript and fails unless it is well made: parts
// numbered without a gap or a double within each turn, every turn by the stream's
// own rules, every ended turn closed by data-turn-end and finish.
func (w *world) transcript(id string) []stored {
	w.t.Helper()
	var out []stored
	after := ""
	for {
		page, err := w.c.Transcript(w.t.Context(), id, after)
		if err != nil {
			w.t.Fatalf("transcript: %v", err)
		}
		for _, p := range page.Items {
			turn, part, ok := strings.Cut(p.Cursor, ".")
			t, err1 := strconv.ParseInt(turn, 10, 64)
			n, err2 := strconv.ParseInt(part, 10, 64)
			var head struct{ Type string }
			if !ok || err1 != nil || err2 != nil || json.Unmarshal(p.Part, &head) != nil {
				w.t.Fatalf("part %q: %s", p.Cursor, p.Part)
			}
			out = append(out, stored{t, n, head.Type, string(p.Part)})
		}
		if page.Next == "" {
			break
		}
		after = page.Next
	}
	turns, err := w.c.Turns(w.t.Context(), id, 0)
	if err != nil {
		w.t.Fatalf("turns: %v", err)
	}
	for _, t := range turns.Items {
		w.judge(t, of(out, t.Number))
	}
	return out
}

// of are the parts of one turn.
func of(parts []stored, turn int64) []stored {
	var out []stored
	for _, p := range parts {
		if p.turn == turn {
			out = append(out, p)
		}
	}
	return out
}

func (w *world) judge(t client.Turn, parts []stored) {
	w.t.Helper()
	c := uistream.NewChecker(t.ID)
	for i, p := range parts {
		if p.part != int64(i)+1 {
			w.t.Fatalf("turn %d: part %d comes after part %d", t.Number, p.part, i)
		}
		if _, err := c.Stored([]byte(p.raw)); err != nil {
			w.t.Fatalf("turn %d, part %d: %v: %s", t.Number, p.part, err, clip(p.raw))
		}
	}
	if !t.Ended() {
		return
	}
	n := len(parts)
	if !c.Finished() || n < 2 || parts[n-2].kind != "data-turn-end" || parts[n-1].kind != "finish" {
		w.t.Fatalf("turn %d ended and its transcript of %d parts does not: %s", t.Number, n, tailOf(parts))
	}
	var end struct {
		Data struct {
			State, Code, Truncated string
			Complete               bool
			Delivery               *struct{ State, Code string }
		}
	}
	if err := json.Unmarshal([]byte(parts[n-2].raw), &end); err != nil {
		w.t.Fatal(err)
	}
	if end.Data.State != t.State || end.Data.Code != t.Code || end.Data.Truncated != t.Truncated {
		w.t.Fatalf("turn %d is %s %q %q, its data-turn-end says %s", t.Number, t.State, t.Code, t.Truncated, parts[n-2].raw)
	}
	if t.StartedAt != nil && (t.Truncated == "") != t.Complete {
		w.t.Errorf("turn %d: complete %t, truncated %q", t.Number, t.Complete, t.Truncated)
	}
}

func tailOf(parts []stored) string {
	var b strings.Builder
	for _, p := range parts[max(0, len(parts)-5):] {
		fmt.Fprintf(&b, "\n%d.%d %s", p.turn, p.part, clip(p.raw))
	}
	return b.String()
}

// text is what the agent said in a turn.
func text(parts []stored, turn int64) string {
	var b strings.Builder
	for _, p := range of(parts, turn) {
		switch uistream.Type(p.kind) {
		case uistream.TypeTextDelta:
			var d struct{ Delta string }
			_ = json.Unmarshal([]byte(p.raw), &d) // judged before
			b.WriteString(d.Delta)
		case uistream.TypeTextEnd:
			b.WriteString("\n")
		}
	}
	return b.String()
}

// outputs is what the tool calls of a turn gave, whatever their shape.
func outputs(parts []stored, turn int64) string {
	var b strings.Builder
	for _, p := range of(parts, turn) {
		switch uistream.Type(p.kind) {
		case uistream.TypeToolOutputAvailable, uistream.TypeToolOutputError:
			var d any
			_ = json.Unmarshal([]byte(p.raw), &d) // judged before
			words(&b, d)
		}
	}
	return b.String()
}

// words writes every string below a value.
func words(b *strings.Builder, v any) {
	switch x := v.(type) {
	case string:
		b.WriteString(x)
		b.WriteString("\n")
	case []any:
		for _, e := range x {
			words(b, e)
		}
	case map[string]any:
		for _, e := range x {
			words(b, e)
		}
	}
}
