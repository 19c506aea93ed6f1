package scriptedagent_test

import (
	"testing"

	"github.com/hearthd/hearth/internal/testkit/numbered"
)

func TestNumbered(t *testing.T) {
	t.Parallel()
	c := spawn(t, t.TempDir())
	s := numbered.Spec{Count: 30, Bytes: 100, PerSec: 1000}
	m, updates := c.prompt(c.session(), s.Directive())
	if stop := stopOf(t, m); stop != "end_turn" {
		t.Errorf("stop %q", stop)
	}
	got := numbered.NewTally(s)
	got.Add([]byte(said(updates, "agent_message_chunk")))
	if !got.Whole(s.Count) {
		t.Errorf("pieces %d, doubled %d, back %d", got.Pieces, got.Doubled, got.Back)
	}
}
