package scriptedmodel

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Request is what the server remembers of one request. It holds no key and no
// text of the conversation.
type Request struct {
	At             time.Time   `json:"at"`
	Method         string      `json:"method"`
	Path           string      `json:"path"`
	Dialect        Dialect     `json:"dialect"`
	KeyFingerprint string      `json:"keyFingerprint"` // of the key sent, see Fingerprint; empty without one
	Headers        http.Header `json:"headers"`        // as they came, values of those that carry keys left out
	Model          string      `json:"model"`
	Stream         bool        `json:"stream"`
	Tools          []string    `json:"tools"`
	Messages       int         `json:"messages"`
	Reply          string      `json:"reply"` // "text", "tool NAME", "json", "status CODE", "cut"; empty when refused before
	Status         int         `json:"status"`
	RequestBytes   int64       `json:"requestBytes"`
	ResponseBytes  int64       `json:"responseBytes"`
	Usage          Usage       `json:"usage"`
}

// Usage are the tokens a reply reported: about four bytes of text each.
type Usage struct {
	Input  int `json:"input"`  // all of the prompt, cached part included
	Cached int `json:"cached"` // the part read from a cache
	Output int `json:"output"`
}

// Fingerprint names a key without telling it: the first 12 hex digits of its
// SHA-256, empty for no key.
func Fingerprint(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}

// Requests returns the latest requests that have been answered, oldest first,
// at most Options.LogSize of them.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// ResetRequests forgets the requests logged so far.
func (s *Server) ResetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = nil
}

func (s *Server) record(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.log) >= s.opts.LogSize {
		s.log = slices.Delete(s.log, 0, len(s.log)-s.opts.LogSize+1)
	}
	s.log = append(s.log, r)
}

// RequestsHandler serves [Server.Requests] as a JSON array, and forgets them on
// DELETE. It asks for no key: serve it on loopback only.
func (s *Server) RequestsHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodDelete:
			s.ResetRequests()
			w.WriteHeader(http.StatusNoContent)
		case http.MethodGet:
			list := s.Requests()
			if list == nil {
				list = []Request{}
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list) // the client may have left
		default:
			w.Header().Set("Allow", "GET, DELETE")
			http.Error(w, "GET reads the requests, DELETE forgets them", http.StatusMethodNotAllowed)
		}
	})
}

// keyOf is the key a request carries, wherever a dialect puts it.
func keyOf(r *http.Request) string {
	for _, h := range []string{"X-Api-Key", "X-Goog-Api-Key", "Api-Key"} {
		if k := r.Header.Get(h); k != "" {
			return k
		}
	}
	if scheme, k, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(k)
	}
	if dialectOf(r) == Gemini {
		return r.URL.Query().Get("key")
	}
	return ""
}

func safeHeaders(h http.Header) http.Header {
	out := h.Clone()
	for name := range out {
		l := strings.ToLower(name)
		if strings.Contains(l, "auth") || strings.Contains(l, "key") || strings.Contains(l, "cookie") || strings.Contains(l, "token") {
			out[name] = []string{"[hidden]"}
		}
	}
	return out
}
