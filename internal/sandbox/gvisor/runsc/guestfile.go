package runsc

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// GuestFileName is the name under which the program, run inside a sandbox,
// reads a file to its stdout ("read PATH MAX") or writes its stdin to one
// ("write PATH MODE", octal). Exit status: 0 done, 2 not there, 3 disk full,
// 1 anything else, which stderr says.
const GuestFileName = "hearth-guest-file"

// GuestWaitName as the only argument makes the program wait for ever: pid 1 of a
// sandbox that is only looked at.
const GuestWaitName = "hearth-guest-wait"

func guestFile(args []string) int {
	err := errors.New("expected read PATH MAX or write PATH MODE")
	if len(args) == 3 {
		switch args[0] {
		case "read":
			err = guestRead(args[1], args[2])
		case "write":
			err = guestWrite(args[1], args[2])
		}
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, fs.ErrNotExist):
		return 2
	case errors.Is(err, unix.ENOSPC):
		return 3
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func guestRead(path, limit string) error {
	most, err := strconv.ParseInt(limit, 10, 64)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not hold us up
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return err
	}
	if int64(len(data)) > most {
		return fmt.Errorf("%s has more than %d bytes", path, most)
	}
	_, err = os.Stdout.Write(data)
	return err
}

func guestWrite(path, mode string) error {
	perm, err := strconv.ParseUint(mode, 8, 9)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".hearth-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone when it was renamed
	_, err = io.Copy(f, os.Stdin)
	if err = errors.Join(err, f.Chmod(fs.FileMode(perm)), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
