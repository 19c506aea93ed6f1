package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hearthd/hearth/internal/testkit/numbered"
)

// firstEvent measures what stands between the first word of an agent's answer and
// a viewer who waits for it.
func firstEvent(ctx context.Context, b *bench) ([]metric, error) {
	names := b.fanPlanes()
	got := map[string]*gathered{}
	per := max(1, (b.n+b.rounds-1)/b.rounds)
	err := b.each(ctx, names, func(up map[string]plane) error {
		talks := map[string]conversation{}
		for _, name := range names {
			c, err := up[name].open(ctx, true)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			talks[name], got[name] = c, &gathered{series: map[string]series{}}
		}
		for r := range b.rounds {
			for i := range names {
				name := names[(i+r)%len(names)]
				s, g := sample{}, got[name]
				for range per {
					if err := firstOf(ctx, up[name], talks[name], s, &g.whole); err != nil {
						return fmt.Errorf("round %d, %s: %w", r+1, name, err)
					}
				}
				fmt.Fprintf(b.log, "  round %d, %s: %s ms\n", r+1, name, show(quantile(s["latency"], median)))
				for k, v := range s {
					g.series[k] = append(g.series[k], v)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c := fan{viewers: 1, spec: numbered.Spec{Count: 1, Bytes: 200}}
	for _, g := range got { // so that the lines know how many there were
		g.series["rate"] = g.series["latency"]
	}
	const what = "first piece of a prompt, from the agent to a viewer"
	out := c.lines(got, what, "latency", metric{Unit: unitMS, Quantile: median}, 0)
	out = append(out, c.lines(got, what, "latency", metric{Unit: unitMS, Quantile: p99, Target: 10, TargetOf: ofMeasured}, 0)...)
	return append(out, c.lines(got, "from the request with a prompt to the agent's first word, its pause left out", "asked", metric{Unit: unitMS, Quantile: median}, 0)...), nil
}

// firstPause is what the agent waits, so that the viewer is there.
const firstPause = 150 * time.Millisecond

func firstOf(ctx context.Context, p plane, c conversation, s sample, w *whole) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	spec := numbered.Spec{Count: 1, Bytes: 200, Wait: firstPause}
	began := time.Now()
	done, failed, err := c.say(ctx, spec)
	if err != nil {
		return err
	}
	v := newViewer(p.text, spec, true)
	a, err := watch(ctx, c, v)
	if err != nil {
		return err
	}
	err = until(ctx, patience, "the first piece", func() (bool, string) { return v.complete.Load(), "" })
	if err = errors.Join(err, a.close(), failed()); err != nil {
		return err
	}
	<-done
	w.add(v.tally, 1)
	s.add("latency", v.latencies()...)
	s.add("asked", ms(v.base.Add(v.sent[0]).Sub(began)-firstPause))
	return nil
}
