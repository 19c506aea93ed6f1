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
	c       *client.Client
	session client.Session
	turn    string // only this one; empty: all
	options client.StreamOptions
	out     sink

	mu      sync.Mutex // held while something is shown or asked
	message map[int64]string
}

// follow shows the conversation and returns the exit status.
func (a *app) follow(ctx context.Context, f *following) (int, error) {
	f.message = map[int64]string{}
	f.options.States = true
	signals, stop := a.Interrupts()
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.c.Stream(ctx, f.session.ID, f.options, f.show) }() // waited for below, always
	for {
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, errEnough) {
				return 0, err
			}
			return f.finish(ctx)
		case <-signals:
			f.mu.Lock() // nothing is shown while a question is
			leave, err := a.interrupted(ctx, f, signals)
			if leave {
				f.out.detached(&f.session)
			}
			f.mu.Unlock()
			if err != nil {
				a.note("%s", sanitizeBlock(err.Error()))
			}
			if leave {
				cancel()
				if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
					a.note("%s", sanitizeBlock(err.Error()))
				}
				a.note("Detached; the turn goes on. See it again: %s attach %s", a.self(), sanitizeLine(f.session.ID))
				return exitOK, nil
			}
		}
	}
}

// interrupted asks what Ctrl-C means: detach, stop the turn, or go on. Without a
// terminal it means to detach; a second Ctrl-C too.
func (a *app) interrupted(ctx context.Context, f *following, signals <-chan os.Signal) (leave bool, err error) {
	if !a.IsTerminal(a.Stdin) || !a.IsTerminal(a.Stderr) {
		return true, nil
	}
	_, _ = fmt.Fprint(a.Stderr, "\nDetach (d), stop the turn (s), or go on (Enter)? ")
	select {
	case <-signals:
		a.note("")
		return true, nil
	case <-ctx.Done():
		return true, nil
	case line, ok := <-a.readLines():
		switch answer := strings.ToLower(strings.TrimSpace(line)); {
		case !ok, answer == "d", answer == "detach":
			return true, nil
		case answer == "s", answer == "stop":
			if _, err := f.c.Cancel(ctx, f.session.ID, f.turn); err != nil {
				return false, err
			}
			a.note("Stopping …")
		}
	}
	return false, nil
}

// show passes an event on if it is of the turn that is followed.
func (f *following) show(e client.Event) error {
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
	if err := f.out.event(e); err != nil {
		return err
	}
	if f.turn != "" && e.Type == string(uistream.TypeFinish) {
		return errEnough
	}
	return nil
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
