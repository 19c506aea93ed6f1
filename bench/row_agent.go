package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hearthd/hearth/client"
)

// agentReady measures a session without a repository from its accept to the
// moment the agent is given the prompt, session/new and mode included.
func agentReady(ctx context.Context, b *bench) ([]metric, error) {
	w, err := b.world(ctx, b.agents)
	if err != nil {
		return nil, err
	}
	out, err := w.agentReady(ctx)
	return out, w.close(ctx, err)
}

func (w *world) agentReady(ctx context.Context) (out []metric, err error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	n, err := w.b.newNatives()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	for _, a := range realAgents {
		subject := func(ctx context.Context, _ int) (sample, error) {
			c, err := w.create(ctx, client.CreateInput{Agent: a.name, Model: a.model, Prompt: "Say hello."})
			if err != nil {
				return nil, err
			}
			t, err := w.completed(ctx, c.Session.ID, c.Turn.ID)
			if err != nil {
				return nil, err
			}
			if t.SentAt == nil || t.Times.Sandbox == nil || t.Times.AgentReady == nil {
				return nil, fmt.Errorf("the turn does not tell its times: %+v", t.Times)
			}
			return sample{"ready": {ms(t.SentAt.Sub(t.AcceptedAt))}, "sandbox": {float64(*t.Times.Sandbox)}}, w.remove(ctx, c.Session.ID)
		}
		floor := func(ctx context.Context, _ int) (sample, error) {
			x, took, err := n.start(ctx, w.b.agents, a.name, a.model)
			if err != nil {
				return nil, err
			}
			return sample{"ready": {took}}, x.close()
		}
		// One of each before, for the page cache.
		if _, err := subject(ctx, 0); err != nil {
			return out, fmt.Errorf("%s: %w", a.name, err)
		}
		if _, err := floor(ctx, 0); err != nil {
			return out, fmt.Errorf("%s on the host: %w", a.name, err)
		}
		s, f, err := w.b.alternate(ctx, subject, floor)
		if err != nil {
			return out, fmt.Errorf("%s: %w", a.name, err)
		}
		out = append(out, metric{
			What: a.name + ": accept → agent has the prompt", Unit: unitMS, Quantile: median, Measured: s["ready"], Floor: f["ready"],
			FloorIs: "the same agent, command, environment and files on the host: start, initialize, session/new, mode", Compare: ofRatio, Target: a.ready, TargetOf: ofMeasured,
		}, metric{
			What: a.name + ": of it until sandbox and agent process", Unit: unitMS, Quantile: median, Measured: s["sandbox"],
		})
	}
	return out, nil
}
