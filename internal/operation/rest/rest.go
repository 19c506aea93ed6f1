// Package rest maps the list of operations onto HTTP: paths, statuses, JSON
// bodies, bearer tokens, one shape of error, and the OpenAPI 3.1 document. It
// decides nothing about sessions; what an operation does is package operation's
// business, what a stream sends is package gateway's. Start at [New].
package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/http10"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/ticket"
)

// MaxBodyBytes is the largest request body.
const MaxBodyBytes = 1 << 20

// Headers of ours.
const (
	HeaderKey       = "Idempotency-Key"
	HeaderRequestID = "X-Request-Id"
	HeaderCode      = "Hearth-Error-Code" // of a refusal whose body is only a sentence
	HeaderTurn      = "Hearth-Turn"       // of a chat's reply: whose message it is
)

// Version is what /version answers.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go,omitempty"`
}

// Check is one condition of readiness.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Tickets are attach tickets, as [ticket.Desk] has them.
type Tickets interface {
	// Verify refuses a ticket that Redeem would refuse unused. It uses nothing up.
	Verify(text string, id session.ID, action ticket.Action) error
	// Redeem uses a ticket up and returns who asked for it. Codes: TICKET_INVALID, UNAUTHENTICATED.
	Redeem(ctx context.Context, text string, id session.ID, action ticket.Action) (session.Caller, error)
}

// Config is what the handler needs; every field but Ready, Origins, Tickets and Watch is required.
type Config struct {
	Registry *operation.Registry
	// Authenticate returns who holds the token. Code: UNAUTHENTICATED.
	Authenticate func(ctx context.Context, token string) (session.Caller, error)
	// StreamForm says whether the query and headers of a stream's or chat's request are well
	// formed. Code: INVALID_INPUT.
	StreamForm func(r *http.Request) error
	// Stream answers a viewer. An error means that nothing was written yet. A broken
	// stream is told by a panic with [http.ErrAbortHandler].
	Stream func(w http.ResponseWriter, r *http.Request, who session.Caller, id session.ID) error
	// Chat answers a chat's request in the same way; an error means that nothing was accepted.
	Chat    func(w http.ResponseWriter, r *http.Request, who session.Caller, id session.ID, c operation.Chat) error
	Origins []string // web pages that may call, as https://host[:port]; none: no page of another origin
	Tickets Tickets  // nil: there are none
	// Watch tells what changes in the caller's workspace, as Stream does; nil: it is not told.
	Watch   func(w http.ResponseWriter, r *http.Request, who session.Caller) error
	Ready   []Check
	Version Version
	NewID   func(prefix string) string
	Log     *slog.Logger
}

type server struct {
	Config
	mux     *http.ServeMux
	openapi []byte
}

// New makes the handler. It starts no goroutine and is safe for concurrent use.
func New(c Config) (http.Handler, error) {
	s := &server{Config: c, mux: http.NewServeMux()}
	doc, err := document(c.Registry, c.Version.Version)
	if err != nil {
		return nil, err
	}
	s.openapi = doc
	for _, o := range c.Registry.Operations {
		s.mux.Handle(o.Method+" "+o.Path, s.operation(o))
	}
	s.mux.HandleFunc("GET "+operation.Root+"/{id}/stream", s.stream)
	s.mux.HandleFunc("POST "+operation.Root+"/{id}/stream", s.chat)
	s.mux.HandleFunc("GET /v1/watch", s.watch)
	for _, p := range []string{operation.Root + "/{id}/stream", "/v1/watch"} {
		s.mux.HandleFunc("HEAD "+p, s.unknown) // of a stream there is nothing to be had but the stream
	}
	s.mux.HandleFunc("GET /openapi.json", s.document)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, map[string]bool{"ok": true}) })
	s.mux.HandleFunc("GET /readyz", s.ready)
	s.mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, c.Version) })
	s.mux.HandleFunc("/", s.unknown)
	return crossOrigin(s, c.Origins), nil
}

type requestIDKey struct{}

