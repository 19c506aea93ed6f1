// Package verify proves an installed agent: it runs the agent in real sandboxes of
// this machine, through the whole server, against a scripted model, and checks
// what Hearth relies on: start, a turn that changes a file, memory, cancel, a kill in mid-turn, and memory
// after that. The outcome is kept beside the installed agent. It uses a
// state folder of its own and touches no session of yours. Start at [Run].
package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/server"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// Config of one run.
type Config struct {
	Profile   agent.Profile
	AgentsDir string
	Options   server.Options // of a server on this machine; state folder, address and environment are replaced
	RunGroup  int
	Progress  func(string)
	Log       *slog.Logger
}

// Result is what was seen, kept as NAME.verified, in JSON.
type Result struct {
	Name  string    `json:"name"`
	Build string    `json:"build"` // of the profile that was run
	OK    bool      `json:"ok"`
	At    time.Time `json:"at"`
	Steps []Step    `json:"steps"`
}

// Step is one thing that was tried.
type Step struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
	Millis int64  `json:"ms"`
}

const (
	key       = "scripted-model-key-for-verify"
	stepLimit = 3 * time.Minute
)

// Shown is what is known of an installed agent's last verification, for people.
func Shown(agentsDir string, p agent.Profile) string {
	var r Result
	raw, err := os.ReadFile(file(agentsDir, p.Name))
	if err != nil || json.Unmarshal(raw, &r) != nil || r.Build != p.Build() {
		return "(not verified)"
	}
	if !r.OK {
		return "(failed verification " + r.At.Format(time.DateOnly) + ")"
	}
	return "(verified " + r.At.Format(time.DateOnly) + ")"
}

func file(dir, name string) string { return filepath.Join(dir, name+".verified") }

// Run verifies one agent. Code: AGENT_VERIFY_FAILED, naming the step.
func Run(ctx context.Context, c Config) (err error) {
	// The outcome is kept; better to know now that it cannot be than after all the steps.
	if f, err := os.OpenFile(file(c.AgentsDir, c.Profile.Name), os.O_CREATE|os.O_WRONLY, 0o644); err != nil { //nolint:gosec // read by everybody who lists agents
		return fault.Wrap(err, fault.AgentVerifyFailed, "The outcome cannot be kept in %s: run this as the user who owns the agents.", c.AgentsDir)
	} else if err := f.Close(); err != nil {
		return fmt.Errorf("open the outcome's file: %w", err)
	}
	dir, err := os.MkdirTemp("/tmp", "hearth-v")
	if err != nil {
		return fmt.Errorf("make a state folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	model := &http.Server{Handler: scriptedmodel.New(scriptedmodel.Options{Keys: []string{key}}), ReadHeaderTimeout: 10 * time.Second}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the scripted model: %w", err)
	}
	v := &run{c: c, ready: make(chan [2]string, 1), res: Result{Name: c.Profile.Name, Build: c.Profile.Build(), At: c.Options.Now().UTC()}}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := model.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error { return server.Run(gctx, v.options(dir, "http://"+ln.Addr().String())) })
	g.Go(func() error {
		defer stop()
		return v.steps(gctx)
	})
	g.Go(func() error {
		<-gctx.Done()
		return model.Close()
	})
	err = g.Wait()
	if len(v.res.Steps) == 0 {
		return err
	}
	raw, jerr := json.MarshalIndent(v.res, "", "  ")
	if jerr == nil {
		jerr = os.WriteFile(file(c.AgentsDir, c.Profile.Name), append(raw, '\n'), 0o644) //nolint:gosec // read by everybody who lists agents
	}
	return errors.Join(err, jerr)
}

type run struct {
	c     Config
	ready chan [2]string
	boxes sandbox.Provider
	api   *client.Client
	id    string
	res   Result
}

