// Package git is the git door: the one repository that a sandbox's git reaches,
// over smart HTTP. Reads pass through; a push is read up to its pack and only the
// session's branch may move, from the commit that the session knows. The login
// for the git host is added here and never seen inside. It holds no objects and
// no state: what the branch is known to have is the caller's. Start with [New].
//
// Source: gitprotocol-http(5), gitprotocol-pack(5).
package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

// Config of the git door of one session. Every function may be called by several
// goroutines; those about the branch are called for one push at a time.
type Config struct {
	Upstream string // URL of the repository, http or https, without a login
	// Path is where the door offers it, as in driverapi's DoorURL: "/host/owner/name".
	// The same with .git is offered, too.
	Path string
	// Credential is asked for each request. An error is told to the sandbox by its sentence.
	Credential func(ctx context.Context) (forge.Credential, error)

	// MayPush allows pushes to Branch; all of the following are needed for it.
	MayPush bool
	Branch  string
	// Known is the commit that the branch has on the remote as far as the session
	// knows; empty: it is not there.
	Known func(ctx context.Context) (string, error)
	// Moving is told before a push goes out that may be accepted. Optional.
	Moving func(ctx context.Context, old, new string) error
	// Moved is told when the remote has accepted, before the sandbox hears of it.
	// old is empty for a branch that was made. Its context outlives the request.
	Moved func(ctx context.Context, old, new string) error
	// Floor is the newest commit of the branch that this session did not push, empty
	// when all of it is the session's. Nil: empty.
	Floor func(ctx context.Context) (string, error)
	// Descends says whether a commit whose new objects are in pack has floor among its
	// ancestors. Without it a push to a branch with a floor is refused.
	Descends func(ctx context.Context, floor, candidate string, pack io.Reader) (bool, error)

	Transport http.RoundTripper // nil: one shared by all doors of the process
	Log       *slog.Logger
	Dir       string // for packs that must be looked at; empty: the usual folder for temporary files
	Limits    Limits
}

// Limits of a door. Zero values mean the defaults in parentheses.
type Limits struct {
	Concurrent    int           // requests at once (8)
	RequestBytes  int64         // of a fetch request, unpacked or not (64 MiB)
	PushBytes     int64         // of a push (2 GiB)
	ResponseBytes int64         // of any answer (16 GiB)
	Duration      time.Duration // of a request (1 h)
	Idle          time.Duration // without a byte in either direction (5 min)
	Answer        time.Duration // until the git host begins to answer (5 min)
}

func (l *Limits) defaults() {
	door.Default(&l.Concurrent, 8)
	door.Default(&l.RequestBytes, 64<<20)
	door.Default(&l.PushBytes, 2<<30)
	door.Default(&l.ResponseBytes, 16<<30)
	door.Default(&l.Duration, time.Hour)
	door.Default(&l.Idle, 5*time.Minute)
	door.Default(&l.Answer, 5*time.Minute)
}

type handler struct {
	cfg      Config
	upstream string
	slots    chan struct{}
	pushing  chan struct{}
}

// sharedTransport keeps connections to git hosts for all sessions of the process: doors come
// and go, and each with its own would leave its connections open for a while.
var sharedTransport = sync.OnceValue(func() http.RoundTripper {
	var l Limits
	l.defaults()
	return newTransport(l.Answer)
})

func newTransport(answer time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = answer
	t.ForceAttemptHTTP2 = false // a large push is one stream: HTTP/2 windows slow it down
	return t
}

// New makes the git door of one session. An incomplete Config is an error.
func New(cfg Config) (http.Handler, error) {
	u, err := url.Parse(cfg.Upstream)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, errors.New("git door: the upstream is not a plain http or https URL")
	}
	cfg.Path = strings.TrimSuffix(strings.TrimRight(cfg.Path, "/"), ".git")
	if !strings.HasPrefix(cfg.Path, "/") || len(cfg.Path) < 2 {
		return nil, errors.New("git door: no path given")
	}
	if cfg.Credential == nil {
		return nil, errors.New("git door: no credential function given")
	}
	if cfg.MayPush && (cfg.Known == nil || cfg.Moved == nil || forge.CheckBranch(cfg.Branch) != nil) {
		return nil, errors.New("git door: pushes are allowed, but branch, Known or Moved is missing")
	}
	own := cfg.Limits.Answer != 0
	cfg.Limits.defaults()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.Transport != nil:
	case own:
		cfg.Transport = newTransport(cfg.Limits.Answer)
	default:
		cfg.Transport = sharedTransport()
	}
	return &handler{
		cfg:      cfg,
		upstream: strings.TrimRight(cfg.Upstream, "/"),
		slots:    make(chan struct{}, cfg.Limits.Concurrent),
		pushing:  make(chan struct{}, 1),
	}, nil
}

