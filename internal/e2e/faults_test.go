package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

// steps is the text of a slow directive, whole.
func steps(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "Step %d of %d. ", i+1, n)
	}
	return b.String()
}

// wantSteps fails unless the turn's text begins with all steps, each once.
func (w *world) wantSteps(parts []stored, turn int64, n int) {
	w.t.Helper()
	if got := text(parts, turn); !strings.HasPrefix(strings.TrimSpace(got), strings.TrimSpace(steps(n))) {
		w.t.Fatalf("turn %d: text has a gap or a double: %s", turn, got)
	}
}

// A server that is killed while a turn runs takes the sandbox back, and the turn
// goes on and ends by itself; nothing of what was said is lost or doubled.
func TestServerKilledWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@ @@slow 120 50@@ @@write b.txt two@@"})
	id := s.Session.ID
	w.inState(id, s.Turn.ID, deadline, "running")
	for range 3 {
		before := w.lastPart(id)
		w.until(deadline, "more to be said", func() (bool, string) { n := w.lastPart(id); return n > before+10, fmt.Sprint(n) })
		w.kill()
		w.start()
	}
	turn := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(turn, "completed", "")
	w.wantPushed(r, turn)
	if !turn.Complete || turn.Generation != 1 {
		t.Errorf("complete %t (%s), generation %d", turn.Complete, turn.Truncated, turn.Generation)
	}
	w.wantSteps(w.transcript(id), 1, 120)
	two := w.ended(id, w.prompt(id, "@@run cat a.txt b.txt@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	if two.Rung != "live" || two.Generation != 1 {
		t.Errorf("after the restart: rung %q, generation %d", two.Rung, two.Generation)
	}
	w.delete(id, false)
}

func (w *world) lastPart(id string) int {
	w.t.Helper()
	return len(w.transcript(id))
}

// The server is killed as soon as the turn is accepted, and again while its sandbox starts.
func TestServerKilledWhileStarting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@"})
	id := s.Session.ID
	for _, wait := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 700 * time.Millisecond} {
		began := time.Now()
		w.until(5*time.Second, "the moment", func() (bool, string) { return time.Since(began) >= wait, "" })
		w.kill()
		w.start()
	}
	turn := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(turn, "completed", "")
	w.wantPushed(r, turn)
	w.transcript(id)
	if got := w.sandboxProcesses(id, "runsc-sandbox"); len(got) != 1 {
		t.Errorf("%d sandboxes live, want one", len(got))
	}
	w.delete(id, false)
}

// The server is killed while the work is packed, and while it is pushed.
func TestServerKilledWhileDelivering(t *testing.T) {
	t.Parallel()
	t.Run("packing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, options{})
		r, url := w.repo("acme/calc")
		s := w.create(client.CreateInput{Repo: url, Prompt: "@@run head -c 40000000 /dev/urandom > big.bin@@ @@write a.txt one@@"})
		id := s.Session.ID
		w.until(deadline, "packing", func() (bool, string) {
			turn, err := w.c.Turn(t.Context(), id, s.Turn.ID)
			if err == nil && turn.Ended() {
				t.Fatal("it ended before it could be killed")
			}
			return err == nil && turn.State == "delivering" && turn.Times.Packed == nil, turn.State
		})
		w.kill()
		w.start()
		turn := w.ended(id, s.Turn.ID, deadline)
		w.wantTurn(turn, "completed", "")
		w.wantPushed(r, turn)
		w.transcript(id)
		w.delete(id, false)
	})
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("pushed=%t", after), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options{})
			r, url := w.repo("acme/calc")
			s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@"})
			id := s.Session.ID
			fault := gitserver.Fault{Service: gitserver.ReceivePack, Delay: 5 * time.Second, Times: 1}
			if after { // the remote has it, but its answer is lost with the server
				fault = gitserver.Fault{Service: gitserver.ReceivePack, DropAnswer: true, Times: 1}
			}
			w.git.AddFault(fault)
			w.until(deadline, "the push", func() (bool, string) {
				if after {
					refs, err := r.Refs(t.Context())
					return err == nil && len(refs) > 1, fmt.Sprint(refs, err)
				}
				return w.git.Counts().Faults > 0, ""
			})
			w.kill()
			w.start()
			turn := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(turn, "completed", "")
			w.wantPushed(r, turn)
			w.transcript(id)
			if turn.Commits != 1 {
				t.Errorf("%d commits, want one", turn.Commits)
			}
			w.delete(id, false)
		})
	}
}

