package worktree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hearthd/hearth/internal/driver/proc"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

const (
	phaseClone = "clone"
	phaseSetup = "setup"

	environmentFile    = ".hearth/environment.yaml"
	maxEnvironmentFile = 64 << 10
	maxSetupLines      = 5000 // told to the server; the rest is counted
	maxSetupLine       = 2000 // bytes
	outputKept         = 8 << 10
	defaultTimeout     = 30 * time.Minute
	cloneTries         = 3
	maxUnknownKeys     = 20
	endTime            = 5 * time.Second // for what a setup command left running
)

// foreign are files in which others describe an environment.
var foreign = []string{
	".devcontainer/devcontainer.json", ".devcontainer.json", ".cursor/environment.json",
	".github/workflows/copilot-setup-steps.yml", ".github/workflows/copilot-setup-steps.yaml",
	".gitpod.yml", ".idx/dev.nix",
}

// Setup clones and runs the setup commands. Each event is given to emit; the
// last one, which is returned instead, has Done set and says how it went.
func (t *Tree) Setup(ctx context.Context, req driverapi.SetupRequest, emit func(driverapi.SetupEvent)) driverapi.SetupEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.load()
	if err == nil && !s.Done {
		timeout := req.Timeout
		if timeout <= 0 {
			timeout = defaultTimeout
		}
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the setup took longer than %v", timeout))
		defer cancel()
		if f := t.setup(ctx, s, req, emit); f != nil {
			return driverapi.SetupEvent{Phase: phaseSetup, Done: true, Failure: f}
		}
	}
	if err != nil {
		return driverapi.SetupEvent{Phase: phaseSetup, Done: true, Failure: failf(fault.SetupFailed, "", "%v", err)}
	}
	head, _ := openRefs(t.Work).head()
	return driverapi.SetupEvent{Phase: phaseSetup, Done: true, Head: head, NotUsed: t.notUsed()}
}

func (t *Tree) setup(ctx context.Context, s *state, req driverapi.SetupRequest, emit func(driverapi.SetupEvent)) *driverapi.Failure {
	if err := os.MkdirAll(t.State, 0o700); err != nil {
		return failf(fault.SetupFailed, "", "The driver's folder could not be made: %v", err)
	}
	if !s.Cloned {
		if err := t.writeGitConfig(req); err != nil {
			return failf(fault.SetupFailed, "", "Git could not be configured: %v", err)
		}
		cloned, f := t.clone(ctx, req.Repo, emit)
		if f != nil {
			return f
		}
		if err := t.save(cloned); err != nil {
			return failf(fault.SetupFailed, "", "%v", err)
		}
	}
	commands, err := t.environment(emit)
	if err != nil {
		return failf(fault.SetupFailed, "", "%s cannot be used: %v.", environmentFile, err)
	}
	lines := &lineWriter{left: maxSetupLines, emit: func(line string) { emit(driverapi.SetupEvent{Phase: phaseSetup, Line: line}) }}
	for _, c := range append(append([]string{}, req.Commands...), commands...) {
		if f := t.command(ctx, c, lines); f != nil {
			return f
		}
	}
	done := *t.state
	done.Done = true
	if err := t.save(&done); err != nil {
		return failf(fault.SetupFailed, "", "%v", err)
	}
	return nil
}

// writeGitConfig makes the global configuration for everybody in the sandbox.
func (t *Tree) writeGitConfig(req driverapi.SetupRequest) error {
	var b strings.Builder
	section := func(name, sub string, kv ...string) {
		if sub == "" {
			fmt.Fprintf(&b, "[%s]\n", name)
		} else {
			fmt.Fprintf(&b, "[%s \"%s\"]\n", name, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(sub))
		}
		for i := 0; i+1 < len(kv); i += 2 {
			v := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(kv[i+1])
			fmt.Fprintf(&b, "\t%s = \"%s\"\n", kv[i], v)
		}
	}
	section("user", "", "name", req.Git.Name, "email", req.Git.Email)
	section("safe", "", "directory", "*")
	section("gc", "", "auto", "0")
	section("maintenance", "", "auto", "false")
	section("advice", "", "detachedHead", "false")
	section("init", "", "defaultBranch", "main")
	section("push", "", "autoSetupRemote", "true")
	if r := req.Repo; r != nil && r.DoorURL != "" {
		kv := []string{}
		for _, u := range append([]string{r.URL}, r.Rewrite...) {
			if u != "" && u != r.DoorURL {
				kv = append(kv, "insteadOf", u)
			}
		}
		if len(kv) > 0 {
			section("url", r.DoorURL, kv...)
		}
	}
	if err := os.MkdirAll(t.Home, 0o755); err != nil {
		return err
	}
	return replaceFile(filepath.Join(t.Home, ".gitconfig"), []byte(b.String()), 0o644)
}

