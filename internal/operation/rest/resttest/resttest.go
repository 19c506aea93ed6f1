// Package resttest runs the whole HTTP surface over a real store for tests: REST,
// stream and hub are the real ones; what a sandbox and a remote would do is told
// by the test through [World]. It starts no sandbox. Start at [New].
package resttest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/audit"
	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/gateway"
	"github.com/hearthd/hearth/internal/http10"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// Tokens of the two workspaces of a [World], and what it is set to.
const (
	Token   = "owner-token-of-the-test"
	Foreign = "token-of-another-workspace"
	Origin  = "https://chat.example.org" // of pages that may call
)

// World is a server without sandboxes.
type World struct {
	URL      string
	Server   *httptest.Server
	Sessions *session.Service
	Hub      *gateway.Hub
	Gateway  *gateway.Gateway
	Log      *slog.Logger
	Store    *sqlite.Store
	Identity *Identity
	Audit    *audit.Log
	// Broken makes reads of the transcript fail while it is set.
	Broken atomic.Bool
	// Unready fails the readiness check while it is set.
	Unready atomic.Bool
	// Step is what the start of every sandbox does; nil: not known.
	Step atomic.Pointer[string]
	// Cut makes bundles break off behind their first bytes while it is set.
	Cut atomic.Bool
	// Blobs keeps blobs; nothing fetches them.
	Blobs  *blob.Store
	t      testing.TB
	logged text
	parts  sync.Map // session id → *atomic.Int64, the last part of its open turn
}

