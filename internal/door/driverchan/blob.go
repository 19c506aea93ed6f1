package driverchan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

// Blob writes a blob of a turn to w as it comes, over cuts of the connection. It is
// held against its id and the size that was told for it: more is not read, and where less comes or
// another content, the error, DRIVER_INVALID, comes after w had it. BLOB_NOT_FOUND: the
// driver has none. How long it may take is ctx's.
func (c *Client) Blob(ctx context.Context, turn, id string, size int64, w io.Writer) error {
	digest, ok := uistream.BlobDigest(id)
	if !ok || size < 0 || size > uistream.MaxBlobBytes {
		return invalid("the id or size of a blob")
	}
	h := sha256.New()
	got := int64(0)
	for wait := againFirst; ; wait = min(2*wait, againMost) {
		n, err := c.blobOnce(ctx, turn, id, got, size, io.MultiWriter(w, h))
		if got += n; n > 0 {
			wait = againFirst
		}
		if err == nil {
			break
		}
		if err := c.pause(ctx, err, wait); err != nil {
			return err
		}
	}
	switch {
	case got < size:
		return invalid(fmt.Sprintf("a blob of %d bytes instead of %d", got, size))
	case hex.EncodeToString(h.Sum(nil)) != digest:
		return invalid("a blob that is another than its id says")
	}
	return nil
}

// blobOnce copies from an offset on, as far as the connection lasts.
func (c *Client) blobOnce(ctx context.Context, turn, id string, offset, size int64, w io.Writer) (int64, error) {
	resp, err := c.do(ctx, http.MethodGet, blobPath(turn, id)+"?offset="+strconv.FormatInt(offset, 10), nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	buf := make([]byte, 64<<10)
	for n := int64(0); ; {
		k, err := resp.Body.Read(buf)
		if n+int64(k) > size-offset {
			return n, invalid("a blob that is larger than was told")
		}
		if _, werr := w.Write(buf[:k]); werr != nil {
			return n, werr
		}
		n += int64(k)
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil && ctx.Err() != nil:
			return n, fault.Wrap(errors.Join(context.Cause(ctx), err), fault.SandboxUnreachable, "The sandbox's driver did not give the blob in time.")
		case err != nil:
			return n, &cutError{err}
		}
	}
}

// BlobDone tells the driver that a blob is not needed any more.
func (c *Client) BlobDone(ctx context.Context, turn, id string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return c.noAnswer(ctx, http.MethodDelete, blobPath(turn, id), nil)
}

func blobPath(turn, id string) string {
	return strings.Replace(path(driverapi.PathBlob, turn), "{blob}", url.PathEscape(id), 1)
}
