package session

import (
	"context"
	"time"

	"github.com/hearthd/hearth/internal/transcript"
)

// Store keeps aggregates, effects and idempotency keys. Every implementation
// passes the suite in sessiontest. Methods may be called concurrently; writes of one
// session are serialized. Codes: SESSION_NOT_FOUND, TURN_NOT_FOUND,
// QUESTION_NOT_FOUND, VERSION_CONFLICT, IDEMPOTENCY_CONFLICT, DISK_FULL.
//
// No method looks at the clock; time comes as an argument.
type Store interface {
	// Create stores a new session with its first effects and queue. With a key that
	// was used for the same body it stores nothing and returns what the key names.
	Create(ctx context.Context, c Change, key *Key) (Result, error)
	// Update is one transaction: it locks the session, gives fn what is stored, and
	// saves what fn returns by compare-and-swap on the version, with its effects. An
	// error of fn is returned as it is and nothing is saved. fn may be called again.
	Update(ctx context.Context, id ID, key *Key, fn func(Aggregate) (Change, error)) (Result, error)
	// Replay returns the result that a key was used for; empty when it was not used.
	Replay(ctx context.Context, key *Key) (string, error)
	// Get returns a session with its open turn, queue, pending questions and last turn.
	Get(ctx context.Context, id ID) (Aggregate, error)
	// List returns sessions, newest first, below the cursor (empty: from the top).
	List(ctx context.Context, q ListQuery) ([]Session, error)
	// Turns returns a session's turns with numbers above after, by number; those in the queue are not among them.
	Turns(ctx context.Context, id ID, after int64, limit int) ([]Turn, error)
	// Turn returns one turn of a session, queued or not.
	Turn(ctx context.Context, id ID, turn TurnID) (Turn, error)
	// LastReached returns the newest turn whose prompt went out to an agent; TURN_NOT_FOUND when there is none.
	LastReached(ctx context.Context, id ID) (Turn, error)
	// Question returns one question of a session; QUESTION_NOT_FOUND when there is none.
	Question(ctx context.Context, id ID, question QuestionID) (Question, error)
	// Questions returns a session's questions in a state (empty: in any), newest first.
	Questions(ctx context.Context, id ID, state QuestionState, limit int) ([]Question, error)
	// Active returns the ids of all sessions that have an open turn, a sandbox or are being deleted.
	Active(ctx context.Context) ([]ID, error)
	// Remove deletes a session's rows: turns, parts, effects, keys, and itself.
	Remove(ctx context.Context, id ID) error

	// Claim leases at most limit effects that are due and not leased beyond now to
	// owner until the given time, oldest first, at most one of a session at a time, unless the kind is in free.
	Claim(ctx context.Context, owner string, now, until time.Time, limit int, free []EffectKind) ([]Effect, error)
	// Renew extends the lease of an effect; false when it is no longer owner's.
	Renew(ctx context.Context, id EffectID, owner string, until time.Time) (bool, error)
	// Done removes an effect that owner holds; with one that told an answer, the answer's content.
	Done(ctx context.Context, id EffectID, owner string) error
	// Retry gives an effect back, to be claimed again at notBefore, with one attempt more.
	Retry(ctx context.Context, id EffectID, owner string, notBefore time.Time) error
	// Unlease gives back every effect that is leased by somebody else than owner; for a server that knows it is alone.
	Unlease(ctx context.Context, owner string) error
	// NextDue is when the next effect is due; zero when there is none.
	NextDue(ctx context.Context) (time.Time, error)
	// NextFence counts starts of servers on this store.
	NextFence(ctx context.Context) (int64, error)
}

// Change is what a transaction saves.
type Change struct {
	Aggregate Aggregate
	Effects   []Effect // with ids
	// Seal is called for each turn of Aggregate.Ended with the turn's stored parts, and
	// returns those that close its transcript. They are appended in the same transaction.
	Seal func(t *Turn, stored []transcript.Part) ([]transcript.Part, error)
	// Result is kept under the key.
	Result string
}

// Result is what a transaction saved.
type Result struct {
	Aggregate Aggregate
	Sealed    []transcript.Part // appended by Seal
	Replayed  string            // Result of the transaction that had used the key before; empty: this one saved
	Effects   int               // how many were added
}

// Key is an idempotency key, one per identity and operation. It is kept for 24 h.
type Key struct {
	Identity  string
	Operation string
	Key       string
	BodyHash  string
	Now       time.Time
}

// KeyLifetime is how long a key gives the same answer.
const KeyLifetime = 24 * time.Hour

// ListQuery filters and pages sessions.
type ListQuery struct {
	Workspace string
	Phases    []Phase // empty: all
	Repo      string  // empty: all
	Below     ID      // keyset: ids below this one; empty: from the newest
	Limit     int
}

// MaxList is the hard maximum of a page.
const MaxList = 200
