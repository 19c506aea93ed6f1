package operation

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hearthd/hearth/internal/audit"
	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/ticket"
	"github.com/hearthd/hearth/internal/transcript"
)

// Root is the path under which sessions live.
const Root = "/v1/agent-sessions"

// Deps is what the operations act on.
type Deps struct {
	Sessions *session.Service
	// Capabilities says what is set up and what is missing, before anything is tried.
	Capabilities func(ctx context.Context) (Capabilities, error)
	// Isolation is how strong the wall around every sandbox of this server is.
	Isolation string
	// Bundle writes the session's packed work as a git bundle. Code: NOTHING_TO_DELIVER.
	Bundle func(ctx context.Context, session string, w io.Writer) error
	// Blobs has what no part of a transcript can carry; nil: there is nothing.
	Blobs *blob.Store
	// Step is what the start of the session's sandbox does now: [StepSandbox],
	// [StepClone] or [StepSetup]. Nil or an empty answer: it is not known.
	Step func(session.ID) string
	Now  func() time.Time
	// Tickets makes attach tickets, which are noted in Audit. Nil: there are none.
	Tickets *ticket.Desk
	Audit   *audit.Log
}

// Steps of a start that [Deps] tells, in order.
const (
	StepSandbox = "sandbox" // the sandbox itself
	StepClone   = "clone"   // the repository is fetched and checked out
	StepSetup   = "setup"   // the repository's setup commands run
)

// Capabilities is what this server can do.
type Capabilities struct {
	Version string              `json:"version"`
	Sandbox SandboxCapabilities `json:"sandbox"`
	Agents  []AgentCapabilities `json:"agents"`
	Missing []Missing           `json:"missing" doc:"what stands in the way of a first turn; empty: nothing"`
	Limits  LimitsView          `json:"limits" doc:"defaults of a turn"`
}

// SandboxCapabilities is what the server's sandboxes can do.
type SandboxCapabilities struct {
	Provider   string `json:"provider"`
	Isolation  string `json:"isolation"`
	Build      string `json:"build,omitempty"`
	Pause      bool   `json:"pause"`
	Memory     bool   `json:"memorySnapshot"`
	Files      bool   `json:"filesSnapshot"`
	Privileged bool   `json:"privileged"`
	Live       int    `json:"live" doc:"sandboxes alive now"`
	Max        int    `json:"max" doc:"how many may be alive; 0: bounded by memory"`
}

// AgentCapabilities is one agent.
type AgentCapabilities struct {
	Name      string   `json:"name"`
	Title     string   `json:"title,omitempty"`
	Version   string   `json:"version,omitempty"`
	Installed bool     `json:"installed"`
	Providers []string `json:"providers" doc:"model providers that it can use"`
	Ready     []string `json:"ready" doc:"those that have a key on this server"`
	Default   bool     `json:"default,omitempty"`
}

// Missing is one thing that is not set up.
type Missing struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Remedy  string `json:"remedy"`
}

// CreateInput makes a session.
type CreateInput struct {
	Prompt                 string `json:"prompt,omitempty" doc:"the task; empty: nothing starts yet"`
	Repo                   string `json:"repo,omitempty" maxLength:"2048" doc:"URL of the git repository; empty: a scratch session"`
	Base                   string `json:"base,omitempty" maxLength:"255" doc:"branch to start from; empty: the repository's default"`
	Branch                 string `json:"branch,omitempty" maxLength:"255" doc:"branch for the work; an existing one is continued; empty: a fresh one"`
	Agent                  string `json:"agent,omitempty" maxLength:"64" doc:"profile name; empty: claude"`
	Model                  string `json:"model,omitempty" maxLength:"200" doc:"empty: the agent's default"`
	Title                  string `json:"title,omitempty" doc:"empty: the first line of the prompt"`
	TotalLimitSeconds      int64  `json:"totalLimitSeconds,omitempty" minimum:"0" maximum:"86400" doc:"longest turn; 0: 30 minutes"`
	SilenceLimitSeconds    int64  `json:"silenceLimitSeconds,omitempty" minimum:"0" maximum:"86400" doc:"longest silence of the agent; 0: 10 minutes"`
	FirstEventLimitSeconds int64  `json:"firstEventLimitSeconds,omitempty" minimum:"0" maximum:"86400" doc:"longest wait for the agent's first event; 0: 2 minutes"`
	ToolLimitSeconds       int64  `json:"toolLimitSeconds,omitempty" minimum:"0" maximum:"86400" doc:"longest tool call; 0: 30 minutes"`
	Approvals              any    `json:"approvals,omitempty" doc:"what happens when the agent asks whether it may: auto (it may; the sandbox is the guard), ask (a person is asked), read-only (what changes something is denied), or an object with rules; auto unless said"`
}

