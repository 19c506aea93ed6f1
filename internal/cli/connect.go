package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
)

// startWait is how long a server that was started may take until it is ready.
const startWait = 30 * time.Second

// pollEvery is how often it is asked.
const pollEvery = 50 * time.Millisecond

// config reads the settings with the flags that every command has. Paths in flags
// and environment may be relative to the folder that the command is given in.
func (a *app) config(flags map[string]string) (config.Config, error) {
	given := map[string]string{}
	for k, v := range flags {
		given[k] = v
	}
	if a.stateDir != "" {
		given["state-dir"] = a.stateDir
	}
	for _, f := range config.Fields() {
		if v, ok := given[f.Name]; ok && isPath(f) {
			given[f.Name] = absolute(v)
		}
	}
	if given["state-dir"] == "" && a.Getenv("HEARTH_STATE_DIR") == "" && os.Geteuid() != 0 && !filepath.IsAbs(a.Getenv("HOME")) && !filepath.IsAbs(a.Getenv("XDG_STATE_HOME")) {
		return config.Config{}, fault.New(fault.ConfigInvalid, "There is no folder for the state: HOME is not set. Set it, or give --state-dir DIR (HEARTH_STATE_DIR).")
	}
	return config.Load(given, a.setting)
}

// setting is a variable of the environment, with its path made absolute if it has one.
func (a *app) setting(name string) string {
	v := a.Getenv(name)
	for _, f := range config.Fields() {
		if f.Env() == name && isPath(f) {
			return absolute(v)
		}
	}
	return v
}

// isPath tells fields whose value is a path of this machine.
func isPath(f config.Field) bool { return f.Type == "DIR" || f.Type == "FILE" }

func absolute(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path // package config refuses it
}

// errNoState says that the state folder is not there: nothing was ever run with it, and
// no server is started to say so.
var errNoState = errors.New("there is no state folder")

// connect finds the server: the one that was named, else the one of the state
// folder, which is started when it does not run. It need not be ready: conversations
// can be read where no sandbox can be started. Errors: errNoState.
func (a *app) connect(ctx context.Context) (*client.Client, error) { return a.reach(ctx, answering) }

// need says how much of a server is wanted; each has what is before it.
type need int

const (
	answering need = iota
	current        // with the settings of this command, where that can be had
	ready          // to run something
)

