package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

	"github.com/hearthd/hearth/internal/testkit/numbered"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// The peers' packages, below the folder that HEARTH_BENCH_PEERS names. Their
// versions are pinned in bench/peers.
var peerPrograms = map[string]struct{ pkg, program string }{
	planeSandbox:  {"@sandbox-agent/cli-linux-x64", "bin/sandbox-agent"},
	planeOpencode: {"opencode-linux-x64", "bin/opencode"},
}

// checkPeers leaves out, with a word, the peers that are not there.
func (b *bench) checkPeers() {
	var there []string
	for name := range strings.SplitSeq(b.wanted, ",") {
		name = strings.TrimSpace(name)
		x, ok := peerPrograms[name]
		if name == "" {
			continue
		}
		program := filepath.Join(b.peers, "node_modules", x.pkg, x.program)
		if info, err := os.Stat(program); !ok || b.peers == "" || err != nil || info.Mode()&0o111 == 0 {
			fmt.Fprintf(b.log, "bench: the peer %s is not measured: %s is no program; `make bench` installs it on Linux on x86-64\n", name, program)
			continue
		}
		there = append(there, name)
	}
	b.wanted = strings.Join(there, ",")
}

// peerVersions are what is installed.
func (b *bench) peerVersions() []string {
	var out []string
	for name := range strings.SplitSeq(b.wanted, ",") {
		if name == "" {
			continue
		}
		var p struct{ Version string }
		raw, err := os.ReadFile(filepath.Join(b.peers, "node_modules", peerPrograms[name].pkg, "package.json"))
		if err == nil {
			err = json.Unmarshal(raw, &p)
		}
		if err != nil {
			p.Version = err.Error()
		}
		out = append(out, name+" "+p.Version)
	}
	return out
}

// peer is a process of somebody else's server with a home of its own.
type peer struct {
	b      *bench
	dir    string // its home
	work   string // where it starts: opencode watches what is below
	url    string
	http   *http.Client
	proc   *exec.Cmd
	exited chan struct{}
	args   func(port string) []string
	env    []string
	name   string
}

func (b *bench) newPeer(name string) (*peer, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, err
	}
	p := &peer{b: b, dir: dir, work: work, name: name, http: &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}}
	p.env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "NO_COLOR=1"}
	return p, nil
}

// start starts the program on a free port and waits until path answers.
func (p *peer) start(ctx context.Context, path string) error {
	// It cannot be told to choose a port and say which.
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := ln.Addr().String()
	if err := ln.Close(); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	x := peerPrograms[p.name]
	program := filepath.Join(p.b.peers, "node_modules", x.pkg, x.program)
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, p.args(port)...) //nolint:gosec,noctx // a pinned program; stop ends it with all that it started
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = p.env, p.work, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.proc, p.exited = cmd, make(chan struct{})
	exited := p.exited
	go func() { _ = cmd.Wait(); close(exited) }() // stop waits for it
	p.url = "http://" + address
	return until(ctx, patience, p.name+" to answer", func() (bool, string) {
		select {
		case <-exited:
			return true, ""
		default:
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := p.call(ctx, http.MethodGet, path, nil)
		return err == nil, fmt.Sprint(err)
	})
}

func (p *peer) logFile() string { return filepath.Join(p.dir, "peer.log") }

// stop ends the program and whatever it started: sandbox-agent leaves its agents
// to themselves.
func (p *peer) stop() {
	if p.proc == nil {
		return
	}
	_ = syscall.Kill(-p.proc.Process.Pid, syscall.SIGKILL) // it may have ended
	<-p.exited
	p.proc = nil
}

func (p *peer) processes() []int { return []int{p.proc.Process.Pid} }

func (p *peer) close(ctx context.Context, cause error) error {
	p.stop()
	p.http.CloseIdleConnections()
	err := until(context.WithoutCancel(ctx), 10*time.Second, "processes of "+p.name+" to end", func() (bool, string) { // also when the run is over
		left := family(p.dir + "/")
		return len(left) == 0, fmt.Sprint(left)
	})
	return errors.Join(cause, err, os.RemoveAll(p.dir))
}

