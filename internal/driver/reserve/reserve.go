// Package reserve keeps a little room on a disk that others fill: a file that is
// given back to the disk when it is full, so that what must be written still can
// be. It does not guard the room that it gives back. Start at [New].
package reserve

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

const (
	share = 12      // the reserve is at most this part of the disk
	low   = 4       // little is left: less than this part of what the reserve should be
	block = 4 << 10 // bytes; sizes are multiples of it
)

// Reserve is the file. Its methods may be called concurrently.
type Reserve struct {
	path string
	most int64

	mu sync.Mutex
}

// New takes over the file at path or has none yet. most is its size in bytes on a disk that is large enough.
func New(path string, most int64) *Reserve { return &Reserve{path: path, most: most} }

// Balance makes the reserve as large as it should be, but leaves the disk as much
// as it takes: on a full disk half of it is given back. It may write all of its bytes.
func (r *Reserve) Balance() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	size, err := r.size()
	if err != nil {
		return err
	}
	want := r.most
	if total, free, ok := r.space(); ok {
		want = min(r.most, total/share, (free+size)/2)
	}
	want -= want % block
	switch {
	case want < size:
		if err := os.Truncate(r.path, want); err != nil {
			return fmt.Errorf("give back reserve: %w", err)
		}
	case want > size:
		return r.grow(size, want)
	}
	return nil
}

func (r *Reserve) grow(size, want int64) error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make reserve: %w", err)
	}
	defer f.Close()
	buf := make([]byte, 256<<10)
	for i := range buf { // what a disk that packs or shares its blocks keeps as it is
		buf[i] = byte(rand.Uint32()) // no secret
	}
	for at := size; at < want; {
		n, err := f.WriteAt(buf[:min(int64(len(buf)), want-at)], at)
		at += int64(n)
		if err != nil { // there is less than was told
			return errors.Join(fmt.Errorf("make reserve: %w", err), f.Truncate(at/2))
		}
	}
	return nil
}

// Free gives all back to the disk. It is false when there was nothing.
func (r *Reserve) Free() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	size, err := r.size()
	return err == nil && os.Remove(r.path) == nil && size > 0
}

// Room gives all back when little is left on the disk.
func (r *Reserve) Room() {
	total, free, ok := r.space()
	if ok && free < min(r.most, total/share)/low {
		r.Free()
	}
}

func (r *Reserve) size() (int64, error) {
	st, err := os.Lstat(r.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("look at reserve: %w", err)
	case !st.Mode().IsRegular():
		return 0, fmt.Errorf("look at reserve: %s is not a file", r.path)
	}
	return st.Size(), nil
}

// space is false where the disk does not tell.
func (r *Reserve) space() (total, free int64, ok bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(r.path), &st); err != nil || st.Blocks == 0 {
		return 0, 0, false
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, true
}