// An agent that dies in mid-turn ends the turn at once; its work is packed and held,
// and the next prompt goes on.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	shared := newWorld(t, options{})
	for _, c := range []struct{ name, directive, exit string }{{"signal", "@@kill@@", "signal: killed"}, {"status", "@@exit 3@@", "exit status 3"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := shared.in(t)
			r, url := w.repo("acme/calc-*")
			s := w.create(client.CreateInput{Repo: url, Prompt: "@@mark teal-heron@@ @@write a.txt one@@ @@say Now it comes.@@ " + c.directive})
			id := s.Session.ID
			one := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(one, "failed", "AGENT_EXITED")
			if !strings.Contains(one.Message, c.exit) {
				t.Errorf("message %q does not name %q", one.Message, c.exit)
			}
			if one.Delivery == nil || one.Delivery.State != "held" || one.Commit == "" {
				t.Errorf("delivery %+v of commit %q, want held", one.Delivery, one.Commit)
			}
			if refs, err := r.Refs(t.Context()); err != nil || len(refs) != 1 {
				t.Errorf("the host has %v, %v", refs, err)
			}
			two := w.ended(id, w.prompt(id, "@@recall@@ @@run cat a.txt@@").Turn.ID, deadline)
			w.wantTurn(two, "completed", "")
			w.wantPushed(r, two)
			if two.Rung != "native" && two.Rung != "reprimed" || two.Generation != 1 {
				t.Errorf("rung %q (%q), generation %d", two.Rung, two.RungFailed, two.Generation)
			}
			parts := w.transcript(id)
			if got := text(parts, 2); !strings.Contains(got, "teal-heron") {
				t.Errorf("the second turn does not know the first: %s", got)
			}
			if got := outputs(parts, 2); !strings.Contains(got, "one") {
				t.Errorf("the work is not there: %s", got)
			}
			w.delete(id, false)
		})
	}
}

// pi, killed by its own tool, remembers by its own record or by a preamble.
func TestRealAgentKilled(t *testing.T) {
	t.Parallel()
	for _, a := range []struct{ name, model, process string }{{"pi", "", "pi"}, {"claude", "", "claude-agent-acp"}, {"codex", "scripted", "codex"}} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options{agents: needed(t, "HEARTH_TEST_AGENTS")})
			_, url := w.repo("acme/calc")
			s := w.create(client.CreateInput{Repo: url, Agent: a.name, Model: a.model, Prompt: "@@mark teal-heron@@ @@write a.txt one@@ @@slow 100 200@@"})
			id := s.Session.ID
			w.until(deadline, "it to speak", func() (bool, string) {
				got := text(w.transcript(id), 1)
				return strings.Contains(got, "Step 3"), got
			})
			began := time.Now()
			w.killAgent(id)
			one := w.ended(id, s.Turn.ID, 20*time.Second)
			w.wantTurn(one, "failed", "AGENT_EXITED")
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			if one.Delivery == nil || one.Delivery.State != "held" {
				t.Errorf("delivery %+v, want held", one.Delivery)
			}
			two := w.ended(id, w.prompt(id, "@@recall@@ @@run echo have $(cat a.txt)@@").Turn.ID, deadline)
			w.wantTurn(two, "completed", "")
			parts := w.transcript(id)
			if got := text(parts, 2); !strings.Contains(got, "teal-heron") {
				t.Errorf("the second turn does not know the first: %s", got)
			}
			if got := outputs(parts, 2); !strings.Contains(got, "have one") {
				t.Errorf("the work is not there: %s", lines(of(parts, 2)))
			}
			t.Logf("rung %s, tried before: %q", two.Rung, two.RungFailed)
			w.delete(id, true)
		})
	}
}

