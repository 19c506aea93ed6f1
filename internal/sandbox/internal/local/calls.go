package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A program that works on a sandbox is told from others by its arguments, but not
// before it is that program: between fork and execve it still has its parent's. When
// the parent is killed just then, it goes on all the same. So whoever starts such a
// program hands it an open file with a shared lock, see flock(2): that is held from
// before the fork until the program's end, whoever is killed.

// Hold opens a sandbox's file of calls for a program to inherit. The caller closes it
// once the program is started. A sandbox that is being removed is fs.ErrNotExist.
func Hold(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f, unix.LOCK_SH); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fs.ErrNotExist
		}
		return nil, errors.Join(fmt.Errorf("begin a call on the sandbox: %w", err), f.Close())
	}
	return f, nil
}

// EndCalls kills the processes that find returns, see KillAll, until there are none and
// no program holds the sandbox's file of calls. From then on none can begin until
// release is called.
func EndCalls(ctx context.Context, limit time.Duration, path string, find func() []int) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	alone := false
	err = killUntil(ctx, limit, find, func() bool {
		alone = alone || lock(f, unix.LOCK_EX) == nil
		return alone
	})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // nothing was written
}

func lock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
