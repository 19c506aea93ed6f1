// Package blob keeps what no part of a transcript can carry: one file for each blob below the
// state folder, masked, and a row that says what became of it. A blob is announced when
// its part is recorded, then taken from the sandbox or known to be missing. It
// fetches nothing itself. Start at [Store].
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// State of a blob.
type State string

// The states. Pending becomes one of the others once.
const (
	Pending State = "pending"
	Stored  State = "stored"
	Missing State = "missing"
)

// Row is what is known of a blob. Key: session and id.
type Row struct {
	Session   string
	ID        string // as the part gives it: "sha256:" and the digest of what the agent said
	Turn      string
	MediaType string
	State     State
	Reason    string // of a missing one, a sentence
	Digest    string // SHA-256 of the file, hexadecimal: another than the id's where something was masked
	Bytes     int64  // of the file; of one that is not there, as the sandbox said
	Masked    int64  // places that were masked
	At        time.Time
}

// Rows keeps rows. Methods may be called concurrently.
type Rows interface {
	// AnnounceBlob adds a pending row, unless there is one, and returns the row as it is then. One
	// of another turn that is not stored becomes this turn's, and pending: there it may be had.
	AnnounceBlob(ctx context.Context, r Row) (Row, error)
	// SettleBlob writes state, reason, digest, bytes and masked of a pending row. Others stay.
	SettleBlob(ctx context.Context, r Row) error
	// Blob reads a row. Code: BLOB_NOT_FOUND.
	Blob(ctx context.Context, session, id string) (Row, error)
	// Blobs reads all rows of a session.
	Blobs(ctx context.Context, session string) ([]Row, error)
	// BlobBytes is the size of all stored blobs of a session.
	BlobBytes(ctx context.Context, session string) (int64, error)
}

// MaxSessionBytes of all blobs of a session.
const MaxSessionBytes = 1 << 30

// settleTime bounds the writing of a row whose file is there.
const settleTime = 5 * time.Second

// Store keeps blobs. Its methods may be called concurrently, [Store.Take] for different blobs.
type Store struct {
	Dir     string // made where needed
	Rows    Rows
	Secrets func() [][]byte
	Room    func() error // why the disk should take nothing more; nil: it may
	Now     func() time.Time
	Log     *slog.Logger

	mu     sync.Mutex
	taking map[string]int64 // bytes of what is being taken, by session
}

const halfPrefix = ".half-"

func (s *Store) path(session, id string) (string, bool) {
	digest, ok := uistream.BlobDigest(id)
	if !ok || session == "" || session != filepath.Base(session) || strings.HasPrefix(session, ".") {
		return "", false
	}
	return filepath.Join(s.Dir, session, digest), true
}

// Announce notes a blob that will be taken. Its state tells whether there is something left to do.
func (s *Store) Announce(ctx context.Context, r Row) (Row, error) {
	r.State, r.At = Pending, s.Now().UTC()
	return s.Rows.AnnounceBlob(ctx, r)
}

// Miss settles a blob that cannot be had.
func (s *Store) Miss(ctx context.Context, r Row, reason string) error {
	s.Log.Warn("blob is missing", "session", r.Session, "turn", r.Turn, "blob", r.ID, "reason", reason)
	r.State, r.Reason, r.Digest, r.Masked = Missing, reason, "", 0
	return s.Rows.SettleBlob(ctx, r)
}

// Take writes what fetch gives, r.Bytes at most, to the blob's file and settles it. The error is fetch's,
// or why it could not be kept; then nothing is settled. A file that is whole is settled even when ctx
// has ended. DISK_FULL: the session has [MaxSessionBytes], counting what others take right now.
func (s *Store) Take(ctx context.Context, r Row, fetch func(context.Context, io.Writer) error) error {
	path, ok := s.path(r.Session, r.ID)
	if !ok {
		return fault.New(fault.BlobNotFound, "%.100q cannot be a blob.", r.ID)
	}
	if s.Room != nil {
		if err := s.Room(); err != nil {
			return err
		}
	}
	if err := s.reserve(ctx, r); err != nil {
		return err
	}
	kept, err := s.write(ctx, path, r, fetch)
	s.mu.Lock() // what is stored is counted once
	defer s.mu.Unlock()
	if s.taking[r.Session] -= r.Bytes; s.taking[r.Session] == 0 {
		delete(s.taking, r.Session)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	return s.Rows.SettleBlob(ctx, kept)
}

// reserve counts a blob that will be taken. Masking makes none larger.
func (s *Store) reserve(ctx context.Context, r Row) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, err := s.Rows.BlobBytes(ctx, r.Session)
	if err != nil {
		return fmt.Errorf("count the session's blobs: %w", err)
	}
	if have+s.taking[r.Session]+r.Bytes > MaxSessionBytes {
		return fault.New(fault.DiskFull, "The session's blobs have reached %d MiB.", MaxSessionBytes>>20)
	}
	if s.taking == nil {
		s.taking = map[string]int64{}
	}
	s.taking[r.Session] += r.Bytes
	return nil
}