// RequestID is the id that the handler gave the request.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// ServeHTTP gives the request an id and answers it.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := s.NewID("req")
	r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
	h := w.Header()
	h.Set(HeaderRequestID, id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(p)
		}
		s.Log.Error("request panicked", "request", id, "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
		panic(http.ErrAbortHandler) // the answer may have begun: it must not look whole
	}()
	// The mux would redirect to the address that it takes this for, with a page of HTML.
	if p := r.URL.EscapedPath(); p != path.Clean(p) && p != path.Clean(p)+"/" {
		s.fail(w, r, fault.New(fault.RouteNotFound, ""))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// authenticate reads the bearer token (RFC 6750, section 2.1).
func (s *server) authenticate(r *http.Request) (session.Caller, error) {
	if len(r.Header.Values("Authorization")) > 1 {
		return session.Caller{}, fault.New(fault.Unauthenticated, "The header Authorization is there more than once.")
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return session.Caller{}, fault.New(fault.Unauthenticated, "")
	}
	return s.Authenticate(r.Context(), token)
}

func (s *server) operation(o *operation.Operation) http.Handler {
	fields := operation.PathFields(o.Path)
	hasBody := o.Method != http.MethodGet && o.Method != http.MethodDelete
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := s.authenticate(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		var input map[string]any
		if hasBody {
			input, err = body(w, r)
			if err == nil {
				err = noQuery(r)
			}
		} else {
			input, err = query(o, r)
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		for _, f := range fields {
			if _, ok := input[f]; ok {
				s.fail(w, r, operation.Invalid(operation.FieldProblem{Field: f, Problem: "belongs into the path"}))
				return
			}
			input[f] = r.PathValue(f)
		}
		if len(r.Header.Values(HeaderKey)) > 1 {
			s.fail(w, r, fault.New(fault.InvalidInput, "The header %s is there more than once.", HeaderKey))
			return
		}
		out, err := s.Registry.Invoke(r.Context(), o, operation.Call{Caller: who, Key: r.Header.Get(HeaderKey)}, input)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if blob, ok := out.(operation.Blob); ok {
			s.send(w, r, o, blob)
			return
		}
		if large, ok := out.(io.WriterTo); ok {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(o.Status)
			if r.Method == http.MethodHead {
				return
			}
			if _, err := large.WriteTo(w); err != nil {
				panic(http.ErrAbortHandler) // it ends in the middle
			}
			return
		}
		answer(w, o.Status, out)
	})
}

// send answers with bytes as they are made. The headers go out with the first of
// them, so that what fails before it is a refusal; what fails later breaks the connection.
func (s *server) send(w http.ResponseWriter, r *http.Request, o *operation.Operation, blob operation.Blob) {
	ending := http10.Of(r)
	out := &begun{w: w, begin: func() {
		h := w.Header()
		h.Set("Content-Type", cmp.Or(blob.Media, o.Media))
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": blob.Name}))
		if blob.Size > 0 {
			h.Set("Content-Length", strconv.FormatInt(blob.Size, 10))
		}
		w.WriteHeader(o.Status)
		if r.Method != http.MethodHead {
			ending.Badly()
			_ = http.NewResponseController(w).Flush() // so that what breaks off is seen as that
		}
	}}
	if r.Method == http.MethodHead { // nothing is made that nobody reads
		out.start()
		return
	}
	err := blob.Write(r.Context(), out)
	switch {
	case err == nil:
		out.start() // nothing is an answer, too
		if http.NewResponseController(w).Flush() == nil {
			ending.Well()
		}
	case !out.done:
		s.fail(w, r, err)
	default:
		s.explain(r, err)
		panic(http.ErrAbortHandler)
	}
}

// begun calls begin before the first byte.
type begun struct {
	w     io.Writer
	begin func()
	done  bool
}

func (b *begun) start() {
	if !b.done {
		b.done = true
		b.begin()
	}
}

func (b *begun) Write(p []byte) (int, error) {
	b.start()
	return b.w.Write(p)
}

// body reads a JSON object of at most [MaxBodyBytes].
func body(w http.ResponseWriter, r *http.Request) (map[string]any, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	if err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return nil, fault.New(fault.InvalidInput, "The body is larger than %d bytes.", MaxBodyBytes)
		}
		return nil, fault.Wrap(err, fault.InvalidInput, "The body could not be read.")
	}
	if len(raw) > 0 {
		if err := plainJSON(r.Header); err != nil {
			return nil, err
		}
	}
	return operation.DecodeObject(raw)
}

