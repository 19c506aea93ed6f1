package sqlite

import (
	"context"
	"fmt"

	"github.com/hearthd/hearth/internal/store/sqlite/db"
	"github.com/hearthd/hearth/internal/transcript"
)

var _ transcript.Log = (*Store)(nil)

// Append implements transcript.Log.
func (s *Store) Append(ctx context.Context, session string, parts []transcript.Part) error {
	return s.tx(ctx, func(q *db.Queries) error { return insertParts(ctx, q, session, parts) })
}

func insertParts(ctx context.Context, q *db.Queries, session string, parts []transcript.Part) error {
	for _, p := range parts {
		if err := q.InsertPart(ctx, db.InsertPartParams{Session: session, Turn: p.Cursor.Turn, Part: p.Cursor.Part, Body: string(p.Body)}); err != nil {
			return fmt.Errorf("append part %s: %w", p.Cursor, err)
		}
	}
	return nil
}

// readParts compares turn and part as one: so the key leads to the place, however long
// the transcript before it is.
const readParts = `SELECT turn, part, body FROM parts WHERE session = ? AND (turn, part) > (?, ?) ORDER BY turn, part LIMIT ?`

// Read implements transcript.Log.
func (s *Store) Read(ctx context.Context, session string, after transcript.Cursor, limit int) ([]transcript.Part, error) {
	rows, err := s.r.QueryContext(ctx, readParts, session, after.Turn, after.Part, limit)
	if err != nil {
		return nil, fmt.Errorf("read parts: %w", err)
	}
	defer rows.Close()
	var out []transcript.Part
	size := 0
	for rows.Next() {
		var p transcript.Part
		var body string
		if err := rows.Scan(&p.Cursor.Turn, &p.Cursor.Part, &body); err != nil {
			return nil, fmt.Errorf("read part: %w", err)
		}
		p.Body = []byte(body)
		size += len(body)
		if size > transcript.MaxPageBytes && len(out) > 0 {
			break
		}
		out = append(out, p)
	}
	return out, rows.Err()
}

// Last implements transcript.Log.
func (s *Store) Last(ctx context.Context, session string, turn int64) (transcript.Cursor, error) {
	n, err := s.rq.LastPart(ctx, db.LastPartParams{Session: session, Turn: turn})
	if err != nil {
		return transcript.Cursor{}, fmt.Errorf("read last part: %w", err)
	}
	return transcript.Cursor{Turn: turn, Part: n}, nil
}
