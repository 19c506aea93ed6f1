// Package turnlog keeps what happened in each turn on disk, as lines of JSON
// ([driverapi.Record]), so that a reader who was cut off goes on where it was
// and a turn is never begun twice. A line is in the file before a reader sees
// it. Start at [Open].
package turnlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

var (
	// ErrExists says that the turn was begun before.
	ErrExists = errors.New("the turn has a log already")
	// ErrName says that a turn's name cannot be one.
	ErrName = errors.New("not a turn's name")
	// ErrEnded says that something was said after the end.
	ErrEnded = errors.New("the turn has ended")
)

var nameRE = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

const suffix = ".ndjson"

// tailBytes is about how much of a log is kept in memory: a reader who has kept up
// needs no file.
const tailBytes = 128 << 10

// ValidName tells whether a turn can have this name.
func ValidName(turn string) bool { return nameRE.MatchString(turn) }

// Store is a folder of logs. Its methods may be called concurrently.
type Store struct {
	dir string
	now func() time.Time

	mu   sync.Mutex
	logs map[string]*Log
}

// Open takes the folder, making it where needed. Logs that a former driver left
// without an end get one: nobody knows how those turns ended.
func Open(dir string, now func() time.Time) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of turn logs: %w", err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return nil, fmt.Errorf("list turn logs: %w", err)
	}
	s := &Store{dir: dir, now: now, logs: map[string]*Log{}}
	for _, path := range names {
		turn := strings.TrimSuffix(filepath.Base(path), suffix)
		if !nameRE.MatchString(turn) {
			continue
		}
		l, err := s.recover(path)
		if err != nil {
			return nil, fmt.Errorf("turn log %s: %w", turn, err)
		}
		s.logs[turn] = l
	}
	return s, nil
}

func (s *Store) recover(path string) (*Log, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	last, size, err := lastLine(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("cut torn line: %w", err), f.Close())
	}
	l := &Log{path: path, now: s.now, f: f, size: size, changed: make(chan struct{})}
	var rec driverapi.Record
	if len(last) > 0 {
		if err := json.Unmarshal(last, &rec); err != nil {
			return nil, errors.Join(fmt.Errorf("read last line: %w", err), f.Close())
		}
	}
	l.last = rec.N
	if rec.End != nil {
		l.end = rec.End
		return l, f.Close()
	}
	return l, l.End(driverapi.End{
		Outcome: driverapi.OutcomeFailed,
		Code:    string(fault.AgentLost),
		Message: "The sandbox's driver was started anew in the middle of the turn.",
	})
}

// lastLine finds the last whole line and where it ends.
func lastLine(f *os.File) (line []byte, end int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("look at file: %w", err)
	}
	var tail []byte
	for at := st.Size(); at > 0; {
		n := min(at, 64<<10)
		at -= n
		chunk := make([]byte, n, n+int64(len(tail)))
		if _, err := f.ReadAt(chunk, at); err != nil {
			return nil, 0, fmt.Errorf("read: %w", err)
		}
		tail = append(chunk, tail...)
		nl := bytes.LastIndexByte(tail, '\n')
		if nl < 0 {
			continue
		}
		if begin := bytes.LastIndexByte(tail[:nl], '\n'); begin >= 0 || at == 0 {
			return tail[begin+1 : nl], at + int64(nl) + 1, nil
		}
	}
	return nil, 0, nil
}

// Create begins a turn's log. ErrExists comes together with the log that is there.
func (s *Store) Create(turn string) (*Log, error) {
	if !ValidName(turn) {
		return nil, ErrName
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.logs[turn]; l != nil {
		return l, ErrExists
	}
	path := filepath.Join(s.dir, turn+suffix)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make turn log: %w", err)
	}
	l := &Log{path: path, now: s.now, f: f, changed: make(chan struct{})}
	s.logs[turn] = l
	return l, nil
}

// Get returns a turn's log, nil when there is none.
func (s *Store) Get(turn string) *Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logs[turn]
}

// Log is one turn's. One goroutine writes, any number read.
type Log struct {
	path string
	now  func() time.Time

	mu      sync.Mutex
	f       *os.File // for writing; nil once ended
	size    int64    // bytes that readers may see
	last    int64    // number of the last part
	tail    []byte   // the newest of these bytes, in whole lines; what is in it never changes
	end     *driverapi.End
	memory  []byte // an end that the disk had no room for
	changed chan struct{}
}

