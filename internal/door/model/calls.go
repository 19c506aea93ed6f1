package model

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// call is one entry of the list of what passes.
type call struct {
	method string
	path   *regexp.Regexp // of the escaped path below the dialect; a group named model is the model
	query  map[string]*regexp.Regexp
	drop   []string // query parameters that may be there and are not passed
	kind   kind
}

// kind says how the answer is read.
type kind int

const (
	kindPlain     kind = iota // no tokens are used
	kindLocal                 // answered here
	kindMessages              // Anthropic
	kindResponses             // OpenAI Responses
	kindChat                  // OpenAI Chat
	kindGemini                // generateContent and streamGenerateContent
	kindEmbed                 // Gemini embedContent: uses tokens, does not say how many
)

// metered tells whether a call uses tokens.
func (k kind) metered() bool { return k >= kindMessages }

var (
	isTrue  = regexp.MustCompile(`^true$`)
	isSSE   = regexp.MustCompile(`^sse$`)
	isWord  = regexp.MustCompile(`^[A-Za-z0-9._:@-]{1,256}$`)
	isToken = regexp.MustCompile(`^[A-Za-z0-9._~+/=-]{0,512}$`)
)

// Ids of models, as they stand in the escaped path; at most [maxModelID] bytes.
const (
	maxModelID = 256

	segment       = `[A-Za-z0-9][A-Za-z0-9._:@-]*`
	geminiSegment = `[A-Za-z0-9][A-Za-z0-9._@-]*` // a colon begins a method there

	// The SDKs of Anthropic and OpenAI escape the slashes in ids of routers and local servers.
	modelID = `(?P<model>` + segment + `(?:%2[Ff]` + segment + `){0,3})`
	// Google's SDK does not, and asks for nothing of such a model but its methods.
	geminiID       = `(?P<model>` + geminiSegment + `)`
	geminiRouterID = `(?P<model>` + geminiSegment + `(?:/` + geminiSegment + `)?)`
)

func at(pattern string) *regexp.Regexp { return regexp.MustCompile(`^` + pattern + `$`) }

var calls = map[Dialect][]call{
	Anthropic: {
		{method: http.MethodHead, path: at(`/?`), kind: kindLocal},
		{method: http.MethodPost, path: at(`/v1/messages`), query: map[string]*regexp.Regexp{"beta": isTrue}, kind: kindMessages},
		{method: http.MethodPost, path: at(`/v1/messages/count_tokens`), query: map[string]*regexp.Regexp{"beta": isTrue}},
		{method: http.MethodGet, path: at(`/v1/models`), query: map[string]*regexp.Regexp{
			"beta": isTrue, "limit": isWord, "after_id": isWord, "before_id": isWord}},
		{method: http.MethodGet, path: at(`/v1/models/` + modelID), query: map[string]*regexp.Regexp{"beta": isTrue}},
	},
	OpenAI: {
		{method: http.MethodPost, path: at(`/v1/responses`), kind: kindResponses},
		{method: http.MethodPost, path: at(`/v1/responses/compact`), kind: kindResponses},
		{method: http.MethodPost, path: at(`/v1/chat/completions`), kind: kindChat},
		{method: http.MethodGet, path: at(`/v1/models`), query: map[string]*regexp.Regexp{"client_version": isWord}},
		{method: http.MethodGet, path: at(`/v1/models/` + modelID)},
	},
	Gemini: {
		{method: http.MethodPost, path: at(`/v1beta/models/` + geminiRouterID + `:generateContent`), drop: []string{"key"}, kind: kindGemini},
		{method: http.MethodPost, path: at(`/v1beta/models/` + geminiRouterID + `:streamGenerateContent`),
			query: map[string]*regexp.Regexp{"alt": isSSE}, drop: []string{"key"}, kind: kindGemini},
		{method: http.MethodPost, path: at(`/v1beta/models/` + geminiRouterID + `:countTokens`), drop: []string{"key"}},
		{method: http.MethodPost, path: at(`/v1beta/models/` + geminiRouterID + `:embedContent`), drop: []string{"key"}, kind: kindEmbed},
		{method: http.MethodGet, path: at(`/v1beta/models`), query: map[string]*regexp.Regexp{"pageSize": isWord, "pageToken": isToken}, drop: []string{"key"}},
		{method: http.MethodGet, path: at(`/v1beta/models/` + geminiID), drop: []string{"key"}},
	},
}

// splitDialect takes the dialect off an escaped path.
func splitDialect(path string) (Dialect, string) {
	first, rest, found := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if found {
		rest = "/" + rest
	}
	return Dialect(first), rest
}

// passed is a request that is on the list.
type passed struct {
	kind  kind
	path  string // below the dialect, escaped
	query string
	model string // when the path names it
}

// match finds a request on the list of its dialect. path is what was asked for
// below the dialect, escaped: the patterns know each byte of it.
func match(dialect Dialect, path string, r *http.Request) (passed, bool) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return passed{}, false
	}
	for _, c := range calls[dialect] {
		if c.method != r.Method {
			continue
		}
		m := c.path.FindStringSubmatch(path)
		if m == nil {
			continue
		}
		query, ok := c.passQuery(values)
		if !ok {
			return passed{}, false
		}
		p := passed{kind: c.kind, path: path, query: query}
		if i := c.path.SubexpIndex("model"); i >= 0 {
			if p.model, err = url.PathUnescape(m[i]); err != nil || len(p.model) > maxModelID {
				return passed{}, false
			}
		}
		return p, true
	}
	return passed{}, false
}

func (c call) passQuery(values url.Values) (string, bool) {
	out := url.Values{}
	for name, vs := range values {
		if slices.Contains(c.drop, name) {
			continue
		}
		rule := c.query[name]
		if rule == nil || len(vs) != 1 || !rule.MatchString(vs[0]) {
			return "", false
		}
		out.Set(name, vs[0])
	}
	return out.Encode(), true
}