// New starts a world that ends with the test.
func New(t testing.TB) *World {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "hearth.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &World{t: t, Hub: gateway.NewHub(), Store: store, Identity: &Identity{}}
	w.Log = slog.New(slog.NewTextHandler(&w.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.Blobs = &blob.Store{Dir: filepath.Join(t.TempDir(), "blobs"), Rows: store, Secrets: func() [][]byte { return nil }, Now: time.Now, Log: w.Log}
	var ids atomic.Int64
	newID := func(prefix string) string { return fmt.Sprintf("%s_%08d", prefix, ids.Add(1)) }
	w.Sessions = &session.Service{
		Store: store, Log: breakable{store, &w.Broken}, Judge: judge{}, Work: work{}, Viewers: w.Hub,
		Seal: Seal, NewID: newID, Now: time.Now, Wake: func() {}, Slog: w.Log,
	}
	desk := w.attach(newID)
	w.Gateway = &gateway.Gateway{Hub: w.Hub, Sessions: w.Sessions, Recheck: w.Identity.recheck, Audit: w.Audit, Now: time.Now, Log: w.Log}
	registry := operation.NewRegistry(w.Identity.authorize)
	operation.Register(registry, operation.Deps{
		Sessions: w.Sessions, Isolation: "gvisor", Now: time.Now, Bundle: w.bundle, Blobs: w.Blobs, Tickets: desk, Audit: w.Audit,
		Step: func(session.ID) string {
			if p := w.Step.Load(); p != nil {
				return *p
			}
			return ""
		},
		Capabilities: func(context.Context) (operation.Capabilities, error) {
			return operation.Capabilities{
				Version: "test", Sandbox: operation.SandboxCapabilities{Provider: "gvisor", Isolation: "gvisor"},
				Agents: []operation.AgentCapabilities{{Name: "claude", Installed: true, Providers: []string{"anthropic"}, Ready: []string{}}}, Missing: []operation.Missing{},
			}, nil
		},
	})
	h, err := rest.New(rest.Config{
		Registry: registry, StreamForm: gateway.CheckForm, Stream: w.Gateway.ServeStream, Chat: w.Gateway.ServeChat, Watch: w.Gateway.ServeWatch, Tickets: desk,
		Origins: []string{Origin}, Version: rest.Version{Version: "test"}, NewID: newID, Log: w.Log,
		Ready: []rest.Check{{Name: "store", Run: func(ctx context.Context) error {
			if w.Unready.Load() {
				return fault.New(fault.DiskFull, "")
			}
			return store.Ping(ctx)
		}}},
		Authenticate: w.Identity.authenticate,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Server = httptest.NewUnstartedServer(h)
	w.Server.Config.ConnContext = http10.WithConn
	w.Server.Start()
	w.URL = w.Server.URL
	t.Cleanup(func() {
		w.Hub.Close()
		w.Server.Close()
	})
	return w
}

// bundle stands in for git: its bytes only look like a bundle.
func (w *World) bundle(_ context.Context, id string, out io.Writer) error {
	if _, err := io.WriteString(out, "# v2 git bundle\n"+id+"\n"); err != nil {
		return err
	}
	if w.Cut.Load() {
		return fmt.Errorf("git ended: secret detail")
	}
	_, err := out.Write(make([]byte, 100<<10)) // more than is held back for one write
	return err
}

// Owner is who holds [Token].
func (w *World) Owner() session.Caller {
	return session.Caller{Subject: "owner", Workspace: "default", Credential: Token, Author: session.Author{Name: "Ada", Email: "ada@example.org"}}
}

// Create makes a session with a prompt.
func (w *World) Create(prompt string) session.ID {
	w.t.Helper()
	a, err := w.Sessions.Create(w.t.Context(), w.Owner(), session.CreateInput{Repo: "https://git.example.org/a.git", Prompt: prompt}, nil)
	w.must(err)
	return a.Aggregate.Session.ID
}

// Prompt sends a further prompt.
func (w *World) Prompt(id session.ID, prompt string) session.TurnID {
	w.t.Helper()
	a, err := w.Sessions.Prompt(w.t.Context(), w.Owner(), id, session.PromptInput{Prompt: prompt}, nil)
	w.must(err)
	return a.Turn.ID
}

// Get reads a session.
func (w *World) Get(id session.ID) session.Aggregate {
	w.t.Helper()
	a, err := w.Sessions.Get(w.t.Context(), w.Owner(), id)
	w.must(err)
	return a
}

// Begin brings the turn at work to the agent and opens its message.
func (w *World) Begin(id session.ID) *session.Turn {
	w.t.Helper()
	a := w.Get(id)
	if a.Open == nil {
		w.t.Fatalf("no turn of %s is at work", id)
	}
	gen := a.Session.Generation
	if a.Session.Sandbox == session.SandboxStarting {
		w.apply(id, session.SandboxCreated{Generation: gen, Handle: `{}`})
		w.apply(id, session.SandboxReady{Generation: gen})
	}
	w.apply(id, session.Handed{Turn: a.Open.ID, Agent: a.Session.Agent})
	w.apply(id, session.Sent{Turn: a.Open.ID, Rung: "fresh", At: time.Now()})
	w.parts.Store(id, new(atomic.Int64))
	w.Say(id, uistream.Start{MessageID: string(a.Open.ID)}.Part().Raw)
	w.apply(id, session.FirstPart{Turn: a.Open.ID, At: time.Now()})
	return a.Open
}

// Say publishes parts of the turn at work and then stores them.
func (w *World) Say(id session.ID, bodies ...json.RawMessage) {
	w.t.Helper()
	parts := w.Publish(id, bodies...)
	w.must(w.Sessions.Log.Append(w.t.Context(), string(id), parts))
	w.Hub.Stored(id, parts[len(parts)-1].Cursor)
}

// Publish shows parts without storing them.
func (w *World) Publish(id session.ID, bodies ...json.RawMessage) []transcript.Part {
	w.t.Helper()
	turn := w.Get(id).Open.Number
	n, _ := w.parts.Load(id)
	var parts []transcript.Part
	for _, b := range bodies {
		parts = append(parts, transcript.Part{Cursor: transcript.Cursor{Turn: turn, Part: n.(*atomic.Int64).Add(1)}, Body: b})
	}
	w.Hub.Publish(id, parts)
	return parts
}

// Text is a whole block of text, cut into deltas of one word.
func Text(id string, words ...string) []json.RawMessage {
	out := []json.RawMessage{uistream.BlockStart{Kind: uistream.Text, ID: id}.Part().Raw}
	for _, w := range words {
		out = append(out, uistream.BlockDelta{Kind: uistream.Text, ID: id, Delta: w}.Part().Raw)
	}
	return append(out, uistream.BlockEnd{Kind: uistream.Text, ID: id}.Part().Raw)
}

// End ends the turn at work as the agent's end_turn and delivers a commit.
func (w *World) End(id session.ID) { w.EndWith(id, "end_turn", "", session.Delivery{}) }

// EndWith ends the turn at work; without a state of delivery it is pushed.
func (w *World) EndWith(id session.ID, outcome string, code fault.Code, d session.Delivery) {
	w.t.Helper()
	turn := w.Get(id).Open.ID
	w.apply(id, session.AgentDone{Turn: turn, Outcome: outcome, Code: code, Clean: true})
	a := w.Get(id)
	if a.Open == nil || a.Open.ID != turn {
		return
	}
	oid := fmt.Sprintf("%040d", a.Open.Number)
	w.apply(id, session.Packed{Turn: turn, OID: oid, Commits: 1, DiffStat: "1 file changed, 2 insertions(+)"})
	a = w.Get(id)
	if a.Open == nil || a.Open.ID != turn {
		return
	}
	if d.State == "" {
		d = session.Delivery{State: session.DeliveryPushed, OID: oid}
	}
	d.At = time.Now()
	w.apply(id, session.PushSent{Turn: turn})
	w.apply(id, session.Delivered{Turn: turn, Delivery: d, RemoteOID: oid})
}

func (w *World) apply(id session.ID, ev session.Event) {
	w.t.Helper()
	_, err := w.Sessions.Apply(w.t.Context(), id, ev)
	w.must(err)
}

// Apply applies any event.
func (w *World) Apply(id session.ID, ev session.Event) { w.t.Helper(); w.apply(id, ev) }

// Transcript is everything that is stored.
func (w *World) Transcript(id session.ID) []transcript.Part {
	w.t.Helper()
	var out []transcript.Part
	var at transcript.Cursor
	for {
		page, err := w.Sessions.Log.Read(context.WithoutCancel(w.t.Context()), string(id), at, 1000)
		w.must(err)
		if len(page) == 0 {
			return out
		}
		out = append(out, page...)
		at = page[len(page)-1].Cursor
	}
}

func (w *World) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// Seal closes a turn as a recorder does.
func Seal(t *session.Turn, stored []transcript.Part) ([]transcript.Part, error) {
	c := uistream.NewChecker(string(t.ID))
	n := int64(0)
	for _, p := range stored {
		if _, err := c.Stored(p.Body); err != nil {
			return nil, err
		}
		n = p.Cursor.Part
	}
	out := c.Close("The turn has ended.", t.EndedAt)
	out = append(out, uistream.Data{Name: uistream.DataTurnEnd, Data: uistream.ValueOf(map[string]any{"state": t.State, "code": t.Code, "rung": t.Rung})}.Part(), uistream.Finish{FinishReason: uistream.FinishStop}.Part())
	var parts []transcript.Part
	for _, p := range out {
		n++
		parts = append(parts, transcript.Part{Cursor: transcript.Cursor{Turn: t.Number, Part: n}, Body: p.Raw})
	}
	return parts, nil
}

type breakable struct {
	transcript.Log
	broken *atomic.Bool
}

func (b breakable) Read(ctx context.Context, id string, after transcript.Cursor, limit int) ([]transcript.Part, error) {
	if b.broken.Load() {
		return nil, fmt.Errorf("the disk says no: secret detail")
	}
	return b.Log.Read(ctx, id, after, limit)
}

type judge struct{}

func (judge) Agent(_ context.Context, agent, _, _ string) error {
	switch agent {
	case "claude", "codex":
		return nil
	case "absent":
		return fault.New(fault.AgentNotInstalled, "The agent absent is not installed on this server.")
	}
	return fault.New(fault.AgentUnknown, "There is no agent %q.", agent)
}

func (judge) Repository(_ context.Context, ask session.RepositoryAsk) (session.Repository, error) {
	if ask.URL == "https://git.example.org/gone.git" {
		return session.Repository{}, fault.New(fault.RepositoryUnreachable, "")
	}
	if ask.URL == "https://git.example.org/bug.git" {
		return session.Repository{}, fmt.Errorf("connect to 10.0.0.1: secret detail")
	}
	branch := ask.Branch
	if branch == "" {
		branch = "hearth/task-" + ask.Tail
	}
	return session.Repository{URL: ask.URL, Base: "main", BaseOID: fmt.Sprintf("%040x", 10), Format: "sha1", Branch: branch}, nil
}

type work struct{}

func (work) Diff(_ context.Context, _ session.ID, from, to, format string) (session.Diff, error) {
	return session.Diff{From: from, To: to, Format: format, Text: "diff --git a/x b/x\n"}, nil
}
