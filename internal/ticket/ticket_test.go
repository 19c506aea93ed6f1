package ticket_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite"
	"github.com/hearthd/hearth/internal/ticket"
)

const token = "hearth_secret-token-of-ada"

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// counter hands out tickets of one server over a store.
type counter struct {
	*ticket.Desk
	store *sqlite.Store
	now   atomic.Pointer[time.Time]
}

func open(t testing.TB, path string) *counter {
	t.Helper()
	db, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	key, err := db.Key(t.Context(), ticket.KeyName, ticket.NewKey(), start)
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{store: db}
	c.at(start)
	c.Desk = &ticket.Desk{Key: key, Nonces: db, Now: func() time.Time { return *c.now.Load() }, Resolve: func(ctx context.Context, credential string) (session.Caller, error) {
		name, workspace, err := db.Credential(ctx, credential)
		return session.Caller{Subject: name, Workspace: workspace, Credential: credential, Author: session.Author{Name: "now " + name}}, err
	}}
	return c
}

func (c *counter) at(t time.Time) { c.now.Store(&t) }

func desk(t testing.TB) *counter {
	t.Helper()
	c := open(t, filepath.Join(t.TempDir(), "x.db"))
	if err := c.store.PutToken(t.Context(), token, "ada", "default", start); err != nil {
		t.Fatal(err)
	}
	return c
}

func ada() session.Caller {
	return session.Caller{Subject: "ada", Workspace: "default", Credential: sqlite.CredentialOf(token)}
}

func (c *counter) issue(t testing.TB, action ticket.Action) string {
	t.Helper()
	text, expires, err := c.Issue(ada(), "ses_1", action)
	if err != nil {
		t.Fatal(err)
	}
	if !expires.Equal(c.now.Load().Add(90 * time.Second)) {
		t.Errorf("expires at %s", expires)
	}
	return text
}

func TestRedeem(t *testing.T) {
	t.Parallel()
	c := desk(t)
	for _, x := range []struct {
		name          string
		issued, asked ticket.Action
		session       session.ID
		after         time.Duration
		code          fault.Code
	}{
		{"watch", ticket.Watch, ticket.Watch, "ses_1", 0, ""},
		{"prompt", ticket.Prompt, ticket.Prompt, "ses_1", 0, ""},
		{"prompt opens what watch opens", ticket.Prompt, ticket.Watch, "ses_1", 0, ""},
		{"watch does not open what prompt opens", ticket.Watch, ticket.Prompt, "ses_1", 0, fault.TicketInvalid},
		{"another session", ticket.Watch, ticket.Watch, "ses_2", 0, fault.TicketInvalid},
		{"the last moment", ticket.Watch, ticket.Watch, "ses_1", 90*time.Second - time.Microsecond, ""},
		{"too late", ticket.Watch, ticket.Watch, "ses_1", 90 * time.Second, fault.TicketInvalid},
	} {
		c.at(start)
		text := c.issue(t, x.issued)
		c.at(start.Add(x.after))
		who, err := c.Redeem(t.Context(), text, x.session, x.asked)
		if fault.CodeOf(err) != x.code && (err != nil || x.code != "") {
			t.Errorf("%s: %v", x.name, err)
		}
		if err == nil {
			want := ada()
			want.Author.Name = "now ada"
			if d := cmp.Diff(want, who); d != "" {
				t.Errorf("%s: %s", x.name, d)
			}
			if _, err := c.Redeem(t.Context(), text, x.session, x.asked); fault.CodeOf(err) != fault.TicketInvalid {
				t.Errorf("%s, again: %v", x.name, err)
			}
		}
	}
	if _, _, err := c.Issue(ada(), "ses_1", "write"); fault.CodeOf(err) != fault.InvalidInput {
		t.Errorf("an action that is none: %v", err)
	}
}

