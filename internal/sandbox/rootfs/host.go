package rootfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

// entry is one file, folder or link of a generated root.
type entry struct {
	path string // relative, slashes
	mode fs.FileMode
	data []byte
	link string
}

// hostFiles are the only files of the host's /etc that go into the host root,
// and only where everybody may read them.
var hostFiles = []string{
	"etc/ld.so.cache",
	"etc/mime.types",
	"etc/os-release",
	"etc/protocols",
	"etc/services",
	"etc/ssl/openssl.cnf",
}

// caBundles are the places where distributions keep the CA bundle; the first
// that is there is used.
var caBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

const caPath = "etc/ssl/certs/ca-certificates.crt"

var generatedFiles = []entry{
	{path: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:" + sandbox.PathHome + ":/bin/sh\nagent:x:1000:1000:agent:" + sandbox.PathHome + ":/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")},
	{path: "etc/group", mode: 0o644, data: []byte("root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n")},
	{path: "etc/nsswitch.conf", mode: 0o644, data: []byte("passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n")},
	{path: "etc/resolv.conf", mode: 0o644},
}

const hostFileMax = 8 << 20

// Host makes or finds the host root: empty folders, a few generated and a few
// copied files in /etc, the CA bundle, and the host's /usr by read-only bind. It
// is a list of what is shown; nothing else of the host is. The digest covers
// the root's own content, not what the binds show. Code: ROOT_INVALID.
func (s *Store) Host(ctx context.Context) (Root, error) {
	entries, binds, err := s.hostEntries()
	if err != nil {
		return Root{}, err
	}
	digest := digestOf(entries)
	dir, err := s.make(ctx, "host-"+digest[:32], func(dir string) error { return write(dir, entries) })
	if err != nil {
		return Root{}, rootFault(err, "The host root could not be made.")
	}
	masks, err := s.masks(ctx)
	if err != nil {
		return Root{}, err
	}
	return Root{Kind: "host", Dir: dir, Digest: "sha256:" + digest, Binds: append(binds, masks...)}, nil
}

func (s *Store) hostEntries() ([]entry, []sandbox.Bind, error) {
	if fi, err := os.Stat("/usr"); err != nil || !fi.IsDir() {
		return nil, nil, fault.Wrap(err, fault.RootInvalid, "This machine has no /usr, so there is no host root: use an OCI image.")
	}
	entries := slices.Clone(skeleton)
	entries = append(entries, entry{path: "usr", mode: fs.ModeDir | 0o755}, entry{path: "etc/ssl", mode: fs.ModeDir | 0o755},
		entry{path: "etc/ssl/certs", mode: fs.ModeDir | 0o755}, entry{path: "etc/alternatives", mode: fs.ModeDir | 0o755})
	entries = append(entries, generatedFiles...)
	binds := []sandbox.Bind{{Source: "/usr", Target: "/usr"}}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		fi, err := os.Lstat("/" + name)
		switch {
		case err != nil:
		case fi.Mode()&fs.ModeSymlink != 0:
			if t, err := os.Readlink("/" + name); err == nil && below(resolveLink("/"+name, t), "/usr") {
				entries = append(entries, entry{path: name, mode: fs.ModeSymlink, link: t})
			}
		case fi.IsDir(): // a distribution whose /bin is not in /usr
			entries = append(entries, entry{path: name, mode: fs.ModeDir | 0o755})
			binds = append(binds, sandbox.Bind{Source: "/" + name, Target: "/" + name})
		}
	}
	for _, name := range hostFiles {
		if data, err := readPublic("/" + name); err == nil {
			entries = append(entries, entry{path: name, mode: 0o644, data: data})
		}
	}
	entries = append(entries, links("/etc/alternatives")...)
	ca, err := s.caBundle()
	if err != nil {
		return nil, nil, err
	}
	if len(ca) > 0 {
		entries = append(entries, entry{path: caPath, mode: 0o644, data: ca})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return entries, binds, nil
}

func (s *Store) caBundle() ([]byte, error) {
	var out []byte
	for _, p := range caBundles {
		if data, err := readPublic(p); err == nil {
			out = data
			break
		}
	}
	if s.cfg.ExtraCA == "" {
		return out, nil
	}
	extra, err := os.ReadFile(s.cfg.ExtraCA)
	if err != nil {
		return nil, fault.Wrap(err, fault.RootInvalid, "The extra CA file %s could not be read.", s.cfg.ExtraCA)
	}
	for rest := extra; ; {
		block, tail := pem.Decode(rest)
		if block == nil {
			if bytes.Equal(rest, extra) {
				return nil, fault.New(fault.RootInvalid, "The extra CA file %s has no PEM block in it.", s.cfg.ExtraCA)
			}
			return out, nil
		}
		if block.Type != "CERTIFICATE" { // never carry a private key inside
			return nil, fault.New(fault.RootInvalid, "The extra CA file %s has a %s in it: leave only certificates there.", s.cfg.ExtraCA, block.Type)
		}
		out = append(append(bytes.TrimRight(out, "\n"), '\n'), pem.EncodeToMemory(block)...)
		rest = tail
	}
}

// masks returns binds of an empty file or folder over each excluded path that is there.
func (s *Store) masks(ctx context.Context) ([]sandbox.Bind, error) {
	var out []sandbox.Bind
	for _, p := range s.cfg.Exclude {
		fi, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, rootFault(err, "The excluded path %s could not be looked at.", p)
		}
		empty, err := s.make(ctx, "empty", func(dir string) error {
			return write(dir, []entry{{path: "dir", mode: fs.ModeDir | 0o755}, {path: "file", mode: 0o644}})
		})
		if err != nil {
			return nil, rootFault(err, "The excluded path %s could not be covered.", p)
		}
		kind := "file"
		if fi.IsDir() {
			kind = "dir"
		}
		out = append(out, sandbox.Bind{Source: filepath.Join(empty, kind), Target: p})
	}
	return out, nil
}

