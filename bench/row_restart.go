package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthd/hearth/client"
)

const restartTurns = 5

// restart measures a server that is killed under running turns: from the start
// of the next one until every viewer has a part that is new.
func restart(ctx context.Context, b *bench) ([]metric, error) {
	w, err := b.world(ctx, b.scripted)
	if err != nil {
		return nil, err
	}
	out, err := w.restart(ctx)
	return out, w.close(ctx, err)
}

func (w *world) restart(ctx context.Context) ([]metric, error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	watch, stop := context.WithCancel(ctx)
	var viewers sync.WaitGroup
	defer viewers.Wait()
	defer stop()
	seen := make([]*newest, restartTurns)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i := range restartTurns {
		g.Go(func() error {
			a, err := w.create(gctx, client.CreateInput{Prompt: streaming})
			if err != nil {
				return err
			}
			if err := w.running(gctx, a.Session.ID, a.Turn.ID); err != nil {
				return err
			}
			n := &newest{}
			seen[i] = n
			viewers.Go(func() {
				err := w.c.Stream(watch, a.Session.ID, client.StreamOptions{}, n.take)
				n.fail(err, watch.Err())
			})
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := w.allNew(ctx, seen, time.Now()); err != nil {
		return nil, err
	}
	floor := func(ctx context.Context, _ int) (sample, error) {
		x := &world{b: w.b, agents: w.agents, model: w.model}
		var err error
		if x.dir, err = w.b.folder(); err != nil {
			return nil, err
		}
		x.state = x.dir + "/s"
		took, err := timed(func() error { return x.start(ctx) })
		return sample{"start": {took}}, x.close(ctx, err)
	}
	s, f, err := w.b.alternate(ctx, func(ctx context.Context, _ int) (sample, error) {
		if err := w.ready(ctx); err != nil { // one that is killed in its self-test leaves the sandbox of it
			return nil, err
		}
		killed := time.Now()
		if err := w.kill(); err != nil {
			return nil, err
		}
		began := time.Now()
		for _, n := range seen {
			n.firstSince(began) // from here on they look for it
		}
		if err := w.spawn(); err != nil {
			return nil, err
		}
		if err := w.answering(ctx); err != nil {
			return nil, err
		}
		answers := ms(time.Since(began))
		if err := w.allNew(ctx, seen, began); err != nil {
			return nil, err
		}
		var last time.Time
		for _, n := range seen {
			if at := n.firstSince(began); at.After(last) {
				last = at
			}
		}
		return sample{"stream": {ms(last.Sub(began))}, "killed": {ms(last.Sub(killed))}, "start": {answers}}, nil
	}, floor)
	if err != nil {
		return nil, err
	}
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	return []metric{
		{What: "SIGKILL → all 5 turns stream again", Unit: unitMS, Quantile: median, Measured: s["killed"], Target: 5000, TargetOf: ofMeasured},
		{What: "of it from the start of the new process", Unit: unitMS, Quantile: median, Measured: s["stream"], Floor: f["start"],
			FloorIs: "a server on an empty state folder, until it answers", Compare: ofDifference},
		{What: "of it until the new process answers", Unit: unitMS, Quantile: median, Measured: s["start"], Floor: f["start"], Compare: ofDifference},
	}, nil
}

// newest notes when parts came at a viewer, by the start of the server that they
// came from.
type newest struct {
	mu    sync.Mutex
	since time.Time // of interest
	first time.Time // the first part after it
	err   error
}

func (n *newest) take(e client.Event) error {
	if e.Type != "text-delta" {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.first.IsZero() && !n.since.IsZero() {
		n.first = time.Now()
	}
	return nil
}

func (n *newest) fail(err, stopped error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if stopped == nil {
		n.err = errors.Join(errors.New("a stream ended while its turn ran"), err)
	}
}

// firstSince asks for the first part after a moment, and begins to look for it.
func (n *newest) firstSince(at time.Time) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.since.Equal(at) {
		n.since, n.first = at, time.Time{}
	}
	return n.first
}

// allNew waits until every viewer has a part that came after a moment.
func (w *world) allNew(ctx context.Context, seen []*newest, at time.Time) error {
	return until(ctx, patience, "all turns to stream", func() (bool, string) {
		for i, n := range seen {
			n.mu.Lock()
			err := n.err
			n.mu.Unlock()
			if err != nil {
				return false, fmt.Sprintf("turn %d: %v", i, err)
			}
			if n.firstSince(at).IsZero() {
				return false, fmt.Sprintf("turn %d of %d does not", i+1, len(seen))
			}
		}
		return true, ""
	})
}
