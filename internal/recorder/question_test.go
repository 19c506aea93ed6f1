package recorder

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/session"
)

// The driver's names for questions are those of the session.
func TestQuestionNames(t *testing.T) {
	t.Parallel()
	if a, b := driverapi.QuestionID("trn_01x", 7), session.QuestionIDOf("trn_01x", 7); a != string(b) {
		t.Errorf("%s and %s", a, b)
	}
}

func asking(id, data string) []driverapi.Record {
	return []driverapi.Record{
		part(1, raw(`{"type":"start","messageId":"trn_1"}`)),
		part(2, raw(`{"type":"start-step"}`)),
		{N: 2, Sent: true},
		part(3, raw(`{"type":"tool-input-start","toolCallId":"c","toolName":"Bash","dynamic":true}`)),
		part(4, raw(`{"type":"tool-input-available","toolCallId":"c","toolName":"Bash","input":{},"dynamic":true}`)),
		part(5, raw(`{"type":"tool-approval-request","approvalId":"`+id+`","toolCallId":"c"}`)),
		part(6, raw(`{"type":"data-permission","id":"`+id+`","data":`+data+`}`)),
	}
}

// A question is told to the session after the part that shows it is stored, masked, and
// once more when recording begins anew; one that is taken back is told too.
func TestQuestionIsTold(t *testing.T) {
	t.Parallel()
	w := &world{}
	data := `{"toolCallId":"c","title":"Use ` + secret + `","kind":"execute","input":{"command":"echo ` + secret + `"},"options":[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"z","name":"Odd","kind":"odd"}]}`
	records := asking("qst_1-1", data)
	for range 2 {
		if err := record(t, w, &driver{records: records, err: errors.New("cut")}); err == nil {
			t.Fatal("a log without an end was taken for whole")
		}
	}
	q, n := find[session.QuestionAsked](w.events)
	if n != 2 || q.Question.Turn != "trn_1" || q.Question.Number != 1 || q.Question.Tool != "execute" || len(q.Question.Options) != 1 || len(w.stored) != 6 {
		t.Fatalf("%d times %+v, %d stored", n, q.Question, len(w.stored))
	}
	if s := fmt.Sprint(q.Question, w.events, w.stored); strings.Contains(s, secret) {
		t.Errorf("a secret is in it: %s", s)
	}
	records = append(records, part(7, raw(`{"type":"data-permission","id":"qst_1-1","data":{"toolCallId":"c","options":[],"outcome":{"canceled":true}}}`)))
	if err := record(t, w, &driver{records: records, err: errors.New("cut")}); err == nil {
		t.Fatal("a log without an end was taken for whole")
	}
	if back, n := find[session.QuestionWithdrawn](w.events); n != 1 || back.ID != "qst_1-1" {
		t.Errorf("%d times taken back: %+v", n, back)
	}
}

// A driver that names questions of others, or none that can be read, is not believed any more.
func TestQuestionOfADriverThatLies(t *testing.T) {
	t.Parallel()
	many := `{"options":[` + strings.TrimSuffix(strings.Repeat(`{"optionId":"y","name":"","kind":"allow_once"},`, 40), ",") + `]}`
	for id, data := range map[string]string{"qst_2-1": `{"options":[]}`, "qst_1-0": `{"options":[]}`, "qst_1-01": `{"options":[]}`, "q": `{"options":[]}`, "qst_1-1": `{"options":7}`, "qst_1-2": many} {
		w := &world{}
		_ = record(t, w, &driver{records: asking(id, data), err: errors.New("cut")}) // that it is cut is not the matter here
		if _, n := find[session.QuestionAsked](w.events); n != 0 {
			t.Errorf("%s %.40s: it was asked", id, data)
		}
		if f, n := find[session.FailAsked](w.events); n != 1 || f.Code != "DRIVER_INVALID" {
			t.Errorf("%s %.40s: %d times %+v", id, data, n, f)
		}
	}
}

