package operation

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/session"
)

// QuestionView is what an agent asks a person.
type QuestionView struct {
	ID        string           `json:"id"`
	Session   string           `json:"session"`
	Turn      string           `json:"turn"`
	Kind      string           `json:"kind" doc:"permission: may the agent do this? form: what the agent wants to know"`
	State     string           `json:"state" doc:"pending, answered, expired or canceled"`
	Title     string           `json:"title,omitempty"`
	Tool      string           `json:"tool,omitempty" doc:"kind of the tool call: read, edit, delete, move, search, execute, think, fetch, switch_mode or other"`
	ToolCall  string           `json:"toolCallId,omitempty"`
	Options   []session.Option `json:"options" doc:"answers that the agent offers; kind is allow_once, allow_always, reject_once or reject_always"`
	Detail    any              `json:"detail,omitempty" doc:"of a permission: input and content of the tool call; of a form: its message and its schema, a flat JSON schema"`
	AskedAt   time.Time        `json:"askedAt"`
	Deadline  time.Time        `json:"deadline" doc:"unanswered by then it counts as denied, a form as declined"`
	Verdict   string           `json:"verdict,omitempty" doc:"allow or deny; of a form accept, decline or cancel"`
	Option    string           `json:"option,omitempty" doc:"id of the option that was chosen"`
	Message   string           `json:"message,omitempty"`
	By        string           `json:"by,omitempty" doc:"who answered"`
	SettledAt *time.Time       `json:"settledAt,omitempty"`
}

// QuestionsInput filters a session's questions.
type QuestionsInput struct {
	ID    string `json:"id" maxLength:"100"`
	State string `json:"state,omitempty" doc:"pending, answered, expired or canceled; all unless said"`
	Limit int    `json:"limit,omitempty" minimum:"1" maximum:"200" doc:"how many at most; 50 unless said"`
}

// QuestionList is a list of questions.
type QuestionList struct {
	Items []QuestionView `json:"items"`
}

// QuestionInput names a question.
type QuestionInput struct {
	ID       string `json:"id" maxLength:"100"`
	Question string `json:"question" maxLength:"100" doc:"question id"`
}

// AnswerInput is a person's answer.
type AnswerInput struct {
	ID       string `json:"id" maxLength:"100"`
	Question string `json:"question" maxLength:"100" doc:"question id"`
	Verdict  string `json:"verdict,omitempty" enum:"allow,deny,accept,decline,cancel" doc:"of a permission allow or deny, and it may be left out where option says it; of a form accept (with content), decline or cancel"`
	Option   string `json:"option,omitempty" maxLength:"1024" doc:"id of one of the question's options; left out: the one that fits the verdict and lasts the shortest"`
	Content  Object `json:"content,omitempty" doc:"an object with the values of a form that is accepted, by the names of its fields; not kept once the agent has it"`
	Message  string `json:"message,omitempty" maxLength:"4096" doc:"kept with the question"`
}

func viewOfQuestion(q *session.Question) QuestionView {
	v := QuestionView{
		ID: string(q.ID), Session: string(q.Session), Turn: string(q.Turn), Kind: q.Kind, State: string(q.State), Title: q.Title, Tool: q.Tool, ToolCall: q.ToolCall,
		Options: q.Options, AskedAt: q.AskedAt, Deadline: q.Deadline, Verdict: q.Verdict, Option: q.Option, Message: q.Message, By: q.By, SettledAt: when(q.SettledAt),
	}
	if v.Options == nil {
		v.Options = []session.Option{}
	}
	if json.Valid([]byte(q.Detail)) {
		v.Detail = json.RawMessage(q.Detail)
	}
	return v
}

var questionStates = []string{string(session.QuestionPending), string(session.QuestionDone), string(session.QuestionExpired), string(session.QuestionCanceled)}

func (o operations) questions(ctx context.Context, c Call, in QuestionsInput) (QuestionList, error) {
	if in.State != "" && !slices.Contains(questionStates, in.State) {
		return QuestionList{}, Invalid(FieldProblem{Field: "state", Problem: "is " + in.State + "; it can be " + strings.Join(questionStates, ", ")})
	}
	rows, err := o.d.Sessions.Questions(ctx, c.Caller, session.ID(in.ID), session.QuestionState(in.State), pageSize(in.Limit))
	if err != nil {
		return QuestionList{}, err
	}
	out := QuestionList{Items: []QuestionView{}}
	for i := range rows {
		out.Items = append(out.Items, viewOfQuestion(&rows[i]))
	}
	return out, nil
}

func (o operations) question(ctx context.Context, c Call, in QuestionInput) (QuestionView, error) {
	q, err := o.d.Sessions.Question(ctx, c.Caller, session.ID(in.ID), session.QuestionID(in.Question))
	if err != nil {
		return QuestionView{}, err
	}
	return viewOfQuestion(&q), nil
}

func (o operations) answer(ctx context.Context, c Call, in AnswerInput) (QuestionView, error) {
	if _, err := AwaitQuestion(ctx, o.d.Sessions, c.Caller, session.ID(in.ID), session.QuestionID(in.Question)); err != nil {
		return QuestionView{}, err
	}
	q, err := o.d.Sessions.Answer(ctx, c.Caller, session.ID(in.ID), session.QuestionID(in.Question),
		session.AnswerInput{Verdict: in.Verdict, Option: in.Option, Content: string(in.Content), Message: in.Message})
	if err != nil {
		return QuestionView{}, err
	}
	return viewOfQuestion(&q), nil
}
