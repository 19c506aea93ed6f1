package gvisor_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// probeEnv makes a test process one that tests itself, once or until it is killed.
// SIGTERM cuts its self-test short, as it does a server's.
const (
	probeEnv     = childEnv + "_PROBE"
	probeForever = "forever"
	probeOnce    = "once"
)

func probe(d, how string) int {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM) // it may come when all is done: for good
	for {
		p, err := provider(d, nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("begins") // whoever kills us counts from here
		res, err := p.Probe(ctx)
		for _, c := range res.Checks {
			if !c.OK && (err == nil || c.Name == "delete") {
				fmt.Fprintln(os.Stderr, c.Name, c.Detail)
				return 1
			}
		}
		if how == probeOnce || err != nil {
			return 0
		}
	}
}

// prober starts such a process on a folder and returns when its self-test begins.
func prober(t *testing.T, d, how string) (cmd *exec.Cmd, said *bytes.Buffer) {
	t.Helper()
	cmd, said = server(d), new(bytes.Buffer)
	cmd.Env = append(cmd.Env, probeEnv+"="+how)
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = cmd.Wait()
		t.Fatalf("the process that tests itself did not begin: %v: %s", err, said)
	}
	return cmd, said
}

// A server that is killed at any moment of its self-test, again and again, leaves
// nothing that the next one does not take away, even when that one is told to end
// in the middle of its own self-test.
func TestProbeKilled(t *testing.T) {
	t.Parallel()
	d := shortDir(t)
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("HEARTH_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	moment := func() { <-time.After(time.Duration(rng.IntN(600_000)) * time.Microsecond) } // in a self-test, or in the one after it
	for round := range rounds {
		for range 1 + rng.IntN(3) {
			cmd, said := prober(t, d, probeForever)
			moment()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if said.Len() > 0 {
				t.Errorf("round %d: the process that was killed had said: %s", round, said)
			}
		}
		cmd, said := prober(t, d, probeOnce)
		if round%2 == 1 {
			moment()
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("round %d: the last process that tested itself: %v: %s", round, err, said)
		}
		if l := leftOfAll(t, d); len(l) > 0 {
			t.Fatalf("round %d: there are left\n%s", round, strings.Join(l, "\n"))
		}
	}
}

// leftOfAll lists all that sandboxes of a folder can leave on this machine.
func leftOfAll(t *testing.T, d string) []string {
	t.Helper()
	out := left(d, "")
	for _, g := range []string{"/sys/fs/cgroup/" + group(d) + "*", "/sys/fs/cgroup/*/" + group(d) + "*", filepath.Join(d, "s", "probe-*")} {
		names, err := filepath.Glob(g)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, names...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(mounts) {
		if bytes.Contains(line, []byte(d+"/")) {
			out = append(out, "mount "+string(line))
		}
	}
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range names {
		if line, err := os.ReadFile(f); err == nil && bytes.Contains(line, []byte(d+"/")) {
			out = append(out, "process "+f+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return out
}
