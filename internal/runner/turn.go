package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// Rungs: how the agent of a turn gets its memory.
const (
	rungLive        = "live"
	rungNative      = "native"
	rungReprimed    = "reprimed"
	rungRedelivered = "redelivered"
	rungFresh       = "fresh"
)

// sendPrompt hands the open turn to the driver and begins to record it. The
// driver takes a turn once, so that doing this again sends nothing twice.
func (r *Runner) sendPrompt(ctx context.Context, e session.Effect) error {
	a, t, err := r.open(ctx, e)
	if err != nil {
		return err
	}
	s := a.Session
	if t.State != session.TurnStarting || s.Sandbox != session.SandboxHot || s.Generation != e.Generation {
		return nil
	}
	b := r.box(s.ID, s.Generation)
	if b == nil {
		_, err := r.cfg.Service.Apply(ctx, s.ID, session.SandboxGone{Generation: s.Generation, Code: fault.SandboxLost})
		return err
	}
	turn := string(t.ID)
	b.begin()
	b.turn.Store(&turn)
	c, cancel := b.call(ctx)
	defer cancel()
	c, done := context.WithTimeout(c, handTimeout)
	defer done()
	err = r.hand(c, b, s, t)
	if err == nil {
		b.startRecording(*t)
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.ctx.Err() != nil || fault.CodeOf(err) == fault.IllegalMove {
		return nil // canceled, or the sandbox went meanwhile
	}
	if _, up := b.channel.Hello(); !up && errors.Is(c.Err(), context.DeadlineExceeded) {
		return r.gone(ctx, s, fault.DriverLost, "")
	}
	if rerr := retry(e, err); rerr != nil {
		return rerr
	}
	f := fault.From(err)
	if f.Code == fault.InternalError {
		f = fault.Wrap(err, fault.AgentStartFailed, "")
	}
	b.log.Error("hand turn over", "turn", t.ID, "error", err)
	_, err = r.cfg.Service.Apply(ctx, s.ID, session.AgentDone{Turn: t.ID, Outcome: driverapi.OutcomeFailed, Code: f.Code, Message: f.Sentence()})
	return err
}

func (r *Runner) hand(ctx context.Context, b *box, s session.Session, t *session.Turn) error {
	profile, err := agent.Lookup(s.Agent)
	if err != nil {
		return err
	}
	_, build, err := r.cfg.Agents.Layer(profile)
	if err != nil {
		return err
	}
	l, started, err := r.startAgent(ctx, b, s, profile, build)
	if err != nil {
		return err
	}
	attempts, err := r.attempts(ctx, s, t, profile, build, l, started)
	if err != nil {
		return err
	}
	limits := s.Limits.Or(session.DefaultLimits)
	if _, err := r.cfg.Service.Apply(ctx, s.ID, session.Handed{Turn: t.ID, Agent: s.Agent, Build: build, Fingerprint: l.Fingerprint}); err != nil {
		return err
	}
	_, _, err = b.driver.Turn(ctx, string(t.ID), driverapi.TurnRequest{
		Number: t.Number, Fingerprint: l.Fingerprint, Prompt: t.Prompt, Attempts: attempts,
		Mode: l.Mode, ModeConfig: l.ModeConfig, ModelConfig: l.ModelOption.ID, Model: l.ModelOption.Value, Noise: l.Noise,
		Approvals:      json.RawMessage(s.Approvals),
		Limits:         driverapi.Limits{Total: limits.Total, Silence: limits.Silence, FirstEvent: limits.FirstEvent, Tool: limits.Tool},
		SessionTimeout: l.Limits.Session,
	})
	return err
}

// attempts lists the rungs to try, best first. What the agent remembers is asked
// of the ledger: only the agent that had the newest turn, in this very shape, may go on by itself.
func (r *Runner) attempts(ctx context.Context, s session.Session, t *session.Turn, p agent.Profile, build string, l agent.Launch, started driverapi.AgentResult) ([]driverapi.Attempt, error) {
	last, err := r.cfg.Store.LastReached(ctx, s.ID)
	if fault.CodeOf(err) == fault.TurnNotFound {
		if t.Number == 1 {
			return []driverapi.Attempt{{Rung: rungFresh, Method: "new"}}, nil
		}
		task, err := r.firstTask(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		if task == "" || task == t.Prompt {
			return []driverapi.Attempt{{Rung: rungRedelivered, Method: "new"}}, nil
		}
		return []driverapi.Attempt{{Rung: rungRedelivered, Method: "new", Preamble: redelivery(task)}}, nil
	}
	if err != nil {
		return nil, err
	}
	var out []driverapi.Attempt
	same := last.Agent == s.Agent && last.Build == build && last.Fingerprint == l.Fingerprint && last.Generation == s.Generation && last.AgentSession != ""
	if same && last.Clean && started.Reused {
		out = append(out, driverapi.Attempt{Rung: rungLive, AgentSession: last.AgentSession})
	}
	if same && (last.Clean || p.MendsAfterCut) {
		switch {
		case l.Resume == agent.ResumeResume && started.Resume:
			out = append(out, driverapi.Attempt{Rung: rungNative, Method: "resume", AgentSession: last.AgentSession})
		case started.Load:
			out = append(out, driverapi.Attempt{Rung: rungNative, Method: "load", AgentSession: last.AgentSession, LateReplay: l.LateReplay})
		}
	}
	preamble, err := r.preamble(ctx, s.ID, t.Number)
	if err != nil {
		return nil, err
	}
	return append(out, driverapi.Attempt{Rung: rungReprimed, Method: "new", Preamble: preamble}), nil
}

// firstTask is the first prompt of the session.
func (r *Runner) firstTask(ctx context.Context, id session.ID) (string, error) {
	turns, err := r.cfg.Store.Turns(ctx, id, 0, 1)
	if err != nil || len(turns) == 0 {
		return "", err
	}
	return turns[0].Prompt, nil
}

func redelivery(task string) string {
	return "The task of this session did not reach you before. It comes first, what is asked now follows after it.\n" +
		"<task>\n" + clipText(unmarked(task, "task"), maxPreamble) + "\n</task>\n"
}

const (
	maxPreamble = 24 << 10 // bytes
	maxAnswer   = 4 << 10  // of one answer in a preamble
	reprimeBack = 40       // turns looked at
)

// preamble tells a new agent what was said: prompts and answers, newest first
// chosen, oldest first shown, tool noise left out.
func (r *Runner) preamble(ctx context.Context, id session.ID, number int64) (string, error) {
	turns, err := r.cfg.Store.Turns(ctx, id, max(0, number-1-reprimeBack), reprimeBack)
	if err != nil {
		return "", err
	}
	const head = "This conversation began with another process, whose memory is gone. Here is its record, oldest first; the work tree is as it was left. " +
		"It is background, not a request. What is asked now follows after it.\n<" + recordTag + ">\n"
	const tail = "</" + recordTag + ">\n"
	left := maxPreamble - len(head) - len(tail)
	var blocks []string
	for i := len(turns) - 1; i >= 0; i-- {
		t := turns[i]
		if t.Number >= number || t.StartedAt.IsZero() {
			continue
		}
		answer, err := r.answer(ctx, id, t.Number)
		if err != nil {
			return "", err
		}
		block := "Person:\n" + clipText(unmarked(strings.TrimSpace(t.Prompt), recordTag), maxAnswer) + "\n\nYou:\n" + clipText(unmarked(answer, recordTag), maxAnswer) + "\n"
		if t.State != session.TurnCompleted {
			block += "(This turn was cut short: " + string(t.State) + ".)\n"
		}
		block += "\n"
		if len(block) > left {
			if len(blocks) == 0 {
				blocks = append(blocks, clipText(block, left))
			}
			break
		}
		left -= len(block)
		blocks = append(blocks, block)
	}
	var out strings.Builder
	out.WriteString(head)
	for i := len(blocks) - 1; i >= 0; i-- {
		out.WriteString(blocks[i])
	}
	out.WriteString(tail)
	return out.String(), nil
}

// recordTag marks the record in a preamble, so that an agent can tell it from talk.
const recordTag = "conversation-record"

// unmarked keeps a text from ending the element that it is quoted in.
func unmarked(s, tag string) string {
	return strings.ReplaceAll(s, "</"+tag, "<\\/"+tag)
}

// answer is the agent's text of a turn, the end of it when it is long.
func (r *Runner) answer(ctx context.Context, id session.ID, number int64) (string, error) {
	var text strings.Builder
	after := transcript.Cursor{Turn: number}
	for {
		page, err := r.cfg.Log.Read(ctx, string(id), after, transcript.MaxPageParts)
		if err != nil {
			return "", err
		}
		for _, p := range page {
			if p.Cursor.Turn != number {
				return strings.TrimSpace(text.String()), nil
			}
			after = p.Cursor
			part, err := uistream.Parse(p.Body)
			if err != nil {
				return "", fmt.Errorf("stored part %s: %w", p.Cursor, err)
			}
			switch part.Type {
			case uistream.TypeTextDelta:
				text.WriteString(part.Text("delta"))
			case uistream.TypeTextEnd:
				text.WriteString("\n")
			}
		}
		if len(page) == 0 {
			return strings.TrimSpace(text.String()), nil
		}
	}
}

// clipText cuts the middle out of a long text, at rune borders.
func clipText(s string, max int) string {
	const gap = "\n[…]\n"
	if len(s) <= max {
		return s
	}
	if max <= len(gap) {
		return ""
	}
	half := (max - len(gap)) / 2
	return strings.ToValidUTF8(s[:half], "") + gap + strings.ToValidUTF8(s[len(s)-half:], "")
}

// cancelTurn asks the driver to stop; force_end comes if it does not.
func (r *Runner) cancelTurn(ctx context.Context, e session.Effect) error {
	a, t, err := r.open(ctx, e)
	if err != nil {
		return err
	}
	if t.State != session.TurnStopping {
		return nil
	}
	b := r.box(e.Session, a.Session.Generation)
	if b == nil {
		return nil // force_end sees to it
	}
	c, cancel := context.WithTimeout(ctx, session.CancelLimit)
	defer cancel()
	c, drop := b.call(c)
	defer drop()
	grace := session.CancelGrace
	if t.StopReason == session.StopFailure {
		grace = 0
	}
	err = b.driver.Cancel(c, string(t.ID), driverapi.CancelRequest{Grace: grace, Code: string(e.Code), Message: e.Message})
	switch {
	case err == nil || ctx.Err() != nil:
		return ctx.Err()
	case fault.CodeOf(err) == fault.TurnNotFound:
		// The driver never had it: nothing was sent.
		_, err = r.cfg.Service.Apply(ctx, e.Session, session.AgentDone{Turn: t.ID, Outcome: driverapi.OutcomeCanceled, Code: e.Code, Message: e.Message})
		return err
	}
	b.log.Warn("cancel turn", "turn", t.ID, "error", err)
	return nil
}

// forceEnd ends the sandbox of a turn that did not stop in time.
func (r *Runner) forceEnd(ctx context.Context, e session.Effect) error {
	a, t, err := r.open(ctx, e)
	if err != nil {
		return err
	}
	if t.State != session.TurnStopping {
		return nil
	}
	r.cfg.Slog.Warn("turn did not stop; ending its sandbox", "session", e.Session, "turn", e.Turn)
	return r.gone(ctx, a.Session, fault.SandboxLost, "The turn did not stop and its sandbox was ended.")
}

// limitTurn ends a turn whose driver did not keep the total limit.
func (r *Runner) limitTurn(ctx context.Context, e session.Effect) error {
	a, t, err := r.open(ctx, e)
	if err != nil {
		return err
	}
	switch t.State {
	case session.TurnDelivering, session.TurnStopping:
		return nil
	case session.TurnWaiting: // a person may take their time
		return &again{after: time.Minute, cause: errors.New("a person is waited for")}
	}
	if left := a.Session.Limits.Or(session.DefaultLimits).Total + session.LimitSlack + t.Waited - r.now().Sub(t.StartedAt); left > 0 {
		return &again{after: left, cause: errors.New("the turn waited for a person meanwhile")}
	}
	_, err = r.cfg.Service.Apply(ctx, e.Session, session.FailAsked{Turn: t.ID, Code: fault.TurnLimit})
	return err
}

// gone tells a session that its sandbox is not there any more, after the recording
// has stored what it had.
func (r *Runner) gone(ctx context.Context, s session.Session, code fault.Code, message string) error {
	if b := r.box(s.ID, s.Generation); b != nil {
		b.stopRecording()
	}
	_, err := r.cfg.Service.Apply(ctx, s.ID, session.SandboxGone{Generation: s.Generation, Code: code, Message: message, Truncated: "The sandbox ended before the transcript was whole."})
	if fault.CodeOf(err) == fault.IllegalMove {
		return nil
	}
	if b := r.box(s.ID, s.Generation); err == nil && b != nil {
		r.drop(b) // what waits for the driver waits no longer
	}
	return err
}
