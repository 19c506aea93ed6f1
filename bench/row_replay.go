package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/numbered"
)

// replayTurns: one turn takes no more than 100,000 parts, with those that frame it.
const replayTurns = 2

// replay measures how long a viewer takes to get a long conversation from its
// beginning after the server was killed and started again.
func replay(ctx context.Context, b *bench) (out []metric, err error) {
	spec := numbered.Spec{Count: b.small(50_000, 2000), Bytes: 100}
	p, err := b.newPlane(ctx, planeHearth)
	if err != nil {
		return nil, err
	}
	o, ok := p.(*ours)
	if !ok {
		return nil, p.close(ctx, errors.New("that is not hearth"))
	}
	out, err = o.replay(ctx, spec)
	if err = o.close(ctx, err); err != nil {
		return out, err
	}
	for _, name := range b.planes(planeSandbox, planeOpencode) {
		m, err := b.peerReplay(ctx, name, spec)
		if err != nil {
			return out, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, m...)
	}
	return out, nil
}

func (o *ours) replay(ctx context.Context, spec numbered.Spec) ([]metric, error) {
	a, err := o.create(ctx, client.CreateInput{FirstEventLimitSeconds: 600, SilenceLimitSeconds: 600})
	if err != nil {
		return nil, err
	}
	c := &ourConversation{w: o.world, id: a.Session.ID}
	wrote := sample{}
	for range replayTurns {
		took, err := timed(func() error {
			_, failed, err := c.say(ctx, spec)
			if err != nil {
				return err
			}
			return failed()
		})
		if err != nil {
			return nil, err
		}
		wrote.add("wrote", took)
	}
	all := map[string]series{}
	got := &gathered{}
	total := replayTurns * spec.Count
	for range o.b.rounds {
		s, err := o.replayOnce(ctx, c.id, spec, &got.whole)
		if err != nil {
			return nil, err
		}
		for k, v := range s {
			all[k] = append(all[k], v)
		}
	}
	w := &wholes{Measured: got.whole, Of: total * o.b.rounds}
	note := fmt.Sprintf("%s events with text; it took %s ms to write a turn of %d pieces", show(all["events"].value(median)), show(series{wrote["wrote"]}.value(median)), spec.Count)
	return []metric{
		{What: fmt.Sprintf("replay of %d pieces after SIGKILL and a new start, from the request to the last", total), Unit: unitMS, Quantile: median, Measured: all["took"], Target: 1000, TargetOf: ofMeasured, Whole: w, Note: note},
		{What: "the same once more", Unit: unitMS, Quantile: median, Measured: all["again"], Whole: w},
		{What: "what the server's memory grows by at most while it replays, PSS", Unit: unitMiB, Quantile: median, Measured: all["memory"], Target: 16, TargetOf: ofMeasured, Whole: w},
	}, nil
}

func (o *ours) replayOnce(ctx context.Context, id string, spec numbered.Spec, w *whole) (sample, error) {
	if err := o.kill(); err != nil {
		return nil, err
	}
	if err := o.start(ctx); err != nil {
		return nil, err
	}
	if err := o.ready(ctx); err != nil {
		return nil, err
	}
	if err := pause(ctx, settle); err != nil {
		return nil, err
	}
	before, err := memoryOf(o.processes())
	if err != nil {
		return nil, err
	}
	s := sample{}
	most := watchMemory(ctx, o.processes())
	for _, name := range []string{"took", "again"} {
		took, lines, err := o.replayRead(ctx, id, spec, w, name == "took")
		if err != nil {
			most()
			return nil, err
		}
		s.add(name, took)
		s.add("events", float64(lines))
	}
	s.add("memory", most()-before.pss)
	return s, nil
}

// watchMemory looks at the memory of processes until it is asked for the most, in MiB of PSS.
func watchMemory(ctx context.Context, pids []int) (most func() float64) {
	ctx, stop := context.WithCancel(ctx)
	var wait sync.WaitGroup
	top := 0.0
	look := func() {
		if f, err := memoryOf(pids); err == nil {
			top = max(top, f.pss)
		}
	}
	wait.Go(func() {
		for pause(ctx, 50*time.Millisecond) == nil {
			look()
		}
	})
	return func() float64 { stop(); wait.Wait(); look(); return top }
}

