package blob_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
)

func idOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func gives(s string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// files of a folder, and of those below it.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLife(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	s := w.Blobs
	id := string(w.Create("x"))
	announce := func(content, turn string) blob.Row {
		t.Helper()
		r, err := s.Announce(t.Context(), blob.Row{Session: id, ID: idOf(content), Turn: turn, MediaType: "text/plain; charset=utf-8", Bytes: int64(len(content))})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := func(content string, code fault.Code) {
		t.Helper()
		r, err := s.Find(t.Context(), id, idOf(content))
		if err == nil {
			var f io.ReadCloser
			if f, err = s.Open(r); err == nil {
				defer f.Close()
				if b, rerr := io.ReadAll(f); rerr != nil || string(b) != content {
					t.Errorf("%q %v", b, rerr)
				}
			}
		}
		if fault.CodeOf(err) != code {
			t.Errorf("%s: %v, want %q", content, err, code)
		}
	}
	want("a", fault.BlobNotFound)
	a := announce("a", "trn_1")
	want("a", fault.BlobPending)
	cut := errors.New("cut")
	if err := s.Take(t.Context(), a, func(_ context.Context, w io.Writer) error { _, _ = io.WriteString(w, "half"); return cut }); !errors.Is(err, cut) {
		t.Error(err)
	}
	want("a", fault.BlobPending)
	if left := files(t, s.Dir); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	if err := s.Take(t.Context(), a, gives("a")); err != nil {
		t.Fatal(err)
	}
	want("a", "")
	if err := s.Miss(t.Context(), a, "Too late."); err != nil { // what is settled stays
		t.Fatal(err)
	}
	want("a", "")
	if r := announce("a", "trn_2"); r.State != blob.Stored || r.Turn != "trn_1" {
		t.Errorf("%+v", r)
	}

	announce("broken off", "trn_1")
	if r := announce("broken off", "trn_2"); r.State != blob.Pending || r.Turn != "trn_2" { // its sandbox may have it
		t.Errorf("%+v", r)
	}

	b := announce("b", "trn_1")
	if err := s.Miss(t.Context(), b, "It was not there."); err != nil {
		t.Fatal(err)
	}
	want("b", fault.BlobMissing)
	if r := announce("b", "trn_1"); r.State != blob.Missing {
		t.Errorf("%+v", r)
	}
	if r := announce("b", "trn_2"); r.State != blob.Pending { // said again, it may be had
		t.Errorf("%+v", r)
	}
	if err := s.Take(t.Context(), b, gives("b")); err != nil {
		t.Fatal(err)
	}
	want("b", "")

	full := announce("full", "trn_1")
	s.Room = func() error { return fault.New(fault.DiskFull, "") }
	if err := s.Take(t.Context(), full, gives("full")); fault.CodeOf(err) != fault.DiskFull {
		t.Error(err)
	}
	s.Room = nil
	full.Bytes = blob.MaxSessionBytes
	if err := s.Take(t.Context(), full, gives("full")); fault.CodeOf(err) != fault.DiskFull || !strings.Contains(err.Error(), "1024 MiB") {
		t.Error(err)
	}
	for _, bad := range []blob.Row{{Session: id, ID: "sha256:../x"}, {Session: "../x", ID: idOf("a")}, {Session: "", ID: idOf("a")}, {Session: "..", ID: idOf("a")}} {
		if err := s.Take(t.Context(), bad, gives("x")); fault.CodeOf(err) != fault.BlobNotFound {
			t.Errorf("%+v: %v", bad, err)
		}
	}

	for _, p := range files(t, s.Dir) {
		if st, err := os.Stat(p); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", p, st.Mode(), err)
		}
		if strings.HasSuffix(p, strings.TrimPrefix(idOf("b"), "sha256:")) {
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	want("b", fault.BlobMissing)
}

// A file that is whole counts, also when whoever asked for it has gone meanwhile.
func TestTakeIsSettled(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	r, err := w.Blobs.Announce(t.Context(), blob.Row{Session: string(w.Create("x")), ID: idOf("a"), Turn: "trn_1", Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	if err := w.Blobs.Take(ctx, r, func(ctx context.Context, out io.Writer) error { defer leave(); return gives("a")(ctx, out) }); err != nil {
		t.Error(err)
	}
	if _, err := w.Blobs.Find(t.Context(), r.Session, r.ID); err != nil {
		t.Error(err)
	}
}

// Blobs that are taken at the same time do not pass the session's limit together.
func TestTakesShareALimit(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	one, other := string(w.Create("x")), string(w.Create("y"))
	take := func(session, content string, fetch func(context.Context, io.Writer) error) error {
		t.Helper()
		r, err := w.Blobs.Announce(t.Context(), blob.Row{Session: session, ID: idOf(content), Turn: "trn_1", Bytes: blob.MaxSessionBytes/2 + 1})
		if err != nil {
			t.Fatal(err)
		}
		return w.Blobs.Take(t.Context(), r, fetch)
	}
	cut := errors.New("cut")
	err := take(one, "a", func(context.Context, io.Writer) error {
		if err := take(one, "b", gives("b")); fault.CodeOf(err) != fault.DiskFull {
			t.Errorf("beside another: %v", err)
		}
		if err := take(other, "b", gives("b")); err != nil {
			t.Errorf("another session: %v", err)
		}
		return cut
	})
	if !errors.Is(err, cut) {
		t.Error(err)
	}
	for _, content := range []string{"b", "c"} { // what is not taken any more is not counted, and what is stored as it is
		if err := take(one, content, gives(content)); err != nil {
			t.Errorf("%s: %v", content, err)
		}
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	s := w.Blobs
	if err := s.Sweep(t.Context(), func(context.Context, string) (bool, error) { return true, nil }); err != nil {
		t.Error("without a folder:", err)
	}
	keep, gone := string(w.Create("x")), string(w.Create("y"))
	for _, session := range []string{keep, gone} {
		r, err := s.Announce(t.Context(), blob.Row{Session: session, ID: idOf("a"), Turn: "trn_1", Bytes: 1})
		if err == nil {
			err = s.Take(t.Context(), r, gives("a"))
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{".half-1", strings.TrimPrefix(idOf("b"), "sha256:"), "x"} {
			if err := os.WriteFile(filepath.Join(s.Dir, session, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	broken := errors.New("broken")
	if err := s.Sweep(t.Context(), func(context.Context, string) (bool, error) { return false, broken }); !errors.Is(err, broken) || len(files(t, s.Dir)) != 8 {
		t.Errorf("%v, %d files", err, len(files(t, s.Dir)))
	}
	if err := s.Sweep(t.Context(), func(_ context.Context, id string) (bool, error) { return id == keep, nil }); err != nil {
		t.Fatal(err)
	}
	if left := files(t, s.Dir); len(left) != 1 || left[0] != filepath.Join(s.Dir, keep, strings.TrimPrefix(idOf("a"), "sha256:")) {
		t.Errorf("left %v", left)
	}
	if err := errors.Join(s.Remove(keep), s.Remove(keep), s.Remove(""), s.Remove("..")); err != nil || len(files(t, s.Dir)) != 0 {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(s.Dir); err != nil {
		t.Error("all sessions' folder was removed:", err)
	}
}
