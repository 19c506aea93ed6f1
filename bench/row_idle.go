package main

import (
	"context"
	"fmt"
)

// idleSessions measures what a server's memory is with so many conversations
// that nothing happens in. Agents are not counted; sandbox-agent has a process
// of the agent for each, Hearth has none until there is a prompt.
func idleSessions(ctx context.Context, b *bench) ([]metric, error) {
	steps := []int{1, b.small(100, 5), b.small(500, 10)}
	names := b.planes(planeHearth, planeSandbox, planeOpencode)
	got := map[string]map[string]series{}
	for r := range b.rounds {
		for i := range names {
			name := names[(i+r)%len(names)]
			s, err := b.idle(ctx, name, steps)
			if err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", r+1, name, err)
			}
			if got[name] == nil {
				got[name] = map[string]series{}
			}
			for k, v := range s {
				got[name][k] = append(got[name][k], v)
			}
		}
	}
	var out []metric
	for _, n := range steps {
		key := fmt.Sprint(n)
		what := fmt.Sprintf("server with %d idle sessions, PSS", n)
		first := metric{What: what, Unit: unitMiB, Quantile: median, Measured: got[planeHearth][key]}
		if n == 1 {
			first.Target, first.TargetOf = 90, ofMeasured
		}
		out = append(out, first)
		for _, name := range names[1:] {
			if len(got[name][key]) == 0 {
				continue
			}
			out = append(out, metric{What: what + ", beside " + name, Unit: unitMiB, Quantile: median, Measured: got[planeHearth][key], Floor: got[name][key], FloorIs: floors[name], Compare: ofRatio})
		}
	}
	return out, nil
}

// sandboxAgentIdle is how many conversations sandbox-agent gets at most: each
// has a process.
const sandboxAgentIdle = 100

func (b *bench) idle(ctx context.Context, name string, steps []int) (s sample, err error) {
	p, err := b.newPlane(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = p.close(ctx, err) }()
	s = sample{}
	made := 0
	for _, n := range steps {
		if name == planeSandbox && n > sandboxAgentIdle {
			break
		}
		for ; made < n; made++ {
			if _, err := p.open(ctx, false); err != nil {
				return nil, err
			}
		}
		if err := pause(ctx, settle); err != nil {
			return nil, err
		}
		f, err := memoryOf(p.processes())
		if err != nil {
			return nil, err
		}
		s.add(fmt.Sprint(n), f.pss)
	}
	return s, nil
}
