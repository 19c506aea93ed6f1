package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/acp"
)

// cancelTurn measures a cancel from the call to the turn's end, the work packed.
func cancelTurn(ctx context.Context, b *bench) ([]metric, error) {
	w, err := b.world(ctx, b.scripted)
	if err != nil {
		return nil, err
	}
	out, err := w.cancelTurn(ctx)
	return out, w.close(ctx, err)
}

func (w *world) cancelTurn(ctx context.Context) (out []metric, err error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	c, err := w.create(ctx, client.CreateInput{Prompt: "@@say ready@@"})
	if err != nil {
		return nil, err
	}
	id := c.Session.ID
	if _, err := w.completed(ctx, id, c.Turn.ID); err != nil {
		return nil, err
	}
	n, err := w.b.newNatives()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	x, _, err := n.start(ctx, w.b.scripted, "scripted", "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	per := (w.b.n + w.b.rounds - 1) / w.b.rounds // n in all: each is a whole turn
	const obeying, ignoring = "@@slow 10000 20@@", "@@ignore-cancel@@ @@slow 10000 20@@"
	s, f, err := w.b.alternate(ctx, func(ctx context.Context, _ int) (sample, error) {
		s := sample{}
		for range per {
			v, err := w.canceled(ctx, id, obeying)
			if err != nil {
				return nil, err
			}
			s.add("obeying", v)
		}
		v, err := w.canceled(ctx, id, ignoring)
		s.add("ignoring", v)
		return s, err
	}, func(ctx context.Context, _ int) (sample, error) {
		s := sample{}
		for range per {
			v, err := x.canceled(ctx, obeying)
			if err != nil {
				return nil, err
			}
			s.add("obeying", v)
		}
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	const floorIs = "the scripted agent on the host: session/cancel → the prompt's answer"
	return []metric{
		{What: "obeying agent", Unit: unitMS, Quantile: median, Measured: s["obeying"], Floor: f["obeying"], FloorIs: floorIs, Compare: ofDifference},
		{What: "obeying agent", Unit: unitMS, Quantile: p99, Measured: s["obeying"], Floor: f["obeying"], FloorIs: floorIs, Compare: ofDifference, Target: 1000, TargetOf: ofMeasured},
		{What: "agent that ignores it", Unit: unitMS, Quantile: p99, Measured: s["ignoring"], Target: 10000, TargetOf: ofMeasured, Note: "one a round: the greatest stands for the p99"},
	}, nil
}

// canceled runs a turn under the eyes of a viewer, cancels it once it speaks, and
// tells how long after that the viewer's stream had its end.
func (w *world) canceled(ctx context.Context, id, text string) (float64, error) {
	a, err := w.c.Prompt(ctx, id, client.PromptInput{Prompt: text})
	if err != nil {
		return 0, fmt.Errorf("prompt: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	speaks, ended := make(chan struct{}), make(chan error, 1)
	go func() { // waited for below
		heard := false
		ended <- w.c.Stream(ctx, id, client.StreamOptions{}, func(e client.Event) error {
			if !heard && e.Type == "text-delta" {
				heard = true
				close(speaks)
			}
			return nil
		})
	}()
	select {
	case <-speaks:
	case err := <-ended:
		return 0, fmt.Errorf("the stream ended before the agent spoke: %w", err)
	}
	began := time.Now()
	_, err = w.c.Cancel(ctx, id, a.Turn.ID)
	if err = errors.Join(err, <-ended); err != nil {
		return 0, fmt.Errorf("cancel: %w", err)
	}
	took := ms(time.Since(began))
	t, err := w.c.Turn(ctx, id, a.Turn.ID)
	if err == nil && t.State != "canceled" {
		err = fmt.Errorf("the canceled turn is %s %s (%s)", t.State, t.Code, t.Message)
	}
	return took, err
}

// canceled does the same with an agent on the host.
func (a *native) canceled(ctx context.Context, text string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-a.said:
	default:
	}
	done := make(chan error, 1)
	go func() { // waited for below
		_, err := a.Prompt(ctx, acp.PromptRequest{SessionID: a.session, Prompt: []acp.ContentBlock{acp.TextBlock(text)}})
		done <- err
	}()
	select {
	case <-a.said:
	case err := <-done:
		return 0, fmt.Errorf("the prompt ended before it was canceled: %w", err)
	}
	began := time.Now()
	err := a.Cancel(a.session)
	err = errors.Join(err, <-done)
	return ms(time.Since(began)), err
}
