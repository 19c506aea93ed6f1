package forgetest

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

var calc = map[string]string{"README.md": "Calc\n", "src/calc.go": "package calc\n", "run.sh": "#!/bin/sh\necho hi\n"}

func wantCode(t *testing.T, err error, code fault.Code, words ...string) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Fatalf("error is %v, want code %s", err, code)
	}
	for _, w := range words {
		if !strings.Contains(fault.From(err).Sentence(), w) {
			t.Errorf("sentence %q does not say %q", fault.From(err).Sentence(), w)
		}
	}
}

func testCheck(t *testing.T, factory Factory) {
	for _, branch := range []string{"main", "trunk"} {
		s := factory(t, Options{Files: calc, Branch: branch})
		got, err := s.Forge.Check(t.Context(), s.Remote, s.Writer)
		if err != nil {
			t.Fatal(err)
		}
		want := forge.Repository{DefaultBranch: branch, Format: "sha1", Heads: map[string]string{branch: Refs(t, s.Dir)["refs/heads/"+branch]}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("check (-want +got):\n%s", diff)
		}
	}
	s := factory(t, Options{})
	got, err := s.Forge.Check(t.Context(), s.Remote, s.Writer)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Empty || len(got.Heads) != 0 || got.DefaultBranch != "main" {
		t.Errorf("empty repository is seen as %+v", got)
	}
}

func testCheckRefusals(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	gone := s.Remote
	gone.URL = strings.TrimSuffix(gone.URL, ".git") + "-gone.git"
	tests := []struct {
		name   string
		remote forge.Remote
		login  forge.Credential
		code   fault.Code
		words  []string
	}{
		{"reader", s.Remote, s.Reader, fault.RepositoryNotWritable, []string{"can be read", "403"}},
		{"stranger", s.Remote, s.Stranger, fault.RepositoryUnreachable, []string{"does not accept", "401"}},
		{"nobody", s.Remote, forge.Credential{}, fault.RepositoryUnreachable, []string{"asks for a login", "401"}},
		{"not there", gone, s.Writer, fault.RepositoryUnreachable, []string{"not found", "404"}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.Forge.Check(t.Context(), c.remote, c.login)
			wantCode(t, err, c.code, c.words...)
			for _, secret := range []string{s.Writer.Password, s.Reader.Password, s.Stranger.Password} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error tells a password: %v", err)
				}
			}
		})
	}
}

func testReadOne(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	w := Clone(t, s.Dir)
	for _, b := range []string{"a", "a-b"} {
		w.Git("push", "--quiet", "origin", "HEAD:refs/heads/"+b)
	}
	got, err := s.Forge.Read(t.Context(), s.Remote, s.Writer, "a", "absent")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a": w.Git("rev-parse", "HEAD")}, got.Heads); diff != "" {
		t.Errorf("heads (-want +got):\n%s", diff)
	}
}

func testFreshBranch(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	x := begin(t, s, "", "hearth/add-sum-1")
	main := Refs(t, s.Dir)["refs/heads/main"]
	if diff := cmp.Diff(delivery.Base{Branch: "main", OID: main, Format: "sha1"}, x.base); diff != "" {
		t.Errorf("base (-want +got):\n%s", diff)
	}
	w := Clone(t, s.Dir)
	w.Write("sum.go", "package calc\n\nfunc Sum() {}\n")
	first := w.Commit("sum")
	got := x.take(w, "t1", first)
	if got.Files != 1 || got.Insertions != 3 || got.Commits != 1 || !got.Changed || !strings.Contains(got.Stat, "sum.go") {
		t.Errorf("taken: %+v", got)
	}
	if p := x.publish(first, ""); p.Outcome != delivery.OutcomePushed || p.OID != first {
		t.Errorf("first publication: %+v", p)
	}
	if p := x.publish(first, ""); p.Outcome != delivery.OutcomeAlready || p.OID != first {
		t.Errorf("the same again: %+v", p)
	}
	w.Write("sum.go", "package calc\n")
	second := w.Commit("less")
	x.take(w, "t2", second)
	if p := x.publish(second, first); p.Outcome != delivery.OutcomePushed {
		t.Errorf("second publication: %+v", p)
	}
	want := map[string]string{"refs/heads/main": main, "refs/heads/hearth/add-sum-1": second}
	if diff := cmp.Diff(want, Refs(t, s.Dir)); diff != "" {
		t.Errorf("refs on the host (-want +got):\n%s", diff)
	}
}

