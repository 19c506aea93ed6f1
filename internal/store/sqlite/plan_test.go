package sqlite

import (
	"database/sql"
	"os"
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

// What is asked for each turn is found by an index: it costs the same after ten thousand turns.
func TestTurnsAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "hearth.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	file, err := os.ReadFile("queries/queries.sql")
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]any{
		"GetSession":     {"ses_1"},
		"GetTurn":        {sql.Named("id", "trn_1"), sql.Named("session", "ses_1")},
		"QueuedTurns":    {"ses_1"},
		"LastReached":    {"ses_1"},
		"DueEffects":     {sql.Named("now", 1), sql.Named("lim", 1)},
		"LeasedSessions": {sql.Named("now", 1)},
		"NextDue":        nil,
	} {
		_, query, found := strings.Cut(string(file), "-- name: "+name+" ")
		if !found {
			t.Fatalf("there is no query %s", name)
		}
		_, query, _ = strings.Cut(query, "\n")
		query, _, _ = strings.Cut(query, ";")
		for _, step := range plan(t, s, query, args) {
			if !strings.HasPrefix(step, "SEARCH ") || !strings.Contains(step, " USING ") {
				t.Errorf("%s: %s", name, step)
			}
		}
	}
}

// plan is how the database would carry a query out.
func plan(t *testing.T, s *Store, query string, args []any) []string {
	t.Helper()
	rows, err := s.r.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, step)
	}
	if err := rows.Err(); err != nil || len(steps) == 0 {
		t.Fatalf("%s: %d steps, %v", query, len(steps), err)
	}
	return steps
}