// What a ticket was refused for does not use it up.
func TestRefusedIsNotUsed(t *testing.T) {
	t.Parallel()
	c := desk(t)
	text := c.issue(t, ticket.Watch)
	for range 3 {
		if _, err := c.Redeem(t.Context(), text, "ses_2", ticket.Watch); err == nil {
			t.Error("it opened another session")
		}
	}
	if _, err := c.Redeem(t.Context(), text, "ses_1", ticket.Watch); err != nil {
		t.Error(err)
	}
}

func TestForged(t *testing.T) {
	t.Parallel()
	c := desk(t)
	text := c.issue(t, ticket.Watch)
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 200 || bytes.Contains(raw, []byte(token)) {
		t.Errorf("%d bytes: %q", len(raw), raw)
	}
	refused := func(what, text string) {
		t.Helper()
		if _, err := c.Redeem(t.Context(), text, "ses_1", ticket.Watch); fault.CodeOf(err) != fault.TicketInvalid || len(text) > 20 && strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range raw {
		for bit := range 8 {
			b := bytes.Clone(raw)
			b[i] ^= 1 << bit
			refused("a bit of the bytes", base64.RawURLEncoding.EncodeToString(b))
		}
	}
	for i := range len(text) {
		for _, r := range []byte("A_-9=.\n ") {
			if text[i] != r {
				refused("a character", text[:i]+string(r)+text[i+1:])
			}
			refused("a character more", text[:i]+string(r)+text[i:])
		}
		refused("a beginning", text[:i])
		refused("an end", text[i+1:])
	}
	other := open(t, filepath.Join(t.TempDir(), "y.db"))
	refused("of another store", other.issue(t, ticket.Watch))
	refused("long", strings.Repeat("A", 1<<20))
	if _, err := c.Redeem(t.Context(), text, "ses_1", ticket.Watch); err != nil {
		t.Errorf("the real one, after all that: %v", err)
	}
}

// Two servers on one store: a ticket of one is good at the other, and once.
func TestUsedOnceAcrossServers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	one := open(t, path)
	two := open(t, path)
	if !bytes.Equal(one.Key, two.Key) {
		t.Fatal("they have two keys")
	}
	if err := one.store.PutToken(t.Context(), token, "ada", "default", start); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		text := one.issue(t, ticket.Watch)
		var won atomic.Int32
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				d := []*counter{one, two}[i%2]
				_, err := d.Redeem(t.Context(), text, "ses_1", ticket.Watch)
				switch {
				case err == nil:
					won.Add(1)
				case fault.CodeOf(err) != fault.TicketInvalid:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Errorf("%d of 50 got in", won.Load())
		}
	}
}

func TestWhoAskedMustStillBeThere(t *testing.T) {
	t.Parallel()
	c := desk(t)
	text := c.issue(t, ticket.Watch)
	next := c.issue(t, ticket.Watch)
	if err := c.store.ReplaceToken(t.Context(), "hearth_another", "ada", "default", start); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Redeem(t.Context(), text, "ses_1", ticket.Watch); fault.CodeOf(err) != fault.Unauthenticated {
		t.Errorf("of a token that is void: %v", err)
	}
	if _, err := c.Redeem(t.Context(), text, "ses_1", ticket.Watch); fault.CodeOf(err) != fault.TicketInvalid {
		t.Errorf("it was not used up: %v", err)
	}
	// The same token, in another workspace now.
	if err := c.store.PutToken(t.Context(), token, "ada", "elsewhere", start); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Redeem(t.Context(), next, "ses_1", ticket.Watch); fault.CodeOf(err) != fault.Unauthenticated {
		t.Errorf("of another workspace: %v", err)
	}
	for _, credential := range []string{"", "0", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("%", 32)} {
		if _, _, err := c.store.Credential(t.Context(), credential); fault.CodeOf(err) != fault.Unauthenticated {
			t.Errorf("credential %q: %v", credential, err)
		}
	}
}

func TestWithoutKeyNothingIsGood(t *testing.T) {
	t.Parallel()
	c := desk(t)
	text := c.issue(t, ticket.Watch)
	for _, key := range [][]byte{nil, {}, make([]byte, 31)} {
		c.Key = key
		if _, err := c.Redeem(t.Context(), text, "ses_1", ticket.Watch); err == nil {
			t.Error("redeemed")
		}
		if _, _, err := c.Issue(ada(), "ses_1", ticket.Watch); err == nil {
			t.Error("issued")
		}
	}
}

