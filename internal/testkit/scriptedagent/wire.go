package scriptedagent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
)

// object is a JSON object to be sent.
type object map[string]any

// message is a JSON-RPC 2.0 message that came in.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// wire frames JSON-RPC as lines. Writes are whole lines, one at a time; a client
// that does not read stops the agent.
type wire struct {
	outMu sync.Mutex
	out   io.Writer

	mu      sync.Mutex
	next    int
	pending map[string]chan message
	closed  chan struct{}
}

func newWire(out io.Writer) *wire {
	return &wire{out: out, pending: map[string]chan message{}, closed: make(chan struct{})}
}

// read hands on each message until the input ends.
func (w *wire) read(in io.Reader, handle func(message)) error {
	br := bufio.NewReader(in)
	for {
		line, err := br.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var m message
			if jsonErr := json.Unmarshal(line, &m); jsonErr != nil {
				w.answer(json.RawMessage("null"), nil, &Failure{-32700, "Parse error: " + jsonErr.Error()})
			} else if m.Method == "" && m.ID != nil {
				w.settle(m)
			} else {
				handle(m)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the client: %w", err)
		}
	}
}

func (w *wire) close() { close(w.closed) }

func (w *wire) settle(m message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.pending[string(m.ID)]; c != nil {
		if cap(c) == 1 {
			delete(w.pending, string(m.ID))
		}
		select {
		case c <- m:
		default: // more answers than anybody asked for
		}
	}
}

// line writes one line as it is. Errors are left out: without a client there is
// nobody to tell, and the end of the input ends the agent.
func (w *wire) line(b []byte) {
	w.outMu.Lock()
	defer w.outMu.Unlock()
	_, _ = w.out.Write(append(b, '\n'))
}

func (w *wire) send(v object) {
	v["jsonrpc"] = "2.0"
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("scripted agent: encode: %v", err)) // our own values only
	}
	w.line(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

func (w *wire) answer(id json.RawMessage, result any, f *Failure) {
	v := object{"id": id}
	if f != nil {
		v["error"] = object{"code": f.Code, "message": f.Message}
	} else {
		v["result"] = result
	}
	w.send(v)
}

func (w *wire) notify(method string, params any) {
	w.send(object{"method": method, "params": params})
}

var errClientGone = errors.New("the client has gone")

// begin sends a request and returns its id and where the answer will come. Without an id
// it gets a fresh one.
func (w *wire) begin(id, method string, params any) (string, <-chan message) {
	w.mu.Lock()
	if id == "" {
		w.next++
		id = strconv.Quote("agent-" + strconv.Itoa(w.next))
	}
	w.mu.Unlock()
	c := w.expect(id)
	w.send(object{"id": json.RawMessage(id), "method": method, "params": params})
	return id, c
}

// expect makes the next answer to an id come to the channel.
func (w *wire) expect(id string) <-chan message { return w.expecting(id, 1) }

// expectAll makes every answer to an id come to the channel.
func (w *wire) expectAll(id string) <-chan message { return w.expecting(id, 16) }

func (w *wire) expecting(id string, n int) <-chan message {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan message, n)
	w.pending[id] = c
	return c
}

// call sends a request and waits for its answer.
func (w *wire) call(ctx context.Context, method string, params any) (message, error) {
	_, c := w.begin("", method, params)
	select {
	case m := <-c:
		return m, nil
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	case <-w.closed:
		return message{}, errClientGone
	}
}
