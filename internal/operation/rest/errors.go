package rest

import (
	"errors"
	"net/http"

	"github.com/hearthd/hearth/internal/fault"
)

// ErrorView is an error as every answer has it.
type ErrorView struct {
	Code      string         `json:"code" doc:"decide on this, never on the wording"`
	Kind      string         `json:"kind" doc:"invalid, unauthenticated, forbidden, not_found, conflict, exhausted, unavailable, timeout, canceled or internal"`
	Message   string         `json:"message"`
	Remedy    string         `json:"remedy"`
	Details   map[string]any `json:"details,omitempty"`
	Retryable bool           `json:"retryable"`
	RequestID string         `json:"requestId"`
}

// ErrorBody is the body of every refusal.
type ErrorBody struct {
	Error ErrorView `json:"error"`
}

func statusOf(v ErrorView) int { return fault.Kind(v.Kind).HTTPStatus() }

// explain turns an error into what the caller may see, and logs the rest once.
func (s *server) explain(r *http.Request, err error) ErrorView {
	e := fault.From(err)
	info := fault.Lookup(e.Code)
	id := RequestID(r.Context())
	switch {
	case r.Context().Err() != nil:
		// The client is gone; nobody reads the answer.
	case info.Kind == fault.KindInternal:
		s.Log.Error("request failed", "request", id, "method", r.Method, "path", r.URL.Path, "error", err)
	case errors.Unwrap(e) != nil:
		s.Log.Warn("request refused", "request", id, "method", r.Method, "path", r.URL.Path, "error", err)
	}
	return ErrorView{
		Code: string(e.Code), Kind: string(info.Kind), Message: e.Sentence(), Remedy: info.Remedy, Details: e.Details,
		Retryable: info.Retryable, RequestID: id,
	}
}

// challenge says what a 401 asks for (RFC 9110, section 11.6.1).
func challenge(w http.ResponseWriter, v ErrorView) {
	if v.Kind == string(fault.KindUnauthenticated) {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
}

func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	v := s.explain(r, err)
	challenge(w, v)
	answer(w, statusOf(v), ErrorBody{Error: v})
}
