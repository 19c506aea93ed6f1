-- +goose Up
-- Times are integer microseconds since 1970 UTC, 0 for not yet. Ids compare bytewise.
CREATE TABLE sessions (
  id            TEXT PRIMARY KEY,
  workspace     TEXT NOT NULL,
  title         TEXT NOT NULL,
  author_name   TEXT NOT NULL,
  author_email  TEXT NOT NULL,
  repo          TEXT NOT NULL,
  base          TEXT NOT NULL,
  base_oid      TEXT NOT NULL,
  format        TEXT NOT NULL,
  branch        TEXT NOT NULL,
  branch_named  INTEGER NOT NULL,
  agent         TEXT NOT NULL,
  model         TEXT NOT NULL,
  limits        TEXT NOT NULL,
  sandbox       TEXT NOT NULL CHECK (sandbox IN ('none', 'starting', 'hot', 'lost')),
  generation    INTEGER NOT NULL,
  handle        TEXT NOT NULL,
  pack_oid      TEXT NOT NULL,
  delivered_oid TEXT NOT NULL,
  remote_oid    TEXT NOT NULL,
  floor_oid     TEXT NOT NULL,
  queue_held    INTEGER NOT NULL,
  archived      INTEGER NOT NULL,
  pinned        INTEGER NOT NULL,
  deleting      INTEGER NOT NULL,
  open_turn     TEXT NOT NULL,
  open_state    TEXT NOT NULL,
  last_turn     TEXT NOT NULL,
  last_end      TEXT NOT NULL,
  turns         INTEGER NOT NULL,
  ranks         INTEGER NOT NULL,
  prompt_len    INTEGER NOT NULL,
  phase         TEXT NOT NULL,
  version       INTEGER NOT NULL,
  created_at    INTEGER NOT NULL,
  updated_at    INTEGER NOT NULL,
  idle_since    INTEGER NOT NULL,
  -- The legal pairs of (open turn, sandbox); the machine's table says the same.
  CHECK (
    open_state = '' OR
    (open_state = 'starting' AND sandbox IN ('starting', 'hot')) OR
    (open_state IN ('running', 'waiting', 'stopping') AND sandbox = 'hot') OR
    (open_state = 'delivering' AND sandbox IN ('none', 'hot', 'lost'))
  ),
  CHECK ((open_state = '') = (open_turn = ''))
) STRICT;
CREATE INDEX sessions_by_workspace ON sessions (workspace, id);
CREATE INDEX sessions_by_phase ON sessions (workspace, phase, id);
CREATE INDEX sessions_active ON sessions (id) WHERE open_turn <> '' OR sandbox IN ('starting', 'hot') OR deleting = 1;

CREATE TABLE turns (
  id            TEXT PRIMARY KEY,
  session       TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  number        INTEGER NOT NULL,
  rank          INTEGER NOT NULL,
  state         TEXT NOT NULL,
  prompt        TEXT NOT NULL,
  author_name   TEXT NOT NULL,
  author_email  TEXT NOT NULL,
  agent         TEXT NOT NULL,
  build         TEXT NOT NULL,
  fingerprint   TEXT NOT NULL,
  rung          TEXT NOT NULL,
  rung_failed   TEXT NOT NULL,
  agent_session TEXT NOT NULL,
  generation    INTEGER NOT NULL,
  accepted_at   INTEGER NOT NULL,
  starting_at   INTEGER NOT NULL,
  sandbox_at    INTEGER NOT NULL,
  started_at    INTEGER NOT NULL,
  sent_at       INTEGER NOT NULL,
  first_part_at INTEGER NOT NULL,
  agent_done_at INTEGER NOT NULL,
  packed_at     INTEGER NOT NULL,
  ended_at      INTEGER NOT NULL,
  stop_reason   TEXT NOT NULL,
  stop_by       TEXT NOT NULL,
  end_row       TEXT NOT NULL,
  code          TEXT NOT NULL,
  message       TEXT NOT NULL,
  clean         INTEGER NOT NULL,
  pack_oid      TEXT NOT NULL,
  pack_base     TEXT NOT NULL,
  commits       INTEGER NOT NULL,
  diff_stat     TEXT NOT NULL,
  notes         TEXT NOT NULL, -- JSON array
  push_sent     INTEGER NOT NULL,
  delivery      TEXT NOT NULL, -- JSON
  complete      INTEGER NOT NULL,
  truncated     TEXT NOT NULL,
  usage         TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX turns_by_number ON turns (session, number) WHERE number > 0;
CREATE INDEX turns_queued ON turns (session, rank) WHERE state = 'accepted';
CREATE UNIQUE INDEX turns_open ON turns (session) WHERE state IN ('starting', 'running', 'waiting', 'stopping', 'delivering');

CREATE TABLE effects (
  id          TEXT PRIMARY KEY,
  session     TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  turn        TEXT NOT NULL,
  kind        TEXT NOT NULL,
  generation  INTEGER NOT NULL,
  handle      TEXT NOT NULL,
  code        TEXT NOT NULL,
  message     TEXT NOT NULL,
  not_before  INTEGER NOT NULL,
  attempts    INTEGER NOT NULL,
  lease_owner TEXT NOT NULL,
  lease_until INTEGER NOT NULL
) STRICT;
CREATE INDEX effects_due ON effects (not_before, id);
CREATE INDEX effects_by_session ON effects (session);

CREATE TABLE parts (
  session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
  turn    INTEGER NOT NULL,
  part    INTEGER NOT NULL,
  body    TEXT NOT NULL,
  PRIMARY KEY (session, turn, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
  identity  TEXT NOT NULL,
  operation TEXT NOT NULL,
  key       TEXT NOT NULL,
  body_hash TEXT NOT NULL,
  result    TEXT NOT NULL,
  session   TEXT NOT NULL,
  expires   INTEGER NOT NULL,
  PRIMARY KEY (identity, operation, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_expires ON idempotency (expires);

CREATE TABLE servers (
  id    INTEGER PRIMARY KEY CHECK (id = 1),
  fence INTEGER NOT NULL
) STRICT;
INSERT INTO servers (id, fence) VALUES (1, 0);

-- Tokens are stored as SHA-256, never in clear.
CREATE TABLE tokens (
  hash       TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  workspace  TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