const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"
	userAgent   = "git/2.0 (hearth)"
)

// ServeHTTP serves one request of the sandbox's git.
func (d *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	default:
		refuse(w, fault.New(fault.DoorBusy, "Too many git requests at once. Try again in a moment."))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), d.cfg.Limits.Duration)
	defer cancel()
	ex := &exchange{handler: d, w: w, r: r.WithContext(ctx), rc: http.NewResponseController(w)}
	started := time.Now() // how long a request took is wall time
	err := ex.serve(ctx)
	defer func() { _ = ex.rc.SetWriteDeadline(time.Time{}) }() // the connection's next request has its own
	attrs := []any{
		"method", r.Method, "what", ex.what, "in", ex.in, "out", ex.out,
		"ms", time.Since(started).Milliseconds(), // as above
	}
	switch {
	case err == nil:
		d.cfg.Log.InfoContext(ctx, "git exchange", append(attrs, "outcome", ex.outcome)...)
		return
	case ex.begun:
		d.cfg.Log.WarnContext(ctx, "git exchange broken", append(attrs, "error", err)...)
		panic(http.ErrAbortHandler) // the client must not take what it got for the whole
	}
	d.cfg.Log.InfoContext(ctx, "git exchange refused", append(attrs, "error", err)...)
	ex.drain()
	refuse(w, err)
}

// exchange is one request and its answer.
type exchange struct {
	*handler
	w       http.ResponseWriter
	r       *http.Request
	rc      *http.ResponseController
	what    string
	outcome string
	in, out int64
	begun   bool // the answer's head is out
}

func (e *exchange) serve(ctx context.Context) error {
	rest, ok := e.rest()
	if !ok {
		e.what = "foreign"
		return fault.New(fault.GitRepositoryRefused,
			"This sandbox may reach only its session's repository (%s), not %s.", e.cfg.Path, door.Printable(e.r.URL.Path, 200))
	}
	switch {
	case rest == "/info/refs" && e.r.Method == http.MethodGet:
		return e.infoRefs(ctx)
	case rest == "/"+uploadPack && e.r.Method == http.MethodPost:
		e.what = uploadPack
		return e.fetch(ctx)
	case rest == "/"+receivePack && e.r.Method == http.MethodPost:
		e.what = receivePack
		if err := e.mayPush(); err != nil {
			return err
		}
		return e.push(ctx)
	case strings.HasPrefix(rest, "/info/lfs"):
		e.what = "lfs"
		return fault.New(fault.Unsupported, "Git LFS does not pass this door.")
	}
	e.what = "other"
	return fault.New(fault.GitRepositoryRefused, "Only git's smart HTTP protocol passes here.")
}

// rest is the request's path behind the repository's.
func (e *exchange) rest() (string, bool) {
	rest, ok := strings.CutPrefix(e.r.URL.EscapedPath(), e.cfg.Path)
	if !ok {
		return "", false
	}
	if t, ok := strings.CutPrefix(rest, ".git"); ok {
		rest = t
	}
	if !strings.HasPrefix(rest, "/") {
		return "", false
	}
	return "/" + strings.TrimLeft(rest, "/"), true
}

func (e *exchange) mayPush() error {
	if e.cfg.MayPush {
		return nil
	}
	return fault.New(fault.GitRefRefused, "This session may not push. Its work is delivered when the turn ends.")
}

func (e *exchange) infoRefs(ctx context.Context) error {
	service := e.r.URL.Query().Get("service")
	if e.r.URL.RawQuery != "service="+service || service != uploadPack && service != receivePack {
		e.what = "dumb"
		return fault.New(fault.GitRepositoryRefused, "Only git's smart HTTP protocol passes here.")
	}
	e.what = "refs " + service
	if service == receivePack {
		if err := e.mayPush(); err != nil {
			return err
		}
	}
	resp, err := e.send(ctx, http.MethodGet, "/info/refs?service="+service, nil, -1, service == uploadPack)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	pass := copyAll
	if service == receivePack {
		if enc := resp.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
			return fault.New(fault.RepositoryUnreachable, "The git host answers in an encoding that was not asked for.")
		}
		pass = func(w io.Writer, r io.Reader) error { return gitwire.CopyAdvertisement(w, r, pushOptions) }
	}
	return e.passAnswer(resp, "application/x-"+service+"-advertisement", pass)
}

func (e *exchange) fetch(ctx context.Context) error {
	if err := e.wantType(uploadPack); err != nil {
		return err
	}
	switch e.r.Header.Get("Content-Encoding") {
	case "", "gzip", "x-gzip", "identity":
	default:
		return fault.New(fault.InvalidInput, "This content encoding does not pass.")
	}
	_ = e.rc.EnableFullDuplex() // HTTP/2 has it anyway
	body := e.body(e.cfg.Limits.RequestBytes)
	resp, err := e.send(ctx, http.MethodPost, "/"+uploadPack, body, e.r.ContentLength, true)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return e.passAnswer(resp, "application/x-"+uploadPack+"-result", copyAll)
}

