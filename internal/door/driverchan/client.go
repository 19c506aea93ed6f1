package driverchan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

const (
	maxAnswer   = 256 << 10 // bytes of an answer that is one JSON value
	maxEvent    = 64 << 10  // of a line of setup progress
	maxEvents   = 50_000    // of one setup
	againFirst  = 5 * time.Millisecond
	againMost   = 500 * time.Millisecond
	contentJSON = "application/json"
)

// Client is the calls to the driver of one sandbox, for the holder of a lease.
// Every call is idempotent, so a call whose connection was cut is made again on
// the next one until its context ends. Errors are coded: those that the driver
// gave, SANDBOX_UNREACHABLE, and DRIVER_INVALID for what breaks the contract. It is for concurrent use.
type Client struct {
	ch      *Channel
	fence   int64
	patient bool
}

// Now is the same client whose calls fail at once, with SANDBOX_UNREACHABLE,
// where there is no connection or it is cut.
func (c *Client) Now() *Client { return &Client{ch: c.ch, fence: c.fence} }

// Status asks the driver how it is.
func (c *Client) Status(ctx context.Context) (driverapi.Status, error) {
	s, err := call[driverapi.Status](ctx, c, http.MethodGet, driverapi.PathStatus, nil)
	if err == nil && (s.Head != "" && !oidRE.MatchString(s.Head) || len(s.Agent) > 256 || len(s.PortsFailed) > 64) {
		return driverapi.Status{}, invalid("a status")
	}
	return s, err
}

// Agent starts the agent or finds it running.
func (c *Client) Agent(ctx context.Context, r driverapi.AgentRequest) (driverapi.AgentResult, error) {
	a, err := call[driverapi.AgentResult](ctx, c, http.MethodPost, driverapi.PathAgent, r)
	a.Name, a.Version = text(a.Name, 200), text(a.Version, 200)
	return a, err
}

// Turn gives the turn to the driver, which takes it once; again is true when it had it before.
func (c *Client) Turn(ctx context.Context, turn string, r driverapi.TurnRequest) (taken driverapi.TurnTaken, again bool, err error) {
	resp, err := c.do(ctx, http.MethodPut, path(driverapi.PathTurn, turn), r)
	if err != nil {
		return taken, false, err
	}
	defer resp.Body.Close()
	if taken, err = answer[driverapi.TurnTaken](resp); err != nil {
		return taken, false, err
	}
	if taken.Turn != turn || taken.Part < 0 {
		return driverapi.TurnTaken{}, false, invalid("the answer to a turn")
	}
	return taken, resp.StatusCode == http.StatusOK, nil
}

// Cancel asks that a turn ends; its log tells when it has.
func (c *Client) Cancel(ctx context.Context, turn string, r driverapi.CancelRequest) error {
	return c.noAnswer(ctx, http.MethodPost, path(driverapi.PathCancel, turn), r)
}

// Answer settles a question. Codes: QUESTION_SETTLED, QUESTION_NOT_FOUND, TURN_NOT_FOUND.
func (c *Client) Answer(ctx context.Context, turn string, r driverapi.AnswerRequest) error {
	return c.noAnswer(ctx, http.MethodPost, path(driverapi.PathAnswer, turn), r)
}

// Reset sets the work tree back.
func (c *Client) Reset(ctx context.Context, r driverapi.ResetRequest) error {
	return c.noAnswer(ctx, http.MethodPost, driverapi.PathReset, r)
}

