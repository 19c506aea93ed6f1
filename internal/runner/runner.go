// Package runner carries out what sessions ask for: it claims effects and starts
// sandboxes, hands prompts to drivers, records, packs, delivers and cleans up.
// Every effect may be run again after a crash at any point; what it finds done it
// does not do twice. It decides nothing about a session's state: it tells
// session.Service what happened. Start at [Runner.Run]; a live sandbox is a box.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/recorder"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
)

// Config is what a runner needs; all fields but the timings are required.
type Config struct {
	Service   *session.Service
	Store     session.Store
	Log       transcript.Log
	Recorder  *recorder.Recorder
	Sandboxes sandbox.Provider
	Root      sandbox.Root
	Limits    sandbox.Limits
	Agents    *agent.Installer
	Models    model.Providers
	Delivery  *delivery.Store
	Forge     forge.Forge
	AllowFile bool         // repositories of this machine
	Healthy   func() error // why no sandbox can be started here; nil: none is known
	Blobs     *blob.Store
	TempDir   string // for packs that are looked at; not seen by sandboxes
	Driver    string // path of the driver's binary
	DoorsDir  string // folder for doors sockets; short
	Owner     string // of effect leases; unique for this process
	Fence     int64
	Slog      *slog.Logger
	Now       func() time.Time

	Registries   []string // hosts that setup may reach
	AllowHosts   []string // hosts that agents may always reach
	AllowPrivate []string // host:port pairs at private addresses
	Idle         time.Duration
	MaxLive      int // live sandboxes; 0: no bound but the machine's
	SetupTimeout time.Duration
	Parallel     int // starts at a time; 0: 2
}

// Timings.
const (
	leaseTime      = time.Minute
	poll           = time.Second
	sweepEvery     = time.Minute
	idleEvery      = 5 * time.Second
	connectTimeout = 30 * time.Second
	handTimeout    = 3 * time.Minute  // to start the agent and give it the turn
	driverLimit    = 2 * time.Minute  // without the driver of a sandbox that runs
	memoryReserve  = 768 << 20        // bytes that must be free for another sandbox
	removeLimit    = 15 * time.Second // to delete a generation's sandboxes
	maxAttempts    = 3
	workers        = 32 // effects at work at a time
)

// free are the effects that do not wait behind others of their session.
var free = []session.EffectKind{session.EffectCancelTurn, session.EffectForceEnd, session.EffectLimitTurn, session.EffectAnswerQuestion, session.EffectExpireQuestion}

// Runner runs effects. Make one with New.
type Runner struct {
	cfg    Config
	wake   chan struct{}
	starts chan struct{} // bounds parallel starts

	removals chan struct{} // bounds parallel removals
	memory   *door.Memory  // that the model doors of all sandboxes may hold

	mu      sync.Mutex
	boxes   map[session.ID]*box
	running sync.WaitGroup // effects and boxes
}

// New makes a runner that does nothing until Run.
func New(cfg Config) *Runner {
	if cfg.Parallel <= 0 {
		cfg.Parallel = 2
	}
	if cfg.SetupTimeout <= 0 {
		cfg.SetupTimeout = 30 * time.Minute
	}
	return &Runner{cfg: cfg, wake: make(chan struct{}, 1), starts: make(chan struct{}, cfg.Parallel), removals: make(chan struct{}, 2*cfg.Parallel), memory: door.NewMemory(model.ServerMemory), boxes: map[session.ID]*box{}}
}

