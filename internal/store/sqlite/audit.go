package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/hearthd/hearth/internal/audit"
	"github.com/hearthd/hearth/internal/store/sqlite/db"
)

var _ audit.Store = (*Store)(nil)

// AppendAudit implements audit.Store.
func (s *Store) AppendAudit(ctx context.Context, entries []audit.Entry) error {
	rows := make([]db.InsertAuditParams, len(entries))
	for i, e := range entries {
		details := []byte("{}")
		if len(e.Details) > 0 {
			var err error
			if details, err = json.Marshal(e.Details); err != nil {
				return fmt.Errorf("encode audit entry %s: %w", e.ID, err)
			}
		}
		rows[i] = db.InsertAuditParams{ID: e.ID, At: micros(e.At), Workspace: e.Workspace, Subject: e.Subject, Action: e.Action, Session: e.Session, Details: string(details)}
	}
	return s.tx(ctx, func(q *db.Queries) error {
		for _, r := range rows {
			if err := q.InsertAudit(ctx, r); err != nil {
				return fmt.Errorf("append audit entry %s: %w", r.ID, err)
			}
		}
		return nil
	})
}

// Audit returns a workspace's entries, oldest first; session empty: of all sessions.
func (s *Store) Audit(ctx context.Context, workspace, session string, limit int) ([]audit.Entry, error) {
	rows, err := s.rq.ListAudit(ctx, db.ListAuditParams{Workspace: workspace, Session: session, Lim: int64(limit)})
	if err != nil {
		return nil, fmt.Errorf("list audit: %w", err)
	}
	out := make([]audit.Entry, len(rows))
	for i, r := range rows {
		out[i] = audit.Entry{ID: r.ID, At: instant(r.At), Workspace: r.Workspace, Subject: r.Subject, Action: r.Action, Session: r.Session}
		if err := json.Unmarshal([]byte(r.Details), &out[i].Details); err != nil {
			return nil, fmt.Errorf("decode audit entry %s: %w", r.ID, err)
		}
	}
	return out, nil
}
