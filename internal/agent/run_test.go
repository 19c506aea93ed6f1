package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// TestRunInstalled starts every agent installed in the folder HEARTH_TEST_AGENTS
// as its profile says, outside any sandbox, against the scripted model: a turn
// that writes a file, a kill, a resume that remembers. HEARTH_TEST_AGENT names one.
func TestRunInstalled(t *testing.T) {
	dir := os.Getenv("HEARTH_TEST_AGENTS")
	if dir == "" {
		t.Skip("SKIPPED: HEARTH_TEST_AGENTS names no folder of installed agents (make agents)")
	}
	in := &Installer{Dir: dir, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
	only := os.Getenv("HEARTH_TEST_AGENT")
	for _, p := range Profiles() {
		if only != "" && only != p.Name {
			continue
		}
		binds, build, err := in.Layer(p)
		if err != nil {
			t.Logf("%s: %v", p.Name, err)
			continue
		}
		for _, r := range p.Routes {
			if os.Getenv("HEARTH_TEST_MODEL") == "default" && r.NeedsModel {
				continue // it has none
			}
			t.Run(p.Name+"/"+r.Provider, func(t *testing.T) {
				agents := t.TempDir()
				for _, b := range binds {
					if err := os.Symlink(b.Source, filepath.Join(agents, filepath.Base(b.Target))); err != nil {
						t.Fatal(err)
					}
				}
				runAgent(t, p, r, agents, build)
			})
		}
	}
}

func runAgent(t *testing.T, p Profile, r Route, agents, build string) {
	var log modelLog
	model := scriptedmodel.New(scriptedmodel.Options{Keys: []string{PlaceholderKey}})
	mux := http.NewServeMux()
	for _, d := range []string{"/anthropic", "/openai", "/gemini"} {
		mux.Handle(d+"/", log.watch(http.StripPrefix(d, model)))
	}
	srv := httptest.NewServer(mux)
	defer srv.Close()

	home, repo := t.TempDir(), t.TempDir()
	if out, err := exec.Command("git", "-C", repo, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	in := RenderInput{Build: build, AgentsDir: agents, Home: home, Provider: r.Provider, Model: os.Getenv("HEARTH_TEST_MODEL"),
		ProxyURL: "http://127.0.0.1:9", Models: ModelBase{srv.URL + "/anthropic", srv.URL + "/openai/v1", srv.URL + "/gemini"}}
	if in.Model == "default" {
		in.Model = ""
	} else if in.Model == "" {
		in.Model = "scripted"
	}
	l, err := p.Render(in)
	if err != nil {
		t.Fatal(err)
	}

	start := time.Now()
	a := startAgent(t, l)
	a.call(t, "initialize", initialize(), l.Limits.Start)
	t.Logf("initialize %v", time.Since(start).Round(time.Millisecond))
	start = time.Now()
	created := a.call(t, "session/new", map[string]any{"cwd": repo, "mcpServers": []any{}}, l.Limits.Session)
	t.Logf("session/new %v", time.Since(start).Round(time.Millisecond))
	id, _ := created["sessionId"].(string)
	a.setMode(t, l, id)
	start = time.Now()
	a.prompt(t, id, "Please. @@mark kingfisher@@ @@write hello.txt hi from "+p.Name+"@@")
	t.Logf("turn %v, %q", time.Since(start).Round(time.Millisecond), a.takeText())
	if got, err := os.ReadFile(filepath.Join(repo, "hello.txt")); err != nil || strings.TrimSpace(string(got)) != "hi from "+p.Name {
		t.Errorf("hello.txt: %q, %v; agent's stderr: %s", got, err, a.stderr.String())
	}
	a.kill()

	if l.LateReplay { // its load fails in the clock minute of the last start
		select {
		case <-time.After(time.Until(time.Now().Truncate(time.Minute).Add(61 * time.Second))):
		case <-t.Context().Done():
		}
	}
	b := startAgent(t, l)
	b.call(t, "initialize", initialize(), l.Limits.Start)
	method := "session/load"
	if l.Resume == ResumeResume {
		method = "session/resume"
	}
	b.call(t, method, map[string]any{"sessionId": id, "cwd": repo, "mcpServers": []any{}}, l.Limits.Session)
	b.setMode(t, l, id)
	b.takeText()
	b.prompt(t, id, "Again. @@write second.txt two@@ @@recall@@")
	text := b.takeText()
	t.Logf("after resume: %q", text)
	if !strings.Contains(text, "kingfisher") {
		t.Errorf("after the resume the first turn is forgotten: %q", text)
	}
	if _, err := os.Stat(filepath.Join(repo, "second.txt")); err != nil {
		t.Error(err)
	}
	b.kill()

	var state []string
	for _, s := range p.State.Paths {
		if _, err := os.Stat(filepath.Join(home, s)); err == nil {
			state = append(state, s)
		}
	}
	if len(state) == 0 {
		t.Errorf("none of the state paths %v is there", p.State.Paths)
	}
	t.Logf("model requests: %s", log.String())
	t.Logf("state: %v", state)
	var all []string
	filepath.WalkDir(home, func(f string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && len(all) < 12 {
			rel, _ := filepath.Rel(home, f)
			all = append(all, rel)
		}
		return nil
	})
	t.Logf("HOME: %v", all)
}

// modelLog counts the paths that an agent asked.
type modelLog struct {
	mu    sync.Mutex
	order []string
	n     map[string]int
}

func (m *modelLog) watch(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		k := r.Method + " " + r.URL.Path
		if m.n == nil {
			m.n = map[string]int{}
		}
		if m.n[k] == 0 {
			m.order = append(m.order, k)
		}
		m.n[k]++
		m.mu.Unlock()
		h.ServeHTTP(w, r)
	})
}

