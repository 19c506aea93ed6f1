package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"
)

// Causes of the end of a connection; all wrapped with what else is known.
var (
	ErrClosed  = errors.New("the connection is closed")
	ErrEOF     = errors.New("the peer closed its output")
	ErrBacklog = errors.New("the peer reads nothing of what is sent to it")
)

// Cut tells of a line that was longer than the limit. Only a stand-in of its
// message is in memory: the small values near the top, and the beginnings of
// long texts.
type Cut struct {
	Bytes int64  // length of the whole line
	File  string // where it is, or empty when it was not kept
}

// Notification is a message without an answer.
type Notification struct {
	Method string
	Params json.RawMessage // as it came, or a stand-in when Cut is set
	Raw    json.RawMessage // the whole line, nil when Cut is set
	Cut    *Cut
}

// Request is a call of the peer that wants exactly one answer, by Reply or
// Fail, from any goroutine, now or later. Later answers change nothing.
type Request struct {
	Method string
	Params json.RawMessage // as it came, or a stand-in when Cut is set
	Cut    *Cut

	id   json.RawMessage
	conn *Conn
}

// ID is the peer's id of the request, JSON text.
func (r *Request) ID() string { return string(r.id) }

// Reply answers with a result.
func (r *Request) Reply(result any) error {
	b, err := marshal(result)
	if err != nil {
		return errors.Join(fmt.Errorf("encode the answer to %s: %w", r.Method, err),
			r.Fail(Errorf(CodeInternalError, "the answer could not be encoded")))
	}
	return r.conn.answer(r, outgoing{ID: r.id, Result: b})
}

// Fail answers with an error.
func (r *Request) Fail(e *RPCError) error {
	return r.conn.answer(r, outgoing{ID: r.id, Error: e})
}

// Handlers take what the peer sends. They are called one after the other, in
// the order of the lines, by the reader; while one runs nothing more is read.
// So they must not wait for an answer of the peer, and may be slow on purpose.
type Handlers struct {
	// Notification takes every notification, of known and unknown methods, but
	// for $/cancel_request.
	Notification func(ctx context.Context, n Notification)
	// CaughtUp is called after notifications: when no other whole line has been read
	// yet, and before a request or an answer that comes behind them is handled. So
	// what a handler has put off is done once for all of them, and never late. Optional.
	CaughtUp func()
	// Requests by method. What is not here is answered -32601 at once. The
	// context ends when the request is answered, when the peer cancels it
	// ($/cancel_request; then an answer is still due, [CodeRequestCancelled] or
	// another), and with the connection.
	Requests map[string]func(ctx context.Context, r *Request)
}

// Options of a connection; the zero value is fine.
type Options struct {
	MaxLineBytes  int                    // longest line held in memory; 0 = 64 MiB
	SpillDir      string                 // folder for longer lines, mode 0600 files that the handlers remove; empty = they are cut
	SpillRoom     func(bytes int64) bool // tells whether the folder may take so many bytes more; nil = it may
	MaxSpillBytes int64                  // of one line in a file, the rest is cut; 0 = 1 GiB
	MaxQueueBytes int                    // of answers that the peer has not read yet; 0 = 16 MiB
	Log           *slog.Logger           // nil = none
}

// Stats count what a peer did. Samples are bounded.
type Stats struct {
	Messages      int64    // JSON-RPC messages read
	Bytes         int64    // read, with noise
	NoiseLines    int64    // lines that were no JSON-RPC message, nor part of one over several lines
	NoiseSample   []string // the first of them, each at most 512 bytes
	CutLines      int64    // lines longer than the limit
	StrayAnswers  int64    // answers to nothing that waited
	UnknownCalls  int64    // requests answered -32601
	Notifications int64
}

// Conn is one JSON-RPC connection over a pair of streams, both of which it
// closes at its end. Call [Conn.Run] once, then call and notify from any
// goroutine. At the end of the connection every waiting call fails with its cause.
type Conn struct {
	in  io.ReadCloser
	out io.WriteCloser
	h   Handlers
	o   Options

	join   joiner // the reader's
	behind bool   // notifications were handled since CaughtUp; the reader's

	mu      sync.Mutex
	nextID  int64
	pending map[string]*call
	serving map[string]context.CancelFunc // requests of the peer, by id
	queue   [][]byte
	queued  int
	drained chan struct{} // when set, closed once nothing is queued
	err     error         // set once, then the connection is over
	stats   Stats

	wake chan struct{} // for the writer, capacity 1
	done chan struct{} // closed with err
}

type call struct {
	then func(json.RawMessage, error)
	done chan struct{}
	res  json.RawMessage
	err  error
}

// NewConn makes a connection. Closing in must end a Read that waits in it.
func NewConn(in io.ReadCloser, out io.WriteCloser, h Handlers, o Options) *Conn {
	if o.MaxLineBytes <= 0 {
		o.MaxLineBytes = 64 << 20
	}
	if o.MaxSpillBytes <= 0 {
		o.MaxSpillBytes = 1 << 30
	}
	if o.MaxQueueBytes <= 0 {
		o.MaxQueueBytes = 16 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Conn{
		in: in, out: out, h: h, o: o,
		pending: map[string]*call{}, serving: map[string]context.CancelFunc{},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// Run reads until the peer closes its output, the context ends or writing
// fails, and returns the cause, never nil. It waits for its writer.
func (c *Conn) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.fail(fmt.Errorf("%w: %w", ErrClosed, context.Cause(ctx))) })
	defer stop()
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		c.write()
	}()
	err := c.read(ctx)
	if errors.Is(err, ErrEOF) {
		c.drain(ctx)
	}
	c.fail(err)
	<-writer
	return c.Err()
}

