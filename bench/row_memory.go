package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hearthd/hearth/client"
)

// memory measures what lies there when nothing happens.
func memory(ctx context.Context, b *bench) ([]metric, error) {
	server, err := serverMemory(ctx, b)
	if err != nil {
		return nil, err
	}
	x, err := b.newBoxes()
	if err != nil {
		return server, err
	}
	boxes, err := x.memory(ctx)
	return append(server, boxes...), x.close(ctx, err)
}

// settle is how long a process is left alone before its memory is read.
const settle = 2 * time.Second

func serverMemory(ctx context.Context, b *bench) ([]metric, error) {
	all := map[string]series{}
	for range b.rounds {
		w, err := b.world(ctx, b.scripted)
		if err != nil {
			return nil, err
		}
		got, err := w.memory(ctx)
		if err = w.close(ctx, err); err != nil {
			return nil, err
		}
		for k, v := range got {
			all[k] = append(all[k], v)
		}
	}
	return []metric{
		{What: "idle server, PSS", Unit: unitMiB, Quantile: median, Measured: all["idle"], Target: 90, TargetOf: ofMeasured},
		{What: "of it no file", Unit: unitMiB, Quantile: median, Measured: all["own"]},
		{What: "each idle session, server's memory that is no file", Unit: unitMiB, Quantile: median, Measured: all["session"], Target: 1, TargetOf: ofMeasured},
		{What: "each idle session with its sandbox, server's memory that is no file", Unit: unitMiB, Quantile: median, Measured: all["live"],
			Note: "the server's Go runtime keeps for a while what it has taken once, and gives back later: small numbers around 0 mean that none is held"},
	}, nil
}

func (w *world) memory(ctx context.Context) (sample, error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	read := func() (footprint, error) {
		if err := pause(ctx, settle); err != nil {
			return footprint{}, err
		}
		return memoryOf([]int{w.proc.Process.Pid})
	}
	idle, err := read()
	if err != nil {
		return nil, err
	}
	n := w.b.small(100, 10)
	for range n {
		if _, err := w.create(ctx, client.CreateInput{}); err != nil {
			return nil, err
		}
	}
	with, err := read()
	if err != nil {
		return nil, err
	}
	boxes := w.b.small(5, 2)
	for range boxes {
		a, err := w.create(ctx, client.CreateInput{Prompt: "@@say hello@@"})
		if err != nil {
			return nil, err
		}
		if _, err := w.completed(ctx, a.Session.ID, a.Turn.ID); err != nil {
			return nil, err
		}
	}
	more, err := read()
	return sample{
		"idle": {idle.pss}, "own": {idle.own}, "session": {(with.own - idle.own) / float64(n)}, "live": {(more.own - with.own) / float64(boxes)},
	}, err
}

func (x *boxes) memory(ctx context.Context) ([]metric, error) {
	many := x.b.small(8, 3)
	all := map[string]series{}
	for range x.b.rounds {
		made := 0
		for _, n := range []int{1, many} {
			for ; made < n; made++ {
				if _, err := x.running(ctx); err != nil {
					return nil, err
				}
			}
			if err := pause(ctx, settle); err != nil {
				return nil, err
			}
			f, err := memoryOf(family(x.dir + "/"))
			if err != nil {
				return nil, err
			}
			if f.processes < 2*n {
				return nil, fmt.Errorf("%d processes were found of %d sandboxes", f.processes, n)
			}
			k := fmt.Sprint(n)
			all[k] = append(all[k], []float64{f.pss / float64(n)})
			all[k+" own"] = append(all[k+" own"], []float64{f.own / float64(n)})
		}
		if _, err := sweep(ctx, x.p); err != nil {
			return nil, err
		}
	}
	k := fmt.Sprint(many)
	return []metric{
		{What: "one idle sandbox, alone, PSS", Unit: unitMiB, Quantile: median, Measured: all["1"], Target: 25, TargetOf: ofMeasured,
			Note: "alone, each of its two programs counts the text of hearth in full; no server ran beside it"},
		{What: "of it no file", Unit: unitMiB, Quantile: median, Measured: all["1 own"]},
		{What: "one idle sandbox of " + k + ", PSS", Unit: unitMiB, Quantile: median, Measured: all[k]},
		{What: "of it no file", Unit: unitMiB, Quantile: median, Measured: all[k+" own"]},
	}, nil
}
