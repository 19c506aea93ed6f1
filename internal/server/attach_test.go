package server

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite"
	"github.com/hearthd/hearth/internal/ticket"
)

func TestAttach(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	var dbs []*sqlite.Store
	var servers []attach
	for range 2 {
		db, err := sqlite.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		a, err := newAttach(t.Context(), Options{Now: time.Now, Log: slog.New(slog.DiscardHandler)}, db)
		if err != nil {
			t.Fatal(err)
		}
		dbs, servers = append(dbs, db), append(servers, a)
	}
	if !bytes.Equal(servers[0].tickets.Key, servers[1].tickets.Key) {
		t.Error("two servers on one store have two keys")
	}
	if err := dbs[0].PutToken(t.Context(), "hearth_one", "owner", Workspace, time.Now()); err != nil {
		t.Fatal(err)
	}
	who, err := authenticate(t.Context(), dbs[0], "hearth_one")
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := servers[0].tickets.Issue(who, "ses_1", ticket.Watch)
	if err != nil {
		t.Fatal(err)
	}
	got, err := servers[1].tickets.Redeem(t.Context(), text, "ses_1", ticket.Watch)
	if d := cmp.Diff(who, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	may := error(nil)
	check := servers[1].recheck(operation.NewRegistry(func(_ context.Context, _ session.Caller, right operation.Right) error {
		if right != operation.RightRead {
			t.Errorf("the right to %s is asked", right)
		}
		return may
	}))
	if err := check(t.Context(), got); err != nil {
		t.Error(err)
	}
	may = fault.New(fault.SessionNotFound, "")
	if err := check(t.Context(), got); fault.CodeOf(err) != fault.SessionNotFound {
		t.Errorf("without the right: %v", err)
	}
	may = nil
	if err := dbs[0].ReplaceToken(t.Context(), "hearth_two", "owner", Workspace, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := check(t.Context(), got); fault.CodeOf(err) != fault.Unauthenticated {
		t.Errorf("with a token that is void: %v", err)
	}
	if err := check(t.Context(), session.Caller{Subject: "owner", Workspace: Workspace}); fault.CodeOf(err) != fault.Unauthenticated {
		t.Errorf("without a credential: %v", err)
	}
}