// SessionInput names a session.
type SessionInput struct {
	ID string `json:"id" maxLength:"100" doc:"session id"`
}

// ListInput filters and pages sessions.
type ListInput struct {
	Phase []string `json:"phase,omitempty" doc:"only sessions in one of these phases"`
	Repo  string   `json:"repo,omitempty" maxLength:"2048" doc:"only sessions of this repository"`
	Below string   `json:"below,omitempty" maxLength:"100" doc:"sessions older than this id: the next of the page before"`
	Limit int      `json:"limit,omitempty" minimum:"1" maximum:"200" doc:"page size; 50 unless said"`
}

// SessionList is one page of sessions, newest first.
type SessionList struct {
	Items []SessionView `json:"items"`
	Next  string        `json:"next,omitempty" doc:"the below of the next page; empty: this was the last"`
}

// PromptInput is a further prompt.
type PromptInput struct {
	ID     string `json:"id" maxLength:"100"`
	Prompt string `json:"prompt"`
	Mode   string `json:"mode,omitempty" enum:"queue,interrupt,reject" doc:"what to do when a turn is at work; queue unless said"`
}

// TurnInput names a turn of a session.
type TurnInput struct {
	ID   string `json:"id" maxLength:"100"`
	Turn string `json:"turn" maxLength:"100" doc:"turn id"`
}

// CancelInput stops a turn.
type CancelInput struct {
	ID   string `json:"id" maxLength:"100"`
	Turn string `json:"turn,omitempty" maxLength:"100" doc:"turn id; empty: the one at work"`
}

// TurnsInput pages turns.
type TurnsInput struct {
	ID    string `json:"id" maxLength:"100"`
	After int64  `json:"after,omitempty" minimum:"0" doc:"turns with a number above this one"`
	Limit int    `json:"limit,omitempty" minimum:"1" maximum:"200" doc:"page size; 50 unless said"`
}

// TurnList is one page of turns by number; those in the queue are part of the session.
type TurnList struct {
	Items []TurnView `json:"items"`
	Next  int64      `json:"next,omitempty" doc:"the after of the next page; 0: this was the last"`
}

// TranscriptInput pages parts.
type TranscriptInput struct {
	ID    string `json:"id" maxLength:"100"`
	After string `json:"after,omitempty" maxLength:"60" doc:"cursor turn.part; empty: from the beginning"`
	Limit int    `json:"limit,omitempty" minimum:"1" maximum:"1000" doc:"page size; 1000 unless said; 4 MiB end a page early"`
}

// PartView is one part of the transcript.
type PartView struct {
	Cursor string `json:"cursor" doc:"turn.part"`
	Part   any    `json:"part" doc:"a chunk of the UI-message stream, as it was stored"`
}

// PartList is one page of the transcript.
type PartList struct {
	Items []PartView `json:"items"`
	Next  string     `json:"next,omitempty" doc:"the after of the next page; empty: nothing follows now"`
}

// DiffInput asks for a difference.
type DiffInput struct {
	ID     string `json:"id" maxLength:"100"`
	Turn   string `json:"turn,omitempty" maxLength:"100" doc:"turn id; empty: the whole session's work"`
	Format string `json:"format,omitempty" enum:"patch,stat,names"`
}

// DiffView is a difference.
type DiffView struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Format    string `json:"format"`
	Text      string `json:"text"`
	Truncated bool   `json:"truncated"`
}

