package config_test

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/config"
)

var update = flag.Bool("update", false, "write docs/config.md anew")

func TestSettingsDocumentIsCurrent(t *testing.T) {
	const path = "../../docs/config.md"
	want := config.Markdown()
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
		t.Fatalf("docs/config.md is not what the table says; run go test ./internal/config -update\n%s", d)
	}
}