// readPublic reads a regular file that everybody may read.
func readPublic(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o004 == 0 || fi.Size() > hostFileMax {
		return nil, fs.ErrPermission
	}
	return io.ReadAll(io.LimitReader(f, hostFileMax))
}

// links returns the symbolic links in a folder of the host that lead into /usr
// or stay in the folder.
func links(dir string) []entry {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []entry
	for _, n := range names {
		p := filepath.Join(dir, n.Name())
		t, err := os.Readlink(p)
		if err != nil {
			continue
		}
		if to := resolveLink(p, t); below(to, "/usr") || below(to, "/bin") || below(to, "/sbin") || below(to, "/lib") || below(to, dir) {
			out = append(out, entry{path: strings.TrimPrefix(p, "/"), mode: fs.ModeSymlink, link: t})
		}
	}
	return out
}

func resolveLink(at, target string) string {
	if filepath.IsAbs(target) {
		return filepath.Clean(target)
	}
	return filepath.Join(filepath.Dir(at), target)
}

func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// digestOf is the hash over paths, modes, links and content in order of path.
func digestOf(entries []entry) string {
	h := sha256.New()
	for _, e := range entries {
		fmt.Fprintf(h, "%q %o %q %d\n", e.path, uint32(e.mode), e.link, len(e.data))
		h.Write(e.data)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func write(dir string, entries []entry) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, e := range entries {
		if parent := filepath.Dir(e.path); parent != "." {
			if err := root.MkdirAll(parent, 0o755); err != nil {
				return err
			}
		}
		switch {
		case e.mode&fs.ModeSymlink != 0:
			err = root.Symlink(e.link, e.path)
		case e.mode.IsDir():
			if err = root.MkdirAll(e.path, 0o755); err == nil {
				err = root.Chmod(e.path, e.mode&(fs.ModePerm|fs.ModeSticky))
			}
		default:
			if err = root.WriteFile(e.path, e.data, e.mode.Perm()); err == nil {
				err = root.Chmod(e.path, e.mode.Perm()) // whatever the umask
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rootFault gives an uncoded error the code ROOT_INVALID, or DISK_FULL where that is the cause.
func rootFault(err error, format string, args ...any) error {
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fault.Wrap(err, fault.DiskFull, format, args...)
	}
	return fault.Wrap(err, fault.RootInvalid, format, args...)
}