// DeleteInput deletes a session.
type DeleteInput struct {
	ID    string `json:"id" maxLength:"100"`
	Force bool   `json:"force,omitempty" doc:"also with a turn at work or undelivered work"`
}

// QueueView is what waits in a session.
type QueueView struct {
	Held  bool       `json:"held"`
	Items []TurnView `json:"items"`
}

// NoInput is the input of operations that take none.
type NoInput struct{}

// DefaultPage is the page size of lists when none is asked for.
const DefaultPage = 50

var phases = []string{
	string(session.PhaseDeleting), string(session.PhaseArchived), string(session.PhaseStopping), string(session.PhaseWaiting), string(session.PhaseRunning),
	string(session.PhaseStarting), string(session.PhaseDelivering), string(session.PhaseQueued), string(session.PhaseFailed), string(session.PhaseAsleep), string(session.PhaseIdle),
}

// Register adds every operation to the list.
func Register(r *Registry, d Deps) {
	o := operations{d}
	one := Root + "/{id}"
	Add(r, Meta{Name: "create", Method: http.MethodPost, Path: Root, Right: RightCreate, Mutation: true, Keyed: true, Status: http.StatusCreated,
		Doc: "Make a session, with its first prompt if there is one."}, o.create)
	Add(r, Meta{Name: "list", Method: http.MethodGet, Path: Root, Right: RightRead, Status: http.StatusOK,
		Doc: "List sessions, newest first."}, o.list)
	Add(r, Meta{Name: "get", Method: http.MethodGet, Path: one, Right: RightRead, Status: http.StatusOK,
		Doc: "Read a session with its open turn, queue and last turn."}, o.get)
	Add(r, Meta{Name: "delete", Method: http.MethodDelete, Path: one, Right: RightDelete, Mutation: true, Status: http.StatusAccepted,
		Doc: "Delete a session; branch and remote stay as they are."}, o.delete)
	Add(r, Meta{Name: "prompt", Method: http.MethodPost, Path: one + "/turns", Right: RightWrite, Mutation: true, Keyed: true, Status: http.StatusAccepted,
		Doc: "Send a prompt."}, o.prompt)
	Add(r, Meta{Name: "listTurns", Method: http.MethodGet, Path: one + "/turns", Right: RightRead, Status: http.StatusOK,
		Doc: "List the turns that have left the queue, by number."}, o.turns)
	Add(r, Meta{Name: "getTurn", Method: http.MethodGet, Path: one + "/turns/{turn}", Right: RightRead, Status: http.StatusOK,
		Doc: "Read one turn, queued or not."}, o.turn)
	Add(r, Meta{Name: "cancel", Method: http.MethodPost, Path: one + "/cancel", Right: RightWrite, Mutation: true, Status: http.StatusAccepted,
		Doc: "Stop a turn, or take it out of the queue. Twice is fine."}, o.cancel)
	Add(r, Meta{Name: "deliver", Method: http.MethodPost, Path: one + "/deliver", Right: RightWrite, Mutation: true, Status: http.StatusAccepted,
		Doc: "Push packed work that the remote does not have."}, o.deliver)
	Add(r, Meta{Name: "discard", Method: http.MethodPost, Path: one + "/discard", Right: RightWrite, Mutation: true, Status: http.StatusAccepted,
		Doc: "Set the work back to the last delivered commit."}, o.discard)
	Add(r, Meta{Name: "listQueue", Method: http.MethodGet, Path: one + "/queue", Right: RightRead, Status: http.StatusOK,
		Doc: "List the turns that wait."}, o.queue)
	Add(r, Meta{Name: "releaseQueue", Method: http.MethodPost, Path: one + "/queue/release", Right: RightWrite, Mutation: true, Status: http.StatusOK,
		Doc: "Let a held queue go on."}, o.release)
	Add(r, Meta{Name: "holdQueue", Method: http.MethodPost, Path: one + "/queue/hold", Right: RightWrite, Mutation: true, Status: http.StatusOK,
		Doc: "Hold the queue: the turn at work goes on, the next one waits for a release or a new prompt."}, o.hold)
	Add(r, Meta{Name: "editQueued", Method: http.MethodPatch, Path: one + "/queue/{turn}", Right: RightWrite, Mutation: true, Status: http.StatusOK,
		Doc: "Change the text or the place of a prompt that waits. One that has left the queue is refused with TURN_NOT_QUEUED."}, o.editQueued)
	Add(r, Meta{Name: "removeQueued", Method: http.MethodDelete, Path: one + "/queue/{turn}", Right: RightWrite, Mutation: true, Status: http.StatusOK,
		Doc: "Take a prompt out of the queue. Its turn stays, as canceled and never started. Twice is fine."}, o.removeQueued)
	Add(r, Meta{Name: "transcript", Method: http.MethodGet, Path: one + "/transcript", Right: RightRead, Status: http.StatusOK,
		Doc: "Read the stored conversation, a page at a time."}, o.transcript)
	Add(r, Meta{Name: "messages", Method: http.MethodGet, Path: one + "/messages", Right: RightRead, Status: http.StatusOK,
		Doc: "Read the conversation as UIMessages of the AI SDK, for useChat({messages})."}, o.messages)
	Add(r, Meta{Name: "export", Method: http.MethodGet, Path: one + "/export", Right: RightRead, Status: http.StatusOK, Media: MediaJSONL, MoreMedia: []string{MediaMarkdown},
		Doc: "Fetch the whole conversation as a file. Wakes nothing."}, o.export)
	Add(r, Meta{Name: "listQuestions", Method: http.MethodGet, Path: one + "/questions", Right: RightRead, Status: http.StatusOK,
		Doc: "List what agents have asked in this session, newest first."}, o.questions)
	Add(r, Meta{Name: "getQuestion", Method: http.MethodGet, Path: one + "/questions/{question}", Right: RightRead, Status: http.StatusOK,
		Doc: "Read one question."}, o.question)
	Add(r, Meta{Name: "answerQuestion", Method: http.MethodPost, Path: one + "/questions/{question}/answer", Right: RightWrite, Mutation: true, Status: http.StatusOK,
		Doc: "Answer a question. The first answer counts; a later one is refused with QUESTION_SETTLED."}, o.answer)
	Add(r, Meta{Name: "diff", Method: http.MethodGet, Path: one + "/diff", Right: RightRead, Status: http.StatusOK,
		Doc: "Compare the packed work with where it began. Wakes nothing."}, o.diff)
	Add(r, Meta{Name: "blob", Method: http.MethodGet, Path: one + "/blobs/{blob}", Right: RightRead, Status: http.StatusOK, Media: "application/octet-stream",
		Doc: "Fetch what a data-blob part of the transcript tells of, byte for byte but for masked secrets. Wakes nothing."}, o.blob)
	Add(r, Meta{Name: "bundle", Method: http.MethodGet, Path: one + "/bundle", Right: RightRead, Status: http.StatusOK, Media: "application/x-git-bundle",
		Doc: "Fetch the packed work as a git bundle, delivered or not. It needs the commit that the session began from. Wakes nothing."}, o.bundle)
	Add(r, Meta{Name: "capabilities", Method: http.MethodGet, Path: "/v1/capabilities", Right: RightRead, Status: http.StatusOK,
		Doc: "What is set up on this server, and what is missing."}, o.capabilities)
	addTickets(r, o)
}