// Wake says that effects may be due.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run takes back the sandboxes that are there, then works until ctx ends. It leaves
// sandboxes running: the next server goes on with them.
func (r *Runner) Run(ctx context.Context) error {
	defer func() {
		r.running.Wait()
		r.mu.Lock()
		boxes := r.boxes
		r.boxes = map[session.ID]*box{}
		r.mu.Unlock()
		for _, b := range boxes {
			b.close() // what was shown is stored before the store closes
		}
	}()
	if err := r.cfg.Store.Unlease(ctx, r.cfg.Owner); err != nil {
		return fmt.Errorf("take over effects: %w", err)
	}
	if err := r.adopt(ctx); err != nil {
		return fmt.Errorf("take back sandboxes: %w", err)
	}
	r.running.Go(func() { r.sweepLoop(ctx) })
	slots := make(chan struct{}, workers)
	for ctx.Err() == nil {
		n := cap(slots) - len(slots)
		var got []session.Effect
		if n > 0 {
			var err error
			now := r.now()
			got, err = r.cfg.Store.Claim(ctx, r.cfg.Owner, now, now.Add(leaseTime), n, free)
			if err != nil && ctx.Err() == nil {
				r.cfg.Slog.Error("claim effects", "error", err)
			}
		}
		for _, e := range got {
			slots <- struct{}{}
			r.running.Go(func() {
				defer func() { <-slots; r.Wake() }()
				r.effect(ctx, e)
			})
		}
		if len(got) > 0 {
			continue
		}
		wait := poll
		if due, err := r.cfg.Store.NextDue(ctx); err == nil && !due.IsZero() {
			wait = max(min(due.Sub(r.now()), poll), 5*time.Millisecond)
		}
		timer := time.NewTimer(wait)
		select {
		case <-r.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

func (r *Runner) now() time.Time { return r.cfg.Now().UTC().Truncate(time.Microsecond) }

// again asks for an effect to be run once more, after a wait.
type again struct {
	after time.Duration
	cause error
}

func (a *again) Error() string { return fmt.Sprintf("again in %s: %v", a.after, a.cause) }
func (a *again) Unwrap() error { return a.cause }

// retry gives an effect back while it has attempts left and the error says that another
// may help. An agent that does not start is the person's to see at once: the same
// program with the same files would end the same way.
func retry(e session.Effect, err error) error {
	f := fault.From(err)
	if f.Code == fault.AgentStartFailed {
		return nil
	}
	if e.Attempts+1 < maxAttempts && fault.Lookup(f.Code).Retryable {
		return &again{after: time.Duration(e.Attempts+1) * time.Second, cause: err}
	}
	return nil
}

func (r *Runner) effect(ctx context.Context, e session.Effect) {
	log := r.cfg.Slog.With("session", e.Session, "effect", e.Kind, "turn", e.Turn, "generation", e.Generation)
	stop := r.renew(ctx, e)
	err := r.do(ctx, e)
	stop()
	c, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var a *again
	switch {
	case err == nil:
		err = r.cfg.Store.Done(c, e.ID, r.cfg.Owner)
	case ctx.Err() != nil:
		err = r.cfg.Store.Retry(c, e.ID, r.cfg.Owner, e.NotBefore) // the next server goes on
	case errors.As(err, &a):
		log.Info("effect again", "after", a.after, "error", a.cause)
		err = r.cfg.Store.Retry(c, e.ID, r.cfg.Owner, r.now().Add(a.after))
	case fault.CodeOf(err) == fault.IllegalMove || fault.CodeOf(err) == fault.SessionNotFound || fault.CodeOf(err) == fault.TurnNotFound:
		log.Info("effect no longer wanted", "error", err)
		err = r.cfg.Store.Done(c, e.ID, r.cfg.Owner)
	default: // not foreseen: never lost, never in a tight loop
		log.Error("effect", "error", err, "attempts", e.Attempts)
		err = r.cfg.Store.Retry(c, e.ID, r.cfg.Owner, r.now().Add(min(time.Duration(1<<min(e.Attempts, 6))*time.Second, time.Minute)))
	}
	if err != nil {
		log.Error("give effect back", "error", err)
	}
}

// renew keeps an effect's lease while it is at work.
func (r *Runner) renew(ctx context.Context, e session.Effect) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // stop waits for it
		defer close(done)
		t := time.NewTicker(leaseTime / 3)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				if _, err := r.cfg.Store.Renew(ctx, e.ID, r.cfg.Owner, r.now().Add(leaseTime)); err != nil && ctx.Err() == nil {
					r.cfg.Slog.Warn("renew effect", "effect", e.ID, "error", err)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

func (r *Runner) do(ctx context.Context, e session.Effect) error {
	switch e.Kind {
	case session.EffectStartSandbox:
		return r.startSandbox(ctx, e)
	case session.EffectSendPrompt:
		return r.sendPrompt(ctx, e)
	case session.EffectCancelTurn:
		return r.cancelTurn(ctx, e)
	case session.EffectForceEnd:
		return r.forceEnd(ctx, e)
	case session.EffectLimitTurn:
		return r.limitTurn(ctx, e)
	case session.EffectAnswerQuestion:
		return r.answerQuestion(ctx, e)
	case session.EffectExpireQuestion:
		return r.expireQuestion(ctx, e)
	case session.EffectPack:
		return r.pack(ctx, e)
	case session.EffectDeliver:
		return r.deliver(ctx, e)
	case session.EffectDiscard:
		return r.discard(ctx, e)
	case session.EffectReleaseSandbox:
		return r.releaseSandbox(ctx, e)
	case session.EffectDeleteSession:
		return r.deleteSession(ctx, e)
	}
	return fmt.Errorf("unknown effect %q", e.Kind)
}

// open reads the session and its open turn, if that is still the effect's.
func (r *Runner) open(ctx context.Context, e session.Effect) (session.Aggregate, *session.Turn, error) {
	a, err := r.cfg.Store.Get(ctx, e.Session)
	if err != nil {
		return a, nil, err
	}
	if a.Open == nil || a.Open.ID != e.Turn {
		return a, nil, fault.New(fault.IllegalMove, "That turn is not at work.")
	}
	return a, a.Open, nil
}
