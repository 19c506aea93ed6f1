package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite/db"
	"github.com/hearthd/hearth/internal/transcript"
)

var _ session.Store = (*Store)(nil)

// Create implements session.Store.
func (s *Store) Create(ctx context.Context, c session.Change, key *session.Key) (session.Result, error) {
	var out session.Result
	err := s.tx(ctx, func(q *db.Queries) error {
		out = session.Result{Aggregate: c.Aggregate, Effects: len(c.Effects)}
		replayed, err := useKey(ctx, q, key, c.Result, c.Aggregate.Session.ID)
		if err != nil || replayed != "" {
			out.Replayed = replayed
			return err
		}
		row, err := sessionRow(&c.Aggregate)
		if err != nil {
			return err
		}
		if err := q.InsertSession(ctx, db.InsertSessionParams(row)); err != nil {
			return fmt.Errorf("insert session: %w", err)
		}
		return saveRest(ctx, q, nil, &c)
	})
	return out, err
}

// Update implements session.Store.
func (s *Store) Update(ctx context.Context, id session.ID, key *session.Key, fn func(session.Aggregate) (session.Change, error)) (session.Result, error) {
	var out session.Result
	err := s.tx(ctx, func(q *db.Queries) error {
		out = session.Result{}
		a, err := load(ctx, q, id)
		if err != nil {
			return err
		}
		was := a.Session.Version
		loaded, err := loadedRows(a)
		if err != nil {
			return err
		}
		if key != nil { // looked up first: a replay must not run fn
			replayed, err := findKey(ctx, q, key)
			if err != nil || replayed != "" {
				out.Aggregate, out.Replayed = a, replayed
				return err
			}
		}
		c, err := fn(a)
		if err != nil {
			return err
		}
		if _, err := useKey(ctx, q, key, c.Result, id); err != nil {
			return err
		}
		row, err := sessionRow(&c.Aggregate)
		if err != nil {
			return err
		}
		n, err := q.UpdateSession(ctx, db.UpdateSessionParams{
			Title: row.Title, Base: row.Base, BaseOid: row.BaseOid, Format: row.Format, Branch: row.Branch, Agent: row.Agent, Model: row.Model, Limits: row.Limits,
			Sandbox: row.Sandbox, Generation: row.Generation, Handle: row.Handle, PackOid: row.PackOid, DeliveredOid: row.DeliveredOid, RemoteOid: row.RemoteOid, FloorOid: row.FloorOid,
			QueueHeld: row.QueueHeld, Archived: row.Archived, Pinned: row.Pinned, Deleting: row.Deleting, OpenTurn: row.OpenTurn, OpenState: row.OpenState,
			LastTurn: row.LastTurn, LastEnd: row.LastEnd, Turns: row.Turns, Ranks: row.Ranks, PromptLen: row.PromptLen, Phase: row.Phase,
			Version: row.Version, UpdatedAt: row.UpdatedAt, IdleSince: row.IdleSince, ID: row.ID, Was: was,
		})
		if err != nil {
			return fmt.Errorf("update session: %w", err)
		}
		if n != 1 {
			return fault.New(fault.VersionConflict, "")
		}
		if err := saveRest(ctx, q, loaded, &c); err != nil {
			return err
		}
		if c.Seal != nil {
			for _, t := range c.Aggregate.Ended {
				parts, err := seal(ctx, q, t, c.Seal)
				if err != nil {
					return fmt.Errorf("seal turn %s: %w", t.ID, err)
				}
				out.Sealed = append(out.Sealed, parts...)
			}
		}
		out.Aggregate, out.Effects = c.Aggregate, len(c.Effects)
		return nil
	})
	return out, err
}

func seal(ctx context.Context, q *db.Queries, t *session.Turn, fn func(*session.Turn, []transcript.Part) ([]transcript.Part, error)) ([]transcript.Part, error) {
	rows, err := q.TurnParts(ctx, db.TurnPartsParams{Session: string(t.Session), Turn: t.Number})
	if err != nil {
		return nil, err
	}
	stored := make([]transcript.Part, len(rows))
	for i, r := range rows {
		stored[i] = transcript.Part{Cursor: transcript.Cursor{Turn: r.Turn, Part: r.Part}, Body: []byte(r.Body)}
	}
	parts, err := fn(t, stored)
	if err != nil {
		return nil, err
	}
	return parts, insertParts(ctx, q, string(t.Session), parts)
}