// call sends JSON and returns the body of a good answer.
func (p *peer) call(ctx context.Context, method, path string, in any) ([]byte, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, p.url+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	res, err := p.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s %.300s", method, path, res.Status, b)
	}
	return b, err
}

func (p *peer) events(ctx context.Context, path string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err == nil {
		r.Header.Set("Accept", "text/event-stream")
	}
	return r, err
}

// sandboxAgent is rivet's sandbox-agent with the scripted agent in the place of
// the launcher of an agent that needs no other program.
type sandboxAgent struct {
	*peer
	made int
}

const sandboxAgentKind = "pi"

func (b *bench) newSandboxAgent(ctx context.Context) (*sandboxAgent, error) {
	p, err := b.newPeer(planeSandbox)
	if err != nil {
		return nil, err
	}
	s := &sandboxAgent{peer: p}
	launchers := filepath.Join(p.dir, "data", "sandbox-agent", "bin", "agent_processes")
	err = os.MkdirAll(launchers, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(launchers, sandboxAgentKind+"-acp"), []byte("#!/bin/sh\nexec '"+b.testkit+"' agent\n"), 0o700) //nolint:gosec // a program
	}
	if err != nil {
		return nil, p.close(ctx, err)
	}
	p.env = append(p.env, "XDG_DATA_HOME="+filepath.Join(p.dir, "data"), "SANDBOX_AGENT_REQUIRE_PREINSTALL=1", "SANDBOX_AGENT_ACP_REQUEST_TIMEOUT_MS=600000", "RUST_LOG=warn")
	p.args = func(port string) []string { return []string{"server", "--no-telemetry", "--no-token", "--port", port} }
	if err := p.start(ctx, "/v1/health"); err != nil {
		return nil, p.close(ctx, fmt.Errorf("%w; %s", err, tail(p.logFile())))
	}
	return s, nil
}

func tail(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(raw[max(0, len(raw)-1000):]))
}

var sandboxAgentText = jsonText(`"agent_message_chunk"`, "text")

func (s *sandboxAgent) text(line []byte) []byte { return sandboxAgentText(line) }

// open starts the agent: it has one for each conversation.
func (s *sandboxAgent) open(ctx context.Context, _ bool) (conversation, error) {
	s.made++
	c := &sandboxConversation{s: s, path: fmt.Sprintf("/v1/acp/c%d", s.made)}
	if _, err := c.rpc(ctx, "?agent="+sandboxAgentKind, "initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}}); err != nil {
		return nil, err
	}
	raw, err := c.rpc(ctx, "", "session/new", map[string]any{"cwd": s.work, "mcpServers": []any{}})
	if err != nil {
		return nil, err
	}
	var n struct{ SessionID string }
	if err := json.Unmarshal(raw, &n); err != nil || n.SessionID == "" {
		return nil, fmt.Errorf("session/new answered %.200s", raw)
	}
	c.session = n.SessionID
	return c, nil
}

type sandboxConversation struct {
	s       *sandboxAgent
	path    string
	session string
	calls   int
}

