package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/agent"
)

// report is a whole run.
type report struct {
	Machine machineInfo `json:"machine"`
	Rounds  int         `json:"rounds"`
	N       int         `json:"n"`
	Quick   bool        `json:"quick,omitempty"`
	Rows    []outcome   `json:"rows"`
}

// outcome is one row's end.
type outcome struct {
	Row        string   `json:"row"`
	Error      string   `json:"error,omitempty"`
	Seconds    float64  `json:"seconds"`
	LoadBefore string   `json:"loadBefore"`
	LoadAfter  string   `json:"loadAfter"`
	Lines      []line   `json:"lines"`
	Metrics    []metric `json:"-"`
}

// line is a metric as it is printed.
type line struct {
	What       string      `json:"what"`
	Unit       string      `json:"unit,omitempty"`
	Stat       string      `json:"stat"`
	Measured   number      `json:"measured"`
	Floor      *number     `json:"floor,omitempty"`
	FloorIs    string      `json:"floorIs,omitempty"`
	Difference *float64    `json:"difference,omitempty"`
	Ratio      *float64    `json:"ratio,omitempty"`
	Target     *targetLine `json:"target,omitempty"`
	Whole      *wholes     `json:"whole,omitempty"`
	Verdict    string      `json:"verdict"`
	Note       string      `json:"note,omitempty"`
}

type number struct {
	N      int         `json:"n"`
	Value  float64     `json:"value"`
	Least  float64     `json:"roundLeast"` // of the rounds' own values
	Most   float64     `json:"roundMost"`
	Rounds [][]float64 `json:"rounds,omitempty"`
}

type targetLine struct {
	Most  float64 `json:"most,omitempty"`
	Least float64 `json:"least,omitempty"`
	Of    string  `json:"of"`
}

// Verdicts.
const (
	met      = "met"
	missed   = "MISSED"
	lossy    = "LOST" // what was measured did not give everything once and in order
	noTarget = "-"
)

func (r *report) judge() {
	for i := range r.Rows {
		o := &r.Rows[i]
		for _, m := range o.Metrics {
			o.Lines = append(o.Lines, m.line())
		}
	}
}

func numberOf(s series, q float64) number {
	n := number{N: s.count(), Value: s.value(q), Rounds: s}
	n.Least, n.Most = s.spread(q)
	if n.N > 2000 {
		n.Rounds = nil // nobody reads them
	}
	return n
}

func (m metric) line() line {
	l := line{What: m.What, Unit: m.Unit, Stat: "median", Measured: numberOf(m.Measured, m.Quantile), FloorIs: m.FloorIs, Verdict: noTarget, Note: m.Note}
	if m.Quantile != median {
		l.Stat = fmt.Sprintf("p%.0f", m.Quantile*100)
	}
	held := l.Measured.Value
	if m.Floor.count() > 0 {
		f := numberOf(m.Floor, m.Quantile)
		l.Floor = &f
		d, q := l.Measured.Value-f.Value, l.Measured.Value/f.Value
		switch m.Compare {
		case ofDifference:
			l.Difference = &d
		case ofRatio:
			l.Ratio = &q
		}
		switch m.TargetOf {
		case ofDifference:
			held = d
		case ofRatio:
			held = q
		}
	}
	if m.TargetOf != "" {
		l.Target = &targetLine{Most: m.Target, Of: m.TargetOf}
		good := held <= m.Target
		if m.AtLeast {
			l.Target = &targetLine{Least: m.Target, Of: m.TargetOf}
			good = held >= m.Target
		}
		l.Verdict = missed
		if good {
			l.Verdict = met
		}
	}
	if l.Whole = m.Whole; l.Whole != nil && l.Whole.Measured != (whole{}) {
		l.Verdict = lossy
	}
	return l
}

func (r *report) json(w io.Writer) error {
	return json.NewEncoder(w).Encode(r)
}

