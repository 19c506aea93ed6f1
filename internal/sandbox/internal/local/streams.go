package local

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/sandbox"
)

// Streams are a command's stdin, stdout and stderr, carried through pipes that
// are ours. Order of calls: Attach, the command's Start, Started, the command's
// Wait, Drain, Close. Close alone is enough when something before has failed.
type Streams struct {
	outs   []*output
	stdin  *os.File // our end
	theirs *os.File
	from   io.Reader
}

// Attach makes the pipes that c needs and gives their other ends to cmd.
func (s *Streams) Attach(cmd *exec.Cmd, c sandbox.Command) error {
	for _, to := range []struct {
		w   io.Writer
		set *io.Writer
	}{{c.Stdout, &cmd.Stdout}, {c.Stderr, &cmd.Stderr}} {
		if to.w == nil {
			continue
		}
		out, err := newOutput(to.w)
		if err != nil {
			return err
		}
		s.outs = append(s.outs, out)
		*to.set = out.w
	}
	if c.Stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.stdin, s.theirs, s.from = w, r, c.Stdin
		cmd.Stdin = r
	}
	return nil
}

// Started begins to carry, once the command has its ends.
func (s *Streams) Started() {
	for _, o := range s.outs {
		o.run()
	}
	if s.stdin == nil {
		return
	}
	s.theirs.Close()
	go func() { // ends with its reader, or at the next write after the command's end
		_, _ = io.Copy(s.stdin, s.from)
		s.stdin.Close()
	}()
}

// Drain is called when the command has ended: it passes on what was written
// before and waits for nobody who still holds a pipe.
func (s *Streams) Drain() {
	for _, o := range s.outs {
		o.drain()
	}
}

// Close gives up the pipes.
func (s *Streams) Close() {
	for _, o := range s.outs {
		o.w.Close()
		o.r.Close()
	}
	if s.stdin != nil {
		s.theirs.Close()
		s.stdin.Close()
	}
}

// output carries one of a command's streams through a pipe. The command's end
// ends it, not the pipe's: whatever was written before is passed on, and who
// still holds the pipe then is not waited for.
type output struct {
	to      io.Writer
	r, w    *os.File
	done    chan struct{}
	started bool
}

func newOutput(to io.Writer) (*output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &output{to: to, r: r, w: w, done: make(chan struct{})}, nil
}

func (o *output) run() {
	o.w.Close()
	o.started = true
	go func() { // waited for in drain
		defer close(o.done)
		_, err := io.Copy(struct{ io.Writer }{o.to}, struct{ io.Reader }{o.r})
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			o.r.Close() // nobody takes the output: the command gets EPIPE and does not wait for us
		}
	}()
}

// pipeSize is what a pipe can hold at most when nobody made it larger.
const pipeSize = 64 << 10

// drain stops reading and passes on what the pipe still holds.
func (o *output) drain() {
	if !o.started {
		return
	}
	_ = o.r.SetReadDeadline(time.Unix(1, 0))
	<-o.done
	raw, err := o.r.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, pipeSize)
	for left := pipeSize; left > 0; {
		n := 0
		_ = o.r.SetReadDeadline(time.Time{})
		err := raw.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buf[:left])
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		if _, err := o.to.Write(buf[:n]); err != nil {
			return
		}
		left -= n
	}
}
