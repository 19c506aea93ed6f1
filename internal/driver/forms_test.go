package driver_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/uistream"
)

type formPart struct {
	ID   string `json:"id"`
	Data struct {
		Kind    string          `json:"kind"`
		Message string          `json:"message"`
		Schema  json.RawMessage `json:"schema"`
		Outcome *formOutcome    `json:"outcome"`
	} `json:"data"`
}

type formOutcome struct {
	Accepted, Declined, Canceled, Answered bool
	Fields                                 []string
}

func formOf(t *testing.T, r driverapi.Record) *formPart {
	t.Helper()
	if r.Part == nil {
		return nil
	}
	p, err := uistream.Parse(r.Part)
	if err != nil {
		t.Fatal(err)
	}
	if p.Type != uistream.DataType(uistream.DataQuestion) {
		return nil
	}
	var out formPart
	if err := json.Unmarshal(r.Part, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// notices are the remarks in a turn's log.
func notices(t *testing.T, o outcome) string {
	t.Helper()
	var out []string
	for _, r := range o.records {
		var p struct {
			Type string
			Data struct{ Text string }
		}
		if r.Part != nil && json.Unmarshal(r.Part, &p) == nil && p.Type == "data-notice" {
			out = append(out, p.Data.Text)
		}
	}
	return strings.Join(out, "\n")
}

func checkParts(t *testing.T, o outcome) {
	t.Helper()
	check := uistream.NewChecker("trn_1")
	for _, r := range o.records {
		if r.Part != nil {
			if _, err := check.Check(r.Part); err != nil {
				t.Errorf("part %d: %v", r.N, err)
			}
		}
	}
}

const schemaText = `{"type":"object","properties":{"db":{"type":"string","enum":["pg","my"]},"port":{"type":"integer","minimum":1},"tls":{"type":"boolean"}},"required":["db"]}`

// A form waits for its answer; the agent gets exactly the values, and the conversation
// holds their names only.
func TestFormIsAnswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer driverapi.AnswerRequest
		says   string
		want   formOutcome
		note   string
	}{
		"accepted": {
			driverapi.AnswerRequest{Allow: true, Content: json.RawMessage(`{"tls":false,"db":"pg","port":5432.0}`)},
			`The form: accept {"db":"pg","port":5432,"tls":false}`, formOutcome{Accepted: true, Answered: true, Fields: []string{"db", "port", "tls"}}, "",
		},
		"declined": {driverapi.AnswerRequest{}, "The form: decline", formOutcome{Declined: true, Answered: true}, ""},
		"canceled": {driverapi.AnswerRequest{Cancel: true}, "The form: cancel", formOutcome{Canceled: true, Answered: true}, ""},
		"accepted without what is required": {
			driverapi.AnswerRequest{Allow: true, Content: json.RawMessage(`{"port":1}`)},
			"The form: decline", formOutcome{Declined: true, Answered: true}, "content.db: is missing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			req := asking("@@fields "+schemaText+"@@ @@say after@@", `"ask"`)
			req.Limits = driverapi.Limits{Silence: 400 * time.Millisecond, FirstEvent: 5 * time.Second, Total: 20 * time.Second}
			b.begin("trn_1", req)
			var got []*formPart
			o := b.follow("trn_1", func(r driverapi.Record) {
				p := formOf(t, r)
				if p == nil {
					return
				}
				if got = append(got, p); len(got) > 1 {
					return
				}
				time.Sleep(600 * time.Millisecond) // longer than the limit of silence
				a := c.answer
				a.Question = p.ID
				if err := b.client.Answer(t.Context(), "trn_1", a); err != nil {
					t.Errorf("answer: %v", err)
				}
			})
			if len(got) != 2 || got[0].ID != driverapi.QuestionID("trn_1", 1) || got[0].Data.Kind != "form" || got[0].Data.Message == "" || string(got[0].Data.Schema) != schemaText {
				t.Fatalf("shown as %+v", got)
			}
			if d := cmp.Diff(&c.want, got[1].Data.Outcome); d != "" {
				t.Error(d)
			}
			if text := o.text(); !strings.Contains(text, c.says) || !strings.Contains(text, "after") || o.end.Outcome != "end_turn" {
				t.Errorf("text %q, end %+v", text, o.end)
			}
			if n := notices(t, o); !strings.Contains(n, c.note) || c.note == "" && n != "" {
				t.Errorf("notices %q", n)
			}
			checkParts(t, o)
		})
	}
}

// What is not shown to a person is declined at once, which the conversation says; the turn goes on.
func TestFormIsDeclined(t *testing.T) {
	t.Parallel()
	many := `{"properties":{` + strings.Repeat(`"x":{"type":"string"},`, 2) + `"y":{"type":"string"}}}`
	for name, c := range map[string]struct{ prompt, approvals, note string }{
		"auto":         {"@@form Which?@@", `"auto"`, "approvals ask nobody"},
		"none":         {"@@form Which?@@", ``, "approvals ask nobody"},
		"read-only":    {"@@form Which?@@", `"read-only"`, "approvals ask nobody"},
		"nothing asks": {"@@form Which?@@", `{"rules":[{"kind":"read","do":"deny"}],"default":"allow"}`, "approvals ask nobody"},
		"url":          {"@@form-url https://example.org/@@", `"ask"`, "a page to be opened"},
		"nested":       {`@@fields {"properties":{"a":{"type":"object"}}}@@`, `"ask"`, "cannot be shown"},
		"twice":        {"@@fields " + many + "@@", `"ask"`, "twice"},
		"forbidden":    {`@@fields {"properties":{"__proto__":{"type":"string"}}}@@`, `"ask"`, "cannot be shown unchanged"},
		"no schema":    {`@@fields 7@@`, `"ask"`, "no JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			o := b.run("trn_1", asking(c.prompt+" @@say after@@", c.approvals))
			for _, r := range o.records {
				if p := formOf(t, r); p != nil {
					t.Errorf("a person was asked: %+v", p)
				}
			}
			if text := o.text(); !strings.Contains(text, "The form: decline") || !strings.Contains(text, "after") || o.end.Outcome != "end_turn" {
				t.Errorf("text %q, end %+v", text, o.end)
			}
			if n := notices(t, o); !strings.Contains(n, c.note) {
				t.Errorf("notices %q", n)
			}
			checkParts(t, o)
		})
	}
}

