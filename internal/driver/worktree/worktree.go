// Package worktree is what the driver does to the repository in its sandbox: it
// clones it and runs its setup commands ([Tree.Setup]), packs the work of a turn
// ([Tree.Pack]) and sets it back ([Tree.Reset]). All is done by the git of the
// sandbox's root; nothing is decided about what may leave the sandbox.
//
// After setup the repository belongs to the agent, which may do anything to it.
// So packing and resetting never let git read the repository's own
// configuration, hooks, attributes outside the tree or reference storage: they
// work in a git directory of the driver's own, see [shadow], that shares the
// objects.
package worktree

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/driver/proc"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

const maxMessage = 2000 // bytes of a failure's sentences

// Tree is the work tree of a sandbox. Its methods may be called concurrently;
// they run one after the other.
type Tree struct {
	Procs *proc.Table
	Work  string // the work tree
	Home  string // HOME of setup commands, gets git's configuration
	State string // a folder of the driver's own
	Env   []string
	Log   *slog.Logger
	Now   func() time.Time

	mu    sync.Mutex
	state *state // nil until read
}

// state is what is kept about the repository beside it.
type state struct {
	Cloned bool   `json:"cloned"`
	Done   bool   `json:"done"`
	Branch string `json:"branch"`
	URL    string `json:"url,omitempty"`
	Format string `json:"format"`
}

func (t *Tree) statePath() string { return filepath.Join(t.State, "tree.json") }

func (t *Tree) load() (*state, error) {
	if t.state != nil {
		return t.state, nil
	}
	s := &state{}
	b, err := os.ReadFile(t.statePath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read state of the work tree: %w", err)
	default:
		if err := json.Unmarshal(b, s); err != nil {
			return nil, fmt.Errorf("read state of the work tree: %w", err)
		}
	}
	t.state = s
	return s, nil
}

func (t *Tree) save(s *state) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode state of the work tree: %w", err)
	}
	if err := replaceFile(t.statePath(), b, 0o600); err != nil {
		return fmt.Errorf("keep state of the work tree: %w", err)
	}
	t.state = s
	return nil
}

// Ready tells whether the repository was set up, and the commit of its HEAD, empty when there is none.
func (t *Tree) Ready() (ready bool, head string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.load()
	if err != nil || !s.Done {
		return false, ""
	}
	head, _ = openRefs(t.Work).head()
	return true, head
}

// replaceFile writes a file so that it is there whole or not at all.
func replaceFile(path string, data []byte, mode fs.FileMode) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// gitResult is what one git command left.
type gitResult struct {
	exit   proc.Exit
	stdout []byte
	stderr []byte
}

// text is standard output without white space around it.
func (r gitResult) text() string { return strings.TrimSpace(string(r.stdout)) }

// err is an error that has git's own words, for a command that had to succeed.
func (r gitResult) err(args []string) error {
	if r.exit.OK() {
		return nil
	}
	return fmt.Errorf("git %s: %s: %s", args[0], r.exit, lastWords(r.stderr))
}

func lastWords(b []byte) string {
	const most = 1000
	b = bytes.TrimSpace(b)
	if len(b) > most {
		b = b[len(b)-most:]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// tail keeps the last bytes that were written to it.
type tail struct {
	max int
	b   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*t.max {
		t.b = append(t.b[:0], t.b[len(t.b)-t.max:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	b := t.b
	if len(b) > t.max {
		b = b[len(b)-t.max:]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// git runs a command to its end. The result's exit is not an error.
func (t *Tree) git(ctx context.Context, env []string, in io.Reader, args ...string) (gitResult, error) {
	var out bytes.Buffer
	r, err := t.gitTo(ctx, env, in, &out, args...)
	r.stdout = out.Bytes()
	return r, err
}

func (t *Tree) gitTo(ctx context.Context, env []string, in io.Reader, out io.Writer, args ...string) (gitResult, error) {
	errw := &tail{max: 8 << 10}
	exit, err := t.Procs.Run(ctx, proc.Command{
		Spec: proc.Spec{Args: append([]string{"git"}, args...), Env: env, Dir: t.Work, Helper: true},
		In:   in, Out: out, Err: errw,
	})
	if err != nil {
		err = fmt.Errorf("git %s: %w", args[0], err)
	}
	return gitResult{exit: exit, stderr: errw.b}, err
}

// must runs a command that has to succeed and returns its standard output.
func (t *Tree) must(ctx context.Context, env []string, in io.Reader, args ...string) (gitResult, error) {
	r, err := t.git(ctx, env, in, args...)
	if err != nil {
		return r, err
	}
	return r, r.err(args)
}

// plainEnv is the environment of the driver's own git: no configuration but what
// the git directory and the arguments say.
func (t *Tree) plainEnv(extra ...string) []string {
	env := []string{
		"PATH=" + t.lookup("PATH", "/usr/local/bin:/usr/bin:/bin"),
		"HOME=" + t.State,
		"LC_ALL=C",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_TERMINAL_PROMPT=0",
	}
	return append(env, extra...)
}

func (t *Tree) lookup(name, otherwise string) string {
	for _, e := range t.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return otherwise
}

// failf is an error for a person, bounded.
func failf(c fault.Code, output, format string, args ...any) *driverapi.Failure {
	return &driverapi.Failure{Code: string(c), Message: clip(fmt.Sprintf(format, args...), maxMessage), Output: output}
}
