package door

import (
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/hearthd/hearth/internal/fault"
)

// CodeHeader names the code of an answer that is a door's own.
const CodeHeader = "Hearth-Code"

// Status is the HTTP status by which the programs inside do the right thing with
// an error of a door's own: they try 408, 429 and 5xx again, and nothing else.
func Status(code fault.Code) int {
	switch code {
	case fault.Unsupported:
		return http.StatusUpgradeRequired
	case fault.InvalidInput:
		return http.StatusBadRequest
	case fault.ModelKeyMissing:
		return http.StatusUnauthorized
	case fault.ModelPathRefused, fault.EgressRefused, fault.EgressAddressRefused, fault.EgressNameRefused, fault.DoorLimit:
		return http.StatusForbidden
	case fault.DoorBusy, fault.ServerBusy:
		return http.StatusTooManyRequests
	case fault.DoorTooLarge:
		return http.StatusRequestEntityTooLarge
	case fault.DoorSlow:
		return http.StatusRequestTimeout
	case fault.DoorTimeout:
		return http.StatusGatewayTimeout
	default:
		return http.StatusBadGateway
	}
}

// Head sets the headers that an error of a door's own has with its status.
func Head(h http.Header, status int, code fault.Code) {
	h.Set(CodeHeader, string(code))
	h.Set("Cache-Control", "no-store")
	switch code {
	case fault.DoorBusy, fault.ServerBusy:
		h.Set("Retry-After", "1")
	}
	switch status {
	case http.StatusUpgradeRequired: // RFC 9110, section 15.5.22
		h.Set("Upgrade", "HTTP/1.1")
		h.Set("Connection", "Upgrade")
	case http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests: // the rest of a body is not read
		h.Set("Connection", "close")
	}
}

// Words is an error as the programs inside print it: code, sentence and what to do.
func Words(e *fault.Error) string {
	s := string(e.Code) + ": " + e.Sentence()
	if remedy := fault.Lookup(e.Code).Remedy; remedy != "" && remedy != "See the message." {
		s += " " + remedy
	}
	return s
}

// Printable makes one line of at most n bytes, and a mark where it was cut, of
// what a stranger sent.
func Printable(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "�"))
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// Default sets what was left unset.
func Default[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
