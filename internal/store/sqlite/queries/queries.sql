-- name: InsertSession :exec
INSERT INTO sessions (id, workspace, title, author_name, author_email, repo, base, base_oid, format, branch, branch_named, agent, model, limits,
  sandbox, generation, handle, pack_oid, delivered_oid, remote_oid, floor_oid, queue_held, archived, pinned, deleting, open_turn, open_state, last_turn, last_end,
  turns, ranks, prompt_len, phase, version, created_at, updated_at, idle_since, approvals)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateSession :execrows
UPDATE sessions SET title = ?, base = ?, base_oid = ?, format = ?, branch = ?, agent = ?, model = ?, limits = ?,
  sandbox = ?, generation = ?, handle = ?, pack_oid = ?, delivered_oid = ?, remote_oid = ?, floor_oid = ?, queue_held = ?, archived = ?, pinned = ?, deleting = ?,
  open_turn = ?, open_state = ?, last_turn = ?, last_end = ?, turns = ?, ranks = ?, prompt_len = ?, phase = ?, version = ?, updated_at = ?, idle_since = ?
WHERE id = @id AND version = @was;

-- name: GetSession :one
SELECT * FROM sessions WHERE id = ?;

-- phases is empty or a list with a comma before and after each.
-- name: ListSessions :many
SELECT * FROM sessions WHERE workspace = @workspace AND id < @below AND (@repo = '' OR repo = @repo)
  AND (@phases = '' OR instr(@phases, ',' || phase || ',') > 0) ORDER BY id DESC LIMIT @lim;

-- name: ActiveSessions :many
SELECT id FROM sessions WHERE open_turn <> '' OR sandbox IN ('starting', 'hot') OR deleting = 1 ORDER BY id;

-- name: DeleteSession :execrows
DELETE FROM sessions WHERE id = ?;

