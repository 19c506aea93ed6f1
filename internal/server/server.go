// Package server puts Hearth together in one process on one state folder: store,
// doors, sandboxes, runner, operations, and the HTTP listener. It holds no logic of
// its own. Start at [Run].
package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/forge/plain"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/door/egress"
	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/driverbin"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/gateway"
	"github.com/hearthd/hearth/internal/http10"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/operation/rest"
	"github.com/hearthd/hearth/internal/recorder"
	"github.com/hearthd/hearth/internal/runner"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite"
)

// Options of one server. The caller has validated them.
type Options struct {
	StateDir       string // absolute; made when missing
	TokenFile      string // of the owner's token; empty: FileToken in StateDir
	AgentsDir      string // of the agents' layers; empty: StateDir/agents
	Listen         string // host:port; port 0 takes a free one
	Version        string
	Sandboxes      func(dirs Dirs) (sandbox.Provider, error)
	RunGroup       int // sandboxes run as another user with this group: see FindDirs; 0: as the server's
	Root           sandbox.Root
	Limits         sandbox.Limits
	MaxLive        int
	Idle           time.Duration // until an idle sandbox is released
	SetupTimeout   time.Duration
	IdleExit       time.Duration // end when nothing was at work for so long; 0: never
	GitCredentials string        // file; empty: none
	AllowFile      bool          // repositories of this machine by path
	Registries     []string      // nil: the default list
	AllowHosts     []string
	AllowPrivate   []string
	Origins        []string                    // web pages that may call
	Lookup         func(string) (string, bool) // environment, for the model providers and git hosts
	Log            *slog.Logger
	Now            func() time.Time
	// Announce is told once when the server answers; token is set at the first start on
	// the folder only, and shown nowhere else again.
	Announce func(address, token string)
}

func (o *Options) tokenFile() string {
	if o.TokenFile != "" {
		return o.TokenFile
	}
	return filepath.Join(o.StateDir, FileToken)
}

// Dirs are the folders of a server.
type Dirs struct {
	State  string
	Run    string // short: sockets are below it
	Agents string
}

// Files in the state folder that other programs of the same user read.
const (
	FileServer = "server.json"
	FileToken  = "owner-token"
)

// Running is the content of FileServer.
type Running struct {
	Address string    `json:"address"` // http://host:port
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Version string    `json:"version"`
}

// Workspace is the only one so far.
const Workspace = "default"

// NewID makes ids: a prefix and a time-ordered tail of 26 characters.
func NewID(prefix string) string {
	return prefix + "_" + strings.ToLower(ulid.Make().String())
}

