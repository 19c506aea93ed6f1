package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNPMEnvironment: npm is somebody else's program; it gets what it needs and no keys.
func TestNPMEnvironment(t *testing.T) { //nolint:paralleltest // sets variables of the process
	secrets := []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GH_TOKEN", "GITLAB_TOKEN", "HEARTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "SOME_PASSWORD"}
	for _, name := range secrets {
		t.Setenv(name, "canary-value")
	}
	passed := []string{"HTTPS_PROXY", "no_proxy", "npm_config_fund", "NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "TMPDIR", "LC_ALL", "NPM_TOKEN"}
	for _, name := range passed {
		t.Setenv(name, t.TempDir())
	}
	dir := t.TempDir()
	for _, run := range []struct {
		name string
		npm  func(npm string) error
	}{
		{"ci", func(npm string) error {
			return npmRun{npm: npm, env: []string{"npm_config_registry=http://r/"}, dir: t.TempDir(), cache: t.TempDir(), lock: []byte(`{}`)}.run(t.Context())
		}},
		{"version", func(npm string) error {
			_, err := npmVersion(t.Context(), npm, "x")
			return err
		}},
	} {
		t.Run(run.name, func(t *testing.T) {
			file, npm := filepath.Join(dir, run.name), filepath.Join(dir, run.name+".sh")
			script := "#!/bin/sh\nenv > '" + file + "'\necho 10.0.0\n"
			if err := os.WriteFile(npm, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := run.npm(npm); err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(raw), "canary-value") {
				t.Errorf("npm has a key:\n%s", raw)
			}
			var names []string
			for line := range strings.Lines(string(raw)) {
				name, _, _ := strings.Cut(line, "=")
				names = append(names, name)
			}
			for _, want := range append(passed, "PATH", "HOME") {
				if !slices.Contains(names, want) {
					t.Errorf("npm lacks %s", want)
				}
			}
			if diff := cmp.Diff(run.name == "ci", slices.Contains(names, "npm_config_registry")); diff != "" {
				t.Error(diff)
			}
		})
	}
}
