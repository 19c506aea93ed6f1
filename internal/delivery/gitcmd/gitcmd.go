// Package gitcmd runs the git binary the way the server must: no configuration
// of the machine or the person, no prompts, no hooks, no protocols beyond those
// allowed, a deadline on every run, and credentials that are in no argument,
// environment or file. What git is asked to do is the caller's business. Start
// with [Git.Run].
package gitcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Git runs one git binary. The zero value is not usable; see [New].
// It is safe for concurrent use.
type Git struct {
	path string
	env  []string
}

// Config of a [Git].
type Config struct {
	Path string // of the binary; empty: looked up in PATH
	// AllowFile lets git read and write repositories of this machine by path.
	AllowFile bool
	// CAFile holds further certificates that sign git hosts; empty: the machine's.
	CAFile string
	// Env is added to git's environment: proxy variables, as a rule. Entries are "NAME=value".
	Env []string
}

// New looks git up.
func New(cfg Config) (*Git, error) {
	path := cfg.Path
	if path == "" {
		var err error
		if path, err = exec.LookPath("git"); err != nil {
			return nil, fmt.Errorf("find the git binary: %w", err)
		}
	}
	protocols := "http:https"
	if cfg.AllowFile {
		protocols += ":file"
	}
	env := []string{
		"PATH=" + filepath.Dir(path) + ":/usr/local/bin:/usr/bin:/bin",
		"HOME=/nonexistent",
		"XDG_CONFIG_HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ALLOW_PROTOCOL=" + protocols,
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_ALLOC_LIMIT=4g", // of one allocation: a monstrous object ends git, not the server
	}
	if t := os.TempDir(); t != "/tmp" {
		env = append(env, "TMPDIR="+t)
	}
	if cfg.CAFile != "" {
		env = append(env, "GIT_SSL_CAINFO="+cfg.CAFile)
	}
	return &Git{path: path, env: append(env, cfg.Env...)}, nil
}

// settings hold for every run; they outrank what a repository's own file says.
var settings = []string{
	"-c", "core.hooksPath=/dev/null",
	"-c", "core.fsmonitor=false",
	"-c", "core.bigFileThreshold=32m", // larger files are streamed, and binary in diffs
	"-c", "core.askPass=",
	"-c", "core.logAllRefUpdates=false",
	"-c", "core.quotePath=true",
	"-c", "credential.helper=",
	"-c", "credential.interactive=false",
	"-c", "http.followRedirects=false",
	"-c", "http.lowSpeedLimit=1",
	"-c", "http.lowSpeedTime=60",
	"-c", "gc.auto=0",
	"-c", "maintenance.auto=false",
	"-c", "protocol.version=2",
	"-c", "transfer.fsckObjects=true",
	"-c", "safe.directory=*",
	"-c", "push.gpgSign=false",
	"-c", "push.followTags=false",
	"-c", "push.recurseSubmodules=no",
	"-c", "fetch.recurseSubmodules=false",
	"-c", "submodule.recurse=false",
	"-c", "diff.renameLimit=2000",
	"-c", "diff.algorithm=histogram",
	"-c", "diff.noprefix=false",
	"-c", "diff.mnemonicPrefix=false",
}

// Old flaws that real histories have and that harm nobody; everything else that
// git-fsck(1) knows is refused.
var oldFlaws = []string{
	"badTimezone", "zeroPaddedFilemode", "missingSpaceBeforeDate", "missingSpaceBeforeEmail", "missingNameBeforeEmail",
}

// Strict is the option that makes index-pack check each object and its links.
func Strict() string {
	return "--strict=" + strings.Join(oldFlaws, "=ignore,") + "=ignore"
}

// Login answers git when a remote asks for a user and a password.
type Login struct{ Username, Password string }

// Run is one run of git.
type Run struct {
	Dir     string   // bare repository; empty for runs that need none
	Args    []string // the command and its arguments; nothing secret
	Env     []string // added to the environment, "NAME=value"; nothing secret
	Login   *Login   // nil: a remote that asks is refused
	Stdin   io.Reader
	Stdout  io.Writer     // nil: kept, up to MaxOutput, and returned
	Timeout time.Duration // must be set
}

// Bounds of what is kept of git's output, in bytes.
const (
	MaxOutput = 64 << 20
	MaxStderr = 64 << 10
)

