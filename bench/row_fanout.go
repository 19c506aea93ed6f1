package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/testkit/numbered"
)

// whole says what of the pieces did not come once and in order.
type whole struct {
	Lost    int `json:"lost"`
	Doubled int `json:"doubled"`
	Back    int `json:"outOfOrder"`
}

func (w whole) String() string { return fmt.Sprintf("%d, %d, %d", w.Lost, w.Doubled, w.Back) }

func (w *whole) add(t *numbered.Tally, count int) {
	w.Lost += t.Lost(count)
	w.Doubled += t.Doubled
	w.Back += t.Back + t.Strange
}

// wholes are those of a line's two sides, over all rounds and viewers.
type wholes struct {
	Measured whole  `json:"measured"`
	Beside   *whole `json:"floor,omitempty"`
	Of       int    `json:"of"` // pieces that each side had to give
}

func (w *wholes) String() string {
	if w == nil {
		return ""
	}
	s := w.Measured.String()
	if w.Beside != nil {
		s += " | " + w.Beside.String()
	}
	return s
}

// fan is one case: what the agent sends, and to how many.
type fan struct {
	viewers int
	spec    numbered.Spec
	slow    time.Duration // taken by the first viewer for each piece
	times   bool          // of every piece
	planes  []string
}

// watching is how long the agent waits for the viewers of a case.
func watching(viewers int) time.Duration {
	return time.Second + time.Duration(viewers)*40*time.Millisecond
}

// gathered is what the rounds of a plane gave.
type gathered struct {
	series map[string]series
	whole  whole
}

// fan runs a case in rounds in which the planes take turns, each first in its turn.
func (b *bench) fan(ctx context.Context, c fan) (out map[string]*gathered, err error) {
	out = map[string]*gathered{}
	for _, name := range c.planes {
		out[name] = &gathered{series: map[string]series{}}
	}
	err = b.each(ctx, c.planes, func(up map[string]plane) error {
		for r := range b.rounds {
			for i := range c.planes {
				name := c.planes[(i+r)%len(c.planes)]
				got, w, err := c.take(ctx, up[name])
				if err != nil {
					return fmt.Errorf("round %d, %s: %w", r+1, name, err)
				}
				g := out[name]
				for k, v := range got {
					g.series[k] = append(g.series[k], v)
				}
				g.whole.Lost += w.Lost
				g.whole.Doubled += w.Doubled
				g.whole.Back += w.Back
				fmt.Fprintf(b.log, "  round %d, %s: %s/s; lost, doubled, out of order: %s\n", r+1, name, show(got["rate"][0]), w)
			}
		}
		return nil
	})
	return out, err
}

// errLate means that a viewer was not there for the first piece: what it lacks
// says nothing.
var errLate = errors.New("a viewer came after the first piece: the machine is too busy")

// take runs a case on a plane, and again with more patience when viewers were late.
func (c fan) take(ctx context.Context, p plane) (sample, whole, error) {
	for wait := watching(c.viewers); ; wait *= 3 {
		s, w, err := c.once(ctx, p, wait)
		if !errors.Is(err, errLate) || wait > time.Minute {
			return s, w, err
		}
	}
}

// once runs a case on a plane, whose agent waits for the viewers.
func (c fan) once(ctx context.Context, p plane, wait time.Duration) (s sample, w whole, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*patience)
	defer cancel()
	conv, err := p.open(ctx, true)
	if err != nil {
		return nil, w, err
	}
	defer func() { err = errors.Join(err, conv.close(ctx)) }()
	spec := c.spec
	spec.Wait = wait
	began := time.Now()
	done, failed, err := conv.say(ctx, spec)
	if err != nil {
		return nil, w, err
	}
	viewers := make([]*viewer, c.viewers)
	for i := range viewers {
		viewers[i] = newViewer(p.text, spec, c.times)
	}
	viewers[0].slow = c.slow
	a, err := watch(ctx, conv, viewers...)
	if err != nil {
		return nil, w, err
	}
	late := time.Since(began) > wait // nothing can have been sent before
	if err := errors.Join(a.end(ctx, done), failed()); err != nil {
		return nil, w, err
	}
	if late {
		return nil, w, errLate
	}
	return c.sum(viewers, &w)
}

// sum makes the samples of one round.
func (c fan) sum(viewers []*viewer, w *whole) (sample, whole, error) {
	s := sample{}
	first, last := time.Duration(1<<62), time.Duration(0)
	pieces, bytes := 0, int64(0)
	base := viewers[0].base
	for i, v := range viewers {
		off := v.base.Sub(base)
		w.add(v.tally, c.spec.Count)
		bytes += v.bytes
		if len(v.sent) == 0 {
			continue
		}
		first = min(first, off+v.sent[0])
		last = max(last, off+v.came[len(v.came)-1])
		pieces += v.tally.Pieces
		if c.times && !(i == 0 && c.slow > 0) {
			s.add("latency", v.latencies()...)
		}
	}
	if pieces == 0 {
		return nil, *w, errors.New("no viewer was sent a piece")
	}
	s.add("rate", float64(pieces)/(last-first).Seconds())
	s.add("bytes", float64(bytes)/float64(pieces)/float64(c.spec.Bytes))
	s.add("events", float64(viewers[len(viewers)-1].lines))
	s.add("took", ms(last-first))
	return s, *w, nil
}