// The agent is told that it may ask by forms when somebody fills them in, and only then.
func TestFormsAreOffered(t *testing.T) {
	t.Parallel()
	for _, forms := range []bool{false, true} {
		b := newBox(t)
		b.start()
		b.mustSetup(nil)
		req := b.agentRequest()
		req.Forms = forms
		if _, err := b.client.Agent(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		o := b.run("trn_1", turnRequest("@@offered@@"))
		if got := strings.Contains(o.text(), `"elicitation":{"form":{}}`); got != forms {
			t.Errorf("forms %v: %s", forms, o.text())
		}
	}
}

// Questions of agents that misbehave: each is settled once, and the turn ends well.
func TestOddQuestions(t *testing.T) {
	t.Parallel()
	allow := func(b *box, id string) {
		if err := b.client.Answer(b.t.Context(), "trn_1", driverapi.AnswerRequest{Question: id, Allow: true}); err != nil {
			b.t.Errorf("answer %s: %v", id, err)
		}
	}
	for name, c := range map[string]struct {
		prompt  string
		asked   int
		says    string
		code    string
		outcome func(p *permissionPart) bool
	}{
		"twice with one id": {"@@ask-twice Go@@", 1, "Second answer: selected yes.", "", func(p *permissionPart) bool { return p.Data.Outcome.Allowed }},
		"taken back":        {"@@ask-withdraw 300 Go@@", 1, "Taken back: cancelled.", "", func(p *permissionPart) bool { return p.Data.Outcome.Canceled }},
		"gone while asking": {"@@ask-exit 300 Go@@", 1, "", "AGENT_EXITED", func(p *permissionPart) bool { return p.Data.Outcome.Canceled }},
		"asked too late":    {"@@late-ask Go@@", 0, "", "", nil},
		"not offered":       {"@@unknown-request@@", 0, "terminal/create: error -32601.", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			b.begin("trn_1", asking(c.prompt+" @@say after@@", `"ask"`))
			asked, settled, said := 0, 0, ""
			o := b.follow("trn_1", func(r driverapi.Record) {
				before := said
				said += outcome{records: []driverapi.Record{r}}.text()
				if refused := "First answer: error -32600."; strings.Contains(said, refused) && !strings.Contains(before, refused) {
					allow(b, driverapi.QuestionID("trn_1", 1))
				}
				switch p := permissionOf(t, r); {
				case p == nil:
				case p.Data.Outcome != nil:
					if settled++; !c.outcome(p) {
						t.Errorf("outcome %+v", p.Data.Outcome)
					}
				default:
					asked++
				}
			})
			if asked != c.asked || settled != c.asked {
				t.Errorf("%d asked, %d settled", asked, settled)
			}
			if o.end.Code != c.code || c.code == "" && (o.end.Outcome != "end_turn" || !strings.Contains(o.text(), "after") || !strings.Contains(o.text(), c.says)) {
				t.Errorf("text %q, end %+v", o.text(), o.end)
			}
			checkParts(t, o)
			if c.code == "" { // the agent takes another prompt
				next := turnRequest("@@say again@@", driverapi.Attempt{Rung: "live", AgentSession: o.rung().AgentSession})
				next.Number = 2
				if o := b.run("trn_2", next); o.end.Outcome != "end_turn" || slices.Contains(o.types(), "data-permission") || slices.Contains(o.types(), "data-question") {
					t.Errorf("the next turn: %+v %v", o.end, o.types())
				}
			}
		})
	}
}

// Twenty questions at once are answered in any order, each with its own answer.
func TestManyQuestions(t *testing.T) {
	t.Parallel()
	const n = 20
	b := scratch(t)
	b.begin("trn_1", asking(fmt.Sprintf("@@ask-many %d Go@@", n), `"ask"`))
	var ids []string
	settled := map[string]bool{}
	o := b.follow("trn_1", func(r driverapi.Record) {
		p := permissionOf(t, r)
		if p == nil {
			return
		}
		if p.Data.Outcome != nil {
			settled[p.ID] = p.Data.Outcome.Allowed
			return
		}
		if ids = append(ids, p.ID); len(ids) < n {
			return
		}
		for i := n - 1; i >= 0; i-- {
			if err := b.client.Answer(t.Context(), "trn_1", driverapi.AnswerRequest{Question: ids[i], Allow: i%3 == 0}); err != nil {
				t.Errorf("answer %s: %v", ids[i], err)
			}
		}
	})
	var want []string
	for i := range n {
		verdict := "no"
		if i%3 == 0 {
			verdict = "yes"
		}
		want = append(want, fmt.Sprintf("%d selected %s", i+1, verdict))
	}
	if !strings.Contains(o.text(), "Answers: "+strings.Join(want, "; ")+".") || len(settled) != n || o.end.Outcome != "end_turn" {
		t.Errorf("text %q, %d settled, end %+v", o.text(), len(settled), o.end)
	}
	checkParts(t, o)
}