func testContinue(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	person := Clone(t, s.Dir)
	person.Git("checkout", "--quiet", "-b", "feature")
	person.Write("feature.txt", "begun\n")
	theirs := person.Commit("begin feature")
	person.Git("push", "--quiet", "origin", "feature")

	x := begin(t, s, "main", "feature")
	if x.base.BranchOID != theirs || x.base.OID != theirs || x.base.Branch != "main" {
		t.Fatalf("base: %+v, want to go on from %s", x.base, theirs)
	}
	w := Clone(t, s.Dir)
	w.Git("checkout", "--quiet", "feature")
	w.Write("feature.txt", "begun\ndone\n")
	ours := w.Commit("go on")
	x.take(w, "t1", ours)
	x.publish(ours, x.base.BranchOID)
	if got := Refs(t, s.Dir)["refs/heads/feature"]; got != ours {
		t.Errorf("feature is at %s, want %s", got, ours)
	}
}

func testEmpty(t *testing.T, factory Factory) {
	for _, sha256 := range []bool{false, true} {
		t.Run(fmt.Sprintf("sha256=%v", sha256), func(t *testing.T) {
			s := factory(t, Options{SHA256: sha256})
			x := begin(t, s, "", "hearth/first")
			format := "sha1"
			if sha256 {
				format = "sha256"
			}
			if !x.base.Empty || x.base.Format != format || x.base.OID != "" {
				t.Fatalf("base: %+v", x.base)
			}
			if p := x.publish("", ""); p.Outcome != delivery.OutcomeNoChanges {
				t.Errorf("nothing to publish: %+v", p)
			}
			w := &Work{Dir: t.TempDir(), t: t}
			w.Git("init", "--quiet", "--object-format="+format)
			w.Write("a.txt", "a\n")
			head := w.Commit("first")
			x.take(w, "t1", head)
			x.publish(head, "")
			if diff := cmp.Diff(map[string]string{"refs/heads/hearth/first": head}, Refs(t, s.Dir)); diff != "" {
				t.Errorf("refs on the host (-want +got):\n%s", diff)
			}
		})
	}
}