// FindDirs lays out the folders of a state folder. Where its path is too long for
// the sockets below it, a folder of the system's temporary one serves those.
// A group other than 0 may pass through the state and run folders, which sandboxes that run
// as another user need; nobody else may.
func FindDirs(state, agents string, group int) (Dirs, error) {
	d := Dirs{State: state, Run: filepath.Join(state, "run"), Agents: agents}
	if d.Agents == "" {
		d.Agents = filepath.Join(state, "agents")
	}
	mode := os.FileMode(0o700)
	if group != 0 {
		mode = 0o710 // the driver and the agents are below it; what is private has modes of its own
	}
	pass := func(dir string) error {
		if group == 0 {
			return nil
		}
		return errors.Join(os.Chown(dir, -1, group), os.Chmod(dir, mode))
	}
	err := os.MkdirAll(state, mode)
	if err == nil {
		err = pass(state)
	}
	if err != nil {
		return d, fault.Wrap(err, fault.ConfigInvalid, "The state folder %s cannot be made: %v.", state, err)
	}
	// A socket's path may have 107 bytes. Behind the folder come /d/, a sandbox's name with six
	// digits of generation and three of attempts (38), /doors.sock and the end that it has while it is made.
	const longest = 48
	if len(d.Run) > longest {
		sum := sha256.Sum256([]byte(state))
		d.Run = filepath.Join(os.TempDir(), "hearth-"+hex.EncodeToString(sum[:5]))
		if len(d.Run) > longest {
			d.Run = filepath.Join("/tmp", filepath.Base(d.Run))
		}
	}
	if err := os.MkdirAll(d.Run, mode); err != nil {
		return d, fault.Wrap(err, fault.ConfigInvalid, "The folder %s cannot be made: %v.", d.Run, err)
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(d.Run, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return d, fault.New(fault.ConfigInvalid, "The folder %s belongs to somebody else.", d.Run)
	}
	if err := errors.Join(os.Chmod(d.Run, mode), pass(d.Run)); err != nil {
		return d, fault.Wrap(err, fault.ConfigInvalid, "The folder %s cannot be used: %v.", d.Run, err)
	}
	return d, nil
}

// Run serves until ctx ends, then shuts the doors and leaves sandboxes running.
func Run(ctx context.Context, o Options) (err error) {
	dirs, err := FindDirs(o.StateDir, o.AgentsDir, o.RunGroup)
	if err != nil {
		return err
	}
	lock, err := Lock(o.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := touchPrivate(filepath.Join(o.StateDir, "hearth.db")); err != nil {
		return err
	}
	db, err := sqlite.Open(ctx, filepath.Join(o.StateDir, "hearth.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	token, err := ownerToken(ctx, db, o)
	if err != nil {
		return err
	}
	a, err := assemble(ctx, o, dirs, db)
	if err != nil {
		return err
	}
	ln, err := listen(ctx, o)
	if err != nil {
		return fault.Wrap(err, fault.ConfigInvalid, "The address %s cannot be listened on: %v.", o.Listen, err)
	}
	address := "http://" + ln.Addr().String()
	srv := &http.Server{Handler: a.handler, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
		ConnContext: http10.WithConn, BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) }}
	if err := writeRunning(o, address); err != nil {
		return errors.Join(err, ln.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	g.Go(func() error { return a.runner.Run(gctx) })
	g.Go(func() error { a.attach.audit.Run(gctx); return nil })
	g.Go(func() error { a.test.run(gctx, a.boxes, o.Log); return nil })
	g.Go(func() error { a.tidy.run(gctx, a.test.done); return nil })
	g.Go(func() error { return a.idleExit(gctx, o, db, stop) })
	g.Go(func() error {
		<-gctx.Done()
		// First: whoever takes the port from now on must not be taken for this server.
		if err := removeRunning(o); err != nil {
			o.Log.Warn("remove the server's file", "error", err)
		}
		a.hub.Close()
		c, cancel := context.WithTimeout(context.WithoutCancel(gctx), 5*time.Second)
		defer cancel()
		if err := srv.Shutdown(c); err != nil {
			return srv.Close()
		}
		return nil
	})
	o.Announce(address, token)
	err = g.Wait()
	a.attach.audit.Close(context.WithoutCancel(ctx))
	return errors.Join(err, removeRunning(o))
}

// listen takes the address. Where any free port will do, it is the one of the last
// time if that is free, so that whoever watches finds the server again after a restart.
func listen(ctx context.Context, o Options) (net.Listener, error) {
	var lc net.ListenConfig
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil || port != "0" {
		return lc.Listen(ctx, "tcp", o.Listen)
	}
	file := filepath.Join(o.StateDir, "port")
	if raw, err := os.ReadFile(file); err == nil {
		if ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strings.TrimSpace(string(raw)))); err == nil {
			return ln, nil
		}
	}
	ln, err := lc.Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	_, port, err = net.SplitHostPort(ln.Addr().String())
	if err == nil {
		err = os.WriteFile(file, []byte(port+"\n"), 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep the port: %w", err), ln.Close())
	}
	return ln, nil
}

// touchPrivate makes a file that only its owner may read; SQLite gives its other files the same mode.
func touchPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

// HostID names this state folder's machine in handles: it stays when the machine is renamed.
func HostID(state string) (string, error) {
	path := filepath.Join(state, "host-id")
	raw, err := os.ReadFile(path)
	if err == nil && len(bytes.TrimSpace(raw)) > 0 {
		return string(bytes.TrimSpace(raw)), nil
	}
	id := strings.TrimPrefix(NewID("x"), "x_")
	if err := os.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write host id: %w", err)
	}
	return id, nil
}

func writeRunning(o Options, address string) error {
	raw, err := json.Marshal(Running{Address: address, PID: os.Getpid(), Started: o.Now().UTC(), Version: o.Version})
	if err != nil {
		return fmt.Errorf("encode server file: %w", err)
	}
	path := filepath.Join(o.StateDir, FileServer)
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return fmt.Errorf("write server file: %w", err)
	}
	return os.Rename(path+".new", path)
}

// removeRunning takes the file away if it is ours: the folder may have been made anew for another server.
func removeRunning(o Options) error {
	if r, ok := ReadRunning(o.StateDir); ok && r.PID != os.Getpid() {
		return nil
	}
	if err := os.Remove(filepath.Join(o.StateDir, FileServer)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove server file: %w", err)
	}
	return nil
}

// ownerToken makes the owner's token at the first start on the folder, and a new one in its
// place when the file is gone.
func ownerToken(ctx context.Context, db *sqlite.Store, o Options) (string, error) {
	n, err := db.CountTokens(ctx)
	if err != nil {
		return "", err
	}
	if n > 0 {
		if _, err := os.Stat(o.tokenFile()); !errors.Is(err, os.ErrNotExist) {
			return "", nil //nolint:nilerr // whatever it is, it is there; who reads it is told
		}
		o.Log.Warn("the owner's token file is gone; a new token is made and the old one is void", "file", o.tokenFile())
	}
	var b [20]byte
	rand.Read(b[:])
	token := "hearth_" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
	// The file first: a token that is in the database only would be lost.
	if err := os.WriteFile(o.tokenFile(), []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write owner token: %w", err)
	}
	return token, db.ReplaceToken(ctx, token, "owner", Workspace, o.Now())
}

// app is the assembled server.
type app struct {
	handler http.Handler
	hub     *gateway.Hub
	runner  *runner.Runner
	boxes   sandbox.Provider
	test    *selfTest
	tidy    *tidier
	attach  attach
	lastUse atomic.Int64 // Unix seconds of the newest request's end
	open    atomic.Int64 // requests at work
}

func assemble(ctx context.Context, o Options, dirs Dirs, db *sqlite.Store) (*app, error) {
	providers, err := model.FromEnv(o.Lookup)
	if err != nil {
		return nil, err
	}
	driver, _, err := driverbin.Lay(filepath.Join(o.StateDir, "driver"))
	if err != nil {
		return nil, err
	}
	boxes, err := o.Sandboxes(dirs)
	if err != nil {
		return nil, err
	}
	git, err := gitcmd.New(gitcmd.Config{AllowFile: o.AllowFile, Env: proxyEnv(o.Lookup)})
	if err != nil {
		return nil, err
	}
	getenv := func(k string) string { v, _ := o.Lookup(k); return v }
	creds := &forge.Credentials{File: o.GitCredentials, Tokens: forge.EnvTokens(getenv)}
	host := plain.New(plain.Config{Credentials: creds, Git: git})
	work, err := delivery.Open(delivery.Config{Dir: filepath.Join(o.StateDir, "git"), Git: git, Read: host.Read, Log: o.Log})
	if err != nil {
		return nil, err
	}
	fence, err := db.NextFence(ctx)
	if err != nil {
		return nil, fmt.Errorf("take a fence: %w", err)
	}
	registries := o.Registries
	if registries == nil {
		registries = egress.Registries()
	}
	doors := filepath.Join(dirs.Run, "d")
	if err := os.MkdirAll(doors, 0o755); err != nil {
		return nil, fmt.Errorf("make doors folder: %w", err)
	}
	temp := filepath.Join(o.StateDir, "tmp") // nothing in it outlives a server
	if err := errors.Join(os.RemoveAll(temp), os.MkdirAll(temp, 0o700)); err != nil {
		return nil, fmt.Errorf("make temporary folder: %w", err)
	}
	a := &app{hub: gateway.NewHub(), boxes: boxes, test: &selfTest{done: make(chan struct{})}}
	keys := providers.Secrets()
	if token, err := os.ReadFile(o.tokenFile()); err == nil {
		keys = append(keys, bytes.TrimSpace(token))
	}
	service := &session.Service{Store: db, Log: db, Viewers: a.hub, NewID: NewID, Now: o.Now, Slog: o.Log}
	keep, err := blobs(ctx, o, db, func() [][]byte { return slices.Concat(keys, creds.Secrets()) })
	if err != nil {
		return nil, err
	}
	rec := &recorder.Recorder{
		Sessions: service, Log: db, Publish: a.hub.Publish, Stored: a.hub.Stored, Now: o.Now, Slog: o.Log, Blobs: keep,
		Secrets: func() [][]byte { return slices.Concat(keys, creds.Secrets()) },
	}
	installer := &agent.Installer{Dir: dirs.Agents, Logger: o.Log, Now: o.Now}
	a.tidy = &tidier{agents: installer, boxes: boxes, now: o.Now, log: o.Log}
	a.runner = runner.New(runner.Config{
		Service: service, Store: db, Log: db, Recorder: rec, Sandboxes: boxes, Root: o.Root, Limits: o.Limits,
		Agents: installer, Models: providers, Delivery: work, Forge: host, AllowFile: o.AllowFile,
		Healthy: a.test.failure, Blobs: keep, TempDir: temp, Driver: driver, DoorsDir: doors, Owner: NewID("srv"), Fence: fence, Slog: o.Log, Now: o.Now,
		Registries: registries, AllowHosts: o.AllowHosts, AllowPrivate: o.AllowPrivate, Idle: o.Idle, MaxLive: o.MaxLive, SetupTimeout: o.SetupTimeout,
	})
	service.Judge, service.Work, service.Wake, service.Seal = a.runner, a.runner, a.runner.Wake, rec.Seal
	if a.attach, err = newAttach(ctx, o, db); err != nil {
		return nil, err
	}
	caps := &capabilities{o: o, boxes: boxes, agents: installer, providers: providers, live: a.runner.Live, test: a.test}
	registry := operation.NewRegistry(operation.OwnerMay)
	gw := &gateway.Gateway{Hub: a.hub, Sessions: service, Recheck: a.attach.recheck(registry), Audit: a.attach.audit, Now: o.Now, Log: o.Log}
	operation.Register(registry, operation.Deps{
		Sessions: service, Capabilities: caps.read, Isolation: string(boxes.Capabilities().Isolation), Now: o.Now,
		Bundle: work.Bundle, Blobs: keep, Step: a.runner.StartStep, Tickets: a.attach.tickets, Audit: a.attach.audit,
	})
	h, err := rest.New(rest.Config{
		Registry: registry, StreamForm: gateway.CheckForm, Stream: gw.ServeStream, Chat: gw.ServeChat, Watch: gw.ServeWatch, Tickets: a.attach.tickets, Origins: o.Origins,
		NewID: NewID, Log: o.Log, Version: rest.Version{Version: o.Version},
		Authenticate: func(ctx context.Context, token string) (session.Caller, error) { return authenticate(ctx, db, token) },
		Ready: []rest.Check{
			{Name: "store", Run: once(time.Second, o.Now, db.Ping)},
			{Name: "disk", Run: func(context.Context) error { return room(o.StateDir) }},
			{Name: "sandbox", Run: a.test.check},
		},
	})
	if err != nil {
		return nil, err
	}
	a.lastUse.Store(o.Now().Unix())
	a.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.open.Add(1)
		defer func() { a.lastUse.Store(o.Now().Unix()); a.open.Add(-1) }()
		h.ServeHTTP(w, r)
	})
	return a, nil
}

