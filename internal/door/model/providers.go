package model

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/secret"
)

// Providers are the model providers that the operator set up. It is not changed
// after it was made.
type Providers struct {
	routes map[string]Route
	keys   []secret.Secret
}

// Names of providers, as profiles have them.
const (
	ProviderAnthropic        = "anthropic"
	ProviderOpenAI           = "openai"
	ProviderGemini           = "gemini"
	ProviderOpenAICompatible = "openai-compatible" // Chat at another place than OpenAI's
)

// variable of the environment that may hold a key.
type variable struct {
	name string
	auth Auth
}

var sources = []struct {
	provider string
	keys     []variable // the first that is set counts
	base     string     // variable
	standard string
}{
	{
		provider: ProviderAnthropic,
		keys:     []variable{{"ANTHROPIC_API_KEY", AuthAPIKey}, {"ANTHROPIC_AUTH_TOKEN", AuthBearer}, {"CLAUDE_CODE_OAUTH_TOKEN", AuthOAuthBearer}},
		base:     "ANTHROPIC_BASE_URL", standard: "https://api.anthropic.com",
	},
	{
		provider: ProviderOpenAI,
		keys:     []variable{{"OPENAI_API_KEY", AuthBearer}},
		base:     "OPENAI_BASE_URL", standard: "https://api.openai.com/v1",
	},
	{
		provider: ProviderGemini,
		keys:     []variable{{"GEMINI_API_KEY", AuthGoogleKey}, {"GOOGLE_API_KEY", AuthGoogleKey}},
		base:     "GOOGLE_GEMINI_BASE_URL", standard: "https://generativelanguage.googleapis.com",
	},
}

// anthropicOAuthPrefix begins Anthropic's OAuth tokens, whatever variable they are in.
const anthropicOAuthPrefix = "sk-ant-oat"

// FromEnv reads the providers from the variables that their own tools use.
// Empty means unset. A base URL without a key is a server that wants none, such
// as a local one; with neither, the provider is not set up. All mistakes are
// reported at once, as CONFIG_INVALID, and none of them shows a value.
func FromEnv(lookup func(string) (string, bool)) (Providers, error) {
	p := Providers{routes: map[string]Route{}}
	var wrong []string
	for _, s := range sources {
		route := Route{Name: s.provider, Auth: AuthNone}
		for _, v := range s.keys {
			text, _ := lookup(v.name)
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
				wrong = append(wrong, v.name+" has characters in it that no key has.")
				break
			}
			route.Auth = v.auth
			if s.provider == ProviderAnthropic && strings.HasPrefix(text, anthropicOAuthPrefix) {
				route.Auth = AuthOAuthBearer
			}
			key := secret.New(text)
			p.keys = append(p.keys, key)
			route.Key = func(context.Context) (secret.Secret, error) { return key, nil }
			break
		}
		base, _ := lookup(s.base)
		base = strings.TrimSpace(base)
		if base == "" && route.Key == nil {
			continue
		}
		own := base != ""
		if !own {
			base = s.standard
		}
		u, err := parseBase(base, route.Key != nil)
		if err != nil {
			wrong = append(wrong, s.base+" "+err.Error()+".")
			continue
		}
		route.BaseURL = u
		p.routes[s.provider] = route
		if s.provider == ProviderOpenAI && own && !strings.EqualFold(u.Hostname(), "api.openai.com") {
			route.Name = ProviderOpenAICompatible
			p.routes[ProviderOpenAICompatible] = route
		}
	}
	if len(wrong) > 0 {
		return Providers{}, fault.New(fault.ConfigInvalid, "%s", strings.Join(wrong, " "))
	}
	return p, nil
}

// parseBase checks a base URL. What it reports ends a sentence and shows no part of the URL.
func parseBase(text string, withKey bool) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with https:// or http://")
	case u.Hostname() == "" || u.Opaque != "":
		return nil, errors.New("has no host")
	case u.User != nil:
		return nil, errors.New("has a user in it: give the key in its own variable")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("has a query or fragment, which is not used")
	case u.EscapedPath() != u.Path:
		return nil, errors.New("has escaped characters in its path")
	case u.Scheme == "http" && withKey && !near(u.Hostname()):
		return nil, errors.New("must begin with https://, since a key is sent there over a public network")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

// near tells whether a host is on this machine or in its own network.
func near(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		return a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	i := strings.LastIndexByte(host, '.')
	return i < 0 || slices.Contains([]string{"localhost", "local", "internal", "lan", "home", "test"}, host[i+1:])
}

// Has tells whether a provider is set up.
func (p Providers) Has(name string) bool { _, ok := p.routes[name]; return ok }

// Names lists the providers that are set up, sorted.
func (p Providers) Names() []string {
	out := make([]string, 0, len(p.routes))
	for name := range p.routes {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Route is the way to a provider. Code: MODEL_KEY_MISSING.
func (p Providers) Route(name string) (Route, error) {
	r, ok := p.routes[name]
	if !ok {
		return Route{}, fault.New(fault.ModelKeyMissing, "No key or address of the model provider %q is set on the server.%s", name, hint(name))
	}
	return r, nil
}

// hint names the variables of a provider.
func hint(name string) string {
	if name == ProviderOpenAICompatible {
		return " Set OPENAI_BASE_URL, and OPENAI_API_KEY where it wants a key."
	}
	for _, s := range sources {
		if s.provider == name {
			names := make([]string, 0, len(s.keys))
			for _, k := range s.keys {
				names = append(names, k.name)
			}
			return fmt.Sprintf(" Set %s.", strings.Join(names, " or "))
		}
	}
	return ""
}

// DialectOf is what the door speaks with a provider, named as in profiles.
func DialectOf(provider string) (Dialect, bool) {
	switch provider {
	case ProviderAnthropic:
		return Anthropic, true
	case ProviderOpenAI, ProviderOpenAICompatible:
		return OpenAI, true
	case ProviderGemini:
		return Gemini, true
	}
	return "", false
}

// Hosts are the names of all providers' hosts, set up or not, sorted. A session
// may not reach them but through the model door.
func (p Providers) Hosts() []string {
	var out []string
	for _, s := range sources {
		if u, err := url.Parse(s.standard); err == nil {
			out = append(out, u.Hostname())
		}
	}
	for _, r := range p.routes {
		out = append(out, strings.ToLower(r.BaseURL.Hostname()))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Secrets are the keys, to be masked wherever something is stored.
func (p Providers) Secrets() [][]byte {
	out := make([][]byte, 0, len(p.keys))
	for _, k := range p.keys {
		out = append(out, []byte(k.Reveal()))
	}
	return out
}
