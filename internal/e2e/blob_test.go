package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/uistream"
)

func (w *world) fetchBlob(id, blob string) []byte {
	w.t.Helper()
	b, err := w.c.Blob(w.t.Context(), id, blob)
	if err != nil {
		w.t.Fatal(err)
	}
	defer b.Close()
	raw, err := io.ReadAll(b)
	if err != nil {
		w.t.Fatal(err)
	}
	return raw
}

// What an agent says and no part can carry is in blobs, over a kill of the server in the middle of it;
// a session that is deleted takes them with it.
func TestBlobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	s := w.create(client.CreateInput{Prompt: "@@bytes say@@ @@run printf '\\033[1mbold'; seq 100000 > /tmp/long@@ @@bytes tool /tmp/long@@ @@slow 20 100@@ @@bytes tool@@ @@say end@@"})
	id := s.Session.ID
	w.until(deadline, "the first parts", func() (bool, string) {
		said := text(w.transcript(id), 1)
		return strings.Contains(said, "Step 2"), said
	})
	w.kill()
	w.start()
	turn := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(turn, "completed", "")
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	var long bytes.Buffer
	for i := range 100_000 {
		fmt.Fprintln(&long, i+1)
	}
	want := map[string]string{"every": string(every), "long": long.String()}
	got := map[string]int{}
	for _, p := range w.transcript(id) {
		raw := []byte(p.raw)
		if _, changed := uistream.PlainJSON(raw); changed || !utf8.Valid(raw) {
			t.Errorf("%.200q", raw)
		}
		var d struct {
			Type string        `json:"type"`
			Data uistream.Blob `json:"data"`
		}
		if err := json.Unmarshal(raw, &d); err != nil || d.Type != "data-blob" {
			continue
		}
		content := w.fetchBlob(id, d.Data.ID)
		sum := sha256.Sum256(content)
		if d.Data.ID != "sha256:"+hex.EncodeToString(sum[:]) || d.Data.Bytes != int64(len(content)) {
			t.Errorf("%+v has %d bytes", d.Data, len(content))
		}
		for name, c := range want {
			if c == string(content) {
				got[name]++
			}
		}
	}
	if got["every"] != 2 || got["long"] != 1 {
		t.Errorf("blobs %v", got)
	}
	w.delete(id, true)
	if left, err := filepath.Glob(filepath.Join(w.state, "blobs", "*")); err != nil || len(left) != 0 {
		t.Errorf("left %v %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(w.state, "blobs")); err != nil {
		t.Error(err)
	}
}
