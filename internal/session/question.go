package session

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// QuestionID names a question: "qst_", the tail of its turn's id, "-" and its number in the turn.
type QuestionID string

// QuestionIDOf names the n-th question of a turn, n from 1.
func QuestionIDOf(turn TurnID, n int64) QuestionID {
	return QuestionID(fmt.Sprintf("qst_%s-%d", strings.TrimPrefix(string(turn), "trn_"), n))
}

// QuestionNumber is the n of [QuestionIDOf]; 0 when the id is of no question of the turn.
func QuestionNumber(turn TurnID, id QuestionID) int64 {
	n, err := strconv.ParseInt(string(id[strings.LastIndexByte(string(id), '-')+1:]), 10, 64)
	if err != nil || n < 1 || QuestionIDOf(turn, n) != id {
		return 0
	}
	return n
}

// QuestionState is where a question is: pending, or settled for good.
type QuestionState string

// The states. One that is not pending never changes again.
const (
	QuestionPending  QuestionState = "pending"
	QuestionDone     QuestionState = "answered" // by a person
	QuestionExpired  QuestionState = "expired"  // nobody answered until its deadline: it counts as denied or declined
	QuestionCanceled QuestionState = "canceled" // its turn ended, or the agent took it back
)

// Kinds of questions.
const (
	QuestionPermission = "permission" // may the agent do this?
	QuestionForm       = "form"       // the agent wants to know something
)

// Verdicts of an answer: to a permission, and to a form.
const (
	VerdictAllow = "allow"
	VerdictDeny  = "deny"

	VerdictAccept  = "accept"  // with a content
	VerdictDecline = "decline" // the person does not want to say it
	VerdictCancel  = "cancel"  // the person wants none of it; agents often give up what they asked for
)

// Question is what an agent asks a person in the middle of a turn.
type Question struct {
	ID       QuestionID
	Session  ID
	Turn     TurnID
	Number   int64 // in its turn, from 1
	Kind     string
	State    QuestionState
	Title    string
	Tool     string // kind of the tool call, as ACP has it; empty for a form
	ToolCall string
	Options  []Option
	Detail   string // JSON: what the call is given and shows, or a FormDetail; empty: nothing
	AskedAt  time.Time
	Deadline time.Time // counts as denied from then on

	Verdict   string
	Option    string // id of the chosen one; empty: by the verdict
	Content   string // JSON object: what a form was filled in with; empty again once the agent was told
	Message   string // of the person who answered
	By        string
	SettledAt time.Time
}

// Option is one answer that the agent offers.
type Option struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Kind string `json:"kind"` // allow_once, allow_always, reject_once, reject_always
}

// Allows tells whether choosing the option allows what was asked.
func (o Option) Allows() bool { return strings.HasPrefix(o.Kind, "allow") }

// QuestionTime is how long a question waits for its answer.
const QuestionTime = 24 * time.Hour

// Limits of questions.
const (
	MaxQuestions     = 10_000 // of one turn
	MaxAnswerMessage = 4 << 10
)

// QuestionAsked says that the agent waits for a person.
type QuestionAsked struct{ Question Question }

// QuestionAnswered is a person's answer.
type QuestionAnswered struct {
	ID      QuestionID
	Verdict string // one of the kind's; may be empty where Option says it
	Option  string
	Content string // JSON object, of a form that is accepted
	Message string
	By      string
}

// QuestionOverdue says that the deadline has passed.
type QuestionOverdue struct{ ID QuestionID }

// QuestionWithdrawn says that the agent waits for the answer no more.
type QuestionWithdrawn struct{ ID QuestionID }

func (QuestionAsked) event() string     { return "question_asked" }
func (QuestionAnswered) event() string  { return "question_answered" }
func (QuestionOverdue) event() string   { return "question_overdue" }
func (QuestionWithdrawn) event() string { return "question_withdrawn" }

// asked makes the turn wait. A question that was told before is passed over.
func (m *move) asked(e QuestionAsked) error {
	q := e.Question
	t, err := m.open(q.Turn)
	if err != nil {
		return err
	}
	if q.Number <= t.Asked {
		return nil
	}
	if t.State != TurnRunning && t.State != TurnWaiting {
		return nil // it is being stopped: the driver answers by itself
	}
	if q.Number > MaxQuestions {
		return m.stop(t, StopFailure, "", fault.DriverInvalid, fmt.Sprintf("The agent asked more than %d questions in one turn.", MaxQuestions))
	}
	t.Asked = q.Number
	q.ID, q.Session, q.State, q.AskedAt, q.Deadline = QuestionIDOf(t.ID, q.Number), m.a.Session.ID, QuestionPending, m.now, m.now.Add(QuestionTime)
	m.a.Questions = append(m.a.Questions, &q)
	m.do(Effect{Kind: EffectExpireQuestion, Turn: t.ID, Question: q.ID, Generation: m.a.Session.Generation, NotBefore: q.Deadline})
	if t.State == TurnRunning {
		t.WaitingSince = m.now
		return m.to(t, TurnWaiting)
	}
	return nil
}

