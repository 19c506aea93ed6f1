package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/approval"
	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
)

// startSandbox brings up a generation: sandbox, agent and repository side by side.
func (r *Runner) startSandbox(ctx context.Context, e session.Effect) error {
	a, err := r.cfg.Store.Get(ctx, e.Session)
	if err != nil {
		return err
	}
	s := a.Session
	if s.Sandbox != session.SandboxStarting || s.Generation != e.Generation {
		return nil
	}
	if err := r.cfg.Healthy(); err != nil {
		f := fault.From(err)
		_, err := r.cfg.Service.Apply(ctx, s.ID, session.SandboxFailed{Generation: s.Generation, Code: f.Code, Message: f.Sentence()})
		return err
	}
	if err := r.admit(ctx, e); err != nil {
		return err
	}
	select {
	case r.starts <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// The place is for what loads the machine: a long setup must not keep others from starting.
	started := sync.OnceFunc(func() { <-r.starts })
	defer started()
	// What a former attempt left, of this server or of one that was killed.
	if b := r.box(s.ID, s.Generation); b != nil {
		r.drop(b)
	}
	if err := r.remove(ctx, s.ID, s.Generation, ""); err != nil {
		return err
	}
	began := r.now()
	b, err := r.bringUp(ctx, s, sandboxID(s.ID, s.Generation, e.Attempts), started)
	if err == nil {
		_, err = r.cfg.Service.Apply(ctx, s.ID, session.SandboxReady{Generation: s.Generation})
	}
	if err == nil {
		b.log.Info("sandbox ready", "took", r.now().Sub(began))
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // the next server tries anew
	}
	if b != nil {
		r.drop(b)
	}
	if rerr := r.remove(ctx, s.ID, s.Generation, ""); rerr != nil {
		r.cfg.Slog.Error("remove failed sandbox", "session", s.ID, "error", rerr)
	}
	if fault.CodeOf(err) == fault.IllegalMove || fault.CodeOf(err) == fault.SessionNotFound {
		return nil // nobody waits for it any more
	}
	if rerr := retry(e, err); rerr != nil {
		return rerr
	}
	f := fault.From(err)
	r.cfg.Slog.Error("start sandbox", "session", s.ID, "generation", s.Generation, "error", err)
	if f.Code == fault.InternalError {
		f = fault.Wrap(err, fault.SandboxStartFailed, "")
	}
	_, err = r.cfg.Service.Apply(ctx, s.ID, session.SandboxFailed{Generation: s.Generation, Code: f.Code, Message: f.Sentence()})
	return err
}

// admit waits for room: the longest idle sandbox goes first, then turns stay queued.
func (r *Runner) admit(ctx context.Context, e session.Effect) error {
	live := r.Live()
	if live == 0 || (r.cfg.MaxLive <= 0 || live < r.cfg.MaxLive) && memoryFree() >= memoryReserve {
		return nil
	}
	r.mu.Lock()
	ids := make([]session.ID, 0, len(r.boxes))
	for id := range r.boxes {
		ids = append(ids, id)
	}
	r.mu.Unlock()
	var idlest session.ID
	var since time.Time
	for _, id := range ids {
		a, err := r.cfg.Store.Get(ctx, id)
		if err == nil && !a.Session.IdleSince.IsZero() && (since.IsZero() || a.Session.IdleSince.Before(since)) {
			idlest, since = id, a.Session.IdleSince
		}
	}
	if idlest != "" {
		if _, err := r.cfg.Service.Apply(ctx, idlest, session.IdleExpired{Before: r.now(), Room: true}); err != nil && fault.CodeOf(err) != fault.IllegalMove {
			return err
		}
	}
	return &again{after: 500 * time.Millisecond, cause: fault.New(fault.SandboxCapacityLimit, "")}
}

// memoryFree is the memory that can be taken without swapping, in bytes; a lot
// when the system does not tell.
func memoryFree() int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 1 << 62
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			if kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
				return kib << 10
			}
		}
	}
	return 1 << 62
}

