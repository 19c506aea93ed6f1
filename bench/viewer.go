package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthd/hearth/internal/testkit/numbered"
)

// viewer reads one event stream as cheaply as it can: it looks for the text of
// the events without decoding them, and counts the numbered pieces in it.
type viewer struct {
	text  func(line []byte) []byte // of an event's line; nil for one without text
	tally *numbered.Tally
	slow  time.Duration // taken for each piece
	spec  numbered.Spec

	// Of the pieces, in their order.
	sent, came []time.Duration // since base
	base       time.Time
	all        bool // keep the times of every piece, not only of the first and last

	bytes    int64        // of the body
	lines    int64        // with text
	newest   atomic.Int64 // when something came, ns since 1970
	complete atomic.Bool  // every piece has come
	now      time.Time    // when the bytes at work came
}

func newViewer(text func([]byte) []byte, s numbered.Spec, all bool) *viewer {
	v := &viewer{text: text, tally: numbered.NewTally(s), spec: s, base: time.Now(), all: all}
	if all {
		v.sent, v.came = make([]time.Duration, 0, s.Count), make([]time.Duration, 0, s.Count)
	}
	v.tally.At = v.at
	return v
}

func (v *viewer) at(_ int, sent time.Time) {
	if v.slow > 0 {
		time.Sleep(v.slow)
	}
	s, c := sent.Sub(v.base), v.now.Sub(v.base)
	if v.all || len(v.sent) < 2 {
		v.sent, v.came = append(v.sent, s), append(v.came, c)
	} else {
		v.sent[1], v.came[1] = s, c
	}
	if v.tally.Pieces == v.spec.Count {
		v.complete.Store(true)
	}
}

// lineBytes is the most of a line that is read at once; a viewer that is slow
// reads little, so that it is not its own buffer that waits.
const (
	lineBytes = 128 << 10
	slowBytes = 8 << 10
)

// read takes a body until its end.
func (v *viewer) read(body io.Reader) error {
	size := lineBytes
	if v.slow > 0 {
		size = slowBytes
	}
	r := bufio.NewReaderSize(stamped{body, v}, size)
	var long []byte
	for {
		line, err := r.ReadSlice('\n')
		v.bytes += int64(len(line))
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, line...)
			continue
		}
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		if text := v.text(line); text != nil {
			v.lines++
			v.tally.Add(text)
		}
		long = long[:0]
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// stamped notes when something came.
type stamped struct {
	r io.Reader
	v *viewer
}

func (s stamped) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.v.now = time.Now()
	s.v.newest.Store(s.v.now.UnixNano())
	return n, err
}

// latencies are from sending to arrival of each piece, ms.
func (v *viewer) latencies() []float64 {
	out := make([]float64, len(v.sent))
	for i := range v.sent {
		out[i] = ms(v.came[i] - v.sent[i])
	}
	return out
}

// jsonText finds the text of an event in its line: that of the member, when the
// line holds the kind. Numbered pieces have nothing that JSON escapes; other text
// is given as it is written.
func jsonText(kind, member string) func([]byte) []byte {
	k, m := []byte(kind), []byte(`"`+member+`":"`)
	return func(line []byte) []byte {
		if !bytes.Contains(line[:min(len(line), 512)], k) && !bytes.Contains(line, k) {
			return nil
		}
		i := bytes.Index(line, m)
		if i < 0 {
			return nil
		}
		return untilQuote(line[i+len(m):])
	}
}

func untilQuote(s []byte) []byte {
	for from := 0; ; {
		i := bytes.IndexByte(s[from:], '"')
		if i < 0 {
			return s
		}
		i += from
		slashes := 0
		for i-1-slashes >= 0 && s[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return s[:i]
		}
		from = i + 1
	}
}

// audience is viewers of one conversation.
type audience struct {
	viewers []*viewer
	stop    []context.CancelFunc
	http    *http.Client
	wait    sync.WaitGroup
	mu      sync.Mutex
	err     error
}

// quiet is how long nothing must come after a turn's end before a stream that
// does not end is taken for over.
const quiet = 3 * time.Second

// watch opens streams, one after the other, and returns when all are open.
func watch(ctx context.Context, c conversation, viewers ...*viewer) (*audience, error) {
	tr := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: -1, ReadBufferSize: 64 << 10, DialContext: dialSmall(viewers)}
	a := &audience{viewers: viewers, http: &http.Client{Transport: tr}}
	for _, v := range viewers {
		one, stop := context.WithCancel(ctx)
		a.stop = append(a.stop, stop)
		r, err := c.stream(one)
		if err != nil {
			return a, errors.Join(err, a.close())
		}
		res, err := a.http.Do(r)
		if err != nil {
			return a, errors.Join(fmt.Errorf("open a stream: %w", err), a.close())
		}
		if res.StatusCode != http.StatusOK {
			b, _ := io.ReadAll(io.LimitReader(res.Body, 500)) // what came is enough to tell
			_ = res.Body.Close()
			return a, errors.Join(fmt.Errorf("open a stream: %s %s", res.Status, b), a.close())
		}
		a.wait.Go(func() {
			err := v.read(res.Body)
			_ = res.Body.Close() // read to its end or given up
			if err != nil && one.Err() == nil {
				a.mu.Lock()
				a.err = errors.Join(a.err, err)
				a.mu.Unlock()
			}
		})
	}
	return a, nil
}

// dialSmall gives slow viewers a receive buffer that holds little, as one far
// away has: otherwise loopback takes megabytes for them.
func dialSmall(viewers []*viewer) func(ctx context.Context, network, address string) (net.Conn, error) {
	i := 0 // streams are opened one after the other
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if i < len(viewers) && viewers[i].slow > 0 {
			if t, ok := c.(*net.TCPConn); ok {
				err = t.SetReadBuffer(64 << 10)
			}
		}
		i++
		return c, err
	}
}

// end waits until every stream has ended, or, once the turn has (done) ended,
// has been quiet for a while.
func (a *audience) end(ctx context.Context, done <-chan struct{}) error {
	all := make(chan struct{})
	go func() { a.wait.Wait(); close(all) }() // close waits for it
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var over time.Time // when the turn was seen to have ended: what it sent may be on its way
	for {
		select {
		case <-all:
			return a.close()
		case <-ctx.Done():
			return errors.Join(ctx.Err(), a.close())
		case <-tick.C:
			select {
			case <-done:
			default:
				continue
			}
			if over.IsZero() {
				over = time.Now()
			}
			for i, v := range a.viewers {
				if time.Since(over) > quiet && time.Since(time.Unix(0, v.newest.Load())) > quiet {
					a.stop[i]()
				}
			}
		}
	}
}

func (a *audience) close() error {
	for _, stop := range a.stop {
		stop()
	}
	a.wait.Wait()
	a.http.CloseIdleConnections()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}