-- name: UpsertTurn :exec
INSERT INTO turns (id, session, number, rank, state, prompt, author_name, author_email, agent, build, fingerprint, rung, rung_failed, agent_session, generation,
  accepted_at, starting_at, sandbox_at, started_at, sent_at, first_part_at, agent_done_at, packed_at, ended_at, stop_reason, stop_by, end_row, code, message, clean,
  pack_oid, pack_base, commits, diff_stat, notes, push_sent, delivery, complete, truncated, usage, asked, waiting_since, waited, edited_at, edited_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET number = excluded.number, rank = excluded.rank, state = excluded.state, agent = excluded.agent, build = excluded.build,
  fingerprint = excluded.fingerprint, rung = excluded.rung, rung_failed = excluded.rung_failed, agent_session = excluded.agent_session, generation = excluded.generation,
  starting_at = excluded.starting_at, sandbox_at = excluded.sandbox_at, started_at = excluded.started_at, sent_at = excluded.sent_at,
  first_part_at = excluded.first_part_at, agent_done_at = excluded.agent_done_at, packed_at = excluded.packed_at, ended_at = excluded.ended_at,
  stop_reason = excluded.stop_reason, stop_by = excluded.stop_by, end_row = excluded.end_row, code = excluded.code, message = excluded.message, clean = excluded.clean,
  pack_oid = excluded.pack_oid, pack_base = excluded.pack_base, commits = excluded.commits, diff_stat = excluded.diff_stat, notes = excluded.notes, push_sent = excluded.push_sent,
  delivery = excluded.delivery, complete = excluded.complete, truncated = excluded.truncated, usage = excluded.usage,
  asked = excluded.asked, waiting_since = excluded.waiting_since, waited = excluded.waited,
  prompt = excluded.prompt, edited_at = excluded.edited_at, edited_by = excluded.edited_by;

-- name: GetTurn :one
SELECT * FROM turns WHERE id = @id AND session = @session;

-- name: QueuedTurns :many
SELECT * FROM turns WHERE session = ? AND state = 'accepted' ORDER BY rank;

-- name: NumberedTurns :many
SELECT * FROM turns WHERE session = @session AND number > @after ORDER BY number LIMIT @lim;

-- A question that is settled stays as it is.
-- name: UpsertQuestion :execrows
INSERT INTO questions (id, session, turn, number, kind, state, title, tool, tool_call, options, detail, asked_at, deadline, verdict, option_id, content, message, settled_by, settled_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, verdict = excluded.verdict, option_id = excluded.option_id, content = excluded.content,
  message = excluded.message, settled_by = excluded.settled_by, settled_at = excluded.settled_at
WHERE questions.state = 'pending';

-- name: PendingQuestions :many
SELECT * FROM questions WHERE session = ? AND state = 'pending' ORDER BY asked_at, id;

-- name: GetQuestion :one
SELECT * FROM questions WHERE id = @id AND session = @session;

-- Newest first.
-- name: ListQuestions :many
SELECT * FROM questions WHERE session = @session AND (@state = '' OR state = @state) ORDER BY asked_at DESC, id DESC LIMIT @lim;

-- name: InsertEffect :exec
INSERT INTO effects (id, session, turn, kind, generation, handle, question, code, message, not_before, attempts, lease_owner, lease_until)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', 0);

-- name: DueEffects :many
SELECT * FROM effects WHERE not_before <= @now AND lease_until <= @now ORDER BY not_before, id LIMIT @lim;

-- name: LeasedSessions :many
SELECT session, kind FROM effects WHERE lease_until > @now;

-- name: LeaseEffect :execrows
UPDATE effects SET lease_owner = @owner, lease_until = @until WHERE id = @id AND lease_until <= @now;

-- name: RenewEffect :execrows
UPDATE effects SET lease_until = @until WHERE id = @id AND lease_owner = @owner;

-- name: DeleteEffect :execrows
DELETE FROM effects WHERE id = @id AND lease_owner = @owner;

-- name: RetryEffect :execrows
UPDATE effects SET not_before = @not_before, attempts = attempts + 1, lease_owner = '', lease_until = 0 WHERE id = @id AND lease_owner = @owner;

-- name: UnleaseEffects :exec
UPDATE effects SET lease_owner = '', lease_until = 0 WHERE lease_owner <> @owner;

-- name: NextDue :one
SELECT CAST(coalesce(min(max(not_before, lease_until)), 0) AS INTEGER) FROM effects;

-- name: NextFence :one
UPDATE servers SET fence = fence + 1 WHERE id = 1 RETURNING fence;

-- name: InsertPart :exec
INSERT INTO parts (session, turn, part, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: TurnParts :many
SELECT turn, part, body FROM parts WHERE session = @session AND turn = @turn ORDER BY part;

-- name: LastPart :one
SELECT CAST(coalesce(max(part), 0) AS INTEGER) FROM parts WHERE session = @session AND turn = @turn;

-- name: GetKey :one
SELECT body_hash, result FROM idempotency WHERE identity = ? AND operation = ? AND key = ? AND expires > ?;

-- name: PutKey :exec
INSERT INTO idempotency (identity, operation, key, body_hash, result, session, expires) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (identity, operation, key) DO UPDATE SET body_hash = excluded.body_hash, result = excluded.result, session = excluded.session, expires = excluded.expires;

-- name: DropKeys :exec
DELETE FROM idempotency WHERE expires <= ?;

-- name: DropSessionKeys :exec
DELETE FROM idempotency WHERE session = ?;

-- name: PutToken :exec
INSERT INTO tokens (hash, name, workspace, created_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: DropTokens :exec
DELETE FROM tokens WHERE name = @name AND workspace = @workspace;

-- name: GetToken :one
SELECT * FROM tokens WHERE hash = ?;

-- name: CountTokens :one
SELECT count(*) FROM tokens;

-- name: LastReached :one
SELECT * FROM turns WHERE session = ? AND number > 0 AND sent_at > 0 ORDER BY number DESC LIMIT 1;