func (c *sandboxConversation) rpc(ctx context.Context, query, method string, params any) (json.RawMessage, error) {
	c.calls++
	raw, err := c.s.call(ctx, http.MethodPost, c.path+query, map[string]any{"jsonrpc": "2.0", "id": c.calls, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	var r struct{ Result, Error json.RawMessage }
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("%s answered %.200s: %w", method, raw, err)
	}
	if r.Error != nil {
		return nil, fmt.Errorf("%s: %s", method, r.Error)
	}
	return r.Result, nil
}

func (c *sandboxConversation) say(ctx context.Context, s numbered.Spec) (<-chan struct{}, func() error, error) {
	done, failed := background(func() error {
		_, err := c.rpc(ctx, "", "session/prompt", map[string]any{
			"sessionId": c.session, "prompt": []any{map[string]any{"type": "text", "text": s.Directive()}},
		})
		return err
	})
	return done, failed, nil
}

func (c *sandboxConversation) stream(ctx context.Context) (*http.Request, error) {
	r, err := c.s.events(ctx, c.path)
	if err == nil {
		r.Header.Set("Last-Event-ID", "9000000000") // nothing of what was before
	}
	return r, err
}

// close leaves the agent: to delete a conversation takes this server for ever.
func (c *sandboxConversation) close(context.Context) error { return nil }

// opencode is opencode serve; it is its own agent, and gets its text from the
// scripted model.
type opencode struct {
	*peer
	model func()
}

func (b *bench) newOpencode(ctx context.Context) (*opencode, error) {
	p, err := b.newPeer(planeOpencode)
	if err != nil {
		return nil, err
	}
	o := &opencode{peer: p}
	url, stop, err := listen(scriptedmodel.New(scriptedmodel.Options{LogSize: 4}))
	if err != nil {
		return nil, p.close(ctx, err)
	}
	o.model = stop
	config, err := json.Marshal(map[string]any{
		"autoupdate": false, "share": "disabled", "snapshot": false, "model": "local/scripted", "small_model": "local/scripted", "enabled_providers": []string{"local"},
		"provider": map[string]any{"local": map[string]any{
			"npm": "@ai-sdk/openai-compatible", "options": map[string]any{"baseURL": url + "/v1", "apiKey": "sk-bench"},
			"models": map[string]any{"scripted": map[string]any{"limit": map[string]any{"context": 200_000, "output": 16_384}}},
		}},
	})
	if err != nil {
		return nil, o.close(ctx, err)
	}
	p.env = append(p.env, "OPENCODE_CONFIG_CONTENT="+string(config), "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1",
		"OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_SHARE=1", "XDG_DATA_HOME="+filepath.Join(p.dir, "data"))
	p.args = func(port string) []string { return []string{"serve", "--hostname", "127.0.0.1", "--port", port} }
	if err := p.start(ctx, "/global/health"); err != nil {
		return nil, o.close(ctx, fmt.Errorf("%w; %s", err, tail(p.logFile())))
	}
	// The first prompt of a new home is slow, and not what is measured.
	c, err := o.open(ctx, false)
	if err == nil {
		var failed func() error
		if _, failed, err = c.say(ctx, numbered.Spec{Count: 1}); err == nil {
			err = failed()
		}
	}
	if err != nil {
		return nil, o.close(ctx, fmt.Errorf("first prompt: %w; %s", err, tail(p.logFile())))
	}
	return o, nil
}

func (o *opencode) close(ctx context.Context, cause error) error {
	err := o.peer.close(ctx, cause)
	o.model()
	return err
}

var opencodeText = jsonText(`"message.part.delta"`, "delta")

func (o *opencode) text(line []byte) []byte { return opencodeText(line) }

func (o *opencode) open(ctx context.Context, _ bool) (conversation, error) {
	raw, err := o.call(ctx, http.MethodPost, "/session", map[string]any{"title": "bench"})
	if err != nil {
		return nil, err
	}
	var s struct{ ID string }
	if err := json.Unmarshal(raw, &s); err != nil || s.ID == "" {
		return nil, fmt.Errorf("POST /session answered %.200s", raw)
	}
	return &opencodeConversation{o, s.ID}, nil
}

type opencodeConversation struct {
	o  *opencode
	id string
}

func (c *opencodeConversation) say(ctx context.Context, s numbered.Spec) (<-chan struct{}, func() error, error) {
	done, failed := background(func() error {
		_, err := c.o.call(ctx, http.MethodPost, "/session/"+c.id+"/message", map[string]any{
			"model": map[string]any{"providerID": "local", "modelID": "scripted"},
			"parts": []any{map[string]any{"type": "text", "text": s.Directive()}},
		})
		return err
	})
	return done, failed, nil
}

func (c *opencodeConversation) stream(ctx context.Context) (*http.Request, error) {
	return c.o.events(ctx, "/event")
}

func (c *opencodeConversation) close(ctx context.Context) error {
	_, err := c.o.call(ctx, http.MethodDelete, "/session/"+c.id, nil)
	return err
}
