package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

// BlobSource is a [Source] that has blobs.
type BlobSource interface {
	// Blob writes a blob of a turn to w and holds it against id and size: DRIVER_INVALID when it is
	// another, BLOB_NOT_FOUND when there is none.
	Blob(ctx context.Context, turn, id string, size int64, w io.Writer) error
	// BlobDone says that a blob is not needed any more.
	BlobDone(ctx context.Context, turn, id string) error
}

// Times that blobs may take. They hold up the end of a turn, for the sandbox may go with it, and no part.
const (
	blobTime     = 30 * time.Second // one, and a second for each MiB
	harvestTime  = time.Minute      // all that are left when the agent has ended
	canceledTime = 3 * time.Second  // of a turn that somebody waits to see stopped
	settleTime   = 5 * time.Second
	blobsAtOnce  = 2 // of a turn
)

// errHarvest ends what is still being fetched.
var errHarvest = errors.New("the turn has ended")

// blobs takes over the blobs of one turn.
type blobs struct {
	store  *blob.Store
	src    BlobSource
	ctx    context.Context // of everything that is fetched; ends with stop
	cancel context.CancelCauseFunc
	slots  chan struct{}
	wg     sync.WaitGroup
	seen   map[string]bool
}

func (r *Recorder) blobs(ctx context.Context, src Source) *blobs {
	bs, ok := src.(BlobSource)
	if !ok || r.Blobs == nil {
		return nil
	}
	b := &blobs{store: r.Blobs, src: bs, slots: make(chan struct{}, blobsAtOnce), seen: map[string]bool{}}
	b.ctx, b.cancel = context.WithCancelCause(ctx)
	return b
}

// stop ends what is being fetched and waits for it.
func (b *blobs) stop() {
	if b != nil {
		b.cancel(context.Canceled)
		b.wg.Wait()
	}
}

// harvest waits for the blobs of a turn whose agent has ended, for a time. What is not there then is missing.
func (b *blobs) harvest(outcome string) {
	if b == nil {
		return
	}
	most := harvestTime
	if outcome == driverapi.OutcomeCanceled {
		most = canceledTime
	}
	t := time.AfterFunc(most, func() { b.cancel(errHarvest) })
	defer t.Stop()
	b.wg.Wait()
}

// mediaTypes are those that a driver gives; of another nothing is believed.
var mediaTypes = []string{"text/plain; charset=utf-8", "application/json", "application/x-ndjson"}

// blob begins to take over what a data-blob part tells of. Twice is fine. What the part says is
// not believed: a blob that cannot be is missing, and the turn goes on.
func (w *turn) blob(p uistream.Part) {
	b := w.blobs
	if b == nil || p.Type != uistream.DataType(uistream.DataBlob) {
		return
	}
	raw, _ := p.Field("data")
	var d uistream.Blob
	if json.Unmarshal(raw, &d) != nil || d.ID == "" || len(d.ID) > 100 || b.seen[d.ID] || len(b.seen) >= uistream.MaxTurnBlobs {
		return
	}
	b.seen[d.ID] = true
	row := blob.Row{Session: string(w.id), ID: w.mask.Text(d.ID), Turn: string(w.t.ID), MediaType: "application/octet-stream", Bytes: d.Bytes}
	if slices.Contains(mediaTypes, d.MediaType) {
		row.MediaType = d.MediaType
	}
	b.wg.Go(func() { // stop and harvest wait
		if err := b.take(row); err != nil && b.ctx.Err() == nil {
			w.r.Slog.Error("take blob over", "session", row.Session, "turn", row.Turn, "blob", row.ID, "error", err)
		}
	})
}

// take settles one blob, unless the recording is stopped: the next one takes it then.
func (b *blobs) take(row blob.Row) error {
	keep, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), settleTime)
	got, err := b.store.Announce(keep, row)
	cancel()
	if err != nil || got.State != blob.Pending {
		return err
	}
	reason := ""
	switch _, ok := uistream.BlobDigest(row.ID); {
	case !ok:
		reason = "What the sandbox gave as its id is none."
	case row.Bytes < 0 || row.Bytes > uistream.MaxBlobBytes:
		reason = fmt.Sprintf("The sandbox said that it has %d bytes; at most %d are taken.", row.Bytes, uistream.MaxBlobBytes)
	default:
		if reason, err = b.fetch(row); err != nil {
			return err
		}
	}
	keep, cancel = context.WithTimeout(context.WithoutCancel(b.ctx), settleTime)
	defer cancel()
	if reason != "" {
		if err := b.store.Miss(keep, row, reason); err != nil {
			return err
		}
	}
	if b.ctx.Err() != nil {
		return nil
	}
	// The sandbox has its room back; one that is gone needs it no more.
	if err := b.src.BlobDone(keep, row.Turn, row.ID); err != nil && fault.CodeOf(err) != fault.SandboxUnreachable {
		return fmt.Errorf("tell the driver: %w", err)
	}
	return nil
}

// fetch gets one blob. The reason says why it cannot be had; an error, that the recording was stopped.
func (b *blobs) fetch(row blob.Row) (reason string, err error) {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-b.ctx.Done():
	}
	ctx, cancel := context.WithTimeout(b.ctx, blobTime+time.Duration(row.Bytes>>20)*time.Second)
	defer cancel()
	err = b.store.Take(ctx, row, func(ctx context.Context, w io.Writer) error { return b.src.Blob(ctx, row.Turn, row.ID, row.Bytes, w) })
	switch {
	case err == nil:
		return "", nil
	case errors.Is(context.Cause(b.ctx), errHarvest):
		return "The turn ended before it was fetched.", nil
	case b.ctx.Err() != nil:
		return "", context.Cause(b.ctx)
	case ctx.Err() != nil:
		return "It took too long to fetch.", nil
	}
	switch f := fault.From(err); f.Code {
	case fault.BlobNotFound:
		return "The sandbox did not have it.", nil
	case fault.InternalError:
		b.store.Log.Error("keep blob", "session", row.Session, "blob", row.ID, "error", err)
		return "The server could not keep it.", nil
	default:
		return f.Sentence(), nil
	}
}
