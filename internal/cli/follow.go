package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

// errEnough ends a stream whose turn has ended.
var errEnough = errors.New("the turn has ended")

// following is one look at a session until its end or until the person leaves.
type following struct {
	c        *client.Client
	session  client.Session
	turn     string    // only this one; empty: all
	deadline time.Time // when that turn is stopped; zero: never
	limit    time.Duration
	options  client.StreamOptions
	out      sink
	now      func() time.Time

	stop   bool    // an interrupt stops the turn instead of asking
	asking *asking // what is put to the person; nil: nothing is

	stopping bool // that was done; of follow's goroutine, as the next
	limited  bool // the deadline has passed before the turn's end

	mu      sync.Mutex // held while something is shown or asked; also of what follows
	message map[int64]string
	parts   int64 // seen so far
	working bool  // a message has begun and not ended
	start   starting
	page    client.TurnList // turns that were read last
	told    turnEnd         // how the newest turn ended, as its message says
}

// follow shows the conversation and returns the exit status.
func (a *app) follow(ctx context.Context, f *following) (int, error) {
	f.message, f.now, f.asking = map[int64]string{}, a.Now, a.asks(f.out)
	f.options.States = true
	if a.GiveUp > 0 {
		f.c.GiveUp = a.GiveUp
	}
	signals, stop := a.Interrupts()
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if t, ok := f.out.(*textSink); ok {
		t.questions = known(ctx, f.c, f.session.ID)
	}
	ended := make(chan error, 1)
	watched := make(chan struct{})
	go func() { // waited for below, always
		defer close(watched)
		f.watchStart(ctx, a)
	}()
	go func() { // waited for below, always
		ended <- f.c.Stream(ctx, f.session.ID, f.options, func(e client.Event) error { return f.show(ctx, e) })
	}()
	var late <-chan time.Time
	if !f.deadline.IsZero() {
		t := time.NewTimer(f.deadline.Sub(a.Now()))
		defer t.Stop()
		late = t.C
	}
	for {
		leave := false
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, errEnough) {
				cancel()
				<-watched
				return 0, a.goOn(err, f)
			}
			f.quiet()
			status, err := f.finish(ctx)
			cancel()
			<-watched
			return status, err
		case <-late:
			late = f.tooLate(ctx, a)
		case <-signals:
			f.mu.Lock() // nothing is shown while a question is
			leave = a.signaled(ctx, f, signals)
			f.mu.Unlock()
		case <-f.asking.woken():
			f.mu.Lock()
			var passed bool
			leave, passed = a.askPerson(ctx, f, signals, late, ended)
			f.mu.Unlock()
			if passed {
				late = f.tooLate(ctx, a)
			}
		}
		if leave {
			cancel()
			<-watched
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, errEnough) {
				a.note("%s", sanitizeBlock(err.Error()))
			}
			a.note("Detached; the turn goes on. See it again: %s attach %s", a.self(), sanitizeLine(f.session.ID))
			return exitDetached, nil
		}
	}
}

// signaled does what an interrupt means, and says whether the person goes. Called with f.mu held.
func (a *app) signaled(ctx context.Context, f *following, signals <-chan os.Signal) (leave bool) {
	leave, err := f.stopping, error(nil)
	if f.stop && !leave {
		f.stopping = true
		err = a.stopTurn(ctx, f)
	} else if !leave {
		leave, err = a.interrupted(ctx, f, signals)
	}
	if leave {
		f.out.detached(&f.session)
	}
	if err != nil {
		a.note("%s", sanitizeBlock(err.Error()))
	}
	return leave
}

// goOn adds to the error of a stream that has given up how to go on.
func (a *app) goOn(err error, f *following) error {
	var e *client.Error
	if !errors.As(err, &e) || e.Code != string(fault.ServerUnavailable) {
		return err
	}
	told := *e
	told.Remedy = "The session is kept, and its turn goes on when a server is there. See it again: " + a.self() + " attach " + f.session.ID
	return &told
}

// stopTurn has the turn at work stopped; its end is waited for.
func (a *app) stopTurn(ctx context.Context, f *following) error {
	if _, err := f.c.Cancel(ctx, f.session.ID, f.turn); err != nil {
		return err
	}
	a.note("Stopping …")
	return nil
}

// tooLate stops the turn, which has taken longer than the person waits. It gives
// when to try again, nil when that is not needed.
func (f *following) tooLate(ctx context.Context, a *app) <-chan time.Time {
	if !f.limited {
		f.limited = true
		f.mu.Lock()
		a.note("%v have passed since the command began (--limit): the turn is stopped, its work is kept.", f.limit)
		f.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := f.c.Cancel(ctx, f.session.ID, f.turn)
	var e *client.Error
	if err == nil || errors.As(err, &e) && e.Status != 0 && e.Status < 500 {
		return nil // stopped, or ended meanwhile
	}
	return time.After(2 * time.Second)
}

// interrupted asks what Ctrl-C means: detach, stop the turn, or go on. Without a
// terminal it means to detach; a second Ctrl-C too.
func (a *app) interrupted(ctx context.Context, f *following, signals <-chan os.Signal) (leave bool, err error) {
	if !a.IsTerminal(a.Stdin) || !a.IsTerminal(a.Stderr) {
		return true, nil
	}
	const prompt = "Detach (d Enter), stop the turn (s Enter), or go on (Enter)? "
	_, _ = fmt.Fprint(a.Stderr, "\n"+prompt)
	lines := a.readLines()
	look := time.NewTicker(2 * time.Second) // nothing is shown meanwhile, so the turn's end is asked for
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if f.turn == "" {
				continue
			}
			if t, err := f.c.Turn(ctx, f.session.ID, f.turn); err == nil && t.Ended() {
				a.note("\nThe turn has ended meanwhile.")
				return false, nil
			}
		case <-signals:
			a.note("")
			return true, nil
		case <-ctx.Done():
			return true, nil
		case line, ok := <-lines:
			switch answer := strings.ToLower(strings.TrimSpace(line)); {
			case !ok, answer == "d", answer == "detach":
				return true, nil
			case answer == "s", answer == "stop":
				return false, a.stopTurn(ctx, f)
			case answer == "":
				return false, nil
			default:
				_, _ = fmt.Fprintf(a.Stderr, "%s is none of these. %s", clip(sanitizeLine(answer), 40), prompt)
			}
		}
	}
}

