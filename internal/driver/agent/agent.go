// Package agent keeps the agent process of a sandbox: it starts it, opens the
// ACP connection, notices its end, and ends it with everything that it
// started. What is said in a turn is package turn's. Start at [Start].
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/proc"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

const (
	stderrKept     = 64 << 10
	defaultTimeout = 30 * time.Second
	eofAfterExit   = 200 * time.Millisecond // for what is still in the pipe of an ended agent
)

// Receiver takes what the agent sends by itself, called by the connection's reader, in order.
type Receiver interface {
	// Update takes a session/update.
	Update(n acp.SessionNotification)
	// CaughtUp comes after updates, once for those that came together; see [acp.Handlers].
	CaughtUp()
	// Permission takes a session/request_permission and calls answer once, now or later.
	// ctx ends when the agent takes the request back, and with the answer.
	Permission(ctx context.Context, r acp.PermissionRequest, answer func(acp.PermissionResponse))
	// Elicitation takes an elicitation/create, which may come though it was not offered, and
	// calls answer once, now or later. ctx is as with Permission.
	Elicitation(ctx context.Context, r acp.ElicitationRequest, answer func(acp.ElicitationResponse))
}

// Agent is a running agent process, initialized. Its methods may be called concurrently.
type Agent struct {
	Fingerprint string
	Result      driverapi.AgentResult
	Client      acp.Client
	AuthMethod  string

	proc    *proc.Process
	procs   *proc.Table
	before  proc.Mark // processes that are not the agent's doing
	stderr  *ring
	log     *slog.Logger
	stopped chan struct{} // process and connection have ended
	cancel  context.CancelFunc

	mu       sync.Mutex
	receiver Receiver
	open     map[string]bool // ACP sessions of this process
}

// Options of a start.
type Options struct {
	Procs   *proc.Table
	Version string   // of the driver, told to the agent
	Env     []string // below the request's
	// SpillDir is for lines that are too long for memory; a receiver may take a file out
	// of it while it handles the line. SpillRoom tells whether its disk takes some bytes more; nil: it does.
	SpillDir  string
	SpillRoom func(bytes int64) bool
	Log       *slog.Logger
}

// Start puts the files there, runs the command and initializes the connection.
// Codes: AGENT_START_FAILED, MODEL_KEY_REJECTED, INVALID_INPUT, DISK_FULL. ctx bounds the start
// only; the agent lives until [Agent.Kill] or its own end.
func Start(ctx context.Context, req driverapi.AgentRequest, env []string, o Options) (*Agent, error) {
	if len(req.Command) == 0 || req.Fingerprint == "" {
		return nil, fault.New(fault.InvalidInput, "An agent needs a command and a fingerprint.")
	}
	for _, f := range req.Files {
		if err := writeFile(f); err != nil {
			if errors.Is(err, syscall.ENOSPC) {
				return nil, fault.Wrap(err, fault.DiskFull, "The sandbox's disk is full: a file of the agent could not be written.")
			}
			return nil, fault.Wrap(err, fault.AgentStartFailed, "A file of the agent could not be written: %v", err)
		}
	}
	if err := os.MkdirAll(req.Dir, 0o755); err != nil {
		return nil, fault.Wrap(err, fault.AgentStartFailed, "The agent's folder could not be made: %v", err)
	}
	before, err := o.Procs.Mark()
	if err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	a := &Agent{
		Fingerprint: req.Fingerprint, AuthMethod: req.AuthMethod, procs: o.Procs, before: before, log: o.Log,
		stderr: &ring{max: stderrKept}, stopped: make(chan struct{}), open: map[string]bool{},
	}
	if err := a.run(ctx, req, env, o); err != nil {
		return nil, err
	}
	timeout := req.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ictx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	if err := a.initialize(ictx, o, req.Forms); err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if errors.Is(err, acp.ErrEOF) || errors.Is(err, acp.ErrClosed) { // it is just ending
			select {
			case <-a.stopped:
			case <-time.After(eofAfterExit):
			}
		}
		exit := a.Exit() // of its own, before it is killed
		a.Kill(end)
		return nil, a.startError(err, exit)
	}
	return a, nil
}

