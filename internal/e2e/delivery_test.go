package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

// waitDelivery waits until the last turn's delivery is in a state.
func (w *world) waitDelivery(id, state string) client.Delivery {
	w.t.Helper()
	var out client.Delivery
	w.until(deadline, "delivery "+state, func() (bool, string) {
		s := w.get(id)
		if s.LastTurn == nil || s.LastTurn.Delivery == nil {
			return false, s.Phase
		}
		out = *s.LastTurn.Delivery
		return out.State == state, fmt.Sprintf("%+v", out)
	})
	return out
}

func heads(t *testing.T, r *gitserver.Repo) map[string]string {
	t.Helper()
	refs, err := r.Refs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return refs
}

// Somebody else commits to the branch while the agent works: nothing of theirs is lost.
func TestBranchMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	for _, existing := range []bool{false, true} {
		branch := fmt.Sprintf("work-%t", existing)
		if existing {
			if _, err := r.Commit(t.Context(), branch, "Before", map[string]string{"before.txt": "before"}); err != nil {
				t.Fatal(err)
			}
		}
		s := w.create(client.CreateInput{Repo: url, Branch: branch, Prompt: "@@run ls@@ @@write mine.txt mine@@ @@slow 10 100@@"})
		id := s.Session.ID
		w.inState(id, s.Turn.ID, deadline, "running")
		theirs, err := r.Commit(t.Context(), branch, "Theirs", map[string]string{"theirs.txt": "theirs"})
		if err != nil {
			t.Fatal(err)
		}
		one := w.ended(id, s.Turn.ID, deadline)
		w.wantTurn(one, "completed", "")
		if one.Delivery.State != "failed" || one.Delivery.Code != "BRANCH_MOVED" || one.Delivery.Remedy == "" {
			t.Errorf("existing %t: delivery %+v", existing, one.Delivery)
		}
		if head, err := r.Head(t.Context(), branch); err != nil || head != theirs {
			t.Errorf("existing %t: the branch is at %s (%v), theirs is %s", existing, head, err, theirs)
		}
		if s := w.get(id); !s.Undelivered {
			t.Error("the work is not kept")
		}
		if d, err := w.c.Diff(t.Context(), id, "", "names"); err != nil || !strings.Contains(d.Text, "mine.txt") || existing && strings.Contains(d.Text, "before.txt") {
			t.Errorf("diff %+v, %v", d, err)
		}
		if existing {
			if got := outputs(w.transcript(id), 1); !strings.Contains(got, "before.txt") {
				t.Errorf("the named branch is not continued: %s", got)
			}
		}
		if _, err := w.c.Delete(t.Context(), id, false); client.CodeOf(err) != "UNDELIVERED_WORK" {
			t.Errorf("delete without force: %v", err)
		}
		w.delete(id, true)
		if head, err := r.Head(t.Context(), branch); err != nil || head != theirs {
			t.Errorf("after delete the branch is at %s, %v", head, err)
		}
	}
}

