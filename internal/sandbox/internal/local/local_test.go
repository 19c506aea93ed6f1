package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/sandbox"
)

func TestHostsFile(t *testing.T) {
	t.Parallel()
	got := string(HostsFile(sandbox.Spec{Hostname: "box", Hosts: []string{"b.example", "a.example", "localhost"}}))
	want := "127.0.0.1 a.example\n127.0.0.1 b.example\n127.0.0.1 box\n127.0.0.1 localhost\n::1 localhost\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	// Fields 4 to 52, see proc_pid_stat(5): 20 threads, 22 start time, 48 and 49 the arguments.
	rest := "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 7 18 4242 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 140731368991836 140731368992745 47 48 49"
	want := stat{state: 'S', threads: 7, start: 4242, argStart: 140731368991836, argEnd: 140731368992745}
	zombie := want
	zombie.state = 'Z'
	for _, c := range []struct {
		in   string
		want stat
		ok   bool
	}{
		{"12 (plain) " + rest, want, true},
		{"12 (with ) S 1 (paren) " + rest, want, true},
		{"12 (x) Z" + rest[1:], zombie, true},
		{"12 (x) S 1 2", stat{}, false},
		{"", stat{}, false},
		{"12 (x)", stat{}, false},
		{"no parentheses at all " + rest, stat{}, false},
	} {
		got, err := parseStat([]byte(c.in))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q = %+v, %v", c.in, got, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = parseStat(data) })
}

func TestProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil || !p.Alive() {
		t.Fatalf("%+v, %v", p, err)
	}
	for name, other := range map[string]Process{
		"later process of that number": {PID: p.PID, Start: p.Start + 1, BootID: p.BootID},
		"earlier boot":                 {PID: p.PID, Start: p.Start, BootID: "x"},
		"none":                         {},
	} {
		if other.Alive() {
			t.Errorf("%s is alive", name)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); p.Alive() && time.Now().Before(end); {
		_ = Wait(t.Context(), time.Millisecond)
	}
	if p.Alive() { // dead and not waited for
		t.Error("a zombie is alive")
	}
	_ = cmd.Wait()
}

// TestKillAll: it ends processes that come while others go.
func TestKillAll(t *testing.T) {
	t.Parallel()
	mark := "KILLALL-" + t.Name()
	seconds := fmt.Sprintf("1000.%06d", os.Getpid()) // tells our sleeps from everybody else's
	cmd := exec.Command("sh", "-c", "(sleep "+seconds+"; :) & (sleep "+seconds+"; :) & wait", mark)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	find := func() []int {
		return Find(func(args []string) bool { return args[len(args)-1] == mark })
	}
	if err := KillAll(t.Context(), 10*time.Second, find); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if left := find(); len(left) > 0 {
		t.Errorf("there are left %v", left)
	}
	_ = KillAll(t.Context(), time.Second, func() []int { // the sleeps have other arguments
		return Find(func(args []string) bool { return len(args) == 2 && args[0] == "sleep" && args[1] == seconds })
	})
	never := func() []int { return []int{1} }
	if os.Getpid() == 1 {
		return
	}
	if os.Geteuid() != 0 { // pid 1 cannot be killed by an ordinary user
		if err := KillAll(t.Context(), 50*time.Millisecond, never); err == nil {
			t.Error("pid 1 was killed")
		}
	}
}

type slowWriter struct{ bytes.Buffer }

func (s *slowWriter) Write(p []byte) (int, error) {
	if len(p) > 1000 {
		p = p[:1000]
		n, _ := s.Buffer.Write(p)
		return n, io.ErrShortWrite
	}
	return s.Buffer.Write(p)
}

// TestStreams: a command's end ends its streams, whoever holds them.
func TestStreams(t *testing.T) {
	t.Parallel()
	run := func(script string, c sandbox.Command) error {
		cmd := exec.Command("sh", "-c", script)
		var s Streams
		defer s.Close()
		if err := s.Attach(cmd, c); err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		s.Started()
		err := cmd.Wait()
		s.Drain()
		return err
	}
	var out, errs bytes.Buffer
	start := time.Now()
	if err := run("sleep 20 & echo $!; echo to stderr >&2; exit 0", sandbox.Command{Stdout: &out, Stderr: &errs}); err != nil || errs.String() != "to stderr\n" || time.Since(start) > 10*time.Second {
		t.Errorf("%v, %q, %q after %v", err, out.String(), errs.String(), time.Since(start))
	}
	if p, err := exec.Command("kill", strings.TrimSpace(out.String())).CombinedOutput(); err != nil {
		t.Errorf("the holder did not live: %v %s", err, p)
	}
	out.Reset()
	if err := run("head -c 3000000 /dev/zero", sandbox.Command{Stdout: &out}); err != nil || out.Len() != 3000000 {
		t.Errorf("%v, %d bytes", err, out.Len())
	}
	out.Reset()
	if err := run("cat", sandbox.Command{Stdin: strings.NewReader("in"), Stdout: &out}); err != nil || out.String() != "in" {
		t.Errorf("%v, %q", err, out.String())
	}
	// A writer that fails does not hold the command up.
	var failed *exec.ExitError
	if err := run("head -c 3000000 /dev/zero", sandbox.Command{Stdout: &slowWriter{}}); err != nil && !errors.As(err, &failed) {
		t.Errorf("with a failing writer: %v", err)
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	var l Locks
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	got := make(chan struct{})
	go func() { // waited for below
		defer close(got)
		u, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Error(err)
			return
		}
		u()
	}()
	select {
	case <-got:
		t.Error("the lock was taken twice")
	default:
	}
	unlock()
	<-got
	if len(l.held) != 0 {
		t.Errorf("locks are kept: %v", l.held)
	}
}