// pending finds a question that can still be settled. One that cannot is not in the
// aggregate: the service tells unknown from settled.
func (m *move) pending(id QuestionID) (*Question, error) {
	for _, q := range m.a.Questions {
		if q.ID == id && q.State == QuestionPending {
			return q, nil
		}
	}
	return nil, fault.New(fault.QuestionSettled, "")
}

func (m *move) answered(e QuestionAnswered) error {
	q, err := m.pending(e.ID)
	if err != nil {
		return err
	}
	if e.Option != "" {
		i := slices.IndexFunc(q.Options, func(o Option) bool { return o.ID == e.Option })
		if i < 0 {
			return fault.Field("option", "The question has no option %.80q. It has: %s.", e.Option, optionNames(q.Options))
		}
		verdict := VerdictDeny
		if q.Options[i].Allows() {
			verdict = VerdictAllow
		}
		if e.Verdict != "" && e.Verdict != verdict {
			return fault.Field("verdict", "The option %.80q means %s, the answer says %.20s.", e.Option, verdict, e.Verdict)
		}
		e.Verdict = verdict
	}
	if q.Kind == QuestionForm {
		if e.Content, err = filled(q, e); err != nil {
			return err
		}
	} else if e.Verdict != VerdictAllow && e.Verdict != VerdictDeny {
		return fault.Field("verdict", "The answer is %.20q; it can be allow or deny, or one of the options: %s.", e.Verdict, optionNames(q.Options))
	} else if e.Content != "" {
		return fault.Field("content", "Only a form that is accepted has a content.")
	}
	q.State, q.Verdict, q.Option, q.Content, q.Message, q.By, q.SettledAt = QuestionDone, e.Verdict, e.Option, e.Content, e.Message, e.By, m.now
	m.do(Effect{Kind: EffectAnswerQuestion, Turn: q.Turn, Question: q.ID, Generation: m.a.Session.Generation})
	return nil
}

func optionNames(options []Option) string {
	if len(options) == 0 {
		return "none"
	}
	names := make([]string, len(options))
	for i, o := range options {
		names[i] = o.ID
	}
	return strings.Join(names, ", ")
}

func (m *move) overdue(e QuestionOverdue) error {
	q, err := m.pending(e.ID)
	if err != nil {
		return err
	}
	if m.now.Before(q.Deadline) {
		return fault.New(fault.IllegalMove, "The question's deadline has not passed.")
	}
	q.State, q.Verdict, q.SettledAt = QuestionExpired, VerdictDeny, m.now
	if q.Kind == QuestionForm {
		q.Verdict = VerdictDecline
	}
	q.Message = "Nobody answered in time."
	m.do(Effect{Kind: EffectAnswerQuestion, Turn: q.Turn, Question: q.ID, Generation: m.a.Session.Generation})
	return nil
}

func (m *move) withdrawn(e QuestionWithdrawn) error {
	q, err := m.pending(e.ID)
	if err != nil {
		return nil //nolint:nilerr // it was settled first
	}
	q.State, q.SettledAt = QuestionCanceled, m.now
	return nil
}

// settle ends questions that nobody waits for any more, and the waiting of a turn whose
// questions are settled.
func (m *move) settle() error {
	t := m.a.Open
	waits := 0
	for _, q := range m.a.Questions {
		if q.State != QuestionPending {
			continue
		}
		if t != nil && t.ID == q.Turn && t.State == TurnWaiting && !m.a.Session.Deleting {
			waits++
			continue
		}
		q.State, q.SettledAt = QuestionCanceled, m.now
	}
	for _, x := range append(slices.Clone(m.a.Ended), t) {
		if x != nil && !x.WaitingSince.IsZero() && (x.State != TurnWaiting || waits == 0) {
			x.Waited += m.now.Sub(x.WaitingSince)
			x.WaitingSince = time.Time{}
		}
	}
	if t != nil && t.State == TurnWaiting && waits == 0 {
		return m.to(t, TurnRunning)
	}
	return nil
}