// A form is told to the session with its schema in the form's own words, masked; its
// answer is nothing new to the session, and one that is taken back is told.
func TestFormIsTold(t *testing.T) {
	t.Parallel()
	w := &world{}
	form := func(n int64, outcome string) driverapi.Record {
		return part(n, raw(`{"type":"data-question","id":"qst_1-1","data":{"kind":"form","message":"Use `+secret+`?\nThink.","schema":{"properties":{"b":{"type":"string","default":"`+secret+`"},"a":{"type":"boolean","odd":1}}}`+outcome+`}}`))
	}
	records := []driverapi.Record{part(1, raw(`{"type":"start","messageId":"trn_1"}`)), part(2, raw(`{"type":"start-step"}`)), {N: 2, Sent: true}, form(3, "")}
	for range 2 {
		if err := record(t, w, &driver{records: records, err: errors.New("cut")}); err == nil {
			t.Fatal("a log without an end was taken for whole")
		}
	}
	q, n := find[session.QuestionAsked](w.events)
	want := `{"message":"Use [masked]?\nThink.","schema":{"type":"object","properties":{"b":{"type":"string","default":"[masked]"},"a":{"type":"boolean"}}}}`
	if n != 2 || q.Question.Kind != session.QuestionForm || q.Question.Title != "Use [masked]?" || q.Question.Detail != want || len(w.stored) != 3 {
		t.Fatalf("%d times %+v, %d stored", n, q.Question, len(w.stored))
	}
	if s := fmt.Sprint(w.events, w.stored); strings.Contains(s, secret) {
		t.Errorf("a secret is in it: %s", s)
	}
	for outcome, back := range map[string]int{
		`,"outcome":{"accepted":true,"answered":true,"fields":["a"]}`: 0, `,"outcome":{"canceled":true,"answered":true}`: 0, `,"outcome":{"canceled":true}`: 1,
	} {
		w := &world{}
		if err := record(t, w, &driver{records: append(records[:4:4], form(4, outcome)), err: errors.New("cut")}); err == nil {
			t.Fatal("a log without an end was taken for whole")
		}
		if _, n := find[session.QuestionWithdrawn](w.events); n != back {
			t.Errorf("%s: %d times taken back", outcome, n)
		}
	}
}

// A form that is none is not believed.
func TestFormOfADriverThatLies(t *testing.T) {
	t.Parallel()
	for _, data := range []string{`7`, `{"schema":7}`, `{"schema":{"properties":{"a":{"type":"object"}}}}`, `{"message":"x"}`} {
		w := &world{}
		_ = record(t, w, &driver{records: []driverapi.Record{
			part(1, raw(`{"type":"start","messageId":"trn_1"}`)), part(2, raw(`{"type":"start-step"}`)), {N: 2, Sent: true},
			part(3, raw(`{"type":"data-question","id":"qst_1-1","data":`+data+`}`)),
		}, err: errors.New("cut")}) // that it is cut is not the matter here
		if _, n := find[session.QuestionAsked](w.events); n != 0 {
			t.Errorf("%s: it was asked", data)
		}
		if f, n := find[session.FailAsked](w.events); n != 1 || f.Code != "DRIVER_INVALID" {
			t.Errorf("%s: %d times %+v", data, n, f)
		}
	}
}

// A text is cut between two characters, and no secret is cut in two.
func TestQuestionTextIsCut(t *testing.T) {
	t.Parallel()
	w := &world{}
	title := strings.Repeat("é", 505) + "x" + secret // the cut at 1024 bytes would be in the secret
	data := `{"toolCallId":"c","title":"` + title + `","kind":"execute","options":[{"optionId":"y","name":"` + "x" + strings.Repeat("é", 600) + `","kind":"allow_once"}]}`
	_ = record(t, w, &driver{records: asking("qst_1-1", data), err: errors.New("cut")}) // that it is cut is not the matter here
	q, n := find[session.QuestionAsked](w.events)
	if n != 1 {
		t.Fatalf("asked %d times", n)
	}
	if got, want := q.Question.Title, strings.Repeat("é", 505)+"x[masked]"; got != want {
		t.Errorf("title ends as %q", got[len(got)-30:])
	}
	if got, want := q.Question.Options[0].Name, "x"+strings.Repeat("é", 511); got != want {
		t.Errorf("name has %d bytes and ends as %q", len(got), got[len(got)-6:])
	}
}
