package sqlite

import (
	"path/filepath"
	"strings"
	"testing"
)

// A page of a long transcript is found by the key, and not by reading all that comes before it.
func TestPagesAreFoundByTheKey(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "hearth.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var id, parent, unused int
	var plan string
	if err := s.r.QueryRowContext(t.Context(), "EXPLAIN QUERY PLAN "+readParts, "ses_1", 3, 17, 512).Scan(&id, &parent, &unused, &plan); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(plan, "session=? AND (turn,part)>(?,?)") {
		t.Errorf("the plan is %q", plan)
	}
}
