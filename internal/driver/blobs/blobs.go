// Package blobs keeps what no part of a turn can carry, in files beside the turn
// logs, named by their SHA-256, until the server has fetched them. It is bounded and leaves the
// disk to others: what finds no room is lost and said to be, and never ends a turn.
// Start at [Open].
package blobs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
)

const (
	share   = 16       // at least this part of the disk is left free,
	most    = 16 << 20 // but no more bytes than these are asked to be
	opened  = 64       // blobs that are written at a time
	perTurn = 500      // blobs of a turn, but for the last ones; the server takes more
)

// Store is a folder of blobs. Its methods may be called concurrently.
type Store struct {
	dir   string
	spill string

	making sync.Mutex // held from where a turn's folder is made until something is in it
}

// Open takes the folder, making it where needed. What a former driver left half written is removed.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, spill: filepath.Join(dir, "spill")}
	if err := os.RemoveAll(s.spill); err != nil {
		return nil, fmt.Errorf("empty the folder of long lines: %w", err)
	}
	if err := os.MkdirAll(s.spill, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of blobs: %w", err)
	}
	half, err := filepath.Glob(filepath.Join(dir, "*", "half-*"))
	if err != nil {
		return nil, fmt.Errorf("list blobs: %w", err)
	}
	for _, path := range half {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove half a blob: %w", err)
		}
	}
	return s, nil
}

// SpillDir is the folder for lines that are too long for memory; [Turn.Take] makes blobs of them.
func (s *Store) SpillDir() string { return s.spill }

// Room tells whether the disk has room for some bytes more and what others need.
func (s *Store) Room(n int64) bool {
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &st); err != nil || st.Blocks == 0 {
		return true // it does not tell
	}
	total, free := int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	return free-n >= min(most, total/share)
}

var turnRE = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (s *Store) path(turn, id string) (string, bool) {
	digest, ok := uistream.BlobDigest(id)
	if !ok || !turnRE.MatchString(turn) || turn == filepath.Base(s.spill) {
		return "", false
	}
	return filepath.Join(s.dir, turn, digest), true
}

// Get opens a blob of a turn; fs.ErrNotExist when there is none.
func (s *Store) Get(turn, id string) (*os.File, error) {
	path, ok := s.path(turn, id)
	if !ok {
		return nil, fs.ErrNotExist
	}
	return os.Open(path)
}

// Remove removes a blob, if it is there.
func (s *Store) Remove(turn, id string) error {
	path, ok := s.path(turn, id)
	if !ok {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove blob: %w", err)
	}
	s.making.Lock()
	defer s.making.Unlock()
	_ = os.Remove(filepath.Dir(path)) // when it was the last one
	return nil
}

// Turn makes the blobs of one turn. What other turns have left is removed: a turn begins when the one before
// has ended for the server, which has fetched by then what it wants.
func (s *Store) Turn(turn string) *Turn {
	entries, _ := os.ReadDir(s.dir) // what cannot be listed or removed only takes room
	for _, e := range entries {
		if name := e.Name(); name != turn && name != filepath.Base(s.spill) {
			_ = os.RemoveAll(filepath.Join(s.dir, name))
		}
	}
	return &Turn{s: s, dir: filepath.Join(s.dir, turn), left: uistream.MaxBlobBytes, bad: !turnRE.MatchString(turn)}
}

// Turn is what one turn may keep. Its methods may be called concurrently.
type Turn struct {
	s   *Store
	dir string
	bad bool

	mu    sync.Mutex
	left  int64 // bytes
	open  int
	count int
}

// Create implements convert.Blobs.
func (t *Turn) Create(last bool) convert.BlobWriter {
	t.mu.Lock()
	if !last && (t.open >= opened || t.count >= perTurn) {
		t.mu.Unlock()
		return nil
	}
	t.open++
	t.count++
	t.mu.Unlock()
	w := &Writer{t: t, hash: sha256.New()}
	var err error
	if w.file, err = t.file(); err != nil {
		w.lose(err)
	}
	return w
}

