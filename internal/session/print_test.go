package session

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/sessions.md anew")

func TestSessionsDocumentIsCurrent(t *testing.T) {
	const path = "../../docs/sessions.md"
	want := Markdown()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Fatalf("docs/sessions.md is not what the tables say; run go test ./internal/session -update\n%s", d)
	}
}
