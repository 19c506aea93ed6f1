// Package turn carries one turn through the agent: it gives the agent its
// memory by the first rung that works, sends the prompt, records what comes
// as parts in the turn's log, holds the limits, and ends the turn exactly once
// whatever the agent does. Start at [New] and [Turn.Run].
package turn

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/approval"
	"github.com/hearthd/hearth/internal/driver/agent"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/driver/proc"
	"github.com/hearthd/hearth/internal/driver/turnlog"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

const (
	drain        = 300 * time.Millisecond // updates after the prompt's answer that belong to the turn
	killTime     = 700 * time.Millisecond // for everything to be gone after a kill
	tickTime     = 250 * time.Millisecond
	defaultGrace = 5 * time.Second
	stderrTold   = 4 << 10
	maxUsage     = 16 << 10
	holdBytes    = 16 << 10 // of parts that wait for those that came together with them
)

// Options of a turn.
type Options struct {
	ID      string
	Request driverapi.TurnRequest
	Agent   *agent.Agent
	// Restart gives a new agent in place of one that ended while its memory was
	// made; nil: the turn fails then.
	Restart func(ctx context.Context) (*agent.Agent, error)
	// Finished is told when the turn is about to end and uses the agent no more.
	Finished func()
	// Free gives the driver's reserve of disk back, false when there is none; Room
	// does so where little is left of the disk.
	Free   func() bool
	Room   func()
	Work   string // the agent's working directory
	Log    *turnlog.Log
	Blobs  convert.Blobs // for what no part can carry; nil: it is lost
	Now    func() time.Time
	Logger *slog.Logger
	// MaxParts of the turn; zero: what the server takes.
	MaxParts int64
}

// Turn is one turn. Run it once; Cancel from anywhere.
type Turn struct {
	o         Options
	begun     time.Time
	canceled  chan struct{}
	broken    chan struct{} // the log cannot be written
	breakOnce func()
	over      atomic.Bool // the prompt is answered: nothing is asked any more

	mu        sync.Mutex
	agent     *agent.Agent
	conv      *convert.Converter
	cap       limiter
	session   string // whose updates count
	pre       string // preamble of the rung that was taken
	taking    bool   // updates are the turn's
	heard     bool   // something came since the prompt
	last      time.Time
	seen      time.Time // of any update, a replay's too
	replay    int64     // updates of a conversation that came before the prompt
	cancelReq *driverapi.CancelRequest
	policy    approval.Policy
	asked     int64                // questions so far
	open      map[string]*question // that wait for a person
	settled   map[string]bool      // that do not any more
	frozen    time.Duration        // a person was waited for, before waiting
	waiting   time.Time            // since then a person is waited for; zero: nobody is
	held      []driverapi.Record   // parts that are not in the log yet, for as long as the reader has more to give
	heldBytes int
	writeErr  error
	lost      []driverapi.Record // what the log had no room for; nothing came after it
}

// New makes a turn whose log was just created.
func New(o Options) *Turn {
	broken := make(chan struct{})
	policy, err := approval.Parse(o.Request.Approvals)
	if err != nil { // the server checks it; a person is asked rather than nobody
		o.Logger.Error("approvals", "error", err)
		policy = approval.Policy{Mode: approval.Asking}
	}
	t := &Turn{
		policy: policy, open: map[string]*question{}, settled: map[string]bool{},
		o: o, agent: o.Agent, begun: o.Now(), canceled: make(chan struct{}), broken: broken, breakOnce: sync.OnceFunc(func() { close(broken) }),
		cap: limiter{maxParts: cmp.Or(o.MaxParts, capParts), maxBytes: capBytes, blobs: o.Blobs},
	}
	t.conv = convert.New(o.ID, o.Now, convert.Options{NoisePrefixes: o.Request.Noise, Blobs: o.Blobs, Last: t.lastPart})
	return t
}

// Cancel asks the turn to end. The first call counts.
func (t *Turn) Cancel(r driverapi.CancelRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancelReq == nil {
		t.cancelReq = &r
		close(t.canceled)
	}
}

func (t *Turn) cancelRequest() *driverapi.CancelRequest {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cancelReq
}

// Agent is the agent of the turn, which may be another than at its begin.
func (t *Turn) Agent() *agent.Agent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.agent
}

