package scriptedmodel

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// object is a JSON object to be sent.
type object map[string]any

// What an error is about, where the status alone does not tell.
const (
	kindKey    = "key"    // no key, or a wrong one
	kindModel  = "model"  // unknown model
	kindPath   = "path"   // unknown endpoint
	kindJSON   = "json"   // unreadable body
	kindParam  = "param"  // a field missing or wrong; param names it
	kindScript = "script" // asked for by a status directive
)

// apiError is an error before it takes a dialect's shape.
type apiError struct {
	status     int
	kind       string
	message    string // empty: the dialect's own words
	param      string
	key        string
	model      string
	limit      int64
	retryAfter int // seconds, 0 for none
}

// fail writes an error as the real service of the dialect words and shapes it.
func (x *exchange) fail(e apiError) {
	if x.entry.Reply == "" {
		x.entry.Reply = fmt.Sprintf("status %d", e.status)
	}
	h := x.w.Header()
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	switch x.dialect {
	case Anthropic:
		x.failAnthropic(e)
	case Gemini:
		x.failGemini(e)
	default:
		x.failOpenAI(e)
	}
}

// anthropicTypes: docs.anthropic.com, API reference, "Errors".
var anthropicTypes = map[int][2]string{
	400: {"invalid_request_error", "The request could not be understood."},
	401: {"authentication_error", "invalid x-api-key"},
	402: {"billing_error", "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."},
	403: {"permission_error", "Your API key does not have permission to use the specified resource."},
	404: {"not_found_error", "Not found"},
	405: {"invalid_request_error", "Method Not Allowed"},
	413: {"request_too_large", "Request exceeds the maximum size"},
	429: {"rate_limit_error", "This request would exceed the rate limit for your organization of 50 requests per minute. Please reduce the prompt length or the maximum tokens requested, or try again later."},
	500: {"api_error", "Internal server error"},
	504: {"timeout_error", "The request timed out."},
	529: {"overloaded_error", "Overloaded"},
}

func (x *exchange) failAnthropic(e apiError) {
	known, ok := anthropicTypes[e.status]
	if !ok {
		known = [2]string{"api_error", http.StatusText(e.status)}
	}
	msg := e.message
	switch {
	case msg != "" && e.kind == kindJSON:
		msg = "The request body is not valid JSON: " + msg
	case msg != "":
	case e.kind == kindKey && e.key == "":
		msg = "x-api-key header is required"
	case e.kind == kindKey && x.r.Header.Get("X-Api-Key") == "":
		msg = "Invalid bearer token"
	case e.kind == kindModel:
		msg = "model: " + e.model
	default:
		msg = known[1]
	}
	h := x.w.Header()
	retry := e.status == 429 || e.status >= 500
	h.Set("X-Should-Retry", strconv.FormatBool(retry))
	if e.status == 429 {
		reset := x.s.opts.Now().UTC().Add(secondsOr1(e.retryAfter)).Format("2006-01-02T15:04:05Z")
		h.Set("Anthropic-Ratelimit-Requests-Limit", "50")
		h.Set("Anthropic-Ratelimit-Requests-Remaining", "0")
		h.Set("Anthropic-Ratelimit-Requests-Reset", reset)
	}
	x.json(e.status, object{
		"type":  "error",
		"error": object{"type": known[0], "message": msg}, "request_id": h.Get("Request-Id"),
	})
}