// killAgent kills the driver's only child that is not one of ours: the agent.
func (w *world) killAgent(id string) {
	w.t.Helper()
	out := w.inside(id, `for d in /proc/[0-9]*; do read -r line < $d/stat 2>/dev/null || continue; rest=${line##*) }; set -- $rest; [ "$2" = 1 ] && p=${d#/proc/} && [ "$p" != $$ ] && tr '\0' ' ' < $d/cmdline && echo && kill -9 $p; done; true`)
	w.t.Logf("killed: %s", strings.TrimSpace(out))
}

// The sandbox or its first process is killed from the host in mid-turn.
func TestSandboxKilled(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"sandbox", "driver"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options{})
			r, url := w.repo("acme/calc")
			if err := r.RefusePushes("not today"); err != nil {
				t.Fatal(err)
			}
			s := w.create(client.CreateInput{Repo: url, Prompt: "@@mark teal-heron@@ @@write a.txt one@@"})
			id := s.Session.ID
			one := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(one, "completed", "")
			if one.Delivery.State != "failed" || one.Delivery.Code != "PUSH_REFUSED" {
				t.Errorf("turn 1: delivery %+v", one.Delivery)
			}
			p := w.prompt(id, "@@write b.txt lost@@ @@slow 300 100@@")
			w.until(deadline, "it to speak", func() (bool, string) {
				got := text(w.transcript(id), 2)
				return strings.Contains(got, "Step 5"), got
			})
			began := time.Now()
			if what == "driver" {
				if out, err := w.runsc(id, func(id string) []string { return []string{"kill", id, "KILL"} }); err != nil {
					t.Fatalf("kill the driver: %v: %s", err, out)
				}
			} else {
				for _, pid := range w.sandboxProcesses(id, "runsc-sandbox") {
					killProcess(t, pid)
				}
			}
			two := w.ended(id, p.Turn.ID, 30*time.Second)
			t.Logf("noticed after %s", time.Since(began))
			w.wantTurn(two, "failed", "SANDBOX_LOST")
			if two.Complete || two.Truncated == "" {
				t.Errorf("complete %t, truncated %q", two.Complete, two.Truncated)
			}
			parts := w.transcript(id)
			got := strings.TrimSpace(text(parts, 2))
			if !strings.HasPrefix(strings.TrimSpace(steps(300)), got) || !strings.Contains(got, "Step 5") {
				t.Errorf("turn 2 is not a prefix: %s", got)
			}
			if got := w.get(id); got.Phase != "failed" || got.Sandbox.State != "lost" || !got.Undelivered {
				t.Errorf("phase %s, sandbox %+v, undelivered %t", got.Phase, got.Sandbox, got.Undelivered)
			}
			three := w.ended(id, w.prompt(id, "@@recall@@ @@run cat a.txt; ls; git log --oneline@@").Turn.ID, deadline)
			w.wantTurn(three, "completed", "")
			if three.Rung != "reprimed" || three.Generation != 2 {
				t.Errorf("turn 3: rung %q, generation %d", three.Rung, three.Generation)
			}
			parts = w.transcript(id)
			if got := outputs(parts, 3); !strings.Contains(got, "one") || strings.Contains(got, "b.txt") {
				t.Errorf("turn 3 does not stand on the last pack: %s", got)
			}
			if got := text(parts, 3); !strings.Contains(got, "teal-heron") {
				t.Errorf("turn 3 does not know turn 1: %s", got)
			}
			if err := r.SetHook("pre-receive", ""); err != nil {
				t.Fatal(err)
			}
			if _, err := w.c.Deliver(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			w.until(deadline, "the work to be delivered", func() (bool, string) {
				s := w.get(id)
				return !s.Undelivered, fmt.Sprintf("%+v", s.LastTurn.Delivery)
			})
			w.delete(id, false)
		})
	}
}

