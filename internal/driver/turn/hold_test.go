package turn

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/turnlog"
	"github.com/hearthd/hearth/internal/driverapi"
)

// Updates that came together are one write, but for a large one, and what comes behind
// them stays behind them.
func TestHeldParts(t *testing.T) {
	t.Parallel()
	now := func() time.Time { return time.Unix(1_790_000_000, 0) }
	logs, err := turnlog.Open(t.TempDir(), now)
	if err != nil {
		t.Fatal(err)
	}
	log, err := logs.Create("turn_1")
	if err != nil {
		t.Fatal(err)
	}
	u := New(Options{ID: "turn_1", Log: log, Now: now, Logger: slog.New(slog.DiscardHandler)})
	u.write(u.conv.Begin())
	u.session, u.taking = "s", true
	say := func(text string) {
		u.Update(acp.SessionNotification{SessionID: "s", Update: []byte(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + text + `"}}`)})
	}
	steps := []struct {
		what    string
		do      func()
		written int64 // parts after it
	}{
		{"begin", func() {}, 2},
		{"first", func() { say("a") }, 2},
		{"second", func() { say("b") }, 2},
		{"caught up", u.CaughtUp, 5}, // with the text's start
		{"again", u.CaughtUp, 5},
		{"held", func() { say("c") }, 5},
		{"large", func() { say(strings.Repeat("d", holdBytes)) }, 7},
		{"held again", func() { say("e") }, 7},
		{"another record", func() { u.append(driverapi.Record{Sent: true}) }, 8},
		{"held at the end", func() { say("f") }, 8},
		{"note", func() { u.write(u.conv.Note("n")) }, 10},
	}
	for _, s := range steps {
		s.do()
		if got := log.Last(); got != s.written {
			t.Fatalf("%s: %d parts are written, want %d", s.what, got, s.written)
		}
	}
}
