// Package client speaks to a Hearth server: every operation as a method, and the
// stream of a session's conversation. It holds no state beside the address and
// the token. Errors are [*Error]; decide on their Code. Start at [New].
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// Client is a connection to one server. It is safe for concurrent use.
type Client struct {
	base  string
	token string
	http  *http.Client

	// Retry is the first wait before a stream is opened again; it doubles up to
	// twenty times that. GiveUp is how long a stream tries in vain.
	Retry  time.Duration
	GiveUp time.Duration
	// Silence is how long a stream may send nothing, signs of life included: two of the
	// server's heartbeats.
	Silence time.Duration
}

// New makes a client for a server's address, such as http://127.0.0.1:7747.
// Nothing is sent. A nil h means a client of its own without a time limit.
func New(address, token string, h *http.Client) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, &Error{Code: string(fault.InvalidInput), Kind: string(fault.KindInvalid), Message: fmt.Sprintf("%q is not the address of a server.", address), Remedy: "Give it as http://HOST:PORT."}
	}
	if h == nil {
		h = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return &Client{base: strings.TrimSuffix(u.String(), "/"), token: token, http: h, Retry: 250 * time.Millisecond, GiveUp: 2 * time.Minute, Silence: 30 * time.Second}, nil
}

// Error is a refusal of the server, or SERVER_UNAVAILABLE when it could not be asked.
type Error struct {
	Code      string         `json:"code"`
	Kind      string         `json:"kind"`
	Message   string         `json:"message"`
	Remedy    string         `json:"remedy"`
	Details   map[string]any `json:"details,omitempty"`
	Retryable bool           `json:"retryable"`
	RequestID string         `json:"requestId,omitempty"`
	Status    int            `json:"-"` // of HTTP; 0: there was no answer
	cause     error
}

// Error has message and code.
func (e *Error) Error() string {
	s := e.Message + " (" + e.Code + ")"
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap is what failed below, when there was no answer.
func (e *Error) Unwrap() error { return e.cause }

func unavailable(cause error, base string) *Error {
	i := fault.Lookup(fault.ServerUnavailable)
	return &Error{Code: string(i.Code), Kind: string(i.Kind), Message: "The server at " + base + " cannot be reached.", Remedy: i.Remedy, Retryable: true, cause: cause}
}

const root = "/v1/agent-sessions"

// request sends one request and returns the answer, whatever its status.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, body any, header http.Header) (*http.Response, error) {
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		rd = bytes.NewReader(b)
	}
	u := c.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, u, rd)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	for k, v := range header {
		r.Header[k] = v
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" && strings.HasPrefix(path, "/v1/") { // what is public is asked before it is known who answers
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, unavailable(err, c.base)
	}
	return res, nil
}

// maxAnswer bounds what is read of an answer: a page of parts and room around it.
const maxAnswer = 32 << 20

func (c *Client) do(ctx context.Context, method, path string, query url.Values, body any, key string, out any) error {
	header := http.Header{}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	res, err := c.request(ctx, method, path, query, body, header)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return unavailable(err, c.base)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return c.refusal(res, b)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return c.strange(res, err)
	}
	return nil
}

// refusal reads an error's body. On the stream's path it is one sentence of text, and the code is in a header.
func (c *Client) refusal(res *http.Response, b []byte) *Error {
	var w struct{ Error *Error }
	if json.Unmarshal(b, &w) == nil && w.Error != nil && w.Error.Code != "" {
		w.Error.Status = res.StatusCode
		return w.Error
	}
	if code := res.Header.Get("Hearth-Error-Code"); code != "" {
		i := fault.Lookup(fault.Code(code))
		return &Error{
			Code: code, Kind: string(i.Kind), Message: strings.TrimSpace(string(b)), Remedy: i.Remedy, Retryable: i.Retryable,
			Status: res.StatusCode, RequestID: res.Header.Get("X-Request-Id"),
		}
	}
	return c.strange(res, nil)
}

// strange tells of an answer that no Hearth server gives. One with 502, 503 or 504 is of
// a proxy whose server is away.
func (c *Client) strange(res *http.Response, cause error) *Error {
	e := unavailable(cause, c.base)
	e.Status = res.StatusCode
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.Message = fmt.Sprintf("The proxy at %s does not reach the server (status %d).", c.base, res.StatusCode)
		return e
	}
	e.Message = fmt.Sprintf("What answers at %s is not a Hearth server (status %d).", c.base, res.StatusCode)
	e.Remedy, e.Retryable = "Check the address.", false
	return e
}