// loadedRows are the aggregate's turns as they are stored, by id.
func loadedRows(a session.Aggregate) (map[string]db.Turn, error) {
	rows := map[string]db.Turn{}
	for _, t := range slices.Concat(a.Queue, []*session.Turn{a.Open, a.Last}) {
		if t == nil {
			continue
		}
		row, err := turnRow(t)
		if err != nil {
			return nil, err
		}
		rows[row.ID] = row
	}
	return rows, nil
}

// saveRest saves effects, and the turns that are not as they were loaded; open last,
// since at most one may be open.
func saveRest(ctx context.Context, q *db.Queries, loaded map[string]db.Turn, c *session.Change) error {
	a := &c.Aggregate
	turns := slices.Concat(a.Ended, a.Queue)
	if a.Last != nil && !slices.Contains(turns, a.Last) {
		turns = append(turns, a.Last)
	}
	if a.Open != nil {
		turns = append(turns, a.Open)
	}
	for _, t := range turns {
		row, err := turnRow(t)
		if err != nil {
			return err
		}
		if loaded[row.ID] == row {
			continue
		}
		if err := q.UpsertTurn(ctx, db.UpsertTurnParams(row)); err != nil {
			return fmt.Errorf("save turn %s: %w", t.ID, err)
		}
	}
	for _, x := range a.Questions {
		row, err := questionRow(x)
		if err != nil {
			return err
		}
		if _, err := q.UpsertQuestion(ctx, row); err != nil {
			return fmt.Errorf("save question %s: %w", x.ID, err)
		}
	}
	for _, e := range c.Effects {
		if err := q.InsertEffect(ctx, db.InsertEffectParams{
			ID: string(e.ID), Session: string(e.Session), Turn: string(e.Turn), Kind: string(e.Kind), Generation: e.Generation, Handle: e.Handle,
			Question: string(e.Question), Code: string(e.Code), Message: e.Message, NotBefore: micros(e.NotBefore), Attempts: int64(e.Attempts),
		}); err != nil {
			return fmt.Errorf("insert effect %s: %w", e.Kind, err)
		}
	}
	return nil
}

// Replay implements session.Store.
func (s *Store) Replay(ctx context.Context, key *session.Key) (string, error) {
	return findKey(ctx, s.rq, key)
}

// findKey returns what the key named before; empty when it was not used.
func findKey(ctx context.Context, q *db.Queries, key *session.Key) (string, error) {
	row, err := q.GetKey(ctx, db.GetKeyParams{Identity: key.Identity, Operation: key.Operation, Key: key.Key, Expires: micros(key.Now)})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look up idempotency key: %w", err)
	case row.BodyHash != key.BodyHash:
		return "", fault.New(fault.IdempotencyConflict, "")
	}
	return row.Result, nil
}

func useKey(ctx context.Context, q *db.Queries, key *session.Key, result string, id session.ID) (string, error) {
	if key == nil {
		return "", nil
	}
	if replayed, err := findKey(ctx, q, key); err != nil || replayed != "" {
		return replayed, err
	}
	if err := q.DropKeys(ctx, micros(key.Now)); err != nil {
		return "", fmt.Errorf("drop old idempotency keys: %w", err)
	}
	if err := q.PutKey(ctx, db.PutKeyParams{Identity: key.Identity, Operation: key.Operation, Key: key.Key, BodyHash: key.BodyHash, Result: result,
		Session: string(id), Expires: micros(key.Now.Add(session.KeyLifetime))}); err != nil {
		return "", fmt.Errorf("keep idempotency key: %w", err)
	}
	return "", nil
}