// Last is the number of the last part.
func (l *Log) Last() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Ended returns the end, nil while the turn is at work.
func (l *Log) Ended() *driverapi.End {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Append writes records and then shows them. It sets their N, and At where it is
// zero. Either all are written or none.
func (l *Log) Append(recs ...driverapi.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.append(recs)
}

func (l *Log) append(recs []driverapi.Record) error {
	if l.end != nil {
		return ErrEnded
	}
	n := l.last
	tail := l.tail
	if len(tail) >= tailBytes {
		tail = nil // readers may hold the former one
	}
	lines := tail
	for _, r := range recs {
		if r.Part != nil {
			n++
		}
		r.N = n
		if r.At.IsZero() {
			r.At = l.now().UTC()
		}
		var err error
		if lines, err = appendLine(lines, r); err != nil {
			return err
		}
	}
	added := lines[len(tail):]
	if _, err := l.f.WriteAt(added, l.size); err != nil {
		err = fmt.Errorf("write turn log: %w", err)
		if terr := l.f.Truncate(l.size); terr != nil {
			err = errors.Join(err, fmt.Errorf("cut turn log: %w", terr))
		}
		return err
	}
	l.size += int64(len(added))
	l.last, l.tail = n, lines
	l.show()
	return nil
}

// appendLine encodes a record and keeps the bytes of a part as they are.
func appendLine(dst []byte, r driverapi.Record) ([]byte, error) {
	if r.Part == nil {
		b, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("encode record: %w", err)
		}
		return append(append(dst, b...), '\n'), nil
	}
	if bytes.IndexByte(r.Part, '\n') >= 0 || !json.Valid(r.Part) {
		return nil, errors.New("a part is not one line of JSON")
	}
	dst = append(dst, `{"n":`...)
	dst = strconv.AppendInt(dst, r.N, 10)
	dst = append(dst, `,"at":"`...)
	dst = r.At.AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","part":`...)
	dst = append(dst, r.Part...)
	return append(dst, "}\n"...), nil
}

func (l *Log) show() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// End writes the last record and brings all to the disk. Where the disk is full
// the end is kept in memory: readers see it, a driver that starts anew does not.
func (l *Log) End(e driverapi.End) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		return ErrEnded
	}
	e.Parts = l.last
	err := l.append([]driverapi.Record{{End: &e}})
	if err != nil {
		if l.memory, err = appendLine(nil, driverapi.Record{N: l.last, At: l.now().UTC(), End: &e}); err != nil {
			return err
		}
	}
	l.end = &e
	if serr := l.f.Sync(); serr != nil {
		err = fmt.Errorf("sync turn log: %w", serr)
	}
	if cerr := l.f.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("close turn log: %w", cerr))
	}
	l.f, l.tail = nil, nil
	l.show()
	return err
}

// Read writes all parts above after, and every other record whose number is
// after or more, to w: what is there and then what comes, until the end record or the
// end of ctx. flush is called whenever w has all that there is.
func (l *Log) Read(ctx context.Context, after int64, w io.Writer, flush func() error) error {
	f, err := os.Open(l.path)
	if err != nil {
		return fmt.Errorf("open turn log: %w", err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(nil, 64<<10)
	for at := int64(0); ; {
		l.mu.Lock()
		size, tail, ended, memory, changed := l.size, l.tail, l.end != nil, l.memory, l.changed
		l.mu.Unlock()
		if begin := size - int64(len(tail)); at < begin {
			r.Reset(io.NewSectionReader(f, at, begin-at))
			if err := copyLines(w, r, after); err != nil {
				return err
			}
			at = begin
		}
		r.Reset(bytes.NewReader(tail[int64(len(tail))-(size-at):]))
		if err := copyLines(w, r, after); err != nil {
			return err
		}
		at = size
		if ended {
			if _, err := w.Write(memory); err != nil {
				return fmt.Errorf("send turn log: %w", err)
			}
			return flush()
		}
		if err := flush(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func copyLines(w io.Writer, r *bufio.Reader, after int64) error {
	for {
		line, err := readLine(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read turn log: %w", err)
		}
		n, part := head(line)
		if n < after || n == after && part {
			continue
		}
		if _, err := w.Write(line); err != nil {
			return fmt.Errorf("send turn log: %w", err)
		}
	}
}

// readLine avoids a copy of lines that fit the buffer.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	whole := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		line, err = r.ReadSlice('\n')
		whole = append(whole, line...)
	}
	return whole, err
}

// head reads number and kind of a line that appendLine made.
func head(line []byte) (n int64, part bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"n":`))
	if !ok {
		return 0, false
	}
	i := 0
	for ; i < len(rest) && rest[i] >= '0' && rest[i] <= '9'; i++ {
		n = n*10 + int64(rest[i]-'0')
	}
	rest, ok = bytes.CutPrefix(rest[i:], []byte(`,"at":"`))
	if !ok {
		return n, false
	}
	_, rest, ok = bytes.Cut(rest, []byte(`"`))
	return n, ok && bytes.HasPrefix(rest, []byte(`,"part":`))
}

// Full tells whether an error means that the disk has no room.
func Full(err error) bool {
	var pe *fs.PathError
	return errors.As(err, &pe) && noRoom(pe.Err)
}
