package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hearthd/hearth/client"
)

// openAgents is an agents folder of the scripted agent that sandboxes reach which run as nobody.
func openAgents(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ha")
	if err == nil {
		err = os.Chmod(dir, 0o755) //nolint:gosec // as said
	}
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = installScripted(t.Context(), dir, needed(t, "HEARTH_TESTKIT"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The weaker sandbox carries a whole session, says what it is, and shows its folders and
// doors to no other user of the machine.
func TestBubblewrap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{agents: openAgents(t), open: true, args: []string{"--sandbox", "bubblewrap"}})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@write a.txt one@@"})
	id := s.Session.ID
	one := w.ended(id, s.Turn.ID, deadline)
	w.wantTurn(one, "completed", "")
	w.wantPushed(r, one)
	if got := w.get(id).Sandbox.Isolation; got != "namespaces" {
		t.Errorf("isolation %q", got)
	}
	sockets, err := filepath.Glob(filepath.Join(w.state, "run/d/*/doors.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("doors %q, %v", sockets, err)
	}
	if os.Geteuid() == 0 {
		for _, c := range [][]string{
			{"ls", filepath.Join(w.state, "run/d")},
			{"ls", w.state},
			{"cat", filepath.Dir(sockets[0]) + "/driver.json"},
			{"curl", "-sS", "--max-time", "5", "--unix-socket", sockets[0], "http://x/"},
		} {
			cmd := exec.CommandContext(t.Context(), c[0], c[1:]...) //nolint:gosec // a test
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1234, Gid: 1234}}
			if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "ermission denied") && !strings.Contains(string(out), "connect") {
				t.Errorf("another user may %q: %v %s", c, err, out)
			}
		}
	}
	two := w.ended(id, w.prompt(id, "@@run cat a.txt@@ @@write b.txt two@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	w.wantPushed(r, two)
	w.delete(id, false)
}

// A server that is started with another kind of sandbox cannot reach the old ones; sessions go on in new ones at once.
func TestOtherProvider(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@mark grey-owl@@ @@write a.txt one@@"})
	id := s.Session.ID
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	w.stop()
	if err := os.Chmod(w.dir, 0o755); err != nil { //nolint:gosec // sandboxes run as nobody, who must get there
		t.Fatal(err)
	}
	agents := w.o.agents
	w.o.agents, w.o.args = openAgents(t), []string{"--sandbox", "bubblewrap"}
	w.start()
	two := w.ended(id, w.prompt(id, "@@recall@@ @@run cat a.txt@@ @@write b.txt two@@").Turn.ID, deadline)
	w.wantTurn(two, "completed", "")
	w.wantPushed(r, two)
	if two.Generation != 2 || two.Rung != "reprimed" {
		t.Errorf("generation %d, rung %q", two.Generation, two.Rung)
	}
	// The server that made the first one removes it.
	w.stop()
	w.o.agents, w.o.args = agents, nil
	w.start()
	w.until(deadline, "the first sandbox to be gone", func() (bool, string) {
		left := w.sandboxProcesses(id, "runsc-sandbox")
		return len(left) == 0, fmt.Sprint(left)
	})
	// And the second by its own.
	w.stop()
	w.o.agents, w.o.args = openAgents(t), []string{"--sandbox", "bubblewrap"}
	w.start()
	w.delete(id, false)
}
