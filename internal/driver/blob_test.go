package driver_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

func idOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// blobs are those that a turn tells of.
func (o outcome) blobs() []uistream.Blob {
	var out []uistream.Blob
	for _, r := range o.records {
		var p struct {
			Type string        `json:"type"`
			Data uistream.Blob `json:"data"`
		}
		if json.Unmarshal(r.Part, &p) == nil && p.Type == "data-blob" {
			out = append(out, p.Data)
		}
	}
	return out
}

func (b *box) blob(turn string, d uistream.Blob) []byte {
	b.t.Helper()
	var got bytes.Buffer
	if err := b.client.Blob(b.t.Context(), turn, d.ID, d.Bytes, &got); err != nil {
		b.t.Fatal(err)
	}
	return got.Bytes()
}

func (b *box) file(name string, content []byte) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// Every byte that an agent can say is in a blob, whoever says it and however long the line is.
func TestEveryByteSurvives(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for name, n := range map[string]int{"64k": 64<<10 + 1, "1m": 1<<20 + 1, "10m": 10<<20 + 1} {
		long := bytes.Repeat([]byte("line of output\n"), n/15+1)[:n]
		file := b.file(name, long)
		turn := "turn_" + name
		o := b.run(turn, turnRequest("@@bytes tool@@ @@bytes say@@ @@bytes tool "+file+"@@ @@say after@@"))
		if !o.end.Clean || !strings.Contains(o.text(), "after") {
			t.Fatalf("%s: %+v", name, o.end)
		}
		if err := wholeLog(turn, o); err != nil {
			t.Error(name, err)
		}
		for _, r := range o.records {
			plain, changed := uistream.PlainJSON(r.Part)
			if !utf8.Valid(r.Part) || changed || bytes.Contains(plain, []byte(`\u001`)) || bytes.Contains(plain, []byte(`\u0000`)) {
				t.Errorf("%s: a part has what it may not: %.200q", name, r.Part)
			}
		}
		want := []string{idOf(every), idOf(every)}
		if n > 448<<10 {
			want = append(want, idOf(long))
		}
		var got []string
		for _, d := range o.blobs() {
			got = append(got, idOf(b.blob(turn, d)))
			if d.ID != got[len(got)-1] {
				t.Errorf("%s: the blob %+v is another", name, d)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if d := cmp.Diff(want, got); d != "" {
			t.Error(name, d)
		}
		for _, d := range o.blobs() {
			if err := b.client.BlobDone(t.Context(), turn, d.ID); err != nil {
				t.Error(err)
			}
			if err := b.client.Blob(t.Context(), turn, d.ID, d.Bytes, &bytes.Buffer{}); fault.CodeOf(err) != fault.BlobNotFound {
				t.Errorf("after it is done: %v", err)
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(b.cfg.State, "blobs", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// A line that no memory should hold becomes a blob by way of the disk, and the turn goes on.
func TestLineBeyondMemory(t *testing.T) {
	t.Parallel()
	b := scratch(t)
	o := b.run("turn_1", turnRequest("@@line 104857600@@ @@say after@@"))
	if !o.end.Clean || !strings.Contains(o.text(), "after") {
		t.Fatalf("end %+v", o.end)
	}
	d := o.blobs()
	if len(d) != 1 || d[0].Why != uistream.BlobTooLarge || d[0].Bytes < 100<<20 {
		t.Fatalf("%+v", d)
	}
	raw := b.blob("turn_1", d[0])
	var line struct {
		Params struct {
			Update struct {
				Content struct{ Text string } `json:"content"`
			} `json:"update"`
		} `json:"params"`
	}
	if err := json.Unmarshal(raw, &line); err != nil || len(line.Params.Update.Content.Text) != 100<<20 {
		t.Errorf("%d bytes of text, %v", len(line.Params.Update.Content.Text), err)
	}
	if left, err := filepath.Glob(filepath.Join(b.cfg.State, "blobs", "spill", "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// What a turn says beyond its limit is a blob of parts, in order, none missing.
func TestRestOfATurn(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.parts = 2000
	b.start()
	b.mustSetup(nil)
	b.mustAgent()
	o := b.run("turn_1", turnRequest("@@flood 3000@@ @@say end@@"))
	d := o.blobs()
	if !o.end.Clean || len(d) != 1 || d[0].Why != uistream.BlobTurnLimit {
		t.Fatalf("%+v %+v", o.end, d)
	}
	if err := wholeLog("turn_1", o); err != nil {
		t.Error(err)
	}
	text := o.text()
	for line := range bytes.Lines(b.blob("turn_1", d[0])) {
		p, err := uistream.Parse(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			t.Fatal(err)
		}
		text += p.Text("delta")
	}
	for _, want := range []string{"Update 1. ", "Update 2999. ", "Update 3000. ", "end"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if n := strings.Count(text, "Update "); n != 3000 {
		t.Errorf("%d updates", n)
	}
}

// Where the disk has no room for a blob it is lost and said to be; the turn goes on.
func TestBlobOnAFullDisk(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	onSmallDisk(t, b, "8m")
	b.start()
	b.mustSetup(nil)
	b.mustAgent()
	long := b.file("long", bytes.Repeat([]byte("line of output\n"), 800<<10))
	type said struct {
		Why  string
		Lost bool
	}
	for turn, tt := range map[string]struct {
		prompt string
		want   []said
	}{
		"turn_1": {"@@bytes tool " + long + "@@ @@bytes say@@ @@say after@@", []said{{"too_large", true}, {"not_text", false}}},
		"turn_2": {"@@line 68200000@@ @@bytes tool@@ @@say after@@", []said{{"too_large", true}, {"not_text", false}}},
	} {
		o := b.run(turn, turnRequest(tt.prompt))
		if d := cmp.Diff(end{"end_turn", "", true}, ended(o.end)); d != "" {
			t.Fatalf("%s %+v", d, o.end)
		}
		if !strings.Contains(o.text(), "after") {
			t.Error("nothing came after")
		}
		var got []said
		for _, d := range o.blobs() {
			got = append(got, said{d.Why, d.Lost != ""})
			if d.Lost != "" && (d.ID != "" || d.Bytes < 12_000_000) {
				t.Errorf("%+v", d)
			}
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Error(turn, d)
		}
	}
}
