package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/door/driverchan"
	"github.com/hearthd/hearth/internal/door/egress"
	gitdoor "github.com/hearthd/hearth/internal/door/git"
	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/recorder"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/session"
)

// box is a live sandbox on this server: its doors, its driver, and the recording
// of the turn that runs in it. It lives from the moment the doors are open until
// close; the sandbox itself may outlive it.
type box struct {
	r       *Runner
	session session.ID
	gen     int64
	id      string // of the sandbox
	forge   string // host of the session's repository; empty: none
	dir     string // of the doors
	channel *driverchan.Channel
	driver  *driverchan.Client
	models  *model.Door
	egress  *egress.Door
	log     *slog.Logger

	setup  atomic.Bool            // registries are reachable
	phase  atomic.Pointer[string] // of the setup that goes on; nil: none does
	turn   atomic.Pointer[string] // the turn at work, for doors that must end it
	answer atomic.Int32           // status of the newest call to a model in this turn; 0: there was none
	handle atomic.Pointer[sandbox.Handle]

	ctx    context.Context // of everything below; ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	record func() // stops the recording and waits for it; nil when there is none
	usage  map[string]*counted
}

// counted is what the model door counted of one model in one turn.
type counted struct {
	Model      string `json:"model"`
	Route      string `json:"route"`
	Calls      int64  `json:"calls"`
	Input      int64  `json:"inputTokens"`
	Output     int64  `json:"outputTokens"`
	CacheRead  int64  `json:"cacheReadTokens"`
	CacheWrite int64  `json:"cacheWriteTokens"`
	Estimated  bool   `json:"estimated,omitempty"`
}

// sandboxID names the n-th attempt at a generation: unique for ever.
func sandboxID(id session.ID, gen int64, attempt int) string {
	return fmt.Sprintf("%s%d", sandboxPrefix(id, gen), attempt)
}

// sandboxPrefix begins the names of all attempts at a generation.
func sandboxPrefix(id session.ID, gen int64) string {
	return fmt.Sprintf("h%s-%d-", id[len("ses_"):], gen)
}

// labels of a session's sandboxes.
func labels(id session.ID, gen int64) map[string]string {
	return map[string]string{"hearth": "1", "session": string(id), "generation": fmt.Sprint(gen)}
}

// openBox opens the doors for a sandbox. ctx is the server's: the box lives until
// close or until ctx ends.
func (r *Runner) openBox(ctx context.Context, s session.Session, id string) (*box, error) {
	b := &box{r: r, session: s.ID, gen: s.Generation, id: id, dir: filepath.Join(r.cfg.DoorsDir, id), usage: map[string]*counted{},
		log: r.cfg.Slog.With("session", s.ID, "sandbox", id)}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make doors folder: %w", err)
	}
	if remote, err := forge.ParseRemote(s.Repo, r.cfg.AllowFile); err == nil {
		b.forge, _, _ = strings.Cut(remote.Host, ":")
	}
	cfg := driverapi.Config{
		Version: driverapi.Version, Session: string(s.ID), Sandbox: id, Generation: s.Generation,
		Socket: sandbox.PathSocket, Home: sandbox.PathHome, Work: sandbox.PathWork, State: sandbox.PathState, HoldDoors: time.Minute,
		Ports: []driverapi.Port{
			{Listen: driverapi.ListenEgress, Door: driverapi.DoorEgress}, {Listen: driverapi.ListenGit, Door: driverapi.DoorGit},
			{Listen: driverapi.ListenModel, Door: driverapi.DoorModel}, {Listen: driverapi.ListenTLS, Door: driverapi.DoorTLS},
			{Listen: driverapi.ListenHTTP, Door: driverapi.DoorHTTP},
		},
	}
	raw, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("encode driver configuration: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "driver.json"), raw, 0o644); err != nil { //nolint:gosec // read by the sandbox, holds nothing secret
		return nil, fmt.Errorf("write driver configuration: %w", err)
	}
	set, err := door.Listen(filepath.Join(b.dir, "doors.sock"), b.log)
	if err != nil {
		return nil, err
	}
	b.ctx, b.cancel = context.WithCancel(ctx)
	b.channel = driverchan.New(driverchan.Expect{Session: string(s.ID), Sandbox: id, Generation: s.Generation}, b.log, nil)
	b.driver = b.channel.Client(r.cfg.Fence)
	set.Handle(driverapi.DoorDriver, b.channel)
	routes, err := r.routes(s)
	if err != nil {
		b.log.Warn("no model route", "error", err)
	}
	b.models = model.New(model.Config{Routes: routes, OnKeyRejected: b.keyRejected, OnUsage: b.used, OnEnd: func(status int) { b.answer.Store(int32(status)) }, Memory: r.memory, Log: b.log, Now: r.cfg.Now})
	set.Handle(driverapi.DoorModel, door.HTTP(b.models, b.log))
	eg := egress.New(egress.Config{Allow: b.allow, AllowPrivate: r.cfg.AllowPrivate, Log: b.log, Now: r.cfg.Now})
	set.Handle(driverapi.DoorEgress, door.HTTP(eg, b.log))
	set.Handle(driverapi.DoorHTTP, door.HTTP(eg.ByHost(), b.log))
	set.Handle(driverapi.DoorTLS, eg.TLS())
	b.egress = eg
	git, err := b.git(s)
	if err != nil {
		b.cancel()
		return nil, errors.Join(err, set.Close())
	}
	set.Handle(driverapi.DoorGit, door.HTTP(git, b.log))
	b.wg.Go(func() {
		if err := set.Run(b.ctx); err != nil {
			b.log.Error("doors", "error", err)
		}
		eg.Close()
	})
	return b, nil
}

