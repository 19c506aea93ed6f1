package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/agent"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

const (
	sessionTimeout = time.Minute
	replayQuiet    = 300 * time.Millisecond // no update for so long: a late replay is over
	replayMost     = 10 * time.Second
	replayFirst    = 50 * time.Millisecond // for the first update of a replay that nobody told of

	stderrInMessage = 300 // bytes
)

// Methods of an attempt.
const (
	methodOpen   = ""
	methodResume = "resume"
	methodLoad   = "load"
	methodNew    = "new"
)

var (
	errStop     = errors.New("the turn ends") // a call to the agent was given up
	errCanceled = errors.New("the turn was canceled before its prompt was sent")
)

// climb tries the rungs in order until one gives a session, and records which.
// It fails with errStop or errCanceled when the turn is to end anyhow.
func (t *Turn) climb(ctx context.Context) (failed []string, err error) {
	if len(t.o.Request.Attempts) == 0 {
		return nil, fault.New(fault.InvalidInput, "The turn has no rung to try.")
	}
	ctx, stop := t.startContext(ctx)
	defer stop()
	var last error
	for i, at := range t.o.Request.Attempts {
		session, err := t.attempt(ctx, at)
		if err != nil && ctx.Err() != nil {
			return failed, errStop
		}
		if t.cancelRequest() != nil {
			return failed, errCanceled
		}
		if err == nil {
			t.took(at, session, failed)
			return failed, nil
		}
		err = t.died(err)
		failed = append(failed, reason(at.Rung, err))
		if last == nil || !acp.IsCode(last, acp.CodeAuthRequired) {
			last = err
		}
		if i == len(t.o.Request.Attempts)-1 {
			break
		}
		if err := t.revive(ctx); err != nil {
			return append(failed, clip(err.Error(), 500)), errors.Join(last, err)
		}
	}
	return failed, last
}

// startContext ends when the turn must, even before the prompt: after a cancel
// the call at hand has the grace to be answered.
func (t *Turn) startContext(ctx context.Context) (context.Context, context.CancelFunc) {
	cancelTotal := context.CancelFunc(func() {})
	if l := t.o.Request.Limits.Total; l > 0 {
		ctx, cancelTotal = context.WithTimeoutCause(ctx, l, fault.New(fault.TurnLimit, "The turn took longer than %v.", l))
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with stop, which waits
		defer close(done)
		select {
		case <-t.canceled:
		case <-ctx.Done():
			return
		}
		r := t.cancelRequest()
		grace := r.Grace
		if grace <= 0 {
			grace = defaultGrace
		}
		if r.Code != "" {
			grace = 0
		}
		select {
		case <-time.After(grace):
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-done
		cancelTotal()
	}
}

// took records the rung before the prompt goes out.
func (t *Turn) took(at driverapi.Attempt, session string, failed []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.session = session
	t.append(driverapi.Record{Rung: &driverapi.RungTaken{Rung: at.Rung, AgentSession: session, Failed: failed}})
	if failed == nil {
		failed = []string{}
	}
	t.write([]uistream.Part{uistream.Data{
		Name: uistream.DataRung, ID: uistream.DataRung, At: uistream.At(t.o.Now()),
		Data: uistream.ValueOf(map[string]any{"rung": at.Rung, "failed": failed}),
	}.Part()})
	t.pre = at.Preamble
}

func (t *Turn) preamble() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pre
}

// died adds how the agent ended, where that is why a rung failed.
func (t *Turn) died(err error) error {
	a := t.Agent()
	if a.Alive() {
		return err
	}
	select { // its connection has ended: the process most likely has, too, and its last words are read
	case <-a.Gone():
	case <-time.After(killTime):
	}
	exit := a.Exit()
	if exit == "" {
		return err
	}
	said := ""
	if words := a.Stderr(stderrInMessage); words != "" {
		said = ". It said: " + words
	}
	return fmt.Errorf("%w; the agent ended: %s%s", err, exit, said)
}

// revive starts the agent anew when it ended while a rung was tried.
func (t *Turn) revive(ctx context.Context) error {
	old := t.Agent()
	if old.Alive() {
		return nil
	}
	if t.o.Restart == nil {
		return errors.New("the agent was not started again")
	}
	t.kill(ctx)
	old.Receive(nil)
	a, err := t.o.Restart(ctx)
	if err != nil {
		return fmt.Errorf("the agent did not start again: %w", err)
	}
	t.setAgent(a)
	return nil
}

func (t *Turn) setAgent(a *agent.Agent) {
	t.mu.Lock()
	t.agent = a
	t.mu.Unlock()
	a.Receive(t)
}

