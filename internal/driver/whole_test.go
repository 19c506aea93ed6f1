package driver_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
	"github.com/hearthd/hearth/internal/uistream"
)

// From the dial to the pack: a clone, a turn that writes a file and runs a command, a second turn in the live
// session, and the work received by another git.
func TestWholeWay(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	repo, bare := b.repo(map[string]string{"README.md": "hello\n", "run.sh": "#!/bin/sh\n", ".hearth/environment.yaml": "setup:\n  - echo ready > $HOME/ready\n  - echo two\nimage: x\n"})
	b.start()
	hello, err := b.ch.Connected(t.Context())
	if err != nil || hello.Boot != 1 || hello.Driver != "test" {
		t.Fatalf("hello %+v %v", hello, err)
	}
	events, last, err := b.setup(driverapi.SetupRequest{Repo: &repo})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range events {
		if e.Phase == "setup" && e.Line != "" {
			lines = append(lines, e.Line)
		}
	}
	want := []string{`.hearth/environment.yaml: the key "image" is not known and was not used.`, "$ echo ready > $HOME/ready", "$ echo two", "two"}
	if d := cmp.Diff(want, lines); d != "" {
		t.Error(d)
	}
	if last.Head != repo.BaseOID || !last.Done {
		t.Errorf("last event %+v", last)
	}
	if _, err := os.Stat(filepath.Join(b.cfg.Home, "ready")); err != nil {
		t.Error(err)
	}
	res := b.mustAgent()
	if !res.Load || !res.Resume || res.Reused || res.Protocol != 1 {
		t.Errorf("agent %+v", res)
	}
	if again := b.mustAgent(); !again.Reused {
		t.Error("the agent was started twice")
	}
	req := turnRequest("@@say I will@@ @@write notes.txt some words@@ @@run git log --oneline | wc -l@@")
	o := b.run("turn_1", req)
	if o.end.Outcome != driverapi.OutcomeEndTurn || !o.end.Clean {
		t.Fatalf("end %+v", o.end)
	}
	if got := o.types(); got[0] != "start" || got[1] != "start-step" || got[2] != "data-rung" || got[len(got)-1] != "finish-step" {
		t.Errorf("types %v", got)
	}
	check := uistream.NewChecker("turn_1")
	for _, r := range o.records {
		if r.Part != nil {
			if _, err := check.Check(r.Part); err != nil {
				t.Errorf("part %d: %v", r.N, err)
			}
		}
	}
	if _, again, err := b.client.Turn(t.Context(), "turn_1", req); err != nil || !again {
		t.Errorf("the same turn again: %v %v", again, err)
	}
	session := o.rung().AgentSession
	o2 := b.run("turn_2", turnRequest("@@say second@@", driverapi.Attempt{Rung: "live", AgentSession: session}))
	if d := cmp.Diff(driverapi.RungTaken{Rung: "live", AgentSession: session}, o2.rung()); d != "" || !strings.Contains(o2.text(), "second") {
		t.Errorf("second turn: %s %s", o2.text(), d)
	}
	p, body := b.pack(packRequest(repo.BaseOID))
	if !p.Changed || p.Commits != 1 || len(p.Notes) != 0 {
		t.Errorf("pack %+v", p)
	}
	p2, _ := b.pack(packRequest(repo.BaseOID))
	if d := cmp.Diff(p, p2); d != "" {
		t.Errorf("the same pack again: %s", d)
	}
	receive(t, bare, body, p.Head)
	if got, err := bare.File(t.Context(), p.Head, "notes.txt"); err != nil || strings.TrimSpace(got) != "some words" {
		t.Errorf("notes.txt: %q %v", got, err)
	}
	s, err := b.client.Status(t.Context())
	if err != nil || !s.Setup || s.Head != p.Head || s.Agent != finger || s.Free <= 0 {
		t.Errorf("status %+v %v", s, err)
	}
	if err := b.client.Reset(t.Context(), driverapi.ResetRequest{OID: repo.BaseOID}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(b.cfg.Work, "notes.txt")); !os.IsNotExist(err) {
		t.Errorf("after the reset: %v", err)
	}
}

// receive takes a pack into the repository as the server would, and checks it.
func receive(t *testing.T, r *gitserver.Repo, pack []byte, head string) {
	t.Helper()
	cmd := exec.Command("git", "index-pack", "--stdin", "--strict")
	cmd.Dir, cmd.Stdin = r.Dir, bytes.NewReader(pack)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("index-pack: %v: %s", err, out)
	}
	for _, args := range [][]string{{"update-ref", "refs/heads/got", head}, {"fsck", "--strict", "--connectivity-only"}} {
		if _, err := r.Git(t.Context(), args...); err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
	}
}