// options of the server under test.
func (v *run) options(dir, model string) server.Options {
	o := v.c.Options
	o.StateDir, o.TokenFile, o.AgentsDir, o.Listen, o.RunGroup, o.Log = dir, "", v.c.AgentsDir, "127.0.0.1:0", v.c.RunGroup, v.c.Log
	o.IdleExit, o.Registries, o.AllowHosts, o.GitCredentials = 0, []string{}, nil, ""
	env := map[string]string{
		"ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": model, "OPENAI_API_KEY": key, "OPENAI_BASE_URL": model + "/v1",
		"GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": model,
	}
	o.Lookup = func(k string) (string, bool) { s, ok := env[k]; return s, ok }
	make := o.Sandboxes
	o.Sandboxes = func(d server.Dirs) (sandbox.Provider, error) {
		p, err := make(d)
		v.boxes = p
		return p, err
	}
	o.Announce = func(address, token string) { v.ready <- [2]string{address, token} }
	return o
}

func (v *run) steps(ctx context.Context) error {
	select {
	case r := <-v.ready:
		var err error
		if v.api, err = client.New(r[0], r[1], nil); err != nil {
			return err
		}
	case <-ctx.Done():
		return nil // the server's own error says why
	}
	const wait = "@@run echo begun; while sleep 1; do echo on; done@@"
	steps := []struct {
		name string
		do   func(context.Context) (string, error)
	}{
		{"start and turn", func(ctx context.Context) (string, error) {
			a, err := v.api.Create(ctx, client.CreateInput{Agent: v.c.Profile.Name, Model: "scripted", Prompt: "@@mark PLOVER@@ Make a file. @@write hello.txt hello@@"})
			if err != nil {
				return "", err
			}
			v.id = a.Session.ID
			t, err := v.end(ctx, a.Turn.ID, "completed")
			if err != nil {
				return "", err
			}
			d, err := v.api.Diff(ctx, v.id, "", "names")
			if err == nil && !strings.Contains(d.Text, "hello.txt") {
				err = fmt.Errorf("the file is not in the work that was packed: %q", d.Text)
			}
			return "rung " + t.Rung, err
		}},
		{"second turn remembers the first", func(ctx context.Context) (string, error) { return v.recall(ctx) }},
		{"cancel", func(ctx context.Context) (string, error) {
			t, err := v.working(ctx, wait)
			if err != nil {
				return "", err
			}
			began := time.Now()
			if _, err := v.api.Cancel(ctx, v.id, t); err != nil {
				return "", err
			}
			if _, err := v.end(ctx, t, "canceled"); err != nil {
				return "", err
			}
			took := time.Since(began)
			if took > 12*time.Second {
				return "", fmt.Errorf("it took %s", took)
			}
			return "in " + took.Round(time.Millisecond).String(), nil
		}},
		{"goes on after the cancel", func(ctx context.Context) (string, error) { return v.recall(ctx) }},
		{"killed in mid-turn", func(ctx context.Context) (string, error) {
			t, err := v.working(ctx, wait)
			if err != nil {
				return "", err
			}
			if err := v.kill(ctx); err != nil {
				return "", err
			}
			turn, err := v.end(ctx, t, "failed")
			if err == nil && turn.Code != string(fault.AgentExited) {
				err = fmt.Errorf("the turn ended with %s: %s", turn.Code, turn.Message)
			}
			return turn.Message, err
		}},
		{"remembers after the kill", func(ctx context.Context) (string, error) { return v.recall(ctx) }},
		{"nothing is left", func(ctx context.Context) (string, error) {
			if _, err := v.api.Delete(ctx, v.id, true); err != nil {
				return "", err
			}
			return "", v.poll(ctx, func() (bool, error) {
				list, err := v.boxes.List(ctx, map[string]string{"hearth": "1"})
				return len(list) == 0, err
			})
		}},
	}
	for _, s := range steps {
		v.c.Progress(v.c.Profile.Name + ": " + s.name)
		began := time.Now()
		c, cancel := context.WithTimeoutCause(ctx, stepLimit, fmt.Errorf("it took longer than %s", stepLimit))
		detail, err := s.do(c)
		cancel()
		step := Step{Name: s.name, OK: err == nil, Detail: detail, Millis: time.Since(began).Milliseconds()}
		if err != nil {
			step.Detail = said(err)
		}
		v.res.Steps = append(v.res.Steps, step)
		if err != nil {
			return fault.Wrap(err, fault.AgentVerifyFailed, "%s failed at %q: %s", v.c.Profile.Title, s.name, step.Detail)
		}
		v.c.Progress(fmt.Sprintf("%s: %s: ok %s (%d ms)", v.c.Profile.Name, s.name, detail, step.Millis))
	}
	v.res.OK = true
	return nil
}