func (e *exchange) wantType(service string) error {
	if t, _, _ := strings.Cut(e.r.Header.Get("Content-Type"), ";"); t != "application/x-"+service+"-request" {
		return fault.New(fault.InvalidInput, "The request's content type is not that of %s.", service)
	}
	return nil
}

var protocolHeader = regexp.MustCompile(`^[A-Za-z0-9=:_.-]{1,200}$`)

// send asks the git host. Only what is named here passes on.
func (e *exchange) send(ctx context.Context, method, path string, body io.Reader, length int64, encoded bool) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.upstream+path, body)
	if err != nil {
		return nil, fmt.Errorf("make upstream request: %w", err)
	}
	if body != nil {
		req.ContentLength = length
	}
	var pass []string
	if body != nil {
		pass = append(pass, "Accept", "Content-Type")
	}
	switch {
	case !encoded:
		req.Header.Set("Accept-Encoding", "identity")
	case body != nil:
		pass = append(pass, "Accept-Encoding", "Content-Encoding")
	default:
		pass = append(pass, "Accept-Encoding")
	}
	for _, h := range pass {
		if v := e.r.Header.Get(h); v != "" && len(v) < 500 {
			req.Header.Set(h, v)
		}
	}
	if v := e.r.Header.Get("Git-Protocol"); protocolHeader.MatchString(v) {
		req.Header.Set("Git-Protocol", v)
	}
	req.Header.Set("User-Agent", userAgent)
	cred, err := e.cfg.Credential(ctx)
	if err != nil {
		return nil, fmt.Errorf("credential for the git door: %w", err)
	}
	if !cred.IsZero() {
		req.SetBasicAuth(cred.Username, cred.Password)
	}
	resp, err := e.cfg.Transport.RoundTrip(req)
	if err != nil {
		return nil, e.upstreamError(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, statusError(resp)
	}
	return resp, nil
}

// passAnswer streams the host's answer through pass.
func (e *exchange) passAnswer(resp *http.Response, contentType string, pass func(io.Writer, io.Reader) error) error {
	if t, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); t != contentType {
		return fault.New(fault.RepositoryUnreachable, "The git host answered, but not as a git repository.")
	}
	for _, h := range []string{"Content-Type", "Content-Encoding", "Cache-Control"} {
		if v := resp.Header.Get(h); v != "" {
			e.w.Header().Set(h, v)
		}
	}
	e.begin()
	if err := pass(e, resp.Body); err != nil {
		return fmt.Errorf("pass the git host's answer: %w", err)
	}
	e.outcome = "passed"
	return nil
}

func copyAll(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(w, r, make([]byte, 64<<10))
	return err
}

func (e *exchange) begin() {
	if e.begun {
		return
	}
	e.begun = true
	e.w.WriteHeader(http.StatusOK)
	_ = e.rc.Flush() // the next write tells
}

// Write gives the sandbox a piece of the answer, at once and within the limits.
func (e *exchange) Write(p []byte) (int, error) {
	e.out += int64(len(p))
	if e.out > e.cfg.Limits.ResponseBytes {
		return 0, fault.New(fault.DoorTooLarge, "The git host's answer is larger than may pass.")
	}
	_ = e.rc.SetWriteDeadline(time.Now().Add(e.cfg.Limits.Idle)) // a socket deadline is wall time
	n, err := e.w.Write(p)
	if err == nil {
		err = e.rc.Flush()
	}
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return n, fmt.Errorf("answer the sandbox: %w", err)
	}
	return n, nil
}

// body is the request's body with its limits.
func (e *exchange) body(limit int64) *requestBody { return &requestBody{e: e, left: limit} }

var errTooLarge = fault.New(fault.DoorTooLarge, "The request is larger than this door passes.")

type requestBody struct {
	e    *exchange
	left int64
}

// Read refreshes the deadline: a body may be long, but not silent.
func (b *requestBody) Read(p []byte) (int, error) {
	_ = b.e.rc.SetReadDeadline(time.Now().Add(b.e.cfg.Limits.Idle)) // a socket deadline is wall time
	n, err := b.e.r.Body.Read(p)
	b.e.in += int64(n)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	if errors.Is(err, io.EOF) {
		// The connection is watched for its end from here on: that may take as long as the host does.
		// After an error the deadline stays, or the server would wait for the rest.
		_ = b.e.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// drain reads what is left of a push that is answered early: git looks at the
// answer only after it has sent everything.
func (e *exchange) drain() {
	if e.r.Method == http.MethodPost {
		_, _ = io.Copy(io.Discard, e.body(e.cfg.Limits.PushBytes-e.in))
	}
}
