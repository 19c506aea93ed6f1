package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite"
)

// blobs opens the folder of blobs and sweeps out what no row stands for.
func blobs(ctx context.Context, o Options, db *sqlite.Store, secrets func() [][]byte) (*blob.Store, error) {
	dir := filepath.Join(o.StateDir, "blobs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of blobs: %w", err)
	}
	s := &blob.Store{
		Dir: dir, Rows: db, Secrets: secrets, Now: o.Now, Log: o.Log,
		Room: func() error { return room(o.StateDir) },
	}
	return s, s.Sweep(ctx, func(ctx context.Context, id string) (bool, error) {
		_, err := db.Get(ctx, session.ID(id))
		if fault.CodeOf(err) == fault.SessionNotFound {
			return false, nil
		}
		return err == nil, err
	})
}