func load(ctx context.Context, q *db.Queries, id session.ID) (session.Aggregate, error) {
	row, err := q.GetSession(ctx, string(id))
	if errors.Is(err, sql.ErrNoRows) {
		return session.Aggregate{}, fault.New(fault.SessionNotFound, "")
	}
	if err != nil {
		return session.Aggregate{}, fmt.Errorf("read session: %w", err)
	}
	var a session.Aggregate
	if a.Session, err = sessionOf(row); err != nil {
		return a, err
	}
	one := func(turn string) (*session.Turn, error) {
		if turn == "" {
			return nil, nil
		}
		r, err := q.GetTurn(ctx, db.GetTurnParams{ID: turn, Session: row.ID})
		if err != nil {
			return nil, fmt.Errorf("read turn %s: %w", turn, err)
		}
		t, err := turnOf(r)
		return &t, err
	}
	if a.Open, err = one(row.OpenTurn); err != nil {
		return a, err
	}
	if a.Last, err = one(row.LastTurn); err != nil {
		return a, err
	}
	queued, err := turnsOf(q.QueuedTurns(ctx, row.ID))
	if err != nil {
		return a, fmt.Errorf("read queue: %w", err)
	}
	for i := range queued {
		a.Queue = append(a.Queue, &queued[i])
	}
	if a.Open != nil && a.Open.State == session.TurnWaiting {
		pending, err := questionsOf(q.PendingQuestions(ctx, row.ID))
		if err != nil {
			return a, err
		}
		for i := range pending {
			a.Questions = append(a.Questions, &pending[i])
		}
	}
	return a, nil
}

// Get implements session.Store. It reads in one snapshot.
func (s *Store) Get(ctx context.Context, id session.ID) (session.Aggregate, error) {
	tx, err := s.r.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return session.Aggregate{}, fmt.Errorf("begin reading: %w", err)
	}
	a, err := load(ctx, s.rq.WithTx(tx), id)
	return a, errors.Join(err, ignoreDone(tx.Rollback()))
}

