package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// natives starts agents as a sandbox does, but on the host itself: the same
// layer, command, environment and files, against a scripted model of its own.
type natives struct {
	b     *bench
	dir   string
	model string
	stop  func()
}

func (b *bench) newNatives() (*natives, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	n := &natives{b: b, dir: dir}
	model, mux := scriptedmodel.New(scriptedmodel.Options{}), http.NewServeMux()
	for _, d := range []string{"/anthropic", "/openai", "/gemini"} {
		mux.Handle(d+"/", http.StripPrefix(d, model))
	}
	n.model, n.stop, err = listen(mux)
	return n, err
}

func (n *natives) close() error {
	n.stop()
	return os.RemoveAll(n.dir)
}

// native is one agent's process with a session.
type native struct {
	acp.Client
	cmd     *exec.Cmd
	session string
	home    string
	said    chan time.Time // of each piece of text; full: dropped
	stop    context.CancelFunc
	ended   chan struct{}
}

// start starts an agent and opens a session; took is until it may be prompted.
func (n *natives) start(ctx context.Context, agents, name, model string) (a *native, took float64, err error) {
	p, err := agent.Lookup(name)
	if err != nil {
		return nil, 0, err
	}
	binds, build, err := installer(agents).Layer(p)
	if err != nil {
		return nil, 0, err
	}
	home, err := os.MkdirTemp(n.dir, "home")
	if err != nil {
		return nil, 0, err
	}
	layer, work := filepath.Join(home, "layer"), filepath.Join(home, "work")
	if err := errors.Join(os.Mkdir(layer, 0o700), os.Mkdir(work, 0o700)); err != nil {
		return nil, 0, err
	}
	for _, b := range binds {
		if err := os.Symlink(b.Source, filepath.Join(layer, filepath.Base(b.Target))); err != nil {
			return nil, 0, err
		}
	}
	l, err := p.Render(agent.RenderInput{
		Build: build, AgentsDir: layer, Home: home, Model: model, ProxyURL: "http://127.0.0.1:9",
		Models: agent.ModelBase{Anthropic: n.model + "/anthropic", OpenAI: n.model + "/openai/v1", Gemini: n.model + "/gemini"},
	})
	if err != nil {
		return nil, 0, err
	}
	took, err = timed(func() error {
		if a, err = n.spawn(ctx, l, home); err != nil {
			return err
		}
		return a.open(ctx, l, work)
	})
	if err != nil && a != nil {
		err = errors.Join(err, a.close())
	}
	return a, took, err
}

func (n *natives) spawn(ctx context.Context, l agent.Launch, home string) (*native, error) {
	for _, f := range l.Files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(f.Path, []byte(f.Content), os.FileMode(f.Mode)); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(l.Command[0], l.Command[1:]...) //nolint:gosec,noctx // an installed agent; close ends it with all that it started
	cmd.Env, cmd.Dir = l.Env, l.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	a := &native{cmd: cmd, home: home, said: make(chan time.Time, 1), ended: make(chan struct{})}
	conn := acp.NewConn(out, in, acp.Handlers{
		Notification: func(_ context.Context, m acp.Notification) {
			if m.Method == acp.MethodSessionUpdate && strings.Contains(string(m.Params), `"`+acp.UpdateAgentMessage+`"`) {
				select {
				case a.said <- time.Now():
				default:
				}
			}
		},
	}, acp.Options{})
	a.Client = acp.Client{Conn: conn}
	run, stop := context.WithCancel(ctx)
	a.stop = stop
	go func() { _ = conn.Run(run); close(a.ended) }() // close waits for it
	return a, nil
}

// open does what the driver does before a first prompt.
func (a *native) open(ctx context.Context, l agent.Launch, work string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := a.Initialize(ctx, acp.InitializeRequest{ProtocolVersion: acp.ProtocolVersion, ClientInfo: &acp.Implementation{Name: "hearth-bench", Version: "1"}}); err != nil {
		return err
	}
	s, err := a.NewSession(ctx, acp.NewSessionRequest{CWD: work})
	if acp.IsCode(err, acp.CodeAuthRequired) && l.Auth != "" {
		if err := a.Authenticate(ctx, acp.AuthenticateRequest{MethodID: l.Auth}); err != nil {
			return err
		}
		s, err = a.NewSession(ctx, acp.NewSessionRequest{CWD: work})
	}
	if err != nil {
		return err
	}
	a.session = s.SessionID
	switch {
	case l.Mode == "":
	case l.ModeConfig == "":
		err = a.SetMode(ctx, a.session, l.Mode)
	default:
		_, err = a.SetConfigOption(ctx, acp.SetConfigOptionRequest{SessionID: a.session, ConfigID: l.ModeConfig, Value: l.Mode})
	}
	if err == nil && l.ModelOption.ID != "" {
		_, err = a.SetConfigOption(ctx, acp.SetConfigOptionRequest{SessionID: a.session, ConfigID: l.ModelOption.ID, Value: l.ModelOption.Value})
	}
	return err
}

// ask sends a prompt and waits for its end; first is until the first piece of text, ms.
func (a *native) ask(ctx context.Context, text string) (first float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-a.said:
	default:
	}
	began := time.Now()
	if _, err := a.Prompt(ctx, acp.PromptRequest{SessionID: a.session, Prompt: []acp.ContentBlock{acp.TextBlock(text)}}); err != nil {
		return 0, err
	}
	select {
	case at := <-a.said:
		return ms(at.Sub(began)), nil
	default:
		return 0, errors.New("the agent said nothing")
	}
}

// close ends the agent and whatever it started.
func (a *native) close() error {
	_ = syscall.Kill(-a.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-a.ended
	a.stop()
	_ = a.cmd.Wait() // killed
	return os.RemoveAll(a.home)
}
