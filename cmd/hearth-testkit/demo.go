package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
	"github.com/hearthd/hearth/internal/testkit/sample"
	"github.com/hearthd/hearth/internal/testkit/script"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// realKeys are variables that mean a real model.
var realKeys = []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"}

const demoKey = "scripted-demo-key-0123456789"

// exitStatus is the demonstration's outcome: that of `hearth run`.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("hearth run ended with status %d", int(e)) }

// demo runs one task the whole way with the hearth program: a git host and, when
// there is no key, a scripted model live in this process; the server is hearth's own.
func demo(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	hearth := fs.String("hearth", "bin/hearth", "the hearth program")
	dir := fs.String("dir", ".demo", "folder of the demonstration; kept")
	agentsDir := fs.String("agents-dir", "", "folder of installed agents; empty: below the folder")
	agent := fs.String("agent", "pi", "agent")
	if err := parse(fs, args, errOut, 0); err != nil {
		return err
	}
	d := &demonstration{agent: *agent, out: out, errOut: errOut}
	for _, p := range []struct{ to, from *string }{{&d.hearth, hearth}, {&d.dir, dir}} {
		abs, err := filepath.Abs(*p.from)
		if err != nil {
			return fmt.Errorf("find %s: %w", *p.from, err)
		}
		*p.to = abs
	}
	// The sandbox goes as soon as the turn has ended: nothing of the demonstration stays behind.
	d.env = append(os.Environ(), "HEARTH_SANDBOX_IDLE=1s")
	if *agentsDir != "" {
		abs, err := filepath.Abs(*agentsDir)
		if err != nil {
			return fmt.Errorf("find %s: %w", *agentsDir, err)
		}
		d.env = append(d.env, "HEARTH_AGENTS_DIR="+abs)
	}
	return d.run(ctx)
}

type demonstration struct {
	hearth, dir, agent string
	env                []string
	out, errOut        io.Writer
}

func (d *demonstration) say(format string, args ...any) {
	_, _ = fmt.Fprintf(d.out, "\n── "+format+"\n", args...) // a closed output ends the command that follows
}

func (d *demonstration) run(ctx context.Context) error {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return fmt.Errorf("make the demonstration's folder: %w", err)
	}
	// A server that an earlier run left, when it was killed, knows an old model's address.
	if err := d.stopServer(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	model, task := "scripted", sample.Task
	if real := realKey(); real != "" {
		d.say("Model: the real one, by %s", real)
		model, task = "", script.Strip(sample.Task)
	} else {
		m := scriptedmodel.New(scriptedmodel.Options{Keys: []string{demoKey}})
		base, err := serveIn(gctx, g, m)
		if err != nil {
			return err
		}
		d.env = append(d.env, "ANTHROPIC_API_KEY="+demoKey, "ANTHROPIC_BASE_URL="+base, "OPENAI_API_KEY="+demoKey, "OPENAI_BASE_URL="+base+"/v1",
			"GEMINI_API_KEY="+demoKey, "GOOGLE_GEMINI_BASE_URL="+base)
		d.say("Model: a scripted one on %s (set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY for a real one)", base)
	}
	repos, err := gitserver.New(gitserver.Options{Dir: filepath.Join(d.dir, "git")})
	if err != nil {
		return err
	}
	repo, err := repos.OpenRepo("sample")
	if err != nil {
		if repo, err = repos.NewRepo(ctx, "sample", sample.Files()); err != nil {
			return err
		}
	}
	host, err := serveIn(gctx, g, repos)
	if err != nil {
		return err
	}
	url := host + "/sample.git"
	d.say("Repository: %s, a small project whose tests fail", url)
	g.Go(func() error {
		defer stop()
		if err := d.hearthRun(gctx, "agent", "install", d.agent); err != nil {
			return err
		}
		d.say("Task for %s, in a sandbox", d.agent)
		args := []string{"run", "--json=false", "--repo", url, "--agent", d.agent, "--model", model, strings.TrimSpace(task)}
		before := heads(gctx, repo.Dir)
		runErr := d.hearthRun(gctx, args...)
		if runErr == nil {
			runErr = d.readBack(gctx, url, repo.Dir, before)
		}
		c, cancel := context.WithTimeout(context.WithoutCancel(gctx), 30*time.Second)
		defer cancel()
		return errors.Join(runErr, d.settled(c), d.stopServer(c))
	})
	return g.Wait()
}

