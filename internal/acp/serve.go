package acp

import (
	"context"
	"errors"
	"sync"
)

// Handle makes a request handler of a function from parameters to a result. It
// runs on the reader, so the function must be quick; see [Spawn]. An error that
// is no [RPCError] is answered as an internal one with its text.
func Handle[P, R any](f func(ctx context.Context, p P) (R, error)) func(context.Context, *Request) {
	return func(ctx context.Context, r *Request) {
		var p P
		if len(r.Params) > 0 {
			if err := Decode(r.Params, &p); err != nil {
				_ = r.Fail(Errorf(CodeInvalidParams, "the parameters of %s: %v", r.Method, err))
				return
			}
		}
		res, err := f(ctx, p)
		if err == nil {
			_ = r.Reply(res)
			return
		}
		var rpc *RPCError
		switch {
		case errors.As(err, &rpc):
		case ctx.Err() != nil:
			rpc = Errorf(CodeRequestCancelled, "the request was cancelled")
		default:
			rpc = Errorf(CodeInternalError, "%v", err)
		}
		_ = r.Fail(rpc)
	}
}

// Spawn makes a handler that runs another on a goroutine of its own, so that
// the reader goes on. Whoever owns wg waits.
func Spawn(wg *sync.WaitGroup, h func(context.Context, *Request)) func(context.Context, *Request) {
	return func(ctx context.Context, r *Request) {
		wg.Go(func() { h(ctx, r) })
	}
}

// Update sends a session update; update is a value that encodes to an object
// with its sessionUpdate, or JSON text.
func (c *Conn) Update(sessionID string, update any) error {
	raw, err := marshal(update)
	if err != nil {
		return err
	}
	return c.Notify(MethodSessionUpdate, SessionNotification{SessionID: sessionID, Update: raw})
}