// write makes the file of a blob and gives the row that it has then.
func (s *Store) write(ctx context.Context, path string, r Row, fetch func(context.Context, io.Writer) error) (Row, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return r, fmt.Errorf("make folder of blobs: %w", coded(err))
	}
	half, err := os.CreateTemp(filepath.Dir(path), halfPrefix+"*")
	if err != nil {
		return r, fmt.Errorf("make file of blob: %w", coded(err))
	}
	r.Digest, r.Bytes, r.Masked, err = s.fill(ctx, half, fetch)
	if err == nil {
		err = coded(os.Rename(half.Name(), path))
	}
	if err != nil {
		return r, errors.Join(err, ignoreGone(os.Remove(half.Name())))
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return r, fmt.Errorf("keep blob: %w", coded(err))
	}
	r.State, r.Reason = Stored, ""
	return r, nil
}

// fill writes the file, brings it to the disk and closes it.
func (s *Store) fill(ctx context.Context, f *os.File, fetch func(context.Context, io.Writer) error) (digest string, size, masked int64, err error) {
	h := sha256.New()
	mask := transcript.NewMaskWriter(s.Secrets(), io.MultiWriter(f, h))
	err = fetch(ctx, mask)
	if err == nil {
		err = mask.Close()
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		size, err = f.Seek(0, io.SeekCurrent)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return hex.EncodeToString(h.Sum(nil)), size, mask.Masked(), coded(err)
}

// Find reads the row of a blob that is there. Codes: BLOB_NOT_FOUND, BLOB_PENDING, BLOB_MISSING with
// the reason. A blob that is pending may be one that nobody will take any more: the
// caller, who knows of its turn, then says [Gone].
func (s *Store) Find(ctx context.Context, session, id string) (Row, error) {
	r, err := s.Rows.Blob(ctx, session, id)
	if err != nil {
		return r, err
	}
	switch r.State {
	case Pending:
		return r, fault.New(fault.BlobPending, "")
	case Missing:
		return r, missing(r, r.Reason)
	}
	return r, nil
}

// Open opens the file of a blob that was found.
func (s *Store) Open(r Row) (io.ReadCloser, error) {
	path, ok := s.path(r.Session, r.ID)
	if !ok {
		return nil, fault.New(fault.BlobNotFound, "")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(r, "Its file is gone from the server's state folder.")
	}
	if err != nil {
		return nil, fmt.Errorf("open blob: %w", err)
	}
	return f, nil
}

// Gone is the refusal for a blob whose turn has ended while it was pending.
func Gone(r Row) error {
	return missing(r, "The sandbox was gone before it could be fetched.")
}

func missing(r Row, reason string) error {
	return fault.New(fault.BlobMissing, "The blob could not be kept: %s", reason).With("reason", reason).With("blob", r.ID).With("turn", r.Turn)
}

// Remove removes all files of a session; its rows go with the session's.
func (s *Store) Remove(session string) error {
	path, ok := s.path(session, uistream.BlobIDPrefix+strings.Repeat("0", 64))
	if !ok {
		return nil
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		return fmt.Errorf("remove blobs: %w", err)
	}
	return nil
}

// Sweep removes what no row stands for: folders of sessions that are gone, files that were
// not written whole. Call it while nothing is taken.
func (s *Store) Sweep(ctx context.Context, exists func(context.Context, string) (bool, error)) error {
	sessions, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list blobs: %w", err)
	}
	for _, e := range sessions {
		dir := filepath.Join(s.Dir, e.Name())
		there, err := exists(ctx, e.Name())
		if err != nil {
			return err
		}
		if !there {
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("sweep blobs: %w", err)
			}
			continue
		}
		if err := s.sweepOne(ctx, e.Name(), dir); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) sweepOne(ctx context.Context, session, dir string) error {
	rows, err := s.Rows.Blobs(ctx, session)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, r := range rows {
		if digest, ok := uistream.BlobDigest(r.ID); ok && r.State == Stored {
			keep[digest] = true
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list blobs: %w", err)
	}
	for _, f := range files {
		if keep[f.Name()] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
			return fmt.Errorf("sweep blobs: %w", err)
		}
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
