package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
)

// startWait is how long a server that was started may take until it is ready.
const startWait = 30 * time.Second

// pollEvery is how often it is asked.
const pollEvery = 50 * time.Millisecond

// config reads the settings with the flags that every command has.
func (a *app) config(flags map[string]string) (config.Config, error) {
	if flags == nil {
		flags = map[string]string{}
	}
	if a.stateDir != "" {
		dir, err := filepath.Abs(a.stateDir)
		if err != nil {
			return config.Config{}, fmt.Errorf("find the state folder: %w", err)
		}
		flags["state-dir"] = dir
	}
	return config.Load(flags, a.Getenv)
}

// connect finds the server: the one that was named, else the one of the state
// folder, which is started when it does not run.
func (a *app) connect(ctx context.Context) (*client.Client, error) {
	token := a.Getenv("HEARTH_TOKEN")
	address := a.server
	if address == "" {
		address = a.Getenv("HEARTH_SERVER")
	}
	if address != "" {
		if token == "" {
			file := a.Getenv("HEARTH_TOKEN_FILE")
			if file == "" {
				return nil, fault.New(fault.Unauthenticated, "HEARTH_TOKEN is not set, and a server elsewhere needs a token.")
			}
			var err error
			if token, err = config.ReadToken(file); err != nil {
				return nil, fault.Wrap(err, fault.Unauthenticated, "The token file %s cannot be read.", file)
			}
		}
		return client.New(address, token, nil)
	}
	cfg, err := a.config(nil)
	if err != nil {
		return nil, err
	}
	c, err := find(ctx, cfg, token)
	if err == nil {
		return c, nil
	}
	if fault.CodeOf(err) == fault.Unauthenticated {
		return nil, err
	}
	if answers(ctx, cfg, token) { // it is there and only not ready yet
		return await(ctx, cfg, token, nil)
	}
	start := a.StartServer
	var child *background
	if start == nil {
		start = func(_ context.Context, cfg config.Config) (bool, error) {
			child, err = a.startBackground(cfg)
			return err == nil, err
		}
	}
	started, err := start(ctx, cfg)
	if err != nil {
		return nil, fault.Wrap(err, fault.ServerUnavailable, "No server runs for %s, and none could be started: %v.", cfg.StateDir, err)
	}
	c, err = await(ctx, cfg, token, child)
	if err == nil && started {
		a.note("%s", a.style(a.Stderr).dim("Started a server in the background; its log is "+cfg.LogFile()))
	}
	return c, err
}

// find returns a client of the state folder's server, if it is ready.
func find(ctx context.Context, cfg config.Config, token string) (*client.Client, error) {
	s, err := config.ReadServerFile(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	if token == "" {
		if token, err = config.ReadToken(cfg.TokenFile); err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return nil, fault.Wrap(err, fault.Unauthenticated, "The token file %s belongs to somebody else.", cfg.TokenFile)
			}
			return nil, err
		}
	}
	c, err := client.New(s.Address, token, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return c, c.Ready(ctx)
}

// answers says whether the state folder's server is up, ready or not.
func answers(ctx context.Context, cfg config.Config, token string) bool {
	s, err := config.ReadServerFile(cfg.StateDir)
	if err != nil {
		return false
	}
	c, err := client.New(s.Address, token, nil)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err = c.Version(ctx)
	return err == nil
}

// await polls until the server is ready.
func await(ctx context.Context, cfg config.Config, token string, child *background) (*client.Client, error) {
	deadline := time.NewTimer(startWait)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var ended <-chan struct{}
	if child != nil {
		ended = child.ended
	}
	for {
		c, err := find(ctx, cfg, token)
		if err == nil {
			return c, nil
		}
		select {
		case <-tick.C:
		case <-ended:
			// Another one may have been faster: then this one ended because of it.
			ended = nil
			if !answers(ctx, cfg, token) {
				deadline.Reset(3 * time.Second)
			}
		case <-deadline.C:
			why := err.Error()
			if child != nil {
				if said := child.said(); said != "" {
					why = said
				}
			}
			return nil, fault.Wrap(err, fault.ServerUnavailable, "The server was started and did not become ready: %s\nIts log is %s.", why, cfg.LogFile())
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// background is a server that this process started.
type background struct {
	ended chan struct{}
	log   string
	from  int64 // where its part of the log begins
}

// startBackground starts this program as a server in a session of its own, so
// that it outlives the command and its terminal.
func (a *app) startBackground(cfg config.Config) (*background, error) {
	exe := a.Executable
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	log, err := os.OpenFile(cfg.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	b := &background{ended: make(chan struct{}), log: cfg.LogFile()}
	if st, err := log.Stat(); err == nil {
		b.from = st.Size()
	}
	args := []string{"serve", "--state-dir", cfg.StateDir, "--idle-exit", config.AutostartIdleExit.String()}
	if a.Getenv("HEARTH_LISTEN") == "" {
		args = append(args, "--listen", "127.0.0.1:0") // found by server.json, so that no port can be in the way
	}
	cmd := exec.Command(exe, args...) //nolint:noctx // it outlives this command on purpose
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = cfg.StateDir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", exe, err)
	}
	// Waits for the server; nobody waits for it: it ends with the server or with this program.
	go func() {
		_ = cmd.Wait() // what it said is in the log
		close(b.ended)
	}()
	return b, nil
}

// said is the end of what the server wrote.
func (b *background) said() string {
	f, err := os.Open(b.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(b.from, io.SeekStart); err != nil {
		return ""
	}
	raw, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return ""
	}
	lines := strings.Split(string(bytes.TrimSpace(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "\n")
}
