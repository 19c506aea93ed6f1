package server

import (
	"context"

	"github.com/hearthd/hearth/internal/audit"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite"
	"github.com/hearthd/hearth/internal/ticket"
)

// attach is what opening streams and looking after them needs.
type attach struct {
	audit   *audit.Log
	tickets *ticket.Desk
}

func newAttach(ctx context.Context, o Options, db *sqlite.Store) (attach, error) {
	key, err := db.Key(ctx, ticket.KeyName, ticket.NewKey(), o.Now())
	if err != nil {
		return attach{}, err
	}
	return attach{
		audit: &audit.Log{Store: db, Now: o.Now, NewID: NewID, RequestID: rest.RequestID, Slog: o.Log},
		tickets: &ticket.Desk{Key: key, Nonces: db, Now: o.Now, Resolve: func(ctx context.Context, credential string) (session.Caller, error) {
			return resolve(ctx, db, credential)
		}},
	}, nil
}

// recheck says whether who has opened a stream may still read.
func (a *attach) recheck(reg *operation.Registry) func(context.Context, session.Caller) error {
	return func(ctx context.Context, was session.Caller) error {
		who, err := ticket.Recheck(ctx, a.tickets.Resolve, was)
		if err != nil {
			return err
		}
		return reg.Authorize(ctx, who, operation.RightRead)
	}
}

// authenticate finds who holds a token.
func authenticate(ctx context.Context, db *sqlite.Store, token string) (session.Caller, error) {
	name, workspace, err := db.Token(ctx, token)
	if err != nil {
		return session.Caller{}, err
	}
	return caller(name, workspace, sqlite.CredentialOf(token)), nil
}

// resolve finds who holds the token that a credential names.
func resolve(ctx context.Context, db *sqlite.Store, credential string) (session.Caller, error) {
	name, workspace, err := db.Credential(ctx, credential)
	if err != nil {
		return session.Caller{}, err
	}
	return caller(name, workspace, credential), nil
}

func caller(name, workspace, credential string) session.Caller {
	return session.Caller{Subject: name, Workspace: workspace, Credential: credential, Author: session.Author{Name: name, Email: name + "@localhost"}}
}