// A push that a hook refuses keeps the hook's words; deliver tries again, discard lets go.
func TestDeliverAndDiscard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	if err := r.RefusePushes("Only on Tuesdays, says the hook."); err != nil {
		t.Fatal(err)
	}
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@"})
	id := s.Session.ID
	one := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(one, "completed", "")
	if one.Delivery.Code != "PUSH_REFUSED" || !strings.Contains(one.Delivery.Message, "Only on Tuesdays, says the hook.") {
		t.Errorf("delivery %+v", one.Delivery)
	}
	if _, err := w.c.Deliver(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.until(deadline, "the second try to be refused", func() (bool, string) {
		d := w.get(id).LastTurn.Delivery
		return d.State == "failed" && d.At.After(*one.Delivery.At), fmt.Sprintf("%+v", d)
	})
	if err := r.SetHook("pre-receive", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Deliver(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	d := w.waitDelivery(id, "pushed")
	if head, err := r.Head(t.Context(), d.Branch); err != nil || head != d.Commit || head != one.Commit {
		t.Errorf("the host has %s (%v), delivered %s, packed %s", head, err, d.Commit, one.Commit)
	}
	if _, err := w.c.Deliver(t.Context(), id); client.CodeOf(err) != "NOTHING_TO_DELIVER" {
		t.Errorf("deliver again: %v", err)
	}
	if _, err := w.c.Discard(t.Context(), id); client.CodeOf(err) != "NOTHING_TO_DISCARD" {
		t.Errorf("discard what is delivered: %v", err)
	}

	// Work of a failed turn is held; discarded, it is gone from the tree and the next delivery.
	two := w.ended(id, w.prompt(id, "@@write bad.txt bad@@ @@run mkdir -p deep; echo x > deep/new.txt; echo changed >> a.txt@@ @@error -32603 no@@").Turn.ID, deadline)
	w.wantTurn(two, "failed", "AGENT_FAILED")
	if two.Delivery.State != "held" {
		t.Errorf("delivery %+v, want held", two.Delivery)
	}
	if _, err := w.c.Discard(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.until(deadline, "the work to be discarded", func() (bool, string) { return !w.get(id).Undelivered, "still undelivered" })
	three := w.ended(id, w.prompt(id, "@@run git status --porcelain; ls; cat a.txt@@ @@write good.txt good@@").Turn.ID, deadline)
	w.wantTurn(three, "completed", "")
	w.wantPushed(r, three)
	out := outputs(w.transcript(id), 3)
	if strings.Contains(out, "bad.txt") || strings.Contains(out, "deep") || strings.Contains(out, "changed") || !strings.Contains(out, "one") {
		t.Errorf("the tree is not set back: %s", out)
	}
	if files, err := r.Git(t.Context(), "ls-tree", "-r", "--name-only", three.Commit); err != nil || strings.Contains(files, "bad") || !strings.Contains(files, "good.txt") {
		t.Errorf("delivered %s, %v", files, err)
	}
	w.delete(id, false)
}

// No change makes no commit and no branch.
func TestNoChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	before := heads(t, r)
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@say Nothing to do.@@ @@run touch README.md@@"})
	one := w.ended(s.Session.ID, s.Turn.ID, deadline)
	w.wantTurn(one, "completed", "")
	if one.Delivery.State != "no_changes" || one.Commit != "" {
		t.Errorf("delivery %+v, commit %q", one.Delivery, one.Commit)
	}
	if after := heads(t, r); len(after) != len(before) {
		t.Errorf("the host has %v", after)
	}
	w.delete(s.Session.ID, false)
}

// What trees can hold arrives as it was: names, modes, links, line ends, from an empty
// repository, in SHA-256, over the agent's own commits.
func TestTreesArriveWhole(t *testing.T) {
	t.Parallel()
	shared := newWorld(t, options{})
	const odd = `printf 'a\r\nb\r\n' > crlf.txt; printf 'x' > 'with space.txt'; printf 'q' > 'quote"\tab.txt'; printf 'u' > 'ünï.txt'; printf 'd' > ./-dash; ` +
		`printf '#!/bin/sh\n' > run.sh; chmod +x run.sh; ln -s run.sh link; ln -s /nowhere dangling; printf '\000\001\002' > binary; mkdir -p a/b/c; printf 'deep' > a/b/c/file; printf '' > empty`
	want := []string{
		"100644 crlf.txt", "100644 with space.txt", "100644 quote\"\\tab.txt", "100644 ünï.txt", "100644 -dash", "100755 run.sh", "120000 link", "120000 dangling",
		"100644 binary", "100644 a/b/c/file", "100644 empty",
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		opts  []gitserver.RepoOption
		run   string
	}{
		{"plain", map[string]string{"README.md": "read"}, nil, odd},
		{"empty repository", nil, nil, odd},
		{"sha256", map[string]string{"README.md": "read"}, []gitserver.RepoOption{gitserver.WithSHA256()}, odd},
		{"other default branch", map[string]string{"README.md": "read"}, []gitserver.RepoOption{gitserver.WithBranch("trunk")}, odd},
		{"own commits", map[string]string{"README.md": "read"}, nil, odd + `; git add -A; git commit -q -m mine; rm -f README.md; git commit -qam gone; echo late > late.txt`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := shared.in(t)
			r, err := w.git.NewRepo(t.Context(), "acme/"+strings.ReplaceAll(c.name, " ", "-"), c.files, c.opts...)
			if err != nil {
				t.Fatal(err)
			}
			s := w.create(client.CreateInput{Repo: w.gitURL + r.Path(), Prompt: "@@run " + c.run + "@@"})
			id := s.Session.ID
			one := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(one, "completed", "")
			w.wantPushed(r, one)
			raw, err := r.Git(t.Context(), "ls-tree", "-r", "-z", one.Commit)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for e := range strings.SplitSeq(raw, "\x00") {
				meta, name, _ := strings.Cut(e, "\t")
				mode, _, _ := strings.Cut(meta, " ")
				got[mode+" "+name] = true
			}
			for _, e := range want {
				if !got[e] {
					t.Errorf("%q is not there: %q", e, raw)
				}
			}
			if crlf := w.file(r, one.Commit, "crlf.txt"); crlf != "a\r\nb\r\n" {
				t.Errorf("crlf.txt is %q", crlf)
			}
			if c.name == "own commits" && (one.Commits != 3 || got["100644 README.md"] || !got["100644 late.txt"]) {
				t.Errorf("%d commits, tree %q", one.Commits, raw)
			}
			if log, err := r.Git(t.Context(), "log", "-1", "--format=%an|%cn|%B", one.Commit); err != nil || !strings.HasPrefix(log, "owner|Hearth|") || !strings.Contains(log, "Hearth-Session: "+id) || !strings.Contains(log, "Hearth-Turn: "+one.ID) {
				t.Errorf("commit %q, %v", log, err)
			}
			two := w.ended(id, w.prompt(id, "@@run git mv 'with space.txt' moved.txt; rm -r a@@").Turn.ID, deadline)
			w.wantTurn(two, "completed", "")
			w.wantPushed(r, two)
			w.delete(id, false)
		})
	}
}

// A session without a repository packs its work and has nowhere to push it.
func TestScratch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	s := w.create(client.CreateInput{Prompt: "@@write a.txt one@@"})
	id := s.Session.ID
	one := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(one, "completed", "")
	if one.Delivery.State != "scratch" || one.Commit == "" {
		t.Errorf("delivery %+v, commit %q", one.Delivery, one.Commit)
	}
	if d, err := w.c.Diff(t.Context(), id, "", "patch"); err != nil || !strings.Contains(d.Text, "+one") {
		t.Errorf("diff %+v, %v", d, err)
	}
	// Its work outlives its sandbox.
	for _, pid := range w.sandboxProcesses(id, "runsc-sandbox") {
		killProcess(t, pid)
	}
	two := w.ended(id, w.prompt(id, "@@run cat a.txt@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	if got := outputs(w.transcript(id), 2); !strings.Contains(got, "one") {
		t.Errorf("the work is not there: %s", got)
	}
	if _, err := w.c.Delete(t.Context(), id, false); client.CodeOf(err) != "UNDELIVERED_WORK" || !strings.Contains(err.Error(), "bundle") {
		t.Errorf("the only copy is thrown away unasked: %v", err)
	}
	w.delete(id, true)
}

// The git host is away when the work is to be pushed; deliver brings it when it is back.
func TestHostAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@slow 10 100@@ @@write a.txt one@@"})
	id := s.Session.ID
	w.inState(id, s.Turn.ID, deadline, "running")
	w.git.AddFault(gitserver.Fault{Service: gitserver.ReceivePack, Refs: true, Status: 503, Message: "maintenance"})
	w.git.AddFault(gitserver.Fault{Service: gitserver.UploadPack, Refs: true, Status: 503, Message: "maintenance"})
	one := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(one, "completed", "")
	if one.Delivery.State != "failed" || one.Delivery.Code != "FORGE_UNAVAILABLE" {
		t.Errorf("delivery %+v", one.Delivery)
	}
	w.git.ClearFaults()
	if _, err := w.c.Deliver(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	d := w.waitDelivery(id, "pushed")
	if head, err := r.Head(t.Context(), d.Branch); err != nil || head != one.Commit {
		t.Errorf("the host has %s, %v", head, err)
	}
	w.delete(id, false)
}

// A sandbox that nobody uses is let go; the next prompt stands on what was packed.
func TestIdleRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{idle: "2s"})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@mark amber-lynx@@ @@write a.txt one@@"})
	id := s.Session.ID
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	w.until(20*time.Second, "the sandbox to be let go", func() (bool, string) { s := w.get(id); return s.Sandbox.State == "none", s.Sandbox.State })
	w.goneProcesses(id)
	two := w.ended(id, w.prompt(id, "@@recall@@ @@run cat a.txt@@ @@write b.txt two@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	w.wantPushed(r, two)
	parts := w.transcript(id)
	if two.Generation != 2 || two.Rung != "reprimed" || !strings.Contains(text(parts, 2), "amber-lynx") || !strings.Contains(outputs(parts, 2), "one") {
		t.Errorf("generation %d, rung %s: %s", two.Generation, two.Rung, text(parts, 2))
	}
	w.delete(id, false)
}

func (w *world) goneProcesses(id string) {
	w.t.Helper()
	w.until(15*time.Second, "its processes to end", func() (bool, string) {
		got := processes("h" + tail(id) + "-")
		return len(got) == 0, fmt.Sprint(got)
	})
}

// Work with a key of the server in it does not leave; taken out or discarded, the rest does.
func TestSecretInWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	half := len(w.key) / 2
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@run a=" + w.key[:half] + "; echo token=${a}" + w.key[half:] + " > leak.txt@@ @@write good.txt good@@"})
	id := s.Session.ID
	one := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(one, "completed", "")
	if one.Delivery.State != "failed" || one.Delivery.Code != "SECRET_FOUND" || !strings.Contains(one.Delivery.Message, "leak.txt") {
		t.Errorf("delivery %+v", one.Delivery)
	}
	if len(heads(t, r)) != 1 {
		t.Errorf("the host has %v", heads(t, r))
	}
	two := w.ended(id, w.prompt(id, "@@run rm leak.txt@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	if two.Delivery.State != "failed" || two.Delivery.Code != "SECRET_FOUND" { // it is in a commit before
		t.Errorf("delivery of its removal %+v", two.Delivery)
	}
	three := w.ended(id, w.prompt(id, "@@run git reset -q --soft origin/main; ls@@").Turn.ID, deadline)
	w.wantTurn(three, "completed", "")
	w.wantPushed(r, three)
	if files, err := r.Git(t.Context(), "ls-tree", "-r", "--name-only", three.Delivery.Commit); err != nil || !strings.Contains(files, "good.txt") || strings.Contains(files, "leak") {
		t.Errorf("delivered %s, %v", files, err)
	}
	for name := range heads(t, r) {
		if log, err := r.Git(t.Context(), "log", "-p", name); err != nil || strings.Contains(log, w.key) {
			t.Errorf("the key is at the host in %s (%v)", name, err)
		}
	}
	w.delete(id, false)
}

// What a person has pushed to the session's branch stays, whatever the agent does later:
// work that merged it goes on top, work that leaves it out is refused.
func TestForeignCommitsStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	for _, existing := range []bool{false, true} {
		branch := fmt.Sprintf("shared-%t", existing)
		if existing {
			if _, err := r.Commit(t.Context(), branch, "Before", map[string]string{"before.txt": "before"}); err != nil {
				t.Fatal(err)
			}
		}
		s := w.create(client.CreateInput{Repo: url, Branch: branch, Prompt: "@@write mine.txt mine@@"})
		id := s.Session.ID
		one := w.ended(id, s.Turn.ID, deadline)
		w.wantPushed(r, one)
		theirs, err := r.Commit(t.Context(), branch, "Theirs", map[string]string{"theirs.txt": "theirs"})
		if err != nil {
			t.Fatal(err)
		}
		merge := "@@run git fetch -q origin " + branch + " && git merge -q --no-edit FETCH_HEAD && git log --oneline@@ @@write more.txt more@@"
		two := w.ended(id, w.prompt(id, merge).Turn.ID, deadline)
		w.wantTurn(two, "completed", "")
		w.wantPushed(r, two)
		isIn := func(when string) {
			t.Helper()
			head, err := r.Head(t.Context(), branch)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Git(t.Context(), "merge-base", "--is-ancestor", theirs, head); err != nil {
				t.Errorf("existing %t: %s the branch at %s lacks their commit %s", existing, when, head, theirs)
			}
		}
		isIn("after the merge")
		// The agent throws everything away and pushes over it by itself.
		three := w.ended(id, w.prompt(id, "@@run git reset -q --hard "+one.Commit+"~1 && echo x > y.txt && git add -A && git -c user.name=a -c user.email=a@b commit -qm over && git push -f origin HEAD:"+branch+"; echo status $?@@").Turn.ID, deadline)
		isIn("after the agent's own push")
		if got := outputs(w.transcript(id), 3); !strings.Contains(got, "refused") && !strings.Contains(got, "rejected") || strings.Contains(got, "status 0") {
			t.Errorf("existing %t: the agent was told %s", existing, got)
		}
		w.wantPushed(r, three) // what the agent made of it, as one commit on top
		isIn("after the delivery")
		w.delete(id, true)
	}
}

