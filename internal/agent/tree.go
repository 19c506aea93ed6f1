package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// treeInfo is what hashing a tree found.
type treeInfo struct {
	Hash  string // sha256:HEX
	Files int64
	Bytes int64
}

// seal takes from every file of a tree what must not count: write permission and
// differences of umask. Folders stay writable for their owner, so that they can be removed.
func seal(root string) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.Chmod(p, 0o755)
		case info.Mode().IsRegular() && info.Mode()&0o111 != 0:
			return os.Chmod(p, 0o555)
		case info.Mode().IsRegular():
			return os.Chmod(p, 0o444)
		}
		return nil
	})
}

// hashTree hashes names, kinds, permissions, contents and link targets of all
// below root, in byte order of the paths; times and owners do not count. A link
// that leaves the tree, or anything but files, folders and links, is an error.
func hashTree(ctx context.Context, root string) (treeInfo, error) {
	var t treeInfo
	h := sha256.New()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case mode.IsDir():
			fmt.Fprintf(h, "d %q\n", rel)
		case mode.IsRegular():
			n, sum, err := hashFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "f %q %o %d %s\n", rel, mode.Perm(), n, sum)
			t.Files++
			t.Bytes += n
		case mode&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			if in := filepath.Join(filepath.Dir(rel), to); filepath.IsAbs(to) || in == ".." || strings.HasPrefix(in, "../") {
				return fmt.Errorf("link %s leads out of the tree to %s", rel, to)
			}
			fmt.Fprintf(h, "l %q %q\n", rel, to)
		default:
			return fmt.Errorf("%s is neither file, folder nor link", rel)
		}
		return nil
	})
	if err != nil {
		return treeInfo{}, fmt.Errorf("hash tree: %w", err)
	}
	t.Hash = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return t, nil
}

func hashFile(p string) (int64, string, error) {
	f, err := os.Open(p)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return 0, "", err
	}
	return n, hex.EncodeToString(h.Sum(nil)), nil
}

// copyTree copies files, folders and links from src, which nobody may change
// meanwhile, to dst, which must not be there.
func copyTree(ctx context.Context, src, dst string) error {
	return filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case mode.IsDir():
			return os.Mkdir(to, 0o755)
		case mode.IsRegular():
			return copyFile(p, to, mode.Perm())
		case mode&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return os.Symlink(target, to)
		}
		return fmt.Errorf("%s is neither file, folder nor link", rel)
	})
}

func copyFile(src, dst string, perm fs.FileMode) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	if err := out.Chmod(perm); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
