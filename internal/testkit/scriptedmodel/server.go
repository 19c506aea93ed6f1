// Package scriptedmodel is a model server for tests and demonstrations: no
// model, but an [http.Handler] that speaks Anthropic Messages, OpenAI Responses
// and Chat Completions, and Gemini generateContent as the real services do, so
// that real coding agents run against it. What it answers is decided by
// directives in the person's words:
//
//	@@write PATH TEXT@@       write a file, with the agent's own tool
//	@@run COMMAND@@           run a shell command, with the agent's own tool
//	@@tool NAME {JSON}@@      call the tool NAME (or …__NAME) with these arguments
//	@@say TEXT@@              say this
//	@@slow N MS@@             stream N pieces of text, MS milliseconds apart
//	@@numbered N BYTES RATE WAIT@@  stream N pieces with number and time, RATE a second,
//	                          WAIT milliseconds before (package numbered); Chat
//	                          Completions and Messages streams only
//	@@status CODE [TIMES [RETRY]]@@  answer with this HTTP status; TIMES requests
//	                          only (0 or none: always); Retry-After of RETRY seconds
//	@@cut [TIMES]@@           break the connection in the middle of the stream
//	@@mark WORD@@             nothing now; found again by recall
//	@@recall@@                say the first mark in the conversation, or "no marker"
//	@@recall WORD@@           say whether WORD was in the conversation before
//
// Several in one prompt are carried out in their order, one tool call per
// answer. The last answer of a turn says how many directives the request holds
// ("directives seen: 3; earlier: 1"), which shows whether history came back.
// Directives in quoted elements (see script.SplitQuoted) count but are not
// carried out. Anything else gets plain text, or an instance of the schema asked for.
//
// The server keeps no conversation: a reply depends on its request, and for
// directives with TIMES on a count of such requests. It is not a proxy and reads
// no real model's answers. Start at [New]; conversation.go decides, a file per
// dialect reads and writes it.
package scriptedmodel

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// DefaultMaxBodyBytes is the largest request body taken when [Options] names none.
const DefaultMaxBodyBytes = 32 << 20

// Options configure a [Server]. The zero value is useful.
type Options struct {
	Keys         []string // accepted keys; none: any key that is not empty
	Models       []string // known model names; none: every name is known
	MaxBodyBytes int64    // larger requests get 413; 0 means DefaultMaxBodyBytes
	LogSize      int      // requests kept for Requests; 0 means 1000

	// GeminiKeyError400 makes a wrong Gemini key 400 with reason API_KEY_INVALID
	// and a missing one 403, as the real service answers; otherwise both are 401.
	GeminiKeyError400 bool

	Logger *slog.Logger                               // nil: silent
	Now    func() time.Time                           // nil: time.Now
	NewID  func() string                              // nil: random; must be unique across restarts within a conversation
	Wait   func(context.Context, time.Duration) error // between slow pieces; nil: real time
}

// Server is the scripted model. It may be used by many requests at once.
type Server struct {
	opts Options

	mu     sync.Mutex
	keys   []string
	log    []Request
	counts map[string]int
}

