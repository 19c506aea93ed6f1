package rest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

func TestBlob(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	turn := w.Begin(id)
	digest := strings.Repeat("0", 63)
	row := func(n string, media string) blob.Row {
		t.Helper()
		r, err := w.Blobs.Announce(t.Context(), blob.Row{Session: string(id), ID: "sha256:" + digest + n, Turn: string(turn.ID), MediaType: media, Bytes: 3})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const content = "<script>\x00\xff\x1b[1m"
	stored, missing, pending := row("1", "text/plain; charset=utf-8"), row("2", ""), row("3", "")
	if err := w.Blobs.Take(t.Context(), stored, func(_ context.Context, out io.Writer) error { _, err := io.WriteString(out, content); return err }); err != nil {
		t.Fatal(err)
	}
	if err := w.Blobs.Miss(t.Context(), missing, "The sandbox did not have it."); err != nil {
		t.Fatal(err)
	}
	get := func(id session.ID, blob, token string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+"/v1/agent-sessions/"+string(id)+"/blobs/"+blob, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := web.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(b)
	}
	res, body := get(id, stored.ID, resttest.Token)
	if res.StatusCode != 200 || body != content {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	for k, want := range map[string]string{"Content-Length": fmt.Sprint(len(content)), "Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff"} {
		if got := res.Header.Get(k); got != want {
			t.Errorf("%s: %q", k, got)
		}
	}
	if got := res.Header.Get("Content-Disposition"); !strings.HasPrefix(got, "attachment; filename=") || !strings.HasSuffix(got, ".txt") {
		t.Errorf("disposition %q", got)
	}
	for name, tt := range map[string]struct {
		id     session.ID
		blob   string
		token  string
		status int
		has    []string
	}{
		"missing": {id, missing.ID, resttest.Token, 404, []string{"BLOB_MISSING", "The sandbox did not have it.", string(turn.ID)}},
		"pending": {id, pending.ID, resttest.Token, 503, []string{"BLOB_PENDING"}},
		"unknown": {id, "sha256:" + digest + "4", resttest.Token, 404, []string{"BLOB_NOT_FOUND"}},
		"a path":  {id, "..%2f..%2fhearth.db", resttest.Token, 404, []string{"BLOB_NOT_FOUND"}},
		"long":    {id, strings.Repeat("x", 200), resttest.Token, 422, []string{"INVALID_INPUT"}},
		"another": {w.Create("y"), stored.ID, resttest.Token, 404, []string{"BLOB_NOT_FOUND"}},
		"foreign": {id, stored.ID, resttest.Foreign, 404, []string{"SESSION_NOT_FOUND"}},
		"nobody":  {id, stored.ID, "", 401, []string{"UNAUTHENTICATED"}},
	} {
		res, body := get(tt.id, tt.blob, tt.token)
		for _, h := range tt.has {
			if res.StatusCode != tt.status || !strings.Contains(body, h) {
				t.Errorf("%s: %d %s", name, res.StatusCode, body)
			}
		}
	}
	w.End(id)
	if res, body := get(id, pending.ID, resttest.Token); res.StatusCode != 404 || !strings.Contains(body, "BLOB_MISSING") || !strings.Contains(body, "The sandbox was gone") {
		t.Errorf("pending in an ended turn: %d %s", res.StatusCode, body)
	}
}