type operations struct{ d Deps }

func (o operations) view(a session.Aggregate, err error) (SessionView, error) {
	if err != nil {
		return SessionView{}, err
	}
	return o.viewOf(&a), nil
}

func (o operations) accepted(a session.Accepted, err error) (AcceptedView, error) {
	if err != nil {
		return AcceptedView{}, err
	}
	v := AcceptedView{Session: o.viewOf(&a.Aggregate), Position: a.Position}
	if a.Turn.ID != "" {
		t := viewOfTurn(&a.Turn, &a.Aggregate.Session)
		v.Turn = &t
	}
	return v, nil
}

func (o operations) create(ctx context.Context, c Call, in CreateInput) (AcceptedView, error) {
	approvals := ""
	if in.Approvals != nil {
		raw, err := json.Marshal(in.Approvals)
		if err != nil {
			return AcceptedView{}, Invalid(FieldProblem{Field: "approvals", Problem: "cannot be read"})
		}
		approvals = string(raw)
	}
	return o.accepted(o.d.Sessions.Create(ctx, c.Caller, session.CreateInput{
		Title: in.Title, Repo: in.Repo, Base: in.Base, Branch: in.Branch, Agent: in.Agent, Model: in.Model, Prompt: in.Prompt, Approvals: approvals,
		Limits: session.Limits{
			Total: time.Duration(in.TotalLimitSeconds) * time.Second, Silence: time.Duration(in.SilenceLimitSeconds) * time.Second,
			FirstEvent: time.Duration(in.FirstEventLimitSeconds) * time.Second, Tool: time.Duration(in.ToolLimitSeconds) * time.Second,
		},
	}, c.key(o.d.Now())))
}

