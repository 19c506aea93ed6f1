package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/sandbox/gvisor"
	"github.com/hearthd/hearth/internal/sandbox/rootfs"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// patience bounds everything that should come soon, also on a loaded machine.
const patience = 2 * time.Minute

// realAgents are those that are measured, with the model that their sessions name.
var realAgents = []struct {
	name, model string
	ready       float64 // target of create → session/new answered, ms
}{{"codex", "scripted", 1300}, {"pi", "", 2000}, {"claude", "", 2300}}

// installScripted puts the testkit into an agents folder as the agent "scripted".
func installScripted(ctx context.Context, dir, program string) error {
	p, err := agent.Lookup("scripted")
	if err != nil {
		return err
	}
	_, err = installer(dir).Install(ctx, p, agent.InstallOptions{From: program})
	return err
}

func installer(dir string) *agent.Installer {
	return &agent.Installer{Dir: dir, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
}

// world is a server process on a state folder of its own, with a scripted model
// and a git host in this process. close ends all of it.
type world struct {
	b       *bench
	agents  string
	dir     string // holds the state folder and the log
	state   string
	address string
	token   string   // of the owner
	args    []string // more of the server's
	c       *client.Client
	http    *http.Client // of c
	proc    *exec.Cmd
	exited  chan struct{} // closed when proc has ended

	model    string // URL
	git      *gitserver.Server
	gitURL   string
	services []func() // end what listens
}

// world starts a server that knows the agents of a folder, with more arguments.
func (b *bench) world(ctx context.Context, agents string, args ...string) (w *world, err error) {
	w = &world{b: b, agents: agents, args: args}
	if w.dir, err = b.folder(); err != nil {
		return nil, err
	}
	w.state = filepath.Join(w.dir, "s")
	defer func() {
		if err != nil {
			err = w.close(ctx, err)
		}
	}()
	if w.model, err = w.serve(scriptedmodel.New(scriptedmodel.Options{})); err != nil {
		return nil, err
	}
	if w.git, err = gitserver.New(gitserver.Options{Dir: filepath.Join(w.dir, "git")}); err != nil {
		return nil, err
	}
	if w.gitURL, err = w.serve(w.git); err != nil {
		return nil, err
	}
	return w, w.start(ctx)
}

// serve listens on loopback until close.
func (w *world) serve(h http.Handler) (url string, err error) {
	url, stop, err := listen(h)
	if err == nil {
		w.services = append(w.services, stop)
	}
	return url, err
}

// listen serves on a free loopback port until stop is called, which waits.
func listen(h http.Handler) (url string, stop func(), err error) {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listen: %w", err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	done := make(chan struct{})
	go func() { _ = srv.Serve(ln); close(done) }() // stop waits for it; the error is its end
	return "http://" + ln.Addr().String(), func() { _ = srv.Close(); <-done }, nil
}

// start starts the server's process on the address that it had before, if any,
// and waits until it answers.
func (w *world) start(ctx context.Context) error {
	if err := w.spawn(); err != nil {
		return err
	}
	return w.answering(ctx)
}

func (w *world) spawn() error {
	listen := strings.TrimPrefix(w.address, "http://")
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	cmd := &exec.Cmd{
		Path: w.b.program,
		Args: append([]string{"hearth", "serve", "--state-dir", w.state, "--agents-dir", w.agents, "--listen", listen}, w.args...),
		Env:  []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "ANTHROPIC_BASE_URL=" + w.model, "OPENAI_BASE_URL=" + w.model + "/v1", "GOOGLE_GEMINI_BASE_URL=" + w.model},
		// What interrupts this program must not end the server before its sessions are deleted.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	for _, p := range []string{"ANTHROPIC", "OPENAI", "GEMINI"} {
		cmd.Env = append(cmd.Env, p+"_API_KEY=sk-bench-0123456789")
	}
	log, err := os.OpenFile(w.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	w.proc, w.exited = cmd, make(chan struct{})
	exited := w.exited
	go func() { _ = cmd.Wait(); close(exited) }() // kill and close wait for it
	return nil
}

// answering waits until the server that was started answers.
func (w *world) answering(ctx context.Context) error {
	return until(ctx, patience, "the server to answer", func() (bool, string) {
		select {
		case <-w.exited:
			return false, "it ended: " + w.logTail()
		default:
		}
		raw, err := os.ReadFile(filepath.Join(w.state, "server.json"))
		if err != nil {
			return false, err.Error()
		}
		var running struct {
			Address string
			PID     int
		}
		if json.Unmarshal(raw, &running) != nil || running.PID != w.proc.Process.Pid {
			return false, string(raw)
		}
		token, err := os.ReadFile(filepath.Join(w.state, "owner-token"))
		if err != nil {
			return false, err.Error()
		}
		if w.c == nil {
			w.address, w.token = running.Address, strings.TrimSpace(string(token))
			w.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
			if w.c, err = client.New(w.address, w.token, w.http); err != nil {
				return false, err.Error()
			}
			w.c.Retry = 10 * time.Millisecond // it is not the client's patience that is measured
		}
		_, err = w.c.Version(ctx)
		return err == nil, fmt.Sprint(err)
	})
}

// ready waits until the server has tested its sandboxes, so that the test is not measured.
func (w *world) ready(ctx context.Context) error {
	return until(ctx, patience, "the server to be ready", func() (bool, string) {
		err := w.c.Ready(ctx)
		return err == nil, fmt.Sprint(err)
	})
}

func (w *world) logFile() string { return filepath.Join(w.dir, "server.log") }

func (w *world) logTail() string {
	raw, err := os.ReadFile(w.logFile())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(raw[max(0, len(raw)-2000):]))
}