// Error is a run that did not end well.
type Error struct {
	Args    []string
	Exit    int    // exit status; -1 when git did not exit by itself
	Stderr  string // at most MaxStderr bytes, the first ones
	Stdout  string // at most MaxStderr bytes of what was kept
	Timeout bool   // it took longer than it may
	// Overflow: there was more standard output than is kept.
	Overflow bool
	cause    error
}

// Error tells the command and git's last words.
func (e *Error) Error() string {
	s := "git " + strings.Join(e.Args, " ")
	if e.Timeout {
		s += ": took too long"
	}
	s += ": " + e.cause.Error()
	if t := strings.TrimSpace(e.Stderr); t != "" {
		s += ": " + t
	}
	return s
}

// Unwrap returns what ended the run.
func (e *Error) Unwrap() error { return e.cause }

// credentialHelper reads a login from descriptor 3. Each request takes one
// answer: git asks again for each connection it opens.
const credentialHelper = `!f() { test "$1" = get || exit 0; while IFS= read -r l <&3; do test -n "$l" || break; printf '%s\n' "$l"; done; }; f`

// Run runs git and returns its standard output, unless that goes elsewhere, and
// what it said on standard error. A failure of git is an [*Error]. When ctx ends,
// git and every process it started are killed.
func (g *Git) Run(ctx context.Context, r Run) (stdout []byte, stderr string, err error) {
	if r.Timeout <= 0 {
		return nil, "", fmt.Errorf("git %s: no timeout given", r.Args[0])
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	args := append([]string{}, settings...)
	for _, f := range oldFlaws {
		args = append(args, "-c", "fetch.fsck."+f+"=ignore")
	}
	if r.Login != nil {
		args = append(args, "-c", "credential.helper="+credentialHelper)
	}
	if r.Dir != "" {
		args = append(args, "--git-dir="+r.Dir)
	}
	cmd := exec.CommandContext(ctx, g.path, append(args, r.Args...)...)
	cmd.Dir = "/"
	cmd.Env = append(append([]string{}, g.env...), r.Env...)
	cmd.Stdin = r.Stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	kept := &bounded{max: MaxOutput}
	cmd.Stdout = r.Stdout
	if r.Stdout == nil {
		cmd.Stdout = kept
	}
	words := &bounded{max: MaxStderr, drop: true}
	cmd.Stderr = words
	if r.Login != nil {
		pipe, err := loginPipe(*r.Login)
		if err != nil {
			return nil, "", err
		}
		defer pipe.Close()
		cmd.ExtraFiles = []*os.File{pipe}
	}
	err = cmd.Run()
	stderr = words.String()
	if err == nil {
		return kept.Bytes(), stderr, nil
	}
	e := &Error{Args: r.Args, Exit: -1, Stderr: stderr, cause: err, Stdout: kept.head(MaxStderr)}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		e.Exit = exit.ExitCode()
	}
	switch {
	case outer.Err() != nil:
		e.cause = context.Cause(outer)
	case ctx.Err() != nil:
		e.Timeout = true
	case kept.over:
		e.Overflow = true
	}
	return kept.Bytes(), stderr, e
}

// loginPipe holds several answers, all within a pipe's capacity, so that nobody has to write them.
func loginPipe(l Login) (*os.File, error) {
	if strings.ContainsAny(l.Username+l.Password, "\n\x00") {
		return nil, errors.New("git login has a line break in it")
	}
	answer := "password=" + l.Password + "\n\n"
	if l.Username != "" {
		answer = "username=" + l.Username + "\n" + answer
	}
	if len(answer) > 8<<10 {
		return nil, errors.New("git login is too long")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe for the git login: %w", err)
	}
	_, err = io.WriteString(w, strings.Repeat(answer, 4))
	if err := errors.Join(err, w.Close()); err != nil {
		r.Close()
		return nil, fmt.Errorf("write the git login: %w", err)
	}
	return r, nil
}

// bounded keeps the first bytes. Beyond max it fails the writer, or drops.
type bounded struct {
	bytes.Buffer
	max  int
	drop bool
	over bool
}

var errOutput = errors.New("git said more than is kept")

func (b *bounded) Write(p []byte) (int, error) {
	room := b.max - b.Len()
	if len(p) <= room {
		return b.Buffer.Write(p)
	}
	b.over = true
	b.Buffer.Write(p[:max(room, 0)])
	if b.drop {
		return len(p), nil
	}
	return 0, errOutput
}

func (b *bounded) head(n int) string { return string(b.Bytes()[:min(n, b.Len())]) }

// ReadFrom must not be the buffer's own: that one knows no bound.
func (b *bounded) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}
