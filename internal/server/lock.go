package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hearthd/hearth/internal/fault"
)

// Lock takes the state folder for this process until the file is closed. It is a lock of
// the process (fcntl), which ends with it: one of the open file (flock) would be held on by
// a child that was just being started when a server is killed, and refuse the next server.
// Code: SERVER_RUNNING.
func Lock(state string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(state, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of the state folder: %w", err)
	}
	whole := syscall.Flock_t{Type: syscall.F_WRLCK}
	err = syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &whole)
	if err == nil {
		return f, nil
	}
	if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EACCES) {
		return nil, errors.Join(fmt.Errorf("lock the state folder %s: %w", state, err), f.Close())
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("lock the state folder %s: %w", state, err)
	}
	holder := "Another server"
	if pid, err := Holder(state); err == nil && pid > 0 {
		holder = fmt.Sprintf("Another server (process %d)", pid)
		if r, ok := ReadRunning(state); ok && r.PID == pid {
			holder += " at " + r.Address
		}
	}
	return nil, fault.New(fault.ServerRunning, "%s works on %s.", holder, state).With("state", state)
}

// Holder is the process that has the state folder's lock: the server that works on it, whether
// it answers or not. 0: there is none. It must not be called in that process itself, which
// would lose the lock (fcntl(2): closing any file of it does).
func Holder(state string) (int, error) {
	f, err := os.OpenFile(filepath.Join(state, "lock"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open lock of the state folder: %w", err)
	}
	whole := syscall.Flock_t{Type: syscall.F_WRLCK}
	err = syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &whole)
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("ask who has the state folder %s: %w", state, err)
	}
	if whole.Type == syscall.F_UNLCK {
		return 0, nil
	}
	return int(whole.Pid), nil
}

// ReadRunning reads what the newest server on a state folder said of itself. Only when its
// process is the folder's Holder does it speak of a server that runs.
func ReadRunning(state string) (Running, bool) {
	var r Running
	raw, err := os.ReadFile(filepath.Join(state, FileServer))
	return r, err == nil && json.Unmarshal(raw, &r) == nil && r.PID > 0
}
