package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/cli"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

// pty is a terminal: what the program writes to tty comes out of screen, and what is
// typed goes in.
type pty struct {
	t      *testing.T
	master *os.File
	tty    *os.File
	screen buffer
}

func newPTY(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	n := 0
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		if failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); failed == nil {
			n, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &pty{t: t, master: master, tty: tty}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&p.screen, master) // ends with the terminal
	}()
	t.Cleanup(func() {
		_ = master.Close()
		<-done
		_ = tty.Close()
	})
	return p
}

func (p *pty) typed(s string) {
	p.t.Helper()
	if _, err := io.WriteString(p.master, s); err != nil {
		p.t.Fatal(err)
	}
}

// runOn runs a command on a terminal.
func (s *shell) runOn(p *pty, args ...string) <-chan int {
	status := make(chan int, 1)
	go func() {
		status <- cli.Main(s.t.Context(), args, cli.Env{
			Stdin: p.tty, Stdout: p.tty, Stderr: p.tty, Getenv: func(k string) string { return s.env[k] },
			IsTerminal: func(any) bool { return true }, Now: s.now, SlowStart: s.slow, GiveUp: s.giveUp,
			Interrupts: func() (<-chan os.Signal, func()) { return s.signals, func() {} },
			Version:    client.Version{Version: "1.2.3"},
		})
	}()
	return status
}

// scene is a session that is watched on a terminal.
type scene struct {
	*shell
	p      *pty
	id     session.ID
	turn   *session.Turn
	status <-chan int
}

func newScene(t *testing.T, args ...string) *scene {
	t.Helper()
	s := newShell(t)
	s.env["NO_COLOR"] = "1"
	id := s.w.Create("Fix it")
	turn := s.w.Begin(id)
	p := newPTY(t)
	sc := &scene{shell: s, p: p, id: id, turn: turn}
	sc.status = s.runOn(p, append([]string{"attach", string(id)}, args...)...)
	sc.shows("Fix it")
	return sc
}

// shows waits until the screen has it; each call looks behind the former one's find.
func (s *scene) shows(what string) {
	s.t.Helper()
	s.until(what, func() bool {
		s.out = buffer{} // for the failure's text
		_, _ = s.out.Write([]byte(s.p.screen.String()))
		return strings.Contains(s.p.screen.String(), what)
	})
}

// ask shows a question in the stream first and lists it then, as the recorder does.
func (s *scene) ask(q session.Question) session.QuestionID {
	s.t.Helper()
	q.Turn = s.turn.ID
	id := session.QuestionIDOf(s.turn.ID, q.Number)
	name, data := "data-permission", map[string]any{"title": q.Title, "options": []any{}}
	if q.Kind == session.QuestionForm {
		name, data = "data-question", map[string]any{"kind": "form", "message": q.Title}
	}
	raw, err := json.Marshal(map[string]any{"type": name, "id": id, "data": data})
	if err != nil {
		s.t.Fatal(err)
	}
	s.w.Say(s.id, raw)
	s.w.Apply(s.id, session.QuestionAsked{Question: q})
	return id
}

func (s *scene) permission(n int64, title string) session.QuestionID {
	s.t.Helper()
	return s.ask(session.Question{
		Number: n, Kind: session.QuestionPermission, Title: title, Detail: `{"input":{"command":"rm -rf \u001b[2Jx"},"content":null}`,
		Options: []session.Option{{ID: "once", Name: "Yes \x1b[31m", Kind: "allow_once"}, {ID: "no", Name: "No", Kind: "reject_once"}},
	})
}

const wants = `{"message":"Which database?\nIt is for the tests.","schema":{"properties":{
 "db":{"type":"string","title":"Database","oneOf":[{"const":"pg","title":"Postgres"},{"const":"my","title":"MySQL"}]},
 "port":{"type":"integer","minimum":1,"default":5432},"tls":{"type":"boolean"},"note":{"type":"string"},
 "tags":{"type":"array","items":{"type":"string","enum":["a","b","c"]}}},"required":["db"]}}`

