package session

import (
	"context"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/approval"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/transcript"
)

// Caller is who asks: an authenticated identity and the workspace it acts in.
type Caller struct {
	Subject   string // of the token; keys of idempotency are kept per subject
	Workspace string
	Author    Author
	// Credential names what the identity was proved with, so that it can be asked later
	// whether that still holds. It is no secret.
	Credential string
}

// Judge says at create what cannot work, before anything is stored.
type Judge interface {
	// Agent checks that the profile exists, is installed, and that the model's
	// provider has a key, and that the agent can honour the approvals. Codes: AGENT_UNKNOWN,
	// AGENT_NOT_INSTALLED, MODEL_KEY_MISSING, APPROVALS_UNSUPPORTED.
	Agent(ctx context.Context, agent, model, approvals string) error
	// Repository reads the remote and checks that the branch can be written.
	// Codes: INVALID_INPUT, REPOSITORY_UNREACHABLE, REPOSITORY_NOT_WRITABLE, BRANCH_INVALID, FORGE_UNAVAILABLE.
	Repository(ctx context.Context, ask RepositoryAsk) (Repository, error)
}

// RepositoryAsk is what a person said about the repository.
type RepositoryAsk struct {
	URL    string
	Base   string // empty: the default branch
	Branch string // empty: a fresh one is made up from Task
	Task   string
	Tail   string // makes a made-up name unique
}

// Repository is what the remote said.
type Repository struct {
	URL       string // normalised, without credential
	Base      string
	BaseOID   string // commit to start from: the named branch's head when that exists, else Base's; empty in an empty repository
	Format    string // sha1 or sha256
	Branch    string
	RemoteOID string // the branch's head at the remote; empty: it does not exist
}

// Work reads the packed work of a session.
type Work interface {
	// Diff writes the difference between two commits. Format is patch, stat or names.
	Diff(ctx context.Context, id ID, from, to, format string) (Diff, error)
}

// Diff is a rendered difference.
type Diff struct {
	From, To  string
	Format    string
	Text      string
	Truncated bool
}

// Viewers is told of parts that a transaction appended, so that those who watch see them.
type Viewers interface {
	Appended(id ID, parts []transcript.Part)
	// Changed says what about the session changed.
	Changed(workspace string, id ID, kinds ...Kind)
}

// Service is what can be done with sessions. It is the only caller of [Apply]
// and safe for concurrent use.
type Service struct {
	Store   Store
	Log     transcript.Log
	Judge   Judge
	Work    Work
	Viewers Viewers
	// Seal closes an ended turn's transcript, see [Change].
	Seal  func(t *Turn, stored []transcript.Part) ([]transcript.Part, error)
	NewID func(prefix string) string // a time-ordered id
	Now   func() time.Time
	Wake  func() // effects may be due
	Slog  *slog.Logger
	// Ended is called once for each turn that has ended, by the transaction that won.
	Ended func(t *Turn)
}

func (s *Service) now() time.Time { return s.Now().UTC().Truncate(time.Microsecond) }

// Apply applies an event to a stored session and saves what follows. Adapters
// that watch the world (recorder, effects) call it; people's verbs are below.
func (s *Service) Apply(ctx context.Context, id ID, ev Event) (Aggregate, error) {
	r, err := s.apply(ctx, id, nil, "", ev)
	return r.Aggregate, err
}

func (s *Service) apply(ctx context.Context, id ID, key *Key, result string, ev Event) (Result, error) {
	var kinds []Kind
	r, err := s.Store.Update(ctx, id, key, func(a Aggregate) (Change, error) {
		next, effects, err := Apply(a, ev, s.now())
		if err != nil {
			return Change{}, err
		}
		kinds = changed(&a, &next)
		return Change{Aggregate: next, Effects: s.withIDs(effects), Seal: s.Seal, Result: result}, nil
	})
	if err != nil {
		return r, err
	}
	s.after(r, kinds...)
	return r, nil
}

func (s *Service) withIDs(effects []Effect) []Effect {
	for i := range effects {
		effects[i].ID = EffectID(s.NewID("eff"))
	}
	return effects
}

