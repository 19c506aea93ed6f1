-- name: AnnounceBlob :exec
INSERT INTO blobs (session, id, turn, media_type, state, reason, digest, bytes, masked, at) VALUES (?, ?, ?, ?, 'pending', '', '', ?, 0, ?)
ON CONFLICT (session, id) DO UPDATE SET turn = excluded.turn, media_type = excluded.media_type, state = 'pending', reason = '', bytes = excluded.bytes, at = excluded.at
WHERE state <> 'stored' AND turn <> excluded.turn;

-- name: SettleBlob :exec
UPDATE blobs SET state = ?, reason = ?, digest = ?, bytes = ?, masked = ? WHERE session = ? AND id = ? AND state = 'pending';

-- name: GetBlob :one
SELECT * FROM blobs WHERE session = ? AND id = ?;

-- name: SessionBlobs :many
SELECT * FROM blobs WHERE session = ? ORDER BY id;

-- name: SessionBlobBytes :one
SELECT CAST(coalesce(sum(bytes), 0) AS INTEGER) FROM blobs WHERE session = ? AND state = 'stored';
