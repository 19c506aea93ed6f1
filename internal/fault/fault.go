// Package fault holds Hearth's coded errors: what went wrong, in words for a
// person, and what to do about it. Every code is listed once in codes.json;
// constants and docs/errors.md are generated from there. Clients decide on
// codes, never on wording. The package knows no transport: the one table that
// maps a [Kind] to an HTTP status and an exit status is here, the surfaces read it.
package fault

import (
	"errors"
	"fmt"
)

//go:generate go run ./gen

// Kind groups codes by what a caller can do about them.
type Kind string

// The ten kinds.
const (
	KindInvalid         Kind = "invalid"
	KindUnauthenticated Kind = "unauthenticated"
	KindForbidden       Kind = "forbidden"
	KindNotFound        Kind = "not_found"
	KindConflict        Kind = "conflict"
	KindExhausted       Kind = "exhausted"
	KindUnavailable     Kind = "unavailable"
	KindTimeout         Kind = "timeout"
	KindCanceled        Kind = "canceled"
	KindInternal        Kind = "internal"
)

// mapping is the only place where kinds meet transports.
var mapping = map[Kind]struct{ http, exit int }{
	KindInvalid:         {422, 2},
	KindUnauthenticated: {401, 3},
	KindForbidden:       {403, 4},
	KindNotFound:        {404, 5},
	KindConflict:        {409, 6},
	KindExhausted:       {429, 7},
	KindUnavailable:     {503, 8},
	KindTimeout:         {504, 9},
	KindCanceled:        {499, 130},
	KindInternal:        {500, 1},
}

// HTTPStatus is the response status for errors of this kind.
func (k Kind) HTTPStatus() int { return mapping[k].http }

// ExitStatus is the CLI's exit status for errors of this kind.
func (k Kind) ExitStatus() int { return mapping[k].exit }

// Code names one error; the constants are generated from codes.json.
type Code string

// Info is what codes.json says of a code.
type Info struct {
	Code      Code   `json:"code"`
	Kind      Kind   `json:"kind"`
	Sentence  string `json:"sentence"`
	Remedy    string `json:"remedy"`
	Retryable bool   `json:"retryable"`
}

// Lookup returns what is known of a code. Unknown codes are internal.
func Lookup(c Code) Info {
	if i, ok := infos[c]; ok {
		return i
	}
	return infos[InternalError]
}

// All returns every code in the order of codes.json.
func All() []Info {
	out := make([]Info, 0, len(order))
	for _, c := range order {
		out = append(out, infos[c])
	}
	return out
}

// Error is a coded error. Message is for the person who asked; the cause is
// for the log only and never leaves the server.
type Error struct {
	Code    Code
	Message string         // one or more plain sentences; the code's own sentence when empty
	Details map[string]any // small, safe to show
	cause   error
}

// New makes an error of a code with a message of its own.
func New(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes an error of a code around a cause that stays in the log.
func Wrap(cause error, c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...), cause: cause}
}

// With returns the error with a detail added; it is for use at construction.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[key] = value
	return e
}

// Error has code, message and cause, as the log wants it.
func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Sentence()
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Sentence is the text for a person, without the cause.
func (e *Error) Sentence() string {
	if e.Message != "" {
		return e.Message
	}
	return Lookup(e.Code).Sentence
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Kind is the kind of the error's code.
func (e *Error) Kind() Kind { return Lookup(e.Code).Kind }

// Is makes errors.Is compare by code, so that a code's error matches whatever its message.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// From returns the coded error inside err, or an internal one around it; nil for nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: InternalError, cause: err}
}

// CodeOf is the code of err: empty for nil, [InternalError] for an uncoded error.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return From(err).Code
}
