// Package gitserver is a git host for tests and demonstrations: an
// [http.Handler] that serves bare repositories over git's smart HTTP protocol
// by real git processes, with users, hooks, counters and faults on demand. It
// knows no forge: no pull requests, no web pages, no dumb protocol.
//
// A server keeps its repositories in one directory. Start at [New] and
// [Server.NewRepo]; [Server.AddFault] breaks things.
//
// Protocol: git's Documentation/gitprotocol-http and gitprotocol-v2. Versions 0,
// 1 and 2 are understood, as git itself does from the Git-Protocol header.
package gitserver

import (
	"compress/gzip"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// The two services of the protocol.
const (
	UploadPack  = "git-upload-pack"  // clone and fetch
	ReceivePack = "git-receive-pack" // push
)

// User may read all repositories, and write to them where Write is set. An empty
// Name accepts the password under every name, as forges do with tokens.
type User struct {
	Name     string
	Password string
	Write    bool
}

// Options configure a [Server].
type Options struct {
	Dir        string // holds the repositories; made if it is not there
	Users      []User // none: everybody reads and writes without a password
	PublicRead bool   // with users: reading needs none

	Logger *slog.Logger                               // nil: silent
	Wait   func(context.Context, time.Duration) error // for delays of faults; nil: real time
}

// Fault is something that goes wrong with requests on purpose. Delay comes
// first; then at most one of the others.
type Fault struct {
	Service    string        // UploadPack or ReceivePack; empty: both
	Refs       bool          // the listing of refs (GET info/refs) breaks; otherwise the exchange itself
	Times      int           // so many requests; 0: until ClearFaults
	Delay      time.Duration // before anything is done
	Status     int           // answer with this HTTP status instead
	RetryAfter int           // seconds, with Status
	Message    string        // body, with Status
	CutAfter   int64         // break the connection after so many bytes of the answer
	DropAnswer bool          // do all that is asked, then break the connection without a word of it
}

// Request is what the server remembers of one request.
type Request struct {
	Method   string
	Repo     string
	Service  string
	Protocol string // the Git-Protocol header
	User     string // empty when none was accepted
	Status   int
	Faulty   bool // a fault was put on it
}

// Counts are the numbers of requests so far.
type Counts struct {
	Refs         int // listings of refs, for either service
	UploadPacks  int
	ReceivePacks int
	Refused      int // answered with 401 or 403
	Faults       int
}

// Server serves the repositories of one directory. It may be used by many
// requests at once.
type Server struct {
	opts Options
	git  string

	mu     sync.Mutex
	users  []User
	faults []Fault
	log    []Request
	counts Counts
}

// maxLog bounds the remembered requests.
const maxLog = 1000

// New makes a server; git must be installed.
func New(opts Options) (*Server, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, fmt.Errorf("find git: %w; install it or put it on PATH", err)
	}
	if opts.Dir == "" {
		return nil, errors.New("gitserver: Options.Dir is empty; name the folder for the repositories")
	}
	if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, fmt.Errorf("resolve the folder for the repositories: %w", err)
	}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder for the repositories: %w", err)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Wait == nil {
		opts.Wait = wait
	}
	return &Server{opts: opts, git: git, users: slices.Clone(opts.Users)}, nil
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

// SetUsers replaces the users, as when a credential is revoked. It works on
// requests that come later.
func (s *Server) SetUsers(users ...User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = slices.Clone(users)
}

// AddFault makes requests go wrong from now on. Of several faults that fit a
// request the oldest is taken.
func (s *Server) AddFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// ClearFaults ends all faults.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Counts returns the numbers so far.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Requests returns the latest requests that were answered, oldest first, at most 1000.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

func (s *Server) takeFault(service string, refs bool) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.faults {
		if f.Service != "" && f.Service != service || f.Refs != refs {
			continue
		}
		if f.Times == 1 {
			s.faults = slices.Delete(s.faults, i, i+1)
		} else if f.Times > 1 {
			s.faults[i].Times--
		}
		s.counts.Faults++
		return f, true
	}
	return Fault{}, false
}

