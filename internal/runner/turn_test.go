package runner

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
)

// ledger is as much of a store as the rungs ask for.
type ledger struct {
	session.Store
	transcript.Log
	turns []session.Turn
	parts []transcript.Part
}

func (l *ledger) LastReached(context.Context, session.ID) (session.Turn, error) {
	for i := len(l.turns) - 1; i >= 0; i-- {
		if !l.turns[i].SentAt.IsZero() {
			return l.turns[i], nil
		}
	}
	return session.Turn{}, fault.New(fault.TurnNotFound, "")
}

func (l *ledger) Turns(_ context.Context, _ session.ID, after int64, limit int) ([]session.Turn, error) {
	var out []session.Turn
	for _, t := range l.turns {
		if t.Number > after && len(out) < limit {
			out = append(out, t)
		}
	}
	return out, nil
}

func (l *ledger) Read(_ context.Context, _ string, after transcript.Cursor, limit int) ([]transcript.Part, error) {
	var out []transcript.Part
	for _, p := range l.parts {
		if after.Before(p.Cursor) && len(out) < limit {
			out = append(out, p)
		}
	}
	return out, nil
}

func (l *ledger) say(turn int64, text string) {
	raw, err := json.Marshal(map[string]string{"type": "text-delta", "id": "a", "delta": text})
	if err != nil {
		panic(err)
	}
	l.parts = append(l.parts, transcript.Part{Cursor: transcript.Cursor{Turn: turn, Part: int64(len(l.parts) + 1)}, Body: raw})
}

func reached(number int64, change func(*session.Turn)) session.Turn {
	t := session.Turn{
		ID: "t", Number: number, State: session.TurnCompleted, Prompt: "the first task", Agent: "pi", Build: "b", Fingerprint: "f", Generation: 1, AgentSession: "as", Clean: true,
		StartedAt: time.Unix(1, 0), SentAt: time.Unix(1, 0),
	}
	if change != nil {
		change(&t)
	}
	return t
}

func TestRungs(t *testing.T) {
	t.Parallel()
	resumes := agent.Launch{Fingerprint: "f", Resume: agent.ResumeResume}
	loads := agent.Launch{Fingerprint: "f", Resume: agent.ResumeLoad}
	mends := agent.Profile{MendsAfterCut: true}
	can := driverapi.AgentResult{Load: true, Resume: true, Reused: true}
	restarted := driverapi.AgentResult{Load: true, Resume: true}
	for _, c := range []struct {
		name    string
		turns   []session.Turn
		number  int64
		profile agent.Profile
		launch  agent.Launch
		started driverapi.AgentResult
		want    []string // rung/method
	}{
		{"first turn", nil, 1, agent.Profile{}, resumes, can, []string{"fresh/new"}},
		{"no turn reached an agent", []session.Turn{{Number: 1, Prompt: "task"}}, 2, agent.Profile{}, resumes, can, []string{"redelivered/new"}},
		{"the agent is there", []session.Turn{reached(1, nil)}, 2, agent.Profile{}, resumes, can, []string{"live/", "native/resume", "reprimed/new"}},
		{"its process is new", []session.Turn{reached(1, nil)}, 2, agent.Profile{}, loads, restarted, []string{"native/load", "reprimed/new"}},
		{"it was cut and mends", []session.Turn{reached(1, func(t *session.Turn) { t.Clean = false })}, 2, mends, loads, restarted, []string{"native/load", "reprimed/new"}},
		{"it was cut and does not mend", []session.Turn{reached(1, func(t *session.Turn) { t.Clean = false })}, 2, agent.Profile{}, loads, restarted, []string{"reprimed/new"}},
		{"another agent had the newest turn", []session.Turn{reached(1, nil), reached(2, func(t *session.Turn) { t.Agent = "claude" })}, 3, mends, resumes, can, []string{"reprimed/new"}},
		{"another build", []session.Turn{reached(1, func(t *session.Turn) { t.Build = "older" })}, 2, mends, resumes, can, []string{"reprimed/new"}},
		{"another model", []session.Turn{reached(1, func(t *session.Turn) { t.Fingerprint = "other" })}, 2, mends, resumes, can, []string{"reprimed/new"}},
		{"another sandbox", []session.Turn{reached(1, func(t *session.Turn) { t.Generation = 0 })}, 2, mends, resumes, can, []string{"reprimed/new"}},
		{"a turn that was never sent lies between", []session.Turn{reached(1, nil), {Number: 2, Prompt: "canceled"}}, 3, agent.Profile{}, resumes, can, []string{"live/", "native/resume", "reprimed/new"}},
	} {
		l := &ledger{turns: c.turns}
		r := New(Config{Store: l, Log: l})
		got, err := r.attempts(t.Context(), session.Session{ID: "ses_1", Agent: "pi", Generation: 1}, &session.Turn{Number: c.number, Prompt: "now"}, c.profile, "b", c.launch, c.started)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var rungs []string
		for _, a := range got {
			rungs = append(rungs, a.Rung+"/"+a.Method)
			if (a.Rung == rungReprimed) != strings.Contains(a.Preamble, recordTag) {
				t.Errorf("%s: preamble of %s: %q", c.name, a.Rung, a.Preamble)
			}
			if (a.Rung == rungLive || a.Rung == rungNative) && a.AgentSession != "as" {
				t.Errorf("%s: %s goes on with session %q", c.name, a.Rung, a.AgentSession)
			}
		}
		if d := cmp.Diff(c.want, rungs); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestPreambleIsBoundedNewestFirst(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	for n := int64(1); n <= 30; n++ {
		l.turns = append(l.turns, reached(n, func(t *session.Turn) { t.Prompt = "ask " + strings.Repeat("x", 1500) + " end" }))
		l.say(n, "answer "+strings.Repeat("é", 700)+" </"+recordTag+"> done")
	}
	l.turns[29].State = session.TurnCanceled
	r := New(Config{Store: l, Log: l})
	got, err := r.preamble(t.Context(), "ses_1", 31)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) > maxPreamble || len(got) < maxPreamble/2 {
		t.Fatalf("%d bytes", len(got))
	}
	if strings.Count(got, "</"+recordTag+">") != 1 || !strings.HasSuffix(got, "</"+recordTag+">\n") {
		t.Fatal("what is quoted can end the record")
	}
	if !strings.Contains(got, "cut short: canceled") || strings.Index(got, "cut short") < len(got)/2 {
		t.Fatal("the newest turn is missing or not last")
	}
	one := &ledger{turns: []session.Turn{reached(1, func(t *session.Turn) { t.Prompt = strings.Repeat("y", 90<<10) })}}
	one.say(1, strings.Repeat("z", 90<<10))
	if got, err := New(Config{Store: one, Log: one}).preamble(t.Context(), "ses_1", 2); err != nil || len(got) > maxPreamble || !strings.Contains(got, "[…]") {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

func TestCommitMessage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ prompt, subject, body string }{
		{"Fix it", "Fix it", ""},
		{"  Fix\tthe   thing \nand more", "Fix the thing", ""},
		{"\n\n", "Work on the task", ""},
		{strings.Repeat("ü", 80), strings.Repeat("ü", 71) + "…", strings.Repeat("ü", 80) + "\n\n"},
	} {
		s, b := commitMessage(c.prompt)
		if s != c.subject || b != c.body {
			t.Errorf("%q gave %q, %q", c.prompt, s, b)
		}
	}
}
