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
		args := []string{"run", "--json=false", "--stop-on-interrupt", "--no-next", "--repo", url, "--agent", d.agent, "--model", model, strings.TrimSpace(task)}
		before := heads(gctx, repo.Dir)
		runErr := d.hearthRun(gctx, args...)
		if runErr == nil {
			runErr = d.readBack(gctx, url, repo.Dir, before)
		}
		c, cancel := context.WithTimeout(context.WithoutCancel(gctx), 30*time.Second)
		defer cancel()
		err := errors.Join(runErr, d.settled(c), d.stopServer(c))
		if err == nil {
			d.next()
		}
		return err
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

// hearthRun runs the program. An interrupt of this one is handed on: nothing of the
// demonstration goes on without it.
func (d *demonstration) hearthRun(ctx context.Context, args ...string) error {
	args = append([]string{"--state-dir", d.state()}, args...)
	cmd := exec.Command(d.hearth, args...) //nolint:noctx // it is asked to end, see below
	cmd.Env, cmd.Stdout, cmd.Stderr = d.env, d.out, d.errOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the terminal comes by this process, once
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

// settled waits until no sandbox is left. Its folder of doors goes last, when everything
// else of it is gone.
func (d *demonstration) settled(ctx context.Context) error {
	t := time.NewTicker(300 * time.Millisecond)
	defer t.Stop()
	for {
		cmd := exec.CommandContext(ctx, d.hearth, "--state-dir", d.state(), "list", "--json")
		cmd.Env = d.env
		out, err := cmd.Output()
		var sessions []struct{ Sandbox struct{ State string } }
		if err == nil {
			err = json.Unmarshal(out, &sessions)
		}
		doors, gerr := filepath.Glob(filepath.Join(d.state(), "run", "d", "*"))
		left := len(doors)
		for _, s := range sessions {
			if s.Sandbox.State == "hot" || s.Sandbox.State == "starting" {
				left++
			}
		}
		if err == nil && gerr == nil && left == 0 {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return errors.Join(err, gerr, errors.New("sandboxes of the demonstration are still there"))
		}
	}
}

func (d *demonstration) state() string { return filepath.Join(d.dir, "state") }

// stopServer ends the demonstration's server, if it runs.
func (d *demonstration) stopServer(ctx context.Context) error {
	if _, err := os.Stat(d.state()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	cmd := exec.CommandContext(ctx, d.hearth, "--state-dir", d.state(), "stop")
	cmd.Env = d.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("end the demonstration's server: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// next says what may be tried afterwards: only what works with everything of the
// demonstration gone but its folder.
func (d *demonstration) next() {
	hearth := word(d.hearth)
	d.say("What was said and done is kept; see it again")
	_, _ = fmt.Fprintf(d.out, "   %s --state-dir %s transcript\n   %s --state-dir %s diff\n", hearth, word(d.state()), hearth, word(d.state()))
	d.say("With a repository and a key of your own (ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY in the environment)")
	_, _ = fmt.Fprintf(d.out, "   %s doctor\n   %s agent install %s\n   %s run --agent %s --repo URL \"the task\"\n", hearth, hearth, d.agent, hearth, d.agent)
}

// word is a word for a POSIX shell.
func word(s string) string {
	if !strings.ContainsAny(s, " \t\n\"'\\$`&|;<>()*?[#~!{}") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
