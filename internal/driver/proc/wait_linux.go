package proc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// waitNoReap returns when the child has ended and leaves it to be reaped.
func waitNoReap(pid int) error {
	return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
}

// Subreaper makes this program inherit the orphans among its descendants, as a first process does anyway.
func Subreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return nil
}