func testOddFiles(t *testing.T, factory Factory) {
	for _, sha256 := range []bool{false, true} {
		t.Run(fmt.Sprintf("sha256=%v", sha256), func(t *testing.T) {
			s := factory(t, Options{SHA256: sha256, Files: map[string]string{
				"old name.txt": strings.Repeat("same text\n", 20), "crlf.txt": "one\r\ntwo\r\n", "gone": "x\n", "script": "echo\n",
			}})
			x := begin(t, s, "", "hearth/odd")
			w := Clone(t, s.Dir)
			w.Write("new/x", "unlike all others\n")
			w.Git("mv", "old name.txt", "new/näme \"q\".txt")
			w.Write("crlf.txt", "one\r\nTWO\r\n")
			w.Git("rm", "--quiet", "gone")
			w.Write("tab\tnew\nline\\ -x 🎉", "odd\n")
			w.Write("-dash", "d\n")
			w.Write("bad\xff\xfe", "bytes\n")
			w.Write(strings.Repeat("n", 255), "long\n")
			w.Write("bin", "a\x00b\n")
			if err := os.Chmod(filepath.Join(w.Dir, "script"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("crlf.txt", filepath.Join(w.Dir, "link")); err != nil {
				t.Fatal(err)
			}
			head := w.Commit("odd")
			x.take(w, "t1", head)
			x.publish(head, "")
			if Refs(t, s.Dir)["refs/heads/hearth/odd"] != head {
				t.Error("the host does not have the commit")
			}
			d, err := x.store.Diff(x.ctx, x.id, delivery.RefBase, delivery.RefHead)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]delivery.Change{}
			for _, c := range d.Changes {
				got[c.Path] = c
			}
			want := map[string]delivery.Change{}
			for _, c := range []delivery.Change{
				{Status: "renamed", Path: "new/näme \"q\".txt", OldPath: "old name.txt", OldMode: "100644", NewMode: "100644"},
				{Status: "added", Path: "new/x", NewMode: "100644", Insertions: 1},
				{Status: "modified", Path: "crlf.txt", OldMode: "100644", NewMode: "100644", Insertions: 1, Deletions: 1},
				{Status: "deleted", Path: "gone", OldMode: "100644", Deletions: 1},
				{Status: "added", Path: "tab\tnew\nline\\ -x 🎉", NewMode: "100644", Insertions: 1},
				{Status: "added", Path: "-dash", NewMode: "100644", Insertions: 1},
				{Status: "added", Path: "bad�", PathBytes: []byte("bad\xff\xfe"), NewMode: "100644", Insertions: 1},
				{Status: "added", Path: strings.Repeat("n", 255), NewMode: "100644", Insertions: 1},
				{Status: "added", Path: "bin", NewMode: "100644", Binary: true},
				{Status: "modified", Path: "script", OldMode: "100644", NewMode: "100755"},
				{Status: "added", Path: "link", NewMode: "120000", Insertions: 1},
			} {
				want[c.Path] = c
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			testPatchApplies(t, x, head)
		})
	}
}

// testPatchApplies: what is shown as the patch makes the same tree, but for binary files.
func testPatchApplies(t *testing.T, x *session, head string) {
	var patch bytes.Buffer
	if cut, err := x.store.Patch(x.ctx, x.id, delivery.RefBase, delivery.RefHead, &patch, 1<<20); err != nil || cut {
		t.Fatalf("patch: cut %v, error %v", cut, err)
	}
	w := Clone(t, x.Dir)
	file := filepath.Join(t.TempDir(), "p")
	if err := os.WriteFile(file, patch.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Git("apply", "--index", "--whitespace=nowarn", "--exclude=bin", file)
	w.Git("checkout", head, "--", "bin")
	if got, want := w.Git("write-tree"), w.Git("rev-parse", head+"^{tree}"); got != want {
		t.Errorf("patch makes tree %s, want %s\n%s", got, want, patch.String())
	}
}

func testNoChanges(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	x := begin(t, s, "", "hearth/nothing")
	if p := x.publish(x.base.OID, ""); p.Outcome != delivery.OutcomeNoChanges || p.OID != "" {
		t.Errorf("no edit: %+v", p)
	}
	w := Clone(t, s.Dir)
	w.Write("x", "x\n")
	w.Commit("edit")
	w.Git("rm", "--quiet", "x")
	head := w.Commit("revert")
	if got := x.take(w, "t1", head); got.Changed {
		t.Errorf("edited and reverted: %+v", got)
	}
	if p := x.publish(head, ""); p.Outcome != delivery.OutcomeNoChanges {
		t.Errorf("edited and reverted: %+v", p)
	}
	if diff := cmp.Diff([]string{"main"}, Branches(t, s.Dir)); diff != "" {
		t.Errorf("branches on the host (-want +got):\n%s", diff)
	}
}

func testMoved(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	x := begin(t, s, "", "hearth/moved")
	w := Clone(t, s.Dir)
	w.Write("a", "a\n")
	first := w.Commit("a")
	x.take(w, "t1", first)

	t.Run("a branch of that name appeared", func(t *testing.T) {
		w.Git("push", "--quiet", "origin", "origin/main:refs/heads/hearth/moved")
		_, err := x.store.Publish(x.ctx, x.request(first, ""))
		wantCode(t, err, fault.BranchMoved, "hearth/moved")
		w.Git("push", "--quiet", "origin", ":refs/heads/hearth/moved")
	})
	x.publish(first, "")

	person := Clone(t, s.Dir)
	person.Git("checkout", "--quiet", "hearth/moved")
	person.Write("theirs", "precious\n")
	theirs := person.Commit("theirs")
	person.Git("push", "--quiet", "origin", "hearth/moved")
	w.Write("b", "b\n")
	second := w.Commit("b")
	x.take(w, "t2", second)
	req := x.request(second, first)
	req.Force = true
	_, err := x.store.Publish(x.ctx, req)
	wantCode(t, err, fault.BranchMoved, "hearth/moved", theirs[:12])
	if got := Refs(t, s.Dir)["refs/heads/hearth/moved"]; got != theirs {
		t.Fatalf("the branch is at %s, the person left it at %s", got, theirs)
	}

	t.Run("merged, it goes through", func(t *testing.T) {
		w.Git("fetch", "--quiet", "origin")
		w.Git("merge", "--quiet", "-m", "merge", "origin/hearth/moved")
		merged := w.Git("rev-parse", "HEAD")
		x.take(w, "t3", merged)
		x.publish(merged, first) // the session need not have been told of theirs
		if got := Refs(t, s.Dir)["refs/heads/hearth/moved"]; got != merged {
			t.Errorf("the branch is at %s, want %s", got, merged)
		}
	})
	t.Run("removed by somebody", func(t *testing.T) {
		last := w.Git("rev-parse", "HEAD")
		person.Git("push", "--quiet", "origin", ":refs/heads/hearth/moved")
		w.Write("c", "c\n")
		third := w.Commit("c")
		x.take(w, "t4", third)
		_, err := x.store.Publish(x.ctx, x.request(third, last))
		wantCode(t, err, fault.BranchMoved, "removed")
	})
}

func testRewritten(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	person := Clone(t, s.Dir)
	person.Write("theirs", "precious\n")
	theirs := person.Commit("theirs")
	person.Git("push", "--quiet", "origin", "HEAD:refs/heads/shared")

	x := begin(t, s, "", "shared")
	w := Clone(t, s.Dir)
	w.Git("checkout", "--quiet", "shared")
	w.Write("a", "a\n")
	first := w.Commit("a")
	x.take(w, "t1", first)
	x.publish(first, theirs)
	w.Git("commit", "--quiet", "--amend", "-m", "a, better")
	second := w.Git("rev-parse", "HEAD")
	x.take(w, "t2", second)

	req := x.request(second, first)
	req.Floor = theirs
	_, err := x.store.Publish(x.ctx, req)
	wantCode(t, err, fault.BranchRewritten, "leaves out")
	req.Force = true
	if p, err := x.store.Publish(x.ctx, req); err != nil || p.Outcome != delivery.OutcomePushed {
		t.Fatalf("over our own commit: %+v, %v", p, err)
	}
	w.Git("reset", "--quiet", "--hard", "origin/main")
	w.Write("b", "b\n")
	third := w.Commit("without theirs")
	x.take(w, "t3", third)
	req = x.request(third, second)
	req.Floor, req.Force = theirs, true
	_, err = x.store.Publish(x.ctx, req)
	wantCode(t, err, fault.BranchRewritten)
	if got := Refs(t, s.Dir)["refs/heads/shared"]; got != second {
		t.Errorf("the branch is at %s, want %s", got, second)
	}
}

// Hook puts a hook into a repository on disk.
func Hook(t testing.TB, dir, name, script string) {
	t.Helper()
	p := filepath.Join(dir, "hooks")
	if err := os.MkdirAll(p, 0o755); err != nil {
		t.Fatal(err)
	}
	// A process forked while the file is open for writing would keep it busy for git.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(p, name), []byte("#!/bin/sh\ncat >/dev/null\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
}

func testHook(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	x := begin(t, s, "", "hearth/hook")
	Hook(t, s.Dir, "pre-receive", "echo 'No workflow changes here.'; printf 'bell \\007 red \\033[31mtext\\033[0m\\n'; exit 1\n")
	w := Clone(t, s.Dir)
	w.Write(".github/workflows/ci.yml", "on: push\n")
	head := w.Commit("ci")
	x.take(w, "t1", head)
	_, err := x.store.Publish(x.ctx, x.request(head, ""))
	wantCode(t, err, fault.PushRefused, "pre-receive hook declined", "No workflow changes here.")
	if s := fault.From(err).Sentence(); strings.ContainsAny(s, "\x07\x1b") {
		t.Errorf("control characters in %q", s)
	}
	var bundle bytes.Buffer
	if err := x.store.Bundle(x.ctx, x.id, &bundle); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "work.bundle")
	if err := os.WriteFile(file, bundle.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	other := Clone(t, s.Dir)
	other.Git("fetch", "--quiet", file, "hearth/hook:kept")
	if got := other.Git("rev-parse", "kept"); got != head {
		t.Errorf("the bundle brings %s, want %s", got, head)
	}
	Hook(t, s.Dir, "pre-receive", "echo 'Open a pull request at https://host.test/pr'\n")
	if p := x.publish(head, ""); p.Words != "Open a pull request at https://host.test/pr" {
		t.Errorf("words of the remote: %q", p.Words)
	}
}

func testDown(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	x := begin(t, s, "", "hearth/down")
	w := Clone(t, s.Dir)
	w.Write("a", "a\n")
	head := w.Commit("a")
	x.take(w, "t1", head)
	s.Break(gitserver.Fault{Service: gitserver.UploadPack, Refs: true, Times: 1, Status: http.StatusServiceUnavailable, RetryAfter: 7})
	_, err := x.store.Publish(x.ctx, x.request(head, ""))
	wantCode(t, err, fault.ForgeUnavailable, "503")
	if got := fault.From(err).Details["retryAfter"]; got != "7" {
		t.Errorf("retry after %v, want 7", got)
	}
	s.Break(gitserver.Fault{Service: gitserver.ReceivePack, Refs: true, Times: 1, Status: http.StatusBadGateway})
	_, err = x.store.Publish(x.ctx, x.request(head, ""))
	wantCode(t, err, fault.ForgeUnavailable, "502")
	s.Break(gitserver.Fault{Service: gitserver.ReceivePack, Times: 1, Status: http.StatusInternalServerError})
	_, err = x.store.Publish(x.ctx, x.request(head, ""))
	wantCode(t, err, fault.ForgeUnavailable)
	if !fault.Lookup(fault.CodeOf(err)).Retryable {
		t.Error("a host that is down is for trying again")
	}
	if p := x.publish(head, ""); p.Outcome != delivery.OutcomePushed {
		t.Errorf("afterwards: %+v", p)
	}
}

func testLostAnswer(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	x := begin(t, s, "", "hearth/lost")
	w := Clone(t, s.Dir)
	w.Write("a", "a\n")
	head := w.Commit("a")
	x.take(w, "t1", head)
	s.Break(gitserver.Fault{Service: gitserver.ReceivePack, Times: 1, DropAnswer: true})
	if p := x.publish(head, ""); p.Outcome != delivery.OutcomePushed || p.OID != head {
		t.Errorf("a push whose answer was lost: %+v", p)
	}
	w.Write("b", "b\n")
	second := w.Commit("b")
	x.take(w, "t2", second)
	s.Break(gitserver.Fault{Service: gitserver.ReceivePack, Times: 1, DropAnswer: true})
	s.Break(gitserver.Fault{Service: gitserver.UploadPack, Refs: true, Status: http.StatusServiceUnavailable, Times: 1})
	_, err := x.store.Publish(x.ctx, x.request(second, head))
	wantCode(t, err, fault.ForgeUnavailable)
	// The first read met the fault: nothing was sent. Now the answer is lost.
	x.publish(second, head)
	if got := Refs(t, s.Dir)["refs/heads/hearth/lost"]; got != second {
		t.Errorf("the branch is at %s, want %s", got, second)
	}
}

func testReader(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	x := begin(t, s, "", "hearth/reader")
	w := Clone(t, s.Dir)
	w.Write("a", "a\n")
	head := w.Commit("a")
	x.take(w, "t1", head)
	req := x.request(head, "")
	req.Credential = s.Reader
	_, err := x.store.Publish(x.ctx, req)
	wantCode(t, err, fault.RepositoryNotWritable, "may not write")
	if strings.Contains(err.Error(), s.Reader.Password) {
		t.Errorf("the error tells the password: %v", err)
	}
}

func testConcurrent(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	store := Store(t, s.Forge)
	const n = 4
	heads := make([]string, n)
	sessions := make([]*session, n)
	for i := range n { // all on one branch, each with another commit
		sessions[i] = beginIn(t, s, store, fmt.Sprintf("s%d", i), "", "hearth/race")
		w := Clone(t, s.Dir)
		w.Write("a", fmt.Sprintf("%d\n", i))
		heads[i] = w.Commit("a")
		sessions[i].take(w, "t1", heads[i])
	}
	errs := make([]error, 2*n)
	var wg sync.WaitGroup
	for i := range 2 * n { // each twice
		wg.Go(func() {
			x := sessions[i%n]
			_, errs[i] = store.Publish(x.ctx, x.request(heads[i%n], ""))
		})
	}
	wg.Wait()
	winner := Refs(t, s.Dir)["refs/heads/hearth/race"]
	for i, err := range errs {
		switch {
		case heads[i%n] == winner:
			if err != nil {
				t.Errorf("the winner was told %v", err)
			}
		case fault.CodeOf(err) != fault.BranchMoved:
			t.Errorf("a loser was told %v, want BRANCH_MOVED", err)
		}
	}
}

func testManyRefs(t *testing.T, factory Factory) {
	s := factory(t, Options{Files: calc})
	const n = 50_000
	main := Refs(t, s.Dir)["refs/heads/main"]
	packed := []byte("# pack-refs with: peeled fully-peeled sorted \n")
	for i := range n {
		packed = fmt.Appendf(packed, "%s refs/heads/many/%05d\n", main, i)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "packed-refs"), packed, 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := s.Forge.Check(t.Context(), s.Remote, s.Writer)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Heads) != n+1 {
		t.Errorf("%d heads, want %d", len(got.Heads), n+1)
	}
	x := begin(t, s, "", "hearth/many")
	w := &Work{Dir: t.TempDir(), t: t}
	w.Git("clone", "--quiet", "--single-branch", s.Dir, ".")
	w.Write("a", "a\n")
	head := w.Commit("a")
	x.take(w, "t1", head)
	x.publish(head, "")
}