func realKey() string {
	for _, k := range realKeys {
		if os.Getenv(k) != "" {
			return k
		}
	}
	return ""
}

// serveIn serves h on a free port of the loopback until ctx ends.
func serveIn(ctx context.Context, g *errgroup.Group, h http.Handler) (string, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	g.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return srv.Close()
	})
	return "http://" + ln.Addr().String(), nil
}

// hearthRun runs the program with the person's own terminal; interrupts reach it as they are.
func (d *demonstration) hearthRun(ctx context.Context, args ...string) error {
	args = append([]string{"--state-dir", filepath.Join(d.dir, "state")}, args...)
	cmd := exec.Command(d.hearth, args...) //nolint:noctx // an interrupt reaches it by the terminal, and it asks what to do
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = d.env, os.Stdin, d.out, d.errOut
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", d.hearth, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }() // received below
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		err = <-done
	}
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		return exitStatus(ee.ExitCode())
	}
	return err
}

func heads(ctx context.Context, dir string) map[string]string {
	out, err := exec.CommandContext(ctx, "git", "-C", dir, "for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").Output()
	if err != nil {
		return nil
	}
	list := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, oid, _ := strings.Cut(strings.TrimSpace(line), " ")
		list[name] = oid
	}
	return list
}

// readBack asks the git host itself, with plain git, what has arrived.
func (d *demonstration) readBack(ctx context.Context, url, dir string, before map[string]string) error {
	out, err := exec.CommandContext(ctx, "git", "ls-remote", "--heads", url).Output()
	if err != nil {
		return fmt.Errorf("read the remote back: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		oid, ref, _ := strings.Cut(strings.TrimSpace(line), "\t")
		name := strings.TrimPrefix(ref, "refs/heads/")
		if name == "main" || before[name] == oid {
			continue
		}
		d.say("Read back from the remote: git ls-remote says %s is at %s", name, oid[:12])
		stat, err := exec.CommandContext(ctx, "git", "-C", dir, "diff", "--stat", "main", name).Output()
		if err != nil {
			return fmt.Errorf("compare the branch: %w", err)
		}
		_, _ = d.out.Write(stat) // as in say
		return nil
	}
	return errors.New("nothing new is on the remote")
}

// settled waits until the server has no sandbox any more.
func (d *demonstration) settled(ctx context.Context) error {
	state := filepath.Join(d.dir, "state")
	raw, err := os.ReadFile(filepath.Join(state, "server.json"))
	if err != nil {
		return nil //nolint:nilerr // no server, no sandboxes of its
	}
	token, err := os.ReadFile(filepath.Join(state, "owner-token"))
	var s struct{ Address string }
	if err := errors.Join(err, json.Unmarshal(raw, &s)); err != nil {
		return fmt.Errorf("find the server: %w", err)
	}
	api, err := client.New(s.Address, strings.TrimSpace(string(token)), nil)
	if err != nil {
		return err
	}
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		c, err := api.Capabilities(ctx)
		// A doors folder goes last, when everything else of its sandbox is gone.
		doors, gerr := filepath.Glob(filepath.Join(state, "run", "d", "*"))
		if err == nil && gerr == nil && c.Sandbox.Live == 0 && len(doors) == 0 {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("%d sandboxes are still there", c.Sandbox.Live))
		}
	}
}

// stopServer ends the demonstration's server, if it runs, by its recorded pid.
func (d *demonstration) stopServer(ctx context.Context) error {
	raw, err := os.ReadFile(filepath.Join(d.dir, "state", "server.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var s struct{ PID int }
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		return fmt.Errorf("read the server's file: %w", err)
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.PID))
	if err != nil || !bytes.Contains(cmdline, []byte("serve")) || !bytes.Contains(cmdline, []byte(d.dir)) {
		return nil // it has ended; the pid is somebody else's or nobody's
	}
	if err := syscall.Kill(s.PID, syscall.SIGTERM); err != nil {
		return nil //nolint:nilerr // it has just ended
	}
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		if syscall.Kill(s.PID, 0) != nil {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("the server %d does not end: %w", s.PID, context.Cause(ctx))
		}
	}
}
