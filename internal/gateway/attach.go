package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hearthd/hearth/internal/audit"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/ticket"
)

// DefaultRecheck is how often it is asked whether who watches still may.
const DefaultRecheck = time.Minute

// cut ends a stream that must not look as if it had ended well, for a reason.
type cut string

func (c cut) Error() string { return "the stream is broken off: " + string(c) }

func (cut) Is(target error) bool { return target == errBroken }

// Why streams are cut.
const (
	errAge     = cut("age")
	errStopped = cut("server_stopped")
	errRevoked = cut("revoked")
)

// recheck asks whether who watches still may, and whether the session is still there and of
// their workspace; id empty: of no session. Whatever cannot be found out counts as no.
func (g *Gateway) recheck(ctx context.Context, who session.Caller, id session.ID) error {
	err := g.Recheck(ctx, who)
	if err == nil && id != "" {
		_, err = g.Sessions.Get(ctx, who, id)
	}
	if err == nil || ctx.Err() != nil {
		return nil // one that is gone is noticed elsewhere
	}
	switch fault.Lookup(fault.CodeOf(err)).Kind {
	case fault.KindUnauthenticated, fault.KindForbidden, fault.KindNotFound:
		g.Log.Info("stream revoked", "subject", who.Subject, "workspace", who.Workspace, "session", id, "code", fault.CodeOf(err))
		return errRevoked
	}
	return fmt.Errorf("ask whether the viewer still may: %w", err)
}

// audited has the start of the stream noted with its first byte, and returns what notes
// its end, if there was a start. err is how it ended, as run told.
func (f *follower) audited(r *http.Request, err *error) func() {
	var ended func(error, int64)
	f.out.first = func() { ended = f.g.attached(r, f.who, f.id) }
	return func() {
		if ended != nil {
			ended(*err, f.sent)
		}
	}
}

// ticketOf is whose ticket opened the stream; empty: none.
func ticketOf(r *http.Request, who session.Caller) string {
	if r.Header.Get(ticket.Header) == "" {
		return ""
	}
	return who.Subject
}

// attached notes in the audit that a stream has begun, and returns what notes its end. It
// waits for no store.
func (g *Gateway) attached(r *http.Request, who session.Caller, id session.ID) (ended func(err error, parts int64)) {
	begun := g.Now()
	// The end is noted also for a request that was canceled.
	ctx := context.WithoutCancel(r.Context())
	note := func(action string, details map[string]any) {
		g.Audit.Add(ctx, audit.Entry{Workspace: who.Workspace, Subject: who.Subject, Session: string(id), Action: action, Details: details})
	}
	note(audit.StreamOpened, map[string]any{"method": r.Method, "ticket": r.Header.Get(ticket.Header) != ""})
	return func(err error, parts int64) {
		if err != nil && r.Context().Err() != nil {
			err = errGone
		}
		note(audit.StreamClosed, map[string]any{"reason": reason(err), "parts": parts, "seconds": int64(g.Now().Sub(begun) / time.Second)})
	}
}

// reason is why a stream ended, for the audit.
func reason(err error) string {
	var c cut
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &c):
		return string(c)
	case errors.Is(err, errGone):
		return "left"
	case errors.Is(err, errBroken):
		return "rewritten"
	}
	return "failed"
}