// A bare repository of this machine, where the operator allows them.
func TestFolderRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{args: []string{"--allow-file-repositories"}})
	r, _ := w.repo("acme/folder")
	for _, branch := range []string{"", "named"} {
		s := w.create(client.CreateInput{Repo: "file://" + r.Dir, Branch: branch, Prompt: "@@write a.txt one@@ @@run git log --oneline -3 && git status -sb && git diff --stat origin/main@@"})
		id := s.Session.ID
		one := w.ended(id, s.Turn.ID, deadline)
		w.wantTurn(one, "completed", "")
		w.wantPushed(r, one)
		two := w.ended(id, w.prompt(id, "@@run cat a.txt@@ @@write b.txt two@@").Turn.ID, deadline)
		w.wantTurn(two, "completed", "")
		w.wantPushed(r, two)
		if got := outputs(w.transcript(id), 1); branch == "" && strings.Contains(got, "fatal") {
			t.Errorf("inside: %s", got)
		}
		w.delete(id, false)
	}
	// One that belongs to somebody else cannot be read by the server's git, which is said at once.
	other := filepath.Join(w.dir, "other.git")
	if _, err := r.Git(t.Context(), "clone", "-q", "--bare", r.Dir, other); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(other, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := w.c.Create(t.Context(), client.CreateInput{Agent: "scripted", Repo: "file://" + other, Prompt: "hello"}); client.CodeOf(err) != "REPOSITORY_UNREACHABLE" || !strings.Contains(err.Error(), "belongs to another user") {
			t.Errorf("another user's folder: %v", err)
		}
	}
}