// bringUp makes and starts the sandbox, then sets up repository and agent in it.
// On error the box, when there is one, is the caller's to drop. started is told when the driver is there.
func (r *Runner) bringUp(ctx context.Context, s session.Session, id string, started func()) (*box, error) {
	profile, err := agent.Lookup(s.Agent)
	if err != nil {
		return nil, err
	}
	binds, build, err := r.cfg.Agents.Layer(profile)
	if err != nil {
		return nil, err
	}
	binds = append(binds, sandbox.Bind{Source: r.cfg.Driver, Target: sandbox.PathDriver})
	g, gctx := errgroup.WithContext(ctx)
	prepared := make(chan struct{})
	work := s // as it is once the remote was read
	g.Go(func() error {
		defer close(prepared)
		base, err := r.prepare(gctx, s)
		if err == nil {
			work, err = r.rebase(gctx, s, base)
		}
		return err
	})
	var b *box
	g.Go(func() error {
		<-prepared // the git door serves the quarantine repository
		if gctx.Err() != nil {
			return nil
		}
		var err error
		// The box lives with the server, not with this effect's group.
		if b, err = r.openBox(ctx, s, id); err != nil {
			return err
		}
		r.put(b)
		c, drop := b.call(gctx)
		defer drop()
		h, err := r.cfg.Sandboxes.Create(c, sandbox.Spec{
			ID: id, Labels: labels(s.ID, s.Generation), Root: r.cfg.Root, Binds: binds, DoorDir: b.dir, Hostname: "hearth",
			Command: []string{sandbox.PathDriver, sandbox.PathConfig},
			Env:     []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + sandbox.PathHome, "LANG=C.UTF-8"},
			Hosts:   r.hostNames(), Limits: r.cfg.Limits,
		})
		if err != nil {
			return err
		}
		b.handle.Store(&h)
		raw, err := encodeHandle(h)
		if err != nil {
			return err
		}
		// Stored before it counts.
		if _, err := r.cfg.Service.Apply(gctx, s.ID, session.SandboxCreated{Generation: s.Generation, Handle: raw}); err != nil {
			return err
		}
		if err := r.cfg.Sandboxes.Start(c, h); err != nil {
			return err
		}
		c, cancel := context.WithTimeout(c, connectTimeout)
		defer cancel()
		if _, err := b.channel.Connected(c); err != nil {
			return r.notConnected(gctx, h, err)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return b, err
	}
	started()
	call, drop := b.call(ctx)
	defer drop()
	g, gctx = errgroup.WithContext(call)
	g.Go(func() error { return r.setUp(gctx, b, work) })
	g.Go(func() error {
		_, _, err := r.startAgent(gctx, b, s, profile, build)
		return err
	})
	if err := g.Wait(); err != nil {
		return b, err
	}
	b.leaveSetup()
	return b, nil
}

func (r *Runner) notConnected(ctx context.Context, h sandbox.Handle, cause error) error {
	info, err := r.cfg.Sandboxes.Get(ctx, h)
	what := "its driver did not call in within " + connectTimeout.String()
	if err == nil && info.State == sandbox.Stopped {
		what = "its driver ended at once: " + info.Exit
	}
	return fault.Wrap(errors.Join(cause, err), fault.SandboxStartFailed, "The sandbox started, but %s.", what)
}

// prepare reads the remote and fetches what the session starts from.
func (r *Runner) prepare(ctx context.Context, s session.Session) (delivery.Base, error) {
	req := delivery.PrepareRequest{Session: string(s.ID), Scope: s.Workspace, Base: s.Base, Branch: s.Branch}
	if s.Repo != "" {
		remote, err := forge.ParseRemote(s.Repo, r.cfg.AllowFile)
		if err != nil {
			return delivery.Base{}, err
		}
		cred, err := r.cfg.Forge.Credential(ctx, remote)
		if err != nil {
			return delivery.Base{}, err
		}
		req.Remote, req.Credential = remote, cred
	}
	return r.cfg.Delivery.Prepare(ctx, req)
}

// rebase has a session that has not begun to work start from where its branches are now: what
// was wrong with the setup may have been mended there.
func (r *Runner) rebase(ctx context.Context, s session.Session, base delivery.Base) (session.Session, error) {
	if s.Repo == "" || s.PackOID != "" || base.OID == s.BaseOID && base.BranchOID == s.RemoteOID {
		return s, nil
	}
	if _, err := r.cfg.Store.LastReached(ctx, s.ID); fault.CodeOf(err) != fault.TurnNotFound {
		return s, err
	}
	a, err := r.cfg.Service.Apply(ctx, s.ID, session.BaseMoved{Generation: s.Generation, BaseOID: base.OID, RemoteOID: base.BranchOID})
	if err != nil {
		return s, err
	}
	r.cfg.Slog.Info("the session starts from a newer commit", "session", s.ID, "from", s.BaseOID, "to", base.OID)
	return a.Session, nil
}

// setUp clones into the sandbox and runs the repository's setup command.
func (r *Runner) setUp(ctx context.Context, b *box, s session.Session) error {
	open, err := r.mayReachRegistries(ctx, s)
	if err != nil {
		return err
	}
	b.setup.Store(open)
	req := driverapi.SetupRequest{Git: driverapi.Person{Name: s.Author.Name, Email: s.Author.Email}, Timeout: r.cfg.SetupTimeout}
	start := s.BaseOID
	if s.PackOID != "" {
		start = s.PackOID
	}
	door := "http://" + driverapi.ListenGit
	req.Repo = &driverapi.Repo{
		DoorURL: door + workPath, WorkURL: door + workPath, BaseOID: start, Branch: s.Branch, Base: s.Base, Format: s.Format,
	}
	if s.Repo != "" {
		remote, err := forge.ParseRemote(s.Repo, r.cfg.AllowFile)
		if err != nil {
			return err
		}
		req.Repo.URL = remote.URL
		if remote.File() { // a folder of this machine is had through the packed work only
			req.Repo.WorkOnly = true
			if s.RemoteOID == "" || !s.BranchNamed {
				req.Repo.BaseHead = s.BaseOID
			}
		} else {
			req.Repo.DoorURL, req.Repo.Rewrite = door+remote.DoorPath(), remote.Forms()
		}
	} else if start == "" {
		req.Repo = nil
	} else {
		req.Repo.URL = door + workPath
	}
	defer b.phase.Store(nil)
	_, err = b.driver.Setup(ctx, req, func(ev driverapi.SetupEvent) {
		if was := b.phase.Swap(&ev.Phase); was == nil || *was != ev.Phase {
			r.cfg.Service.Progress(&s)
		}
		switch {
		case ev.Line == "":
		case ev.Warning:
			b.log.Warn("setup", "phase", ev.Phase, "line", ev.Line)
		default:
			b.log.Debug("setup", "phase", ev.Phase, "line", ev.Line)
		}
	})
	if err != nil {
		f := fault.From(err)
		if f.Code == fault.InternalError {
			return fault.Wrap(err, fault.SetupFailed, "")
		}
		if out, ok := f.Details["output"].(string); ok && out != "" {
			return fault.Wrap(err, f.Code, "%s\n%s", f.Sentence(), transcript.NewMasker(r.cfg.Recorder.Secrets()).Text(lastLines(out, 12)))
		}
	}
	return err
}

// lastLines is the end of a command's output, for a person.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(s, "\uFFFD"), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// environmentFile is the repository's own description of its setup.
const environmentFile = ".hearth/environment.yaml"

// mayReachRegistries says whether setup may. Where the work holds another setup than
// the person's repository did, an agent wrote it: it gets no more than the agent had.
func (r *Runner) mayReachRegistries(ctx context.Context, s session.Session) (bool, error) {
	if s.PackOID == "" || s.PackOID == s.BaseOID {
		return true, nil
	}
	d, err := r.cfg.Delivery.Diff(ctx, string(s.ID), s.BaseOID, s.PackOID)
	if err != nil {
		return false, fmt.Errorf("compare setup: %w", err)
	}
	for _, c := range d.Changes {
		if c.Path == environmentFile || c.OldPath == environmentFile {
			return false, nil
		}
	}
	return !d.Truncated, nil
}

// launch is what the driver has to start for a session.
func (r *Runner) launch(s session.Session, profile agent.Profile, build string) (agent.Launch, error) {
	provider, err := r.provider(profile)
	if err != nil {
		return agent.Launch{}, err
	}
	policy, err := approval.Parse([]byte(s.Approvals))
	if err != nil {
		return agent.Launch{}, err
	}
	return profile.Render(agent.RenderInput{Build: build, Provider: provider, Model: s.Model, Approvals: policy.Mode})
}

// startAgent starts the agent, or finds it running.
func (r *Runner) startAgent(ctx context.Context, b *box, s session.Session, profile agent.Profile, build string) (agent.Launch, driverapi.AgentResult, error) {
	l, err := r.launch(s, profile, build)
	if err != nil {
		return l, driverapi.AgentResult{}, err
	}
	req := driverapi.AgentRequest{Fingerprint: l.Fingerprint, Command: l.Command, Env: l.Env, Dir: l.Dir, AuthMethod: l.Auth, Timeout: l.Limits.Start}
	policy, err := approval.Parse([]byte(s.Approvals))
	if err != nil {
		return l, driverapi.AgentResult{}, err
	}
	req.Forms = policy.Asks() // nobody would fill one in where nobody is asked
	for _, f := range l.Files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o600
		}
		req.Files = append(req.Files, driverapi.File{Path: f.Path, Content: f.Content, Mode: mode})
	}
	res, err := b.driver.Agent(ctx, req)
	return l, res, err
}

