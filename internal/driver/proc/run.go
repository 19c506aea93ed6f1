package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// drainAfterExit is how long an ended process' output is waited for while
// nothing comes: somebody else may hold the pipe.
const drainAfterExit = 500 * time.Millisecond

// Command is a process to run to its end.
type Command struct {
	Spec
	In       io.Reader // nil: empty
	Out, Err io.Writer // nil: dropped; each is written by one goroutine
	// Ended is called when the process has ended, before the rest of its output is waited for. Optional.
	Ended func()
}

// Run starts a command and returns when it has ended and its output was
// written. When ctx ends, the command's process group is killed. An error of Out
// kills it too and is returned. How the command ended is not an error.
func (t *Table) Run(ctx context.Context, c Command) (Exit, error) {
	var wg sync.WaitGroup
	var theirs, ours []*os.File
	closeAll := func(fs []*os.File) {
		for _, f := range fs {
			f.Close()
		}
	}
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err != nil {
			err = fmt.Errorf("make pipe: %w", err)
		}
		return r, w, err
	}
	fail := func(err error) (Exit, error) {
		closeAll(theirs)
		closeAll(ours)
		return Exit{}, err
	}
	s := c.Spec
	var in, out, errw *os.File
	if c.In != nil {
		r, w, err := pipe()
		if err != nil {
			return fail(err)
		}
		s.Stdin, in = r, w
		theirs, ours = append(theirs, r), append(ours, w)
	}
	if c.Out != nil {
		r, w, err := pipe()
		if err != nil {
			return fail(err)
		}
		s.Stdout, out = w, r
		theirs, ours = append(theirs, w), append(ours, r)
	}
	if c.Err != nil {
		r, w, err := pipe()
		if err != nil {
			return fail(err)
		}
		s.Stderr, errw = w, r
		theirs, ours = append(theirs, w), append(ours, r)
	}
	p, err := t.Start(s)
	if err != nil {
		return fail(err)
	}
	closeAll(theirs)
	defer closeAll(ours)
	stop := context.AfterFunc(ctx, func() { p.Signal(syscall.SIGKILL) })
	defer stop()
	if in != nil {
		wg.Go(func() {
			_, _ = io.Copy(in, c.In) // a program need not read all that it is given
			in.Close()
		})
	}
	var outErr error
	if out != nil {
		wg.Go(func() {
			if outErr = copyOut(c.Out, out, p); outErr != nil {
				p.Signal(syscall.SIGKILL)
			}
		})
	}
	if errw != nil {
		wg.Go(func() { _ = copyOut(c.Err, errw, p) })
	}
	<-p.Done()
	if c.Ended != nil {
		c.Ended()
	}
	now := time.Now() // a pipe's deadline is wall time
	for _, f := range ours {
		if f == in {
			_ = f.SetWriteDeadline(now) // a pipe has deadlines
			continue
		}
		_ = f.SetReadDeadline(now.Add(drainAfterExit))
	}
	wg.Wait()
	if outErr != nil {
		return p.Exit(), fmt.Errorf("output of %s: %w", c.Args[0], outErr)
	}
	if ctx.Err() != nil {
		return p.Exit(), fmt.Errorf("%s: %w", c.Args[0], context.Cause(ctx))
	}
	return p.Exit(), nil
}

// copyOut copies until the end of the pipe, or until nothing comes any more from an ended process.
func copyOut(w io.Writer, r *os.File, p *Process) error {
	buf := make([]byte, 64<<10)
	for {
		select {
		case <-p.Done():
			_ = r.SetReadDeadline(time.Now().Add(drainAfterExit)) // a pipe's deadline is wall time
		default:
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				select {
				case <-p.Done():
					return nil
				default: // the deadline was not for us
					continue
				}
			}
			return nil
		}
	}
}