func (s *Service) after(r Result, kinds ...Kind) {
	if r.Replayed != "" {
		return
	}
	id := r.Aggregate.Session.ID
	if len(r.Sealed) > 0 {
		s.Viewers.Appended(id, r.Sealed)
	}
	s.Viewers.Changed(r.Aggregate.Session.Workspace, id, kinds...)
	for _, t := range r.Aggregate.Ended {
		s.Slog.Info("turn ended", "session", id, "turn", t.ID, "state", t.State, "end", t.End, "code", t.Code)
		if s.Ended != nil {
			s.Ended(t)
		}
	}
	if r.Effects > 0 {
		s.Wake()
	}
}

// CreateInput makes a session. Prompt may be empty: then nothing starts yet.
type CreateInput struct {
	Title  string
	Repo   string
	Base   string
	Branch string
	Agent  string
	Model  string
	Limits Limits
	Prompt string
	// Approvals is a policy as package approval reads it: JSON text; empty: auto.
	Approvals string
}

// Accepted is the answer to a prompt.
type Accepted struct {
	Aggregate Aggregate
	Turn      Turn // zero when there was no prompt
	Position  int  // 0: it is at work; n: n-th in the queue
}

// DefaultAgent is taken when a session names none.
const DefaultAgent = "claude"

// Create judges and stores a session. With a key that was used for the same
// body it answers as before. Codes: those of [Judge], INVALID_INPUT, PROMPT_TOO_LARGE, IDEMPOTENCY_CONFLICT.
func (s *Service) Create(ctx context.Context, who Caller, in CreateInput, key *Key) (Accepted, error) {
	if in.Agent == "" {
		in.Agent = DefaultAgent
	}
	if err := checkText("title", in.Title, 200); err != nil {
		return Accepted{}, err
	}
	if err := checkPrompt(in.Prompt); err != nil {
		return Accepted{}, err
	}
	if err := checkLimits(in.Limits); err != nil {
		return Accepted{}, err
	}
	if a, ok, err := s.replay(ctx, key); ok || err != nil {
		return a, err
	}
	policy, err := approval.Parse([]byte(in.Approvals))
	if err != nil {
		return Accepted{}, err
	}
	if err := s.Judge.Agent(ctx, in.Agent, in.Model, policy.Text()); err != nil {
		return Accepted{}, err
	}
	now := s.now()
	id := ID(s.NewID("ses"))
	sess := Session{
		ID: id, Workspace: who.Workspace, Title: in.Title, Author: who.Author, Agent: in.Agent, Model: in.Model, Limits: in.Limits,
		Approvals: policy.Text(), Sandbox: SandboxNone, Phase: PhaseIdle, CreatedAt: now, UpdatedAt: now, Format: "sha1", BranchNamed: in.Branch != "",
	}
	if sess.Title == "" {
		sess.Title = titleOf(in.Prompt)
	}
	if in.Repo != "" {
		repo, err := s.Judge.Repository(ctx, RepositoryAsk{URL: in.Repo, Base: in.Base, Branch: in.Branch, Task: sess.Title, Tail: string(id[len(id)-6:])})
		if err != nil {
			return Accepted{}, err
		}
		sess.Repo, sess.Base, sess.BaseOID, sess.Format, sess.Branch, sess.RemoteOID = repo.URL, repo.Base, repo.BaseOID, repo.Format, repo.Branch, repo.RemoteOID
		if sess.BranchNamed {
			sess.FloorOID = repo.RemoteOID // what the branch holds already is not the session's
		}
	} else if in.Base != "" || in.Branch != "" {
		return Accepted{}, fault.Field("repo", "A base or a branch needs a repository.")
	} else {
		sess.Branch = "main"
	}
	a := Aggregate{Session: sess}
	var effects []Effect
	var turn TurnID
	if in.Prompt != "" {
		turn = TurnID(s.NewID("trn"))
		var err error
		if a, effects, err = Apply(a, Prompted{Turn: Turn{ID: turn, Prompt: in.Prompt, Author: who.Author}}, now); err != nil {
			return Accepted{}, err
		}
	}
	result := string(id) + " " + string(turn)
	r, err := s.Store.Create(ctx, Change{Aggregate: a, Effects: s.withIDs(effects), Result: result}, key)
	if err != nil {
		return Accepted{}, err
	}
	s.after(r, changed(&Aggregate{Session: Session{Sandbox: SandboxNone}}, &a)...)
	return s.accepted(ctx, r, result)
}

