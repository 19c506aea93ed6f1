package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// Units.
const (
	unitMS    = "ms"
	unitMiB   = "MiB"
	unitCount = ""
	unitRate  = "/s"
)

// Quantiles of a metric.
const (
	median = 0.5
	p99    = 0.99
)

// What a target is held against, and how the floor is set beside the measured.
const (
	ofMeasured   = "measured"
	ofDifference = "difference" // measured − floor
	ofRatio      = "ratio"      // measured ÷ floor
)

// metric is one line of the report.
type metric struct {
	What     string
	Unit     string
	Quantile float64
	Measured series
	Floor    series // empty: there is none
	FloorIs  string // what the floor does
	Compare  string // ofDifference or ofRatio
	Target   float64
	TargetOf string // empty: there is no target
	AtLeast  bool   // the target is the least that is wanted, not the most
	Whole    *wholes
	Note     string
}

// series are samples by round.
type series [][]float64

// value is a quantile of all samples: the nearest rank, no interpolation.
func (s series) value(q float64) float64 { return quantile(slices.Concat(s...), q) }

// spread is the least and the greatest of the rounds' own quantiles.
func (s series) spread(q float64) (least, most float64) {
	least, most = math.Inf(1), math.Inf(-1)
	for _, r := range s {
		if len(r) > 0 {
			v := quantile(r, q)
			least, most = min(least, v), max(most, v)
		}
	}
	return least, most
}

func (s series) count() int {
	n := 0
	for _, r := range s {
		n += len(r)
	}
	return n
}

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	if q == median && len(v)%2 == 0 {
		return (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return v[max(0, int(math.Ceil(q*float64(len(v))))-1)]
}

// sample is what one round of one side gave, by name.
type sample map[string][]float64

func (s sample) add(name string, v ...float64) { s[name] = append(s[name], v...) }

// side does its work once and tells what it took. round counts from 0.
type side func(ctx context.Context, round int) (sample, error)

// alternate runs rounds; within each, subject and floor take turns in being
// first. A nil floor is left out.
func (b *bench) alternate(ctx context.Context, subject, floor side) (subjects, floors map[string]series, err error) {
	subjects, floors = map[string]series{}, map[string]series{}
	for r := range b.rounds {
		first := []struct {
			run  side
			into map[string]series
			name string
		}{{subject, subjects, "subject"}, {floor, floors, "floor"}}
		if r%2 == 1 {
			slices.Reverse(first)
		}
		for _, s := range first {
			if s.run == nil {
				continue
			}
			if err := ctx.Err(); err != nil {
				return nil, nil, err
			}
			got, err := s.run(ctx, r)
			if err != nil {
				return nil, nil, fmt.Errorf("round %d, %s: %w", r+1, s.name, err)
			}
			for k, v := range got {
				s.into[k] = append(s.into[k], v)
			}
		}
	}
	return subjects, floors, nil
}

// ms is a duration in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timed runs f and returns what it took in milliseconds.
func timed(f func() error) (float64, error) {
	began := time.Now()
	err := f()
	return ms(time.Since(began)), err
}

// until asks f until it says yes, every few milliseconds.
func until(ctx context.Context, d time.Duration, what string, f func() (bool, string)) error {
	late := time.NewTimer(d)
	defer late.Stop()
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		ok, last := f()
		if ok {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-late.C:
			return fmt.Errorf("waited %s for %s; at last: %s", d, what, last)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
