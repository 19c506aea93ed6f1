package model_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/fault"
)

func TestFromEnv(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		env   map[string]string
		want  []string // provider auth base key
		wrong []string // parts of the sentence
	}{
		{name: "nothing", env: map[string]string{"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "  "}},
		{name: "keys only", env: map[string]string{"ANTHROPIC_API_KEY": "k1", "OPENAI_API_KEY": " k2\n", "GOOGLE_API_KEY": "k3"}, want: []string{
			"anthropic api-key https://api.anthropic.com k1",
			"gemini google-key https://generativelanguage.googleapis.com k3",
			"openai bearer https://api.openai.com/v1 k2",
		}},
		{name: "first key counts", env: map[string]string{"ANTHROPIC_API_KEY": "k1", "ANTHROPIC_AUTH_TOKEN": "k2", "CLAUDE_CODE_OAUTH_TOKEN": "k3", "GEMINI_API_KEY": "g1", "GOOGLE_API_KEY": "g2"}, want: []string{
			"anthropic api-key https://api.anthropic.com k1", "gemini google-key https://generativelanguage.googleapis.com g1",
		}},
		{name: "bearer", env: map[string]string{"ANTHROPIC_AUTH_TOKEN": "k2", "ANTHROPIC_BASE_URL": "https://gw.example/anthropic/"}, want: []string{"anthropic bearer https://gw.example/anthropic k2"}},
		{name: "oauth", env: map[string]string{"CLAUDE_CODE_OAUTH_TOKEN": "k3"}, want: []string{"anthropic oauth-bearer https://api.anthropic.com k3"}},
		{name: "oauth by its prefix", env: map[string]string{"ANTHROPIC_API_KEY": "sk-ant-oat01-x"}, want: []string{"anthropic oauth-bearer https://api.anthropic.com sk-ant-oat01-x"}},
		{name: "local server", env: map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:11434/v1"}, want: []string{
			"openai none http://127.0.0.1:11434/v1 ", "openai-compatible none http://127.0.0.1:11434/v1 "}},
		{name: "OpenAI's own place", env: map[string]string{"OPENAI_BASE_URL": "https://API.openai.com/v1", "OPENAI_API_KEY": "k"}, want: []string{"openai bearer https://API.openai.com/v1 k"}},
		{name: "http in the own network", env: map[string]string{"OPENAI_BASE_URL": "http://gpu:8000/v1", "OPENAI_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://192.168.1.7", "ANTHROPIC_API_KEY": "k",
			"GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": "http://[::1]:80"}, want: []string{
			"anthropic api-key http://192.168.1.7 k", "gemini google-key http://[::1]:80 k",
			"openai bearer http://gpu:8000/v1 k", "openai-compatible bearer http://gpu:8000/v1 k"}},
		{name: "all mistakes at once", env: map[string]string{
			"ANTHROPIC_BASE_URL": "https://user:hidden1@h", "OPENAI_API_KEY": "hid\nden2", "OPENAI_BASE_URL": "https:///v1", "GOOGLE_GEMINI_BASE_URL": "ftp://x"},
			wrong: []string{"ANTHROPIC_BASE_URL has a user in it", "OPENAI_API_KEY has characters", "OPENAI_BASE_URL has no host", "GOOGLE_GEMINI_BASE_URL must begin with https://"}},
		{name: "key in the clear", env: map[string]string{"OPENAI_BASE_URL": "http://api.example.com/v1", "OPENAI_API_KEY": "k"}, wrong: []string{"OPENAI_BASE_URL must begin with https://, since a key"}},
		{name: "query", env: map[string]string{"OPENAI_BASE_URL": "https://a/v1?key=1"}, wrong: []string{"query"}},
		{name: "no URL", env: map[string]string{"OPENAI_BASE_URL": "https://a b"}, wrong: []string{"is not a URL"}},
		{name: "no scheme", env: map[string]string{"OPENAI_BASE_URL": "localhost:1234/v1"}, wrong: []string{"must begin with"}},
		{name: "escaped path", env: map[string]string{"OPENAI_BASE_URL": "https://a/v1%2fx"}, wrong: []string{"escaped"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p, err := model.FromEnv(func(name string) (string, bool) { v, ok := tc.env[name]; return v, ok })
			if len(tc.wrong) > 0 {
				if fault.CodeOf(err) != fault.ConfigInvalid {
					t.Fatalf("err %v", err)
				}
				for _, w := range tc.wrong {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%v lacks %q", err, w)
					}
				}
				if strings.Contains(err.Error(), "hid") {
					t.Errorf("shows a value: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, name := range p.Names() {
				r, err := p.Route(name)
				if err != nil || !p.Has(name) {
					t.Fatal(name, err)
				}
				k := ""
				if r.Key != nil {
					s, err := r.Key(context.Background())
					if err != nil {
						t.Fatal(err)
					}
					k = s.Reveal()
				}
				if _, ok := model.DialectOf(name); !ok || r.Name != name {
					t.Errorf("%s: %+v", name, r)
				}
				got = append(got, fmt.Sprintf("%s %s %s %s", name, r.Auth, r.BaseURL, k))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestProvidersSay(t *testing.T) {
	t.Parallel()
	env := map[string]string{"ANTHROPIC_API_KEY": "sk-canary-1", "OPENAI_API_KEY": "sk-canary-2", "OPENAI_BASE_URL": "https://GW.example/v1"}
	p, err := model.FromEnv(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	var secrets []string
	for _, s := range p.Secrets() {
		secrets = append(secrets, string(s))
	}
	if diff := cmp.Diff([]string{"sk-canary-1", "sk-canary-2"}, secrets); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "gw.example"}, p.Hosts()); diff != "" {
		t.Error(diff)
	}
	if s := fmt.Sprintf("%v %+v %#v", p, p, p); strings.Contains(s, "canary") {
		t.Errorf("shown: %s", s)
	}
	none, err := model.FromEnv(func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Route("openai-compatible"); !strings.Contains(err.Error(), "Set OPENAI_BASE_URL") {
		t.Error(err)
	}
	for name, want := range map[string]string{
		"gemini": "Set GEMINI_API_KEY or GOOGLE_API_KEY.",
		"other":  `"other"`,
	} {
		if _, err := p.Route(name); fault.CodeOf(err) != fault.ModelKeyMissing || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
