package blobs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/blobs"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
)

func open(t *testing.T, dir string) *blobs.Store {
	t.Helper()
	s, err := blobs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func idOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func write(w convert.BlobWriter, pieces ...string) (id string, size int64, lost string) {
	for _, p := range pieces {
		_, _ = w.Write([]byte(p))
	}
	return w.Seal()
}

func TestStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	turn := s.Turn("turn_1")
	id, size, lost := write(turn.Create(false), "one ", "two")
	if id != idOf([]byte("one two")) || size != 7 || lost != "" {
		t.Fatalf("%s %d %q", id, size, lost)
	}
	f, err := s.Get("turn_1", id)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(f); err != nil || string(b) != "one two" {
		t.Errorf("%q %v", b, err)
	}
	f.Close()
	half := turn.Create(false)
	_, _ = half.Write([]byte("half"))
	if err := os.WriteFile(filepath.Join(s.SpillDir(), "line-1.json"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir) // a driver that was killed leaves no halves
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "*")); len(left) != 1 {
		t.Errorf("left %v", left)
	}
	for _, x := range [][2]string{{"turn_2", id}, {"turn_1", "sha256:../../x"}, {"../turn_1", id}, {"spill", id}, {"", id}, {"turn_1", ""}} {
		if _, err := s.Get(x[0], x[1]); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: %v", x, err)
		}
		if err := s.Remove(x[0], x[1]); err != nil {
			t.Errorf("%v: %v", x, err)
		}
	}
	if err := errors.Join(s.Remove("turn_1", id), s.Remove("turn_1", id)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "turn_1")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the turn's folder is left")
	}
}

// A blob that is begun while the last one before it is removed has its folder.
func TestRemoveBesideCreate(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	turn := s.Turn("turn_1")
	none := idOf([]byte("none"))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if err := s.Remove("turn_1", none); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	line := filepath.Join(s.SpillDir(), "line-1.json")
	for i := range 200 {
		w := turn.Create(true)
		id, _, lost := write(w, "x")
		if lost == "" {
			if err := s.Remove("turn_1", id); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(line, []byte("y"), 0o600); err != nil {
				t.Fatal(err)
			}
			id, _, lost = turn.Take(line)
		}
		if lost != "" {
			t.Errorf("%d: %s", i, lost)
			break
		}
		if err := s.Remove("turn_1", id); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-done
}

// A turn that begins finds the room of those before it, whose blobs the server has had or will never ask for.
func TestNextTurn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	for _, turn := range []string{"turn_1", "turn_2"} {
		keeps := s.Turn(turn)
		write(keeps.Create(false), "x")
		if left, _ := filepath.Glob(filepath.Join(dir, "turn_*", "*")); len(left) != 1 || filepath.Dir(left[0]) != filepath.Join(dir, turn) {
			t.Errorf("%s: %v", turn, left)
		}
	}
	line := filepath.Join(s.SpillDir(), "line-1.json")
	if err := os.WriteFile(line, []byte("a line that is being read"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Turn("turn_2")
	if _, err := s.Get("turn_2", idOf([]byte("x"))); err != nil {
		t.Error("its own:", err)
	}
	if _, _, lost := s.Turn("turn_3").Take(line); lost != "" {
		t.Error(lost)
	}
}

// Only a line that the connection spilled becomes a blob, whatever file an agent names.
func TestTake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	turn := s.Turn("turn_1")
	secret := filepath.Join(dir, "secret")
	spilled := filepath.Join(s.SpillDir(), "line-1.json")
	link := filepath.Join(s.SpillDir(), "line-2.json")
	if err := errors.Join(os.WriteFile(secret, []byte("s"), 0o600), os.WriteFile(spilled, []byte("long"), 0o600), os.Symlink(secret, link)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{secret, link, "", "/etc/passwd", filepath.Join(s.SpillDir(), "..", "secret"), filepath.Join(s.SpillDir(), "line-3.json")} {
		if id, _, lost := turn.Take(file); id != "" || lost == "" {
			t.Errorf("%s was taken", file)
		}
	}
	if id, n, lost := turn.Take(spilled); id != idOf([]byte("long")) || n != 4 || lost != "" {
		t.Errorf("%s %d %q", id, n, lost)
	}
	if _, err := os.Stat(secret); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.SpillDir(), "*")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// A turn keeps as many bytes and blobs as it may, says what it does not, and goes on with smaller ones.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	turn := s.Turn("turn_1")
	n := 0
	for turn.Create(false) != nil { // none is sealed
		if n++; n > 1000 {
			t.Fatal("no end of blobs at a time")
		}
	}
	if turn.Create(true) == nil {
		t.Error("no last blob")
	}
	turn = s.Turn("turn_2")
	for n = 0; ; n++ {
		w := turn.Create(false)
		if w == nil {
			break
		}
		if id, _, lost := write(w, "x"); id == "" || lost != "" || n > uistream.MaxTurnBlobs {
			t.Fatal(n, lost)
		}
	}
	if n < 100 {
		t.Errorf("%d blobs", n)
	}
	turn = s.Turn("turn_3")
	big := strings.Repeat("x", 64<<20)
	if id, size, lost := write(turn.Create(false), big, big, big, big, "x"); id != "" || size != 256<<20+1 || lost != blobs.LostLimit {
		t.Errorf("%s %d %q", id, size, lost)
	}
	if id, _, lost := write(turn.Create(false), "small"); id == "" || lost != "" {
		t.Errorf("after it: %q", lost)
	}
}

// Where the folder is gone blobs are lost and nothing else happens.
func TestNoFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "x")
	s := open(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if id, size, lost := write(s.Turn("turn_1").Create(false), "abc"); id != "" || size != 3 || lost == "" {
		t.Errorf("%s %d %q", id, size, lost)
	}
}

