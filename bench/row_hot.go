package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hearthd/hearth/client"
)

// hotPrompt measures a further prompt of a session whose agent is there: from
// the POST until a viewer has the first text.
func hotPrompt(ctx context.Context, b *bench) ([]metric, error) {
	w, err := b.world(ctx, b.agents)
	if err != nil {
		return nil, err
	}
	out, err := w.hotPrompt(ctx)
	return out, w.close(ctx, err)
}

func (w *world) hotPrompt(ctx context.Context) (out []metric, err error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	n, err := w.b.newNatives()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	for _, a := range realAgents {
		m, err := w.hotAgent(ctx, n, a.name, a.model)
		out = append(out, m...)
		if err != nil {
			return out, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	return out, nil
}

const hotText = "Say hello once more."

func (w *world) hotAgent(ctx context.Context, n *natives, name, model string) (out []metric, err error) {
	c, err := w.create(ctx, client.CreateInput{Agent: name, Model: model, Prompt: hotText})
	if err != nil {
		return nil, err
	}
	if _, err := w.completed(ctx, c.Session.ID, c.Turn.ID); err != nil {
		return nil, err
	}
	x, _, err := n.start(ctx, w.b.agents, name, model)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	if _, err := x.ask(ctx, hotText); err != nil {
		return nil, err
	}
	per := w.b.small(10, 2)
	s, f, err := w.b.alternate(ctx, func(ctx context.Context, _ int) (sample, error) {
		s := sample{}
		for range per {
			if err := w.hotTurn(ctx, c.Session.ID, s); err != nil {
				return nil, err
			}
		}
		return s, nil
	}, func(ctx context.Context, _ int) (sample, error) {
		s := sample{}
		for range per {
			first, err := x.ask(ctx, hotText)
			if err != nil {
				return nil, err
			}
			s.add("first", first)
		}
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	return []metric{{
		What: name + ": POST → first text at a viewer", Unit: unitMS, Quantile: median, Measured: s["first"], Floor: f["first"],
		FloorIs: "the same agent on the host: session/prompt → first agent_message_chunk", Compare: ofDifference,
	}, {
		What: name + ": of it until the agent has the prompt", Unit: unitMS, Quantile: median, Measured: s["sent"],
	}, {
		What: name + ": from there to the agent's first part of any kind", Unit: unitMS, Quantile: median, Measured: s["part"],
	}}, w.remove(ctx, c.Session.ID)
}

// hotTurn runs one turn under the eyes of a viewer.
func (w *world) hotTurn(ctx context.Context, id string, s sample) error {
	began := time.Now()
	a, err := w.c.Prompt(ctx, id, client.PromptInput{Prompt: hotText})
	if err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	var first time.Time
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = w.c.Stream(ctx, id, client.StreamOptions{}, func(e client.Event) error {
		if first.IsZero() && e.Type == "text-delta" {
			first = time.Now()
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("watch the session: %w", err)
	}
	t, err := w.completed(ctx, id, a.Turn.ID)
	if err != nil {
		return err
	}
	if first.IsZero() || t.SentAt == nil || t.Times.FirstPart == nil {
		return errors.New("the turn had no text")
	}
	s.add("first", ms(first.Sub(began)))
	s.add("sent", ms(t.SentAt.Sub(t.AcceptedAt)))
	s.add("part", float64(*t.Times.FirstPart))
	return nil
}