func (s *scene) form(n int64) session.QuestionID {
	s.t.Helper()
	return s.ask(session.Question{Number: n, Kind: session.QuestionForm, Title: "Which database?", Detail: wants})
}

func (s *scene) question(id session.QuestionID) session.Question {
	s.t.Helper()
	q, err := s.w.Sessions.Question(s.t.Context(), s.w.Owner(), s.id, id)
	if err != nil {
		s.t.Fatal(err)
	}
	return q
}

// settles waits until a question is in a state.
func (s *scene) settles(id session.QuestionID) session.Question {
	s.t.Helper()
	s.until("an answer", func() bool { return s.question(id).State != session.QuestionPending })
	return s.question(id)
}

// end ends the turn and the command.
func (s *scene) end(want int) {
	s.t.Helper()
	if s.w.Get(s.id).Open != nil {
		s.w.End(s.id)
	}
	if got := <-s.status; got != want {
		s.t.Errorf("status %d, want %d: %s", got, want, s.p.screen.String())
	}
	if screen := s.p.screen.String(); strings.Contains(screen, "\x1b[2J") || strings.Contains(screen, "\x1b[31m") {
		s.t.Errorf("an agent's escape code reached the terminal: %q", screen)
	}
}

// A permission is answered by its number, where it is watched; what was typed before it
// was shown is no answer.
func TestAnswerAtTheTerminal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.p.typed("1\n1\n")
	s.until("the echo", func() bool { return strings.Count(s.p.screen.String(), "1\r\n") >= 2 })
	one := s.permission(1, "Remove x")
	s.shows("? The agent asks: Remove x")
	s.shows("2  No  (denies it)")
	s.shows("Number, or Enter to leave it open:")
	s.shows("rm -rf")
	if q := s.question(one); q.State != session.QuestionPending {
		t.Fatalf("answered by what was typed before: %+v", q)
	}
	s.p.typed("7\n")
	s.shows("7 is none of the numbers.")
	s.p.typed("2\n")
	if q := s.settles(one); q.Verdict != session.VerdictDeny || q.Option != "no" {
		t.Errorf("%+v", q)
	}
	s.w.Say(s.id, resttest.Text("a", "it goes on")...)
	s.shows("it goes on")
	s.end(0)
}

// A form is filled in field by field: by number, by default, corrected where it does not fit.
func TestFormAtTheTerminal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	one := s.form(1)
	for _, step := range []struct{ shows, typed string }{
		{"It is for the tests.", ""},
		{"1  Fill it in", "1\n"},
		{"Database (needed)", ""},
		{"2  MySQL", "\n"},
		{"A value is needed; /skip leaves the question open.", "9\n"},
		{"is one of pg, my", "2\n"},
		{"Whole number, Enter for 5432:", "0\n"},
		{"must be at least 1", "\n"},
		{"Yes or no, Enter for none:", "y\n"},
		{"Text, Enter for none:", "\n"},
		{"Numbers, with commas, Enter for none:", "1, 3\n"},
	} {
		s.shows(step.shows)
		s.p.typed(step.typed)
	}
	if q := s.settles(one); q.Verdict != session.VerdictAccept || q.Content != `{"db":"my","port":5432,"tls":true,"tags":["a","c"]}` {
		t.Errorf("%+v", q)
	}
	s.end(0)
}

