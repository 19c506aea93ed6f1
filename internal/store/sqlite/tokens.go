package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/store/sqlite/db"
)

func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// PutToken keeps a token's hash. Tokens are random and long, so that a plain
// hash serves.
func (s *Store) PutToken(ctx context.Context, token, name, workspace string, at time.Time) error {
	if err := s.wq.PutToken(ctx, db.PutTokenParams{Hash: hash(token), Name: name, Workspace: workspace, CreatedAt: micros(at)}); err != nil {
		return fmt.Errorf("keep token: %w", err)
	}
	return nil
}

// ReplaceToken is PutToken, and voids every other token of that name in the workspace.
func (s *Store) ReplaceToken(ctx context.Context, token, name, workspace string, at time.Time) error {
	return s.tx(ctx, func(q *db.Queries) error {
		if err := q.DropTokens(ctx, db.DropTokensParams{Name: name, Workspace: workspace}); err != nil {
			return fmt.Errorf("drop old tokens: %w", err)
		}
		if err := q.PutToken(ctx, db.PutTokenParams{Hash: hash(token), Name: name, Workspace: workspace, CreatedAt: micros(at)}); err != nil {
			return fmt.Errorf("keep token: %w", err)
		}
		return nil
	})
}

// Token returns who holds a token. Code: UNAUTHENTICATED.
func (s *Store) Token(ctx context.Context, token string) (name, workspace string, err error) {
	row, err := s.rq.GetToken(ctx, hash(token))
	if errors.Is(err, sql.ErrNoRows) {
		return "", "", fault.New(fault.Unauthenticated, "")
	}
	if err != nil {
		return "", "", fmt.Errorf("look up token: %w", err)
	}
	return row.Name, row.Workspace, nil
}

// CountTokens counts the tokens there are.
func (s *Store) CountTokens(ctx context.Context) (int64, error) {
	n, err := s.rq.CountTokens(ctx)
	if err != nil {
		return 0, fmt.Errorf("count tokens: %w", err)
	}
	return n, nil
}
