package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/session"
)

// unknownLimit is how long a turn at work waits for a substrate that does not answer.
const unknownLimit = 2 * time.Minute

// Mirrors are tidied a minute after a start and then daily; those that no session needs
// are kept for a week.
const (
	tidyAfter = 24 * 60 // sweeps
	tidyKeep  = 7 * 24 * time.Hour
)

func encodeHandle(h sandbox.Handle) (string, error) {
	raw, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("encode handle: %w", err)
	}
	return string(raw), nil
}

func decodeHandle(s string) (sandbox.Handle, error) {
	var h sandbox.Handle
	if err := json.Unmarshal([]byte(s), &h); err != nil {
		return h, fmt.Errorf("decode handle: %w", err)
	}
	return h, nil
}

// adopt takes back what a former server on this state folder left running.
func (r *Runner) adopt(ctx context.Context) error {
	ids, err := r.cfg.Store.Active(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		a, err := r.cfg.Store.Get(ctx, id)
		if err != nil {
			return err
		}
		if a.Session.Sandbox != session.SandboxHot {
			continue // its start effect, if there is one, begins anew
		}
		if err := r.adoptOne(ctx, a); err != nil {
			r.cfg.Slog.Error("take back sandbox", "session", id, "error", err)
			if err := r.gone(ctx, a.Session, fault.SandboxLost, ""); err != nil {
				return err
			}
		}
	}
	return r.reap(ctx)
}

func (r *Runner) adoptOne(ctx context.Context, a session.Aggregate) error {
	s := a.Session
	h, err := decodeHandle(s.Handle)
	if err != nil {
		return err
	}
	info, err := r.cfg.Sandboxes.Get(ctx, h)
	if info.State == sandbox.Absent || info.State == sandbox.Stopped {
		return fmt.Errorf("it is %s %s", info.State, info.Exit)
	}
	if fault.CodeOf(err) == fault.SandboxForeign {
		return err // nothing that this server does will reach it; the one that made it reaps it
	}
	if err != nil {
		r.cfg.Slog.Warn("ask for sandbox", "session", s.ID, "error", err) // the watch goes on asking
	}
	b, err := r.openBox(ctx, s, h.ID)
	if err != nil {
		return err
	}
	b.handle.Store(&h)
	r.put(b)
	if t := a.Open; t != nil && !t.StartedAt.IsZero() && t.State != session.TurnDelivering {
		b.startRecording(*t)
	}
	b.log.Info("sandbox taken back")
	return nil
}

