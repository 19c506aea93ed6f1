package scriptedmodel

import (
	"net/http"
	"strings"
)

// Dialect is one of the APIs spoken.
type Dialect string

// The dialects.
const (
	Anthropic Dialect = "anthropic"
	Responses Dialect = "responses"
	Chat      Dialect = "chat"
	Gemini    Dialect = "gemini"
)

var requestIDHeader = map[Dialect]string{
	Anthropic: "Request-Id", Responses: "X-Request-Id", Chat: "X-Request-Id", Gemini: "X-Request-Id",
}

// dialectOf tells a dialect by path, and where Anthropic and OpenAI share one by
// the header that Anthropic demands.
func dialectOf(r *http.Request) Dialect {
	p := r.URL.Path
	switch {
	case strings.HasPrefix(p, "/v1beta/"), strings.HasPrefix(p, "/v1/models/") && strings.Contains(p, ":"):
		return Gemini
	case strings.HasPrefix(p, "/v1/messages"):
		return Anthropic
	case strings.HasPrefix(p, "/v1/responses"):
		return Responses
	case strings.HasPrefix(p, "/v1/chat/"):
		return Chat
	case r.Header.Get("Anthropic-Version") != "", r.Header.Get("X-Api-Key") != "":
		return Anthropic
	default:
		return Chat
	}
}

type endpoint struct {
	method string
	serve  func(x *exchange, model string)
}

var endpoints = map[string]*endpoint{
	"/v1/messages":              {http.MethodPost, (*exchange).anthropicMessages},
	"/v1/messages/count_tokens": {http.MethodPost, (*exchange).anthropicCount},
	"/v1/responses":             {http.MethodPost, (*exchange).responsesCreate},
	"/v1/chat/completions":      {http.MethodPost, (*exchange).chatCompletions},
	"/v1/models":                {http.MethodGet, (*exchange).models},
	"/v1beta/models":            {http.MethodGet, (*exchange).models},
}

var geminiMethods = map[string]*endpoint{
	"generateContent":       {http.MethodPost, (*exchange).geminiGenerate},
	"streamGenerateContent": {http.MethodPost, (*exchange).geminiStream},
	"countTokens":           {http.MethodPost, (*exchange).geminiCount},
}

var oneModel = &endpoint{http.MethodGet, (*exchange).model}

// route finds the endpoint of a request and the model in its path, nil for none.
func route(r *http.Request) (*endpoint, string) {
	p := r.URL.Path
	if ep := endpoints[p]; ep != nil {
		return ep, ""
	}
	for _, prefix := range []string{"/v1beta/models/", "/v1/models/"} {
		name, ok := strings.CutPrefix(p, prefix)
		if !ok || name == "" {
			continue
		}
		if i := strings.LastIndexByte(name, ':'); i >= 0 {
			return geminiMethods[name[i+1:]], name[:i]
		}
		return oneModel, name
	}
	return nil, ""
}

// defaultModels are listed when every name is known.
var defaultModels = []string{"scripted"}

func (x *exchange) models(string) {
	names := x.s.opts.Models
	if len(names) == 0 {
		names = defaultModels
	}
	data := make([]any, 0, len(names))
	for _, n := range names {
		data = append(data, modelEntry(x.dialect, n))
	}
	switch x.dialect {
	case Gemini:
		x.json(http.StatusOK, object{"models": data})
	case Anthropic:
		x.json(http.StatusOK, object{"data": data, "has_more": false, "first_id": names[0], "last_id": names[len(names)-1]})
	default:
		x.json(http.StatusOK, object{"object": "list", "data": data})
	}
}

func (x *exchange) model(name string) {
	x.entry.Model = name
	if !x.s.knows(name) {
		x.fail(apiError{status: http.StatusNotFound, kind: kindModel, model: name})
		return
	}
	x.json(http.StatusOK, modelEntry(x.dialect, name))
}

func modelEntry(d Dialect, name string) any {
	switch d {
	case Gemini:
		return object{
			"name": "models/" + name, "version": "1", "displayName": name, "inputTokenLimit": 1048576, "outputTokenLimit": 65536,
			"supportedGenerationMethods": []string{"generateContent", "countTokens"},
		}
	case Anthropic:
		return object{"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
	default:
		return object{"id": name, "object": "model", "created": 1767225600, "owned_by": "scripted"}
	}
}
