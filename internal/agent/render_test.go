package agent

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
)

var update = flag.Bool("update", false, "write the golden files")

func TestRenderGolden(t *testing.T) {
	t.Parallel()
	for _, p := range Profiles() {
		for _, r := range p.Routes {
			name := p.Name + "-" + r.Provider
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				in := RenderInput{Build: "build", Provider: r.Provider}
				if r.NeedsModel {
					in.Model = "some/model-7b"
				}
				l, err := p.Render(in)
				if err != nil {
					t.Fatal(err)
				}
				got, err := toGolden(l)
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join("testdata", "launch", name+".json")
				if *update {
					if err := os.WriteFile(file, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(string(want), string(got)); d != "" {
					t.Errorf("launch differs from %s (-want +got), run with -update if that is meant:\n%s", file, d)
				}
			})
		}
	}
}

func toGolden(l Launch) ([]byte, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(l)
	return []byte(b.String()), err
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, profile string
		in            RenderInput
		code          fault.Code
		word          string
	}{
		{"provider", "claude", RenderInput{Provider: "gemini"}, fault.ModelProviderUnsupported, "anthropic"},
		{"unknown provider", "pi", RenderInput{Provider: "acme"}, fault.ModelProviderUnsupported, "openai-compatible"},
		{"no model", "pi", RenderInput{Provider: "openai-compatible"}, fault.ModelRequired, "model"},
		{"approvals", "codex", RenderInput{Approvals: "ask"}, fault.ApprovalsUnsupported, "auto"},
		{"model with quotes", "pi", RenderInput{Model: `x","y`}, fault.InvalidInput, "model"},
		{"model with newline", "claude", RenderInput{Model: "a\nb"}, fault.InvalidInput, "model"},
		{"long model", "claude", RenderInput{Model: strings.Repeat("a", 201)}, fault.InvalidInput, "200"},
		{"env without value", "claude", RenderInput{Env: []string{"FOO"}}, fault.InvalidInput, "NAME=VALUE"},
		{"env bad name", "claude", RenderInput{Env: []string{"A B=1"}}, fault.InvalidInput, "NAME=VALUE"},
		{"env NUL", "claude", RenderInput{Env: []string{"A=1\x00B=2"}}, fault.InvalidInput, "NAME=VALUE"},
		{"env of everyone", "claude", RenderInput{Env: []string{"HTTPS_PROXY=http://evil"}}, fault.InvalidInput, "HTTPS_PROXY"},
		{"env of the profile", "claude", RenderInput{Env: []string{"IS_SANDBOX=0"}}, fault.InvalidInput, "IS_SANDBOX"},
		{"env of the route", "claude", RenderInput{Env: []string{"ANTHROPIC_MODEL=x"}}, fault.InvalidInput, "ANTHROPIC_MODEL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, err := Lookup(c.profile)
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Render(c.in)
			if got := fault.CodeOf(err); got != c.code {
				t.Fatalf("code %s, want %s (%v)", got, c.code, err)
			}
			if s := fault.From(err).Sentence(); !strings.Contains(s, c.word) {
				t.Errorf("sentence %q does not name %q", s, c.word)
			}
		})
	}
}

// Whatever changes what the agent is or sees changes the fingerprint; the same
// input gives the same one.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	p, err := Lookup("pi")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, c := range []struct {
		name string
		in   RenderInput
	}{
		{"default", RenderInput{}},
		{"build", RenderInput{Build: "other"}},
		{"provider", RenderInput{Provider: "openai"}},
		{"model", RenderInput{Model: "claude-sonnet-5"}},
		{"env", RenderInput{Env: []string{"FOO=1"}}},
		{"env value", RenderInput{Env: []string{"FOO=2"}}},
		{"home", RenderInput{Home: "/home/other"}},
		{"door", RenderInput{Models: ModelBase{Anthropic: "http://127.0.0.1:1"}}},
	} {
		l, err := p.Render(c.in)
		if err != nil {
			t.Fatal(err)
		}
		again, err := p.Render(c.in)
		if err != nil {
			t.Fatal(err)
		}
		if l.Fingerprint != again.Fingerprint {
			t.Errorf("%s: two renderings, two fingerprints", c.name)
		}
		if other, ok := seen[l.Fingerprint]; ok {
			t.Errorf("%s and %s have the same fingerprint", c.name, other)
		}
		seen[l.Fingerprint] = c.name
	}
}

func TestRenderSessionEnvironment(t *testing.T) {
	t.Parallel()
	p, err := Lookup("codex")
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.Render(RenderInput{Env: []string{"LANG=de_DE.UTF-8", "EMPTY=", "EQ=a=b"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, kv := range l.Env {
		k, v, _ := strings.Cut(kv, "=")
		if _, ok := got[k]; ok {
			t.Errorf("%s is there twice", k)
		}
		got[k] = v
	}
	want := map[string]string{"LANG": "de_DE.UTF-8", "EMPTY": "", "EQ": "a=b", "HOME": "/home/agent"}
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			t.Errorf("%s = %q (%t), want %q", k, g, ok, v)
		}
	}
	var config map[string]any
	if err := json.Unmarshal([]byte(got["CODEX_CONFIG"]), &config); err != nil {
		t.Errorf("CODEX_CONFIG: %v", err)
	}
}

// A model that pi's catalogue lacks has to be spelled out; one that it has must
// not be, or the catalogue's limits and prices would be lost.
func TestPiModels(t *testing.T) {
	t.Parallel()
	p, err := Lookup("pi")
	if err != nil {
		t.Fatal(err)
	}
	for model, listed := range map[string]bool{"claude-opus-5-5": false, "claude-next": true} {
		l, err := p.Render(RenderInput{Provider: ProviderAnthropic, Model: model})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range l.Files {
			if strings.HasSuffix(f.Path, "models.json") && strings.Contains(f.Content, `"models":`) != listed {
				t.Errorf("%s: listed must be %t in %s", model, listed, f.Content)
			}
		}
	}
}
