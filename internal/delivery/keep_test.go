package delivery_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/forge/forgetest"
	"github.com/hearthd/hearth/internal/fault"
)

// A patch gives the whole work to a clone that has only the base: binary files, modes and odd names too.
func TestPatchApplies(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", "text\n")
	w.Write("odd \u00fc name", "x\r\n")
	w.Write("bin", "\x00\x01\xff"+strings.Repeat("\x00\x7f", 5000))
	head := w.Commit("c")
	if _, err := s.take(w, "t1", head); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if cut, err := s.store.Patch(t.Context(), session, "base", "head", &out, 1<<20); err != nil || cut {
		t.Fatalf("cut %v, %v", cut, err)
	}
	other := forgetest.Clone(t, s.repo.Dir)
	cmd := exec.CommandContext(t.Context(), "git", "apply", "--index", "-")
	cmd.Dir, cmd.Stdin = other.Dir, &out
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v: %s", err, said)
	}
	got := other.Git("write-tree")
	if want := w.Git("rev-parse", head+"^{tree}"); got != want {
		t.Errorf("the tree is %s, want %s", got, want)
	}
}

func TestPatchIsCutAtALine(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", strings.Repeat("one line\n", 1000))
	if _, err := s.take(w, "t1", w.Commit("c")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cut, err := s.store.Patch(t.Context(), session, "base", "turns/t1", &out, 1000)
	if err != nil || !cut || out.Len() > 1000 || out.Len() < 900 || !strings.HasSuffix(out.String(), "+one line\n") {
		t.Errorf("cut %v, %d bytes, %v", cut, out.Len(), err)
	}
	if _, err := s.store.Patch(t.Context(), session, "base", "head", failing{}, 1000); err == nil {
		t.Error("a writer that fails is not told")
	}
	for _, name := range []string{"--output=x", "HEAD", "refs/hearth/head", "turns/../head", "aaaa", ""} {
		if _, err := s.store.Diff(t.Context(), session, "base", name); err == nil {
			t.Errorf("%q is taken for a commit", name)
		}
	}
	d, err := s.store.Diff(t.Context(), session, "", "head")
	if err != nil || len(d.Changes) != 3 {
		t.Errorf("against nothing: %+v, %v", d, err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("reader is gone") }

func TestPushWhoseOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", "c\n")
	head := w.Commit("c")
	if _, err := s.take(w, "t1", head); err != nil {
		t.Fatal(err)
	}
	var reads atomic.Int32
	wrap := func(next delivery.ReadFunc) delivery.ReadFunc {
		return func(ctx context.Context, r forge.Remote, c forge.Credential, b ...string) (forge.Repository, error) {
			if reads.Add(1) == 2 {
				return forge.Repository{}, fault.New(fault.ForgeUnavailable, "Gone.")
			}
			return next(ctx, r, c, b...)
		}
	}
	s.read.Store(&wrap)
	_, err := s.publish(head, "")
	wantCode(t, err, fault.ForgeUnavailable, "took or refused")
	if p, err := s.publish(head, ""); err != nil || p.Outcome != delivery.OutcomeAlready {
		t.Errorf("again: %+v, %v", p, err)
	}
}

// TestOwnPushOfUnknownOutcome: the sandbox pushed by itself, the server died before noting it.
func TestOwnPushOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", "c\n")
	first := w.Commit("c")
	w.Git("push", "--quiet", "origin", "HEAD:refs/heads/"+branch)
	w.Write("c", "cc\n")
	second := w.Commit("cc")
	if _, err := s.take(w, "t1", second); err != nil {
		t.Fatal(err)
	}
	_, err := s.publish(second, "")
	wantCode(t, err, fault.BranchMoved)
	p, err := s.store.Publish(t.Context(), delivery.PublishRequest{
		Session: session, Remote: s.remote, Credential: s.login, Branch: branch, Candidate: second, Base: s.base.OID, Own: []string{first},
	})
	if err != nil || p.Outcome != delivery.OutcomePushed {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestPublishRefusesForeignCandidate(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	_, err := s.publish(strings.Repeat("a", 40), "")
	wantCode(t, err, fault.NothingToDeliver)
	_, err = s.publish("HEAD", "")
	wantCode(t, err, fault.NothingToDeliver)
	wantCode(t, s.store.Bundle(t.Context(), session, io.Discard), fault.NothingToDeliver)
}

func TestRemoveAndTidy(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	s.prepare("s2", "", "hearth/two")
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", "c\n")
	if _, err := s.take(w, "t1", w.Commit("c")); err != nil {
		t.Fatal(err)
	}
	future := time.Now().Add(time.Hour)
	for _, id := range []string{session, session, "never-was"} {
		if err := s.store.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.store.Tidy(t.Context(), future); err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.Resolve(t.Context(), "s2", "base"); err != nil {
		t.Errorf("the other session: %v", err)
	}
	if err := s.store.Remove(t.Context(), "s2"); err != nil {
		t.Fatal(err)
	}
	if err := s.store.Tidy(t.Context(), future); err != nil {
		t.Fatal(err)
	}
	if left := tree(t, s.dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	wantCode(t, s.store.Remove(t.Context(), "../x"), fault.InvalidInput)
}

func TestOpenClearsWhatACrashLeft(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	before := tree(t, s.dir)
	q := filepath.Join(s.dir, "quarantine", session+".git")
	for _, p := range []string{
		filepath.Join(q, "incoming-123", "pack", "tmp_pack_x"), filepath.Join(q, "packed-refs.lock"), filepath.Join(q, "refs", "hearth", "head.lock"),
		filepath.Join(q, "objects", "pack", "tmp_idx_x"), filepath.Join(s.dir, "trash", "init1", "r.git", "HEAD"),
	} {
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.store = open(t, s.dir, s.forge.Read)
	if diff := cmp.Diff(before, tree(t, s.dir)); diff != "" {
		t.Errorf("after opening (-before +after):\n%s", diff)
	}
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", "c\n")
	if _, err := s.take(w, "t1", w.Commit("c")); err != nil {
		t.Error(err)
	}
}

func TestNoSecretOnDisk(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", "c\n")
	head := w.Commit("c")
	if _, err := s.take(w, "t1", head); err != nil {
		t.Fatal(err)
	}
	if _, err := s.publish(head, ""); err != nil {
		t.Fatal(err)
	}
	for p := range tree(t, s.dir) {
		b, err := os.ReadFile(s.dir + p)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(password)) || bytes.Contains(b, []byte(base64.StdEncoding.EncodeToString([]byte("hearth:"+password)))) {
			t.Errorf("%s has the password", p)
		}
	}
}
