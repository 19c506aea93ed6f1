package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hearthd/hearth/client"
	project "github.com/hearthd/hearth/internal/testkit/sample"
)

// leftOver makes and deletes sessions and counts what is there before and after.
func leftOver(ctx context.Context, b *bench) ([]metric, error) {
	w, err := b.world(ctx, b.scripted)
	if err != nil {
		return nil, err
	}
	l := &leftovers{world: w}
	out, err := l.measure(ctx)
	return out, w.close(ctx, err)
}

const warmUp = 6 // sessions

// leftovers makes sessions and remembers their names.
type leftovers struct {
	*world
	repo  string
	mu    sync.Mutex
	tails []string // of all ids; what is made for a session bears it
}

// stock is what a server has on the machine.
type stock struct {
	processes, mounts, sockets, files, groups int
	descriptors                               int // of the server itself
}

func (l *leftovers) stock() (stock, error) {
	l.mu.Lock()
	tails := slices.Clone(l.tails)
	l.mu.Unlock()
	s := stock{
		processes: len(family(l.dir + "/")), mounts: len(lines("/proc/self/mountinfo", l.dir+"/")), sockets: len(lines("/proc/net/unix", l.dir+"/")),
		groups: len(groups(func(name string) bool {
			return slices.ContainsFunc(tails, func(t string) bool { return strings.Contains(name, t) })
		})),
		descriptors: descriptors(l.proc.Process.Pid),
	}
	err := filepath.WalkDir(l.state, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		if !strings.HasPrefix(filepath.Base(path), "hearth.db") {
			s.files++
		}
		return nil
	})
	return s, err
}

// one session writes a file and is deleted; every other one has a repository.
func (l *leftovers) one(ctx context.Context, i int) error {
	in := client.CreateInput{Prompt: "@@write a.txt one@@"}
	if i%2 == 0 {
		in.Repo = l.repo
	}
	c, err := l.create(ctx, in)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.tails = append(l.tails, strings.TrimPrefix(c.Session.ID, "ses_"))
	l.mu.Unlock()
	if _, err := l.completed(ctx, c.Session.ID, c.Turn.ID); err != nil {
		return err
	}
	return l.remove(ctx, c.Session.ID)
}

func (l *leftovers) measure(ctx context.Context) ([]metric, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	r, err := l.git.NewRepo(ctx, "acme/calc", project.Files())
	if err != nil {
		return nil, err
	}
	l.repo = l.gitURL + r.Path()
	// The first ones lay out what stays by intention: roots, driver, the mirror of
	// the repository, the database's connections.
	if _, err := parallel(ctx, 2, warmUp, l.one); err != nil {
		return nil, err
	}
	base, err := l.still(ctx, nil)
	if err != nil {
		return nil, err
	}
	n := l.b.sessions
	took, err := timed(func() error {
		_, err := parallel(ctx, 2, n, l.one)
		return err
	})
	if err != nil {
		return nil, err
	}
	after, err := l.still(ctx, &base)
	if err != nil {
		return nil, err
	}
	var out []metric
	for _, c := range []struct {
		what        string
		before, now int
	}{
		{"processes", base.processes, after.processes}, {"mounts", base.mounts, after.mounts}, {"sockets", base.sockets, after.sockets},
		{"files in the state folder", base.files, after.files}, {"cgroups", base.groups, after.groups}, {"open files of the server", base.descriptors, after.descriptors},
	} {
		out = append(out, metric{
			What: fmt.Sprintf("%s after %d sessions", c.what, n), Unit: unitCount, Quantile: median,
			Measured: series{{float64(c.now)}}, Floor: series{{float64(c.before)}}, FloorIs: fmt.Sprintf("the same server before, after %d sessions to warm up", warmUp), Compare: ofDifference,
			Target: 0, TargetOf: ofDifference,
		})
	}
	return append(out, metric{What: "a session from create to gone, two at a time", Unit: unitMS, Quantile: median, Measured: series{{took / float64(n)}},
		Note: "whole time divided by the number of sessions"}), nil
}

// still counts once nothing changes any more, or all is as at the base: what goes
// a moment after its session is waited for, what stays is told.
func (l *leftovers) still(ctx context.Context, base *stock) (stock, error) {
	l.http.CloseIdleConnections()
	var now stock
	for same := 0; same < 10; {
		if err := pause(ctx, settle/4); err != nil {
			return now, err
		}
		s, err := l.stock()
		if err != nil {
			return now, err
		}
		if base != nil && s == *base {
			return s, nil
		}
		if s == now {
			same++
		} else {
			same, now = 0, s
		}
	}
	return now, nil
}