// replay answers a request that was made before: without asking the world again,
// which may answer otherwise now.
func (s *Service) replay(ctx context.Context, key *Key) (Accepted, bool, error) {
	if key == nil {
		return Accepted{}, false, nil
	}
	result, err := s.Store.Replay(ctx, key)
	if err != nil || result == "" {
		return Accepted{}, false, err
	}
	a, err := s.accepted(ctx, Result{Replayed: result}, result)
	return a, true, err
}

// accepted reads back what a saved or replayed result names.
func (s *Service) accepted(ctx context.Context, r Result, result string) (Accepted, error) {
	a := r.Aggregate
	if r.Replayed != "" {
		result = r.Replayed
		id, _, _ := strings.Cut(result, " ")
		var err error
		if a, err = s.Store.Get(ctx, ID(id)); err != nil {
			return Accepted{}, err
		}
	}
	_, turn, _ := strings.Cut(result, " ")
	out := Accepted{Aggregate: a}
	if turn == "" {
		return out, nil
	}
	if a.Open != nil && string(a.Open.ID) == turn {
		out.Turn = *a.Open
		return out, nil
	}
	for i, q := range a.Queue {
		if string(q.ID) == turn {
			out.Turn, out.Position = *q, i+1
			return out, nil
		}
	}
	t, err := s.Store.Turn(ctx, a.Session.ID, TurnID(turn))
	out.Turn = t
	return out, err
}

// PromptInput is a further prompt.
type PromptInput struct {
	Prompt string
	Mode   Mode // empty: queue
}

// Prompt accepts a prompt. Codes: SESSION_NOT_FOUND, TURN_IN_FLIGHT, QUEUE_FULL,
// PROMPT_TOO_LARGE, SESSION_DELETING, IDEMPOTENCY_CONFLICT, INVALID_INPUT.
func (s *Service) Prompt(ctx context.Context, who Caller, id ID, in PromptInput, key *Key) (Accepted, error) {
	switch in.Mode {
	case "":
		in.Mode = ModeQueue
	case ModeQueue, ModeInterrupt, ModeReject:
	default:
		return Accepted{}, fault.Field("mode", "mode is %q; it can be queue, interrupt or reject.", in.Mode)
	}
	if in.Prompt == "" {
		return Accepted{}, fault.Field("prompt", "The prompt is empty.")
	}
	if err := checkPrompt(in.Prompt); err != nil {
		return Accepted{}, err
	}
	a, err := s.Get(ctx, who, id)
	if err != nil {
		return Accepted{}, err
	}
	if a, ok, err := s.replay(ctx, key); ok || err != nil {
		return a, err
	}
	if err := s.Judge.Agent(ctx, a.Session.Agent, a.Session.Model, a.Session.Approvals); err != nil {
		return Accepted{}, err
	}
	turn := TurnID(s.NewID("trn"))
	result := string(id) + " " + string(turn)
	r, err := s.apply(ctx, id, key, result, Prompted{Turn: Turn{ID: turn, Prompt: in.Prompt, Author: who.Author}, Mode: in.Mode})
	if err != nil {
		return Accepted{}, err
	}
	return s.accepted(ctx, r, result)
}

// Get returns a session of the caller's workspace. Unknown and foreign ids answer alike.
func (s *Service) Get(ctx context.Context, who Caller, id ID) (Aggregate, error) {
	a, err := s.Store.Get(ctx, id)
	if err != nil {
		return Aggregate{}, err
	}
	if a.Session.Workspace != who.Workspace {
		return Aggregate{}, fault.New(fault.SessionNotFound, "")
	}
	return a, nil
}

