package client

import (
	"context"
	"net/url"
)

// Blob is what a data-blob part of a transcript tells of, while it is fetched. A Read that fails
// means that it is not whole. Close it.
type Blob = File

// Blob fetches a blob by the id in its data-blob part. Codes beside the usual: BLOB_NOT_FOUND,
// BLOB_PENDING while it is on its way from the sandbox, BLOB_MISSING with the
// reason in the message and in the detail "reason".
func (c *Client) Blob(ctx context.Context, id, blob string) (*Blob, error) {
	return c.fetch(ctx, one(id)+"/blobs/"+url.PathEscape(blob), nil, "application/octet-stream", "blob.bin")
}
