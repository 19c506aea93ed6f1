-- +goose Up
-- Effects that are due much later stay in the table: each turn leaves the one of its limit.
CREATE INDEX effects_leased ON effects (lease_until);
CREATE INDEX effects_next ON effects (max(not_before, lease_until));

-- A cancel holds the queue when it is asked; these were asked when it did so at the turn's end.
UPDATE sessions SET queue_held = 1
WHERE open_state = 'stopping' AND EXISTS (SELECT 1 FROM turns t WHERE t.id = sessions.open_turn AND t.stop_reason = 'cancel');