// once gives the last answer again for a while: anybody may ask, and the store has one writer.
func once(keep time.Duration, now func() time.Time, check func(context.Context) error) func(context.Context) error {
	var mu sync.Mutex
	var last time.Time
	var answer error
	return func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if last.IsZero() || now().Sub(last) >= keep {
			if err := check(ctx); ctx.Err() == nil {
				answer, last = err, now()
			} else {
				return err
			}
		}
		return answer
	}
}

// leastRoom is what the state folder's disk must have free for work to be taken on, in bytes.
const leastRoom = 64 << 20

func room(dir string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("ask for the room of %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < leastRoom {
		return fault.New(fault.DiskFull, "The disk of %s has %d MiB left; at least %d are needed.", dir, free>>20, leastRoom>>20)
	}
	return nil
}

// selfTest is the provider's own test, run once at start.
type selfTest struct {
	done  chan struct{}
	err   error         // once done
	probe sandbox.Probe // once done
}

func (t *selfTest) run(ctx context.Context, p sandbox.Provider, log *slog.Logger) {
	defer close(t.done)
	res, err := p.Probe(ctx)
	if err != nil {
		t.err = fault.Wrap(err, fault.SandboxUnsupported, "The sandbox's self-test was cut short.")
		return
	}
	t.probe = res
	for _, c := range res.Checks {
		if !c.OK {
			t.err = fault.New(fault.SandboxUnsupported, "%s: %s", c.Name, c.Detail)
			log.Error("sandbox self-test", "check", c.Name, "detail", c.Detail)
			return
		}
	}
	log.Info("sandbox self-test passed", "provider", res.Provider, "build", res.Build, "took", res.Took)
}

func (t *selfTest) check(context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
		return fault.New(fault.SelfTestRunning, "")
	}
}

// failure is why the test did not pass; nil while it runs.
func (t *selfTest) failure() error {
	select {
	case <-t.done:
		return t.err
	default:
		return nil
	}
}

// idleExit ends the server when it had nothing to do for long enough.
func (a *app) idleExit(ctx context.Context, o Options, db *sqlite.Store, stop func()) error {
	if o.IdleExit <= 0 {
		return nil
	}
	t := time.NewTicker(min(o.IdleExit/4+time.Second, time.Minute))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		active, err := db.Active(ctx)
		if err != nil {
			continue // the store is looked at again
		}
		if len(active) > 0 || a.open.Load() > 0 {
			a.lastUse.Store(o.Now().Unix())
			continue
		}
		if o.Now().Sub(time.Unix(a.lastUse.Load(), 0)) >= o.IdleExit {
			o.Log.Info("nothing to do; ending")
			stop()
			return nil
		}
	}
}

// proxyEnv hands the machine's own proxy settings to git.
func proxyEnv(lookup func(string) (string, bool)) []string {
	var out []string
	for _, k := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		if v, ok := lookup(k); ok {
			out = append(out, k+"="+v)
		}
	}
	return out
}
