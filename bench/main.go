// Command bench measures Hearth against its targets of speed and size. Every row
// is taken in rounds in which the subject and its floor, the bare calls that do
// the same thing without Hearth, take turns on the same machine; so a slow
// machine makes both slow. It is no test: a missed target is printed, not
// failed, and only a row that could not be measured makes the exit status 1.
//
// It needs HEARTH_BIN, HEARTH_TESTKIT and HEARTH_TEST_AGENTS, which `make bench`
// sets. docs/benchmarks.md says what each row means. Start at rows; a file row_*.go
// holds one row, world.go the server that most of them have.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// row measures one thing. It must leave nothing behind, also when ctx ends.
type row struct {
	name string
	run  func(ctx context.Context, b *bench) ([]metric, error)
}

var rows = []row{
	{"accept", accept},
	{"cold", coldStart},
	{"agent", agentReady},
	{"hot", hotPrompt},
	{"clone", cloneInside},
	{"io", inputOutput},
	{"memory", memory},
	{"restart", restart},
	{"door", modelDoor},
	{"cancel", cancelTurn},
	{"leak", leftOver},
	{"burst", burst},
	{"fanout", fanOut},
	{"rate", steady},
	{"slow", slowViewer},
	{"wire", onTheWire},
	{"first", firstEvent},
	{"replay", replay},
	{"idle", idleSessions},
}

// bench is one run: its settings and what all rows share.
type bench struct {
	program  string // hearth
	testkit  string
	agents   string // folder of the real agents
	scripted string // folder with the scripted agent only
	peers    string // folder with the peers' packages; empty: they are not measured
	wanted   string // peers, comma-separated
	dir      string // temporary, short: sockets are below it
	rounds   int
	n        int // samples of a p99, a round
	sessions int // of the leak row
	quick    bool
	log      io.Writer
	made     int // names handed out
}

// errUsage is a mistake on the command line that has been told already.
var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, getenv func(string) string, out, errOut io.Writer) (err error) {
	b := &bench{log: errOut}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.IntVar(&b.rounds, "rounds", 5, "rounds of each row; subject and floor take turns")
	fs.IntVar(&b.n, "n", 200, "samples of a p99 in each round")
	fs.IntVar(&b.sessions, "sessions", 50, "sessions that the leak row makes and deletes")
	fs.BoolVar(&b.quick, "quick", false, "small numbers, to see that every row works: 2 rounds, n 20, 6 sessions, small data")
	fs.StringVar(&b.wanted, "peers", planeSandbox+","+planeOpencode, "peers that stand beside Hearth, comma-separated; empty: none")
	only := fs.String("rows", "", "rows to run, comma-separated; empty: all of "+names())
	asJSON := fs.Bool("json", false, "print one JSON document instead of the table")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if b.quick {
		b.rounds, b.n, b.sessions = min(b.rounds, 2), min(b.n, 20), min(b.sessions, 6)
	}
	chosen, err := choose(*only)
	if err == nil && (fs.NArg() > 0 || b.rounds < 1 || b.n < 1 || b.sessions < 1) {
		err = errors.New("there are flags only, and their numbers are at least 1")
	}
	if err != nil {
		fmt.Fprintln(errOut, "bench:", err)
		return errUsage
	}
	for _, v := range []struct {
		name string
		at   *string
	}{{"HEARTH_BIN", &b.program}, {"HEARTH_TESTKIT", &b.testkit}, {"HEARTH_TEST_AGENTS", &b.agents}} {
		if *v.at, err = filepath.Abs(getenv(v.name)); err != nil || getenv(v.name) == "" {
			return fmt.Errorf("%s is not set; run `make bench`", v.name)
		}
		if _, err := os.Stat(*v.at); err != nil {
			return fmt.Errorf("%s: %w; run `make build agents`", v.name, err)
		}
	}
	if v := getenv("HEARTH_BENCH_PEERS"); v != "" {
		if b.peers, err = filepath.Abs(v); err != nil {
			return err
		}
	}
	b.checkPeers()
	if b.dir, err = os.MkdirTemp("/tmp", "hb"); err != nil {
		return fmt.Errorf("make a folder for the run: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := os.Chmod(b.dir, 0o755); err != nil { //nolint:gosec // sandboxes without root look into it
		return fmt.Errorf("open the folder of the run: %w", err)
	}
	b.scripted = filepath.Join(b.dir, "agents")
	if err := installScripted(ctx, b.scripted, b.testkit); err != nil {
		return fmt.Errorf("install the scripted agent: %w", err)
	}
	rep := report{Machine: machine(ctx, b), Rounds: b.rounds, N: b.n, Quick: b.quick}
	var failed []string
	for _, r := range chosen {
		if ctx.Err() != nil {
			break
		}
		began, load := time.Now(), loadAverage()
		fmt.Fprintf(b.log, "%s: load %s\n", r.name, load)
		got, err := r.run(ctx, b)
		o := outcome{Row: r.name, Metrics: got, LoadBefore: load, LoadAfter: loadAverage(), Seconds: time.Since(began).Seconds()}
		if err != nil {
			o.Error = err.Error()
			failed = append(failed, r.name)
		}
		rep.Rows = append(rep.Rows, o)
		fmt.Fprintf(b.log, "%s: %.0f s %s\n", r.name, o.Seconds, o.Error)
	}
	rep.Machine.LoadAfter = loadAverage()
	rep.judge()
	if *asJSON {
		err = rep.json(out)
	} else {
		err = rep.table(out)
	}
	if err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; what is printed is not whole")
	}
	if len(failed) > 0 {
		return fmt.Errorf("could not be measured: %s", strings.Join(failed, ", "))
	}
	return nil
}

func names() string {
	var all []string
	for _, r := range rows {
		all = append(all, r.name)
	}
	return strings.Join(all, ",")
}

func choose(only string) ([]row, error) {
	if only == "" {
		return rows, nil
	}
	var out []row
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("there is no row %q; there are %s", name, names())
		}
		out = append(out, rows[i])
	}
	return out, nil
}

// folder makes a new folder of this run with a short name.
func (b *bench) folder() (string, error) {
	b.made++
	d := filepath.Join(b.dir, fmt.Sprint(b.made))
	return d, os.Mkdir(d, 0o755) //nolint:gosec // as the folder of the run
}

// small is n, or the smaller number in a quick run.
func (b *bench) small(n, quick int) int {
	if b.quick {
		return quick
	}
	return n
}