func (t *Tree) userEnv(extra ...string) []string {
	const proxy = "http://" + driverapi.ListenEgress
	set := append([]string{
		"HOME=" + t.Home,
		"HTTP_PROXY=" + proxy, "HTTPS_PROXY=" + proxy, "http_proxy=" + proxy, "https_proxy=" + proxy,
		"NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1",
	}, extra...)
	return MergeEnv(t.Env, set)
}

// MergeEnv returns base with set put in, later values winning.
func MergeEnv(base, set []string) []string {
	out := make([]string, 0, len(base)+len(set))
	at := map[string]int{}
	for _, e := range append(append([]string{}, base...), set...) {
		k, _, _ := strings.Cut(e, "=")
		if i, ok := at[k]; ok {
			out[i] = e
			continue
		}
		at[k] = len(out)
		out = append(out, e)
	}
	return out
}

func (t *Tree) clone(ctx context.Context, r *driverapi.Repo, emit func(driverapi.SetupEvent)) (*state, *driverapi.Failure) {
	s := &state{Cloned: true, Branch: "main", Format: "sha1"}
	if r != nil {
		s.Branch, s.URL = r.Branch, r.URL
		if r.Format != "" {
			s.Format = r.Format
		}
	}
	if err := emptyFolder(t.Work); err != nil {
		return nil, failf(fault.SetupFailed, "", "The work tree could not be made: %v", err)
	}
	env := t.userEnv("GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1", "GIT_LFS_SKIP_SMUDGE=1", "LC_ALL=C")
	run := func(args ...string) *driverapi.Failure {
		res, err := t.git(ctx, env, nil, args...)
		if err == nil {
			err = res.err(args)
		}
		if err != nil {
			return failf(fault.SetupFailed, lastWords(res.stderr), "The repository could not be made: %v", err)
		}
		return nil
	}
	// No templates: sample hooks are of no use. The folders are there for tools that expect them.
	if f := run("init", "-q", "--template=", "--object-format="+s.Format, "--initial-branch="+s.Branch, t.Work); f != nil {
		return nil, f
	}
	for _, d := range []string{"hooks", "info"} {
		if err := os.MkdirAll(filepath.Join(t.Work, ".git", d), 0o755); err != nil {
			return nil, failf(fault.SetupFailed, "", "The repository could not be made: %v", err)
		}
	}
	if r == nil {
		return s, nil
	}
	if f := run("remote", "add", "origin", r.URL); f != nil {
		return nil, f
	}
	// Only what the work starts from: other branches may be large, and are fetched when somebody asks for them.
	heads := "+refs/heads/*:refs/remotes/origin/*"
	if r.Base != "" {
		heads = "+refs/heads/" + r.Base + ":refs/remotes/origin/" + r.Base
	}
	if !r.WorkOnly {
		if f := t.fetch(ctx, env, emit, "origin", heads); f != nil {
			return nil, f
		}
	}
	if r.BaseOID == "" {
		return s, nil
	}
	if res, err := t.git(ctx, env, nil, "cat-file", "-e", r.BaseOID+"^{commit}"); err != nil || !res.exit.OK() {
		// Work that was not delivered, or the branch has moved since: the commit may be had by itself.
		from := "origin"
		if r.WorkURL != "" {
			from = r.WorkURL
		}
		if f := t.fetch(ctx, env, emit, from, r.BaseOID); f != nil {
			return nil, f
		}
	}
	known := !r.WorkOnly && r.Base != ""
	if r.WorkOnly && r.Base != "" && r.BaseHead != "" {
		// It may not be below what was fetched: a named branch has its own history.
		if res, err := t.git(ctx, env, nil, "cat-file", "-e", r.BaseHead+"^{commit}"); err == nil && res.exit.OK() {
			if f := run("update-ref", "refs/remotes/origin/"+r.Base, r.BaseHead); f != nil {
				return nil, f
			}
			known = true
		}
	}
	if known {
		if f := run("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/"+r.Base); f != nil {
			return nil, f
		}
	}
	emit(driverapi.SetupEvent{Phase: phaseClone, Line: "Checking out " + r.Branch})
	if f := run("checkout", "-q", "--no-track", "-B", r.Branch, r.BaseOID); f != nil {
		return nil, f
	}
	if _, err := os.Lstat(filepath.Join(t.Work, ".gitmodules")); err == nil {
		emit(driverapi.SetupEvent{Phase: phaseClone, Line: "The repository has submodules; they were not fetched."})
	}
	return s, nil
}

