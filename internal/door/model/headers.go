package model

import (
	"net/http"
	"slices"
	"strings"

	"github.com/hearthd/hearth/internal/secret"
)

// oauthBeta is what Anthropic wants to see beside an OAuth token.
const oauthBeta = "oauth-2025-04-20"

// What passes to the provider. No credential is on it: whatever the sandbox
// sends is a placeholder. Neither are the headers that choose whom the provider
// charges (OpenAI-Organization, OpenAI-Project): that is the key's business.
// Accept-Encoding is not on it so that the answer can be read.
var requestHeaders = []string{
	"Accept", "Accept-Language", "Content-Encoding", "Content-Type", "User-Agent",
	"Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access", "Anthropic-Version",
	"Openai-Beta", "Openai-Intent", "Originator", "Session_id", "Conversation_id", "Version", "X-App",
	"X-Goog-Api-Client", "X-Client-Request-Id", "Idempotency-Key",
}

var requestPrefixes = []string{"X-Stainless-", "X-Codex-"}

// What passes to the sandbox. Cookies, and the names of the operator's
// organization, are not on it.
var responseHeaders = []string{
	"Cache-Control", "Content-Language", "Content-Type", "Openai-Model", "Openai-Processing-Ms", "Openai-Version",
	"Request-Id", "Retry-After", "Retry-After-Ms", "X-Request-Id", "X-Should-Retry", "X-Accel-Buffering",
}

var responsePrefixes = []string{"Anthropic-Ratelimit-", "Anthropic-Priority-", "Anthropic-Fast-", "X-Ratelimit-", "Ratelimit"}

// passHeaders copies what is on a list.
func passHeaders(dst, src http.Header, names, prefixes []string) {
	for name, values := range src {
		if slices.Contains(names, name) || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			dst[name] = slices.Clone(values)
		}
	}
}

// authorize puts the key in.
func authorize(h http.Header, auth Auth, key secret.Secret) {
	switch auth {
	case AuthAPIKey:
		h.Set("X-Api-Key", key.Reveal())
	case AuthBearer:
		h.Set("Authorization", "Bearer "+key.Reveal())
	case AuthOAuthBearer:
		h.Set("Authorization", "Bearer "+key.Reveal())
		betas := strings.Join(h.Values("Anthropic-Beta"), ",")
		if !slices.Contains(strings.FieldsFunc(betas, func(r rune) bool { return r == ',' || r == ' ' }), oauthBeta) {
			h.Set("Anthropic-Beta", strings.TrimPrefix(betas+","+oauthBeta, ","))
		}
	case AuthGoogleKey:
		h.Set("X-Goog-Api-Key", key.Reveal())
	case AuthNone:
	}
}