// call bounds a call to the driver by the box's life: a sandbox that is found gone
// ends what waits for it.
func (b *box) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.ctx, func() { cancel(errBoxClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// errBoxClosed says that a sandbox went while something was asked of it; what
// follows from that has been told to the session already.
var errBoxClosed = fault.New(fault.IllegalMove, "The sandbox has been closed.")

// close shuts the doors and waits for all that goes through them. The sandbox is not touched.
func (b *box) close() {
	b.stopRecording()
	b.cancel()
	b.wg.Wait()
}

// routes to the model provider of a session, by dialect.
func (r *Runner) routes(s session.Session) (map[model.Dialect]model.Route, error) {
	p, err := agent.Lookup(s.Agent)
	if err != nil {
		return nil, err
	}
	name, err := r.provider(p)
	if err != nil {
		return nil, err
	}
	route, err := r.cfg.Models.Route(name)
	if err != nil {
		return nil, err
	}
	d, _ := model.DialectOf(name)
	return map[model.Dialect]model.Route{d: route}, nil
}

// provider is the first of a profile's providers that the server has a key for.
func (r *Runner) provider(p agent.Profile) (string, error) {
	for _, name := range p.Providers() {
		if r.cfg.Models.Has(name) {
			return name, nil
		}
	}
	return "", fault.New(fault.ModelKeyMissing, "%s needs a key for one of these model providers: %s. The server has none of them.", p.Title, strings.Join(p.Providers(), ", ")).
		With("providers", p.Providers())
}

// leaveSetup closes the registries, one way.
func (b *box) leaveSetup() {
	b.setup.Store(false)
	b.egress.Cut()
}

// allow lists the hosts that the sandbox reaches now. The session's own git host is not among
// those that agents may always reach: the git door is the way there.
func (b *box) allow() []string {
	hosts := slices.DeleteFunc(slices.Clone(b.r.cfg.AllowHosts), func(h string) bool { return h == b.forge })
	if b.setup.Load() {
		return slices.Concat(b.r.cfg.Registries, hosts)
	}
	return hosts
}

// git makes the git door: the session's repository at the forge, and its packed work.
func (b *box) git(s session.Session) (http.Handler, error) {
	mux := http.NewServeMux()
	work, err := gitdoor.Local(b.r.cfg.Delivery.Path(string(s.ID)), b.log)
	if err != nil {
		return nil, err
	}
	mux.Handle(workPath+"/", http.StripPrefix(workPath, work))
	if s.Repo == "" {
		return mux, nil
	}
	remote, err := forge.ParseRemote(s.Repo, b.r.cfg.AllowFile)
	if err != nil {
		return nil, err
	}
	get := func(ctx context.Context) (session.Session, error) {
		a, err := b.r.cfg.Store.Get(ctx, b.session)
		return a.Session, err
	}
	if remote.File() {
		return mux, nil // read from the packed work, pushed by the server
	}
	up, err := gitdoor.New(gitdoor.Config{
		Upstream: remote.URL, Path: remote.DoorPath(), Branch: s.Branch, MayPush: true, Log: b.log, Dir: b.r.cfg.TempDir,
		Credential: func(ctx context.Context) (forge.Credential, error) { return b.r.cfg.Forge.Credential(ctx, remote) },
		Known:      func(ctx context.Context) (string, error) { s, err := get(ctx); return s.RemoteOID, err },
		Moved: func(ctx context.Context, _, oid string) error {
			_, err := b.r.cfg.Service.Apply(ctx, b.session, session.RemoteMoved{OID: oid})
			return err
		},
		// What others have put on the branch stays; what this session pushed since may be replaced by it.
		Floor: func(ctx context.Context) (string, error) { s, err := get(ctx); return s.FloorOID, err },
		Descends: func(ctx context.Context, floor, candidate string, pack io.Reader) (bool, error) {
			cred, err := b.r.cfg.Forge.Credential(ctx, remote)
			if err != nil {
				return false, err
			}
			return b.r.cfg.Delivery.Descends(ctx, delivery.DescendsRequest{
				Session: string(s.ID), Scope: s.Workspace, Remote: remote, Credential: cred, Branch: s.Branch, Floor: floor, Candidate: candidate, Pack: pack,
			})
		},
	})
	if err != nil {
		return nil, fmt.Errorf("git door: %w", err)
	}
	mux.Handle("/", up)
	return mux, nil
}

// workPath is where the git door offers the session's packed work, read-only.
const workPath = "/hearth/work.git"

func (b *box) keyRejected(status int, sentence string) {
	turn := b.turn.Load()
	if turn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	_, err := b.r.cfg.Service.Apply(ctx, b.session, session.FailAsked{Turn: session.TurnID(*turn), Code: fault.ModelKeyRejected, Message: sentence})
	if err != nil && fault.CodeOf(err) != fault.IllegalMove {
		b.log.Error("end turn over a refused key", "status", status, "error", err)
	}
}

func (b *box) used(u model.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.usage[u.Model]
	if c == nil {
		c = &counted{Model: u.Model, Route: u.Route}
		b.usage[u.Model] = c
	}
	c.Calls++
	c.Input += u.Input
	c.Output += u.Output
	c.CacheRead += u.CacheRead
	c.CacheWrite += u.CacheWrite
	c.Estimated = c.Estimated || u.Estimated
}

// spent is the usage since the turn began, as JSON.
func (b *box) spent() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.usage) == 0 {
		return ""
	}
	list := make([]*counted, 0, len(b.usage))
	for _, c := range b.usage {
		list = append(list, c)
	}
	slices.SortFunc(list, func(x, y *counted) int { return int(y.Output - x.Output) })
	raw, err := json.Marshal(map[string]any{"models": list})
	if err != nil {
		return ""
	}
	return string(raw)
}

