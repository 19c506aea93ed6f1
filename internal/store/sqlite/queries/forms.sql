-- What a form was filled in with is gone once it was told.
-- name: ForgetAnswer :exec
UPDATE questions SET content = ''
WHERE content <> '' AND id = (SELECT e.question FROM effects e WHERE e.id = @id AND e.lease_owner = @owner AND e.kind = 'answer_question');
