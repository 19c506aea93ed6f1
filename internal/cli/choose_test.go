package cli_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// TestHelp is there so that every help text is read when it changes.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", "run", "prompt", "attach", "list", "cancel", "questions", "answer", "queue", "queue edit", "queue remove", "queue hold", "queue release", "transcript", "export", "diff", "bundle", "blob", "deliver", "discard", "delete", "serve", "stop", "agent", "agent install", "agent list", "agent verify", "doctor", "version", "exit-status",
	} {
		s := newShell(t)
		args := append([]string{"help"}, strings.Fields(name)...)
		if got := s.run(args...); got != 0 || s.err.String() != "" {
			t.Errorf("help %s: %d %s", name, got, s.err.String())
		}
		golden(t, strings.ReplaceAll(strings.TrimSpace("help "+name), " ", "-"), s.out.String())
	}
}

// TestRulesForSession holds every command that takes a session to one of two rules.
func TestRulesForSession(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"prompt": "Without SESSION it is the newest one.", "attach": "Without SESSION it is the newest one.", "cancel": "Without SESSION it is the newest one.", "queue": "Without SESSION it is the newest one.",
		"transcript": "Without SESSION it is the newest one.", "export": "Without SESSION it is the newest one.", "diff": "Without SESSION it is the newest one.", "bundle": "Without SESSION it is the newest one.", "deliver": "Without SESSION it is the newest one.",
		"discard": "The session must be named: this cannot be undone.", "delete": "The session must be named: this cannot be undone.",
	} {
		s := newShell(t)
		s.run(name, "--help")
		if help := strings.Join(strings.Fields(s.out.String()), " "); !strings.Contains(help, rule) {
			t.Errorf("%s does not say %q: %s", name, rule, help)
		}
		if rule[0] == 'W' != strings.Contains(s.out.String(), "hearth "+name+" [SESSION]") {
			t.Errorf("%s: the use line does not fit the rule: %s", name, s.out.String())
		}
		args := []string{name}
		if name == "prompt" {
			args = append(args, "go on")
		}
		status := s.run(args...)
		if rule[0] == 'W' && (status != 5 || !strings.Contains(s.err.String(), "There is no session yet. Make one with `hearth run`.")) {
			t.Errorf("%s without any session: %d %s", name, status, s.err.String())
		}
		if rule[0] == 'T' && (status != 2 || !strings.Contains(s.err.String(), "Name the session: ")) {
			t.Errorf("%s without a session: %d %s", name, status, s.err.String())
		}
	}
}

func TestNewestSessionIsMeant(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	older, meant, gone := s.w.Create("older"), s.w.Create("meant"), s.w.Create("gone")
	for _, id := range []session.ID{older, meant, gone} {
		s.w.Begin(id)
		s.w.EndWith(id, "end_turn", "", session.Delivery{State: session.DeliveryFailed, Code: fault.ForgeUnavailable})
	}
	if got := s.run("delete", "--force", string(gone)); got != 0 {
		t.Fatal(s.err.String())
	}
	for _, args := range [][]string{{"diff"}, {"bundle", "-o", filepath.Join(t.TempDir(), "x")}, {"cancel"}} {
		s.out, s.err = buffer{}, buffer{}
		s.run(args...)
		if !strings.Contains(s.err.String(), "The newest session is "+string(meant)+": meant") {
			t.Errorf("%v: %s %s", args, s.out.String(), s.err.String())
		}
	}
	before := s.w.Get(older).Session.Version
	if got := s.run("prompt", "-d", "and", "then"); got != 0 || s.w.Get(meant).Open.Prompt != "and then" {
		t.Errorf("prompt: %d %s %+v", got, s.err.String(), s.w.Get(meant).Open)
	}
	if got := s.run("prompt", "-d", string(older), "not", "the newest"); got != 0 || s.w.Get(older).Open.Prompt != "not the newest" || s.w.Get(older).Session.Version == before {
		t.Errorf("prompt of a named session: %d %s", got, s.err.String())
	}
}

func TestUnnamedListsWhatMayBeMeant(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	done := s.w.Create("delivered")
	s.w.Begin(done)
	s.w.End(done)
	var held []string
	for i := range 7 {
		id := s.w.Create(fmt.Sprintf("task %d\nmore", i))
		s.w.Begin(id)
		s.w.EndWith(id, "failed", fault.AgentExited, session.Delivery{State: session.DeliveryHeld})
		held = append(held, string(id))
	}
	if got := s.run("discard"); got != 2 {
		t.Errorf("status %d", got)
	}
	text := s.err.String()
	for _, has := range []string{"hearth discard " + held[6], "hearth discard " + held[2], "old: task 6)", "and 2 more: hearth list"} {
		if !strings.Contains(text, has) {
			t.Errorf("lacks %q: %s", has, text)
		}
	}
	if strings.Contains(text, string(done)) || strings.Contains(text, held[1]) {
		t.Errorf("lists what is not meant: %s", text)
	}
	for _, id := range held {
		if s.w.Get(session.ID(id)).Session.PackOID == "" {
			t.Errorf("%s lost its work", id)
		}
	}

	// Nothing is started for an error.
	s.env["HEARTH_SERVER"] = ""
	s.startServer = func(context.Context, config.Config) (bool, error) { t.Error("a server was started"); return false, nil }
	s.err = buffer{}
	if got := s.run("delete"); got != 2 || !strings.Contains(s.err.String(), "hearth list") {
		t.Errorf("without a server: %d %s", got, s.err.String())
	}
}

// TestExitStatusIsDocumented compares the page of help with the kinds of errors.
func TestExitStatusIsDocumented(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	if got := s.run("help", "exit-status"); got != 0 {
		t.Fatal(s.err.String())
	}
	got := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^  (\d+) +(\S+)`).FindAllStringSubmatch(s.out.String(), -1) {
		got[m[1]] = m[2]
	}
	want := map[string]string{"0": "done;", "10": "the", "11": "detached:", "130": "the"}
	for _, i := range fault.All() {
		if i.Kind != fault.KindCanceled { // 130, told above
			want[strconv.Itoa(i.Kind.ExitStatus())] = string(i.Kind)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