// Update takes what the agent says; see [agent.Receiver].
func (t *Turn) Update(n acp.SessionNotification) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = t.o.Now()
	if !t.taking || n.SessionID != t.session {
		if u, err := acp.ParseUpdate(n.Update); err == nil && (u.Chunk != nil || u.Tool != nil) {
			t.replay++
		}
		return
	}
	t.last = t.seen
	parts := t.conv.Update(n.Update)
	t.heard = t.heard || slices.ContainsFunc(parts, answers)
	t.hold(parts)
	if t.heldBytes >= holdBytes {
		t.append()
	}
}

// CaughtUp writes what the updates so far have given; see [agent.Receiver].
func (t *Turn) CaughtUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.append()
}

// answers tells whether a part belongs to an answer; what only describes the agent's session does not.
func answers(p uistream.Part) bool {
	return !p.Type.IsData() || p.Type == uistream.DataType(uistream.DataPlan)
}

// lastPart is the number of the last part that was made; called under mu.
func (t *Turn) lastPart() int64 { return t.o.Log.Last() + int64(len(t.held)) }

// write puts parts into the log; called under mu. A log that cannot be written breaks the turn.
func (t *Turn) write(parts []uistream.Part) {
	t.hold(parts)
	t.append()
}

// hold keeps parts for the next append.
func (t *Turn) hold(parts []uistream.Part) {
	if t.writeErr != nil {
		return
	}
	now := t.o.Now()
	for _, p := range t.cap.pass(parts, now) {
		t.held = append(t.held, driverapi.Record{At: now.UTC(), Part: p.Raw})
		t.heldBytes += len(p.Raw)
	}
}

// append writes what is held, and records behind it.
func (t *Turn) append(recs ...driverapi.Record) {
	if t.writeErr != nil {
		return
	}
	recs = append(t.held, recs...)
	t.held, t.heldBytes = nil, 0
	if len(recs) == 0 {
		return
	}
	if err := t.o.Log.Append(recs...); err != nil {
		t.writeErr, t.lost, t.taking = err, recs, false
		t.breakOnce()
	}
}

// makeUp writes what the disk had no room for, with the driver's reserve. Called
// under mu when the turn is at its end: before, the agent would take the reserve.
func (t *Turn) makeUp() {
	if !turnlog.Full(t.writeErr) || !t.o.Free() {
		return
	}
	lost := t.lost
	t.writeErr, t.lost = nil, nil
	t.append(lost...)
}

// answer is what became of the prompt.
type answer struct {
	resp acp.PromptResponse
	err  error
}

// Run carries the turn to its end, which is in the log when it returns. ctx is
// the driver's life.
func (t *Turn) Run(ctx context.Context) {
	t.mu.Lock()
	t.write(t.conv.Begin())
	t.mu.Unlock()
	t.Agent().Receive(t)
	failed, err := t.climb(ctx)
	if err != nil {
		t.endStart(ctx, err, failed)
		return
	}
	mark, err := t.Agent().Mark()
	if err != nil {
		t.fail(ctx, fault.Wrap(err, fault.AgentStartFailed, "The sandbox's processes could not be listed: %v", err))
		return
	}
	t.mu.Lock()
	t.append(driverapi.Record{Sent: true})
	session, broken := t.session, t.writeErr != nil
	t.taking, t.last = !broken, t.o.Now()
	t.mu.Unlock()
	if broken {
		t.fail(ctx, t.diskError())
		return
	}
	sent := t.o.Now()
	answers := make(chan answer, 1)
	go func() { // ends with the answer or the agent, which is killed where there is no answer
		var a answer
		over := func() { t.over.Store(true) }
		a.resp, a.err = t.Agent().Client.PromptThen(context.WithoutCancel(ctx), acp.PromptRequest{SessionID: session, Prompt: t.prompt()}, over)
		answers <- a
	}()
	t.wait(ctx, answers, sent, mark)
}

func (t *Turn) prompt() []acp.ContentBlock {
	var out []acp.ContentBlock
	if p := t.preamble(); p != "" {
		out = append(out, acp.TextBlock(p))
	}
	return append(out, acp.TextBlock(t.o.Request.Prompt))
}