func said(err error) string {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Message + " (" + e.Code + ")"
	}
	return err.Error()
}

func (v *run) poll(ctx context.Context, done func() (bool, error)) error {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// end waits for a turn's end.
func (v *run) end(ctx context.Context, turn, state string) (t client.Turn, err error) {
	err = v.poll(ctx, func() (bool, error) {
		t, err = v.api.Turn(ctx, v.id, turn)
		return t.Ended(), err
	})
	if err == nil && t.State != state {
		err = fmt.Errorf("the turn is %s, not %s: %s %s", t.State, state, t.Code, t.Message)
	}
	return t, err
}

// working sends a prompt and waits until its command runs.
func (v *run) working(ctx context.Context, prompt string) (turn string, err error) {
	a, err := v.api.Prompt(ctx, v.id, client.PromptInput{Prompt: prompt})
	if err != nil {
		return "", err
	}
	return a.Turn.ID, v.poll(ctx, func() (bool, error) {
		t, err := v.api.Turn(ctx, v.id, a.Turn.ID)
		if err != nil || t.Ended() {
			return false, errors.Join(err, fmt.Errorf("the turn is %s: %s", t.State, t.Message))
		}
		if t.State != "running" {
			return false, nil
		}
		text, err := v.transcript(ctx, t.Number, "tool-input-start")
		return text != "", err
	})
}

// recall asks for the mark of the first turn, which only a memory of it can tell.
func (v *run) recall(ctx context.Context) (string, error) {
	a, err := v.api.Prompt(ctx, v.id, client.PromptInput{Prompt: "What was the mark? @@recall@@"})
	if err != nil {
		return "", err
	}
	t, err := v.end(ctx, a.Turn.ID, "completed")
	if err != nil {
		return "", err
	}
	text, err := v.transcript(ctx, t.Number, "text-delta")
	if err == nil && !strings.Contains(text, "PLOVER") {
		err = fmt.Errorf("by the rung %s it did not remember: %q", t.Rung, text)
	}
	return "rung " + t.Rung, err
}

// transcript joins the texts of a turn's parts of a type; their JSON where they have no text.
func (v *run) transcript(ctx context.Context, number int64, kind string) (string, error) {
	var out strings.Builder
	after := fmt.Sprintf("%d.0", number)
	for {
		page, err := v.api.Transcript(ctx, v.id, after)
		if err != nil {
			return "", err
		}
		for _, p := range page.Items {
			var part struct{ Type, Delta string }
			if json.Unmarshal(p.Part, &part) == nil && part.Type == kind {
				if part.Delta == "" {
					part.Delta = string(p.Part)
				}
				out.WriteString(part.Delta)
			}
		}
		if page.Next == "" || len(page.Items) == 0 {
			return out.String(), nil
		}
		after = page.Next
	}
}

// kill ends every process of the sandbox but its first, as if the agent had crashed.
func (v *run) kill(ctx context.Context) error {
	list, err := v.boxes.List(ctx, map[string]string{"session": v.id})
	if err != nil || len(list) != 1 {
		return errors.Join(err, fmt.Errorf("%d sandboxes of the session", len(list)))
	}
	const script = `for p in /proc/[0-9]*; do n=${p#/proc/}; [ "$n" = 1 ] || [ "$n" = $$ ] || kill -9 "$n" 2>/dev/null; done; exit 0`
	_, err = v.boxes.Exec(ctx, list[0].Handle, sandbox.Command{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}})
	return err
}
