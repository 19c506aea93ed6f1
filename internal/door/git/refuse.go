package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

// refuse answers in plain text, which git prints as "remote: …".
func refuse(w http.ResponseWriter, err error) {
	f := fault.From(err)
	status := f.Kind().HTTPStatus()
	switch {
	case status == http.StatusUnauthorized, status == 499, status == http.StatusUnprocessableEntity:
		status = http.StatusForbidden // git would ask for a password, or not know it
	case f.Code == fault.InternalError:
		status = http.StatusBadGateway
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set(door.CodeHeader, string(f.Code))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "hearth: "+f.Sentence()+" ("+string(f.Code)+")\n")
}

func (e *exchange) upstreamError(err error) error {
	var body *fault.Error
	switch {
	case errors.As(err, &body):
		return body
	case errors.Is(err, context.DeadlineExceeded):
		return fault.Wrap(err, fault.ForgeUnavailable, "The git host did not answer in time.")
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("ask the git host: %w", err)
	}
	return fault.Wrap(err, fault.ForgeUnavailable, "The git host cannot be reached.")
}

func statusError(resp *http.Response) error {
	said := ""
	if t, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); t == "text/plain" {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 2048)) // decoration: what can be read of it is enough
		if s := door.Printable(string(b), 500); s != "" {
			said = " It says: " + s
		}
	}
	switch c := resp.StatusCode; {
	case c == http.StatusUnauthorized:
		return fault.New(fault.RepositoryUnreachable, "The git host does not accept Hearth's login for this repository (401).%s", said)
	case c == http.StatusForbidden:
		return fault.New(fault.RepositoryUnreachable, "The git host forbids this to Hearth's login (403).%s", said)
	case c == http.StatusNotFound:
		return fault.New(fault.RepositoryUnreachable, "The git host does not find the repository, or Hearth's login may not see it (404).%s", said)
	case c >= 300 && c < 400:
		return fault.New(fault.RepositoryUnreachable, "The git host redirects elsewhere (%d), which is not followed: the repository was moved.", c)
	case c == http.StatusTooManyRequests || c >= 500:
		return fault.New(fault.ForgeUnavailable, "The git host cannot serve now (%d).%s", c, said)
	default:
		return fault.New(fault.RepositoryUnreachable, "The git host answers with status %d.%s", c, said)
	}
}
