package model

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

// answerFault writes an error of the door's own in the shape of the dialect.
func answerFault(w http.ResponseWriter, dialect Dialect, status int, e *fault.Error) {
	h := w.Header()
	door.Head(h, status, e.Code)
	h.Set("Content-Type", "application/json")
	if status == http.StatusForbidden || status == http.StatusUnauthorized {
		h.Set("X-Should-Retry", "false") // the SDKs of Anthropic and OpenAI ask for it
	}
	body := faultBody(dialect, status, e)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // nobody is left to tell
}

// faultBody is an error in the dialect's own shape.
func faultBody(dialect Dialect, status int, e *fault.Error) []byte {
	var v any
	switch dialect {
	case Anthropic: // https://docs.anthropic.com/en/api/errors
		v = map[string]any{"type": "error", "error": map[string]any{"type": anthropicType(status), "message": door.Words(e)}}
	case Gemini: // google.rpc.Status
		v = map[string]any{"error": map[string]any{"code": status, "message": door.Words(e), "status": googleStatus(status)}}
	default:
		v = map[string]any{"error": map[string]any{"message": door.Words(e), "type": openAIType(status), "param": nil, "code": e.Code}}
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return b
}

// faultEvent is an error in the middle of a stream of events.
func faultEvent(k kind, dialect Dialect, e *fault.Error) []byte {
	status := door.Status(e.Code)
	body := faultBody(dialect, status, e)
	switch k {
	case kindMessages:
		return []byte("event: error\ndata: " + string(body) + "\n\n")
	case kindResponses: // the error event of the Responses API
		b, err := json.Marshal(map[string]any{"type": "error", "code": e.Code, "message": door.Words(e), "param": nil})
		if err != nil {
			panic(err) // a map of strings
		}
		return []byte("event: error\ndata: " + string(b) + "\n\n")
	default:
		return []byte("data: " + string(body) + "\n\n")
	}
}

func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusBadRequest, http.StatusUpgradeRequired:
		return "invalid_request_error"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "timeout_error"
	default:
		return "api_error"
	}
}

func openAIType(status int) string {
	switch status {
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusUnauthorized:
		return "authentication_error"
	}
	if status >= 500 {
		return "server_error"
	}
	return "invalid_request_error"
}

func googleStatus(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "UNAUTHENTICATED"
	case http.StatusForbidden:
		return "PERMISSION_DENIED"
	case http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "DEADLINE_EXCEEDED"
	}
	if status >= 500 {
		return "UNAVAILABLE"
	}
	return "INVALID_ARGUMENT"
}
