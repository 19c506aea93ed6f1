package sample_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/testkit/sample"
	"github.com/hearthd/hearth/internal/testkit/script"
)

func TestTaskMendsTheProject(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	head, err := sample.Make(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := sample.Make(t.Context(), t.TempDir()); err != nil || again != head {
		t.Errorf("a second one has commit %q, %v; want %s", again, err, head)
	}
	if _, err := sample.Make(t.Context(), dir); err == nil {
		t.Error("a folder with files in it was taken")
	}
	run := func(cmd string) (string, error) {
		c := exec.CommandContext(t.Context(), "sh", "-c", cmd)
		c.Dir = dir
		out, err := c.CombinedOutput()
		return string(out), err
	}
	var runs []string
	for _, d := range script.Parse(sample.Task) {
		if d.Name == "run" {
			runs = append(runs, d.Args)
		}
	}
	if out, err := run(runs[0]); err == nil || !strings.Contains(out, "FAIL format 3805: want 38.05, got 38.5") || !strings.Contains(out, "3 failed") {
		t.Errorf("the tests pass before the task: %v\n%s", err, out)
	}
	for _, cmd := range runs[1:] {
		if out, err := run(cmd); err != nil {
			t.Errorf("%s: %v\n%s", cmd, err, out)
		}
	}
	if out, err := run("./tally data/june.txt"); err != nil || out != "38.05\n" {
		t.Errorf("tally: %v %s", err, out)
	}
}
