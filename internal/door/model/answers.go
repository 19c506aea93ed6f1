package model

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/hearthd/hearth/internal/fault"
)

// codeHeader names the code of an answer that is the door's own.
const codeHeader = "Hearth-Code"

// statusOf is the HTTP status by which agents of every dialect do the right
// thing: they try 408, 429 and 5xx again, and nothing else.
func statusOf(code fault.Code) int {
	switch code {
	case fault.Unsupported:
		return http.StatusUpgradeRequired
	case fault.ModelPathRefused, fault.DoorLimit:
		return http.StatusForbidden
	case fault.ModelKeyMissing:
		return http.StatusUnauthorized
	case fault.DoorBusy:
		return http.StatusTooManyRequests
	case fault.DoorTooLarge:
		return http.StatusRequestEntityTooLarge
	case fault.DoorSlow:
		return http.StatusRequestTimeout
	case fault.DoorTimeout:
		return http.StatusGatewayTimeout
	case fault.InvalidInput:
		return http.StatusBadRequest
	default:
		return http.StatusBadGateway
	}
}

// words is the error as agents print it.
func words(e *fault.Error) string {
	s := string(e.Code) + ": " + e.Sentence()
	if remedy := fault.Lookup(e.Code).Remedy; remedy != "" && remedy != "See the message." {
		s += " " + remedy
	}
	return s
}

// answerFault writes an error of the door's own in the shape of the dialect.
func answerFault(w http.ResponseWriter, dialect Dialect, status int, e *fault.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set(codeHeader, string(e.Code))
	switch status {
	case http.StatusTooManyRequests:
		h.Set("Retry-After", "1")
	case http.StatusUpgradeRequired: // RFC 9110, section 15.5.22
		h.Set("Upgrade", "HTTP/1.1")
		h.Set("Connection", "Upgrade")
	case http.StatusRequestTimeout, http.StatusRequestEntityTooLarge: // the rest of the body is not read
		h.Set("Connection", "close")
	case http.StatusForbidden, http.StatusUnauthorized:
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
		v = map[string]any{"type": "error", "error": map[string]any{"type": anthropicType(status), "message": words(e)}}
	case Gemini: // google.rpc.Status
		v = map[string]any{"error": map[string]any{"code": status, "message": words(e), "status": googleStatus(status)}}
	default:
		v = map[string]any{"error": map[string]any{"message": words(e), "type": openAIType(status), "param": nil, "code": e.Code}}
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return b
}

// faultEvent is an error in the middle of a stream of events.
func faultEvent(k kind, dialect Dialect, e *fault.Error) []byte {
	status := statusOf(e.Code)
	body := faultBody(dialect, status, e)
	switch k {
	case kindMessages:
		return []byte("event: error\ndata: " + string(body) + "\n\n")
	case kindResponses: // the error event of the Responses API
		b, err := json.Marshal(map[string]any{"type": "error", "code": e.Code, "message": words(e), "param": nil})
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
