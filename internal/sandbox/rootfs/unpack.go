package rootfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one image, against archives made to fill a disk.
const (
	maxBytes   = 32 << 30
	maxEntries = 4 << 20
	maxLinks   = 64 // symbolic links in one path
)

// unpacker applies layers to a folder. All file system calls go through an
// [os.Root], and paths are resolved here first, the way they would be inside:
// an absolute link starts at the root again, and ".." stops there. So nothing in
// an archive can reach outside, and what a later layer puts below a link of an
// earlier one lands where the guest would see it.
type unpacker struct {
	root    *os.Root
	owner   bool // ownership is kept
	bytes   int64
	most    int64 // bytes of all files together
	entries int
	fresh   map[string]bool // resolved paths that the layer at work has made
	late    []lateDir       // modes and times of folders, set at the end
	lateAt  map[string]int
}

type lateDir struct {
	path  string
	mode  fs.FileMode
	mtime time.Time
}

func newUnpacker(dir string) (*unpacker, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &unpacker{root: root, owner: os.Geteuid() == 0, most: maxBytes, lateAt: map[string]int{}}, nil
}

func (u *unpacker) close() { _ = u.root.Close() }

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

func (u *unpacker) layer(r io.Reader) error {
	u.fresh = map[string]bool{}
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if u.entries++; u.entries > maxEntries {
			return fmt.Errorf("the image has more than %d entries", maxEntries)
		}
		if err := u.entry(h, in); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if strings.ContainsRune(h.Name, 0) {
		return errors.New("the name is not valid")
	}
	clean := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if clean == "" {
		return nil // the root folder itself is ours
	}
	dir, err := u.resolveDir(path.Dir(clean))
	if err != nil {
		return err
	}
	base := path.Base(clean)
	switch {
	case base == opaque:
		return u.clear(dir)
	case strings.HasPrefix(base, whiteout):
		name := strings.TrimPrefix(base, whiteout)
		if name == "" || name == "." || name == ".." {
			return errors.New("the whiteout names nothing")
		}
		target := path.Join(dir, name)
		if u.fresh[target] {
			return nil // a whiteout concerns earlier layers only
		}
		return u.root.RemoveAll(target)
	}
	return u.put(path.Join(dir, base), h, content)
}

// put makes one file, folder or link at a resolved path.
func (u *unpacker) put(p string, h *tar.Header, content io.Reader) error {
	u.fresh[p] = true
	old, err := u.root.Lstat(p)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old != nil && !(old.IsDir() && h.Typeflag == tar.TypeDir) {
		if err := u.root.RemoveAll(p); err != nil {
			return err
		}
		old = nil
	}
	// setuid and setgid are of no use inside, where no program gains privileges,
	// and dangerous on the host, where the file could be reached.
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		if old == nil {
			if err := u.root.Mkdir(p, 0o700); err != nil {
				return err
			}
		}
		if h.Mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
		u.later(lateDir{p, mode, h.ModTime})
		return u.chown(p, h)
	case tar.TypeReg:
		return u.file(p, h, mode, content)
	case tar.TypeSymlink:
		if err := u.root.Symlink(h.Linkname, p); err != nil {
			return err
		}
		return u.chown(p, h)
	case tar.TypeLink:
		clean := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
		if clean == "" {
			return errors.New("a hard link to the root")
		}
		dir, err := u.resolveDir(path.Dir(clean))
		if err != nil {
			return err
		}
		return u.root.Link(path.Join(dir, path.Base(clean)), p)
	}
	return nil // devices, FIFOs and the like are left out
}

func (u *unpacker) file(p string, h *tar.Header, mode fs.FileMode, content io.Reader) error {
	if u.bytes += h.Size; h.Size < 0 || u.bytes > u.most {
		return fmt.Errorf("the image has more than %d bytes", u.most)
	}
	f, err := u.root.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := u.chown(p, h); err != nil {
		return err
	}
	if err := u.root.Chmod(p, mode); err != nil {
		return err
	}
	return u.root.Chtimes(p, h.ModTime, h.ModTime)
}

func (u *unpacker) chown(p string, h *tar.Header) error {
	if !u.owner {
		return nil
	}
	return u.root.Lchown(p, h.Uid, h.Gid)
}

func (u *unpacker) later(d lateDir) {
	if i, ok := u.lateAt[d.path]; ok {
		u.late[i] = d
		return
	}
	u.lateAt[d.path] = len(u.late)
	u.late = append(u.late, d)
}

// clear removes what earlier layers have put into a folder.
func (u *unpacker) clear(dir string) error {
	f, err := u.root.Open(dir)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	_ = f.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		p := path.Join(dir, n)
		if u.fresh[p] {
			if fi, err := u.root.Lstat(p); err == nil && fi.IsDir() {
				if err := u.clear(p); err != nil {
					return err
				}
			}
			continue
		}
		if err := u.root.RemoveAll(p); err != nil {
			return err
		}
	}
	return nil
}

// resolveDir follows a path to a folder as the guest would, makes what is
// missing, and returns a path without links.
func (u *unpacker) resolveDir(p string) (string, error) {
	todo := strings.Split(p, "/")
	at, links := ".", 0
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at) // of "." this is "." again
			continue
		}
		next := path.Join(at, name)
		fi, err := u.root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := u.root.Mkdir(next, 0o755); err != nil {
				return "", err
			}
			u.later(lateDir{next, 0o755, time.Time{}})
			at = next
		case err != nil:
			return "", err
		case fi.IsDir():
			at = next
		case fi.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", errors.New("too many symbolic links")
			}
			target, err := u.root.Readlink(next)
			if err != nil {
				return "", err
			}
			if path.IsAbs(target) {
				at = "."
			}
			todo = append(strings.Split(target, "/"), todo...)
		default:
			return "", fmt.Errorf("%s is not a folder", next)
		}
	}
	return at, nil
}

// skeleton adds what every root must have, where the image does not.
func (u *unpacker) skeleton() error {
	for _, e := range skeleton {
		if e.mode.IsDir() {
			dir, err := u.resolveDir(e.path)
			if err != nil {
				return fmt.Errorf("make %s: %w", e.path, err)
			}
			if i, ok := u.lateAt[dir]; ok && u.late[i].mtime.IsZero() { // ours, not the image's
				u.late[i].mode = e.mode & (fs.ModePerm | fs.ModeSticky)
			}
			continue
		}
		dir, err := u.resolveDir(path.Dir(e.path))
		if err != nil {
			return fmt.Errorf("make %s: %w", e.path, err)
		}
		p := path.Join(dir, path.Base(e.path))
		if fi, err := u.root.Lstat(p); err == nil && fi.Mode().IsRegular() {
			continue
		}
		if err := u.root.RemoveAll(p); err != nil {
			return err
		}
		if err := u.root.WriteFile(p, nil, e.mode.Perm()); err != nil {
			return fmt.Errorf("make %s: %w", e.path, err)
		}
	}
	return nil
}

// finish gives the folders their modes and times, the deepest first, since a
// mode may shut us out and each change below moves a time.
func (u *unpacker) finish() error {
	for i := len(u.late) - 1; i >= 0; i-- {
		d := u.late[i]
		fi, err := u.root.Lstat(d.path)
		if err != nil || !fi.IsDir() {
			continue // a later layer took it away
		}
		mode := d.mode
		if !u.owner {
			mode |= 0o700 // or we could not remove it
		}
		if err := u.root.Chmod(d.path, mode); err != nil {
			return err
		}
		if !d.mtime.IsZero() {
			if err := u.root.Chtimes(d.path, d.mtime, d.mtime); err != nil {
				return err
			}
		}
	}
	return nil
}