func (a *app) reach(ctx context.Context, want need) (*client.Client, error) {
	token := a.Getenv("HEARTH_TOKEN")
	if address := a.elsewhere(); address != "" {
		if _, err := client.New(address, "", nil); err != nil {
			return nil, err // a token would not help
		}
		if token == "" {
			file := a.setting("HEARTH_TOKEN_FILE")
			if file == "" {
				return nil, fault.New(fault.Unauthenticated, "%s is a server elsewhere, and needs a token: set HEARTH_TOKEN, or HEARTH_TOKEN_FILE to a file with it.", address)
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
	if _, err := os.Stat(cfg.StateDir); want == answering && errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(errNoState, fault.SessionNotFound, "There is no session yet: the state folder %s is not there. Make one with `hearth run`.", cfg.StateDir)
	}
	s := &starter{a: a, cfg: cfg, token: token}
	defer s.done()
	if want > answering {
		// Before anything is said of its readiness: other settings may be what it lacks.
		if c, err := a.find(ctx, cfg, token, answering); err == nil {
			if s.restarted, err = a.renew(ctx, cfg, c); err != nil {
				return nil, err
			}
		}
	}
	c, err := s.reach(ctx, want)
	if err == nil {
		a.background = isBackground(cfg.StateDir, a.holderOf(cfg.StateDir))
	}
	return c, err
}

// elsewhere is the address of a server that was named; empty: the state folder's is meant.
func (a *app) elsewhere() string {
	if a.server != "" {
		return a.server
	}
	return a.Getenv("HEARTH_SERVER")
}

// readyWithin finds a server that is ready, with an end to the waiting; 0: its own.
// Code: TURN_LIMIT.
func (a *app) readyWithin(ctx context.Context, limit time.Duration) (*client.Client, error) {
	if limit <= 0 {
		return a.reach(ctx, ready)
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := a.reach(within, ready)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, &client.Error{
			Code: string(fault.TurnLimit), Kind: string(fault.KindTimeout), Message: fmt.Sprintf("The server was not ready within %v (--limit). Nothing was begun.", limit),
			Remedy: "Give a longer --limit; the server may be ready by now.",
		}
	}
	return c, err
}

// errNobody says that no process works on the state folder.
var errNobody = errors.New("no server runs")

// silent is a process that has the state folder and has not told where it answers:
// it starts, or ends.
type silent int

func (p silent) Error() string {
	return fmt.Sprintf("process %d works on the state folder and has not told its address", int(p))
}

// holder is the process that works on the state folder; 0: none does.
func (a *app) holder(stateDir string) (int, error) {
	if a.Holder == nil {
		return 0, fault.New(fault.Unsupported, "This program cannot look for a server on this machine: name one with --server.")
	}
	pid, err := a.Holder(stateDir)
	if errors.Is(err, fs.ErrPermission) {
		return 0, &client.Error{
			Code: string(fault.Unauthenticated), Kind: string(fault.KindUnauthenticated), Message: fmt.Sprintf("The state folder %s cannot be used by this user: permission denied.", stateDir),
			Remedy: "Run this as the user that the server runs as, or give another --state-dir, or the server's address with --server and its token in HEARTH_TOKEN.",
		}
	}
	return pid, err
}

// holderOf is holder where an error means none.
func (a *app) holderOf(stateDir string) int {
	pid, err := a.holder(stateDir)
	if err != nil {
		return 0
	}
	return pid
}

// local is what the server that has the state folder now tells of itself. The file of one
// that was killed is not believed: whoever listens at its address by now is a stranger.
// Errors: errNobody, silent.
func (a *app) local(stateDir string) (config.ServerFile, error) {
	pid, err := a.holder(stateDir)
	if err != nil {
		return config.ServerFile{}, err
	}
	if pid == 0 {
		return config.ServerFile{}, errNobody
	}
	s, err := config.ReadServerFile(stateDir)
	if err != nil || s.PID != pid {
		return config.ServerFile{}, silent(pid)
	}
	return s, nil
}

// localHTTP speaks to whichever server has the state folder when a connection is made,
// wherever that listens. Nothing is sent on a connection before it is known that the server
// had the folder, at this address, before and after it was made.
func (a *app) localHTTP(stateDir string) *http.Client {
	var d net.Dialer
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		before, err := a.local(stateDir)
		if err != nil {
			return nil, err
		}
		u, err := url.Parse(before.Address)
		if err != nil {
			return nil, fmt.Errorf("read the server's address: %w", err)
		}
		conn, err := d.DialContext(ctx, network, u.Host)
		if err != nil {
			return nil, err
		}
		if after, err := a.local(stateDir); err != nil || after != before {
			return nil, errors.Join(errors.New("the server has ended meanwhile"), err, conn.Close())
		}
		return conn, nil
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DialContext: dial, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 4},
	}
}

// find returns a client of the state folder's server, if that is as wanted. The client
// comes with the error, too, when the server answers.
func (a *app) find(ctx context.Context, cfg config.Config, token string, want need) (*client.Client, error) {
	s, err := a.local(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	if token == "" {
		if token, err = config.ReadToken(cfg.TokenFile); err != nil {
			return nil, noToken(cfg, err)
		}
	}
	c, err := client.New(s.Address, token, a.localHTTP(cfg.StateDir))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err = c.Ready(ctx)
	var e *client.Error
	if errors.As(err, &e) && e.Status == http.StatusServiceUnavailable {
		if want < ready {
			return c, nil
		}
		return c, err
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// noToken is the error for a server that answers and whose token cannot be read. A server
// writes the token before it tells its address: it will not come.
func noToken(cfg config.Config, err error) error {
	e := &client.Error{Code: string(fault.Unauthenticated), Kind: string(fault.KindUnauthenticated)}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Message, e.Remedy = fmt.Sprintf("The token file %s belongs to somebody else.", cfg.TokenFile), "Run this as the user that the server runs as, or set HEARTH_TOKEN."
	case errors.Is(err, fs.ErrNotExist):
		e.Message, e.Remedy = fmt.Sprintf("The token file %s is gone.", cfg.TokenFile), "Run `hearth stop`: the next server makes a new token, and the old one is void then."
	default:
		e.Message, e.Remedy = fmt.Sprintf("The token file %s cannot be used: %v.", cfg.TokenFile, err), "Remove the file and run `hearth stop`: the next server makes a new token, and the old one is void then."
	}
	return e
}