// replayRead reads a conversation from its beginning. Both turns number their
// pieces from 1: a tally each.
func (o *ours) replayRead(ctx context.Context, id string, spec numbered.Spec, w *whole, count bool) (took float64, lines int64, err error) {
	r, err := o.streamRequest(ctx, id, "?from=beginning")
	if err != nil {
		return 0, 0, err
	}
	tallies := make([]*numbered.Tally, replayTurns)
	for i := range tallies {
		tallies[i] = numbered.NewTally(spec)
	}
	at := 0
	v := newViewer(func(line []byte) []byte {
		text := hearthText(line)
		if text != nil && at < len(tallies) {
			tallies[at].Add(text)
			if tallies[at].Pieces == spec.Count {
				at++
			}
		}
		return text
	}, numbered.Spec{Count: spec.Count, Bytes: spec.Bytes}, false)
	v.tally = numbered.NewTally(spec) // of no use here
	began := time.Now()
	res, err := o.http.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("stream from the beginning: %s", res.Status)
	}
	err = v.read(res.Body)
	took = ms(time.Since(began))
	if count {
		for _, t := range tallies {
			w.add(t, spec.Count)
		}
	}
	return took, v.lines, err
}

// peerReplay asks a peer for the same after as many pieces: before and after a restart.
func (b *bench) peerReplay(ctx context.Context, name string, spec numbered.Spec) (out []metric, err error) {
	p, err := b.newPlane(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = p.close(ctx, err) }()
	c, err := p.open(ctx, true)
	if err != nil {
		return nil, err
	}
	for range replayTurns {
		_, failed, err := c.say(ctx, spec)
		if err != nil {
			return nil, err
		}
		if err := failed(); err != nil {
			return nil, err
		}
	}
	total := replayTurns * spec.Count
	for _, restarted := range []bool{false, true} {
		when := "running"
		if restarted {
			when = "restarted"
			if err := p.(restarter).restart(ctx); err != nil {
				return nil, err
			}
		}
		n, took, err := c.(keeper).kept(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, metric{
			What: fmt.Sprintf("%s, %s: pieces of %d that it still has", name, when, total), Quantile: median, Measured: series{{float64(n)}},
		}, metric{What: fmt.Sprintf("%s, %s: until they are there", name, when), Unit: unitMS, Quantile: median, Measured: series{{took}}})
	}
	return out, nil
}

// restarter can be ended and started again with what it has stored.
type restarter interface {
	restart(ctx context.Context) error
}

// keeper tells how many pieces of a conversation are still there.
type keeper interface {
	kept(ctx context.Context) (pieces int, took float64, err error)
}

func (s *sandboxAgent) restart(ctx context.Context) error {
	s.stop()
	return s.start(ctx, "/v1/health")
}

// kept reads the stream from its beginning until it is quiet. A conversation that
// the server does not know any more has nothing.
func (c *sandboxConversation) kept(ctx context.Context) (int, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, quiet) // the stream has no end
	defer cancel()
	r, err := c.s.events(ctx, c.path)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	res, err := c.s.http.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, ms(time.Since(began)), nil
	}
	v := newViewer(sandboxAgentText, numbered.Spec{Count: numbered.MaxCount, Bytes: 100}, false)
	if err := v.read(res.Body); err != nil && ctx.Err() == nil {
		return 0, 0, err
	}
	if len(v.came) == 0 {
		return 0, 0, nil
	}
	return v.tally.Pieces, ms(v.base.Add(v.came[len(v.came)-1]).Sub(began)), nil
}

func (o *opencode) restart(ctx context.Context) error {
	o.stop()
	return o.start(ctx, "/global/health")
}

// kept asks for the messages.
func (c *opencodeConversation) kept(ctx context.Context) (int, float64, error) {
	began := time.Now()
	raw, err := c.o.call(ctx, http.MethodGet, "/session/"+c.id+"/message", nil)
	if err != nil {
		return 0, 0, err
	}
	took := ms(time.Since(began))
	var list []struct {
		Info  struct{ Role string }
		Parts []struct{ Type, Text string }
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return 0, 0, fmt.Errorf("read the messages: %w", err)
	}
	n := 0
	for _, m := range list {
		t := numbered.NewTally(numbered.Spec{Count: numbered.MaxCount, Bytes: 100})
		for _, p := range m.Parts {
			if p.Type == "text" && m.Info.Role == "assistant" {
				t.Add([]byte(p.Text))
			}
		}
		n += t.Pieces
	}
	return n, took, nil
}
