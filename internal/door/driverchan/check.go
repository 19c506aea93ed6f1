package driverchan

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

const (
	maxRecord  = uistream.MaxPartBytes + 64<<10 // a part and what is around it
	maxMessage = 4000
	maxOutput  = 64 << 10
	maxRungs   = 16
	maxUsage   = 64 << 10
)

var (
	oidRE     = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	outcomeRE = regexp.MustCompile(`^(end_turn|max_tokens|max_turn_requests|refusal|canceled|failed)$`)
)

func invalid(what string) error {
	return fault.New(fault.DriverInvalid, "The driver said something that was refused: %s.", what)
}

// text is a guest's words, bounded and valid.
func text(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// failure is what the driver says went wrong. A code that does not exist is not passed on.
func failure(f driverapi.Failure) error {
	code := fault.Code(f.Code)
	if fault.Lookup(code).Code != code {
		return invalid(fmt.Sprintf("the code %.40q", f.Code))
	}
	e := fault.New(code, "%s", text(f.Message, maxMessage))
	if f.Output != "" {
		e = e.With("output", text(f.Output, maxOutput))
	}
	return e
}

// lines reads lines of bounded length.
type lines struct {
	r   *bufio.Reader
	max int
}

func newLines(r io.Reader, most int) *lines {
	return &lines{r: bufio.NewReaderSize(r, 64<<10), max: most}
}

// next returns the next whole line. The end of the stream is a cut: a stream ends with a line that says so.
func (l *lines) next() ([]byte, error) {
	var whole []byte
	for {
		chunk, err := l.r.ReadSlice('\n')
		if len(whole)+len(chunk) > l.max {
			return nil, invalid("a line that is too long")
		}
		switch {
		case err == nil && whole == nil:
			return chunk, nil
		case err == nil:
			return append(whole, chunk...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			whole = append(whole, chunk...)
		default:
			return nil, &cutError{err}
		}
	}
}

// follower holds a turn's records against their order, over any number of connections.
type follower struct {
	cursor           int64
	each             func(driverapi.Record) error
	gotRung, gotSent bool
	ended            bool
	stopped          bool // the caller or the contract ends it
}

// take judges one line and gives it on unless it was seen before.
func (f *follower) take(line []byte) error {
	var r driverapi.Record
	if err := json.Unmarshal(line, &r); err != nil {
		return f.refuse("a line of a turn's log is not a record")
	}
	kinds := 0
	for _, there := range []bool{r.Part != nil, r.Rung != nil, r.Sent, r.End != nil} {
		if there {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return f.refuse("a record is of no kind or several")
	case r.Part != nil && r.N != f.cursor+1:
		return f.refuse(fmt.Sprintf("part %d came after part %d", r.N, f.cursor))
	case r.Part == nil && r.N != f.cursor:
		return f.refuse(fmt.Sprintf("a record of part %d came after part %d", r.N, f.cursor))
	case r.Part != nil && len(r.Part) > uistream.MaxPartBytes:
		return f.refuse("a part is too large")
	}
	switch {
	case r.Part != nil:
		f.cursor = r.N
	case r.Rung != nil:
		if f.gotRung {
			return nil
		}
		f.gotRung = true
		if err := checkRung(r.Rung); err != nil {
			return f.refuse(err.Error())
		}
	case r.Sent:
		if f.gotSent {
			return nil
		}
		f.gotSent = true
	default:
		if err := checkEnd(r.End, f.cursor); err != nil {
			return f.refuse(err.Error())
		}
		f.ended = true
	}
	if err := f.each(r); err != nil {
		f.stopped = true
		return err
	}
	return nil
}

func (f *follower) refuse(what string) error {
	f.stopped = true
	return invalid(what)
}

func checkRung(r *driverapi.RungTaken) error {
	if len(r.Rung) > 40 || len(r.AgentSession) > 512 || len(r.Failed) > maxRungs {
		return errors.New("a rung has values that cannot be")
	}
	r.Rung, r.AgentSession = text(r.Rung, 40), text(r.AgentSession, 512)
	for i := range r.Failed {
		r.Failed[i] = text(r.Failed[i], 1000)
	}
	return nil
}

// checkEnd bounds an end and refuses one that contradicts itself.
func checkEnd(e *driverapi.End, parts int64) error {
	switch {
	case !outcomeRE.MatchString(e.Outcome):
		return fmt.Errorf("the outcome %.40q", e.Outcome)
	case e.Parts != parts:
		return fmt.Errorf("the end counts %d parts, %d came", e.Parts, parts)
	case e.Outcome == driverapi.OutcomeFailed && fault.Lookup(fault.Code(e.Code)).Code != fault.Code(e.Code):
		return fmt.Errorf("the code %.40q", e.Code)
	case e.Outcome != driverapi.OutcomeFailed && e.Code != "":
		return errors.New("a code for a turn that did not fail")
	}
	e.Message, e.Exit, e.Stderr = text(e.Message, maxMessage), text(e.Exit, 200), text(e.Stderr, 8<<10)
	if len(e.Usage) > maxUsage || bytes.IndexByte(e.Usage, '\n') >= 0 {
		e.Usage = nil
	}
	return nil
}

func checkPack(p driverapi.PackResult) error {
	for _, o := range []string{p.Head, p.Tree} {
		if o != "" && !oidRE.MatchString(o) {
			return errors.New("not an object id")
		}
	}
	if p.Changed && p.Head == "" || p.Commits < 0 || len(p.Notes) > 64 {
		return errors.New("a pack that cannot be")
	}
	return nil
}
