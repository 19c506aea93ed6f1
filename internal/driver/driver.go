// Package driver is the program that is pid 1 of a sandbox: it owns the agent,
// turns what the agent says into parts, keeps each turn's log, packs the work,
// and offers the loopback ports that lead out through the doors. The server
// commands it over the connection that the driver dials (package driverapi has
// the calls, package driverchan the other end).
//
// It holds no secret and decides about nothing that leaves the sandbox; the
// server checks what it says. Start at [Driver.Run]; a turn is in package turn,
// the repository in worktree, processes in proc.
package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/driver/agent"
	"github.com/hearthd/hearth/internal/driver/blobs"
	"github.com/hearthd/hearth/internal/driver/proc"
	"github.com/hearthd/hearth/internal/driver/reserve"
	"github.com/hearthd/hearth/internal/driver/turn"
	"github.com/hearthd/hearth/internal/driver/turnlog"
	"github.com/hearthd/hearth/internal/driver/worktree"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

// Options of a driver beside its configuration.
type Options struct {
	Build string   // names this build
	Env   []string // of the program, the ground for the environment of what is started
	Procs *proc.Table
	Now   func() time.Time
	Log   *slog.Logger
	// MaxParts is how many parts a turn may have; zero: what the server takes.
	MaxParts int64
}

// Driver is one driver. Run it once.
type Driver struct {
	cfg  driverapi.Config
	o    Options
	boot int64
	tree *worktree.Tree
	logs *turnlog.Store
	room *reserve.Reserve // of disk
	blob *blobs.Store

	wg       sync.WaitGroup // turns and setups; Run waits
	stopping chan struct{}  // closed when Run ends

	starting sync.Mutex // one start of an agent at a time

	mu          sync.Mutex
	kept        kept
	portsFailed []string
	agent       *agent.Agent
	agentReq    driverapi.AgentRequest
	turn        *turn.Turn
	turnID      string
	setup       *setupRun
}

// kept is what outlives the process.
type kept struct {
	Boot  int64 `json:"boot"`
	Fence int64 `json:"fence"`
}

const reserveBytes = 8 << 20

// LoadConfig reads and checks the configuration file.
func LoadConfig(path string) (driverapi.Config, error) {
	var c driverapi.Config
	b, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read configuration %s: %w", path, err)
	}
	if c.Version != driverapi.Version {
		return c, fmt.Errorf("the configuration is of version %d, this driver wants %d", c.Version, driverapi.Version)
	}
	for name, v := range map[string]string{"socket": c.Socket, "home": c.Home, "work": c.Work, "state": c.State} {
		if !filepath.IsAbs(v) {
			return c, fmt.Errorf("the configuration's %s %q is not an absolute path", name, v)
		}
	}
	return c, nil
}

// New makes a driver and takes over what a former one left.
func New(cfg driverapi.Config, o Options) (*Driver, error) {
	for _, dir := range []string{cfg.State, cfg.Home} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make folder: %w", err)
		}
	}
	room := reserve.New(filepath.Join(cfg.State, "reserve"), reserveBytes)
	room.Room() // turns that were cut get their end
	logs, err := turnlog.Open(filepath.Join(cfg.State, "turns"), o.Now)
	if err != nil {
		return nil, err
	}
	keep, err := blobs.Open(filepath.Join(cfg.State, "blobs"))
	if err != nil {
		return nil, err
	}
	d := &Driver{
		cfg: cfg, o: o, logs: logs, room: room, blob: keep, stopping: make(chan struct{}),
		tree: &worktree.Tree{Procs: o.Procs, Work: cfg.Work, Home: cfg.Home, State: filepath.Join(cfg.State, "git"), Env: o.Env, Log: o.Log, Now: o.Now},
	}
	b, err := os.ReadFile(d.keptPath())
	if err == nil {
		err = json.Unmarshal(b, &d.kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the driver's state: %w", err)
	}
	d.kept.Boot++
	d.boot = d.kept.Boot
	if err := d.keep(); err != nil {
		o.Log.Error("keep the driver's state", "error", err) // a full disk: it is said where it hurts
	}
	return d, nil
}