// List returns sessions of the caller's workspace, newest first.
func (s *Service) List(ctx context.Context, who Caller, q ListQuery) ([]Session, error) {
	q.Workspace = who.Workspace
	if q.Limit <= 0 || q.Limit > MaxList {
		q.Limit = MaxList
	}
	return s.Store.List(ctx, q)
}

// Turns returns a session's turns that have left the queue, by number.
func (s *Service) Turns(ctx context.Context, who Caller, id ID, after int64, limit int) ([]Turn, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return nil, err
	}
	if limit <= 0 || limit > MaxList {
		limit = MaxList
	}
	return s.Store.Turns(ctx, id, after, limit)
}

// Turn returns one turn.
func (s *Service) Turn(ctx context.Context, who Caller, id ID, turn TurnID) (Turn, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return Turn{}, err
	}
	return s.Store.Turn(ctx, id, turn)
}

// Cancel stops the named turn, or the one at work when turn is empty. Twice is fine. Codes:
// SESSION_NOT_FOUND, TURN_NOT_FOUND, NOTHING_TO_CANCEL when the turn has ended otherwise.
func (s *Service) Cancel(ctx context.Context, who Caller, id ID, turn TurnID) (Aggregate, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return Aggregate{}, err
	}
	a, err := s.Apply(ctx, id, CancelAsked{Turn: turn, By: who.Subject})
	if turn != "" && fault.CodeOf(err) == fault.TurnNotFound {
		return s.ended(ctx, id, turn)
	}
	return a, err
}

// Deliver pushes packed work that the remote does not have.
func (s *Service) Deliver(ctx context.Context, who Caller, id ID) (Aggregate, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return Aggregate{}, err
	}
	return s.Apply(ctx, id, DeliverAsked{By: who.Subject})
}

// Discard sets the work back to the last delivered commit.
func (s *Service) Discard(ctx context.Context, who Caller, id ID) (Aggregate, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return Aggregate{}, err
	}
	return s.Apply(ctx, id, DiscardAsked{By: who.Subject})
}

// Questions returns a session's questions in a state (empty: in any), newest first.
func (s *Service) Questions(ctx context.Context, who Caller, id ID, state QuestionState, limit int) ([]Question, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return nil, err
	}
	if limit <= 0 || limit > MaxList {
		limit = MaxList
	}
	return s.Store.Questions(ctx, id, state, limit)
}

// Question returns one question.
func (s *Service) Question(ctx context.Context, who Caller, id ID, question QuestionID) (Question, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return Question{}, err
	}
	return s.Store.Question(ctx, id, question)
}

// AnswerInput is a person's answer to a question.
type AnswerInput struct {
	Verdict string // allow or deny; of a form accept, decline or cancel; may be empty where Option says it
	Option  string // id of one of the question's options
	Content string // JSON object with the values of a form that is accepted; kept until the agent has it
	Message string // kept with the question
}

// Check refuses what no question takes as its answer. Code: INVALID_INPUT.
func (in AnswerInput) Check() error { return checkText("message", in.Message, MaxAnswerMessage) }

// Answer settles a question; the first answer counts. Codes: QUESTION_NOT_FOUND,
// QUESTION_SETTLED, INVALID_INPUT (details.fields names what is wrong with a form).
func (s *Service) Answer(ctx context.Context, who Caller, id ID, question QuestionID, in AnswerInput) (Question, error) {
	if err := in.Check(); err != nil {
		return Question{}, err
	}
	q, err := s.Question(ctx, who, id, question)
	if err != nil {
		return Question{}, err
	}
	if q.State != QuestionPending {
		return Question{}, settled(q)
	}
	a, err := s.Apply(ctx, id, QuestionAnswered{ID: question, Verdict: in.Verdict, Option: in.Option, Content: in.Content, Message: in.Message, By: who.Subject})
	if fault.CodeOf(err) == fault.QuestionSettled { // somebody was faster
		if q, rerr := s.Store.Question(ctx, id, question); rerr == nil {
			return Question{}, settled(q)
		}
	}
	if err != nil {
		return Question{}, err
	}
	for _, x := range a.Questions {
		if x.ID == question {
			return *x, nil
		}
	}
	return s.Store.Question(ctx, id, question)
}

