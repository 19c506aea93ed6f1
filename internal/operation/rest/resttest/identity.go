package resttest

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/audit"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/ticket"
)

// Guest is the token of the n-th further identity of the owner's workspace.
func Guest(n int) string { return "guest-token-" + strconv.Itoa(n) }

// Identity knows the tokens of a world. A token is its own credential.
type Identity struct {
	mu      sync.Mutex
	revoked map[string]bool
	denied  map[operation.Right]bool
}

// Revoke makes a token void.
func (i *Identity) Revoke(token string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.revoked == nil {
		i.revoked = map[string]bool{}
	}
	i.revoked[token] = true
}

// Deny takes a right from everybody. The refusal has the code that a session has which is not there.
func (i *Identity) Deny(right operation.Right) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.denied == nil {
		i.denied = map[operation.Right]bool{}
	}
	i.denied[right] = true
}

func (i *Identity) authenticate(_ context.Context, token string) (session.Caller, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n, guest := strings.CutPrefix(token, Guest(0)[:len(Guest(0))-1])
	switch {
	case i.revoked[token]:
	case token == Token:
		return session.Caller{Subject: "owner", Workspace: "default", Credential: token, Author: session.Author{Name: "Ada", Email: "ada@example.org"}}, nil
	case token == Foreign:
		return session.Caller{Subject: "stranger", Workspace: "elsewhere", Credential: token, Author: session.Author{Name: "Bob"}}, nil
	case guest:
		return session.Caller{Subject: "guest-" + n, Workspace: "default", Credential: token, Author: session.Author{Name: "Guest"}}, nil
	}
	return session.Caller{}, fault.New(fault.Unauthenticated, "")
}

func (i *Identity) authorize(_ context.Context, _ session.Caller, right operation.Right) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.denied[right] {
		return fault.New(fault.SessionNotFound, "")
	}
	return nil
}

func (i *Identity) recheck(ctx context.Context, was session.Caller) error {
	who, err := ticket.Recheck(ctx, i.authenticate, was)
	if err != nil {
		return err
	}
	return i.authorize(ctx, who, operation.RightRead)
}

// text is what was logged.
type text struct {
	mu sync.Mutex
	b  []byte
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

// Logged is all that the world logged so far.
func (w *World) Logged() string {
	w.logged.mu.Lock()
	defer w.logged.mu.Unlock()
	return string(w.logged.b)
}

// attach makes the audit, which ends with the test, and what issues tickets.
func (w *World) attach(newID func(string) string) *ticket.Desk {
	w.t.Helper()
	key, err := w.Store.Key(w.t.Context(), ticket.KeyName, ticket.NewKey(), time.Now())
	w.must(err)
	w.Audit = &audit.Log{Store: w.Store, Now: time.Now, NewID: newID, RequestID: rest.RequestID, Slog: w.Log}
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Audit.Run(ctx) }()
	w.t.Cleanup(func() { stop(); <-done; w.Audit.Close(context.WithoutCancel(ctx)) })
	return &ticket.Desk{Key: key, Nonces: w.Store, Now: time.Now, Resolve: w.Identity.authenticate}
}

// Audited waits for n entries of a session in the audit, and returns all that there are.
func (w *World) Audited(id session.ID, n int) []audit.Entry {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		list, err := w.Store.Audit(context.WithoutCancel(w.t.Context()), "default", string(id), 1000)
		w.must(err)
		if len(list) >= n {
			return list
		}
		if time.Now().After(end) {
			w.t.Fatalf("%d entries in the audit, want %d: %+v", len(list), n, list)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