// stdout is an agent that says one long line and another.
type stdout struct{ r io.Reader }

func (s stdout) Read(p []byte) (int, error) { return s.r.Read(p) }
func (s stdout) Close() error               { return nil }

type nowhere struct{ io.Writer }

func (nowhere) Close() error { return nil }

type repeat struct {
	piece []byte
	left  int64
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), r.left)], r.piece)
	r.left -= int64(n)
	return n, nil
}

// A line of any length takes no more memory than the longest that is held, and what follows it is read.
func TestMemoryOfLongLines(t *testing.T) { // not parallel: it measures the process
	const size = 200 << 20
	s := open(t, t.TempDir())
	c := convert.New("turn_1", time.Now, convert.Options{Blobs: s.Turn("turn_1")})
	c.Begin()
	said := func(text io.Reader) io.Reader {
		return io.MultiReader(strings.NewReader(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"`), text, strings.NewReader("\"}}}}\n"))
	}
	in := io.MultiReader(said(&repeat{[]byte(strings.Repeat("0123456789abcdef", 4<<10)), size}), said(strings.NewReader("after")))
	var text strings.Builder
	var told []uistream.Blob
	conn := acp.NewConn(stdout{in}, nowhere{io.Discard}, acp.Handlers{Notification: func(_ context.Context, n acp.Notification) {
		var u acp.SessionNotification
		if err := acp.Decode(n.Params, &u); err != nil {
			t.Error(err)
		}
		for _, p := range c.Update(u.Update) {
			text.WriteString(p.Text("delta"))
			var d struct {
				Type string        `json:"type"`
				Data uistream.Blob `json:"data"`
			}
			if json.Unmarshal(p.Raw, &d) == nil && d.Type == "data-blob" {
				told = append(told, d.Data)
			}
		}
	}}, acp.Options{SpillDir: s.SpillDir(), SpillRoom: s.Room, MaxLineBytes: 4 << 20})
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var peak atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapInuse))
			select {
			case <-tick.C:
			case <-stop:
				tick.Stop()
				return
			}
		}
	}()
	if err := conn.Run(t.Context()); !errors.Is(err, acp.ErrEOF) {
		t.Error(err)
	}
	close(stop)
	<-done
	if used := int64(peak.Load()) - int64(before.HeapInuse); used > 64<<20 {
		t.Errorf("%d MiB for a line of %d", used>>20, size>>20)
	} else {
		t.Logf("%d MiB for a line of %d", used>>20, size>>20)
	}
	if len(told) != 1 || told[0].Bytes < size || told[0].ID == "" || !strings.Contains(text.String(), "after") {
		t.Errorf("%+v", told)
	}
	f, err := s.Get("turn_1", told[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := make([]byte, 40)
	if _, err := io.ReadFull(f, head); err != nil || !bytes.HasPrefix(head, []byte(`{"jsonrpc":"2.0"`)) {
		t.Errorf("%q %v", head, err)
	}
}