// List implements session.Store.
func (s *Store) List(ctx context.Context, q session.ListQuery) ([]session.Session, error) {
	below := string(q.Below)
	if below == "" {
		below = "~" // above every id
	}
	phases := ""
	for _, p := range q.Phases {
		phases += "," + string(p) + ","
	}
	rows, err := s.rq.ListSessions(ctx, db.ListSessionsParams{Workspace: q.Workspace, Below: below, Repo: q.Repo, Phases: phases, Lim: int64(q.Limit)})
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	out := make([]session.Session, 0, len(rows))
	for _, r := range rows {
		x, err := sessionOf(r)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

// Turns implements session.Store.
func (s *Store) Turns(ctx context.Context, id session.ID, after int64, limit int) ([]session.Turn, error) {
	return turnsOf(s.rq.NumberedTurns(ctx, db.NumberedTurnsParams{Session: string(id), After: max(after, 0), Lim: int64(limit)}))
}

// Turn implements session.Store.
func (s *Store) Turn(ctx context.Context, id session.ID, turn session.TurnID) (session.Turn, error) {
	return oneTurn(s.rq.GetTurn(ctx, db.GetTurnParams{ID: string(turn), Session: string(id)}))
}

// LastReached implements session.Store.
func (s *Store) LastReached(ctx context.Context, id session.ID) (session.Turn, error) {
	return oneTurn(s.rq.LastReached(ctx, string(id)))
}

func oneTurn(r db.Turn, err error) (session.Turn, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return session.Turn{}, fault.New(fault.TurnNotFound, "")
	}
	if err != nil {
		return session.Turn{}, fmt.Errorf("read turn: %w", err)
	}
	return turnOf(r)
}

// Question implements session.Store.
func (s *Store) Question(ctx context.Context, id session.ID, question session.QuestionID) (session.Question, error) {
	r, err := s.rq.GetQuestion(ctx, db.GetQuestionParams{ID: string(question), Session: string(id)})
	if errors.Is(err, sql.ErrNoRows) {
		return session.Question{}, fault.New(fault.QuestionNotFound, "")
	}
	if err != nil {
		return session.Question{}, fmt.Errorf("read question: %w", err)
	}
	return questionOf(r)
}

// Questions implements session.Store.
func (s *Store) Questions(ctx context.Context, id session.ID, state session.QuestionState, limit int) ([]session.Question, error) {
	return questionsOf(s.rq.ListQuestions(ctx, db.ListQuestionsParams{Session: string(id), State: string(state), Lim: int64(limit)}))
}

// Active implements session.Store.
func (s *Store) Active(ctx context.Context) ([]session.ID, error) {
	rows, err := s.rq.ActiveSessions(ctx)
	if err != nil {
		return nil, fmt.Errorf("list active sessions: %w", err)
	}
	out := make([]session.ID, len(rows))
	for i, r := range rows {
		out[i] = session.ID(r)
	}
	return out, nil
}

// Remove implements session.Store.
func (s *Store) Remove(ctx context.Context, id session.ID) error {
	return s.tx(ctx, func(q *db.Queries) error {
		if err := q.DropSessionKeys(ctx, string(id)); err != nil {
			return err
		}
		n, err := q.DeleteSession(ctx, string(id))
		if err == nil && n == 0 {
			return fault.New(fault.SessionNotFound, "")
		}
		return err
	})
}

// Claim implements session.Store.
func (s *Store) Claim(ctx context.Context, owner string, now, until time.Time, limit int, free []session.EffectKind) ([]session.Effect, error) {
	var out []session.Effect
	err := s.tx(ctx, func(q *db.Queries) error {
		out = nil
		busy := map[string]bool{}
		leased, err := q.LeasedSessions(ctx, micros(now))
		if err != nil {
			return fmt.Errorf("read leases: %w", err)
		}
		for _, l := range leased {
			if !slices.Contains(free, session.EffectKind(l.Kind)) {
				busy[l.Session] = true
			}
		}
		// Some due effects wait behind others of their session: look further than the limit.
		due, err := q.DueEffects(ctx, db.DueEffectsParams{Now: micros(now), Lim: int64(limit)*8 + 64})
		if err != nil {
			return fmt.Errorf("read due effects: %w", err)
		}
		for _, r := range due {
			if len(out) == limit {
				break
			}
			if !slices.Contains(free, session.EffectKind(r.Kind)) {
				if busy[r.Session] {
					continue
				}
				busy[r.Session] = true
			}
			n, err := q.LeaseEffect(ctx, db.LeaseEffectParams{Owner: owner, Until: micros(until), ID: r.ID, Now: micros(now)})
			if err != nil {
				return fmt.Errorf("lease effect: %w", err)
			}
			if n == 1 {
				out = append(out, effectOf(r))
			}
		}
		return nil
	})
	return out, err
}

// Renew implements session.Store.
func (s *Store) Renew(ctx context.Context, id session.EffectID, owner string, until time.Time) (bool, error) {
	n, err := s.wq.RenewEffect(ctx, db.RenewEffectParams{Until: micros(until), ID: string(id), Owner: owner})
	return n == 1, err
}

// Done implements session.Store.
func (s *Store) Done(ctx context.Context, id session.EffectID, owner string) error {
	return s.tx(ctx, func(q *db.Queries) error {
		if err := q.ForgetAnswer(ctx, db.ForgetAnswerParams{ID: string(id), Owner: owner}); err != nil {
			return fmt.Errorf("forget an answer: %w", err)
		}
		_, err := q.DeleteEffect(ctx, db.DeleteEffectParams{ID: string(id), Owner: owner})
		return err
	})
}

// Retry implements session.Store.
func (s *Store) Retry(ctx context.Context, id session.EffectID, owner string, notBefore time.Time) error {
	_, err := s.wq.RetryEffect(ctx, db.RetryEffectParams{NotBefore: micros(notBefore), ID: string(id), Owner: owner})
	return err
}

// Unlease implements session.Store.
func (s *Store) Unlease(ctx context.Context, owner string) error {
	return s.wq.UnleaseEffects(ctx, owner)
}

// NextDue implements session.Store.
func (s *Store) NextDue(ctx context.Context) (time.Time, error) {
	us, err := s.rq.NextDue(ctx)
	return instant(us), err
}

// NextFence implements session.Store.
func (s *Store) NextFence(ctx context.Context) (int64, error) { return s.wq.NextFence(ctx) }
