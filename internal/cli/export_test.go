package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
)

func TestExport(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("Fix it")
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("a", "It was the \u009b`<x>` <b>loop</b>.")...)
	s.w.End(id)
	if got := s.run("export", string(id), "--format", "markdown"); got != 0 || s.err.String() != "" {
		t.Errorf("%d %s", got, s.err.String())
	}
	text := regexp.MustCompile(`hearth/task-[^\s`+"`"+`]+`).ReplaceAllString(s.out.String(), "hearth/task")
	golden(t, "export", regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`).ReplaceAllString(text, "TIME"))

	file := filepath.Join(t.TempDir(), "session.jsonl")
	s.out = buffer{}
	if got := s.run("export", string(id), "-o", file); got != 0 || !strings.HasPrefix(s.out.String(), file+": ") {
		t.Errorf("%d %s %s", got, s.out.String(), s.err.String())
	}
	whole, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(whole), `{"type":"session"`) || !strings.Contains(string(whole), `{"type":"end"`) || !strings.Contains(string(whole), "\u009b") {
		t.Errorf("%v: %.300s", err, whole)
	}
	s.out = buffer{}
	if got := s.run("export"); got != 0 || !strings.Contains(s.out.String(), "\u009b") {
		t.Errorf("to a pipe it is not to the letter: %d %s", got, s.err.String())
	}
	s.terminal, s.out = true, buffer{}
	if got := s.run("export"); got != 0 || strings.Contains(s.out.String(), "\u009b") || !strings.Contains(s.out.String(), `\u009b`) {
		t.Errorf("on a terminal: %d %q", got, s.out.String())
	}
	for _, args := range [][]string{{"export", "--format", "html"}, {"export", "a", "b"}} {
		if got := s.run(args...); got != 2 {
			t.Errorf("%v: status %d", args, got)
		}
	}
	if got := s.run("export", "ses_none"); got != 5 {
		t.Errorf("unknown session: %d", got)
	}
	s.w.Broken.Store(true)
	if got := s.run("export", string(id), "-o", file); got == 0 {
		t.Error("a broken export looks whole")
	}
	if b, err := os.ReadFile(file); err != nil || len(b) != len(whole) {
		t.Errorf("the good file was lost: %v, %d bytes", err, len(b))
	}
}
