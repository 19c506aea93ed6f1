package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Maker names this process in what it makes for a moment, so that others can tell
// what a killed one has left. It is of digits and a dash.
var Maker = sync.OnceValue(func() string {
	p, err := Identify(os.Getpid())
	if err != nil {
		return strconv.Itoa(os.Getpid()) + "-0"
	}
	return fmt.Sprintf("%d-%d", p.PID, p.Start)
})

// MakerAlive tells whether the process of that name runs.
func MakerAlive(name string) bool {
	a, b, ok := strings.Cut(name, "-")
	pid, err1 := strconv.Atoi(a)
	start, err2 := strconv.ParseUint(b, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return false
	}
	return Process{PID: pid, Start: start, BootID: BootID()}.Alive()
}

// partMark stands before the maker in the name of a folder that is not complete.
const partMark = ".part-"

// NewFolder makes a folder with one file in it. Others see both or nothing, whenever
// this process is killed. One that is there already is fs.ErrExist.
func NewFolder(dir string, mode fs.FileMode, file string, data []byte, fileMode fs.FileMode) error {
	tmp := dir + partMark + Maker()
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, mode); err != nil {
		return err
	}
	err := errors.Join(os.Chmod(tmp, mode), WriteFile(filepath.Join(tmp, file), data, fileMode)) // whatever the umask
	if err == nil {
		if _, lerr := os.Lstat(dir); lerr == nil { // rename would replace an empty one
			err = fmt.Errorf("make %s: %w", dir, fs.ErrExist)
		} else {
			err = os.Rename(tmp, dir)
		}
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return nil
}

// RemoveFolder removes a folder that NewFolder made. Others see it whole or not at all,
// whenever this process is killed and whoever still writes into it.
func RemoveFolder(dir string) error {
	tmp := dir + partMark + Maker()
	if err := RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Rename(dir, tmp); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return RemoveAll(tmp)
}

// SweepParts removes from a folder what killed processes did not complete or did not
// remove wholly.
func SweepParts(parent string) error {
	names, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, n := range names {
		if _, maker, ok := strings.Cut(n.Name(), partMark); ok && !MakerAlive(maker) {
			if err := RemoveAll(filepath.Join(parent, n.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