// A question can be left open, refused, or answered by somebody else meanwhile; each time
// the command goes on.
func TestQuestionIsNotAnsweredAtTheTerminal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		form  bool
		typed []string
		shows string
		state session.QuestionState
		want  string // verdict
	}{
		"enter":            {false, []string{"\n"}, "Left open. Answer it later: hearth", session.QuestionPending, ""},
		"s":                {false, []string{"s\n"}, "allow | deny", session.QuestionPending, ""},
		"a form":           {true, []string{"\n"}, "accept --field NAME=VALUE | decline | cancel", session.QuestionPending, ""},
		"amid a form":      {true, []string{"1\n", "1\n", "/skip\n"}, "Left open.", session.QuestionPending, ""},
		"decline":          {true, []string{"2\n"}, "", session.QuestionDone, session.VerdictDecline},
		"cancel":           {true, []string{"3\n"}, "", session.QuestionDone, session.VerdictCancel},
		"end of the input": {false, []string{"\x04"}, "Left open.", session.QuestionPending, ""},
		"elsewhere":        {false, nil, "Answered elsewhere: allow by owner.", session.QuestionDone, session.VerdictAllow},
		"withdrawn":        {true, nil, "Not to be answered any more", session.QuestionCanceled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			ask := func(n int64) session.QuestionID {
				if c.form {
					return s.form(n)
				}
				return s.permission(n, "Remove x")
			}
			one := ask(1)
			s.shows("Number, or Enter to leave it open:")
			for i, typed := range c.typed {
				s.p.typed(typed)
				if i == 0 && len(c.typed) > 1 {
					s.shows("Database (needed)")
				}
				if i == 1 {
					s.shows("Whole number")
				}
			}
			switch name {
			case "elsewhere":
				s.w.Apply(s.id, session.QuestionAnswered{ID: one, Verdict: session.VerdictAllow, By: "owner"})
			case "withdrawn":
				s.w.Apply(s.id, session.QuestionWithdrawn{ID: one})
			}
			s.shows(c.shows)
			if c.state != session.QuestionPending {
				s.settles(one)
			}
			if q := s.question(one); q.State != c.state || q.Verdict != c.want {
				t.Errorf("%+v", q)
			}
			s.w.Say(s.id, resttest.Text("a", "it goes on")...)
			s.shows("it goes on")
			s.end(0)
		})
	}
}

// Ctrl-C in the middle of a question means what it always means.
func TestInterruptWhileAsked(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	one := s.permission(1, "Remove x")
	s.shows("Number, or Enter to leave it open:")
	s.signals <- syscall.SIGINT
	s.shows("or go on (Enter)?")
	s.p.typed("\n")
	s.until("the question again", func() bool { return strings.Count(s.p.screen.String(), "Number, or Enter") == 2 })
	s.signals <- syscall.SIGINT
	s.until("what it means", func() bool { return strings.Count(s.p.screen.String(), "or go on (Enter)?") == 2 })
	s.p.typed("d\n")
	if got := <-s.status; got != 11 {
		t.Errorf("status %d", got)
	}
	if q := s.question(one); q.State != session.QuestionPending {
		t.Errorf("%+v", q)
	}
	s.w.End(s.id)
}

// Several at once are put one after the other; those that were settled long ago are not.
func TestSeveralAtTheTerminal(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["NO_COLOR"] = "1"
	id := s.w.Create("Fix it")
	sc := &scene{shell: s, id: id, turn: s.w.Begin(id)}
	old := sc.permission(1, "Old")
	s.w.Apply(id, session.QuestionAnswered{ID: old, Verdict: session.VerdictAllow, By: "owner"})
	two, three := sc.permission(2, "Second"), sc.permission(3, "Third")
	sc.p = newPTY(t)
	sc.status = s.runOn(sc.p, "attach", string(id))
	sc.shows("? The agent asks: Second")
	sc.shows("Number, or Enter to leave it open:")
	sc.p.typed("1\n")
	if q := sc.settles(two); q.Verdict != session.VerdictAllow {
		t.Errorf("%+v", q)
	}
	s.until("the next", func() bool { return strings.Count(sc.p.screen.String(), "Number, or Enter") == 2 })
	sc.p.typed("2\n")
	if q := sc.settles(three); q.Verdict != session.VerdictDeny {
		t.Errorf("%+v", q)
	}
	sc.end(0)
}