func (o operations) list(ctx context.Context, c Call, in ListInput) (SessionList, error) {
	q := session.ListQuery{Repo: in.Repo, Below: session.ID(in.Below), Limit: pageSize(in.Limit) + 1}
	for _, p := range in.Phase {
		if !slices.Contains(phases, p) {
			return SessionList{}, Invalid(FieldProblem{Field: "phase", Problem: "is " + p + "; it can be " + strings.Join(phases, ", ")})
		}
		q.Phases = append(q.Phases, session.Phase(p))
	}
	// The hard maximum of the store leaves no room to look one further.
	q.Limit = min(q.Limit, session.MaxList)
	rows, err := o.d.Sessions.List(ctx, c.Caller, q)
	if err != nil {
		return SessionList{}, err
	}
	out := SessionList{Items: []SessionView{}}
	size := pageSize(in.Limit)
	for i := range rows {
		if i == size {
			break
		}
		out.Items = append(out.Items, viewOfSession(&rows[i], o.d.Isolation))
	}
	if n := len(out.Items); n > 0 && (len(rows) > size || len(rows) == session.MaxList) {
		out.Next = out.Items[n-1].ID
	}
	return out, nil
}

func pageSize(limit int) int {
	if limit <= 0 {
		return DefaultPage
	}
	return limit
}

func (o operations) get(ctx context.Context, c Call, in SessionInput) (SessionView, error) {
	return o.view(o.d.Sessions.Get(ctx, c.Caller, session.ID(in.ID)))
}

func (o operations) delete(ctx context.Context, c Call, in DeleteInput) (SessionView, error) {
	return o.view(o.d.Sessions.Delete(ctx, c.Caller, session.ID(in.ID), in.Force))
}

func (o operations) prompt(ctx context.Context, c Call, in PromptInput) (AcceptedView, error) {
	return o.accepted(o.d.Sessions.Prompt(ctx, c.Caller, session.ID(in.ID), session.PromptInput{Prompt: in.Prompt, Mode: session.Mode(in.Mode)}, c.key(o.d.Now())))
}

func (o operations) turns(ctx context.Context, c Call, in TurnsInput) (TurnList, error) {
	a, err := o.d.Sessions.Get(ctx, c.Caller, session.ID(in.ID))
	if err != nil {
		return TurnList{}, err
	}
	size := pageSize(in.Limit)
	rows, err := o.d.Sessions.Turns(ctx, c.Caller, session.ID(in.ID), in.After, size)
	if err != nil {
		return TurnList{}, err
	}
	out := TurnList{Items: []TurnView{}}
	for i := range rows {
		out.Items = append(out.Items, viewOfTurn(&rows[i], &a.Session))
	}
	if n := len(rows); n == size && rows[n-1].Number < a.Session.Turns {
		out.Next = rows[n-1].Number
	}
	return out, nil
}

func (o operations) turn(ctx context.Context, c Call, in TurnInput) (TurnView, error) {
	a, err := o.d.Sessions.Get(ctx, c.Caller, session.ID(in.ID))
	if err != nil {
		return TurnView{}, err
	}
	t, err := o.d.Sessions.Turn(ctx, c.Caller, session.ID(in.ID), session.TurnID(in.Turn))
	if err != nil {
		return TurnView{}, err
	}
	return viewOfTurn(&t, &a.Session), nil
}

