-- +goose Up
ALTER TABLE sessions ADD COLUMN approvals TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN asked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN waiting_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN waited INTEGER NOT NULL DEFAULT 0; -- microseconds
ALTER TABLE effects ADD COLUMN question TEXT NOT NULL DEFAULT '';

CREATE TABLE questions (
  id         TEXT PRIMARY KEY,
  session    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  turn       TEXT NOT NULL,
  number     INTEGER NOT NULL,
  kind       TEXT NOT NULL CHECK (kind IN ('permission', 'form')),
  state      TEXT NOT NULL CHECK (state IN ('pending', 'answered', 'expired', 'canceled')),
  title      TEXT NOT NULL,
  tool       TEXT NOT NULL,
  tool_call  TEXT NOT NULL,
  options    TEXT NOT NULL, -- JSON array
  detail     TEXT NOT NULL,
  asked_at   INTEGER NOT NULL,
  deadline   INTEGER NOT NULL,
  verdict    TEXT NOT NULL,
  option_id  TEXT NOT NULL,
  content    TEXT NOT NULL,
  message    TEXT NOT NULL,
  settled_by TEXT NOT NULL,
  settled_at INTEGER NOT NULL
) STRICT;
CREATE INDEX questions_by_session ON questions (session, asked_at, id);
CREATE INDEX questions_pending ON questions (session) WHERE state = 'pending';
