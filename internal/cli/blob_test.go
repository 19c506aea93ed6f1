package cli_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/uistream"
)

func TestBlob(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("x")
	turn := s.w.Begin(id)
	const content = "\x1b[?1000h\x00\xff"
	name, gone := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	for _, b := range []string{name, gone} {
		r, err := s.w.Blobs.Announce(t.Context(), blob.Row{Session: string(id), ID: b, Turn: string(turn.ID), MediaType: "application/octet-stream", Bytes: 3})
		if err != nil {
			t.Fatal(err)
		}
		if b == gone {
			err = s.w.Blobs.Miss(t.Context(), r, "The sandbox's disk was full.")
		} else {
			err = s.w.Blobs.Take(t.Context(), r, func(_ context.Context, w io.Writer) error { _, err := io.WriteString(w, content); return err })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := s.run("blob", string(id), name); got != 0 || s.out.String() != content {
		t.Errorf("%d %q %s", got, s.out.String(), s.err.String())
	}
	file := filepath.Join(t.TempDir(), "out")
	s.out = buffer{}
	if got := s.run("blob", string(id), name, "-o", file); got != 0 || strings.Contains(s.out.String(), "\x1b") {
		t.Errorf("%d %q %s", got, s.out.String(), s.err.String())
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != content {
		t.Errorf("%q %v", b, err)
	}
	for _, tt := range []struct {
		args   []string
		status int
		has    string
	}{
		{[]string{"blob", string(id), gone}, 5, "The sandbox's disk was full."},
		{[]string{"blob", string(id), "sha256:x"}, 5, "BLOB_NOT_FOUND"},
		{[]string{"blob", string(id)}, 2, "the id of a blob"},
		{[]string{"blob", string(id), name, "more"}, 2, "too much"},
	} {
		s.err = buffer{}
		if got := s.run(tt.args...); got != tt.status || !strings.Contains(s.err.String(), tt.has) {
			t.Errorf("%v: %d %s", tt.args, got, s.err.String())
		}
	}
	s.terminal = true
	s.out, s.err = buffer{}, buffer{}
	if got := s.run("blob", string(id), name); got != 2 || s.out.String() != "" || !strings.Contains(s.err.String(), "-o -") {
		t.Errorf("on a terminal: %d %q %s", got, s.out.String(), s.err.String())
	}
	if got := s.run("blob", string(id), name, "-o", "-"); got != 0 || s.out.String() != content {
		t.Errorf("on a terminal that insists: %d %q", got, s.out.String())
	}
	s.terminal = false

	for _, b := range []uistream.Blob{
		{ID: name, Bytes: 2 << 20, Why: uistream.BlobTooLarge}, {ID: gone, Bytes: 5, Why: uistream.BlobControlCodes},
		{Bytes: 7, Why: uistream.BlobNotText, Lost: "The disk \x1b[1mwas full."},
	} {
		s.w.Say(id, uistream.Data{Name: uistream.DataBlob, Data: uistream.ValueOf(b)}.Part().Raw)
	}
	s.w.End(id)
	s.out = buffer{}
	if got := s.run("transcript", string(id)); got != 0 || !strings.Contains(s.out.String(), "too large (2.0 MiB) is the blob "+name) ||
		strings.Contains(s.out.String(), gone) || !strings.Contains(s.out.String(), "7 bytes) is lost: The disk") || strings.Contains(s.out.String(), "\x1b") {
		t.Errorf("%d %q", got, s.out.String())
	}
}