func (s *Server) record(r Request, refs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case refs:
		s.counts.Refs++
	case r.Service == UploadPack:
		s.counts.UploadPacks++
	case r.Service == ReceivePack:
		s.counts.ReceivePacks++
	}
	if r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden {
		s.counts.Refused++
	}
	if len(s.log) >= maxLog {
		s.log = slices.Delete(s.log, 0, len(s.log)-maxLog+1)
	}
	s.log = append(s.log, r)
	s.opts.Logger.Debug("git request", "method", r.Method, "repo", r.Repo, "service", r.Service, "status", r.Status)
}

// user finds who asks: ok is false for wrong credentials. No credentials are
// the nameless user.
func (s *Server) user(r *http.Request) (u User, named, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.users) == 0 {
		return User{Write: true}, false, true
	}
	name, password, has := r.BasicAuth()
	if !has {
		return User{}, false, true
	}
	for _, u := range s.users {
		if (u.Name == "" || u.Name == name) && subtle.ConstantTimeCompare([]byte(u.Password), []byte(password)) == 1 {
			return User{Name: name, Write: u.Write}, true, true
		}
	}
	return User{}, false, false
}

var nameRE = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$`)

// repoDir is the directory of a repository that exists, under its name with or
// without ".git".
func (s *Server) repoDir(name string) (string, bool) {
	name = strings.TrimSuffix(name, ".git")
	if !nameRE.MatchString(name) {
		return "", false
	}
	dir := filepath.Join(s.opts.Dir, filepath.FromSlash(name)+".git")
	if _, err := os.Stat(filepath.Join(dir, "HEAD")); err != nil {
		return "", false
	}
	return dir, true
}

// ServeHTTP answers one request of a git client.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	entry := Request{Method: r.Method, Protocol: r.Header.Get("Git-Protocol")}
	rec := &recorder{ResponseWriter: w, cutAfter: -1}
	refs := false
	defer func() { // also when a fault ends the handler by panic
		entry.Status = rec.status
		s.record(entry, refs)
	}()

	path := strings.TrimPrefix(r.URL.Path, "/")
	if p, ok := strings.CutSuffix(path, "/info/refs"); ok {
		path, refs, entry.Service = p, true, r.URL.Query().Get("service")
	} else {
		for _, svc := range []string{UploadPack, ReceivePack} {
			if p, ok := strings.CutSuffix(path, "/"+svc); ok {
				path, entry.Service = p, svc
			}
		}
	}
	entry.Repo = strings.TrimSuffix(path, ".git")
	method := http.MethodPost
	if refs {
		method = http.MethodGet
	}
	switch {
	case refs && entry.Service == "":
		refs = false
		plain(rec, http.StatusForbidden, "Only git's smart HTTP protocol is spoken here.")
		return
	case entry.Service != UploadPack && entry.Service != ReceivePack:
		plain(rec, http.StatusNotFound, "Not found. Clone with git from /NAME.git.")
		return
	case r.Method != method:
		rec.Header().Set("Allow", method)
		plain(rec, http.StatusMethodNotAllowed, "Use "+method+".")
		return
	}

	// Who may not see repositories does not learn their names either.
	u, named, ok := s.user(r)
	write := entry.Service == ReceivePack
	switch {
	case !ok || !named && !u.Write && (write || !s.opts.PublicRead):
		rec.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		plain(rec, http.StatusUnauthorized, "Authentication failed. Give a user name and a password, or a token as password.")
		return
	case write && !u.Write:
		entry.User = u.Name
		plain(rec, http.StatusForbidden, "User "+u.Name+" may not push.")
		return
	}
	entry.User = u.Name
	dir, ok := s.repoDir(path)
	if !ok {
		plain(rec, http.StatusNotFound, "Repository not found.")
		return
	}

	if f, ok := s.takeFault(entry.Service, refs); ok {
		entry.Faulty = true
		if f.Delay > 0 && s.opts.Wait(r.Context(), f.Delay) != nil {
			return // the client has gone
		}
		switch {
		case f.Status != 0:
			if f.RetryAfter > 0 {
				rec.Header().Set("Retry-After", fmt.Sprint(f.RetryAfter))
			}
			plain(rec, f.Status, f.Message)
			return
		case f.DropAnswer:
			rec.drop = true
		case f.CutAfter > 0:
			rec.cutAfter = f.CutAfter
		}
	}
	s.serve(rec, r, dir, entry.Service, u.Name, refs)
	if rec.drop {
		panic(http.ErrAbortHandler)
	}
}

// serve runs git for a request.
func (s *Server) serve(w *recorder, r *http.Request, dir, service, user string, refs bool) {
	kind := "result"
	args := []string{strings.TrimPrefix(service, "git-"), "--stateless-rpc"}
	if refs {
		kind = "advertisement"
		args = append(args, "--advertise-refs")
	}
	var in io.Reader = http.NoBody
	if !refs {
		if ct := r.Header.Get("Content-Type"); ct != "application/x-"+service+"-request" {
			plain(w, http.StatusUnsupportedMediaType, "The body must be application/x-"+service+"-request.")
			return
		}
		in = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(in)
			if err != nil {
				plain(w, http.StatusBadRequest, "The body is not gzip as its Content-Encoding says.")
				return
			}
			in = z
		}
		// git may answer before it has read all of a push. Not every
		// connection can do that; then the answer waits, which is fine too.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-"+service+"-"+kind)
	h.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	w.WriteHeader(http.StatusOK)
	// Version 2 does without the heading; a push has no version 2, and git
	// advertises for it as in version 0.
	if v2 := strings.Contains(":"+r.Header.Get("Git-Protocol")+":", ":version=2:"); refs && (!v2 || service == ReceivePack) {
		line := "# service=" + service + "\n"
		fmt.Fprintf(w, "%04x%s0000", len(line)+4, line)
	}
	cmd := s.command(r.Context(), dir, append(args, dir)...)
	cmd.Env = append(cmd.Env, "GIT_PROTOCOL="+r.Header.Get("Git-Protocol"), "REMOTE_USER="+user, "REMOTE_ADDR="+r.RemoteAddr)
	var stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, w, &stderr
	if err := cmd.Run(); err != nil {
		s.opts.Logger.Info("git ended badly", "service", service, "err", err, "stderr", stderr.String())
	}
	if w.cut {
		panic(http.ErrAbortHandler)
	}
}

// command prepares git with a clean environment: nothing of the user's
// configuration, and repositories of any owner.
func (s *Server) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.git, args...)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.opts.Dir, "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_TERMINAL_PROMPT=0",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_COMMITTER_NAME=Git Server", "GIT_COMMITTER_EMAIL=git@hearth.test",
	}
	return cmd
}

func plain(w http.ResponseWriter, status int, text string) {
	if text == "" {
		text = http.StatusText(status)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // a client that left needs no answer
}

// recorder notes the status, flushes what git writes, and drops or cuts it.
type recorder struct {
	http.ResponseWriter
	status   int
	drop     bool
	cutAfter int64 // bytes still to pass; negative: all
	cut      bool
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	if !r.drop {
		r.ResponseWriter.WriteHeader(status)
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.drop {
		return len(b), nil
	}
	n := len(b)
	if r.cutAfter >= 0 && int64(n) >= r.cutAfter {
		b, r.cut = b[:r.cutAfter], true
		r.cutAfter = 0
	} else if r.cutAfter > 0 {
		r.cutAfter -= int64(n)
	}
	if _, err := r.ResponseWriter.Write(b); err != nil {
		return 0, err
	}
	_ = http.NewResponseController(r.ResponseWriter).Flush() // a recorder in a test cannot
	return n, nil
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
