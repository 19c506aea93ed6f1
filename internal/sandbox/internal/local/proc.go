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
// nobody has waited for does not, unless threads of it are still at work.
func (p Process) Alive() bool {
	if p.PID <= 0 || p.BootID != BootID() {
		return false
	}
	st, err := readStat(p.PID)
	return err == nil && st.start == p.Start && !st.dead()
}

type stat struct {
	state            byte
	threads          int
	start            uint64
	argStart, argEnd uint64 // addresses; zero where we may not know
}

// dead is false while only the first thread has ended: the others still hold and
// write files, and their cgroup cannot be removed.
func (s stat) dead() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

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
	if i < 0 || len(fields) < 47 {
		return stat{}, errors.New("unexpected content of a process's stat file")
	}
	out := stat{state: fields[0][0]}
	var errs [4]error
	out.threads, errs[0] = strconv.Atoi(fields[17])
	out.start, errs[1] = strconv.ParseUint(fields[19], 10, 64)
	out.argStart, errs[2] = strconv.ParseUint(fields[45], 10, 64)
	out.argEnd, errs[3] = strconv.ParseUint(fields[46], 10, 64)
	if err := errors.Join(errs[:]...); err != nil {
		return stat{}, fmt.Errorf("read a process's stat file: %w", err)
	}
	return out, nil
}

// BootID is that of the running kernel.
var BootID = sync.OnceValue(func() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
})

// Find returns the running processes, but ourselves, whose arguments match.
func Find(match func(args []string) bool) []int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	var out []int
	for _, n := range names {
		pid, err := strconv.Atoi(filepath.Base(n))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if args := arguments(pid); len(args) == 0 || !match(args) {
			continue
		}
		if st, err := readStat(pid); err == nil && !st.dead() {
			out = append(out, pid)
		}
	}
	return out
}

// execLimit is how long a process is waited for that is becoming another program.
const execLimit = 200 * time.Millisecond

// arguments are those of a process; none when it has ended. In the middle of
// execve(2) a process has none for a moment: that moment is waited for.
func arguments(pid int) []string {
	for end := time.Now().Add(execLimit); ; time.Sleep(time.Millisecond) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return nil
		}
		if len(data) > 0 {
			return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		}
		if !becoming(pid) || time.Now().After(end) {
			return nil
		}
	}
}

// becoming tells that a process has its new program but not yet its arguments.
// Others without any are threads of the kernel and the dead, which have no
// program, and the sentry's stubs, whose arguments are only unmapped.
func becoming(pid int) bool {
	st, err := readStat(pid)
	if err != nil || st.dead() || st.argStart < st.argEnd {
		return false
	}
	_, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

// KillAll kills the processes that find returns until it returns none that
// runs, and waits for those that are our children: where the server is a
// container's pid 1, a sandbox's processes become its children when their
// parents end.
func KillAll(ctx context.Context, limit time.Duration, find func() []int) error {
	return killUntil(ctx, limit, find, func() bool { return true })
}

// killUntil does so until none was found to run after done was true.
func killUntil(ctx context.Context, limit time.Duration, find func() []int, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		last := done()
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
		if last && running == 0 {
			return nil
		}
		if err := Wait(ctx, 5*time.Millisecond); err != nil {
			if running == 0 {
				return fmt.Errorf("a call that is at work on the sandbox does not end: %w", err)
			}
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