func (d *Driver) keptPath() string { return filepath.Join(d.cfg.State, "driver.json") }

func (d *Driver) keep() error {
	b, err := json.Marshal(d.kept)
	if err != nil {
		return err
	}
	tmp := d.keptPath() + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.keptPath())
}

// Run serves until ctx ends. Then it ends the agent and waits for everything.
func (d *Driver) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ports sync.WaitGroup
	for _, p := range d.cfg.Ports {
		d.openPort(ctx, &ports, p)
	}
	d.wg.Go(d.balance) // beside the dialing, which it would hold up
	d.dialForEver(ctx)
	close(d.stopping)
	d.wg.Wait()
	d.mu.Lock()
	a := d.agent
	d.mu.Unlock()
	if a != nil {
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		a.Kill(end)
	}
	ports.Wait()
	return nil
}

// outlive makes a context for work that goes on when the call that began it is cut, until Run ends.
func (d *Driver) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() { // ends with the work
		select {
		case <-d.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// hello is what the driver says of itself.
func (d *Driver) hello() driverapi.Hello {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := driverapi.Hello{
		Version: driverapi.Version, Driver: d.o.Build, Session: d.cfg.Session, Sandbox: d.cfg.Sandbox,
		Generation: d.cfg.Generation, Boot: d.boot, Turn: d.turnID,
	}
	if l := d.logs.Get(d.turnID); l != nil {
		h.Part = l.Last()
	}
	return h
}

// fence takes the fence of a call and refuses one that is lower than another before.
func (d *Driver) fence(f int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f < d.kept.Fence {
		return fault.New(fault.FenceStale, "The call has the fence %d, another had %d.", f, d.kept.Fence)
	}
	if f > d.kept.Fence {
		d.kept.Fence = f
		if err := d.keep(); err != nil {
			d.o.Log.Error("keep the fence", "error", err)
		}
	}
	return nil
}

func (d *Driver) status() driverapi.Status {
	s := driverapi.Status{Hello: d.hello()}
	s.Setup, s.Head = d.tree.Ready()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.agent != nil && d.agent.Alive() {
		s.Agent = d.agent.Fingerprint
	}
	s.PortsFailed = d.portsFailed
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.cfg.State, &st); err == nil {
		s.Free = int64(st.Bavail) * st.Bsize
	}
	return s
}

// startAgent gives the agent with the request's fingerprint, starting it where
// needed. It goes on when the caller goes away.
func (d *Driver) startAgent(ctx context.Context, req driverapi.AgentRequest) (*agent.Agent, bool, error) {
	d.starting.Lock()
	defer d.starting.Unlock()
	ctx, cancel := d.outlive(ctx)
	defer cancel()
	d.mu.Lock()
	old, busy := d.agent, d.turn != nil
	d.mu.Unlock()
	if old != nil && old.Fingerprint == req.Fingerprint && old.Alive() {
		return old, true, nil
	}
	if busy {
		return nil, false, fault.New(fault.TurnInFlight, "A turn is at work; another agent cannot be started.")
	}
	a, err := d.replaceAgent(ctx, old, req)
	return a, false, err
}

// replaceAgent ends the old agent and starts one.
func (d *Driver) replaceAgent(ctx context.Context, old *agent.Agent, req driverapi.AgentRequest) (*agent.Agent, error) {
	if old != nil {
		end, cancel := context.WithTimeout(ctx, time.Second)
		old.Kill(end)
		cancel()
	}
	if req.Dir == "" {
		req.Dir = d.cfg.Home
	}
	base := worktree.MergeEnv(d.o.Env, []string{"HOME=" + d.cfg.Home})
	start := func() (*agent.Agent, error) {
		return agent.Start(ctx, req, worktree.MergeEnv(base, req.Env), agent.Options{
			Procs: d.o.Procs, Version: d.o.Build, Log: d.o.Log, SpillDir: d.blob.SpillDir(), SpillRoom: d.blob.Room,
		})
	}
	d.room.Room()
	a, err := start()
	if fault.CodeOf(err) == fault.DiskFull && d.room.Free() {
		a, err = start()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.agent, d.agentReq = a, req
	return a, err
}

// startTurn begins a turn once. taken is false when it was begun before.
func (d *Driver) startTurn(ctx context.Context, id string, req driverapi.TurnRequest) (part int64, taken bool, err error) {
	if l := d.logs.Get(id); l != nil {
		return l.Last(), false, nil
	}
	if !turnlog.ValidName(id) {
		return 0, false, fault.New(fault.InvalidInput, "%.80q cannot be a turn's id.", id)
	}
	if req.Prompt == "" || len(req.Attempts) == 0 {
		return 0, false, fault.New(fault.InvalidInput, "A turn needs a prompt and a rung to try.")
	}
	d.starting.Lock() // no agent is replaced meanwhile, and no turn begun
	defer d.starting.Unlock()
	if err := d.idle(); err != nil {
		return 0, false, err
	}
	d.balance()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.agent == nil || d.agent.Fingerprint != req.Fingerprint || !d.agent.Alive() {
		return 0, false, fault.New(fault.AgentExited, "The agent of this turn does not run.")
	}
	l, err := d.logs.Create(id)
	switch {
	case errors.Is(err, turnlog.ErrExists):
		return l.Last(), false, nil
	case turnlog.Full(err):
		return 0, false, fault.Wrap(err, fault.DiskFull, "The sandbox's disk is full.")
	case err != nil:
		return 0, false, err
	}
	agentReq := d.agentReq
	t := turn.New(turn.Options{
		Finished: func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.turn = nil
		},
		Free: d.room.Free, Room: d.room.Room,
		ID: id, Request: req, Agent: d.agent, Work: d.cfg.Work, Log: l, Blobs: d.blob.Turn(id), Now: d.o.Now, Logger: d.o.Log, MaxParts: d.o.MaxParts,
		Restart: func(ctx context.Context) (*agent.Agent, error) {
			d.starting.Lock()
			defer d.starting.Unlock()
			return d.replaceAgent(ctx, nil, agentReq)
		},
	})
	d.turn, d.turnID = t, id
	ctx, cancel := d.outlive(ctx)
	d.wg.Go(func() {
		defer cancel()
		t.Run(ctx)
	})
	return 0, true, nil
}

func (d *Driver) cancelTurn(id string, req driverapi.CancelRequest) error {
	if d.logs.Get(id) == nil {
		return fault.New(fault.TurnNotFound, "The driver does not know this turn.")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.turn != nil && d.turnID == id {
		d.turn.Cancel(req)
	}
	return nil
}

func (d *Driver) answer(id string, req driverapi.AnswerRequest) error {
	d.mu.Lock()
	t := d.turn
	known := t != nil && d.turnID == id
	d.mu.Unlock()
	if !known {
		return fault.New(fault.TurnNotFound, "That turn is not at work in this driver.")
	}
	return t.Answer(req)
}

// balance makes the reserve of disk what it should be. Without one the driver works on.
func (d *Driver) balance() {
	if err := d.room.Balance(); err != nil {
		d.o.Log.Warn("reserve of disk", "error", err)
	}
}

// withRoom does what needs some disk while no turn is at work: on a full disk with the reserve.
func (d *Driver) withRoom(f func() error) error {
	d.room.Room()
	err := f()
	if fault.CodeOf(err) == fault.DiskFull && d.room.Free() {
		err = f()
	}
	return err
}

// idle is an error while a turn is at work.
func (d *Driver) idle() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.turn != nil {
		return fault.New(fault.TurnInFlight, "A turn is at work.")
	}
	return nil
}
