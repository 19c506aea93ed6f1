package e2e

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the server's store, whose clock is set on here

	"github.com/hearthd/hearth/client"
)

const formText = `{"type":"object","properties":{"database":{"type":"string","enum":["pg","my"]},"port":{"type":"integer","minimum":1,"default":5432},"note":{"type":"string"}},"required":["database"]}`

// cli runs a command of the shipped binary against the world's server.
func (w *world) cli(args ...string) (string, error) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), needed(w.t, "HEARTH_BIN"), args...) //nolint:gosec // the binary under test
	cmd.Env = []string{"HEARTH_SERVER=" + w.address, "HEARTH_TOKEN=" + w.token, "HOME=" + w.dir}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// What an agent asks by a form waits over a restart, is refused field by field where it does
// not fit, and comes to the agent exactly as it was given, over REST and from the command
// line. The conversation holds the names of the fields; what the agent says is its own.
func TestForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	for _, way := range []string{"rest", "cli", "decline"} {
		s := w.create(client.CreateInput{Approvals: json.RawMessage(`"ask"`), Prompt: "@@fields " + formText + "@@ @@say after@@"})
		id := s.Session.ID
		q := w.asked(id, 1)[0]
		if q.Kind != "form" || q.Title != "Fill this in" || !strings.Contains(string(q.Detail), formText) {
			t.Errorf("question %+v", q)
		}
		if way == "rest" {
			w.kill()
			w.start()
			if again := w.asked(id, 1)[0]; again.ID != q.ID || string(again.Detail) != string(q.Detail) {
				t.Errorf("after the restart: %+v", again)
			}
		}
		_, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "accept", Content: json.RawMessage(`{"database":"ora","port":0}`)})
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != "INVALID_INPUT" {
			t.Fatalf("values that do not fit: %v", err)
		}
		if fields := fmt.Sprint(refused.Details["fields"]); !strings.Contains(fields, "content.database") || !strings.Contains(fields, "content.port") {
			t.Errorf("fields %s", fields)
		}
		if _, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "allow"}); client.CodeOf(err) != "INVALID_INPUT" {
			t.Errorf("a permission's verdict: %v", err)
		}
		want, verdict := "", "accept"
		switch way {
		case "rest":
			_, err = w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "accept", Content: json.RawMessage(`{"note":"a <b> \"c\"\n@","database":"my"}`)})
			want = `The form: accept {"database":"my","note":"a <b> \"c\"\n@"}`
		case "cli":
			var out string
			if out, err = w.cli("answer", id, "--field", "database=pg", "--field", "note=it's=so"); err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			want = `The form: accept {"database":"pg","port":5432,"note":"it's=so"}`
		default:
			_, err = w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "decline"})
			want, verdict = "The form: decline", "decline"
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "cancel"}); client.CodeOf(err) != "QUESTION_SETTLED" {
			t.Errorf("answered twice: %v", err)
		}
		turn := w.ended(id, s.Turn.ID, deadline)
		w.wantTurn(turn, "completed", "")
		parts := w.transcript(id)
		if said := text(parts, 1); !strings.Contains(said, want) || !strings.Contains(said, "after") {
			t.Errorf("%s: the agent got %s", way, said)
		}
		shown := 0
		for _, p := range parts {
			if p.kind == "data-question" {
				if shown++; strings.Contains(p.raw, "so") && strings.Contains(p.raw, "it's") || strings.Contains(p.raw, "<b>") {
					t.Errorf("a value is in the conversation: %s", p.raw)
				}
			}
		}
		if got, err := w.c.Question(t.Context(), id, q.ID); err != nil || got.Verdict != verdict || got.State != "answered" || shown != 2 {
			t.Errorf("kept as %+v, shown %d times, %v", got, shown, err)
		}
		w.delete(id, true)
	}
	// Where nobody is asked a form is declined at once, and the conversation says why.
	s := w.create(client.CreateInput{Prompt: "@@offered@@ @@form Which?@@ @@say after@@"})
	w.wantTurn(w.ended(s.Session.ID, s.Turn.ID, deadline), "completed", "")
	said := text(w.transcript(s.Session.ID), 1)
	if !strings.Contains(said, "The form: decline") || strings.Contains(said, "elicitation") || !strings.Contains(string(w.rawTranscript(s.Session.ID)), "approvals ask nobody") {
		t.Errorf("without anybody to ask: %s", said)
	}
	w.delete(s.Session.ID, true)
}

// Several questions wait at once, all are there after a kill of the server, each takes its
// own answer in any order and only once; a session that waits is in no other's way.
func TestManyQuestions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	s := w.create(client.CreateInput{Approvals: json.RawMessage(`"ask"`), Prompt: "@@ask-many 3 Deploy@@"})
	id := s.Session.ID
	w.asked(id, 3)
	other := w.create(client.CreateInput{Approvals: json.RawMessage(`"ask"`), Prompt: "@@say Other.@@"})
	w.wantTurn(w.ended(other.Session.ID, other.Turn.ID, deadline), "completed", "")
	w.delete(other.Session.ID, true)
	w.kill()
	w.start()
	for i, q := range w.asked(id, 3) { // newest first
		verdict := "allow"
		if i == 1 {
			verdict = "deny"
		}
		if _, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: verdict}); err != nil {
			t.Errorf("answer %s: %v", q.ID, err)
		}
		if _, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "allow"}); client.CodeOf(err) != "QUESTION_SETTLED" {
			t.Errorf("answer %s again: %v", q.ID, err)
		}
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	if said := text(w.transcript(id), 1); !strings.Contains(said, "Answers: 1 selected yes; 2 selected no; 3 selected yes.") {
		t.Errorf("the agent was told %s", said)
	}
	w.delete(id, true)
}

