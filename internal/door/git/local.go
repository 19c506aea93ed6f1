package git

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

// localLimits of a door to a local repository.
type localLimits struct {
	concurrent   int           // requests at once
	requestBytes int64         // of a request, unpacked or not
	duration     time.Duration // of a request
}

// Local serves fetches from a repository of this machine, read-only: the
// session's own packed work, which the remote may not have. It takes the paths
// that smart HTTP has below the repository (gitprotocol-http(5)); everything else is
// refused. Any commit of the repository may be asked for by its id. At most four
// requests run at once, each for 15 minutes and with at most 8 MiB.
// Code: CONFIG_INVALID where there is no git.
func Local(dir string, log *slog.Logger) (http.Handler, error) {
	return newLocal(dir, log, localLimits{concurrent: 4, requestBytes: 8 << 20, duration: 15 * time.Minute})
}

func newLocal(dir string, log *slog.Logger, limits localLimits) (http.Handler, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, fault.Wrap(err, fault.ConfigInvalid, "Git is not installed on the server.")
	}
	return &local{git: git, path: os.Getenv("PATH"), dir: dir, log: log, limits: limits, slots: make(chan struct{}, limits.concurrent)}, nil
}

type local struct {
	git, path, dir string
	log            *slog.Logger
	limits         localLimits
	slots          chan struct{}
}

func (l *local) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	default:
		refuse(w, fault.New(fault.DoorBusy, "Too many git requests at once. Try again in a moment."))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), l.limits.duration)
	defer cancel()
	rc := http.NewResponseController(w)
	end := time.Now().Add(l.limits.duration)
	_, _ = rc.SetReadDeadline(end), rc.SetWriteDeadline(end) // a connection without deadlines has others
	a := &localAnswer{w: w}
	err := l.serve(ctx, a, r)
	_, _ = rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{}) // the connection's next request has its own
	switch {
	case err == nil:
	case a.begun:
		l.log.WarnContext(ctx, "fetch of packed work broken", "error", err)
		panic(http.ErrAbortHandler) // the client must not take what it got for the whole
	default:
		l.log.InfoContext(ctx, "fetch of packed work refused", "method", r.Method, "path", door.Printable(r.URL.Path, 200), "error", err)
		refuse(w, err)
	}
}

func (l *local) serve(ctx context.Context, a *localAnswer, r *http.Request) error {
	args := []string{"upload-pack", "--strict", "--stateless-rpc"}
	protocol := r.Header.Get("Git-Protocol")
	if !protocolHeader.MatchString(protocol) {
		protocol = ""
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/info/refs" && r.URL.RawQuery == "service="+uploadPack:
		a.contentType = "application/x-" + uploadPack + "-advertisement"
		if !strings.Contains(protocol, "version=2") { // there the service is not named
			a.before = "001e# service=" + uploadPack + "\n0000"
		}
		return l.run(ctx, a, append(args, "--advertise-refs"), protocol, nil)
	case r.Method == http.MethodPost && r.URL.Path == "/"+uploadPack && r.URL.RawQuery == "":
		body, err := l.body(r)
		if err != nil {
			return err
		}
		a.contentType = "application/x-" + uploadPack + "-result"
		return l.run(ctx, a, args, protocol, body)
	}
	return fault.New(fault.GitRepositoryRefused, "Packed work can be fetched here and nothing else.")
}

// body is the whole request: what a fetch asks for is small.
func (l *local) body(r *http.Request) ([]byte, error) {
	read := func(src io.Reader) ([]byte, error) {
		b, err := io.ReadAll(io.LimitReader(src, l.limits.requestBytes+1))
		if err != nil {
			return nil, fault.Wrap(err, fault.InvalidInput, "The request could not be read.")
		}
		if int64(len(b)) > l.limits.requestBytes {
			return nil, errTooLarge
		}
		return b, nil
	}
	b, err := read(r.Body)
	if err != nil || r.Header.Get("Content-Encoding") != "gzip" {
		return b, err
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fault.Wrap(err, fault.InvalidInput, "The request is not packed as it says.")
	}
	return read(z)
}

// run runs git to its end, with all that it started. Its configuration is what the repository and the arguments say.
func (l *local) run(ctx context.Context, a *localAnswer, args []string, protocol string, in []byte) error {
	config := []string{"-c", "safe.directory=*", "-c", "uploadpack.allowAnySHA1InWant=true", "-c", "core.hooksPath=/dev/null"}
	cmd := exec.CommandContext(ctx, l.git, append(append(config, args...), l.dir)...)
	cmd.Env = []string{
		"PATH=" + l.path, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_NO_REPLACE_OBJECTS=1",
		"HOME=/nonexistent", "LC_ALL=C", "GIT_PROTOCOL=" + protocol,
	}
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), a, &head{w: &said, left: 4 << 10}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	words := door.Printable(said.String(), 1000)
	switch {
	case err == nil:
		if words != "" {
			l.log.DebugContext(ctx, "git", "said", words)
		}
		a.begin() // also of an empty answer
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fault.Wrap(err, fault.DoorTimeout, "The fetch took longer than %v.", l.limits.duration)
	case ctx.Err() != nil:
		return fmt.Errorf("fetch of packed work: %w", context.Cause(ctx))
	}
	l.log.WarnContext(ctx, "git failed", "said", words, "error", err)
	return fault.Wrap(err, fault.RepositoryUnreachable, "The session's packed work could not be read.")
}

// localAnswer begins with the first byte, so that a refusal can still be told before.
type localAnswer struct {
	w           http.ResponseWriter
	contentType string
	before      string
	begun       bool
	err         error
}

func (a *localAnswer) begin() {
	if a.begun {
		return
	}
	a.begun = true
	a.w.Header().Set("Content-Type", a.contentType)
	a.w.Header().Set("Cache-Control", "no-cache")
	a.w.WriteHeader(http.StatusOK)
	_, a.err = io.WriteString(a.w, a.before)
}

func (a *localAnswer) Write(p []byte) (int, error) {
	if a.begin(); a.err != nil {
		return 0, a.err
	}
	return a.w.Write(p)
}

// head drops what is over.
type head struct {
	w    io.Writer
	left int
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), h.left)
	h.left -= n
	_, err := h.w.Write(p[:n])
	return len(p), err
}
