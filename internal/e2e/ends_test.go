package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/client"
)

// A refused key ends the turn of every agent soon and says so, however often the agent would try.
func TestKeyRejected(t *testing.T) {
	t.Parallel()
	for _, a := range []struct{ name, model string }{{"pi", ""}, {"claude", ""}, {"codex", "scripted"}} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options{agents: needed(t, "HEARTH_TEST_AGENTS")})
			_, url := w.repo("acme/calc")
			w.model.SetKeys("sk-another-key-0123456789")
			s := w.create(client.CreateInput{Repo: url, Agent: a.name, Model: a.model, Prompt: "@@write a.txt one@@"})
			id := s.Session.ID
			one := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(one, "failed", "MODEL_KEY_REJECTED")
			if one.SentAt == nil {
				t.Fatal("it was never sent")
			}
			if took := one.EndedAt.Sub(*one.SentAt); took > 5*time.Second {
				t.Errorf("it took %s from the prompt", took)
			}
			w.transcript(id)
			w.model.SetKeys(w.key)
			two := w.ended(id, w.prompt(id, "@@write a.txt one@@").Turn.ID, deadline)
			w.wantTurn(two, "completed", "")
			t.Logf("refused %d ms after the prompt; next turn: rung %s %q", one.EndedAt.Sub(*one.SentAt).Milliseconds(), two.Rung, two.RungFailed)
		})
	}
}

// Each limit ends the turn with its own code, the process is ended, the work is packed.
func TestLimits(t *testing.T) {
	t.Parallel()
	shared := newWorld(t, options{})
	for _, c := range []struct {
		name     string
		in       client.CreateInput
		code     string
		delivery string
	}{
		{"first event", client.CreateInput{FirstEventLimitSeconds: 2, Prompt: "@@hang@@"}, "FIRST_EVENT_LIMIT", "no_changes"},
		{"silence", client.CreateInput{SilenceLimitSeconds: 2, Prompt: "@@write a.txt one@@ @@hang@@"}, "AGENT_SILENT", "held"},
		{"total", client.CreateInput{TotalLimitSeconds: 3, Prompt: "@@write a.txt one@@ @@slow 1000 100@@"}, "TURN_LIMIT", "pushed"},
		{"total, deaf agent", client.CreateInput{TotalLimitSeconds: 3, Prompt: "@@write a.txt one@@ @@ignore-cancel@@ @@slow 1000 100@@"}, "TURN_LIMIT", "pushed"},
		{"tool", client.CreateInput{ToolLimitSeconds: 2, Prompt: "@@write a.txt one@@ @@run sleep 600@@"}, "TOOL_LIMIT", "pushed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := shared.in(t)
			_, url := w.repo("acme/calc-*")
			c.in.Repo = url
			s := w.create(c.in)
			id := s.Session.ID
			one := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(one, "failed", c.code)
			if one.Delivery == nil || one.Delivery.State != c.delivery {
				t.Errorf("delivery %+v, want %s", one.Delivery, c.delivery)
			}
			if took := one.EndedAt.Sub(*one.SentAt); took > 12*time.Second {
				t.Errorf("it took %s", took)
			}
			if out := w.inside(id, "ps -e -o args 2>/dev/null || cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); strings.Contains(out, "sleep 600") {
				t.Errorf("the tool's process lives: %s", out)
			}
			two := w.ended(id, w.prompt(id, "@@write b.txt two@@").Turn.ID, deadline)
			w.wantTurn(two, "completed", "")
			w.transcript(id)
			t.Logf("%s after %s; next turn: rung %s", c.code, one.EndedAt.Sub(*one.SentAt), two.Rung)
		})
	}
}

// What agents may do without ending their turn: it is survived, and the transcript is well made.
func TestMisbehaviourIsSurvived(t *testing.T) {
	t.Parallel()
	shared := newWorld(t, options{})
	for _, c := range []struct{ name, prompt, want string }{
		{"flood", "@@flood 20000 40@@ @@say still here@@", "Update 20000. "},
		{"rubbish", "@@rubbish 3000@@ @@say still here@@", "still here"},
		{"noise", "@@stderr 5000@@ @@say still here@@", "still here"},
		{"huge line", "@@line 104857600@@ @@say still here@@", "still here"},
		{"unknown", "@@unknown-update@@ @@unknown-request@@ @@update-first@@ @@dangling@@ @@say still here@@", "still here"},
		{"late", "@@late 20 10@@ @@say still here@@", "still here"},
		{"leaves a process", "@@orphan 600@@ @@say still here@@", "still here"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := shared.in(t)
			_, url := w.repo("acme/calc-*")
			s := w.create(client.CreateInput{Repo: url, Prompt: c.prompt})
			id := s.Session.ID
			one := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(one, "completed", "")
			parts := w.transcript(id)
			if got := text(parts, 1); !strings.Contains(got, c.want) {
				t.Errorf("the text lacks %q: %s", c.want, clip(got))
			}
			if c.name == "flood" {
				got := text(parts, 1)
				for i := 1; i <= 20000; i += 97 {
					if n := strings.Count(got, fmt.Sprintf("Update %d. ", i)); n != 1 {
						t.Fatalf("update %d is there %d times", i, n)
					}
				}
			}
			two := w.ended(id, w.prompt(id, "@@write b.txt two@@").Turn.ID, deadline)
			w.wantTurn(two, "completed", "")
			if two.Rung != "live" {
				t.Errorf("the next turn's rung is %s (%q)", two.Rung, two.RungFailed)
			}
			t.Logf("%d parts, complete %t %s, turn took %d ms", len(of(parts, 1)), one.Complete, one.Truncated, *one.Times.Turn)
		})
	}
}