// hostNames resolve to loopback inside, for programs that ignore proxies.
func (r *Runner) hostNames() []string {
	return append(append([]string(nil), r.cfg.Registries...), r.cfg.AllowHosts...)
}

// remove deletes every sandbox of a generation, and the one that the handle names. What
// was begun is finished, within a limit, even when the server is asked to end meanwhile:
// half a sandbox would stay until the next start.
func (r *Runner) remove(ctx context.Context, id session.ID, gen int64, handle string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	select { // a hundred at once would be slower than one after the other
	case r.removals <- struct{}{}:
		defer func() { <-r.removals }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
	defer cancel()
	infos, err := r.cfg.Sandboxes.List(ctx, labels(id, gen))
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	handles := make([]sandbox.Handle, 0, len(infos)+1)
	for _, i := range infos {
		handles = append(handles, i.Handle)
	}
	if handle != "" {
		h, err := decodeHandle(handle)
		if err != nil {
			return err
		}
		handles = append(handles, h)
	}
	for _, h := range handles {
		err := r.cfg.Sandboxes.Delete(ctx, h)
		if fault.CodeOf(err) == fault.SandboxForeign {
			r.cfg.Slog.Warn("a sandbox of another provider or machine is left to it", "session", id, "sandbox", h.ID, "provider", h.Provider)
			continue
		}
		if err != nil {
			return fmt.Errorf("delete sandbox %s: %w", h.ID, err)
		}
		if err := os.RemoveAll(filepath.Join(r.cfg.DoorsDir, h.ID)); err != nil {
			return fmt.Errorf("remove doors folder: %w", err)
		}
	}
	// Doors may have been opened for a sandbox that was never made.
	doors, err := filepath.Glob(filepath.Join(r.cfg.DoorsDir, sandboxPrefix(id, gen)+"*"))
	if err != nil {
		return fmt.Errorf("list doors folders: %w", err)
	}
	for _, d := range doors {
		if err := os.RemoveAll(d); err != nil {
			return fmt.Errorf("remove doors folder: %w", err)
		}
	}
	return nil
}

// releaseSandbox removes a sandbox that no row counts on any more.
func (r *Runner) releaseSandbox(ctx context.Context, e session.Effect) error {
	if b := r.box(e.Session, e.Generation); b != nil {
		r.drop(b)
	}
	return r.remove(ctx, e.Session, e.Generation, e.Handle)
}

// deleteSession removes everything of a session, its row last.
func (r *Runner) deleteSession(ctx context.Context, e session.Effect) error {
	a, err := r.cfg.Store.Get(ctx, e.Session)
	if err != nil {
		return err
	}
	if b := r.box(e.Session, a.Session.Generation); b != nil {
		r.drop(b)
	}
	if err := r.remove(ctx, e.Session, a.Session.Generation, ""); err != nil {
		return err
	}
	if err := r.cfg.Delivery.Remove(ctx, string(e.Session)); err != nil {
		return fmt.Errorf("remove work: %w", err)
	}
	if r.cfg.Blobs != nil {
		if err := r.cfg.Blobs.Remove(string(e.Session)); err != nil {
			return err
		}
	}
	return r.cfg.Service.Remove(ctx, &a.Session)
}
