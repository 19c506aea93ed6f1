package turn

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
)

// Whatever is begun before the caps is closed beyond them, and the stream stays one that readers take.
func TestLimiter(t *testing.T) {
	t.Parallel()
	now := func() time.Time { return time.Unix(1_790_000_000, 0) }
	c := convert.New("turn_1", now, convert.Options{})
	l := limiter{maxParts: 1000, maxBytes: 1 << 20}
	check := uistream.NewChecker("turn_1")
	said := 0
	take := func(parts []uistream.Part) {
		for _, p := range l.pass(parts, now()) {
			if p.Type == "data-limit" {
				said++
			}
			if _, err := check.Check(p.Raw); err != nil {
				t.Fatalf("%s: %v", p.Raw, err)
			}
		}
	}
	take(c.Begin())
	update := func(format string, args ...any) { take(c.Update(fmt.Appendf(nil, format, args...))) }
	update(`{"sessionUpdate":"tool_call","toolCallId":"t1","title":"build","kind":"execute","status":"in_progress","rawInput":{"command":"make"}}`)
	words := strings.Repeat("w", 10_000)
	for i := range 150 {
		update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%q}}`, words)
		if i == 120 {
			update(`{"sessionUpdate":"tool_call","toolCallId":"t2","title":"late","kind":"read","status":"pending"}`)
		}
	}
	update(`{"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed","rawOutput":"ok"}`)
	update(`{"sessionUpdate":"tool_call_update","toolCallId":"t2","status":"completed","rawOutput":"ok"}`)
	update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"more"}}`)
	take(c.End(convert.End{StopReason: "end_turn"}))
	if said != 1 || l.dropped == 0 || l.bytes > l.maxBytes+closeBytes {
		t.Errorf("said %d times, dropped %d, %d bytes", said, l.dropped, l.bytes)
	}
	if open := check.OpenTools(); len(open) > 0 {
		t.Errorf("open %v", open)
	}
	for _, p := range check.Close("done", now()) {
		if p.Type == uistream.TypeTextEnd {
			t.Error("a text block is open")
		}
	}
}
