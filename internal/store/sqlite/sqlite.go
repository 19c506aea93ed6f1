// Package sqlite keeps sessions, effects and transcripts in one SQLite file:
// WAL, synchronous=FULL, one writing connection, several reading ones. It
// implements session.Store and transcript.Log. Statements are in queries/, the schema in
// migrations/; package db is generated from both.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	sqlite3 "modernc.org/sqlite"
	sqlitelib "modernc.org/sqlite/lib"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/store/sqlite/db"
)

//go:generate go tool -modfile=../../../tools/go.mod sqlc generate

//go:embed migrations/*.sql
var migrations embed.FS

// Store is one open database. It is safe for concurrent use.
type Store struct {
	w *sql.DB // one connection: writes queue here, not inside SQLite
	r *sql.DB
	// Statements are prepared once: making them anew costs more than most of them take.
	wq *db.Queries
	rq *db.Queries
}

const readers = 4

// Open opens or makes the database at path and brings its schema up to date. A
// schema newer than this program's is refused.
func Open(ctx context.Context, path string) (*Store, error) {
	dsn := func(mode string) string {
		q := url.Values{}
		q.Add("_pragma", "journal_mode(WAL)")
		q.Add("_pragma", "synchronous(FULL)")
		q.Add("_pragma", "busy_timeout(5000)")
		q.Add("_pragma", "foreign_keys(1)")
		if mode == "w" {
			q.Set("_txlock", "immediate")
		} else {
			q.Add("_pragma", "query_only(1)")
		}
		return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
	}
	w, err := sql.Open("sqlite", dsn("w"))
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	w.SetMaxOpenConns(1)
	if err := migrate(ctx, w); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	r, err := sql.Open("sqlite", dsn("r"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), w.Close())
	}
	r.SetMaxOpenConns(readers)
	r.SetMaxIdleConns(readers)
	s := &Store{w: w, r: r}
	if s.wq, err = db.Prepare(ctx, w); err == nil {
		s.rq, err = db.Prepare(ctx, r)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare statements: %w", err), s.Close())
	}
	return s, nil
}

func migrate(ctx context.Context, w *sql.DB) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, w, dir)
	if err != nil {
		return fmt.Errorf("prepare migrations: %w", err)
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", coded(err))
	}
	sources := p.ListSources()
	newest := sources[len(sources)-1].Version
	if have > newest {
		return fault.New(fault.ConfigInvalid, "The database has schema %d, this program knows up to %d. Use a newer program.", have, newest)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", coded(err))
	}
	return nil
}

// Close ends all connections.
func (s *Store) Close() error {
	var err error
	for _, q := range []*db.Queries{s.wq, s.rq} {
		if q != nil {
			err = errors.Join(err, q.Close())
		}
	}
	return errors.Join(err, s.r.Close(), s.w.Close())
}

// Ping checks that the database answers and gives the right to write. It writes
// nothing, so it does not notice a full disk.
func (s *Store) Ping(ctx context.Context) error {
	return s.tx(ctx, func(*db.Queries) error { return nil })
}

// tx runs fn in one writing transaction.
func (s *Store) tx(ctx context.Context, fn func(*db.Queries) error) error {
	tx, err := s.w.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", coded(err))
	}
	if err := fn(s.wq.WithTx(tx)); err != nil {
		return errors.Join(coded(err), ignoreDone(tx.Rollback()))
	}
	if err := tx.Commit(); err != nil {
		return errors.Join(fmt.Errorf("commit transaction: %w", coded(err)), ignoreDone(tx.Rollback()))
	}
	return nil
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

// coded gives database errors that people can do something about their code.
func coded(err error) error {
	var e *sqlite3.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() & 0xff {
	case sqlitelib.SQLITE_FULL:
		return fault.Wrap(err, fault.DiskFull, "")
	case sqlitelib.SQLITE_IOERR:
		if strings.Contains(e.Error(), "no space") {
			return fault.Wrap(err, fault.DiskFull, "")
		}
	}
	return err
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
