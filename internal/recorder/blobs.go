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
	lateTime     = 500 * time.Millisecond // for the driver to be told, once nobody waits any more
	blobsAtOnce  = 2                      // of a turn
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

	mu   sync.Mutex
	seen map[string]*progress
}

// progress is where a blob that a part has told of stands.
type progress struct {
	busy  bool // it is being taken
	again bool // and was told of meanwhile
}

func (r *Recorder) blobs(ctx context.Context, src Source) *blobs {
	bs, ok := src.(BlobSource)
	if !ok || r.Blobs == nil {
		return nil
	}
	b := &blobs{store: r.Blobs, src: bs, slots: make(chan struct{}, blobsAtOnce), seen: map[string]*progress{}}
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

// stopped tells whether the recording was stopped, so that the next one goes on with what is left.
func (b *blobs) stopped() bool {
	return b.ctx.Err() != nil && !errors.Is(context.Cause(b.ctx), errHarvest)
}

// begin notes that a part tells of a blob. False: somebody is at it, or the turn has told of too many.
func (b *blobs) begin(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.seen[id]
	if t == nil {
		if len(b.seen) >= uistream.MaxTurnBlobs {
			return false
		}
		t = &progress{}
		b.seen[id] = t
	}
	busy := t.busy
	t.busy, t.again = true, busy
	return !busy
}

// again tells whoever is at a blob whether it was told of meanwhile; if not, nobody is at it any more.
func (b *blobs) again(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.seen[id]
	t.busy, t.again = t.again, false
	return t.busy
}

// mediaTypes are those that a driver gives; of another nothing is believed.
var mediaTypes = []string{"text/plain; charset=utf-8", "application/json", "application/x-ndjson"}

// blob begins to take over what a data-blob part tells of. Twice is fine, and taken twice: the driver
// may have written the same once more after it was told to forget it. What the part says is
// not believed: a blob that cannot be is missing, and the turn goes on.
func (w *turn) blob(p uistream.Part) {
	b := w.blobs
	if b == nil || p.Type != uistream.DataType(uistream.DataBlob) {
		return
	}
	raw, _ := p.Field("data")
	var d uistream.Blob
	if json.Unmarshal(raw, &d) != nil || d.ID == "" || len(d.ID) > 100 || !b.begin(d.ID) {
		return
	}
	row := blob.Row{Session: string(w.id), ID: w.mask.Text(d.ID), Turn: string(w.t.ID), MediaType: "application/octet-stream", Bytes: d.Bytes}
	if slices.Contains(mediaTypes, d.MediaType) {
		row.MediaType = d.MediaType
	}
	b.wg.Go(func() { // stop and harvest wait
		for more := true; more; more = b.again(d.ID) {
			if err := b.take(row); err != nil && !b.stopped() {
				w.r.Slog.Error("take blob over", "session", row.Session, "turn", row.Turn, "blob", row.ID, "error", err)
			}
		}
	})
}

// take settles one blob, if it is not, and lets the driver forget it; unless the recording is stopped: the
// next one does it then.
func (b *blobs) take(row blob.Row) error {
	keep, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), settleTime)
	got, err := b.store.Announce(keep, row)
	cancel()
	if err == nil && got.State == blob.Pending {
		err = b.settle(row)
	}
	if err != nil || b.stopped() {
		return err
	}
	return b.done(row)
}

// settle fetches a blob or says why it is missing. An error: it is still pending.
func (b *blobs) settle(row blob.Row) error {
	reason := ""
	var err error
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
	if reason == "" {
		return nil
	}
	keep, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), settleTime)
	defer cancel()
	return b.store.Miss(keep, row, reason)
}

// done gives the sandbox its room back; one that is gone needs it no more. A driver that does not answer
// holds up no end: what is left of a turn goes when the next one begins.
func (b *blobs) done(row blob.Row) error {
	keep, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), settleTime)
	defer cancel()
	defer context.AfterFunc(b.ctx, func() { time.AfterFunc(lateTime, cancel) })()
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
