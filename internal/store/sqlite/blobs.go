package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/store/sqlite/db"
)

var _ blob.Rows = (*Store)(nil)

// AnnounceBlob implements blob.Rows.
func (s *Store) AnnounceBlob(ctx context.Context, r blob.Row) (blob.Row, error) {
	err := s.tx(ctx, func(q *db.Queries) error {
		err := q.AnnounceBlob(ctx, db.AnnounceBlobParams{Session: r.Session, ID: r.ID, Turn: r.Turn, MediaType: r.MediaType, Bytes: r.Bytes, At: micros(r.At)})
		if err != nil {
			return fmt.Errorf("announce blob: %w", err)
		}
		row, err := q.GetBlob(ctx, db.GetBlobParams{Session: r.Session, ID: r.ID})
		if err != nil {
			return fmt.Errorf("read blob: %w", err)
		}
		r = blobOf(row)
		return nil
	})
	return r, err
}

// SettleBlob implements blob.Rows.
func (s *Store) SettleBlob(ctx context.Context, r blob.Row) error {
	err := s.wq.SettleBlob(ctx, db.SettleBlobParams{
		State: string(r.State), Reason: r.Reason, Digest: r.Digest, Bytes: r.Bytes, Masked: r.Masked, Session: r.Session, ID: r.ID,
	})
	if err != nil {
		return fmt.Errorf("settle blob: %w", coded(err))
	}
	return nil
}

// Blob implements blob.Rows.
func (s *Store) Blob(ctx context.Context, session, id string) (blob.Row, error) {
	row, err := s.rq.GetBlob(ctx, db.GetBlobParams{Session: session, ID: id})
	if errors.Is(err, sql.ErrNoRows) {
		return blob.Row{}, fault.New(fault.BlobNotFound, "")
	}
	if err != nil {
		return blob.Row{}, fmt.Errorf("read blob: %w", err)
	}
	return blobOf(row), nil
}

// Blobs implements blob.Rows.
func (s *Store) Blobs(ctx context.Context, session string) ([]blob.Row, error) {
	rows, err := s.rq.SessionBlobs(ctx, session)
	if err != nil {
		return nil, fmt.Errorf("read blobs: %w", err)
	}
	out := make([]blob.Row, len(rows))
	for i, r := range rows {
		out[i] = blobOf(r)
	}
	return out, nil
}

// BlobBytes implements blob.Rows.
func (s *Store) BlobBytes(ctx context.Context, session string) (int64, error) {
	n, err := s.rq.SessionBlobBytes(ctx, session)
	if err != nil {
		return 0, fmt.Errorf("count blobs: %w", err)
	}
	return n, nil
}

func blobOf(r db.Blob) blob.Row {
	return blob.Row{
		Session: r.Session, ID: r.ID, Turn: r.Turn, MediaType: r.MediaType, State: blob.State(r.State), Reason: r.Reason,
		Digest: r.Digest, Bytes: r.Bytes, Masked: r.Masked, At: instant(r.At),
	}
}
