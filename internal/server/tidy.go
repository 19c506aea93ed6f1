package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/hearthd/hearth/internal/sandbox"
)

// What nothing has needed for a week is removed, at the server's start and once a day.
const (
	tidyEvery = 24 * time.Hour
	tidyKeep  = 7 * 24 * time.Hour
)

// pruner is what an installer of agents is here.
type pruner interface {
	Prune(ctx context.Context, before time.Time) ([]string, error)
}

// tidier removes old agents and old roots until its context ends.
type tidier struct {
	agents pruner
	boxes  sandbox.Provider
	now    func() time.Time
	log    *slog.Logger
}

// run begins when ready is closed: the self-test goes first, since a person waits for it.
func (t *tidier) run(ctx context.Context, ready <-chan struct{}) {
	select {
	case <-ready:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		t.once(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *tidier) once(ctx context.Context) {
	before := t.now().Add(-tidyKeep)
	removed, err := t.agents.Prune(ctx, before)
	if len(removed) > 0 {
		t.log.Info("old agents were removed", "layers", removed)
	}
	if err != nil && ctx.Err() == nil {
		t.log.Warn("remove old agents", "error", err)
	}
	if x, ok := t.boxes.(sandbox.Tidier); ok {
		if err := x.Tidy(ctx, before); err != nil && ctx.Err() == nil {
			t.log.Warn("remove what sandboxes no longer use", "error", err)
		}
	}
}
