package delivery_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/forge/forgetest"
	"github.com/hearthd/hearth/internal/delivery/forge/plain"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

const password = "pushing-canary-0123456789"

// shop is a git host, a store, and one session prepared on it.
type shop struct {
	t      *testing.T
	host   *gitserver.Server
	repo   *gitserver.Repo
	forge  *plain.Forge
	remote forge.Remote
	login  forge.Credential
	dir    string
	store  *delivery.Store
	base   delivery.Base
	read   atomic.Pointer[func(delivery.ReadFunc) delivery.ReadFunc] // in the way of reads
}

const (
	session = "s1"
	branch  = "hearth/work"
)

func open(t *testing.T, dir string, read delivery.ReadFunc) *delivery.Store {
	t.Helper()
	s, err := delivery.Open(delivery.Config{Dir: dir, Git: forgetest.Git(t), Read: read})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newShop(t *testing.T, files map[string]string) *shop {
	t.Helper()
	s := &shop{t: t, login: forge.Credential{Username: "hearth", Password: password}, dir: t.TempDir()}
	var err error
	s.host, err = gitserver.New(gitserver.Options{Dir: t.TempDir(), Users: []gitserver.User{{Name: "hearth", Password: password, Write: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if s.repo, err = s.host.NewRepo(t.Context(), "acme/calc", files); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s.host)
	t.Cleanup(web.Close)
	s.forge = plain.New(plain.Config{Transport: web.Client().Transport})
	if s.remote, err = forge.ParseRemote(web.URL+s.repo.Path(), false); err != nil {
		t.Fatal(err)
	}
	s.store = open(t, s.dir, func(ctx context.Context, r forge.Remote, c forge.Credential, b ...string) (forge.Repository, error) {
		if wrap := s.read.Load(); wrap != nil {
			return (*wrap)(s.forge.Read)(ctx, r, c, b...)
		}
		return s.forge.Read(ctx, r, c, b...)
	})
	s.base = s.prepare(session, "", branch)
	return s
}

func (s *shop) prepare(id, base, branch string) delivery.Base {
	s.t.Helper()
	b, err := s.store.Prepare(s.t.Context(), delivery.PrepareRequest{Session: id, Remote: s.remote, Credential: s.login, Base: base, Branch: branch})
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *shop) take(w *forgetest.Work, turn, head string, secrets ...string) (delivery.Taken, error) {
	s.t.Helper()
	req := delivery.TakeRequest{Session: session, Turn: turn, Head: head, Base: s.base.OID, Pack: w.Pack(head, s.base.OID)}
	for _, x := range secrets {
		req.Secrets = append(req.Secrets, []byte(x))
	}
	return s.store.Take(s.t.Context(), req)
}

func (s *shop) publish(candidate, known string) (delivery.Published, error) {
	return s.store.Publish(s.t.Context(), delivery.PublishRequest{
		Session: session, Remote: s.remote, Credential: s.login, Branch: branch, Candidate: candidate, Base: s.base.OID, Known: known,
	})
}

func (s *shop) resolve(name string) string {
	s.t.Helper()
	id, err := s.store.Resolve(s.t.Context(), session, name)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

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

// tree lists all files below dir with their sizes, without those of loose lists that change.
func tree(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		out[strings.TrimPrefix(p, dir)] = i.Size()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var files = map[string]string{"a.txt": "a\n", "dir/b.txt": "b\n"}

func TestPrepareRefusals(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	for _, c := range []struct {
		name  string
		req   delivery.PrepareRequest
		code  fault.Code
		words string
	}{
		{"no such base", delivery.PrepareRequest{Session: "x", Base: "nope", Branch: "b"}, fault.BranchInvalid, "no branch nope"},
		{"bad base", delivery.PrepareRequest{Session: "x", Base: "-x", Branch: "b"}, fault.BranchInvalid, "dash"},
		{"bad branch", delivery.PrepareRequest{Session: "x", Branch: "a..b"}, fault.BranchInvalid, "two dots"},
		{"bad session", delivery.PrepareRequest{Session: "../x", Branch: "b"}, fault.InvalidInput, "session"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.req.Remote, c.req.Credential = s.remote, s.login
			_, err := s.store.Prepare(t.Context(), c.req)
			wantCode(t, err, c.code, c.words)
		})
	}
	t.Run("host goes down between", func(t *testing.T) {
		s.host.AddFault(gitserver.Fault{Service: gitserver.UploadPack, Status: http.StatusBadGateway, Times: 3})
		_, err := s.store.Prepare(t.Context(), delivery.PrepareRequest{Session: "y", Remote: s.remote, Credential: s.login, Branch: "b"})
		wantCode(t, err, fault.ForgeUnavailable)
		s.host.ClearFaults()
	})
	if strings.Contains(fmt.Sprint(tree(t, s.dir)), "/quarantine/x.git") {
		t.Error("a refused session has a repository")
	}
}

func TestPrepareAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", "c\n")
	head := w.Commit("c")
	if _, err := s.take(w, "t1", head); err != nil {
		t.Fatal(err)
	}
	// The base is replaced on the host: the session's work must stay whole.
	w.Git("commit", "--quiet", "--amend", "-m", "other")
	w.Git("push", "--quiet", "--force", "origin", "HEAD:main")
	again := s.prepare(session, "", branch)
	if again.OID == s.base.OID {
		t.Error("the remote was not read anew")
	}
	if s.resolve("head") != head || s.resolve("turns/t1") != head {
		t.Error("the work is gone")
	}
	if err := s.store.Tidy(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if p, err := s.publish(head, ""); err != nil || p.Outcome != delivery.OutcomePushed {
		t.Errorf("publication: %+v, %v", p, err)
	}
}

func TestScratch(t *testing.T) {
	t.Parallel()
	store := open(t, t.TempDir(), nil)
	b, err := store.Prepare(t.Context(), delivery.PrepareRequest{Session: session, Branch: "main"})
	if err != nil || !b.Empty {
		t.Fatalf("%+v, %v", b, err)
	}
	w := forgetest.Clone(t, emptyRepo(t))
	w.Write("a", "a\n")
	head := w.Commit("a")
	got, err := store.Take(t.Context(), delivery.TakeRequest{Session: session, Turn: "t1", Head: head, Pack: w.Pack(head)})
	if err != nil || got.Files != 1 || got.Commits != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	var bundle bytes.Buffer
	if err := store.Bundle(t.Context(), session, &bundle); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(file, bundle.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	other := forgetest.Clone(t, emptyRepo(t))
	other.Git("pull", "--quiet", file, "main")
	if other.Git("rev-parse", "HEAD") != head {
		t.Error("the bundle brings something else")
	}
}

func emptyRepo(t *testing.T) string {
	t.Helper()
	host, err := gitserver.New(gitserver.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r, err := host.NewRepo(t.Context(), "empty", nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.Dir
}

func TestTakeRefusals(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("big", strings.Repeat("0123456789abcdef", 1)+string(bytes.Repeat([]byte{1, 7, 9}, 10)))
	good := w.Commit("good")
	pack, err := io.ReadAll(w.Pack(good, s.base.OID))
	if err != nil {
		t.Fatal(err)
	}
	blob := w.Git("rev-parse", good+":big")
	mktree := func(entries string) string {
		p := filepath.Join(w.Dir, "..", "tree")
		if err := os.WriteFile(p, []byte(entries), 0o600); err != nil {
			t.Fatal(err)
		}
		return w.Git("hash-object", "-t", "tree", "-w", "--literally", p)
	}
	raw, err := hex.DecodeString(blob)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(tree string) string {
		return w.Git("commit-tree", "-m", "x", "-p", s.base.OID, tree)
	}
	named := func(name string) string { return commit(mktree("100644 " + name + "\x00" + string(raw))) }
	deep := blob
	kind := "100644 "
	for range delivery.MaxDepth + 1 {
		b, err := hex.DecodeString(deep)
		if err != nil {
			t.Fatal(err)
		}
		deep, kind = mktree(kind+"d\x00"+string(b)), "40000 "
	}
	w.Git("reset", "--quiet", "--hard", good)
	missing := commit(mktree("100644 x\x00" + strings.Repeat("\x01", 20)))
	before := tree(t, s.dir)
	for _, c := range []struct {
		name  string
		head  string
		pack  io.Reader
		max   int64
		code  fault.Code
		words string
	}{
		{"not a pack", good, strings.NewReader("hello, I am no pack"), 0, fault.PackRefused, "not a git pack"},
		{"short", good, strings.NewReader("PACK"), 0, fault.PackRefused, "not a git pack"},
		{"cut", good, bytes.NewReader(pack[:len(pack)-5]), 0, fault.PackRefused, "Git refuses the pack"},
		{"broken off", good, io.MultiReader(bytes.NewReader(pack[:50]), broken{}), 0, fault.PackFailed, "broke off"},
		{"damaged", good, bytes.NewReader(damaged(pack)), 0, fault.PackRefused, "Git refuses the pack"},
		{"too large", good, bytes.NewReader(pack), 60, fault.PackTooLarge, "larger"},
		{"empty pack, new commit", good, strings.NewReader(""), 0, fault.PackRefused, "does not have"},
		{"another commit", strings.Repeat("a", 40), bytes.NewReader(pack), 0, fault.PackRefused, "does not have the commit"},
		{"not a commit", blob, bytes.NewReader(pack), 0, fault.PackRefused, "is a blob"},
		{"not an id", "--all", bytes.NewReader(pack), 0, fault.PackRefused, "not the id"},
		{"other format", strings.Repeat("a", 64), bytes.NewReader(pack), 0, fault.PackRefused, "not the id"},
		{"missing object", missing, packOf(t, w, missing), 0, fault.PackRefused, ""},
		{"deep path", commit(deep), w.Pack(commit(deep), s.base.OID), 0, fault.PackRefused, "deeper"},
		{".git", named(".git"), w.Pack(named(".git"), s.base.OID), 0, fault.PackRefused, "hasDotgit"},
		{".GIT", named(".GIT"), w.Pack(named(".GIT"), s.base.OID), 0, fault.PackRefused, "hasDotgit"},
		{"git~1", named("git~1"), w.Pack(named("git~1"), s.base.OID), 0, fault.PackRefused, "hasDotgit"},
		{"HFS .git", named(".g\u200cit"), w.Pack(named(".g\u200cit"), s.base.OID), 0, fault.PackRefused, "hasDotgit"},
		{"NTFS stream", named(".git::$INDEX_ALLOCATION"), w.Pack(named(".git::$INDEX_ALLOCATION"), s.base.OID), 0, fault.PackRefused, "hasDotgit"},
		{"..", named(".."), w.Pack(named(".."), s.base.OID), 0, fault.PackRefused, "hasDotdot"},
		{".", named("."), w.Pack(named("."), s.base.OID), 0, fault.PackRefused, "hasDot"},
		{"absolute", named("/etc/passwd"), w.Pack(named("/etc/passwd"), s.base.OID), 0, fault.PackRefused, "fullPathname"},
		{"slash", named("a/b"), w.Pack(named("a/b"), s.base.OID), 0, fault.PackRefused, "fullPathname"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.store.Take(t.Context(), delivery.TakeRequest{
				Session: session, Turn: "t1", Head: c.head, Base: s.base.OID, Pack: c.pack, MaxBytes: c.max,
			})
			wantCode(t, err, c.code, c.words)
			if diff := cmp.Diff(before, tree(t, s.dir)); diff != "" {
				t.Errorf("something is left (-before +after):\n%s", diff)
			}
		})
	}
	if got, err := s.take(w, "t1", good); err != nil || got.Files != 1 {
		t.Errorf("the good one afterwards: %+v, %v", got, err)
	}
	if got, err := s.take(w, "t1", good); err != nil || got.Files != 1 {
		t.Errorf("the good one again: %+v, %v", got, err)
	}
	_, err = s.store.Take(t.Context(), delivery.TakeRequest{Session: "other", Turn: "t1", Head: good, Pack: bytes.NewReader(pack)})
	wantCode(t, err, fault.NothingToDeliver)
	_, err = s.store.Take(t.Context(), delivery.TakeRequest{Session: session, Turn: "../x", Head: good, Pack: bytes.NewReader(pack)})
	wantCode(t, err, fault.InvalidInput)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("connection lost") }

func damaged(p []byte) []byte {
	p = bytes.Clone(p)
	p[len(p)/2] ^= 0xff
	return p
}

// packOf packs exactly the commit and its tree, whatever they point to.
func packOf(t *testing.T, w *forgetest.Work, head string) io.Reader {
	t.Helper()
	list := filepath.Join(t.TempDir(), "ids")
	if err := os.WriteFile(list, []byte(head+"\n"+w.Git("rev-parse", head+"^{tree}")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "p")
	w.Git("-c", "alias.pack=!git pack-objects --stdout --quiet <"+list+" >"+out, "pack")
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b)
}

func TestTakeEmptyPacks(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	header := append([]byte("PACK"), 0, 0, 0, 2, 0, 0, 0, 0)
	if binary.BigEndian.Uint32(header[4:]) != 2 {
		t.Fatal("header")
	}
	for name, pack := range map[string][]byte{"no bytes": nil, "no objects": append(header, make([]byte, 20)...)} {
		got, err := s.store.Take(t.Context(), delivery.TakeRequest{Session: session, Turn: "t1", Head: s.base.OID, Base: s.base.OID, Pack: bytes.NewReader(pack)})
		if err != nil || got.Changed || got.Commits != 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestInterim(t *testing.T) {
	t.Parallel()
	s := newShop(t, files)
	w := forgetest.Clone(t, s.repo.Dir)
	w.Write("c", "c\n")
	half := w.Commit("half")
	_, err := s.store.Take(t.Context(), delivery.TakeRequest{Session: session, Turn: "t1", Interim: true, Head: half, Base: s.base.OID, Pack: w.Pack(half, s.base.OID)})
	if err != nil {
		t.Fatal(err)
	}
	if s.resolve("interim") != half || s.resolve("head") != "" || s.resolve("turns/t1") != "" {
		t.Errorf("interim %s, head %s", s.resolve("interim"), s.resolve("head"))
	}
	have, err := s.store.Have(t.Context(), session)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(2, len(have)); diff != "" {
		t.Errorf("have: %v", have)
	}
	w.Write("c", "cc\n")
	whole := w.Commit("whole")
	if _, err := s.take(w, "t1", whole); err != nil {
		t.Fatal(err)
	}
	if s.resolve("interim") != "" || s.resolve("head") != whole || s.resolve("turns/t1") != whole {
		t.Errorf("interim %s, head %s", s.resolve("interim"), s.resolve("head"))
	}
	if err := s.store.Rewind(t.Context(), session, half); err != nil {
		t.Fatal(err)
	}
	if s.resolve("head") != half || s.resolve("turns/t1") != whole {
		t.Error("not rewound")
	}
	if err := s.store.Rewind(t.Context(), session, ""); err != nil || s.resolve("head") != "" {
		t.Errorf("not rewound to nothing: %v", err)
	}
	wantCode(t, s.store.Rewind(t.Context(), session, strings.Repeat("a", 40)), fault.InvalidInput)
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	const secret = "sk-canary/Ünïq+\"0123456789<abc>"
	js, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	b64 := func(prefix string, enc *base64.Encoding) string {
		return enc.EncodeToString([]byte(prefix + secret + " tail"))
	}
	for name, content := range map[string]string{
		"raw":           "key = " + secret + "\n",
		"json":          string(js),
		"python json":   `"sk-canary/\u00dcn\u00efq+\"0123456789<abc>"`,
		"php json":      `"sk-canary\/Ünïq+\"0123456789<abc>"`,
		"base64":        b64("", base64.StdEncoding),
		"base64 +1":     b64("x", base64.StdEncoding),
		"base64 +2":     b64("xy", base64.StdEncoding),
		"base64 url":    b64("user:", base64.RawURLEncoding),
		"hex":           "0x" + hex.EncodeToString([]byte(secret)),
		"HEX":           strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"query":         "?k=sk-canary%2F%C3%9Cn%C3%AFq%2B%220123456789%3Cabc%3E",
		"mixed json":    `{"k":"\u0073k-c\u0061nary/\u00DCn\u00EFq\u002B\"0123456789<abc\u003e"}`,
		"mixed query":   "%73k%2dcanary/%c3%9Cn%C3%AFq%2B%220123456789<abc>",
		"over the seam": strings.Repeat("x", 64<<10-7) + secret + strings.Repeat("y", 200<<10),
		"far in":        strings.Repeat("0123456789\n", 200_000) + secret,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, files)
			w := forgetest.Clone(t, s.repo.Dir)
			w.Write("dir/config.yml", content)
			bad := w.Commit("add")
			w.Write("dir/config.yml", "clean\n") // it stays in history
			head := w.Commit("clean up")
			_, err := s.take(w, "t1", head, "short", secret)
			wantCode(t, err, fault.SecretFound, "dir/config.yml", bad)
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), secret[:10]) {
				t.Errorf("the error tells the secret: %v", err)
			}
			if s.resolve("head") != "" {
				t.Error("refused work was kept")
			}
			if got, err := s.take(w, "t1", head, "another-secret-0123456789"); err != nil || got.Files != 1 {
				t.Errorf("with another secret: %+v, %v", got, err)
			}
		})
	}
	t.Run("in a message", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, files)
		w := forgetest.Clone(t, s.repo.Dir)
		head := w.Commit("use " + secret)
		_, err := s.take(w, "t1", head, secret)
		wantCode(t, err, fault.SecretFound, "message of commit "+head)
	})
	t.Run("in a name", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, files)
		w := forgetest.Clone(t, s.repo.Dir)
		w.Write("dir/token-0123456789abcdef.txt", "x\n")
		head := w.Commit("x")
		_, err := s.take(w, "t1", head, "token-0123456789abcdef")
		wantCode(t, err, fault.SecretFound, "/dir")
	})
	t.Run("already on the host", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, map[string]string{"old": secret})
		w := forgetest.Clone(t, s.repo.Dir)
		w.Write("new", "x\n")
		if _, err := s.take(w, "t1", w.Commit("x"), secret); err != nil {
			t.Errorf("only what is new is judged: %v", err)
		}
	})
	t.Run("no time", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, files)
		store, err := delivery.Open(delivery.Config{Dir: s.dir, Git: forgetest.Git(t), Read: s.forge.Read, ScanTimeout: 1})
		if err != nil {
			t.Fatal(err)
		}
		w := forgetest.Clone(t, s.repo.Dir)
		w.Write("new", "x\n")
		head := w.Commit("x")
		_, err = store.Take(t.Context(), delivery.TakeRequest{Session: session, Turn: "t1", Head: head, Pack: w.Pack(head, s.base.OID), Secrets: [][]byte{[]byte(secret)}})
		wantCode(t, err, fault.PackTooLarge, "could not be searched")
	})
}