// plainJSON refuses headers that say that the body is anything but JSON as it is, in UTF-8
// (RFC 8259, section 8.1). Without any it is taken for that.
func plainJSON(h http.Header) error {
	types := h.Values("Content-Type")
	if len(types) > 1 {
		return fault.New(fault.InvalidInput, "The header Content-Type is there more than once.")
	}
	if len(types) == 1 && types[0] != "" {
		mt, params, err := mime.ParseMediaType(types[0])
		if err != nil || mt != "application/json" {
			return fault.New(fault.InvalidInput, "The body's content type is %.80q; it must be application/json.", types[0])
		}
		if charset, given := params["charset"]; given && !strings.EqualFold(charset, "utf-8") {
			return fault.New(fault.InvalidInput, "The body's charset is %.40q; it must be utf-8.", charset)
		}
	}
	for _, e := range h.Values("Content-Encoding") {
		if e != "" && !strings.EqualFold(e, "identity") {
			return fault.New(fault.InvalidInput, "The body's content encoding is %.40q; send it as it is.", e)
		}
	}
	return nil
}

// noQuery refuses a query where the input is in the body.
func noQuery(r *http.Request) error {
	parsed, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fault.New(fault.InvalidInput, "The query is not well formed: %.200s.", err.Error())
	}
	for name := range parsed {
		return operation.Invalid(operation.FieldProblem{Field: name, Problem: "is not a query parameter of this operation"})
	}
	return nil
}

// query reads the input from the query string. What cannot be read as the field's
// type is left as text, for the schema to refuse by name.
func query(o *operation.Operation, r *http.Request) (map[string]any, error) {
	parsed, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fault.New(fault.InvalidInput, "The query is not well formed: %.200s.", err.Error())
	}
	input := map[string]any{}
	for name, values := range parsed {
		p := o.Schema.Properties[name]
		for _, v := range values {
			if !utf8.ValidString(v) {
				return nil, operation.Invalid(operation.FieldProblem{Field: name, Problem: "is not valid UTF-8"})
			}
		}
		v := values[len(values)-1]
		input[name] = v
		switch {
		case p == nil:
			continue
		case len(values) > 1 && p.Type != "array":
			return nil, operation.Invalid(operation.FieldProblem{Field: name, Problem: "is given more than once"})
		}
		switch p.Type {
		case "integer":
			if n, err := strconv.ParseInt(v, 10, 53); err == nil {
				input[name] = n
			}
		case "boolean":
			if b, err := strconv.ParseBool(v); err == nil || v == "" {
				input[name] = b || v == ""
			}
		case "array":
			list := []any{}
			for _, v := range values {
				for _, x := range strings.Split(v, ",") {
					list = append(list, x)
				}
			}
			input[name] = list
		}
	}
	return input, nil
}

func (s *server) document(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(s.openapi) // the client may be gone
}

// readiness is what /readyz answers.
type readiness struct {
	Ready  bool         `json:"ready"`
	Checks []checkState `json:"checks"`
}

type checkState struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	out := readiness{Ready: true, Checks: []checkState{}}
	for _, c := range s.Ready {
		st := checkState{Name: c.Name, OK: true}
		if err := c.Run(r.Context()); err != nil {
			e := fault.From(err)
			st = checkState{Name: c.Name, Code: string(e.Code), Message: e.Sentence()}
			out.Ready = false
			s.Log.Debug("not ready", "check", c.Name, "error", err)
		}
		out.Checks = append(out.Checks, st)
	}
	status := http.StatusOK
	if !out.Ready {
		status = fault.KindUnavailable.HTTPStatus()
	}
	answer(w, status, out)
}

// unknown answers what no pattern matched, also a known path with another method.
func (s *server) unknown(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := r.Clone(r.Context())
		probe.Method = m
		if _, pattern := s.mux.Handler(probe); pattern != "/" && pattern != "" && !slices.Contains(allowed, m) {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) == 0 {
		s.fail(w, r, fault.New(fault.RouteNotFound, ""))
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	s.fail(w, r, fault.New(fault.RouteNotFound, "There is no %.20s at this address; it takes %s.", r.Method, strings.Join(allowed, ", ")).With("allow", allowed))
}

func answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the views are ours
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}
