package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

const (
	noiseSamples     = 16
	noiseSampleBytes = 512
)

// envelope is the top of a JSON-RPC message.
type envelope struct {
	JSONRPC string
	ID      json.RawMessage // nil when absent
	Method  string
	Params  json.RawMessage
	Result  json.RawMessage // nil when absent, "null" when null
	Error   json.RawMessage
}

// parseEnvelope reads a line; ok is false when it is no JSON-RPC 2.0 message.
func parseEnvelope(line []byte) (e envelope, ok bool) {
	if len(line) == 0 || line[0] != '{' {
		return e, false
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(line, &m) != nil {
		return e, false
	}
	if json.Unmarshal(m["jsonrpc"], &e.JSONRPC) != nil || e.JSONRPC != "2.0" {
		return e, false
	}
	if raw, has := m["method"]; has && (json.Unmarshal(raw, &e.Method) != nil || e.Method == "") {
		return e, false
	}
	e.ID, e.Params, e.Result, e.Error = m["id"], m["params"], m["result"], m["error"]
	if len(e.ID) > 0 && (e.ID[0] == '{' || e.ID[0] == '[') {
		return e, false
	}
	return e, e.Method != "" || e.Result != nil || e.Error != nil
}

func (c *Conn) read(ctx context.Context) error {
	lines := newLineReader(c.in, c.o.MaxLineBytes, c.o.SpillDir, c.o.MaxSpillBytes, c.o.SpillRoom)
	for {
		if !lines.ready() {
			c.caughtUp()
		}
		l, err := lines.next()
		if err != nil {
			c.noise(c.join.giveUp()...)
			if own := c.Err(); own != nil {
				return own
			}
			if errors.Is(err, io.EOF) {
				return ErrEOF
			}
			return fmt.Errorf("%w: read from the peer: %w", ErrClosed, err)
		}
		if own := c.Err(); own != nil {
			return own
		}
		c.line(ctx, l)
	}
}

func (c *Conn) line(ctx context.Context, l line) {
	text := bytes.TrimSpace(l.text)
	c.mu.Lock()
	c.stats.Bytes += l.size
	if l.cut != nil {
		c.stats.CutLines++
	}
	c.mu.Unlock()
	if l.cut == nil && len(text) == 0 {
		return
	}
	e, ok := parseEnvelope(text)
	if !ok && l.cut == nil {
		if mended := escapeControls(text); mended != nil {
			if e, ok = parseEnvelope(mended); ok {
				text = mended
			}
		}
	}
	if l.cut != nil && l.cut.File != "" && (!ok || e.Method == "") {
		_ = os.Remove(l.cut.File) // no handler gets it
		l.cut.File = ""
	}
	switch {
	case !ok && l.cut == nil:
		held, whole, noise := c.join.add(text)
		c.noise(noise...)
		if held || whole == nil {
			return
		}
		text = whole
		e, ok = parseEnvelope(text)
	case !ok:
		c.noise(append(c.join.giveUp(), l.head(text))...)
	default:
		c.noise(c.join.giveUp()...)
	}
	if ok {
		c.mu.Lock()
		c.stats.Messages++
		c.mu.Unlock()
	}
	if l.cut != nil {
		c.o.Log.WarnContext(ctx, "line of the peer is longer than the limit", slog.Int64("bytes", l.cut.Bytes), slog.String("file", l.cut.File), slog.String("method", e.Method))
	}
	if !ok {
		return
	}
	switch {
	case e.Method == "":
		c.caughtUp()
		c.answered(e, l.cut)
	case len(e.ID) > 0 && string(e.ID) != "null":
		c.caughtUp()
		c.request(ctx, e, l.cut)
	case e.Method == MethodCancelRequest:
		c.canceled(e.Params)
	default:
		c.mu.Lock()
		c.stats.Notifications++
		c.mu.Unlock()
		if c.h.Notification == nil {
			return
		}
		n := Notification{Method: e.Method, Params: e.Params, Raw: text, Cut: l.cut}
		if l.cut != nil {
			n.Raw = nil
		}
		c.behind = true
		c.h.Notification(ctx, n)
	}
}

func (c *Conn) caughtUp() {
	if c.behind && c.h.CaughtUp != nil {
		c.h.CaughtUp()
	}
	c.behind = false
}

// escapeControls writes control characters inside the strings of a line as escapes:
// JSON wants them so (RFC 8259, section 7), and some agents pass a command's output on as
// it is. nil when there are none.
func escapeControls(line []byte) []byte {
	if len(line) == 0 || line[0] != '{' {
		return nil
	}
	const hex = "0123456789abcdef"
	var out []byte
	last, inText, escape := 0, false, false
	for i, b := range line {
		switch {
		case escape:
			escape = false
		case b == '"':
			inText = !inText
		case b == '\\':
			escape = inText
		case b < ' ' && inText:
			out = append(out, line[last:i]...)
			out = append(out, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
			last = i + 1
		}
	}
	if out == nil {
		return nil
	}
	return append(out, line[last:]...)
}

// noise counts lines that are no message.
func (c *Conn) noise(lines ...[]byte) {
	if len(lines) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range lines {
		c.stats.NoiseLines++
		if len(c.stats.NoiseSample) < noiseSamples {
			c.stats.NoiseSample = append(c.stats.NoiseSample, sample(l))
		}
	}
}

func sample(b []byte) string {
	if len(b) > noiseSampleBytes {
		b = b[:noiseSampleBytes]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

func (c *Conn) answered(e envelope, cut *Cut) {
	p := c.take(string(e.ID))
	if p == nil {
		c.mu.Lock()
		c.stats.StrayAnswers++
		c.mu.Unlock()
		return
	}
	if len(e.Error) > 0 && string(e.Error) != "null" {
		rpc := &RPCError{Code: CodeInternalError}
		if err := Decode(e.Error, rpc); err != nil {
			rpc.Message = sample(e.Error)
		}
		p.finish(nil, rpc)
		return
	}
	if e.Result == nil {
		if cut == nil {
			p.finish(nil, Errorf(CodeInternalError, "the answer has neither result nor error"))
			return
		}
		e.Result = json.RawMessage("{}")
	}
	p.finish(e.Result, nil)
}

func (c *Conn) request(ctx context.Context, e envelope, cut *Cut) {
	r := &Request{Method: e.Method, Params: e.Params, Cut: cut, id: e.ID, conn: c}
	ctx, cancel := context.WithCancel(ctx)
	twice, over := c.serve(e, cancel)
	h := c.h.Requests[e.Method]
	switch {
	case over:
		cancel()
	case twice:
		cancel()
		_ = c.send(outgoing{ID: e.ID, Error: Errorf(CodeInvalidRequest, "a request with this id is open")})
	case h == nil:
		_ = r.Fail(Errorf(CodeMethodNotFound, "%.200s is not offered", e.Method))
	default:
		h(ctx, r)
	}
}

// serve notes that a request of the peer is open.
func (c *Conn) serve(e envelope, cancel context.CancelFunc) (twice, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h.Requests[e.Method] == nil {
		c.stats.UnknownCalls++
	}
	_, twice = c.serving[string(e.ID)]
	over = c.err != nil
	if !twice && !over {
		c.serving[string(e.ID)] = cancel
	}
	return twice, over
}

func (c *Conn) canceled(params json.RawMessage) {
	var p struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	c.mu.Lock()
	cancel := c.serving[string(p.RequestID)]
	c.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}