func (m *modelLog) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, k := range m.order {
		fmt.Fprintf(&b, "%s ×%d; ", k, m.n[k])
	}
	return b.String()
}

func initialize() map[string]any {
	return map[string]any{"protocolVersion": 1, "clientInfo": map[string]any{"name": "hearth", "version": "test"}, "clientCapabilities": map[string]any{}}
}

type acpMessage struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

type acpAgent struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr lockedBuffer
	done   chan struct{}

	mu      sync.Mutex
	n       int
	waiting map[int]chan acpMessage
	text    strings.Builder
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.b.String()
	return s[max(0, len(s)-2000):]
}

func startAgent(t *testing.T, l Launch) *acpAgent {
	t.Helper()
	for _, f := range l.Files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Path, []byte(f.Content), os.FileMode(f.Mode)); err != nil {
			t.Fatal(err)
		}
	}
	a := &acpAgent{cmd: exec.Command(l.Command[0], l.Command[1:]...), done: make(chan struct{}), waiting: map[int]chan acpMessage{}}
	a.cmd.Env, a.cmd.Dir, a.cmd.Stderr = l.Env, l.Dir, &a.stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.stdin = in
	go func() { // ends with the agent's output; kill waits for it
		defer close(a.done)
		a.read(out)
	}()
	t.Cleanup(a.kill)
	return a
}

func (a *acpAgent) kill() {
	if a.cmd.ProcessState != nil {
		return
	}
	syscall.Kill(-a.cmd.Process.Pid, syscall.SIGKILL)
	<-a.done
	a.cmd.Wait()
}

func (a *acpAgent) read(r io.Reader) {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadBytes('\n')
		if err != nil {
			return
		}
		var m acpMessage
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		switch {
		case m.Method == "":
			var id int
			json.Unmarshal(m.ID, &id)
			a.mu.Lock()
			if c := a.waiting[id]; c != nil {
				c <- m
				delete(a.waiting, id)
			}
			a.mu.Unlock()
		case m.Method == "session/update":
			var u struct {
				Update struct {
					SessionUpdate string
					Content       struct{ Text string }
				}
			}
			json.Unmarshal(m.Params, &u)
			if u.Update.SessionUpdate == "agent_message_chunk" {
				a.mu.Lock()
				a.text.WriteString(u.Update.Content.Text)
				a.mu.Unlock()
			}
		case m.ID != nil: // asked although the mode says not to
			a.send(acpMessage{ID: m.ID, Error: json.RawMessage(`{"code":-32601,"message":"method not found: ` + m.Method + `"}`)})
		}
	}
}

func (a *acpAgent) send(m acpMessage) {
	raw, _ := json.Marshal(m)
	a.stdin.Write(append([]byte(`{"jsonrpc":"2.0",`), append(raw[1:], '\n')...))
}

func (a *acpAgent) try(method string, params any, d time.Duration) (map[string]any, error) {
	a.mu.Lock()
	a.n++
	c := make(chan acpMessage, 1)
	a.waiting[a.n] = c
	id := json.RawMessage(fmt.Sprint(a.n))
	a.mu.Unlock()
	p, _ := json.Marshal(params)
	a.send(acpMessage{ID: id, Method: method, Params: p})
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	select {
	case m := <-c:
		if m.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, m.Error)
		}
		var out map[string]any
		json.Unmarshal(m.Result, &out)
		return out, nil
	case <-a.done:
		return nil, errors.New(method + ": agent ended")
	case <-ctx.Done():
		return nil, errors.New(method + ": no answer")
	}
}

func (a *acpAgent) call(t *testing.T, method string, params any, d time.Duration) map[string]any {
	t.Helper()
	out, err := a.try(method, params, d)
	if err != nil {
		t.Fatalf("%v; stderr: %s", err, a.stderr.String())
	}
	return out
}

func (a *acpAgent) setMode(t *testing.T, l Launch, id string) {
	t.Helper()
	switch {
	case l.Mode == "":
	case l.ModeConfig == "":
		a.call(t, "session/set_mode", map[string]any{"sessionId": id, "modeId": l.Mode}, 10*time.Second)
	default:
		out := a.call(t, "session/set_config_option", map[string]any{"sessionId": id, "configId": l.ModeConfig, "value": l.Mode}, 10*time.Second)
		now := "absent"
		options, _ := out["configOptions"].([]any)
		for _, o := range options {
			if m, ok := o.(map[string]any); ok && m["id"] == l.ModeConfig {
				now, _ = m["currentValue"].(string)
			}
		}
		if now != l.Mode {
			t.Errorf("mode read back as %q, set to %q", now, l.Mode)
		}
	}
}

func (a *acpAgent) prompt(t *testing.T, id, text string) {
	t.Helper()
	out := a.call(t, "session/prompt", map[string]any{"sessionId": id, "prompt": []any{map[string]any{"type": "text", "text": text}}}, 90*time.Second)
	if out["stopReason"] != "end_turn" {
		t.Fatalf("the turn ended %v; text %q; stderr: %s", out, a.takeText(), a.stderr.String())
	}
}

func (a *acpAgent) takeText() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.text.String()
	a.text.Reset()
	return s
}
