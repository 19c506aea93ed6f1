package scriptedmodel_test

import (
	"testing"

	"github.com/hearthd/hearth/internal/testkit/numbered"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

func TestNumbered(t *testing.T) {
	t.Parallel()
	_, url := start(t, scriptedmodel.Options{})
	s := numbered.Spec{Count: 40, Bytes: 60, PerSec: 2000}
	for _, d := range dialects {
		if d.name != scriptedmodel.Chat && d.name != scriptedmodel.Anthropic {
			continue
		}
		a := d.ask(t, url, "", []said{{role: "user", text: s.Directive()}}, agentTools, true)
		got := numbered.NewTally(s)
		got.Add([]byte(a.text))
		if !got.Whole(s.Count) || a.deltas < s.Count {
			t.Errorf("%s: %d pieces in %d deltas", d.name, got.Pieces, a.deltas)
		}
	}
}
