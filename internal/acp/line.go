package acp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// line is one line without its end. When it was longer than the limit, text is
// a stand-in made by a [skim] and cut tells of the whole.
type line struct {
	text []byte
	cut  *Cut
	size int64
	raw  []byte // the beginning of a cut line
}

// head is the beginning of the line as it came.
func (l line) head(text []byte) []byte {
	if l.cut != nil {
		return l.raw
	}
	return text
}

// lineReader reads lines of any length with bounded memory. A last line without
// an end counts.
type lineReader struct {
	r     *bufio.Reader
	max   int
	dir   string
	limit int64
	room  func(int64) bool
}

func newLineReader(r io.Reader, maxBytes int, dir string, maxSpill int64, room func(int64) bool) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), max: maxBytes, dir: dir, limit: maxSpill, room: room}
}

// ready tells whether the next line is in memory, whole.
func (l *lineReader) ready() bool {
	b, _ := l.r.Peek(l.r.Buffered()) // it cannot fail
	return bytes.IndexByte(b, '\n') >= 0
}

// next returns the next line, whose bytes belong to the caller.
func (l *lineReader) next() (line, error) {
	var text []byte
	for {
		chunk, err := l.r.ReadSlice('\n')
		if len(text)+len(chunk) > l.max+1 {
			return l.long(text, chunk, err)
		}
		text = append(text, chunk...)
		switch {
		case err == nil:
			return line{text: bytes.TrimSuffix(text, []byte("\n")), size: int64(len(text))}, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(text) > 0:
			return line{text: text, size: int64(len(text))}, nil
		default:
			return line{}, err
		}
	}
}

// long reads the rest of a line that does not fit: into a file when there is a
// folder for it, and through a skim for the stand-in. A file that cannot be
// written loses the line's rest, never the session.
func (l *lineReader) long(text, chunk []byte, err error) (line, error) {
	out := line{cut: &Cut{}}
	out.raw = append(out.raw, text[:min(len(text), noiseSampleBytes)]...)
	var (
		s    skim
		file *os.File
	)
	if l.dir != "" {
		if f, ferr := os.CreateTemp(l.dir, "line-*.json"); ferr == nil {
			file = f
		}
	}
	take := func(b []byte) {
		out.size += int64(len(b))
		if n := len(b); n > 0 && b[n-1] == '\n' {
			b = b[:n-1]
		}
		s.write(b)
		out.cut.Bytes += int64(len(b))
		if file == nil {
			return
		}
		ferr := error(syscall.ENOSPC)
		if out.cut.Bytes <= l.limit && (l.room == nil || l.room(int64(len(b)))) {
			_, ferr = file.Write(b)
		}
		if ferr != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
			file = nil
		}
	}
	take(text)
	text = nil
	for {
		take(chunk)
		if err == nil || errors.Is(err, io.EOF) {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			err = fmt.Errorf("in the middle of a line: %w", err)
			break
		}
		chunk, err = l.r.ReadSlice('\n')
	}
	if file != nil {
		out.cut.File = file.Name()
		if cerr := file.Close(); cerr != nil {
			_ = os.Remove(out.cut.File)
			out.cut.File = ""
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return line{}, err
	}
	out.text = s.standIn(out.cut)
	return out, nil
}
