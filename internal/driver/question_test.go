package driver_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

// asking is a turn whose agent asks and whose session wants to be asked.
func asking(prompt, approvals string) driverapi.TurnRequest {
	r := turnRequest(prompt)
	r.Approvals = json.RawMessage(approvals)
	return r
}

// permissions are the data-permission parts so far.
type permissionPart struct {
	ID   string `json:"id"`
	Data struct {
		Title   string `json:"title"`
		Options []struct {
			OptionID string `json:"optionId"`
			Kind     string `json:"kind"`
		} `json:"options"`
		Outcome *struct{ Allowed, Denied, Canceled bool } `json:"outcome"`
	} `json:"data"`
}

func permissionOf(t *testing.T, r driverapi.Record) *permissionPart {
	t.Helper()
	if r.Part == nil {
		return nil
	}
	p, err := uistream.Parse(r.Part)
	if err != nil {
		t.Fatal(err)
	}
	if p.Type != uistream.DataType(uistream.DataPermission) {
		return nil
	}
	var out permissionPart
	if err := json.Unmarshal(r.Part, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// A question waits for its answer, whatever the limits; the first answer counts, and the
// agent gets the option that was chosen.
func TestQuestionWaits(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	for name, c := range map[string]struct {
		answer func(p *permissionPart) driverapi.AnswerRequest
		says   string
		denied bool
	}{
		"allowed": {func(*permissionPart) driverapi.AnswerRequest { return driverapi.AnswerRequest{Allow: true} }, "Allowed", false},
		"denied":  {func(*permissionPart) driverapi.AnswerRequest { return driverapi.AnswerRequest{} }, "", true},
		"by its option": {func(p *permissionPart) driverapi.AnswerRequest {
			return driverapi.AnswerRequest{Allow: true, Option: p.Data.Options[0].OptionID}
		}, "Allowed", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			req := asking("@@say first@@ @@ask Deploy it@@ @@say after@@", `"ask"`)
			req.Limits = driverapi.Limits{Silence: 400 * ms, Tool: 400 * ms, FirstEvent: 5 * time.Second, Total: 20 * time.Second}
			b.begin("trn_1", req)
			var outcomes []string
			o := b.follow("trn_1", func(r driverapi.Record) {
				p := permissionOf(t, r)
				if p == nil {
					return
				}
				if p.ID != driverapi.QuestionID("trn_1", 1) || p.Data.Title == "" || len(p.Data.Options) == 0 {
					t.Errorf("question %+v", p)
				}
				if p.Data.Outcome != nil {
					outcomes = append(outcomes, "settled")
					return
				}
				outcomes = append(outcomes, "asked")
				time.Sleep(900 * ms) // longer than the limits of silence and of a tool
				if err := b.client.Answer(t.Context(), "trn_1", driverapi.AnswerRequest{Question: "qst_1-9", Allow: true}); fault.CodeOf(err) != fault.QuestionNotFound {
					t.Errorf("unknown question: %v", err)
				}
				if err := b.client.Answer(t.Context(), "trn_1", driverapi.AnswerRequest{Question: p.ID, Allow: true, Option: "sesame"}); fault.CodeOf(err) != fault.InvalidInput {
					t.Errorf("unknown option: %v", err)
				}
				a := c.answer(p)
				a.Question = p.ID
				if err := b.client.Answer(t.Context(), "trn_1", a); err != nil {
					t.Errorf("answer: %v", err)
				}
				if err := b.client.Answer(t.Context(), "trn_1", a); fault.CodeOf(err) != fault.QuestionSettled && fault.CodeOf(err) != fault.TurnNotFound {
					t.Errorf("answered again: %v", err)
				}
			})
			if strings.Join(outcomes, " ") != "asked settled" || o.end.Outcome != "end_turn" || !o.end.Clean {
				t.Errorf("question %q, end %+v", outcomes, o.end)
			}
			if text := o.text(); !strings.Contains(text, c.says) || c.denied && strings.Contains(text, "Allowed") || !strings.Contains(text, "after") {
				t.Errorf("text %q", text)
			}
			check := uistream.NewChecker("trn_1")
			for _, r := range o.records {
				if r.Part != nil {
					if _, err := check.Check(r.Part); err != nil {
						t.Errorf("part %d: %v", r.N, err)
					}
				}
			}
		})
	}
}

// A policy that decides by itself asks nobody.
func TestPolicyDecides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ approvals, says, not string }{
		"empty":     {``, "Allowed", ""},
		"auto":      {`"auto"`, "Allowed", ""},
		"read-only": {`"read-only"`, "", "Allowed"},
		"denied":    {`{"rules":[{"kind":"read","do":"allow"}],"default":"deny"}`, "", "Allowed"},
		"allowed":   {`{"rules":[{"kind":"think","do":"deny"}],"default":"allow"}`, "Allowed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			o := b.run("trn_1", asking("@@ask Deploy it@@ @@say after@@", c.approvals))
			for _, r := range o.records {
				if p := permissionOf(t, r); p != nil {
					t.Errorf("a person was asked: %+v", p)
				}
			}
			text := o.text()
			if !strings.Contains(text, c.says) || c.not != "" && strings.Contains(text, c.not) || !strings.Contains(text, "after") {
				t.Errorf("text %q, end %+v", text, o.end)
			}
		})
	}
}

// Whatever ends the turn while a question is open, the question is shown as taken back, once.
func TestQuestionEndsWithItsTurn(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(t *testing.T, b *box){
		"cancel": func(t *testing.T, b *box) {
			if err := b.client.Cancel(t.Context(), "trn_1", driverapi.CancelRequest{Grace: 5 * time.Second}); err != nil {
				t.Error(err)
			}
		},
		"failure": func(t *testing.T, b *box) {
			if err := b.client.Cancel(t.Context(), "trn_1", driverapi.CancelRequest{Code: "MODEL_KEY_REJECTED", Message: "The key is refused."}); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := scratch(t)
			b.begin("trn_1", asking("@@ask Deploy it@@ @@say after@@", `"ask"`))
			asked, back := 0, 0
			o := b.follow("trn_1", func(r driverapi.Record) {
				switch p := permissionOf(t, r); {
				case p == nil:
				case p.Data.Outcome == nil:
					asked++
					stop(t, b)
				case p.Data.Outcome.Canceled:
					back++
				default:
					t.Errorf("outcome %+v", p.Data.Outcome)
				}
			})
			if asked != 1 || back != 1 {
				t.Errorf("asked %d times, taken back %d times", asked, back)
			}
			if name == "cancel" && (o.end.Outcome != "canceled" || !o.end.Clean) || name == "failure" && o.end.Code != "MODEL_KEY_REJECTED" {
				t.Errorf("end %+v", o.end)
			}
			if o := b.follow("trn_1", nil); o.end.Outcome == "" {
				t.Error("the log has no end")
			}
		})
	}
}