// New makes a server.
func New(opts Options) *Server {
	if opts.MaxBodyBytes <= 0 {
		opts.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if opts.LogSize <= 0 {
		opts.LogSize = 1000
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.NewID == nil {
		opts.NewID = func() string { return strings.ToLower(rand.Text()) }
	}
	if opts.Wait == nil {
		opts.Wait = wait
	}
	return &Server{opts: opts, keys: slices.Clone(opts.Keys), counts: map[string]int{}}
}

// SetKeys replaces the accepted keys, as when a key is rotated or revoked.
// It works on requests that come later.
func (s *Server) SetKeys(keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = slices.Clone(keys)
}

func (s *Server) accepts(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return key != "" && (len(s.keys) == 0 || slices.Contains(s.keys, key))
}

func (s *Server) knows(model string) bool {
	return len(s.opts.Models) == 0 || slices.Contains(s.opts.Models, model)
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// exchange is one request on its way through the server.
type exchange struct {
	s       *Server
	w       http.ResponseWriter
	r       *http.Request
	dialect Dialect
	raw     []byte // the request's body, once read
	entry   Request
}

// ServeHTTP answers one request and logs it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w}
	x := &exchange{s: s, w: rec, r: r, dialect: dialectOf(r)}
	x.entry = Request{
		At: s.opts.Now(), Method: r.Method, Path: r.URL.Path, Dialect: x.dialect,
		KeyFingerprint: Fingerprint(keyOf(r)), Headers: safeHeaders(r.Header),
	}
	defer func() { // also when a cut ends the handler by panic
		x.entry.Status, x.entry.ResponseBytes = rec.status, rec.bytes
		s.record(x.entry)
		s.opts.Logger.Debug("model request", "method", r.Method, "path", r.URL.Path, "status", rec.status, "reply", x.entry.Reply)
	}()
	w.Header().Set(requestIDHeader[x.dialect], "req_"+s.opts.NewID())
	x.serve()
}

func (x *exchange) serve() {
	r := x.r
	switch {
	case r.Header.Get("Upgrade") != "":
		x.w.Header().Set("Connection", "close")
		x.fail(apiError{status: http.StatusUpgradeRequired, message: "This endpoint does not support protocol upgrades."})
	case r.URL.Path == "/" && (r.Method == http.MethodHead || r.Method == http.MethodGet):
		x.w.WriteHeader(http.StatusOK)
	default:
		ep, model := route(r)
		switch {
		case ep == nil:
			x.fail(apiError{status: http.StatusNotFound, kind: kindPath})
		case r.Method != ep.method:
			x.w.Header().Set("Allow", ep.method)
			x.fail(apiError{status: http.StatusMethodNotAllowed})
		case !x.s.accepts(keyOf(r)):
			x.fail(apiError{status: http.StatusUnauthorized, kind: kindKey, key: keyOf(r)})
		default:
			ep.serve(x, model)
		}
	}
}

// body reads the request's body within the limit; it has answered when !ok.
func (x *exchange) body() (body []byte, ok bool) {
	max := x.s.opts.MaxBodyBytes
	var in io.Reader = http.MaxBytesReader(x.w, x.r.Body, max)
	if x.r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(in)
		if err != nil {
			x.fail(apiError{status: http.StatusBadRequest, kind: kindJSON, message: "The body is not gzip as its Content-Encoding says."})
			return nil, false
		}
		in = io.LimitReader(z, max+1)
	}
	b, err := io.ReadAll(in)
	x.entry.RequestBytes = int64(len(b))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge) || int64(len(b)) > max:
		x.fail(apiError{status: http.StatusRequestEntityTooLarge, limit: max})
	case err != nil:
		x.fail(apiError{status: http.StatusBadRequest, kind: kindJSON, message: "The body could not be read: " + err.Error()})
	default:
		return b, true
	}
	return nil, false
}

// decode reads the body as one JSON object into v; it has answered when !ok.
func (x *exchange) decode(v any) (ok bool) {
	b, ok := x.body()
	if !ok {
		return false
	}
	if len(bytes.TrimSpace(b)) == 0 {
		b = []byte("{}")
	}
	x.raw = b
	if err := json.Unmarshal(b, v); err != nil {
		x.fail(apiError{status: http.StatusBadRequest, kind: kindJSON, message: err.Error()})
		return false
	}
	return true
}

// turn logs what was asked, decides, and tells whether there is a reply to
// write; errors that the script asks for, and unknown models, are answered here.
func (x *exchange) turn(c *conversation) (reply, bool) {
	x.entry.Model, x.entry.Stream, x.entry.Messages = c.model, c.stream, c.messages
	for _, t := range c.tools {
		x.entry.Tools = append(x.entry.Tools, t.name)
	}
	if !x.s.knows(c.model) {
		x.fail(apiError{status: http.StatusNotFound, kind: kindModel, model: c.model})
		return reply{}, false
	}
	rep := c.decide(x.s.first)
	rep.usage = c.usage()
	rep.limit(c.maxTokens)
	rep.usage.output = tokens(rep.output())
	x.entry.Reply = rep.summary()
	x.entry.Usage = Usage{Input: rep.usage.input, Cached: rep.usage.cached, Output: rep.usage.output}
	if rep.status != 0 {
		x.fail(apiError{status: rep.status, kind: kindScript, model: c.model, key: keyOf(x.r), retryAfter: rep.retryAfter})
		return reply{}, false
	}
	return rep, true
}

// first tells whether this request is among the first n for which key asks; n = 0
// is always. The counts are bounded: a full table forgets all.
func (s *Server) first(key string, n int) bool {
	if n == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.counts) > 10_000 {
		clear(s.counts)
	}
	s.counts[key]++
	return s.counts[key] <= n
}

func (x *exchange) json(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("scriptedmodel: encode answer: %v", err)) // our own values only
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(status)
	_, _ = x.w.Write(append(b, '\n')) // a client that left needs no answer
}

// recorder notes status and size of what is written.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
