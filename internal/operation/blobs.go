package operation

import (
	"context"
	"fmt"
	"io"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// BlobInput names a blob of a session.
type BlobInput struct {
	ID   string `json:"id" maxLength:"100"`
	Blob string `json:"blob" maxLength:"100" doc:"id of a data-blob part"`
}

func (o operations) blob(ctx context.Context, c Call, in BlobInput) (Blob, error) {
	a, err := o.d.Sessions.Get(ctx, c.Caller, session.ID(in.ID))
	if err != nil {
		return Blob{}, err
	}
	if o.d.Blobs == nil {
		return Blob{}, fault.New(fault.BlobNotFound, "")
	}
	row, err := o.d.Blobs.Find(ctx, string(a.Session.ID), in.Blob)
	if row.State == blob.Pending && err != nil && (a.Open == nil || string(a.Open.ID) != row.Turn) {
		err = blob.Gone(row)
	}
	if err != nil {
		return Blob{}, err
	}
	return Blob{Name: blobName(row), Size: row.Bytes, Write: func(_ context.Context, w io.Writer) error {
		f, err := o.d.Blobs.Open(row)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := io.Copy(w, f); err != nil {
			return fmt.Errorf("send blob: %w", err)
		}
		return nil
	}}, nil
}

// blobName is a name for the file: the digest's beginning, and what is in it.
func blobName(r blob.Row) string {
	end := ".bin"
	switch r.MediaType {
	case "text/plain; charset=utf-8":
		end = ".txt"
	case "application/json":
		end = ".json"
	case "application/x-ndjson":
		end = ".jsonl"
	}
	return r.Digest[:min(len(r.Digest), 12)] + end
}
