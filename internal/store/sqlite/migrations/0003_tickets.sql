-- +goose Up
-- Keys that the servers on one store share.
CREATE TABLE server_keys (
  name       TEXT PRIMARY KEY,
  value      BLOB NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Attach tickets that were used.
CREATE TABLE ticket_nonces (
  nonce   BLOB PRIMARY KEY,
  expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ticket_nonces_expires ON ticket_nonces (expires);

-- Rows of a deleted session stay.
CREATE TABLE audit (
  id        TEXT PRIMARY KEY,
  at        INTEGER NOT NULL,
  workspace TEXT NOT NULL,
  subject   TEXT NOT NULL,
  action    TEXT NOT NULL,
  session   TEXT NOT NULL,
  details   TEXT NOT NULL -- JSON object
) STRICT;
CREATE INDEX audit_by_workspace ON audit (workspace, at, id);
CREATE INDEX audit_by_session ON audit (session, at, id);
