// Package mounts asks the kernel what sandboxes show of the host. Every provider's
// sandbox has its binds mounted in some process's mount namespace, so that is the one
// place that knows of all sandboxes, those of another server too. It mounts nothing.
// Start at [Shown].
package mounts

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Shown tells which of some names, each of a file or folder that has it for itself on
// this machine, are in the source of a mount of a process that runs. Processes of other
// users that may not be looked at are passed over; one of our own that cannot be read
// is an error, since what it shows is not known then.
func Shown(names []string) (map[string]bool, error) {
	out := map[string]bool{}
	if len(names) == 0 {
		return out, nil
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, p := range procs { // also those that share a namespace: each sees what is below its own root
		raw, err := os.ReadFile(p + "/mountinfo")
		if err != nil {
			if gone(err) || !ours(p) {
				continue
			}
			return nil, fmt.Errorf("read the mounts of process %s: %w", filepath.Base(p), err)
		}
		for line := range bytes.Lines(raw) {
			mark(out, names, string(line))
		}
	}
	return out, nil
}

// mark looks for names in the root of a mount, which is the fourth field of mountinfo, see
// proc_pid_mountinfo(5).
func mark(out map[string]bool, names []string, line string) {
	f := strings.Fields(line)
	if len(f) < 4 {
		return
	}
	for part := range strings.SplitSeq(f[3], "/") {
		for _, n := range names {
			if part == n {
				out[n] = true
			}
		}
	}
}

// gone tells the errors of a process that has ended meanwhile, or is a zombie.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EINVAL)
}

func ours(proc string) bool {
	fi, err := os.Stat(proc)
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