// told is what the model door knows of the turn at its end.
func (b *box) told() recorder.Told {
	return recorder.Told{Usage: b.spent(), Status: int(b.answer.Load())}
}

// startRecording records a turn until it ends; an older recording is stopped first.
func (b *box) startRecording(t session.Turn) {
	b.stopRecording()
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	b.mu.Lock()
	b.record = func() { cancel(); <-done }
	b.mu.Unlock()
	id := string(t.ID)
	b.turn.Store(&id)
	b.wg.Go(func() {
		defer close(done)
		defer cancel()
		for wait := 200 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
			err := b.r.cfg.Recorder.Record(ctx, b.driver, b.session, t, b.told)
			if err == nil || ctx.Err() != nil {
				return
			}
			if c := fault.CodeOf(err); c == fault.SessionNotFound {
				return
			}
			b.log.Error("record turn; trying again", "turn", t.ID, "error", err)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
	})
}

func (b *box) stopRecording() {
	b.mu.Lock()
	stop := b.record
	b.record = nil
	b.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// begin forgets what was counted for the turn before.
func (b *box) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.usage = map[string]*counted{}
	b.answer.Store(0)
}

// box returns the live box of a session's generation; nil when it is not here.
func (r *Runner) box(id session.ID, gen int64) *box {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.boxes[id]; b != nil && b.gen == gen {
		return b
	}
	return nil
}

// StartStep is what a start of the session's sandbox does now: sandbox, or clone or
// setup as its driver tells.
func (r *Runner) StartStep(id session.ID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.boxes[id]; b != nil {
		if p := b.phase.Load(); p != nil {
			return *p
		}
	}
	return "sandbox"
}

func (r *Runner) put(b *box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.boxes[b.session] = b
}

// drop takes a box out and closes it; its doors folder goes when the sandbox is gone.
func (r *Runner) drop(b *box) {
	r.mu.Lock()
	if r.boxes[b.session] == b {
		delete(r.boxes, b.session)
	}
	r.mu.Unlock()
	b.close()
}

// Live counts sandboxes that this server serves.
func (r *Runner) Live() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.boxes)
}