func (o operations) cancel(ctx context.Context, c Call, in CancelInput) (SessionView, error) {
	return o.view(o.d.Sessions.Cancel(ctx, c.Caller, session.ID(in.ID), session.TurnID(in.Turn)))
}

func (o operations) deliver(ctx context.Context, c Call, in SessionInput) (SessionView, error) {
	return o.view(o.d.Sessions.Deliver(ctx, c.Caller, session.ID(in.ID)))
}

func (o operations) discard(ctx context.Context, c Call, in SessionInput) (SessionView, error) {
	return o.view(o.d.Sessions.Discard(ctx, c.Caller, session.ID(in.ID)))
}

func (o operations) queue(ctx context.Context, c Call, in SessionInput) (QueueView, error) {
	a, err := o.d.Sessions.Get(ctx, c.Caller, session.ID(in.ID))
	if err != nil {
		return QueueView{}, err
	}
	out := QueueView{Held: a.Session.QueueHeld, Items: []TurnView{}}
	for _, q := range a.Queue {
		out.Items = append(out.Items, viewOfTurn(q, &a.Session))
	}
	return out, nil
}

func (o operations) release(ctx context.Context, c Call, in SessionInput) (SessionView, error) {
	return o.view(o.d.Sessions.Release(ctx, c.Caller, session.ID(in.ID)))
}

func (o operations) transcript(ctx context.Context, c Call, in TranscriptInput) (PartList, error) {
	var after transcript.Cursor
	if in.After != "" {
		var err error
		if after, err = transcript.ParseCursor(in.After); err != nil {
			return PartList{}, Invalid(FieldProblem{Field: "after", Problem: "is not a cursor of the form turn.part"})
		}
	}
	parts, err := o.d.Sessions.Transcript(ctx, c.Caller, session.ID(in.ID), after, in.Limit)
	if err != nil {
		return PartList{}, err
	}
	out := PartList{Items: []PartView{}}
	for _, p := range parts {
		out.Items = append(out.Items, PartView{Cursor: p.Cursor.String(), Part: json.RawMessage(p.Body)})
	}
	// A page ends early at 4 MiB, so that only an empty one tells the end for sure.
	if n := len(parts); n > 0 {
		out.Next = parts[n-1].Cursor.String()
	}
	return out, nil
}

func (o operations) diff(ctx context.Context, c Call, in DiffInput) (DiffView, error) {
	d, err := o.d.Sessions.Diff(ctx, c.Caller, session.ID(in.ID), session.TurnID(in.Turn), in.Format)
	if err != nil {
		return DiffView{}, err
	}
	return DiffView(d), nil
}

func (o operations) bundle(ctx context.Context, c Call, in SessionInput) (Blob, error) {
	a, err := o.d.Sessions.Get(ctx, c.Caller, session.ID(in.ID))
	if err != nil {
		return Blob{}, err
	}
	s := &a.Session
	switch {
	case o.d.Bundle == nil:
		return Blob{}, fault.New(fault.Unsupported, "This server makes no bundles.")
	case s.PackOID == "" || s.PackOID == s.BaseOID:
		return Blob{}, fault.New(fault.NothingPacked, "")
	}
	return Blob{Name: BundleName(s.Branch), Write: func(ctx context.Context, w io.Writer) error {
		err := o.d.Bundle(ctx, string(s.ID), w)
		if fault.CodeOf(err) == fault.NothingToDeliver { // it was discarded meanwhile
			return fault.Wrap(err, fault.NothingPacked, "")
		}
		return err
	}}, nil
}

// BundleName is the name of the file for a branch's bundle.
func BundleName(branch string) string {
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == '\\' || !unicode.IsPrint(r) {
			return '-'
		}
		return r
	}, branch)
	if name = strings.TrimLeft(name, ".-"); name == "" {
		name = "work"
	}
	return name + ".bundle"
}

func (o operations) capabilities(ctx context.Context, _ Call, _ NoInput) (Capabilities, error) {
	if o.d.Capabilities == nil {
		return Capabilities{}, fault.New(fault.Unsupported, "This server does not tell what it can do.")
	}
	return o.d.Capabilities(ctx)
}
