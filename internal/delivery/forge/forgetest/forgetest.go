// Package forgetest is the suite that every kind of git host passes, together
// with the delivery store that works on it: what is read, what may be written,
// what is published, and what happens when the host or another person gets in
// the way. Start with [Run].
package forgetest

import (
	"bytes"
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

// Options say which repository a test wants.
type Options struct {
	Files  map[string]string // of the first commit; none: an empty repository
	Branch string            // default branch; empty: main
	SHA256 bool
}

// Subject is a fresh repository on the host under test.
type Subject struct {
	Forge  forge.Forge
	Remote forge.Remote
	Dir    string // the bare repository as it lies on the host's disk
	// Writer may read and write, Reader only read, Stranger is not known.
	Writer, Reader, Stranger forge.Credential
	// Break puts a fault on the requests that follow.
	Break func(gitserver.Fault)
}

// Factory makes a Subject. It skips the test when the host cannot have such a repository.
type Factory func(t *testing.T, o Options) Subject

// Run runs the suite.
func Run(t *testing.T, make Factory) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Factory)
	}{
		{"check", testCheck}, {"check refusals", testCheckRefusals}, {"read one branch", testReadOne},
		{"fresh branch", testFreshBranch}, {"continue a branch", testContinue}, {"empty repository", testEmpty},
		{"odd files", testOddFiles}, {"no changes", testNoChanges}, {"branch moved", testMoved},
		{"branch rewritten", testRewritten}, {"hook refusal", testHook}, {"host down", testDown},
		{"lost answer", testLostAnswer}, {"reader cannot publish", testReader}, {"publish at once", testConcurrent},
		{"many refs", testManyRefs},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, make)
		})
	}
}

// Git is a git binary as the server uses it.
func Git(t testing.TB) *gitcmd.Git {
	t.Helper()
	g, err := gitcmd.New(gitcmd.Config{AllowFile: true})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Store is a delivery store on a forge.
func Store(t testing.TB, f forge.Forge) *delivery.Store {
	t.Helper()
	s, err := delivery.Open(delivery.Config{Dir: t.TempDir(), Git: Git(t), Read: f.Read})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Work is a person's or an agent's clone of a repository.
type Work struct {
	Dir string
	t   testing.TB
}

// Clone clones the repository at dir on this machine.
func Clone(t testing.TB, dir string) *Work {
	t.Helper()
	w := &Work{Dir: filepath.Join(t.TempDir(), "work"), t: t}
	run(t, "", "", "clone", "--quiet", dir, w.Dir)
	return w
}

// Git runs git in the clone and returns what it prints, without the last line end.
func (w *Work) Git(args ...string) string {
	w.t.Helper()
	return strings.TrimSuffix(string(run(w.t, w.Dir, "", args...)), "\n")
}

// Write puts a file there; "#!" makes it executable.
func (w *Work) Write(name, content string) {
	w.t.Helper()
	mode := os.FileMode(0o644)
	if strings.HasPrefix(content, "#!") {
		mode = 0o755
	}
	p := filepath.Join(w.Dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), mode); err != nil {
		w.t.Fatal(err)
	}
}

// Commit commits everything and returns the commit.
func (w *Work) Commit(message string) string {
	w.t.Helper()
	w.Git("add", "-A")
	w.Git("commit", "--quiet", "--allow-empty", "-m", message)
	return w.Git("rev-parse", "HEAD")
}

// Pack is a pack of head without what the others have.
func (w *Work) Pack(head string, without ...string) *bytes.Reader {
	w.t.Helper()
	in := head + "\n"
	for _, id := range without {
		if id != "" {
			in += "^" + id + "\n"
		}
	}
	return bytes.NewReader(run(w.t, w.Dir, in, "pack-objects", "--revs", "--stdout", "--quiet", "--thin", "--delta-base-offset"))
}

// Refs are the refs of a repository on disk.
func Refs(t testing.TB, dir string) map[string]string {
	t.Helper()
	refs := map[string]string{}
	for line := range strings.Lines(string(run(t, dir, "", "for-each-ref", "--format=%(objectname) %(refname)"))) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		refs[name] = id
	}
	return refs
}

// Branches are the names of a repository's branches, in order.
func Branches(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	for _, r := range slices.Sorted(maps.Keys(Refs(t, dir))) {
		if b, ok := strings.CutPrefix(r, "refs/heads/"); ok {
			out = append(out, b)
		}
	}
	return out
}

// Env is a clean environment for a person's git.
func Env() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TERMINAL_PROMPT=0", "GIT_AUTHOR_NAME=A Person", "GIT_AUTHOR_EMAIL=person@hearth.test",
		"GIT_COMMITTER_NAME=A Person", "GIT_COMMITTER_EMAIL=person@hearth.test",
		"GIT_CONFIG_COUNT=4", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_CONFIG_KEY_1=init.defaultBranch", "GIT_CONFIG_VALUE_1=main",
		"GIT_CONFIG_KEY_2=core.autocrlf", "GIT_CONFIG_VALUE_2=false",
		"GIT_CONFIG_KEY_3=gc.auto", "GIT_CONFIG_VALUE_3=0",
	}
}

func run(t testing.TB, dir, stdin string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = Env()
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}

// session is one session on a subject.
type session struct {
	Subject
	t     *testing.T
	ctx   context.Context
	store *delivery.Store
	id    string
	base  delivery.Base
	name  string // branch
}

const scope = "workspace"

func begin(t *testing.T, s Subject, base, branch string) *session {
	t.Helper()
	return beginIn(t, s, Store(t, s.Forge), "session-1", base, branch)
}

func beginIn(t *testing.T, s Subject, store *delivery.Store, id, base, branch string) *session {
	t.Helper()
	x := &session{Subject: s, t: t, ctx: t.Context(), store: store, id: id, name: branch}
	var err error
	x.base, err = store.Prepare(x.ctx, delivery.PrepareRequest{
		Session: id, Scope: scope, Remote: s.Remote, Credential: s.Writer, Base: base, Branch: branch,
	})
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	return x
}

// take hands over a commit of a clone.
func (x *session) take(w *Work, turn, head string) delivery.Taken {
	x.t.Helper()
	have, err := x.store.Have(x.ctx, x.id)
	if err != nil {
		x.t.Fatal(err)
	}
	for i := range have { // the clone may lack what others pushed
		if exec.CommandContext(x.ctx, "git", "-C", w.Dir, "cat-file", "-e", have[i]).Run() != nil {
			have[i] = ""
		}
	}
	got, err := x.store.Take(x.ctx, delivery.TakeRequest{
		Session: x.id, Turn: turn, Head: head, Base: x.base.OID, Pack: w.Pack(head, have...),
	})
	if err != nil {
		x.t.Fatalf("take: %v", err)
	}
	return got
}

func (x *session) request(candidate, known string) delivery.PublishRequest {
	return delivery.PublishRequest{
		Session: x.id, Remote: x.Remote, Credential: x.Writer, Branch: x.name,
		Candidate: candidate, Base: x.base.OID, Known: known,
	}
}

func (x *session) publish(candidate, known string) delivery.Published {
	x.t.Helper()
	got, err := x.store.Publish(x.ctx, x.request(candidate, known))
	if err != nil {
		x.t.Fatalf("publish: %v", err)
	}
	return got
}
