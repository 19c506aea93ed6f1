package model

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// shapes are the paths that the agents use, as a second list written in another way.
// Below models/, {id} is an id, {ids} one whose slashes may be escaped, {router} one that may be vendor/model.
var shapes = map[string][]string{
	"HEAD /anthropic": {""}, "HEAD /anthropic/": {""},
	"POST /anthropic/v1/messages":                               {"", "beta=true"},
	"POST /anthropic/v1/messages/count_tokens":                  {"", "beta=true"},
	"GET /anthropic/v1/models":                                  nil, // any of its own query
	"GET /anthropic/v1/models/{ids}":                            {"", "beta=true"},
	"POST /openai/v1/responses":                                 {""},
	"POST /openai/v1/responses/compact":                         {""},
	"POST /openai/v1/chat/completions":                          {""},
	"GET /openai/v1/models":                                     nil,
	"GET /openai/v1/models/{ids}":                               {""},
	"GET /gemini/v1beta/models":                                 nil,
	"GET /gemini/v1beta/models/{id}":                            {""},
	"POST /gemini/v1beta/models/{router}:generateContent":       {""},
	"POST /gemini/v1beta/models/{router}:streamGenerateContent": {"", "alt=sse"},
	"POST /gemini/v1beta/models/{router}:countTokens":           {""},
	"POST /gemini/v1beta/models/{router}:embedContent":          {""},
}

// shapeOf is the shape of what would go out, empty where it has none.
func shapeOf(method string, d Dialect, path string) string {
	whole := method + " /" + string(d) + path
	head, id, ok := strings.Cut(whole, "/models/")
	if !ok {
		return whole
	}
	tail := ""
	if d == Gemini && method == http.MethodPost {
		i := strings.LastIndexByte(id, ':')
		if i < 0 {
			return ""
		}
		id, tail = id[:i], id[i:]
	}
	plain := func(s, more string) bool {
		return s != "" && s[0] != '.' && !strings.ContainsFunc(s, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-"+more, r)
		})
	}
	switch {
	case len(id) > 300:
		return ""
	case tail != "":
		vendor, name, two := strings.Cut(id, "/")
		if !plain(vendor, "") || two && !plain(name, "") {
			return ""
		}
		return head + "/models/{router}" + tail
	case d == Gemini:
		if !plain(id, "") {
			return ""
		}
		return head + "/models/{id}"
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(id, "%2f", "%2F"), "%2F") {
		if !plain(part, ":") {
			return ""
		}
	}
	return head + "/models/{ids}"
}

// FuzzMatch: whatever comes, what passes has one of the shapes, at the provider's server too.
func FuzzMatch(f *testing.F) {
	for _, s := range []string{
		"/anthropic/v1/messages?beta=true", "/openai/v1/models/a%2Fb", "/openai/v1/models/a/b", "/gemini/v1beta/models/m:generateContent?key=x",
		"/gemini/v1beta/models/v/m:streamGenerateContent?alt=sse&key=k", "/gemini/v1beta/models/m/permissions", "/openai/v1/models/..%2f..", "//",
		"/anthropic/v1/models/%2e%2e/x", "/anthropic/v1/models/x%2F%2e%2e%2Ffiles", "/anthropic/v1/models?limit=1&after_id=a", "/openai/v1/models;a", "/anthropic",
		"http://h/openai/v1/responses#x", "/openai/v1/models/a%2Fb%2fc?x=1", "/gemini/v1beta/models/m:a:countTokens",
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodHead, http.MethodDelete} {
			f.Add(method, s)
		}
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Method, r.URL = method, u
		d, path := splitDialect(u.EscapedPath())
		p, ok := match(d, path, r)
		if !ok {
			return
		}
		shape := shapeOf(method, d, p.path)
		queries, known := shapes[shape]
		if !known {
			t.Fatalf("%s %s passes as %q", method, target, p.path)
		}
		if queries != nil && !slices.Contains(queries, p.query) || strings.Contains("&"+p.query, "&key=") {
			t.Errorf("%s %s passes with the query %q", method, target, p.query)
		}
	})
}
