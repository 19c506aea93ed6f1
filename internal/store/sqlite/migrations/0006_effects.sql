-- +goose Up
-- Effects that are due much later stay in the table: each turn leaves the one of its limit.
CREATE INDEX effects_leased ON effects (lease_until);
CREATE INDEX effects_next ON effects (max(not_before, lease_until));