func (r *report) table(w io.Writer) error {
	m := r.Machine
	fmt.Fprintf(w, "%s\n%s, %d cores, %d MiB, Linux %s\nhearth %s; gVisor %s; %s; git %s; agents %s; peers %s\nload before %s, after %s (1, 5, 15 min); %d rounds, n %d\n",
		m.At.Format(time.RFC3339), m.CPU, m.Cores, m.MemoryMiB, m.Kernel, m.Hearth, m.GVisor, m.Go, m.Git, strings.Join(m.Agents, ", "), cmp.Or(strings.Join(m.Peers, ", "), "none"), m.Load, m.LoadAfter, r.Rounds, r.N)
	if busy(m.Load, m.Cores) {
		fmt.Fprintln(w, "The machine was not idle before the run: take the numbers as upper bounds, and the floors beside them.")
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "row\tlost, doubled, out of order\twhat\tstat\tn\tmeasured\tspread\tfloor\tspread\tagainst floor\ttarget\tverdict")
	var notes []string
	for _, o := range r.Rows {
		for _, l := range o.Lines {
			floor, floorSpread, against := "-", "", ""
			if l.Floor != nil {
				floor, floorSpread = show(l.Floor.Value), spreadOf(*l.Floor)
			}
			if l.Difference != nil {
				against = fmt.Sprintf("%+.4g", *l.Difference)
			}
			if l.Ratio != nil {
				against = fmt.Sprintf("×%.2f", *l.Ratio)
			}
			target := ""
			if l.Target != nil {
				target = map[string]string{ofMeasured: "≤ ", ofDifference: "≤ floor + ", ofRatio: "≤ ×"}[l.Target.Of] + show(l.Target.Most)
				if l.Target.Least > 0 {
					target = map[string]string{ofMeasured: "≥ ", ofDifference: "≥ floor + ", ofRatio: "≥ ×"}[l.Target.Of] + show(l.Target.Least)
				}
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s %s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.Row, l.Whole, l.What, l.Stat, l.Measured.N, show(l.Measured.Value), l.Unit,
				spreadOf(l.Measured), floor, floorSpread, against, target, l.Verdict)
			if l.Note != "" {
				notes = append(notes, o.Row+", "+l.What+": "+l.Note)
			}
		}
		if o.Error != "" {
			fmt.Fprintf(t, "%s\tERROR: %s\n", o.Row, strings.ReplaceAll(o.Error, "\n", "; "))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nmeasured and floor: of all rounds together; spread: least and greatest of the rounds' own values.")
	seen := map[string]bool{}
	for _, o := range r.Rows {
		fmt.Fprintf(w, "%s: %.0f s, load %s before, %s after\n", o.Row, o.Seconds, o.LoadBefore, o.LoadAfter)
		for _, l := range o.Lines {
			if l.FloorIs != "" && !seen[o.Row+l.FloorIs] {
				seen[o.Row+l.FloorIs] = true
				fmt.Fprintf(w, "  floor: %s\n", l.FloorIs)
			}
		}
	}
	for _, n := range notes {
		fmt.Fprintln(w, n)
	}
	return nil
}

func show(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "?"
	case a >= 100 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func spreadOf(n number) string { return show(n.Least) + ".." + show(n.Most) }

// machineInfo says where and with what a run was made.
type machineInfo struct {
	At        time.Time `json:"at"`
	CPU       string    `json:"cpu"`
	Cores     int       `json:"cores"`
	MemoryMiB int64     `json:"memoryMiB"`
	Kernel    string    `json:"kernel"`
	Load      string    `json:"loadBefore"`
	LoadAfter string    `json:"loadAfter"`
	Hearth    string    `json:"hearth"`
	GVisor    string    `json:"gvisor"`
	Go        string    `json:"go"`
	Git       string    `json:"git"`
	Agents    []string  `json:"agents"`
	Peers     []string  `json:"peers,omitempty"`
}

func machine(ctx context.Context, b *bench) machineInfo {
	m := machineInfo{At: time.Now().UTC(), Cores: runtime.NumCPU(), Load: loadAverage(), Go: runtime.Version()}
	m.CPU = cmp.Or(field("/proc/cpuinfo", "model name"), runtime.GOARCH)
	kib, _, _ := strings.Cut(field("/proc/meminfo", "MemTotal"), " ")
	if n, err := strconv.ParseInt(kib, 10, 64); err == nil {
		m.MemoryMiB = n >> 10
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.Hearth = firstLine(ctx, &exec.Cmd{Path: b.program, Args: []string{"hearth", "version"}})
	m.GVisor = strings.TrimPrefix(firstLine(ctx, &exec.Cmd{Path: b.program, Args: []string{"runsc", "--version"}}), "runsc version ")
	if git, err := exec.LookPath("git"); err == nil {
		m.Git = strings.TrimPrefix(firstLine(ctx, &exec.Cmd{Path: git, Args: []string{"git", "--version"}}), "git version ")
	}
	for _, name := range realAgents {
		if p, err := agent.Lookup(name.name); err == nil {
			m.Agents = append(m.Agents, name.name+" "+p.Version())
		}
	}
	m.Peers = b.peerVersions()
	return m
}

// firstLine is what a program says of itself, or why it does not.
func firstLine(ctx context.Context, c *exec.Cmd) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Path) //nolint:gosec // the programs under test
	cmd.Args = c.Args
	out, err := cmd.Output()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil && line == "" {
		return err.Error()
	}
	return line
}

// field is the first value of a name in one of the kernel's lists.
func field(file, name string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for l := range strings.SplitSeq(string(raw), "\n") {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// loadAverage is the kernel's, over 1, 5 and 15 minutes.
func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(raw))
	if err != nil || len(f) < 3 {
		return "?"
	}
	return strings.Join(f[:3], " ")
}

func busy(load string, cores int) bool {
	one, _, _ := strings.Cut(load, " ")
	v, err := strconv.ParseFloat(one, 64)
	return err != nil || v > float64(cores)/4
}
