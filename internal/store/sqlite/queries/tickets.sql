-- name: InsertServerKey :exec
INSERT INTO server_keys (name, value, created_at) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING;

-- name: GetServerKey :one
SELECT value FROM server_keys WHERE name = ?;

-- name: SpendNonce :execrows
INSERT INTO ticket_nonces (nonce, expires) VALUES (?, ?) ON CONFLICT (nonce) DO NOTHING;

-- name: DropNonces :exec
DELETE FROM ticket_nonces WHERE expires < ?;

-- Hashes are lower-case hex: the ones with a prefix lie between it and itself with a g.
-- name: GetTokenByPrefix :one
SELECT * FROM tokens WHERE hash >= @low AND hash < @high LIMIT 1;

-- name: InsertAudit :exec
INSERT INTO audit (id, at, workspace, subject, action, session, details) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING;

-- name: ListAudit :many
SELECT * FROM audit WHERE workspace = @workspace AND (@session = '' OR session = @session) ORDER BY at, id LIMIT @lim;