// sweepLoop watches sandboxes, releases idle ones, and reaps what no row counts on.
func (r *Runner) sweepLoop(ctx context.Context) {
	idle, sweep := time.NewTicker(idleEvery), time.NewTicker(sweepEvery)
	defer idle.Stop()
	defer sweep.Stop()
	watch := time.NewTicker(time.Second)
	defer watch.Stop()
	unknown := map[session.ID]time.Time{}
	sweeps := 0
	for n := 0; ; n++ {
		select {
		case <-watch.C:
			r.watch(ctx, unknown, n%15 == 0)
		case <-idle.C:
			r.expire(ctx)
		case <-sweep.C:
			if sweeps++; sweeps%tidyAfter == 1 {
				if err := r.cfg.Delivery.Tidy(ctx, r.now().Add(-tidyKeep)); err != nil && ctx.Err() == nil {
					r.cfg.Slog.Error("tidy mirrors", "error", err)
				}
			}
			if err := r.reap(ctx); err != nil && ctx.Err() == nil {
				r.cfg.Slog.Error("reap sandboxes", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// watch asks the substrate for sandboxes whose driver is not connected, for all
// others now and then.
func (r *Runner) watch(ctx context.Context, unknown map[session.ID]time.Time, all bool) {
	r.mu.Lock()
	boxes := make([]*box, 0, len(r.boxes))
	for _, b := range r.boxes {
		boxes = append(boxes, b)
	}
	r.mu.Unlock()
	for _, b := range boxes {
		a, err := r.cfg.Store.Get(ctx, b.session)
		if fault.CodeOf(err) == fault.SessionNotFound || err == nil && !awaited(&a.Session, b.gen) {
			r.drop(b) // ends what waits for its driver; an effect removes the sandbox
			delete(unknown, b.session)
			continue
		}
		h := b.handle.Load()
		if _, up := b.channel.Hello(); h == nil || !all && up {
			delete(unknown, b.session)
			continue
		}
		if err != nil || a.Session.Sandbox != session.SandboxHot {
			continue
		}
		info, err := r.cfg.Sandboxes.Get(ctx, *h)
		switch info.State {
		case sandbox.Absent, sandbox.Stopped:
			b.log.Warn("sandbox is gone", "state", info.State, "exit", info.Exit)
			message := "The sandbox ended unexpectedly."
			if info.Exit != "" {
				message = "The sandbox ended unexpectedly: " + info.Exit + "."
			}
			if err := r.gone(ctx, a.Session, fault.SandboxLost, message); err != nil {
				b.log.Error("tell that the sandbox is gone", "error", err)
			}
			delete(unknown, b.session)
		case sandbox.Unknown:
			since, ok := unknown[b.session]
			if !ok {
				unknown[b.session] = r.now()
				b.log.Warn("sandbox does not answer", "error", err)
			} else if a.Open != nil && r.now().Sub(since) > unknownLimit {
				if _, err := r.cfg.Service.Apply(ctx, b.session, session.FailAsked{Turn: a.Open.ID, Code: fault.SandboxUnreachable}); err != nil && fault.CodeOf(err) != fault.IllegalMove {
					b.log.Error("end turn of an unreachable sandbox", "error", err)
				}
			}
		default:
			if _, up := b.channel.Hello(); up {
				delete(unknown, b.session)
				continue
			}
			since, ok := unknown[b.session]
			if !ok {
				unknown[b.session] = r.now()
				b.log.Warn("driver is not connected", "state", info.State)
			} else if r.now().Sub(since) > driverLimit {
				if err := r.gone(ctx, a.Session, fault.DriverLost, ""); err != nil {
					b.log.Error("tell that the driver is lost", "error", err)
				}
				delete(unknown, b.session)
			}
		}
	}
}

// awaited says that the session still counts on that generation.
func awaited(s *session.Session, gen int64) bool {
	return !s.Deleting && s.Generation == gen && (s.Sandbox == session.SandboxHot || s.Sandbox == session.SandboxStarting)
}

// expire releases sandboxes that nobody used for long enough.
func (r *Runner) expire(ctx context.Context) {
	if r.cfg.Idle <= 0 {
		return
	}
	r.mu.Lock()
	ids := make([]session.ID, 0, len(r.boxes))
	for id := range r.boxes {
		ids = append(ids, id)
	}
	r.mu.Unlock()
	before := r.now().Add(-r.cfg.Idle)
	for _, id := range ids {
		a, err := r.cfg.Store.Get(ctx, id)
		if err != nil || a.Session.IdleSince.IsZero() || a.Session.IdleSince.After(before) {
			continue
		}
		if _, err := r.cfg.Service.Apply(ctx, id, session.IdleExpired{Before: before}); err != nil && fault.CodeOf(err) != fault.IllegalMove {
			r.cfg.Slog.Error("release idle sandbox", "session", id, "error", err)
		}
	}
}

// reap deletes sandboxes that bear our labels and that no session counts on. An
// error in listing reaps nothing; what has no label of ours is not touched.
func (r *Runner) reap(ctx context.Context) error {
	infos, err := r.cfg.Sandboxes.List(ctx, map[string]string{"hearth": "1"})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, i := range infos {
		id := session.ID(i.Labels["session"])
		gen, err := strconv.ParseInt(i.Labels["generation"], 10, 64)
		if err != nil || id == "" {
			continue
		}
		a, err := r.cfg.Store.Get(ctx, id)
		switch {
		case err == nil && a.Session.Generation == gen && (a.Session.Sandbox == session.SandboxHot || a.Session.Sandbox == session.SandboxStarting):
			continue
		case err != nil && fault.CodeOf(err) != fault.SessionNotFound:
			return err
		}
		r.cfg.Slog.Warn("reap sandbox without a session", "sandbox", i.Handle.ID, "session", id, "generation", gen)
		if err := r.cfg.Sandboxes.Delete(ctx, i.Handle); err != nil {
			return fmt.Errorf("reap sandbox %s: %w", i.Handle.ID, err)
		}
	}
	return r.sweepDoors(ctx)
}

// sweepDoors removes doors folders that no sandbox has.
func (r *Runner) sweepDoors(ctx context.Context) error {
	entries, err := os.ReadDir(r.cfg.DoorsDir)
	if err != nil {
		return fmt.Errorf("read doors folder: %w", err)
	}
	infos, err := r.cfg.Sandboxes.List(ctx, map[string]string{"hearth": "1"})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	keep := map[string]bool{}
	for _, i := range infos {
		keep[i.Handle.ID] = true
	}
	r.mu.Lock()
	for _, b := range r.boxes {
		keep[b.id] = true
	}
	r.mu.Unlock()
	for _, e := range entries {
		if !keep[e.Name()] {
			if err := os.RemoveAll(r.cfg.DoorsDir + "/" + e.Name()); err != nil {
				return fmt.Errorf("remove doors folder: %w", err)
			}
		}
	}
	return nil
}
