package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/store/sqlite/db"
	"github.com/hearthd/hearth/internal/ticket"
)

var _ ticket.Nonces = (*Store)(nil)

// nonceGrace is how long a spent nonce is kept beyond its ticket's end: servers on one store
// may differ by less in what time it is.
const nonceGrace = time.Hour

// Key returns the store's key of a name. The first caller's fresh one is kept, and every
// server on the store gets that.
func (s *Store) Key(ctx context.Context, name string, fresh []byte, at time.Time) ([]byte, error) {
	var key []byte
	err := s.tx(ctx, func(q *db.Queries) error {
		if err := q.InsertServerKey(ctx, db.InsertServerKeyParams{Name: name, Value: fresh, CreatedAt: micros(at)}); err != nil {
			return err
		}
		var err error
		key, err = q.GetServerKey(ctx, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", name, err)
	}
	return key, nil
}

// Spend implements ticket.Nonces.
func (s *Store) Spend(ctx context.Context, nonce []byte, expires, now time.Time) (bool, error) {
	first := false
	err := s.tx(ctx, func(q *db.Queries) error {
		if err := q.DropNonces(ctx, micros(now.Add(-nonceGrace))); err != nil {
			return err
		}
		n, err := q.SpendNonce(ctx, db.SpendNonceParams{Nonce: nonce, Expires: micros(expires)})
		first = n == 1
		return err
	})
	if err != nil {
		return false, fmt.Errorf("spend ticket: %w", err)
	}
	return first, nil
}

// credentialLen is how many hex digits of a token's hash name it: enough to tell tokens
// apart, and not the hash itself, which need not leave the store.
const credentialLen = 32

// CredentialOf names a token without giving it away.
func CredentialOf(token string) string { return hash(token)[:credentialLen] }

// Credential returns who holds the token that CredentialOf names. Code: UNAUTHENTICATED.
func (s *Store) Credential(ctx context.Context, credential string) (name, workspace string, err error) {
	if len(credential) != credentialLen {
		return "", "", fault.New(fault.Unauthenticated, "")
	}
	row, err := s.rq.GetTokenByPrefix(ctx, db.GetTokenByPrefixParams{Low: credential, High: credential + "g"})
	if errors.Is(err, sql.ErrNoRows) {
		return "", "", fault.New(fault.Unauthenticated, "")
	}
	if err != nil {
		return "", "", fmt.Errorf("look up token: %w", err)
	}
	return row.Name, row.Workspace, nil
}
