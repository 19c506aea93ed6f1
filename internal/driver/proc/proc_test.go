package proc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) {
	// Orphans of the tests come to us, as they come to a first process.
	if err := Subreaper(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func sh(script string) Spec {
	return Spec{Args: []string{"sh", "-c", script}, Env: os.Environ()}
}

func TestRun(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		script, in string
		out, err   string
		exit       string
	}{
		"output":         {script: "echo a; echo b >&2", out: "a\n", err: "b\n", exit: "exit status 0"},
		"status":         {script: "exit 7", exit: "exit status 7"},
		"signal":         {script: "kill -9 $$", exit: "signal: killed"},
		"input":          {script: "cat", in: "hello", out: "hello", exit: "exit status 0"},
		"input not read": {script: "exec 0<&-; echo x", in: strings.Repeat("y", 1<<20), out: "x\n", exit: "exit status 0"},
		"much output":    {script: "head -c 300000 /dev/zero", out: strings.Repeat("\x00", 300000), exit: "exit status 0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errw bytes.Buffer
			exit, err := New(false).Run(t.Context(), Command{Spec: sh(tt.script), In: strings.NewReader(tt.in), Out: &out, Err: &errw})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]string{tt.out, tt.err, tt.exit}, []string{out.String(), errw.String(), exit.String()}); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestRunEndsWithProcessNotPipe(t *testing.T) {
	t.Parallel()
	tab := New(false)
	var out bytes.Buffer
	begun := time.Now()
	if _, err := tab.Run(t.Context(), Command{Spec: sh("(exec sleep 30) & echo $!"), Out: &out}); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("waited %v for the holder of the pipe", d)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(pid, syscall.SIGKILL)
}

func TestRunStops(t *testing.T) {
	t.Parallel()
	tab := New(false)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := tab.Run(ctx, Command{Spec: sh("sleep 30")}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	r, w := io.Pipe()
	r.CloseWithError(errors.New("full"))
	if _, err := tab.Run(t.Context(), Command{Spec: sh("yes"), Out: w}); err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("error of the output: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]Spec{
		"nothing":     {},
		"not in PATH": {Args: []string{"no-such-program"}, Env: []string{"PATH=/usr/bin"}},
		"no such dir": {Args: []string{"true"}, Env: os.Environ(), Dir: "/no/such/dir"},
	} {
		if _, err := New(false).Start(s); err == nil {
			t.Errorf("%s: started", name)
		}
	}
}

// A process in a session of its own, whose parent has ended, is ended as well; what was there before and what is kept is not.
func TestEndSince(t *testing.T) {
	tab := New(false)
	old, err := tab.Start(sh("exec sleep 30")) // a child of its own may begin behind the mark
	if err != nil {
		t.Fatal(err)
	}
	helper, err := tab.Start(Spec{Args: []string{"sleep", "30"}, Env: os.Environ(), Helper: true})
	if err != nil {
		t.Fatal(err)
	}
	mark, err := tab.Mark()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := sh("setsid sh -c 'trap \"\" TERM HUP; sleep 30 & wait' & sleep 0.1; echo ready; exec sleep 30")
	s.Stdout = w
	kept, err := tab.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	lost, err := tab.Start(sh("setsid sleep 30 & exit 0"))
	if err != nil {
		t.Fatal(err)
	}
	<-lost.Done()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := tab.EndSince(ctx, mark, kept); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*Process{"old": old, "helper": helper, "kept": kept} {
		select {
		case <-p.Done():
			t.Errorf("%s was ended: %v", name, p.Exit())
		default:
		}
	}
	if left, err := tab.since(mark, []*Process{kept}); err != nil || len(left) != 0 {
		t.Errorf("left %v %v", left, err)
	}
	if err := tab.EndSince(ctx, Mark{}); err != nil {
		t.Fatal(err)
	}
	<-old.Done()
	<-kept.Done()
	if got := kept.Exit().String(); got != "signal: killed" {
		t.Errorf("exit %q", got)
	}
	select {
	case <-helper.Done():
		t.Error("helper was ended")
	default:
	}
	helper.Signal(syscall.SIGKILL)
	<-helper.Done()
	helper.Signal(syscall.SIGKILL) // nothing happens
	r.Close()
	if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil && !errors.Is(err, syscall.ECHILD) { // an orphan
		t.Error(err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 77 20\n")
	f.Fuzz(func(t *testing.T, line string) {
		s, ok := parseStat(line)
		if ok && s.pid < 0 && !strings.HasPrefix(strings.TrimSpace(line), "-") {
			t.Errorf("%q gave %+v", line, s)
		}
	})
}