func (a *Agent) startError(err error, exit string) error {
	said := a.Stderr(1000)
	if said != "" {
		said = " It said: " + said
	}
	switch {
	case acp.IsCode(err, acp.CodeAuthRequired):
		return fault.Wrap(err, fault.ModelKeyRejected, "The agent asks for authentication: %v", err)
	case exit != "":
		return fault.Wrap(err, fault.AgentStartFailed, "The agent ended at once (%s).%s", exit, said)
	}
	return fault.Wrap(err, fault.AgentStartFailed, "The agent did not initialize: %v.%s", err, said)
}

// run starts process, connection and their watchers. The watchers end with the agent; Kill waits for them.
func (a *Agent) run(ctx context.Context, req driverapi.AgentRequest, env []string, o Options) error {
	var files []*os.File
	closeAll := func() {
		for _, f := range files {
			f.Close()
		}
	}
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err == nil {
			files = append(files, r, w)
		}
		return r, w, err
	}
	inR, inW, err1 := pipe()
	outR, outW, err2 := pipe()
	errR, errW, err3 := pipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		closeAll()
		return fmt.Errorf("start agent: %w", err)
	}
	p, err := o.Procs.Start(proc.Spec{Args: req.Command, Env: env, Dir: req.Dir, Stdin: inR, Stdout: outW, Stderr: errW, Apart: true})
	if err != nil {
		closeAll()
		return fault.Wrap(err, fault.AgentStartFailed, "The agent could not be started: %v", err)
	}
	for _, f := range []*os.File{inR, outW, errW} {
		f.Close()
	}
	a.proc = p
	conn := acp.NewConn(outR, inW, acp.Handlers{
		Notification: a.notification,
		CaughtUp: func() {
			if r := a.current(); r != nil {
				r.CaughtUp()
			}
		},
		Requests: map[string]func(context.Context, *acp.Request){
			acp.MethodRequestPermission: a.permission,
			acp.MethodElicit:            a.elicitation,
		},
	}, acp.Options{SpillDir: o.SpillDir, SpillRoom: o.SpillRoom, MaxSpillBytes: uistream.MaxBlobBytes, Log: o.Log})
	a.Client = acp.Client{Conn: conn}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a.cancel = cancel
	var readers sync.WaitGroup
	readers.Go(func() { _ = conn.Run(life) })
	readers.Go(func() {
		a.stderr.readFrom(errR)
		errR.Close()
	})
	go func() {
		defer close(a.stopped)
		defer cancel()
		<-p.Done()
		select {
		case <-conn.Done():
		case <-time.After(eofAfterExit): // a child holds the pipe
		}
		cancel()
		_ = errR.SetReadDeadline(time.Now().Add(eofAfterExit / 4)) // a pipe's deadline is wall time
		readers.Wait()
	}()
	return nil
}

func (a *Agent) initialize(ctx context.Context, o Options, forms bool) error {
	ask := acp.InitializeRequest{
		ProtocolVersion: acp.ProtocolVersion,
		ClientInfo:      &acp.Implementation{Name: "hearth", Title: "Hearth", Version: o.Version},
	}
	if forms {
		ask.ClientCapabilities.Elicitation = json.RawMessage(`{"form":{}}`)
	}
	r, err := a.Client.Initialize(ctx, ask)
	if err != nil && acp.IsCode(err, acp.CodeAuthRequired) {
		if err = a.Authenticate(ctx); err == nil {
			r, err = a.Client.Initialize(ctx, ask)
		}
	}
	if err != nil {
		return err
	}
	if r.ProtocolVersion != acp.ProtocolVersion {
		return fmt.Errorf("it speaks ACP version %d, not %d", r.ProtocolVersion, acp.ProtocolVersion)
	}
	a.Result = driverapi.AgentResult{
		Protocol: r.ProtocolVersion,
		Load:     r.AgentCapabilities.LoadSession,
		Resume:   r.AgentCapabilities.SessionCapabilities.Resume != nil,
	}
	if r.AgentInfo != nil {
		a.Result.Name, a.Result.Version = clip(r.AgentInfo.Name), clip(r.AgentInfo.Version)
	}
	return nil
}

func clip(s string) string {
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return s
}

// Authenticate uses the method of the request; without one it fails with the agent's own code.
func (a *Agent) Authenticate(ctx context.Context) error {
	if a.AuthMethod == "" {
		return acp.Errorf(acp.CodeAuthRequired, "authentication required")
	}
	return a.Client.Authenticate(ctx, acp.AuthenticateRequest{MethodID: a.AuthMethod})
}