func (t *Turn) wait(ctx context.Context, answers <-chan answer, sent time.Time, mark proc.Mark) {
	tick := time.NewTicker(t.tick())
	defer tick.Stop()
	a := t.Agent()
	canceled, asked := t.canceled, false
	var grace <-chan time.Time
	for {
		select {
		case got := <-answers:
			t.answered(ctx, got, asked, mark)
			return
		case <-a.Gone():
			select {
			case got := <-answers: // it may have answered before it ended
				if got.err == nil {
					t.answered(ctx, got, asked, mark)
					return
				}
			case <-time.After(killTime):
			}
			t.gone(ctx, asked)
			return
		case <-canceled:
			canceled = nil
			r := t.cancelRequest()
			if r.Code != "" {
				t.fail(ctx, fault.New(fault.Code(r.Code), "%s", r.Message))
				return
			}
			asked = true
			t.withdrawAll()                // as the protocol wants it before the cancel
			_ = a.Client.Cancel(t.session) // a dead agent is noticed above
			g := r.Grace
			if g <= 0 {
				g = defaultGrace
			}
			timer := time.NewTimer(g)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			t.kill(ctx)
			t.end(driverapi.End{Outcome: driverapi.OutcomeCanceled, Message: "The agent did not obey the cancel and was ended."},
				convert.End{StopReason: acp.StopCancelled})
			return
		case <-t.broken:
			t.fail(ctx, t.diskError())
			return
		case <-ctx.Done():
			t.fail(ctx, fault.New(fault.AgentLost, "The driver was stopped."))
			return
		case <-tick.C:
			t.mu.Lock()
			if t.conv.Held() {
				t.write(t.conv.Tick())
			}
			t.mu.Unlock()
			if err := t.overdue(sent); err != nil && !asked {
				t.fail(ctx, err)
				return
			}
		}
	}
}

// tick is how often limits are looked at: often enough for the shortest of them.
func (t *Turn) tick() time.Duration {
	d := tickTime
	l := t.o.Request.Limits
	for _, x := range []time.Duration{l.Total, l.Silence, l.FirstEvent, l.Tool} {
		if x > 0 {
			d = min(d, max(x/4, 5*time.Millisecond))
		}
	}
	return d
}

// overdue tells which limit was hit. While a tool runs, only its own limit and
// the turn's count: a build may be silent for long.
func (t *Turn) overdue(sent time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.waiting.IsZero() {
		return nil // a person may take their time
	}
	now, l := t.o.Now().Add(-t.frozen), t.o.Request.Limits
	_, since, running := t.conv.OldestOpenTool()
	switch {
	case l.Total > 0 && now.Sub(t.begun) >= l.Total:
		return fault.New(fault.TurnLimit, "The turn took longer than %v.", l.Total)
	case l.FirstEvent > 0 && !t.heard && now.Sub(sent) >= l.FirstEvent:
		return fault.New(fault.FirstEventLimit, "The agent did not begin to answer within %v.", l.FirstEvent)
	case running && l.Tool > 0 && now.Sub(since) >= l.Tool:
		return fault.New(fault.ToolLimit, "One tool call took longer than %v.", l.Tool)
	case !running && l.Silence > 0 && t.heard && t.o.Now().Sub(t.last) >= l.Silence:
		return fault.New(fault.AgentSilent, "The agent said nothing for %v.", l.Silence)
	}
	return nil
}

func (t *Turn) diskError() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if turnlog.Full(t.writeErr) {
		return fault.Wrap(t.writeErr, fault.DiskFull, "The sandbox's disk is full.")
	}
	return fault.Wrap(t.writeErr, fault.DriverInvalid, "The turn's log could not be written: %v", t.writeErr)
}

// answered ends a turn whose prompt has its answer.
func (t *Turn) answered(ctx context.Context, got answer, asked bool, mark proc.Mark) {
	a := t.Agent()
	if got.err != nil && !asked {
		var rpc *acp.RPCError
		switch {
		case acp.IsCode(got.err, acp.CodeAuthRequired):
			t.fail(ctx, fault.Wrap(got.err, fault.ModelKeyRejected, "The agent asks for authentication: %v", got.err))
		case errors.As(got.err, &rpc):
			t.fail(ctx, fault.Wrap(got.err, fault.AgentFailed, "The agent reported: %v", rpc))
		default:
			select { // the connection ended: the process most likely has, too
			case <-a.Gone():
			case <-time.After(killTime):
			}
			t.gone(ctx, false)
		}
		return
	}
	select {
	case <-time.After(drain):
	case <-a.Gone():
	}
	t.mu.Lock()
	t.taking = false
	t.mu.Unlock()
	e := driverapi.End{Usage: usage(got.resp)}
	c := convert.End{StopReason: got.resp.StopReason, Usage: got.resp.Usage}
	switch {
	case asked:
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		a.EndSince(end, mark)
		e.Outcome, c.StopReason = driverapi.OutcomeCanceled, acp.StopCancelled
	case got.resp.StopReason == acp.StopCancelled:
		e.Outcome, e.Message = driverapi.OutcomeCanceled, "The agent canceled the turn by itself."
	case got.resp.StopReason == acp.StopMaxTokens:
		e.Outcome = driverapi.OutcomeMaxTokens
	case got.resp.StopReason == acp.StopMaxTurnRequests:
		e.Outcome = driverapi.OutcomeMaxRequest
	case got.resp.StopReason == acp.StopRefusal:
		e.Outcome = driverapi.OutcomeRefusal
	case got.resp.StopReason == acp.StopEndTurn:
		e.Outcome = driverapi.OutcomeEndTurn
	default:
		t.fail(ctx, fault.New(fault.AgentFailed, "The agent ended its turn with the reason %.100q, which is not known.", got.resp.StopReason))
		return
	}
	select {
	case <-t.broken:
		t.fail(ctx, t.diskError())
		return
	default:
	}
	e.Clean = a.Alive()
	t.end(e, c)
}