// CodeOf is the code of an error of this package, else empty.
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func one(id string) string { return root + "/" + url.PathEscape(id) }

// Create makes a session, with its first prompt if there is one.
func (c *Client) Create(ctx context.Context, in CreateInput) (out Accepted, err error) {
	return out, c.do(ctx, http.MethodPost, root, nil, in, in.Key, &out)
}

// Get reads a session with its open turn, queue and last turn.
func (c *Client) Get(ctx context.Context, id string) (out Session, err error) {
	return out, c.do(ctx, http.MethodGet, one(id), nil, nil, "", &out)
}

// List lists sessions, newest first.
func (c *Client) List(ctx context.Context, in ListInput) (out SessionList, err error) {
	q := url.Values{}
	set(q, "phase", strings.Join(in.Phases, ","))
	set(q, "repo", in.Repo)
	set(q, "below", in.Below)
	if in.Limit > 0 {
		q.Set("limit", strconv.Itoa(in.Limit))
	}
	return out, c.do(ctx, http.MethodGet, root, q, nil, "", &out)
}

// Prompt sends a prompt.
func (c *Client) Prompt(ctx context.Context, id string, in PromptInput) (out Accepted, err error) {
	return out, c.do(ctx, http.MethodPost, one(id)+"/turns", nil, in, in.Key, &out)
}

// Turns lists the turns that have left the queue, with numbers above after.
func (c *Client) Turns(ctx context.Context, id string, after int64) (out TurnList, err error) {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	return out, c.do(ctx, http.MethodGet, one(id)+"/turns", q, nil, "", &out)
}

// Turn reads one turn, queued or not.
func (c *Client) Turn(ctx context.Context, id, turn string) (out Turn, err error) {
	return out, c.do(ctx, http.MethodGet, one(id)+"/turns/"+url.PathEscape(turn), nil, nil, "", &out)
}

// Questions lists a session's questions in a state (empty: in any), newest first.
func (c *Client) Questions(ctx context.Context, id, state string) (out []Question, err error) {
	q := url.Values{}
	if state != "" {
		q.Set("state", state)
	}
	var list struct{ Items []Question }
	err = c.do(ctx, http.MethodGet, one(id)+"/questions", q, nil, "", &list)
	return list.Items, err
}

// Question reads one question.
func (c *Client) Question(ctx context.Context, id, question string) (out Question, err error) {
	return out, c.do(ctx, http.MethodGet, one(id)+"/questions/"+url.PathEscape(question), nil, nil, "", &out)
}

// Answer settles a question. The first answer counts; a later one is refused with QUESTION_SETTLED.
func (c *Client) Answer(ctx context.Context, id, question string, a Answer) (out Question, err error) {
	return out, c.do(ctx, http.MethodPost, one(id)+"/questions/"+url.PathEscape(question)+"/answer", nil, a, "", &out)
}

// Cancel stops a turn, or the one at work when turn is empty.
func (c *Client) Cancel(ctx context.Context, id, turn string) (out Session, err error) {
	body := map[string]string{}
	if turn != "" {
		body["turn"] = turn
	}
	return out, c.do(ctx, http.MethodPost, one(id)+"/cancel", nil, body, "", &out)
}

// Deliver pushes packed work that the remote does not have.
func (c *Client) Deliver(ctx context.Context, id string) (out Session, err error) {
	return out, c.do(ctx, http.MethodPost, one(id)+"/deliver", nil, nil, "", &out)
}

// Discard sets the work back to the last delivered commit.
func (c *Client) Discard(ctx context.Context, id string) (out Session, err error) {
	return out, c.do(ctx, http.MethodPost, one(id)+"/discard", nil, nil, "", &out)
}

// Queue lists the turns that wait.
func (c *Client) Queue(ctx context.Context, id string) (out Queue, err error) {
	return out, c.do(ctx, http.MethodGet, one(id)+"/queue", nil, nil, "", &out)
}

