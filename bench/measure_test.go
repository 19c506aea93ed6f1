package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[len(hundred)-1-i] = float64(i + 1)
	}
	for _, c := range []struct {
		name string
		in   []float64
		q    float64
		want float64
	}{
		{"one", []float64{7}, p99, 7},
		{"odd", []float64{9, 1, 2}, median, 2},
		{"even", []float64{4, 1, 2, 3}, median, 2.5},
		{"p99 of 100", hundred, p99, 99},
		{"p99 of few is the greatest", []float64{3, 1, 2}, p99, 3},
	} {
		if got := quantile(c.in, c.q); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		m    metric
		want string
	}{
		{"no target", metric{Measured: series{{5}}}, noTarget},
		{"at the target", metric{Measured: series{{5}}, Target: 5, TargetOf: ofMeasured}, met},
		{"above it", metric{Measured: series{{5.1}}, Target: 5, TargetOf: ofMeasured}, missed},
		{"difference", metric{Measured: series{{15}}, Floor: series{{10}}, Compare: ofDifference, Target: 5, TargetOf: ofDifference}, met},
		{"ratio", metric{Measured: series{{15}}, Floor: series{{10}}, Compare: ofRatio, Target: 1.3, TargetOf: ofRatio}, missed},
		{"at least", metric{Measured: series{{5}}, Target: 5, TargetOf: ofMeasured, AtLeast: true}, met},
		{"less than that", metric{Measured: series{{4.9}}, Target: 5, TargetOf: ofMeasured, AtLeast: true}, missed},
		{"twice the floor", metric{Measured: series{{15}}, Floor: series{{10}}, Compare: ofRatio, Target: 2, TargetOf: ofRatio, AtLeast: true}, missed},
		{"fast with loss", metric{Measured: series{{5}}, Target: 5, TargetOf: ofMeasured, Whole: &wholes{Measured: whole{Lost: 1}}}, lossy},
		{"loss of the other side", metric{Measured: series{{5}}, Target: 5, TargetOf: ofMeasured, Whole: &wholes{Beside: &whole{Lost: 1}}}, met},
	} {
		c.m.Quantile = median
		if got := c.m.line().Verdict; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAlternate(t *testing.T) {
	t.Parallel()
	var order []string
	give := func(name string, v float64) side {
		return func(_ context.Context, round int) (sample, error) {
			order = append(order, name)
			return sample{"x": {v, v + float64(round)}}, nil
		}
	}
	b := &bench{rounds: 3}
	s, f, err := b.alternate(t.Context(), give("subject", 10), give("floor", 1))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"subject", "floor", "floor", "subject", "subject", "floor"}, order); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]series{"x": {{10, 10}, {10, 11}, {10, 12}}}, s); d != "" {
		t.Error(d)
	}
	if least, most := f["x"].spread(p99); least != 1 || most != 3 || f["x"].count() != 6 {
		t.Errorf("floor: %v..%v of %d", least, most, f["x"].count())
	}
	broken := errors.New("broken")
	_, _, err = b.alternate(t.Context(), give("subject", 1), func(context.Context, int) (sample, error) { return nil, broken })
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "floor") {
		t.Errorf("error %v", err)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := report{Rounds: 2, Rows: []outcome{
		{Row: "good", Metrics: []metric{{What: "thing", Unit: unitMS, Quantile: p99, Measured: series{{3}, {4}}, Floor: series{{1}, {2}}, FloorIs: "the bare call", Compare: ofDifference, Target: 1, TargetOf: ofDifference, Note: "a word"}}},
		{Row: "bad", Error: "it broke"},
	}}
	r.judge()
	var table, doc strings.Builder
	if err := errors.Join(r.table(&table), r.json(&doc)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"p99", "4 ms", "+2", "≤ floor + 1", missed, "ERROR: it broke", "the bare call", "a word"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
	var back report
	if err := json.Unmarshal([]byte(doc.String()), &back); err != nil {
		t.Fatal(err)
	}
	if got := back.Rows[0].Lines[0]; got.Verdict != missed || *got.Difference != 2 || back.Rows[1].Error == "" {
		t.Errorf("JSON: %s", doc.String())
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	got, err := choose("door, io")
	if err != nil || len(got) != 2 || got[1].name != "io" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := choose("door,nothing"); err == nil || !strings.Contains(err.Error(), "accept,cold") {
		t.Errorf("unknown row: %v", err)
	}
}
