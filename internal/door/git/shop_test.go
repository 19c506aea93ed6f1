package git_test

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/forge/forgetest"
	"github.com/hearthd/hearth/internal/delivery/forge/plain"
)

// shop is the delivery store behind a door, as the server wires them.
type shop struct {
	store  *delivery.Store
	remote forge.Remote
	login  forge.Credential
}

func (s *shop) prepare(t *testing.T, b *bench) {
	t.Helper()
	var err error
	if s.remote, err = forge.ParseRemote(b.cfg.Upstream, false); err != nil {
		t.Fatal(err)
	}
	s.login = forge.Credential{Username: "hearth", Password: token}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	s.store = forgetest.Store(t, plain.New(plain.Config{Transport: transport}))
	_, err = s.store.Prepare(t.Context(), delivery.PrepareRequest{Session: "s1", Remote: s.remote, Credential: s.login, Branch: branch})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *shop) descends(ctx context.Context, _ *bench, floor, candidate string, pack io.Reader) (bool, error) {
	return s.store.Descends(ctx, delivery.DescendsRequest{
		Session: "s1", Remote: s.remote, Credential: s.login, Branch: branch, Floor: floor, Candidate: candidate, Pack: pack,
	})
}