// gone ends a turn whose agent has ended.
func (t *Turn) gone(ctx context.Context, asked bool) {
	a := t.Agent()
	exit := a.Exit()
	t.kill(ctx) // what it has left behind
	if asked {
		t.end(driverapi.End{Outcome: driverapi.OutcomeCanceled, Exit: exit, Message: "The agent ended when it was asked to cancel."},
			convert.End{StopReason: acp.StopCancelled})
		return
	}
	if exit == "" {
		t.endFault(fault.New(fault.AgentExited, "The agent closed its output in the middle of the turn."), "")
		return
	}
	t.endFault(fault.New(fault.AgentExited, "The agent ended in the middle of the turn: %s.", exit), exit)
}

// fail kills the agent and ends the turn as failed.
func (t *Turn) fail(ctx context.Context, err error) {
	exit := t.Agent().Exit()
	t.kill(ctx)
	t.endFault(err, exit)
}

func (t *Turn) kill(ctx context.Context) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	t.Agent().Kill(end)
}

func (t *Turn) endFault(err error, exit string) {
	f := fault.From(err)
	t.end(driverapi.End{
		Outcome: driverapi.OutcomeFailed, Code: string(f.Code), Message: clip(f.Sentence(), 2000), Exit: exit,
		Stderr: t.Agent().Stderr(stderrTold),
	}, convert.End{Failure: clip(f.Sentence(), 2000)})
}

func (t *Turn) end(e driverapi.End, c convert.End) {
	e = t.close(e, c)
	t.Agent().Receive(nil)
	t.o.Finished() // before the end can be read: whoever reads it finds the driver idle
	if err := t.o.Log.End(e); err != nil {
		t.o.Logger.Error("end of turn log", "error", err)
	}
}

func (t *Turn) close(e driverapi.End, c convert.End) driverapi.End {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taking = false
	t.makeUp()
	t.endQuestions()
	t.write(t.conv.End(c))
	t.makeUp()
	t.o.Room() // for the end record and for what comes after the turn
	if t.writeErr != nil && e.Outcome != driverapi.OutcomeFailed {
		e.Outcome, e.Code, e.Message, e.Clean = driverapi.OutcomeFailed, string(fault.DriverInvalid), "The turn's log could not be written.", false
		if turnlog.Full(t.writeErr) {
			e.Code, e.Message = string(fault.DiskFull), "The sandbox's disk is full."
		}
	}
	e.Noise = t.agent.Noise()
	return e
}

// usage is what the agent reported, compacted.
func usage(r acp.PromptResponse) json.RawMessage {
	var x struct {
		Usage json.RawMessage `json:"usage"`
	}
	if len(r.Raw) == 0 || json.Unmarshal(r.Raw, &x) != nil {
		return nil
	}
	raw := x.Usage
	if len(raw) == 0 || string(raw) == "null" {
		raw = r.Meta
	}
	if len(raw) == 0 || len(raw) > maxUsage || string(raw) == "null" {
		return nil
	}
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return nil
	}
	return b.Bytes()
}

func clip(s string, most int) string {
	if len(s) > most {
		return string(bytes.ToValidUTF8([]byte(s[:most]), nil)) + "…"
	}
	return s
}

// reason is an error for a list of failed rungs.
func reason(rung string, err error) string {
	return clip(fmt.Sprintf("%s: %v", rung, err), 500)
}