// Forms are listed with their fields and answered with flags or a file; what does not fit
// is refused by field, and nothing is lost.
func TestAnswerForms(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("Fix it")
	sc := &scene{shell: s, id: id, turn: s.w.Begin(id)}
	run := func(want int, has string, args ...string) {
		t.Helper()
		s.out, s.err = buffer{}, buffer{}
		got := s.run(args...)
		if said := s.out.String() + s.err.String(); got != want || !strings.Contains(said, has) {
			t.Errorf("hearth %q: status %d, want %d with %q: %s", args, got, want, has, said)
		}
	}
	one := sc.form(1)
	run(0, "--field db=  (pg, my; needed)  Database", "questions")
	run(0, "--field port=  (integer; else 5432)", "questions")
	run(2, "not NAME=VALUE", "answer", "--field", "db")
	run(2, "no field \"x\"", "answer", "--field", "x=1")
	run(2, "port: must be a number", "answer", "--field", "db=pg", "--field", "port=many")
	run(2, "content.db: is missing", "answer", "accept")
	run(2, "is a form: it is answered with accept, decline or cancel, not with allow", "answer", "allow")
	run(2, "not with deny", "answer", "deny")
	run(2, "Only a form that is accepted", "answer", "decline", "--field", "db=pg")
	run(2, "do not go together", "answer", "--field", "db=pg", "--json", "x")
	run(2, "cannot be read", "answer", "--json", "./none.json")
	s.stdin = strings.NewReader(`{"db":`)
	run(2, "not valid JSON", "answer", "--json", "-")
	s.stdin = strings.NewReader(`{"db":"ora"}`)
	run(2, "content.db: cannot be", "answer", "--json", "-")
	if q := sc.question(one); q.State != session.QuestionPending {
		t.Fatalf("%+v", q)
	}
	run(0, "accept", "answer", "--field", "db=pg", "--field", "note=a=b", "--field", "tags=c", "--field", "tags=a")
	if q := sc.question(one); q.Content != `{"db":"pg","port":5432,"note":"a=b","tags":["c","a"]}` {
		t.Errorf("%+v", q)
	}
	two := sc.form(2)
	s.stdin = strings.NewReader(`{"db":"my"}`)
	run(0, "accept", "answer", "--question", string(two), "--json", "-")
	if q := sc.question(two); q.Content != `{"db":"my"}` {
		t.Errorf("%+v", q)
	}
	three := sc.form(3)
	run(0, "decline", "answer", "decline")
	if q := sc.question(three); q.Verdict != session.VerdictDecline {
		t.Errorf("%+v", q)
	}
	sc.permission(4, "Remove x")
	run(2, "are for forms", "answer", "--field", "db=pg")
	run(2, "allow or deny", "answer", "accept")
	run(0, "deny", "answer", "deny")
	// Without a terminal the way to answer what waits is told.
	sc.form(5)
	sc.permission(6, "Remove y")
	s.out = buffer{}
	status := make(chan int, 1)
	go func() { status <- s.run("attach", "--json=false", string(id)) }()
	s.until("how to answer", func() bool {
		return strings.Contains(s.out.String(), "answer "+string(id)+" accept --field NAME=VALUE | decline | cancel") && strings.Contains(s.out.String(), "answer "+string(id)+" allow | deny")
	})
	s.w.End(id)
	if got := <-status; got != 0 {
		t.Errorf("status %d", got)
	}
}

// The limit of the command counts while a question is shown, too.
func TestLimitWhileAsked(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["NO_COLOR"] = "1"
	sc := &scene{shell: s, p: newPTY(t)}
	sc.status = s.runOn(sc.p, "run", "--limit", "2s", "Fix it")
	s.until("a session", func() bool {
		sc.id = session.ID(regexp.MustCompile(`ses_\d+`).FindString(sc.p.screen.String()))
		return sc.id != ""
	})
	sc.turn = s.w.Begin(sc.id)
	one := sc.permission(1, "Remove x")
	sc.shows("Number, or Enter to leave it open:")
	s.until("the stop", func() bool { return s.w.Get(sc.id).Open.State == session.TurnStopping })
	if q := sc.question(one); q.State != session.QuestionCanceled {
		t.Errorf("%+v", q)
	}
	s.w.EndWith(sc.id, "cancelled", "", session.Delivery{})
	sc.end(9)
}