// show passes an event on if it is of the turn that is followed.
func (f *following) show(ctx context.Context, e client.Event) error {
	if err := f.pass(e); err != nil || e.Type != string(uistream.TypeFinish) || f.turn != "" {
		return err
	}
	// The whole session is followed: what became of the turn is on its row.
	t, err := f.ended(ctx, e.Turn)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out.turn(&f.session, t)
	return nil
}

func (f *following) pass(e client.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.Type == string(uistream.TypeStart) {
		var s struct {
			MessageID string `json:"messageId"`
		}
		if err := json.Unmarshal(e.Data, &s); err != nil {
			return fmt.Errorf("read the start of a message: %w", err)
		}
		f.message[e.Turn] = s.MessageID
	}
	if f.turn != "" && e.State == "" && !e.Reset && f.message[e.Turn] != f.turn {
		return nil
	}
	if e.State == "" && !e.Reset {
		f.parts++
		f.working = e.Type != string(uistream.TypeFinish)
		f.startGoesOn(e)
		if e.Type == string(uistream.DataType(uistream.DataTurnEnd)) {
			f.told = turnEnd{}
			if err := json.Unmarshal(e.Data, &f.told); err != nil {
				f.told = turnEnd{} // the turn's row says it, too
			}
		}
	}
	if err := f.out.event(e); err != nil {
		return err
	}
	f.asking.noticed(e)
	if f.turn != "" && e.Type == string(uistream.TypeFinish) {
		return errEnough
	}
	return nil
}

// turnEnd is what is read of a data-turn-end part.
type turnEnd struct {
	Data struct {
		State    string `json:"state"`
		Code     string `json:"code"`
		Sentence string `json:"sentence"`
		Remedy   string `json:"remedy"`
		Delivery *struct {
			State    string `json:"state"`
			Code     string `json:"code"`
			Sentence string `json:"sentence"`
			Commit   string `json:"commit"`
		} `json:"delivery"`
	} `json:"data"`
}

// ended reads a turn whose message has ended. A page of turns is kept, so that a
// long session is not asked for turn by turn. Where the server does not answer it
// is what the message itself told.
func (f *following) ended(ctx context.Context, number int64) (*client.Turn, error) {
	for range 2 {
		for i := range f.page.Items {
			if t := &f.page.Items[i]; t.Number == number && t.Ended() {
				return t, nil
			}
		}
		c, cancel := context.WithTimeout(ctx, 10*time.Second)
		page, err := f.c.Turns(c, f.session.ID, number-1)
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			break
		}
		f.page = page
	}
	d := f.told.Data
	t := &client.Turn{ID: f.message[number], Number: number, State: d.State, Code: d.Code, Message: d.Sentence, Remedy: d.Remedy}
	if d.Delivery != nil {
		t.Delivery = &client.Delivery{State: d.Delivery.State, Code: d.Delivery.Code, Message: d.Delivery.Sentence, Commit: d.Delivery.Commit}
	}
	return t, nil
}

// finish reads how the turn ended and shows the summary.
func (f *following) finish(ctx context.Context) (int, error) {
	var turn *client.Turn
	for range 50 { // its end is written with its last part; another server may lag a little
		s, err := f.c.Get(ctx, f.session.ID)
		if err != nil {
			return 0, err
		}
		f.session = s
		id := f.turn
		if id == "" {
			if s.Turns == 0 {
				break
			}
			page, err := f.c.Turns(ctx, s.ID, s.Turns-1)
			if err != nil {
				return 0, err
			}
			if len(page.Items) == 0 {
				break
			}
			id = page.Items[0].ID
		}
		t, err := f.c.Turn(ctx, s.ID, id)
		if err != nil {
			return 0, err
		}
		turn = &t
		if t.Ended() {
			break
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	status := outcome(turn)
	if f.limited && turn != nil && turn.State == "canceled" {
		status = fault.KindTimeout.ExitStatus()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.out.end(&f.session, turn, status)
	return status, nil
}

// outcome is the exit status of a turn.
func outcome(t *client.Turn) int {
	switch {
	case t == nil:
		return exitOK
	case t.State == "canceled":
		return exitCanceled
	case t.State == "failed":
		return fault.Lookup(fault.Code(t.Code)).Kind.ExitStatus()
	case t.Delivery != nil && t.Delivery.State == "failed":
		return exitDeliveryFailed
	}
	return exitOK
}