func (t *Tree) fetch(ctx context.Context, env []string, emit func(driverapi.SetupEvent), from, refspec string) *driverapi.Failure {
	for try := 1; ; try++ {
		words := &tail{max: outputKept}
		lines := &lineWriter{left: maxSetupLines, emit: func(line string) { emit(driverapi.SetupEvent{Phase: phaseClone, Line: line}) }}
		exit, err := t.Procs.Run(ctx, proc.Command{
			Spec: proc.Spec{
				Args: []string{"git", "fetch", "--progress", "--no-write-fetch-head", "--no-recurse-submodules", from, refspec},
				Env:  env, Dir: t.Work, Helper: true,
			},
			Err: io.MultiWriter(words, lines),
		})
		lines.flush()
		if err == nil && exit.OK() {
			return nil
		}
		if ctx.Err() != nil || try == cloneTries {
			if err == nil {
				err = errors.New(exit.String())
			}
			return failf(fault.RepositoryUnreachable, words.String(), "The repository could not be fetched: git fetch: %v.", err)
		}
		emit(driverapi.SetupEvent{Phase: phaseClone, Line: "The fetch failed; trying again."})
		select {
		case <-time.After(time.Duration(try) * 300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// emptyFolder makes the folder and removes what is in it.
func emptyFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// environment reads the commands of the repository's environment file.
func (t *Tree) environment(emit func(driverapi.SetupEvent)) ([]string, error) {
	root, err := os.OpenRoot(t.Work)
	if err != nil {
		return nil, fmt.Errorf("open the work tree: %w", err)
	}
	defer root.Close()
	st, err := root.Stat(environmentFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxEnvironmentFile {
		return nil, fmt.Errorf("it is not a file of at most %d bytes", maxEnvironmentFile)
	}
	b, err := root.ReadFile(environmentFile)
	if err != nil {
		return nil, err
	}
	commands, unknown, err := parseEnvironment(b)
	for _, k := range unknown[:min(len(unknown), maxUnknownKeys)] {
		emit(driverapi.SetupEvent{Phase: phaseSetup, Warning: true, Line: fmt.Sprintf("%s: the key %q is not known and was not used.", environmentFile, clip(k, 100))})
	}
	return commands, err
}

// parseEnvironment takes the setup commands: a string or a list of strings.
func parseEnvironment(b []byte) (commands, unknown []string, err error) {
	var doc yaml.Node // not a map: the decoder compares each key with each
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, nil, fmt.Errorf("it is not a mapping in YAML: %w", err)
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil, nil, nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, nil, errors.New("it is not a mapping in YAML")
	}
	var n *yaml.Node
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch k := root.Content[i]; {
		case k.Value != "setup":
			unknown = append(unknown, k.Value)
		case n != nil:
			return nil, nil, fmt.Errorf("line %d: setup is already defined", k.Line)
		default:
			n = root.Content[i+1]
		}
	}
	slices.Sort(unknown)
	if n == nil {
		return nil, unknown, nil
	}
	text := func(n *yaml.Node) error {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			return fmt.Errorf("line %d: setup is a string or a list of strings", n.Line)
		}
		if strings.TrimSpace(n.Value) != "" {
			commands = append(commands, n.Value)
		}
		return nil
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, e := range n.Content {
			if err := text(e); err != nil {
				return nil, unknown, err
			}
		}
	default:
		if n.Tag == "!!null" {
			return nil, unknown, nil
		}
		if err := text(n); err != nil {
			return nil, unknown, err
		}
	}
	return commands, unknown, nil
}

// command runs one setup command by the shell. When it has ended, however it has,
// everything that it started is ended too: nothing of the setup lives on beside the agent,
// which may be starting meanwhile.
func (t *Tree) command(ctx context.Context, command string, lines *lineWriter) *driverapi.Failure {
	shell := "sh"
	env := t.userEnv()
	for _, d := range filepath.SplitList(t.lookup("PATH", "/usr/bin:/bin")) {
		if _, err := os.Stat(filepath.Join(d, "bash")); err == nil {
			shell = "bash"
			break
		}
	}
	mark, err := t.Procs.Mark()
	if err != nil {
		return failf(fault.SetupFailed, "", "%v", err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(command), "\n")
	first = clip(first, 200)
	lines.say("$ " + first)
	words := &tail{max: outputKept}
	both := io.MultiWriter(words, lines)
	r, w := io.Pipe() // one writer for both streams
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(both, r)
	}()
	var left error
	exit, err := t.Procs.Run(ctx, proc.Command{
		Spec: proc.Spec{Args: []string{shell, "-e", "-c", command}, Env: env, Dir: t.Work},
		Out:  w, Err: w,
		Ended: func() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
			defer cancel()
			left = t.Procs.EndOthersSince(end, mark)
		},
	})
	_ = w.Close() // ends the copy; it never fails
	<-copied
	lines.flush()
	if ctx.Err() != nil {
		return failf(fault.SetupFailed, words.String(), "The setup command %q was ended: %v.", first, context.Cause(ctx))
	}
	if err != nil {
		return failf(fault.SetupFailed, words.String(), "The setup command %q could not be run: %v.", first, err)
	}
	if !exit.OK() {
		return failf(fault.SetupFailed, words.String(), "The setup command %q failed: %s.", first, exit)
	}
	if left != nil {
		return failf(fault.SetupFailed, words.String(), "What the setup command %q left running could not be ended: %v.", first, left)
	}
	return nil
}

func (t *Tree) notUsed() []string {
	var out []string
	root, err := os.OpenRoot(t.Work)
	if err != nil {
		return nil
	}
	defer root.Close()
	for _, f := range foreign {
		if _, err := root.Lstat(f); err == nil {
			out = append(out, f)
		}
	}
	return out
}

func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// lineWriter gives lines on, bounded in length and number. A carriage return
// ends a line too: of those that would be overwritten on a terminal few are told.
type lineWriter struct {
	emit    func(string)
	left    int
	dropped int
	buf     []byte
	over    bool
}

func (l *lineWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		i := bytes.IndexAny(rest, "\r\n")
		chunk := rest
		if i >= 0 {
			chunk = rest[:i]
		}
		if room := maxSetupLine - len(l.buf); room > 0 {
			l.buf = append(l.buf, chunk[:min(room, len(chunk))]...)
		}
		if i < 0 {
			break
		}
		if rest[i] == '\n' || !bytes.Contains(l.buf, []byte("%")) || bytes.Contains(l.buf, []byte("00%")) || bytes.Contains(l.buf, []byte("50%")) {
			l.line()
		}
		l.buf = l.buf[:0]
		rest = rest[i+1:]
	}
	return len(p), nil
}

func (l *lineWriter) line() {
	if len(bytes.TrimSpace(l.buf)) > 0 {
		l.say(strings.ToValidUTF8(string(l.buf), "\uFFFD"))
	}
}

func (l *lineWriter) say(line string) {
	if l.left <= 0 {
		if !l.over {
			l.over = true
			l.emit("… more output was left out.")
		}
		l.dropped++
		return
	}
	l.left--
	l.emit(line)
}

func (l *lineWriter) flush() {
	l.line()
	l.buf = l.buf[:0]
}