// Nobody watches and nobody answers: after the deadline a permission counts as denied and a
// form as declined, the agent is told, and the turn goes on.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	s := w.create(client.CreateInput{Approvals: json.RawMessage(`"ask"`), Prompt: "@@ask-many 1 Deploy@@ @@form Which?@@ @@say after@@"})
	id := s.Session.ID
	for _, kind := range []string{"permission", "form"} {
		q := w.asked(id, 1)[0]
		if q.Kind != kind || q.Deadline.Sub(q.AskedAt) != 24*time.Hour {
			t.Fatalf("question %+v", q)
		}
		if s := w.get(id); s.Phase != "waiting" {
			t.Errorf("the session is %s", s.Phase)
		}
		w.kill()
		w.dayPasses()
		w.start()
		w.until(deadline, "the question to expire", func() (bool, string) {
			got, err := w.c.Question(t.Context(), id, q.ID)
			return err == nil && got.State == "expired", fmt.Sprint(got.State, err)
		})
		if _, err := w.c.Answer(t.Context(), id, q.ID, client.Answer{Verdict: "allow"}); client.CodeOf(err) != "QUESTION_SETTLED" {
			t.Errorf("answered too late: %v", err)
		}
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	parts := w.transcript(id)
	if said := text(parts, 1); !strings.Contains(said, "Answers: 1 selected no.") || !strings.Contains(said, "The form: decline") || !strings.Contains(said, "after") {
		t.Errorf("the agent was told %s", said)
	}
	outcomes := 0
	for _, p := range parts {
		if strings.Contains(p.raw, `"denied":true`) || strings.Contains(p.raw, `"declined":true`) {
			outcomes++
		}
	}
	if outcomes != 2 {
		t.Errorf("%d outcomes are shown", outcomes)
	}
	w.delete(id, true)
}

// dayPasses makes what waits for a deadline due; the server does not run.
func (w *world) dayPasses() {
	w.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(w.state, "hearth.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{
		"UPDATE questions SET deadline = asked_at WHERE state = 'pending'",
		"UPDATE effects SET not_before = 1 WHERE kind = 'expire_question'",
	} {
		if _, err := db.ExecContext(w.t.Context(), q); err != nil {
			w.t.Fatal(err)
		}
	}
}

// A newer prompt in place of a turn that waits: the old turn ends first, shown as canceled
// with its question, within the limit of a cancel; then the new one begins.
func TestReplaceWhileAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	s := w.create(client.CreateInput{Approvals: json.RawMessage(`"ask"`), Prompt: "@@form Which?@@ @@say after@@"})
	id := s.Session.ID
	w.asked(id, 1)
	began := time.Now()
	next, err := w.c.Prompt(t.Context(), id, client.PromptInput{Prompt: "@@say newer@@", Mode: "interrupt"})
	if err != nil {
		t.Fatal(err)
	}
	if old := w.ended(id, s.Turn.ID, 10*time.Second); old.State != "canceled" || time.Since(began) > 10*time.Second {
		t.Errorf("%s after %s", old.State, time.Since(began))
	}
	w.wantTurn(w.ended(id, next.Turn.ID, deadline), "completed", "")
	parts := w.transcript(id)
	first := of(parts, 1)
	var kinds []string
	for _, p := range first {
		if p.kind == "data-question" || p.kind == "data-turn-end" {
			kinds = append(kinds, p.kind)
		}
	}
	if got := strings.Join(kinds, " "); got != "data-question data-question data-turn-end" || !strings.Contains(text(parts, 2), "newer") || strings.Contains(text(parts, 1), "after") {
		t.Errorf("the old turn shows %s and %s, the new one %s", got, text(parts, 1), text(parts, 2))
	}
	w.delete(id, true)
}

// Claude's own way to ask is a form where the session asks, and is not there where it does not.
func TestRealAgentAsksByForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{agents: needed(t, "HEARTH_TEST_AGENTS")})
	const ask = `@@tool AskUserQuestion {"questions":[{"question":"Which database?","header":"Database","multiSelect":false,"options":[{"label":"Postgres","description":"the big one"},{"label":"SQLite","description":"the small one"}]}]}@@ @@say Done.@@`
	s := w.create(client.CreateInput{Agent: "claude", Approvals: json.RawMessage(`"ask"`), Prompt: ask})
	id := s.Session.ID
	w.until(deadline, "a question", func() (bool, string) { s := w.get(id); return len(s.Questions) > 0 || s.OpenTurn == nil, s.Phase })
	qs := w.get(id).Questions
	if len(qs) != 1 || qs[0].Kind != "form" || qs[0].Title != "Which database?" {
		t.Fatalf("questions %+v: %s", qs, text(w.transcript(id), 1))
	}
	t.Logf("%s", qs[0].Detail)
	if out, err := w.cli("answer", id, "--field", "question_0=SQLite"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	if raw := string(w.rawTranscript(id)); !strings.Contains(raw, "SQLite") {
		t.Error("the agent has not got the answer")
	}
	w.delete(id, true)
}
