package plain_test

import (
	"net/http/httptest"
	"testing"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/forge/forgetest"
	"github.com/hearthd/hearth/internal/delivery/forge/plain"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

func TestSuite(t *testing.T) {
	t.Parallel()
	forgetest.Run(t, func(t *testing.T, o forgetest.Options) forgetest.Subject {
		t.Helper()
		s := forgetest.Subject{
			Writer:   forge.Credential{Username: "writer", Password: "w-r1ter-canary-0123456789"},
			Reader:   forge.Credential{Username: "reader", Password: "re4der-canary-0123456789"},
			Stranger: forge.Credential{Username: "nobody", Password: "str4nger-canary-012345"},
		}
		srv, err := gitserver.New(gitserver.Options{Dir: t.TempDir(), Users: []gitserver.User{
			{Name: s.Writer.Username, Password: s.Writer.Password, Write: true},
			{Name: s.Reader.Username, Password: s.Reader.Password},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var opts []gitserver.RepoOption
		if o.SHA256 {
			opts = append(opts, gitserver.WithSHA256())
		}
		if o.Branch != "" {
			opts = append(opts, gitserver.WithBranch(o.Branch))
		}
		repo, err := srv.NewRepo(t.Context(), "acme/calc", o.Files, opts...)
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(srv)
		t.Cleanup(web.Close)
		s.Dir, s.Break = repo.Dir, srv.AddFault
		if s.Remote, err = forge.ParseRemote(web.URL+repo.Path(), false); err != nil {
			t.Fatal(err)
		}
		s.Forge = plain.New(plain.Config{Transport: web.Client().Transport})
		return s
	})
}
