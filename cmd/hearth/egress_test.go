package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
)

func TestCheckEgress(t *testing.T) {
	t.Parallel()
	logins := filepath.Join(t.TempDir(), "logins")
	if err := os.WriteFile(logins, []byte("# ours\nhttps://bot:pw-canary@Git.Example.org:8443/team\n\nnonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"OPENAI_BASE_URL": "https://llm.example.net/v1", "OPENAI_API_KEY": "k"}
	const own = "reached through a door of its own"
	for name, tc := range map[string]struct {
		c    config.Config
		want []string // nil: nothing is wrong
	}{
		"nothing":           {},
		"others":            {c: config.Config{AllowHosts: []string{"docs.example.com", "raw.githubusercontent.com"}, Registries: []string{"registry.npmjs.org"}}},
		"a provider":        {config.Config{AllowHosts: []string{"api.anthropic.com"}}, []string{`--egress-allow: `, `"api.anthropic.com": it is ` + own}},
		"one's own model":   {config.Config{AllowHosts: []string{"LLM.example.net."}}, []string{`"llm.example.net": it is ` + own}},
		"the usual forges":  {config.Config{AllowHosts: []string{"github.com", "gitlab.com", "api.github.com"}}, []string{`"github.com": it is ` + own, `"gitlab.com"`, `"api.github.com"`}},
		"a forge of logins": {config.Config{AllowHosts: []string{"git.example.org"}, GitCredentials: logins}, []string{`"git.example.org": it is ` + own}},
		"a registry at the forge is the operator's to name": {c: config.Config{Registries: []string{"git.example.org"}, GitCredentials: logins}},
		"no file": {c: config.Config{AllowHosts: []string{"docs.example.com"}, GitCredentials: logins + "-none"}},
		"all mistakes": {config.Config{AllowHosts: []string{"*.example.com", "api.openai.com"}, Registries: []string{"10.0.0.1"}, AllowPrivate: []string{"nexus.lan"}},
			[]string{`--egress-allow: `, `"*.example.com"`, `"api.openai.com"`, `--registries: `, `"10.0.0.1"`, `--egress-allow-private: `, `"nexus.lan"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := checkEgress(tc.c, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
			if tc.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if fault.CodeOf(err) != fault.ConfigInvalid {
				t.Fatalf("error %v", err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v lacks %s", err, w)
				}
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("a login is told: %v", err)
			}
		})
	}
}
