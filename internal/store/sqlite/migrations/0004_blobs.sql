-- +goose Up
CREATE TABLE blobs (
  session    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  id         TEXT NOT NULL, -- as the part gives it
  turn       TEXT NOT NULL,
  media_type TEXT NOT NULL,
  state      TEXT NOT NULL CHECK (state IN ('pending', 'stored', 'missing')),
  reason     TEXT NOT NULL,
  digest     TEXT NOT NULL, -- of the file, after masking
  bytes      INTEGER NOT NULL,
  masked     INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;