// file is a new one in the turn's folder.
func (t *Turn) file() (*os.File, error) {
	if t.bad {
		return nil, fs.ErrInvalid
	}
	t.s.making.Lock()
	defer t.s.making.Unlock()
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, err
	}
	return os.CreateTemp(t.dir, "half-*")
}

// take counts bytes that a blob wants; false when the turn has no more.
func (t *Turn) take(n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left < n {
		return false
	}
	t.left -= n
	return true
}

func (t *Turn) give(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left += n
}

// Writer writes one blob. Write does not fail: what cannot be kept is told by Seal.
type Writer struct {
	t    *Turn
	file *os.File // nil when it is lost or sealed
	hash hash.Hash
	size int64 // written or lost
	kept int64
	lost string
	done bool
}

// Reasons that Seal tells.
const (
	LostFull  = "The sandbox's disk had no room for it."
	LostLimit = "The turn has kept as much as it may."
	lostOther = "The sandbox could not write it."
)

func (w *Writer) lose(err error) {
	switch {
	case err == nil:
		w.lost = LostLimit
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		w.lost = LostFull
	default:
		w.lost = lostOther
	}
	if w.file != nil {
		_ = w.file.Close()
		_ = os.Remove(w.file.Name())
		w.file = nil
	}
	w.t.give(w.kept)
	w.kept = 0
}

// Write takes the next bytes; the error is always nil.
func (w *Writer) Write(p []byte) (int, error) {
	w.size += int64(len(p))
	if w.file == nil {
		return len(p), nil
	}
	if !w.t.take(int64(len(p))) {
		w.lose(nil)
		return len(p), nil
	}
	w.kept += int64(len(p))
	err := error(syscall.ENOSPC)
	if w.t.s.Room(int64(len(p))) {
		_, err = w.file.Write(p)
	}
	if err != nil {
		w.lose(err)
		return len(p), nil
	}
	w.hash.Write(p)
	return len(p), nil
}

// Seal ends the blob and tells its id and size, or why it is lost.
func (w *Writer) Seal() (id string, size int64, lost string) {
	if w.done {
		return "", w.size, w.lost
	}
	w.done = true
	w.t.mu.Lock()
	w.t.open--
	w.t.mu.Unlock()
	if w.file == nil {
		return "", w.size, w.lost
	}
	name := w.file.Name()
	digest := hex.EncodeToString(w.hash.Sum(nil))
	err := w.file.Close()
	if err == nil {
		err = os.Rename(name, filepath.Join(w.t.dir, digest))
	}
	w.file = nil
	if err != nil {
		_ = os.Remove(name)
		w.lose(err)
		return "", w.size, w.lost
	}
	return uistream.BlobIDPrefix + digest, w.size, ""
}

// Take makes a blob of a file in the store's folder of long lines, which it removes.
func (t *Turn) Take(path string) (id string, size int64, lost string) {
	if filepath.Dir(path) != t.s.spill || !strings.HasPrefix(filepath.Base(path), "line-") {
		return "", 0, lostOther // an agent may name any
	}
	defer func() { _ = os.Remove(path) }()
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return "", 0, lostOther
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return "", 0, lostOther
	}
	if !t.take(st.Size()) {
		return "", st.Size(), LostLimit
	}
	h := sha256.New()
	n, err := io.Copy(h, f)
	digest := hex.EncodeToString(h.Sum(nil))
	if err == nil {
		err = t.move(path, digest)
	}
	if err != nil || n != st.Size() {
		t.give(st.Size())
		return "", st.Size(), lostOther
	}
	return uistream.BlobIDPrefix + digest, n, ""
}

// move takes a file into the turn's folder.
func (t *Turn) move(path, digest string) error {
	t.s.making.Lock()
	defer t.s.making.Unlock()
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	return os.Rename(path, filepath.Join(t.dir, digest))
}