// settled says how a question ended.
func settled(q Question) error {
	switch q.State {
	case QuestionDone:
		return fault.New(fault.QuestionSettled, "%s has answered it already: %s.", q.By, q.Verdict).With("state", string(q.State))
	case QuestionExpired:
		return fault.New(fault.QuestionSettled, "Nobody answered until %s; it counted as %s.", q.Deadline.Format(time.RFC3339), counted(q)).With("state", string(q.State))
	}
	return fault.New(fault.QuestionSettled, "Its turn has ended, or the agent took it back.").With("state", string(q.State))
}

// Release lets a held queue go on.
func (s *Service) Release(ctx context.Context, who Caller, id ID) (Aggregate, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return Aggregate{}, err
	}
	return s.Apply(ctx, id, QueueReleased{})
}

// Delete marks a session for deletion; its sandbox, work and rows go in the background.
func (s *Service) Delete(ctx context.Context, who Caller, id ID, force bool) (Aggregate, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return Aggregate{}, err
	}
	return s.Apply(ctx, id, DeleteAsked{Force: force, By: who.Subject})
}

// Transcript returns a page of parts after the cursor.
func (s *Service) Transcript(ctx context.Context, who Caller, id ID, after transcript.Cursor, limit int) ([]transcript.Part, error) {
	if _, err := s.Get(ctx, who, id); err != nil {
		return nil, err
	}
	if limit <= 0 || limit > transcript.MaxPageParts {
		limit = transcript.MaxPageParts
	}
	return s.Log.Read(ctx, string(id), after, limit)
}

// Diff compares the session's work with where it began, or one turn's with the turn before.
func (s *Service) Diff(ctx context.Context, who Caller, id ID, turn TurnID, format string) (Diff, error) {
	a, err := s.Get(ctx, who, id)
	if err != nil {
		return Diff{}, err
	}
	switch format {
	case "":
		format = "patch"
	case "patch", "stat", "names":
	default:
		return Diff{}, fault.Field("format", "format is %q; it can be patch, stat or names.", format)
	}
	from, to := a.Session.BaseOID, a.Session.PackOID
	if turn != "" {
		t, err := s.Store.Turn(ctx, id, turn)
		if err != nil {
			return Diff{}, err
		}
		from, to = t.PackBase, t.PackOID
	}
	if to == "" || to == from {
		return Diff{From: from, To: from, Format: format}, nil
	}
	return s.Work.Diff(ctx, id, from, to, format)
}

func checkText(what, s string, max int) error {
	switch {
	case !utf8.ValidString(s):
		return fault.Field(what, "%s is not valid UTF-8.", what)
	case strings.ContainsRune(s, 0):
		return fault.Field(what, "%s has a NUL byte.", what)
	case utf8.RuneCountInString(s) > max:
		return fault.Field(what, "%s is longer than %d characters.", what, max)
	}
	return nil
}

func checkPrompt(p string) error {
	if len(p) > MaxPromptBytes {
		return fault.New(fault.PromptTooLarge, "The prompt has %d bytes; %d are allowed.", len(p), MaxPromptBytes)
	}
	if p != "" && strings.TrimSpace(p) == "" {
		return fault.Field("prompt", "The prompt is empty.")
	}
	return checkText("prompt", p, MaxPromptBytes)
}

func checkLimits(l Limits) error {
	for _, x := range []struct {
		name string
		d    time.Duration
		max  time.Duration
	}{{"total", l.Total, MaxTurnTotal}, {"silence", l.Silence, MaxTurnTotal}, {"firstEvent", l.FirstEvent, MaxTurnTotal}, {"tool", l.Tool, MaxTurnTotal}} {
		if x.d < 0 || x.d > x.max {
			return fault.New(fault.InvalidInput, "The limit %s must be between 0 (the default) and %s.", x.name, x.max)
		}
	}
	return nil
}

// titleOf is the first line of a prompt, cut at 72 characters.
func titleOf(p string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(p), "\n")
	r := []rune(strings.TrimSpace(line))
	if len(r) > 72 {
		return strings.TrimSpace(string(r[:71])) + "…"
	}
	return string(r)
}
