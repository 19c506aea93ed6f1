package driverchan

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

func idOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// A blob is what its id and size say, whatever the guest gives, and goes on where it was cut.
func TestBlobIsHeldToItsID(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 40<<10)
	size := int64(len(content))
	for name, tt := range map[string]struct {
		id    string
		size  int64
		serve func(w http.ResponseWriter, call int, offset int64)
		err   fault.Code
	}{
		"whole": {idOf(content), size, func(w http.ResponseWriter, _ int, at int64) { _, _ = w.Write(content[at:]) }, ""},
		"cut": {idOf(content), size, func(w http.ResponseWriter, call int, at int64) {
			if call < 4 {
				_, _ = w.Write(content[at : at+100_000])
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(content[at:])
		}, ""},
		"empty":        {idOf(nil), 0, func(http.ResponseWriter, int, int64) {}, ""},
		"another":      {idOf([]byte("x")), size, func(w http.ResponseWriter, _ int, at int64) { _, _ = w.Write(content[at:]) }, fault.DriverInvalid},
		"short":        {idOf(content), size + 1, func(w http.ResponseWriter, _ int, at int64) { _, _ = w.Write(content[at:]) }, fault.DriverInvalid},
		"long":         {idOf(content), size - 1, func(w http.ResponseWriter, _ int, at int64) { _, _ = w.Write(content[at:]) }, fault.DriverInvalid},
		"endless":      {idOf(content), size, func(w http.ResponseWriter, _ int, _ int64) { endless(w) }, fault.DriverInvalid},
		"negative":     {idOf(content), -1, nil, fault.DriverInvalid},
		"huge":         {idOf(content), 1 << 40, nil, fault.DriverInvalid},
		"a path":       {"sha256:../../../etc/passwd", 5, nil, fault.DriverInvalid},
		"a path, long": {"sha256:" + "../../../../../../../../../../../../../../../../../../etc/passwd.", 5, nil, fault.DriverInvalid},
		"no id":        {"", 5, nil, fault.DriverInvalid},
		"absent": {idOf(content), size, func(w http.ResponseWriter, _ int, _ int64) {
			w.WriteHeader(404)
			_, _ = io.WriteString(w, `{"code":"BLOB_NOT_FOUND","message":"x"}`)
		}, fault.BlobNotFound},
		"silent": {idOf(content), size, func(w http.ResponseWriter, _ int, at int64) {
			_, _ = w.Write(content[at : at+1])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, fault.SandboxUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New(expect, quiet(), nil)
			calls := 0
			rogue(t, c, hello(1), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tt.serve == nil {
					t.Error("the driver was asked")
					return
				}
				calls++
				at, _ := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
				tt.serve(w, calls, at)
			}))
			limit := 20 * time.Second
			if name == "silent" {
				limit = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			var got bytes.Buffer
			err := c.Client(1).Blob(ctx, "turn_1", tt.id, tt.size, &got)
			if fault.CodeOf(err) != tt.err || int64(got.Len()) > max(tt.size, 0) {
				t.Errorf("%d bytes, %v", got.Len(), err)
			}
			if err == nil && idOf(got.Bytes()) != tt.id {
				t.Error("another content")
			}
		})
	}
}

func endless(w io.Writer) {
	for b := make([]byte, 64<<10); ; {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}
