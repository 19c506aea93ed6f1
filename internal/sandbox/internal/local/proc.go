package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Process names one process for good: its number alone may be another's later.
type Process struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // clock ticks since boot
	BootID string `json:"bootId"`
}

// Identify returns the identity of a process that runs now.
func Identify(pid int) (Process, error) {
	st, err := readStat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("find process %d: %w", pid, err)
	}
	if st.dead() {
		return Process{}, fmt.Errorf("process %d has ended", pid)
	}
	return Process{PID: pid, Start: st.start, BootID: BootID()}, nil
}

// Alive tells whether it is still the same process and runs; a dead one that
// nobody has waited for does not.
func (p Process) Alive() bool {
	if p.PID <= 0 || p.BootID != BootID() {
		return false
	}
	st, err := readStat(p.PID)
	return err == nil && st.start == p.Start && !st.dead()
}

type stat struct {
	state byte
	start uint64
}

func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// readStat reads state and start time of a process, see proc_pid_stat(5).
func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(data)
}

func parseStat(data []byte) (stat, error) {
	// The name is in parentheses and may have anything in it: count from the last one.
	i := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[i+1:]))
	if i < 0 || len(fields) < 20 {
		return stat{}, errors.New("unexpected content of a process's stat file")
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("read a process's start time: %w", err)
	}
	return stat{state: fields[0][0], start: start}, nil
}

// BootID is that of the running kernel.
var BootID = sync.OnceValue(func() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
})

// Find returns the running processes, but ourselves, whose arguments match.
func Find(match func(args []string) bool) []int {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var out []int
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil || len(data) == 0 || !match(strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(n)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if st, err := readStat(pid); err == nil && !st.dead() {
			out = append(out, pid)
		}
	}
	return out
}

// KillAll kills the processes that find returns until it returns none that
// runs, and waits for those that are our children: where the server is a
// container's pid 1, a sandbox's processes become its children when their
// parents end.
func KillAll(ctx context.Context, limit time.Duration, find func() []int) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		running := 0
		for _, pid := range find() {
			Reap(pid)
			st, err := readStat(pid)
			if err != nil || st.dead() {
				continue
			}
			running++
			kill(pid, st.start)
		}
		if running == 0 {
			return nil
		}
		if err := Wait(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("%d processes of the sandbox could not be killed: %w", running, err)
		}
	}
}

// kill ends a process if it is still the one that started then.
func kill(pid int, start uint64) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	if st, err := readStat(pid); err != nil || st.start != start {
		return
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// Reap waits for a process if it is a dead child of ours.
func Reap(pid int) {
	if pid > 0 {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

// Wait sleeps unless the context ends first.
func Wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WriteFile replaces a file as a whole: another process sees the old content or
// the new, and so does one after a crash.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone when it was renamed
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// RemoveAll removes a tree even where its folders are not writable for us.
func RemoveAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