func TestNoncesAreForgotten(t *testing.T) {
	t.Parallel()
	c := desk(t)
	spend := func(n byte, at time.Time) bool {
		t.Helper()
		first, err := c.store.Spend(t.Context(), []byte{n}, at.Add(ticket.Lifetime), at)
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	if !spend(1, start) || spend(1, start) {
		t.Error("not once")
	}
	// Another server's clock may be ahead; it must not make the ticket good again.
	if !spend(2, start.Add(10*time.Minute)) || spend(1, start) {
		t.Error("good again")
	}
	if !spend(3, start.Add(3*time.Hour)) || !spend(1, start.Add(3*time.Hour)) {
		t.Error("kept for ever")
	}
}

func FuzzRedeem(f *testing.F) {
	c := desk(f)
	text, _, err := c.Issue(ada(), "ses_1", ticket.Watch)
	if err != nil {
		f.Fatal(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw, true)
	f.Add(raw, false)
	f.Add(raw[:26], true)
	f.Add([]byte(text), false)
	f.Add([]byte{}, true)
	c.Nonces = never{}
	f.Fuzz(func(t *testing.T, b []byte, encode bool) {
		s := string(b)
		if encode {
			s = base64.RawURLEncoding.EncodeToString(b)
		}
		_, err := c.Redeem(t.Context(), s, "ses_1", ticket.Watch)
		switch {
		case err == nil && s != text:
			t.Errorf("%q is good", s)
		case err != nil && fault.CodeOf(err) != fault.TicketInvalid:
			t.Error(err)
		}
	})
}

type never struct{}

func (never) Spend(context.Context, []byte, time.Time, time.Time) (bool, error) { return true, nil }

// What is well formed comes through the coding as it was.
func FuzzNames(f *testing.F) {
	f.Add("ada", "default", "ses_1")
	f.Add("", "", "")
	f.Add("a\x00b", strings.Repeat("w", 300), "s\xff")
	c := desk(f)
	c.Nonces = never{}
	f.Fuzz(func(t *testing.T, subject, workspace, id string) {
		c := &ticket.Desk{Key: c.Key, Nonces: never{}, Now: c.Now, Resolve: func(context.Context, string) (session.Caller, error) {
			return session.Caller{Subject: subject, Workspace: workspace}, nil
		}}
		text, _, err := c.Issue(session.Caller{Subject: subject, Workspace: workspace, Credential: "x"}, session.ID(id), ticket.Prompt)
		if err != nil {
			if len(subject)+len(workspace)+len(id) < 2000 {
				t.Error(err)
			}
			return
		}
		if _, err := c.Redeem(t.Context(), text, session.ID(id), ticket.Prompt); err != nil {
			t.Error(err)
		}
		if _, err := c.Redeem(t.Context(), text, session.ID(id+"x"), ticket.Prompt); err == nil {
			t.Error("another session")
		}
	})
}

// Verify says what Redeem would, and uses nothing up.
func TestVerify(t *testing.T) {
	t.Parallel()
	c := desk(t)
	text := c.issue(t, ticket.Watch)
	for name, err := range map[string]error{
		"forged":          c.Verify("A"+text, "ses_1", ticket.Watch),
		"another session": c.Verify(text, "ses_2", ticket.Watch),
		"another action":  c.Verify(text, "ses_1", ticket.Prompt),
	} {
		if fault.CodeOf(err) != fault.TicketInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 3 {
		if err := c.Verify(text, "ses_1", ticket.Watch); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Redeem(t.Context(), text, "ses_1", ticket.Watch); err != nil {
		t.Error(err)
	}
	c.at(start.Add(90 * time.Second))
	if err := c.Verify(text, "ses_1", ticket.Watch); fault.CodeOf(err) != fault.TicketInvalid {
		t.Errorf("too late: %v", err)
	}
}