// kill ends the server's process without a word.
func (w *world) kill() error {
	if err := w.proc.Process.Kill(); err != nil {
		return fmt.Errorf("kill the server: %w", err)
	}
	<-w.exited
	return nil
}

// close deletes every session, ends the server, and removes what is there even
// so. It works after ctx has ended too. The error is cause, joined with what was left.
func (w *world) close(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	errs := []error{cause}
	if cause != nil && w.proc != nil {
		fmt.Fprintf(w.b.log, "the end of the server's log:\n%s\n", w.logTail())
	}
	if w.proc != nil {
		if w.c != nil {
			if err := w.deleteAll(ctx); err != nil {
				errs = append(errs, fmt.Errorf("delete the sessions: %w", err))
			}
		}
		_ = w.proc.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-w.exited:
		case <-time.After(20 * time.Second):
			errs = append(errs, errors.New("the server did not end on SIGTERM"), w.kill())
		}
		left, err := w.sweep(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("look for sandboxes that the server left: %w", err))
		}
		if len(left) > 0 && cause == nil {
			errs = append(errs, fmt.Errorf("the server left the sandboxes %v, which are deleted now", left))
		}
	}
	if w.http != nil {
		w.http.CloseIdleConnections()
	}
	for _, stop := range w.services {
		stop()
	}
	if left := family(w.dir + "/"); len(left) > 0 {
		errs = append(errs, fmt.Errorf("processes %v were left", left))
	}
	if err := os.RemoveAll(w.dir); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (w *world) deleteAll(ctx context.Context) error {
	return until(ctx, patience, "all sessions to be deleted", func() (bool, string) {
		list, err := w.c.List(ctx, client.ListInput{Limit: 100})
		if err != nil {
			select {
			case <-w.exited:
				return true, "" // the sweep does it
			default:
				return false, err.Error()
			}
		}
		for _, s := range list.Items {
			if s.Phase != "deleting" {
				_, _ = w.c.Delete(ctx, s.ID, true) // the next look tells
			}
		}
		return len(list.Items) == 0, fmt.Sprintf("%d sessions", len(list.Items))
	})
}

// sweep deletes sandboxes that the ended server left.
func (w *world) sweep(ctx context.Context) (ids []string, err error) {
	p, err := w.b.provider(filepath.Join(w.state, "run", "g"), filepath.Join(w.state, "roots"))
	if err != nil {
		return nil, err
	}
	return sweep(ctx, p)
}

// sweep deletes every sandbox of a provider and names them.
func sweep(ctx context.Context, p *gvisor.Provider) (ids []string, err error) {
	list, err := p.List(ctx, nil)
	for _, i := range list {
		ids = append(ids, i.Handle.ID)
		err = errors.Join(err, p.Delete(ctx, i.Handle))
	}
	return ids, err
}

// provider makes sandboxes without a server.
func (b *bench) provider(state, roots string) (*gvisor.Provider, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	store, err := rootfs.New(rootfs.Config{Dir: roots})
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Config{StateDir: state, Executable: b.program, Host: host, Roots: store})
}

// create makes a session of the scripted agent, unless in names another.
func (w *world) create(ctx context.Context, in client.CreateInput) (client.Accepted, error) {
	if in.Agent == "" {
		in.Agent = "scripted"
	}
	a, err := w.c.Create(ctx, in)
	if err != nil {
		return a, fmt.Errorf("create a session: %w", err)
	}
	return a, nil
}

// turn waits until a turn is as wanted; one that ends otherwise is an error.
func (w *world) turn(ctx context.Context, id, turn, what string, ok func(t client.Turn) bool) (client.Turn, error) {
	var out client.Turn
	var failed error
	err := until(ctx, patience, "a turn to be "+what, func() (bool, string) {
		t, err := w.c.Turn(ctx, id, turn)
		if err != nil {
			return false, err.Error()
		}
		out = t
		if !ok(t) && t.Ended() {
			failed = fmt.Errorf("the turn ended as %s %s (%s) and was not %s", t.State, t.Code, t.Message, what)
		}
		return ok(t) || failed != nil, t.State
	})
	return out, errors.Join(failed, err)
}

// completed waits for a turn's good end.
func (w *world) completed(ctx context.Context, id, turn string) (client.Turn, error) {
	return w.turn(ctx, id, turn, "completed", func(t client.Turn) bool { return t.State == "completed" })
}

// running waits until the agent is at work on a turn.
func (w *world) running(ctx context.Context, id, turn string) error {
	_, err := w.turn(ctx, id, turn, "running", func(t client.Turn) bool { return t.State == "running" })
	return err
}

// prompt runs a further turn to its good end.
func (w *world) prompt(ctx context.Context, id, text string) (client.Turn, error) {
	a, err := w.c.Prompt(ctx, id, client.PromptInput{Prompt: text})
	if err != nil {
		return client.Turn{}, fmt.Errorf("prompt: %w", err)
	}
	return w.completed(ctx, id, a.Turn.ID)
}

// remove deletes a session and waits until it is gone.
func (w *world) remove(ctx context.Context, id string) error {
	if _, err := w.c.Delete(ctx, id, true); err != nil {
		return fmt.Errorf("delete a session: %w", err)
	}
	return until(ctx, patience, "a session to be gone", func() (bool, string) {
		_, err := w.c.Get(ctx, id)
		return client.CodeOf(err) == "SESSION_NOT_FOUND", fmt.Sprint(err)
	})
}

// cutCursor reads "turn.part".
func cutCursor(cursor string) (turn, part int64, err error) {
	a, b, _ := strings.Cut(cursor, ".")
	turn, err1 := strconv.ParseInt(a, 10, 64)
	part, err2 := strconv.ParseInt(b, 10, 64)
	return turn, part, errors.Join(err1, err2)
}