// What an agent says of itself at the end.
func TestOtherEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	_, url := w.repo("acme/calc")
	for _, c := range []struct{ prompt, state, code, end string }{
		{"@@write a.txt one@@ @@stop refusal@@", "completed", "", "refused"},
		{"@@write b.txt one@@ @@stop max_tokens@@", "completed", "", "refused"},
		{"@@write c.txt one@@ @@error -32603 The moon is wrong.@@", "failed", "AGENT_FAILED", "failure"},
	} {
		s := w.create(client.CreateInput{Repo: url, Prompt: c.prompt})
		one := w.ended(s.Session.ID, s.Turn.ID, deadline)
		w.wantTurn(one, c.state, c.code)
		if one.End != c.end {
			t.Errorf("%s: end %q, want %q", c.prompt, one.End, c.end)
		}
		if c.code != "" && !strings.Contains(one.Message, "The moon is wrong.") {
			t.Errorf("message %q lacks the agent's words", one.Message)
		}
		w.transcript(s.Session.ID)
		w.delete(s.Session.ID, true)
	}
}

// An agent that does not start, or dies before it can be asked anything.
func TestAgentDoesNotStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, program, word string }{
		{"ends at once", "#!/bin/sh\necho 'cannot find my soul' >&2\nexit 3\n", "exit status 3"},
		{"is no program", "\x7fELF nonsense", ""},
		{"dies on session/new", "#!/bin/sh\n" +
			`read -r line; id=$(printf %s "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')` + "\n" +
			`printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":1,"agentCapabilities":{}}}\n' "$id"` + "\nread -r line\nexit 4\n", "exit status 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := filepath.Join(dir, "agent")
			if err := os.WriteFile(program, []byte(c.program), 0o755); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
			agents := filepath.Join(dir, "agents")
			if err := installScripted(t.Context(), agents, program); err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, options{agents: agents})
			_, url := w.repo("acme/calc")
			s := w.create(client.CreateInput{Repo: url, Prompt: "Go."})
			began := time.Now()
			one := w.ended(s.Session.ID, s.Turn.ID, deadline)
			took := time.Since(began)
			if one.State != "failed" || one.Code != "AGENT_START_FAILED" && one.Code != "AGENT_EXITED" {
				t.Fatalf("ended as %s %s (%s)", one.State, one.Code, one.Message)
			}
			if took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			if !strings.Contains(one.Message, c.word) {
				t.Errorf("message %q lacks %q", one.Message, c.word)
			}
			w.transcript(s.Session.ID)
			if raw, err := os.ReadFile(w.logFile()); err != nil || strings.Contains(string(raw), "effect again") {
				t.Errorf("it was tried more than once (%v)", err)
			}
			t.Logf("%s after %s: %s", one.Code, took, one.Message)
			w.delete(s.Session.ID, true)
		})
	}
}

// A full disk in the sandbox is the agent's to see and ends nothing by itself; the work that fits is kept.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{disk: "256MiB"})
	_, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@ @@run dd if=/dev/zero of=big.bin bs=1M count=800; echo status $?@@"})
	id := s.Session.ID
	began := time.Now()
	one := w.ended(id, s.Turn.ID, deadline)
	parts := w.transcript(id)
	if got := outputs(parts, 1); !strings.Contains(got, "No space left") {
		t.Errorf("the tool wrote: %s", got)
	}
	t.Logf("turn 1: %s %s (%s), delivery %+v, after %s", one.State, one.Code, one.Message, one.Delivery, time.Since(began))
	if one.State == "failed" && one.Code != "DISK_FULL" || one.State == "completed" && one.Delivery.State != "pushed" && one.Delivery.Code != "DISK_FULL" {
		t.Errorf("turn 1 ended as %s %s, delivery %+v", one.State, one.Code, one.Delivery)
	}
	two := w.ended(id, w.prompt(id, "@@run rm -f big.bin@@ @@write b.txt two@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	if two.Delivery.State != "pushed" {
		t.Errorf("turn 2: delivery %+v", two.Delivery)
	}
	w.delete(id, false)
}
