package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hearthd/hearth/client"
)

// The weaker sandbox carries a whole session, says what it is, and shows its folders and
// doors to no other user of the machine.
func TestBubblewrap(t *testing.T) {
	t.Parallel()
	agents, err := os.MkdirTemp("/tmp", "ha") // sandboxes run as nobody, who must get there
	if err == nil {
		err = os.Chmod(agents, 0o755) //nolint:gosec // as said
	}
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(agents) })
		err = installScripted(t.Context(), agents, needed(t, "HEARTH_TESTKIT"))
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, options{agents: agents, open: true, args: []string{"--sandbox", "bubblewrap"}})
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
