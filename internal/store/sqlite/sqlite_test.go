package sqlite_test

import (
	"database/sql"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session/sessiontest"
	"github.com/hearthd/hearth/internal/store/sqlite"
)

func open(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) sessiontest.Store { return open(t, filepath.Join(t.TempDir(), "a b?#.db")) })
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), path); fault.CodeOf(err) != fault.ConfigInvalid {
		t.Fatalf("got %v", err)
	}
}

func TestGeneratedQueriesAreCurrent(t *testing.T) {
	out, err := exec.Command("go", "tool", "-modfile=../../../tools/go.mod", "sqlc", "diff").CombinedOutput()
	if err != nil {
		t.Fatalf("run go generate ./internal/store/sqlite: %v\n%s", err, out)
	}
}