// A setup that fails is mended in the repository, and the next prompt begins from there.
func TestSetupIsMended(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	if _, err := r.Commit(t.Context(), "main", "Setup", map[string]string{".hearth/environment.yaml": "setup: echo no such tool >&2; exit 3\nfoo: bar\n"}); err != nil {
		t.Fatal(err)
	}
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@"})
	id := s.Session.ID
	one := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(one, "failed", "SETUP_FAILED")
	if !strings.Contains(one.Message, "no such tool") {
		t.Errorf("message %q", one.Message)
	}
	if raw, err := os.ReadFile(w.logFile()); err != nil || !strings.Contains(string(raw), "level=WARN msg=setup") || !strings.Contains(string(raw), "foo") {
		t.Errorf("the unknown key is not in the log: %v", err)
	}
	mended, err := r.Commit(t.Context(), "main", "Mend it", map[string]string{".hearth/environment.yaml": "setup: echo fine > made.txt\n", ".gitignore": "made.txt\n"})
	if err != nil {
		t.Fatal(err)
	}
	two := w.ended(id, w.prompt(id, "@@run cat made.txt@@ @@write a.txt one@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	w.wantPushed(r, two)
	if got := outputs(w.transcript(id), 2); !strings.Contains(got, "fine") {
		t.Errorf("the mended setup did not run: %s", got)
	}
	if got := w.get(id).BaseCommit; got != mended {
		t.Errorf("the base is %s, want %s", got, mended)
	}
	// From now on the session has its own base, whatever happens to the branch it came from.
	if _, err := r.Commit(t.Context(), "main", "Later", map[string]string{"later.txt": "later"}); err != nil {
		t.Fatal(err)
	}
	for _, pid := range w.sandboxProcesses(id, "runsc-sandbox") {
		killProcess(t, pid)
	}
	three := w.ended(id, w.prompt(id, "@@write b.txt two@@").Turn.ID, deadline)
	w.wantTurn(three, "completed", "")
	w.wantPushed(r, three)
	if got := w.get(id).BaseCommit; got != mended {
		t.Errorf("the base moved to %s under the work", got)
	}
	w.delete(id, false)
}
