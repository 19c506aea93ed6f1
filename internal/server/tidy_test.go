package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/sandbox"
)

type tidied struct {
	sandbox.Provider
	at []string
}

func (x *tidied) note(what string, before time.Time) error {
	x.at = append(x.at, what+" "+time.Until(before).String())
	return errors.New("a disk is full") // hurts nobody
}

func (x *tidied) Tidy(_ context.Context, before time.Time) error { return x.note("roots", before) }

func (x *tidied) Prune(_ context.Context, before time.Time) ([]string, error) {
	return nil, x.note("agents", before)
}

// Old things go after the self-test and then daily, whatever fails; a provider that keeps none is left alone.
func TestTidy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		x := &tidied{}
		ready, done := make(chan struct{}), make(chan struct{})
		go func() { // waited for below
			defer close(done)
			(&tidier{agents: x, boxes: x, now: time.Now, log: slog.New(slog.DiscardHandler)}).run(ctx, ready)
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(x.at) > 0 {
			t.Errorf("before the self-test's end: %q", x.at)
		}
		close(ready)
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		want := []string{"agents -168h0m0s", "roots -168h0m0s", "agents -168h0m0s", "roots -168h0m0s"}
		if d := cmp.Diff(want, x.at); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		cancel()
		<-done
		(&tidier{agents: x, boxes: noSandbox{}, now: time.Now, log: slog.New(slog.DiscardHandler)}).once(t.Context())
		if d := cmp.Diff(append(want, "agents -168h0m0s"), x.at); d != "" {
			t.Errorf("without roots (-want +got):\n%s", d)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		(&tidier{agents: x, boxes: x, now: time.Now, log: slog.New(slog.DiscardHandler)}).run(ended, make(chan struct{}))
	})
}