// ReleaseQueue lets a held queue go on.
func (c *Client) ReleaseQueue(ctx context.Context, id string) (out Session, err error) {
	return out, c.do(ctx, http.MethodPost, one(id)+"/queue/release", nil, nil, "", &out)
}

// Delete deletes a session; force also with a turn at work or undelivered work.
func (c *Client) Delete(ctx context.Context, id string, force bool) (out Session, err error) {
	q := url.Values{}
	if force {
		q.Set("force", "true")
	}
	return out, c.do(ctx, http.MethodDelete, one(id), q, nil, "", &out)
}

// Transcript reads a page of stored parts after a cursor.
func (c *Client) Transcript(ctx context.Context, id, after string) (out PartList, err error) {
	q := url.Values{}
	set(q, "after", after)
	return out, c.do(ctx, http.MethodGet, one(id)+"/transcript", q, nil, "", &out)
}

// Diff compares the packed work with where it began; turn and format may be empty.
func (c *Client) Diff(ctx context.Context, id, turn, format string) (out Diff, err error) {
	q := url.Values{}
	set(q, "turn", turn)
	set(q, "format", format)
	return out, c.do(ctx, http.MethodGet, one(id)+"/diff", q, nil, "", &out)
}

// Bundle fetches the packed work as a git bundle. It needs the commit that the
// session began from. Code beside the usual: NOTHING_PACKED.
func (c *Client) Bundle(ctx context.Context, id string) (*Bundle, error) {
	return c.fetch(ctx, one(id)+"/bundle", nil, "application/x-git-bundle", "work.bundle")
}

// fetch opens an answer that is a file of the media type.
func (c *Client) fetch(ctx context.Context, from string, query url.Values, media, name string) (*File, error) {
	res, err := c.request(ctx, http.MethodGet, from, query, nil, nil)
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if res.StatusCode == http.StatusOK && kind == media {
		b := &File{Name: name, ReadCloser: &download{ReadCloser: res.Body, base: c.base}}
		if _, p, err := mime.ParseMediaType(res.Header.Get("Content-Disposition")); err == nil {
			if name := strings.TrimLeft(path.Base(p["filename"]), "./"); name != "" {
				b.Name = name
			}
		}
		return b, nil
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, unavailable(err, c.base)
	}
	return nil, c.refusal(res, raw)
}

// download tells of an answer that breaks off as every other error is told.
type download struct {
	io.ReadCloser
	base string
}

// Read is the body's.
func (d *download) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) {
		e := unavailable(err, d.base)
		e.Message, e.Remedy = "The answer of the server at "+d.base+" broke off.", "Try again; the server's log may say why."
		return n, e
	}
	return n, err
}

// Capabilities says what is set up on the server and what is missing.
func (c *Client) Capabilities(ctx context.Context) (out Capabilities, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/capabilities", nil, nil, "", &out)
}

// Version reads the server's version; no token is sent.
func (c *Client) Version(ctx context.Context) (out Version, err error) {
	return out, c.do(ctx, http.MethodGet, "/version", nil, nil, "", &out)
}

// Ready says whether the server has all that it needs; no token is sent. A server that
// answers and is not ready is a SERVER_UNAVAILABLE with a Status; the code of what is
// missing is in Details as "code".
func (c *Client) Ready(ctx context.Context) error {
	res, err := c.request(ctx, http.MethodGet, "/readyz", nil, nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return unavailable(err, c.base)
	}
	if res.StatusCode == http.StatusOK {
		return nil
	}
	var w struct {
		Checks []struct{ Name, Code, Message string }
	}
	if json.Unmarshal(b, &w) != nil || len(w.Checks) == 0 {
		return c.strange(res, nil)
	}
	e := unavailable(nil, c.base)
	e.Status = res.StatusCode
	for _, k := range w.Checks {
		if k.Code == "" || e.Details != nil && k.Code == string(fault.SelfTestRunning) {
			continue // it passed, or will end by itself while something else will not
		}
		e.Message, e.Remedy = "The server is not ready: "+k.Name+": "+k.Message, fault.Lookup(fault.Code(k.Code)).Remedy
		e.Details = map[string]any{"code": k.Code}
	}
	return e
}

func set(q url.Values, k, v string) {
	if v != "" {
		q.Set(k, v)
	}
}