// A sandbox that dies while nothing is asked of it is noticed, and the next prompt gets a new one.
func TestIdleSandboxKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@mark teal-heron@@ @@write a.txt one@@"})
	id := s.Session.ID
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	for _, pid := range w.sandboxProcesses(id, "runsc-sandbox") {
		killProcess(t, pid)
	}
	two := w.ended(id, w.prompt(id, "@@recall@@ @@write b.txt two@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	w.wantPushed(r, two)
	if two.Rung != "reprimed" || two.Generation != 2 {
		t.Errorf("rung %q, generation %d", two.Rung, two.Generation)
	}
	if got := text(w.transcript(id), 2); !strings.Contains(got, "teal-heron") {
		t.Errorf("turn 2 does not know turn 1: %s", got)
	}
	// Killed with the server: the next one finds it gone.
	w.kill()
	for _, pid := range w.sandboxProcesses(id, "runsc-sandbox") {
		killProcess(t, pid)
	}
	w.start()
	w.until(deadline, "the sandbox to be found gone", func() (bool, string) { s := w.get(id); return s.Sandbox.State == "lost", s.Sandbox.State })
	w.delete(id, false)
}

// Server and sandbox die together in mid-turn.
func TestServerAndSandboxKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	_, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@ @@slow 300 100@@"})
	id := s.Session.ID
	w.until(deadline, "it to speak", func() (bool, string) {
		got := text(w.transcript(id), 1)
		return strings.Contains(got, "Step 5"), got
	})
	w.kill()
	for _, pid := range w.sandboxProcesses(id, "runsc-sandbox") {
		killProcess(t, pid)
	}
	w.start()
	one := w.ended(id, s.Turn.ID, 30*time.Second)
	w.wantTurn(one, "failed", "SANDBOX_LOST")
	if one.Complete || one.Truncated == "" {
		t.Errorf("complete %t, truncated %q", one.Complete, one.Truncated)
	}
	w.transcript(id)
	two := w.ended(id, w.prompt(id, "@@write b.txt two@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	w.delete(id, false)
}

// The server is killed again and again, whatever it is doing, over two turns.
func TestServerKilledAtRandom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@mark grey-crane@@ @@run head -c 3000000 /dev/urandom > big.bin@@ @@slow 40 50@@ @@write a.txt one@@"})
	id := s.Session.ID
	p := w.prompt(id, "@@recall@@ @@slow 40 50@@ @@run cat a.txt@@ @@write b.txt two@@")
	kills := 0
	for ; kills < 25; kills++ {
		end := time.Now().Add(time.Duration(100+rng.IntN(1100)) * time.Millisecond)
		w.until(5*time.Second, "the moment", func() (bool, string) { return time.Now().After(end), "" })
		if turn, err := w.c.Turn(t.Context(), id, p.Turn.ID); err != nil || turn.Ended() {
			break
		}
		w.kill()
		w.start()
	}
	t.Logf("%d kills", kills)
	one, two := w.ended(id, s.Turn.ID, deadline), w.ended(id, p.Turn.ID, deadline)
	w.wantTurn(one, "completed", "")
	w.wantTurn(two, "completed", "")
	w.wantPushed(r, two)
	parts := w.transcript(id)
	w.wantSteps(parts, 1, 40)
	if got := text(parts, 2); !strings.Contains(got, "grey-crane") || !strings.Contains(got, strings.TrimSpace(steps(40))) || strings.Count(got, "Step 7 of 40") != 1 {
		t.Errorf("turn 2 said %s", got)
	}
	if n, err := r.Git(t.Context(), "rev-list", "--count", "main.."+two.Delivery.Commit); err != nil || n != "2" {
		t.Errorf("%s commits were delivered (%v), want 2", n, err)
	}
	if two.Generation != one.Generation {
		t.Errorf("generations %d and %d", one.Generation, two.Generation)
	}
	if got := w.sandboxProcesses(id, "runsc-sandbox"); len(got) != 1 {
		t.Errorf("%d sandboxes live, want one", len(got))
	}
	w.delete(id, false)
}
