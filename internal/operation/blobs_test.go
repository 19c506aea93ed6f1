package operation_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
)

// An output of bytes says how many they are where that is known before they are made.
func TestSizeOfBytes(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	const key, content = "sk-CANARY-0123456789abcdefghij", "the key is [masked]."
	w.Blobs.Secrets = func() [][]byte { return [][]byte{[]byte(key)} }
	row, err := w.Blobs.Announce(t.Context(), blob.Row{Session: string(id), ID: "sha256:" + strings.Repeat("0", 64), Turn: string(w.Begin(id).ID), Bytes: 42})
	if err == nil {
		err = w.Blobs.Take(t.Context(), row, func(_ context.Context, out io.Writer) error {
			_, err := io.WriteString(out, "the key is "+key+".")
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	w.End(id) // there is a bundle
	r := operation.NewRegistry(operation.OwnerMay)
	operation.Register(r, operation.Deps{
		Sessions: w.Sessions, Now: time.Now, Blobs: w.Blobs,
		Bundle: func(context.Context, string, io.Writer) error { return nil },
	})
	want := map[string]int64{"blob": int64(len(content)), "export": 0, "bundle": 0}
	for _, o := range r.Operations {
		size, ok := want[o.Name]
		if !ok {
			continue
		}
		delete(want, o.Name)
		in := map[string]any{"id": string(id)}
		if o.Name == "blob" {
			in["blob"] = row.ID
		}
		out, err := r.Invoke(t.Context(), o, operation.Call{Caller: w.Owner()}, in)
		if err != nil {
			t.Errorf("%s: %v", o.Name, err)
			continue
		}
		if b, ok := out.(operation.Blob); !ok || b.Size != size {
			t.Errorf("%s: %+v", o.Name, out)
		}
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
}