// attempt opens a session by one rung and sets mode and model.
func (t *Turn) attempt(ctx context.Context, at driverapi.Attempt) (string, error) {
	a := t.Agent()
	if at.Method == methodOpen {
		if at.AgentSession == "" || !a.IsOpen(at.AgentSession) || !a.Alive() {
			return "", errors.New("the session is not open in the agent")
		}
		return at.AgentSession, nil
	}
	timeout := t.o.Request.SessionTimeout
	if timeout <= 0 {
		timeout = sessionTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	resp, session, err := t.openSession(ctx, a, at)
	replayed := t.replayed()
	if acp.IsCode(err, acp.CodeAuthRequired) {
		if err := a.Authenticate(ctx); err != nil {
			return "", err
		}
		resp, session, err = t.openSession(ctx, a, at)
		replayed = t.replayed()
	}
	if err != nil {
		return "", err
	}
	if err := t.configure(ctx, a, session, resp); err != nil {
		return "", err
	}
	late := at.LateReplay
	if !late && at.Method != methodNew {
		if late, err = t.replays(ctx, replayed); err != nil {
			return "", err
		}
	}
	if late {
		if err := t.quiet(ctx); err != nil {
			return "", err
		}
	}
	a.Opened(session)
	return session, nil
}

func (t *Turn) openSession(ctx context.Context, a *agent.Agent, at driverapi.Attempt) (acp.SessionResponse, string, error) {
	known := acp.LoadSessionRequest{SessionID: at.AgentSession, CWD: t.o.Work}
	if at.Method != methodNew && at.AgentSession == "" {
		return acp.SessionResponse{}, "", errors.New("the agent's session is not known")
	}
	switch at.Method {
	case methodResume:
		if !a.Result.Resume {
			return acp.SessionResponse{}, "", errors.New("the agent cannot resume")
		}
		r, err := a.Client.ResumeSession(ctx, known)
		return r, at.AgentSession, err
	case methodLoad:
		if !a.Result.Load {
			return acp.SessionResponse{}, "", errors.New("the agent cannot load")
		}
		r, err := a.Client.LoadSession(ctx, known)
		return r, at.AgentSession, err
	case methodNew:
		r, err := a.Client.NewSession(ctx, acp.NewSessionRequest{CWD: t.o.Work})
		if err == nil && r.SessionID == "" {
			err = errors.New("the agent gave no session id")
		}
		return r, r.SessionID, err
	default:
		return acp.SessionResponse{}, "", fmt.Errorf("the method %.40q is not known", at.Method)
	}
}

// configure sets mode and model and reads them back.
func (t *Turn) configure(ctx context.Context, a *agent.Agent, session string, r acp.SessionResponse) error {
	req := t.o.Request
	options := r.ConfigOptions
	set := func(id, value string) error {
		if !slices.ContainsFunc(options, func(o acp.ConfigOption) bool { return o.ID == id }) {
			return fmt.Errorf("the agent has no option %q", id)
		}
		res, err := a.Client.SetConfigOption(ctx, acp.SetConfigOptionRequest{SessionID: session, ConfigID: id, Value: value})
		if err != nil {
			return err
		}
		for _, o := range res.ConfigOptions {
			if o.ID == id && o.Value() != value {
				return fmt.Errorf("the option %q is %q after it was set to %q", id, o.Value(), value)
			}
		}
		if len(res.ConfigOptions) > 0 {
			options = res.ConfigOptions
		}
		return nil
	}
	if req.ModelConfig != "" && req.Model != "" {
		if err := set(req.ModelConfig, req.Model); err != nil {
			return fmt.Errorf("set model: %w", err)
		}
	}
	switch {
	case req.Mode == "":
		return nil
	case req.ModeConfig != "":
		if err := set(req.ModeConfig, req.Mode); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
		return nil
	}
	if r.Modes == nil {
		return errors.New("set mode: the agent has no modes")
	}
	var offered []string
	for _, m := range r.Modes.AvailableModes {
		offered = append(offered, m.ID)
	}
	if !slices.Contains(offered, req.Mode) {
		return fmt.Errorf("set mode: the agent offers %s, not %s", strings.Join(offered, ", "), req.Mode)
	}
	if err := a.Client.SetMode(ctx, session, req.Mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return nil
}

// replayed counts the updates of a conversation that came before the prompt.
func (t *Turn) replayed() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replay
}

// replays tells whether the agent replays after its answer, as some do that promise not
// to: what it says then would be taken for the turn's.
func (t *Turn) replays(ctx context.Context, before int64) (bool, error) {
	select {
	case <-time.After(replayFirst):
		return t.replayed() != before, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// quiet waits until a replay that comes after the answer is over.
func (t *Turn) quiet(ctx context.Context) error {
	begun := t.o.Now()
	for {
		t.mu.Lock()
		last := t.seen
		t.mu.Unlock()
		if last.Before(begun) {
			last = begun
		}
		rest := replayQuiet - t.o.Now().Sub(last)
		if rest <= 0 || t.o.Now().Sub(begun) > replayMost {
			return nil
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// endStart ends a turn whose prompt was never sent.
func (t *Turn) endStart(ctx context.Context, err error, failed []string) {
	r := t.cancelRequest()
	a := t.Agent()
	switch {
	case r != nil && r.Code != "":
		t.fail(ctx, fault.New(fault.Code(r.Code), "%s", r.Message))
	case r != nil:
		clean := a.Alive() && errors.Is(err, errCanceled)
		if !clean {
			t.kill(ctx)
		}
		t.end(driverapi.End{Outcome: driverapi.OutcomeCanceled, Clean: clean, Exit: a.Exit()}, convert.End{StopReason: acp.StopCancelled})
	case errors.Is(err, errStop) && ctx.Err() == nil:
		l := t.o.Request.Limits.Total
		t.fail(ctx, fault.New(fault.TurnLimit, "The turn took longer than %v.", l))
	case errors.Is(err, errStop):
		t.fail(ctx, fault.New(fault.AgentLost, "The driver was stopped."))
	case acp.IsCode(err, acp.CodeAuthRequired):
		t.fail(ctx, fault.Wrap(err, fault.ModelKeyRejected, "The agent asks for authentication: %v", err))
	case fault.CodeOf(err) == fault.ModelKeyRejected || fault.CodeOf(err) == fault.InvalidInput:
		t.fail(ctx, err)
	default:
		t.fail(ctx, fault.Wrap(err, fault.AgentStartFailed, "The agent could not take the turn. %s", strings.Join(failed, "; ")))
	}
}
