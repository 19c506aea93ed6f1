package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNewFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := filepath.Join(dir, "a")
	if err := NewFolder(a, 0o711, "record", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewFolder(a, 0o711, "record", []byte("y"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("again: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(a, "record")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if err := RemoveFolder(a); err != nil {
		t.Fatal(err)
	}
	if err := RemoveFolder(a); err != nil {
		t.Errorf("again: %v", err)
	}
	// One of a killed process goes, one at work stays.
	for _, n := range []string{"b.part-999999999-1", "c.part-" + Maker(), "d"} {
		if err := os.MkdirAll(filepath.Join(dir, n, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := SweepParts(dir); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"c.part-" + Maker(), "d"}, list(t, dir)); d != "" {
		t.Error(d)
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