func (c *Client) noAnswer(ctx context.Context, method, path string, body any) error {
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Setup prepares the repository. Each event is given to each, the last one too;
// what it failed of is returned as a coded error with the detail "output". When the connection is cut the setup goes
// on, and so does Setup on the next connection, without telling an event twice.
func (c *Client) Setup(ctx context.Context, r driverapi.SetupRequest, each func(driverapi.SetupEvent)) (driverapi.SetupEvent, error) {
	told := 0
	for wait := againFirst; ; wait = min(2*wait, againMost) {
		done, n, err := c.setupOnce(ctx, r, told, each)
		if n > told {
			told, wait = n, againFirst
		}
		if err == nil {
			if f := done.Failure; f != nil {
				return done, failure(*f)
			}
			return done, nil
		}
		if err := c.pause(ctx, err, wait); err != nil {
			return done, err
		}
	}
}

func (c *Client) setupOnce(ctx context.Context, r driverapi.SetupRequest, told int, each func(driverapi.SetupEvent)) (done driverapi.SetupEvent, n int, err error) {
	resp, err := c.do(ctx, http.MethodPost, driverapi.PathSetup, r)
	if err != nil {
		return done, 0, err
	}
	defer resp.Body.Close()
	lines := newLines(resp.Body, maxEvent)
	for n = 0; ; {
		line, err := lines.next()
		if err != nil {
			return done, n, err
		}
		var e driverapi.SetupEvent
		if json.Unmarshal(line, &e) != nil || e.Head != "" && !oidRE.MatchString(e.Head) || len(e.NotUsed) > 64 || n >= maxEvents {
			return done, n, invalid("a line of the setup")
		}
		e.Phase, e.Line = text(e.Phase, 40), text(e.Line, 4000)
		if n++; n > told {
			each(e)
		}
		if e.Done {
			return e, n, nil
		}
	}
}

// Log follows a turn's log after a part: each record is given to each, in order
// and once, until the end record or an error of each. When the connection is
// cut it goes on with the next one.
func (c *Client) Log(ctx context.Context, turn string, after int64, each func(driverapi.Record) error) error {
	f := &follower{cursor: after, each: each}
	for wait := againFirst; ; wait = min(2*wait, againMost) {
		before := f.cursor
		err := c.logOnce(ctx, turn, f)
		if f.ended || f.stopped {
			return err
		}
		if f.cursor > before {
			wait = againFirst
		}
		if err := c.pause(ctx, err, wait); err != nil {
			return err
		}
	}
}

func (c *Client) logOnce(ctx context.Context, turn string, f *follower) error {
	resp, err := c.do(ctx, http.MethodGet, path(driverapi.PathLog, turn)+"?after="+strconv.FormatInt(f.cursor, 10), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := newLines(resp.Body, maxRecord)
	for !f.ended {
		line, err := lines.next()
		if err != nil {
			return err
		}
		if err := f.take(line); err != nil {
			return err
		}
	}
	return nil
}

// pause decides whether a call is made again and waits before it is. It returns the error to give.
func (c *Client) pause(ctx context.Context, err error, wait time.Duration) error {
	var cut *cutError
	if !errors.As(err, &cut) || !c.patient {
		return uncut(err)
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return fault.Wrap(errors.Join(context.Cause(ctx), err), fault.SandboxUnreachable, "The sandbox's driver did not answer in time.")
	}
}

// Pack packs the work. The reader gives the pack itself and must be closed; its
// error tells when the pack was cut or larger than the request allows.
func (c *Client) Pack(ctx context.Context, r driverapi.PackRequest) (driverapi.PackResult, io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodPost, driverapi.PathPack, r)
	if err != nil {
		return driverapi.PackResult{}, nil, err
	}
	var p driverapi.PackResult
	if err = json.Unmarshal([]byte(resp.Header.Get(driverapi.HeaderPack)), &p); err == nil {
		err = checkPack(p)
	}
	if err != nil {
		resp.Body.Close()
		return driverapi.PackResult{}, nil, invalid("the result of a pack")
	}
	for i := range p.Notes {
		p.Notes[i] = text(p.Notes[i], 2000)
	}
	return p, &limitReader{r: resp.Body, left: r.MaxBytes, limited: r.MaxBytes > 0}, nil
}

// limitReader fails beyond the limit.
type limitReader struct {
	r       io.ReadCloser
	left    int64
	limited bool
}

func (l *limitReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.limited && l.left < 0 {
		return 0, fault.New(fault.PackTooLarge, "The work is larger than may be packed.")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = fault.Wrap(err, fault.SandboxUnreachable, "The connection to the sandbox was cut while the work was packed.")
	}
	return n, err
}

func (l *limitReader) Close() error { return l.r.Close() }

func path(pattern, turn string) string {
	return strings.Replace(pattern, "{turn}", url.PathEscape(turn), 1)
}

// call makes a call whose answer is one JSON value.
func call[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var zero T
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return zero, err
	}
	defer resp.Body.Close()
	return answer[T](resp)
}

func answer[T any](resp *http.Response) (T, error) {
	var v T
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return v, fault.Wrap(err, fault.SandboxUnreachable, "The connection to the sandbox was cut.")
	}
	if len(b) > maxAnswer || json.Unmarshal(b, &v) != nil {
		return v, invalid("an answer")
	}
	return v, nil
}

// cutError is a connection that was cut: the call may be made again.
type cutError struct{ err error }

func (e *cutError) Error() string { return "driver connection: " + e.err.Error() }
func (e *cutError) Unwrap() error { return e.err }

// uncut makes a coded error of one.
func uncut(err error) error {
	var cut *cutError
	if errors.As(err, &cut) {
		return fault.Wrap(err, fault.SandboxUnreachable, "The connection to the sandbox was cut.")
	}
	return err
}

// do makes a call until it has an answer. An answer with a failure is an error.
func (c *Client) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("encode the call %s: %w", path, err)
		}
	}
	for wait := againFirst; ; wait = min(2*wait, againMost) {
		resp, err := c.once(ctx, method, path, b)
		if err == nil {
			return resp, nil
		}
		if err := c.pause(ctx, err, wait); err != nil {
			return nil, err
		}
	}
}

func (c *Client) once(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	x, err := c.ch.wait(ctx, c.patient)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://driver"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make the call %s: %w", path, err)
	}
	req.Header.Set(driverapi.HeaderFence, strconv.FormatInt(c.fence, 10))
	if len(body) > 0 {
		req.Header.Set("Content-Type", contentJSON)
	}
	resp, err := x.http.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fault.Wrap(errors.Join(context.Cause(ctx), err), fault.SandboxUnreachable, "The sandbox's driver did not answer in time.")
		}
		return nil, &cutError{err}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	f, err := answer[driverapi.Failure](resp)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 400 || f.Code == "" {
		return nil, invalid("an error")
	}
	return nil, failure(f)
}