// beside makes a line: a plane's samples, and another's where there are any.
func (c fan) beside(got map[string]*gathered, what, name, other, key string, m metric) metric {
	m.What, m.Measured, m.Whole = what, got[name].series[key], &wholes{Measured: got[name].whole}
	for _, r := range got[name].series["rate"] {
		m.Whole.Of += len(r) * c.viewers * c.spec.Count
	}
	if o := got[other]; o != nil && other != name {
		m.Floor, m.FloorIs, m.Whole.Beside = o.series[key], floors[other], &o.whole
		if rival(other) && o.whole != (whole{}) {
			m.Note = strings.TrimSpace(m.Note + " " + other + " did not give every viewer everything: its speed does not count")
		}
	}
	return m
}

// floors tell what stands on a line's other side.
var floors = map[string]string{
	planeFloor: "a bare handler in this program that keeps the turn's events in memory: what the load client and loopback can do", planeShared: "hearth serve --sandbox bubblewrap: the same without gVisor",
	planeSandbox: "sandbox-agent, the same scripted agent, no sandbox, nothing stored", planeOpencode: "opencode serve, the same pieces out of the scripted model",
}

// lines are those of one measure: beside the floor, without gVisor, and beside each peer.
func (c fan) lines(got map[string]*gathered, what, key string, m metric, ratio float64) []metric {
	own := m
	own.Compare = ofRatio
	out := []metric{c.beside(got, what, planeHearth, planeFloor, key, own)}
	for _, name := range []string{planeShared, planeSandbox, planeOpencode} {
		if got[name] == nil {
			continue
		}
		o := metric{Unit: m.Unit, Quantile: m.Quantile, Compare: ofRatio}
		if name == planeSandbox && ratio > 0 {
			o.Target, o.TargetOf, o.AtLeast = ratio, ofRatio, true
		}
		out = append(out, c.beside(got, what+", beside "+name, planeHearth, name, key, o))
	}
	return out
}

func (b *bench) fanPlanes() []string {
	return b.planes(planeHearth, planeSandbox, planeOpencode, planeShared, planeFloor)
}

// burst is one viewer of an agent that speaks as fast as it can.
func burst(ctx context.Context, b *bench) ([]metric, error) {
	c := fan{viewers: 1, spec: numbered.Spec{Count: b.small(20_000, 2000), Bytes: 200}, planes: b.fanPlanes()}
	got, err := b.fan(ctx, c)
	if err != nil {
		return nil, err
	}
	return c.lines(got, fmt.Sprintf("%d pieces of 200 bytes to one viewer", c.spec.Count), "rate", metric{Unit: unitRate, Quantile: median}, 0), nil
}

// fanOut is many viewers of an agent that speaks as fast as it can.
func fanOut(ctx context.Context, b *bench) ([]metric, error) {
	c := fan{viewers: 50, spec: numbered.Spec{Count: b.small(5000, 500), Bytes: 200}, planes: b.fanPlanes()}
	got, err := b.fan(ctx, c)
	if err != nil {
		return nil, err
	}
	return c.lines(got, fmt.Sprintf("%d pieces of 200 bytes to 50 viewers, together", c.spec.Count), "rate",
		metric{Unit: unitRate, Quantile: median, Target: 100_000, TargetOf: ofMeasured, AtLeast: true}, 2), nil
}

// steady is ten viewers of an agent that speaks a thousand times a second.
func steady(ctx context.Context, b *bench) ([]metric, error) {
	c := fan{viewers: 10, spec: numbered.Spec{Count: b.small(6000, 2000), Bytes: 200, PerSec: 1000}, times: true, planes: b.fanPlanes()}
	got, err := b.fan(ctx, c)
	if err != nil {
		return nil, err
	}
	what := "from the agent to each of 10 viewers, 1,000 pieces a second"
	out := c.lines(got, what, "latency", metric{Unit: unitMS, Quantile: median}, 0)
	tails := c.lines(got, what, "latency", metric{Unit: unitMS, Quantile: p99, Target: 15, TargetOf: ofMeasured}, 0)
	// The target without the sandbox's own kernel.
	shared := c.beside(got, what+", without gVisor", planeShared, planeFloor, "latency", metric{Unit: unitMS, Quantile: p99, Compare: ofRatio, Target: 5, TargetOf: ofMeasured})
	return slices.Concat(out, tails, []metric{shared}), nil
}

// slowViewer is one viewer that takes 5 ms for a piece, and a quick one beside it.
func slowViewer(ctx context.Context, b *bench) ([]metric, error) {
	c := fan{
		viewers: 2, spec: numbered.Spec{Count: b.small(3000, 1000), Bytes: 2048, PerSec: 2000}, slow: 5 * time.Millisecond, times: true,
		planes: b.planes(planeHearth, planeSandbox, planeOpencode),
	}
	got, err := b.fan(ctx, c)
	if err != nil {
		return nil, err
	}
	return append(
		c.lines(got, "until a viewer that takes 5 ms a piece has the last that it gets", "took", metric{Unit: unitMS, Quantile: median}, 0),
		c.lines(got, "from the agent to a quick viewer beside it", "latency", metric{Unit: unitMS, Quantile: p99}, 0)...), nil
}

// onTheWire is how many bytes a viewer is sent for a byte of text.
func onTheWire(ctx context.Context, b *bench) ([]metric, error) {
	c := fan{viewers: 1, spec: numbered.Spec{Count: b.small(2000, 500), Bytes: 100, PerSec: 400}, planes: b.planes(planeHearth, planeSandbox, planeOpencode)}
	got, err := b.fan(ctx, c)
	if err != nil {
		return nil, err
	}
	return c.lines(got, fmt.Sprintf("bytes sent for a byte of text, %d pieces of 100 bytes", c.spec.Count), "bytes",
		metric{Quantile: median, Target: 3, TargetOf: ofMeasured}, 0), nil
}