func (a *Agent) notification(_ context.Context, n acp.Notification) {
	defer dropSpilled(n.Cut)
	if n.Method != acp.MethodSessionUpdate {
		return
	}
	var u acp.SessionNotification
	if acp.Decode(n.Params, &u) != nil || len(u.Update) == 0 {
		return
	}
	if r := a.current(); r != nil {
		r.Update(u)
	}
}

// dropSpilled removes the file of a long line that nobody took.
func dropSpilled(c *acp.Cut) {
	if c != nil && c.File != "" {
		_ = os.Remove(c.File) // it was taken
	}
}

func (a *Agent) permission(ctx context.Context, r *acp.Request) {
	defer dropSpilled(r.Cut)
	var p acp.PermissionRequest
	if err := acp.Decode(r.Params, &p); err != nil {
		_ = r.Fail(acp.Errorf(acp.CodeInvalidParams, "the parameters of %s: %v", r.Method, err)) // an agent that is gone needs no answer
		return
	}
	answer := func(res acp.PermissionResponse) { _ = r.Reply(res) }
	if x := a.current(); x != nil {
		x.Permission(ctx, p, answer)
		return
	}
	answer(acp.Cancelled())
}

func (a *Agent) elicitation(ctx context.Context, r *acp.Request) {
	var e acp.ElicitationRequest
	if err := acp.Decode(r.Params, &e); err != nil {
		_ = r.Fail(acp.Errorf(acp.CodeInvalidParams, "the parameters of %s: %v", r.Method, err)) // an agent that is gone needs no answer
		return
	}
	if r.Cut != nil {
		e.Schema = nil // what was cut is not what was asked
	}
	answer := func(res acp.ElicitationResponse) { _ = r.Reply(res) }
	if x := a.current(); x != nil {
		x.Elicitation(ctx, e, answer)
		return
	}
	answer(acp.ElicitationResponse{Action: acp.ElicitCancel})
}

func (a *Agent) current() Receiver {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.receiver
}

// Receive makes r take what comes from now on; nil drops it.
func (a *Agent) Receive(r Receiver) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.receiver = r
}

// Opened remembers that a session is open in this process.
func (a *Agent) Opened(session string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[session] = true
}

// IsOpen tells whether a session was opened in this process.
func (a *Agent) IsOpen(session string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open[session]
}

// Gone is closed when the process has ended, and what it wrote before was handled.
func (a *Agent) Gone() <-chan struct{} { return a.stopped }

// Alive tells whether the process lives and can be talked to.
func (a *Agent) Alive() bool {
	select {
	case <-a.proc.Done():
		return false
	default:
		return a.Client.Err() == nil
	}
}

// Exit says how the process ended, empty while it lives.
func (a *Agent) Exit() string {
	select {
	case <-a.proc.Done():
		return a.proc.Exit().String()
	default:
		return ""
	}
}

// Stderr is the last of what the agent wrote to its standard error, at most n bytes.
func (a *Agent) Stderr(n int) string { return a.stderr.last(n) }

// Noise counts lines on standard output that were not ACP.
func (a *Agent) Noise() int64 { return a.Client.Stats().NoiseLines }

// Kill ends the agent and every process that was started since it was, and
// waits for that until ctx ends.
func (a *Agent) Kill(ctx context.Context) {
	a.proc.Signal(syscall.SIGKILL)
	if err := a.procs.EndSince(ctx, a.before); err != nil {
		a.log.Warn("end of the agent's processes", "error", err)
	}
	a.cancel()
	select {
	case <-a.stopped:
	case <-ctx.Done():
		a.log.Warn("the agent did not end in time")
	}
}

// EndSince ends what was started since m and leaves the agent itself alone.
func (a *Agent) EndSince(ctx context.Context, m proc.Mark) {
	if err := a.procs.EndSince(ctx, m, a.proc); err != nil {
		a.log.Warn("end of the turn's processes", "error", err)
	}
}

// Mark is the processes that are there now.
func (a *Agent) Mark() (proc.Mark, error) { return a.procs.Mark() }

// writeFile replaces a file, so that a former one's mode does not stay.
func writeFile(f driverapi.File) error {
	if !filepath.IsAbs(f.Path) {
		return fmt.Errorf("the path %q is not absolute", f.Path)
	}
	mode := fs.FileMode(f.Mode).Perm()
	if f.Mode == 0 {
		mode = 0o600
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	tmp := f.Path + ".hearth-tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(tmp, []byte(f.Content), mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil { // whatever the umask
		return err
	}
	return os.Rename(tmp, f.Path)
}