// Err is the cause of the end, or nil while the connection lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Stats returns the counters so far.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.NoiseSample = append([]string(nil), s.NoiseSample...)
	return s
}

// fail ends the connection once: streams closed, waiting calls failed, contexts
// of the peer's requests ended.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	pending, serving := c.pending, c.serving
	c.pending, c.serving, c.queue = map[string]*call{}, map[string]context.CancelFunc{}, nil
	close(c.done)
	c.mu.Unlock()
	for _, cancel := range serving {
		cancel()
	}
	for _, p := range pending {
		p.finish(nil, err)
	}
	_ = c.in.Close()
	_ = c.out.Close()
}

func (p *call) finish(res json.RawMessage, err error) {
	if p.then != nil {
		p.then(res, err)
	}
	p.res, p.err = res, err
	close(p.done)
}

type outgoing struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *RPCError       `json:"error,omitempty"`
}

// marshal is json.Marshal without the escapes for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// send queues one message for the writer; it never waits.
func (c *Conn) send(m outgoing) error {
	m.JSONRPC = "2.0"
	line, err := marshal(m)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	line = append(line, '\n')
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	// What waits already is judged, not the message: a prompt may be large.
	if c.queued > c.o.MaxQueueBytes {
		c.mu.Unlock()
		c.fail(ErrBacklog)
		return ErrBacklog
	}
	c.queue = append(c.queue, line)
	c.queued += len(line)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// write sends what is queued. It is apart from the reader, so that a peer that
// reads nothing before its own output was read cannot lock both up.
func (c *Conn) write() {
	for {
		c.mu.Lock()
		var line []byte
		if len(c.queue) > 0 {
			line, c.queue = c.queue[0], c.queue[1:]
		}
		c.mu.Unlock()
		if line == nil {
			select {
			case <-c.wake:
				continue
			case <-c.done:
				return
			}
		}
		if _, err := c.out.Write(line); err != nil {
			c.fail(fmt.Errorf("%w: write to the peer: %w", ErrClosed, err))
			return
		}
		c.mu.Lock()
		c.queued -= len(line)
		if c.queued == 0 && c.drained != nil {
			close(c.drained)
			c.drained = nil
		}
		c.mu.Unlock()
	}
}

// drainTime is how long a peer that has closed its output may take to read the
// answers it is still owed.
const drainTime = time.Second

func (c *Conn) drain(ctx context.Context) {
	c.mu.Lock()
	if c.queued == 0 || c.err != nil {
		c.mu.Unlock()
		return
	}
	empty := make(chan struct{})
	c.drained = empty
	c.mu.Unlock()
	t := time.NewTimer(drainTime)
	defer t.Stop()
	select {
	case <-empty:
	case <-c.done:
	case <-ctx.Done():
	case <-t.C:
	}
}

// Notify sends a notification. params is encoded; nil sends none.
func (c *Conn) Notify(method string, params any) error {
	m := outgoing{Method: method}
	if params != nil {
		b, err := marshal(params)
		if err != nil {
			return fmt.Errorf("encode %s: %w", method, err)
		}
		m.Params = b
	}
	return c.send(m)
}

// Call sends a request and waits for its answer, which is either a result (JSON
// text), an [RPCError], or the cause of the connection's end. When the context
// ends first, $/cancel_request is sent, the context's cause returned, and the
// answer passed over when it comes. It must not be called inside a handler.
func (c *Conn) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	return c.CallThen(ctx, method, params, nil)
}

// CallThen is Call with a function that gets the answer in the order of the
// lines: after everything that came before it was handled and before anything
// behind it is read. It runs exactly once, before CallThen returns, and like a
// handler must not wait for the peer; when the context or the connection ends
// it gets that error.
func (c *Conn) CallThen(ctx context.Context, method string, params any, then func(json.RawMessage, error)) (json.RawMessage, error) {
	body, err := marshal(params)
	if err != nil {
		err = fmt.Errorf("encode %s: %w", method, err)
		if then != nil {
			then(nil, err)
		}
		return nil, err
	}
	p := &call{then: then, done: make(chan struct{})}
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		p.finish(nil, err)
		return nil, err
	}
	c.nextID++
	id := strconv.FormatInt(c.nextID, 10)
	c.pending[id] = p
	c.mu.Unlock()

	if err := c.send(outgoing{ID: json.RawMessage(id), Method: method, Params: body}); err != nil {
		if c.take(id) != nil {
			p.finish(nil, err)
		}
		<-p.done
		return nil, fmt.Errorf("%s: %w", method, p.err)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		if c.take(id) != nil {
			_ = c.Notify(MethodCancelRequest, struct {
				RequestID json.RawMessage `json:"requestId"`
			}{json.RawMessage(id)})
			p.finish(nil, context.Cause(ctx))
		}
		<-p.done // the answer was faster
	}
	if p.err != nil {
		return nil, fmt.Errorf("%s: %w", method, p.err)
	}
	return p.res, nil
}

// take removes a waiting call; nil when somebody else was faster.
func (c *Conn) take(id string) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[id]
	delete(c.pending, id)
	return p
}

func (c *Conn) answer(r *Request, m outgoing) error {
	c.mu.Lock()
	cancel, open := c.serving[string(r.id)]
	if open {
		delete(c.serving, string(r.id))
	}
	err := c.err
	c.mu.Unlock()
	if !open {
		return err // nil: answered before
	}
	cancel()
	return c.send(m)
}
