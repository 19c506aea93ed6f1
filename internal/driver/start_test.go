package driver_test

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
)

// An agent that ends while a session is opened: its exit status and last words are told, and it is not started for nothing.
func TestAgentDiesAtSession(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		attempts []driverapi.Attempt
		starts   int
	}{
		"one rung":  {[]driverapi.Attempt{fresh()}, 1},
		"two rungs": {[]driverapi.Attempt{{Rung: "reprimed", Method: "new"}, fresh()}, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t, "AGENT_DIE=session/new")
			o := b.run("turn_1", turnRequest("@@say x@@", tt.attempts...))
			if d := cmp.Diff(end{"failed", "AGENT_START_FAILED", false}, ended(o.end)); d != "" {
				t.Errorf("%s %+v", d, o.end)
			}
			if o.end.Exit != "exit status 3" || !strings.HasSuffix(o.end.Stderr, "the last word: no licence") {
				t.Errorf("exit %q stderr %q", o.end.Exit, o.end.Stderr)
			}
			m := o.end.Message
			if strings.Count(m, "exit status 3") != tt.starts || strings.Count(m, "the last word: no licence") != tt.starts || len(m) > 1200 {
				t.Errorf("message %q", m)
			}
			if got, err := os.ReadFile(filepath.Join(b.cfg.Home, "starts")); err != nil || len(got) != tt.starts {
				t.Errorf("%d starts, %v", len(got), err)
			}
		})
	}
}

// A driver whose greeting is refused dials ever more seldom.
func TestRefusedGreeting(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.cfg.Socket = filepath.Join(b.dir, "own.sock")
	ln, err := net.Listen("unix", b.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := ln.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b.start()
	last := time.Now()
	for n := 1; ; n++ {
		c, err := ln.Accept()
		if err != nil {
			t.Fatalf("%d dials, none after a pause: %v", n, err)
		}
		pause := time.Since(last)
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, "driver {") {
			t.Errorf("greeting %q %v", line, err)
		}
		c.Close()
		if last = time.Now(); n > 1 && pause > 900*time.Millisecond {
			return
		}
		if n > 14 {
			t.Fatalf("%d dials", n)
		}
	}
}

// An agent may start while the setup runs: what the setup leaves is ended, the agent is not.
func TestSetupBesideAgent(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.start()
	began := make(chan struct{})
	done := make(chan error, 1)
	go func() { // waited for below
		told := false
		_, err := b.client.Setup(t.Context(), driverapi.SetupRequest{Git: me, Timeout: 30 * time.Second, Commands: []string{
			"(setsid sh -c 'echo $$ > $HOME/left; exec sleep 300' &); echo began; while ! test -e $HOME/go; do sleep 0.02; done",
		}}, func(e driverapi.SetupEvent) {
			if e.Line == "began" && !told {
				told = true
				close(began)
			}
		})
		done <- err
	}()
	<-began
	b.mustAgent()
	if err := os.WriteFile(filepath.Join(b.cfg.Home, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(b.cfg.Home, "left"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if alive(pid) {
		t.Errorf("process %d of the setup lives", pid)
	}
	if r := b.mustAgent(); !r.Reused {
		t.Error("the agent was ended with the setup")
	}
	if o := b.run("turn_1", turnRequest("@@say hi@@")); !o.end.Clean {
		t.Errorf("%+v", o.end)
	}
}

// Nothing that a setup command starts outlives it, whether it writes on, hides in a session of its own, or the command fails.
func TestSetupLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"ends well": "sleep 300 & echo $! >> $HOME/pids; (setsid sh -c 'trap \"\" TERM HUP; echo $$ >> $HOME/pids; exec sleep 300' &); sleep 0.2",
		"writes on": "(while :; do echo x; sleep 0.1; done) & echo $! >> $HOME/pids",
		"fails":     "sleep 300 & echo $! >> $HOME/pids; exit 3",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.start()
			begun := time.Now()
			_, _, err := b.setup(driverapi.SetupRequest{Commands: []string{command}})
			if (err != nil) != (name == "fails") {
				t.Error(err)
			}
			if d := time.Since(begun); d > 20*time.Second {
				t.Errorf("it took %v", d)
			}
			raw, err := os.ReadFile(filepath.Join(b.cfg.Home, "pids"))
			if err != nil {
				t.Fatal(err)
			}
			for text := range strings.FieldsSeq(string(raw)) {
				if pid, err := strconv.Atoi(text); err != nil || alive(pid) {
					t.Errorf("process %s lives, %v", text, err)
				}
			}
		})
	}
}