func (x *exchange) failOpenAI(e apiError) {
	typ, msg := "invalid_request_error", e.message
	var code, param any
	or := func(s string) {
		if msg == "" {
			msg = s
		}
	}
	switch {
	case e.kind == kindKey && e.key == "":
		or("You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY). You can obtain an API key from https://platform.openai.com/account/api-keys.")
	case e.status == 401:
		code = "invalid_api_key"
		or("Incorrect API key provided: " + masked(e.key) + ". You can find your API key at https://platform.openai.com/account/api-keys.")
	case e.kind == kindModel:
		code = "model_not_found"
		or(fmt.Sprintf("The model `%s` does not exist or you do not have access to it.", e.model))
	case e.kind == kindPath:
		code = "unknown_url"
		or(fmt.Sprintf("Unknown request URL: %s %s. Please check the URL for typos, or see the docs at https://platform.openai.com/docs/api-reference/.", x.r.Method, x.r.URL.Path))
	case e.kind == kindJSON:
		msg = "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON. " + msg + ")"
	case e.kind == kindParam:
		param = e.param
		code = "missing_required_parameter"
		if e.message != "" {
			code = nil
		}
		or(fmt.Sprintf("Missing required parameter: '%s'.", e.param))
	case e.status == 402, e.status == 403:
		code = "insufficient_permissions"
		or("You have insufficient permissions for this operation.")
	case e.status == 404:
		or("Not found")
	case e.status == 405:
		or(fmt.Sprintf("Not allowed to %s on %s. (HINT: Perhaps you meant to use a different HTTP method?)", x.r.Method, x.r.URL.Path))
	case e.status == 413:
		or(fmt.Sprintf("Maximum content size limit (%d) exceeded.", e.limit))
	case e.status == 429:
		typ, code = "requests", "rate_limit_exceeded"
		or(fmt.Sprintf("Rate limit reached for %s in organization org-scripted on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in %s. Visit https://platform.openai.com/account/rate-limits to learn more.", e.model, secondsOr1(e.retryAfter)))
		x.w.Header().Set("X-Ratelimit-Limit-Requests", "3")
		x.w.Header().Set("X-Ratelimit-Remaining-Requests", "0")
		x.w.Header().Set("X-Ratelimit-Reset-Requests", secondsOr1(e.retryAfter).String())
	case e.status == 503, e.status == 529:
		typ = "server_error"
		or("The engine is currently overloaded, please try again later")
	case e.status >= 500:
		typ = "server_error"
		or("The server had an error while processing your request. Sorry about that!")
	default:
		or(http.StatusText(e.status))
	}
	x.json(e.status, object{"error": object{"message": msg, "type": typ, "param": param, "code": code}})
}

// geminiStatus: google.rpc.Code names for HTTP statuses (google/rpc/code.proto).
var geminiStatus = map[int][2]string{
	400: {"INVALID_ARGUMENT", "Request contains an invalid argument."},
	401: {"UNAUTHENTICATED", "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."},
	403: {"PERMISSION_DENIED", "The caller does not have permission"},
	404: {"NOT_FOUND", "Requested entity was not found."},
	413: {"INVALID_ARGUMENT", "Request payload size exceeds the limit."},
	429: {"RESOURCE_EXHAUSTED", "You exceeded your current quota, please check your plan and billing details. For more information on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits."},
	500: {"INTERNAL", "An internal error has occurred. Please retry or report in https://developers.generativeai.google/guide/troubleshooting"},
	503: {"UNAVAILABLE", "The model is overloaded. Please try again later."},
	504: {"DEADLINE_EXCEEDED", "The service was unable to finish processing within the deadline."},
	529: {"UNAVAILABLE", "The model is overloaded. Please try again later."},
}

func (x *exchange) failGemini(e apiError) {
	status := e.status
	known, ok := geminiStatus[status]
	if !ok {
		known = [2]string{"UNKNOWN", http.StatusText(status)}
	}
	name, msg := known[0], e.message
	var details []any
	info := func(reason string) object {
		return object{
			"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason,
			"domain": "googleapis.com", "metadata": object{"service": "generativelanguage.googleapis.com"},
		}
	}
	switch {
	case e.kind == kindKey && e.key == "":
		msg = "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API."
		if x.s.opts.GeminiKeyError400 {
			status, name = http.StatusForbidden, "PERMISSION_DENIED"
		}
	case e.kind == kindKey:
		msg = "API key not valid. Please pass a valid API key."
		details = append(details, info("API_KEY_INVALID"))
		if x.s.opts.GeminiKeyError400 {
			status, name = http.StatusBadRequest, "INVALID_ARGUMENT"
		}
	case e.kind == kindModel:
		msg = fmt.Sprintf("models/%s is not found for API version v1beta, or is not supported for generateContent. Call ListModels to see the list of available models and their supported methods.", e.model)
	case e.kind == kindJSON:
		msg = "Invalid JSON payload received. " + msg
	case e.status == 429:
		details = append(details, object{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": secondsOr1(e.retryAfter).String()})
	}
	if msg == "" {
		msg = known[1]
	}
	body := object{"code": status, "message": msg, "status": name}
	if details != nil {
		body["details"] = details
	}
	x.json(status, object{"error": body})
}

func secondsOr1(n int) time.Duration { return time.Duration(max(n, 1)) * time.Second }

// masked shows a key as OpenAI does: its ends, stars between.
func masked(key string) string {
	if len(key) <= 8 {
		return strings.Repeat("*", len(key))
	}
	return key[:4] + strings.Repeat("*", min(len(key)-8, 24)) + key[len(key)-4:]
}
