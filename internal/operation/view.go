package operation

import (
	"encoding/json"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// AuthorView is who gave a prompt.
type AuthorView struct {
	Name  string `json:"name"`
	Email string `json:"email,omitempty"`
}

// SandboxView is what is known of a session's sandbox.
type SandboxView struct {
	State      string `json:"state" doc:"none, starting, hot or lost"`
	Generation int64  `json:"generation" doc:"counts the sandboxes of this session"`
	Isolation  string `json:"isolation,omitempty" doc:"how strong the wall is: gvisor, or namespaces (shared kernel)"`
	// Start is left out in lists.
	Start *StartView `json:"start,omitempty" doc:"while it starts for the turn at work"`
}

// StartView is a start of a sandbox that goes on.
type StartView struct {
	Step      string `json:"step,omitempty" doc:"sandbox, clone (of the repository) or setup (its own commands); left out: not known"`
	ElapsedMs int64  `json:"elapsedMs" doc:"since the turn left the queue"`
}

// LimitsView are the limits of each turn, in seconds.
type LimitsView struct {
	TotalSeconds      int64 `json:"totalSeconds"`
	SilenceSeconds    int64 `json:"silenceSeconds"`
	FirstEventSeconds int64 `json:"firstEventSeconds"`
	ToolSeconds       int64 `json:"toolSeconds"`
}

// SessionView is a session as people see it. OpenTurn, Queue and LastTurn are
// left out in lists.
type SessionView struct {
	ID              string      `json:"id"`
	Title           string      `json:"title"`
	Phase           string      `json:"phase" doc:"deleting, archived, stopping, waiting, running, starting, delivering, queued, failed, asleep or idle"`
	Repo            string      `json:"repo,omitempty"`
	Base            string      `json:"base,omitempty" doc:"branch that work starts from"`
	BaseCommit      string      `json:"baseCommit,omitempty"`
	Branch          string      `json:"branch,omitempty" doc:"branch that work goes to"`
	Agent           string      `json:"agent"`
	Model           string      `json:"model,omitempty"`
	Author          AuthorView  `json:"author"`
	Limits          LimitsView  `json:"limits"`
	Sandbox         SandboxView `json:"sandbox"`
	Turns           int64       `json:"turns" doc:"how many turns have left the queue; the newest one's number"`
	QueueHeld       bool        `json:"queueHeld"`
	Undelivered     bool        `json:"undelivered" doc:"there is packed work that the remote does not have"`
	PackedCommit    string      `json:"packedCommit,omitempty"`
	DeliveredCommit string      `json:"deliveredCommit,omitempty" doc:"as read back from the remote"`
	CreatedAt       time.Time   `json:"createdAt"`
	UpdatedAt       time.Time   `json:"updatedAt"`
	OpenTurn        *TurnView   `json:"openTurn,omitempty" doc:"the turn at work"`
	Queue           []TurnView  `json:"queue,omitempty" doc:"turns that wait, in order"`
	LastTurn        *TurnView   `json:"lastTurn,omitempty" doc:"the newest ended turn that has work, else the newest ended one"`
	Approvals       any         `json:"approvals,omitempty" doc:"what happens when the agent asks whether it may: auto, ask, read-only, or an object with rules"`
	// Questions is left out in lists.
	Questions []QuestionView `json:"questions,omitempty" doc:"those that wait for an answer"`
}

// DeliveryView is what became of a turn's work.
type DeliveryView struct {
	State   string     `json:"state" doc:"pushed, no_changes, held, failed, or scratch when there is no repository"`
	Branch  string     `json:"branch,omitempty"`
	Commit  string     `json:"commit,omitempty" doc:"as read back from the remote"`
	Code    string     `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
	Remedy  string     `json:"remedy,omitempty"`
	At      *time.Time `json:"at,omitempty"`
}

// TimesView is how long each part of a turn took, in milliseconds. What has not
// happened is left out.
type TimesView struct {
	Accepted   *int64 `json:"acceptedMs,omitempty" doc:"waiting in the queue"`
	Sandbox    *int64 `json:"sandboxMs,omitempty" doc:"until sandbox, repository and agent process were there; 0 when they were already"`
	AgentReady *int64 `json:"agentReadyMs,omitempty" doc:"from there until the agent was given the prompt"`
	FirstPart  *int64 `json:"firstPartMs,omitempty" doc:"from the prompt to the agent's first part"`
	Turn       *int64 `json:"turnMs,omitempty" doc:"from the prompt to the agent's end"`
	Packed     *int64 `json:"packedMs,omitempty" doc:"from the agent's end until the server had the work"`
	Delivered  *int64 `json:"deliveredMs,omitempty" doc:"from there until the remote was read back"`
	Total      *int64 `json:"totalMs,omitempty" doc:"from accept to end"`
}

// TurnView is one turn.
type TurnView struct {
	ID         string        `json:"id" doc:"also the message id of its answer"`
	Number     int64         `json:"number" doc:"counts turns as they leave the queue; 0 while it waits there"`
	State      string        `json:"state" doc:"accepted, starting, running, waiting, stopping, delivering, completed, failed or canceled"`
	Prompt     string        `json:"prompt"`
	Author     AuthorView    `json:"author"`
	Agent      string        `json:"agent,omitempty"`
	Rung       string        `json:"rung,omitempty" doc:"how the agent got its memory: live, restored, native, reprimed, redelivered or fresh"`
	RungFailed []string      `json:"rungFailed,omitempty" doc:"rungs that were tried before, and why they failed"`
	Generation int64         `json:"generation,omitempty" doc:"of the sandbox it ran in"`
	StopReason string        `json:"stopReason,omitempty"`
	End        string        `json:"end,omitempty" doc:"how it ended: end_turn, refused, limit, failure, cancel, interrupt, start_failed, lost or never_started"`
	Code       string        `json:"code,omitempty"`
	Message    string        `json:"message,omitempty"`
	Remedy     string        `json:"remedy,omitempty"`
	Commits    int64         `json:"commits,omitempty"`
	Notes      []string      `json:"notes,omitempty" doc:"what was left out or altered when the work was packed"`
	Commit     string        `json:"commit,omitempty" doc:"of this turn's packed work"`
	DiffStat   string        `json:"diffStat,omitempty"`
	Delivery   *DeliveryView `json:"delivery,omitempty"`
	Complete   bool          `json:"complete" doc:"the transcript of this turn is whole"`
	Truncated  string        `json:"truncated,omitempty" doc:"why it is not"`
	Usage      any           `json:"usage,omitempty"`
	Times      TimesView     `json:"times"`
	AcceptedAt time.Time     `json:"acceptedAt"`
	StartedAt  *time.Time    `json:"startedAt,omitempty" doc:"handed to the driver"`
	SentAt     *time.Time    `json:"sentAt,omitempty" doc:"the prompt went to the agent"`
	EndedAt    *time.Time    `json:"endedAt,omitempty"`
	EditedAt   *time.Time    `json:"editedAt,omitempty" doc:"when its prompt was changed in the queue"`
	EditedBy   string        `json:"editedBy,omitempty" doc:"who changed it last"`
}

// AcceptedView answers create and prompt.
type AcceptedView struct {
	Session  SessionView `json:"session"`
	Turn     *TurnView   `json:"turn,omitempty"`
	Position int         `json:"position" doc:"0: the turn is at work; n: it is the n-th in the queue"`
}

func viewOfSession(s *session.Session, isolation string) SessionView {
	l := s.Limits.Or(session.DefaultLimits)
	v := SessionView{
		ID: string(s.ID), Title: s.Title, Phase: string(s.Phase), Repo: s.Repo, Base: s.Base, BaseCommit: s.BaseOID, Branch: s.Branch,
		Agent: s.Agent, Model: s.Model, Author: AuthorView(s.Author),
		Limits:  LimitsView{TotalSeconds: seconds(l.Total), SilenceSeconds: seconds(l.Silence), FirstEventSeconds: seconds(l.FirstEvent), ToolSeconds: seconds(l.Tool)},
		Sandbox: SandboxView{State: string(s.Sandbox), Generation: s.Generation, Isolation: isolation},
		Turns:   s.Turns, QueueHeld: s.QueueHeld, Undelivered: s.Undelivered(), PackedCommit: s.PackOID, DeliveredCommit: s.DeliveredOID,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
	if s.Approvals != "" && json.Valid([]byte(s.Approvals)) {
		v.Approvals = json.RawMessage(s.Approvals)
	}
	return v
}

func (o operations) viewOf(a *session.Aggregate) SessionView {
	v := viewOfSession(&a.Session, o.d.Isolation)
	if a.Open != nil {
		t := viewOfTurn(a.Open, &a.Session)
		v.OpenTurn = &t
		if a.Session.Sandbox == session.SandboxStarting && !a.Open.StartingAt.IsZero() {
			v.Sandbox.Start = &StartView{ElapsedMs: max(0, o.d.Now().Sub(a.Open.StartingAt).Milliseconds())}
			if o.d.Step != nil {
				switch step := o.d.Step(a.Session.ID); step { // a guest may have said it
				case StepSandbox, StepClone, StepSetup:
					v.Sandbox.Start.Step = step
				}
			}
		}
	}
	for _, q := range a.Queue {
		v.Queue = append(v.Queue, viewOfTurn(q, &a.Session))
	}
	if a.Last != nil {
		t := viewOfTurn(a.Last, &a.Session)
		v.LastTurn = &t
	}
	for _, q := range a.Questions {
		if q.State == session.QuestionPending {
			v.Questions = append(v.Questions, viewOfQuestion(q))
		}
	}
	return v
}

func viewOfTurn(t *session.Turn, s *session.Session) TurnView {
	v := TurnView{
		ID: string(t.ID), Number: t.Number, State: string(t.State), Prompt: t.Prompt, Author: AuthorView(t.Author), Agent: t.Agent,
		Rung: t.Rung, Generation: t.Generation, StopReason: t.StopReason, End: string(t.End), Code: string(t.Code), Message: t.Message,
		Commits: t.Commits, Notes: t.Notes, Commit: t.PackOID, DiffStat: t.DiffStat, Complete: t.Complete, Truncated: t.Truncated, Times: timesOf(t),
		AcceptedAt: t.AcceptedAt, StartedAt: when(t.StartedAt), SentAt: when(t.SentAt), EndedAt: when(t.EndedAt),
		EditedAt: when(t.EditedAt), EditedBy: t.EditedBy,
	}
	if t.RungFailed != "" && json.Unmarshal([]byte(t.RungFailed), &v.RungFailed) != nil {
		v.RungFailed = []string{t.RungFailed}
	}
	if json.Valid([]byte(t.Usage)) {
		v.Usage = json.RawMessage(t.Usage)
	}
	if t.Code != "" {
		v.Message, v.Remedy = explain(t.Code, t.Message)
	}
	if d := t.Delivery; d.State != session.DeliveryNone {
		dv := DeliveryView{State: string(d.State), Commit: d.OID, Code: string(d.Code), Message: d.Message, At: when(d.At)}
		if s.Repo != "" && d.State != session.DeliveryNoChanges {
			dv.Branch = s.Branch
		}
		if d.Code != "" {
			dv.Message, dv.Remedy = explain(d.Code, d.Message)
		}
		v.Delivery = &dv
	}
	return v
}

// explain gives a code's sentence, unless there is a better one, and its remedy.
func explain(c fault.Code, message string) (sentence, remedy string) {
	i := fault.Lookup(c)
	if message == "" {
		message = i.Sentence
	}
	return message, i.Remedy
}

func timesOf(t *session.Turn) TimesView {
	end := t.Delivery.At
	if end.IsZero() {
		end = t.EndedAt
	}
	v := TimesView{
		Accepted: took(t.AcceptedAt, t.StartingAt), Sandbox: took(t.StartingAt, t.SandboxAt), AgentReady: took(t.SandboxAt, t.SentAt),
		FirstPart: took(t.SentAt, t.FirstPartAt), Turn: took(t.SentAt, t.AgentDoneAt), Packed: took(t.AgentDoneAt, t.PackedAt),
		Total: took(t.AcceptedAt, t.EndedAt),
	}
	if t.Delivery.State == session.DeliveryPushed || t.Delivery.State == session.DeliveryFailed {
		v.Delivered = took(t.PackedAt, end)
	}
	return v
}

// took is the time between two moments that have both come, in milliseconds.
func took(from, to time.Time) *int64 {
	if from.IsZero() || to.IsZero() {
		return nil
	}
	ms := max(0, to.Sub(from).Milliseconds())
	return &ms
}

func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
