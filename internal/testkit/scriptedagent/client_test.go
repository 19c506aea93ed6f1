package scriptedagent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/testkit/scriptedagent"
)

// TestMain makes the test program an agent where the tests start it as one.
func TestMain(m *testing.M) {
	if os.Getenv("SCRIPTED_AGENT_CHILD") == "" {
		os.Exit(m.Run())
	}
	o, err := scriptedagent.FromArgs(os.Args[1:], os.Getenv, os.Stderr)
	if err == nil {
		o.In, o.Out, o.Err = os.Stdin, os.Stdout, os.Stderr
		err = scriptedagent.Run(context.Background(), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

type object = map[string]any

type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params object          `json:"params"`
	Result object          `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// client is a plain JSON-RPC peer of an agent process.
type client struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	home   string
	cwd    string
	stderr lockedBuffer
	id     int

	mu      sync.Mutex
	lines   []string // that are no messages
	updates []object // of session/update
	notes   []string // methods of other notifications
	wait    map[string]chan message
	asked   func(message) (object, int) // answers requests; a code is an error
	done    chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func spawn(t *testing.T, home string, args ...string) *client {
	t.Helper()
	return spawnEnv(t, home, nil, args...)
}

func spawnEnv(t *testing.T, home string, env []string, args ...string) *client {
	t.Helper()
	c := &client{t: t, home: home, cwd: t.TempDir(), wait: map[string]chan message{}, done: make(chan struct{})}
	c.cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	c.cmd.Env = append([]string{"SCRIPTED_AGENT_CHILD=1", "HOME=" + home, "PATH=" + os.Getenv("PATH")}, env...)
	c.cmd.Stderr = &c.stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go c.read(out)
	t.Cleanup(func() {
		_ = c.in.Close()
		select {
		case <-c.done:
		case <-time.After(10 * time.Second):
			t.Error("the agent does not end with its input")
			_ = c.cmd.Process.Kill()
			<-c.done
		}
		_ = c.cmd.Wait()
	})
	return c
}

func (c *client) read(out io.Reader) {
	defer close(c.done)
	br := bufio.NewReader(out)
	for {
		line, err := br.ReadString('\n')
		if line != "" {
			c.take(strings.TrimSuffix(line, "\n"))
		}
		if err != nil {
			return
		}
	}
}

func (c *client) take(line string) {
	var m message
	err := json.Unmarshal([]byte(line), &m)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil || m.Method == "" && m.ID == nil || line == "null":
		c.lines = append(c.lines, line)
	case m.Method == "":
		if ch := c.wait[string(m.ID)]; ch != nil {
			ch <- m
		} else {
			c.lines = append(c.lines, line)
		}
	case m.ID == nil && m.Method == "session/update":
		c.updates = append(c.updates, m.Params["update"].(object))
	case m.ID == nil:
		c.notes = append(c.notes, m.Method)
	default:
		result, code := object(nil), -32601
		if c.asked != nil {
			result, code = c.asked(m)
		}
		v := object{"jsonrpc": "2.0", "id": m.ID}
		if code != 0 {
			v["error"] = object{"code": code, "message": "no"}
		} else {
			v["result"] = result
		}
		c.send(v)
	}
}

func (c *client) send(v object) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	_, _ = c.in.Write(append(b, '\n')) // an agent that has ended shows elsewhere
}

func (c *client) notify(method string, params object) {
	c.send(object{"jsonrpc": "2.0", "method": method, "params": params})
}

// begin sends a request and returns its id and where its answer will come.
func (c *client) begin(method string, params object) (int, chan message) {
	c.mu.Lock()
	c.id++
	id := c.id
	ch := make(chan message, 1)
	c.wait[fmt.Sprint(id)] = ch
	c.mu.Unlock()
	c.send(object{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	return id, ch
}

func (c *client) end(ch chan message) message {
	c.t.Helper()
	select {
	case m := <-ch:
		return m
	case <-c.done:
		select {
		case m := <-ch:
			return m
		default:
		}
		c.t.Fatalf("the agent has ended: %s", c.stderr.String())
	case <-time.After(20 * time.Second):
		c.t.Fatal("no answer within 20 s")
	}
	return message{}
}

func (c *client) call(method string, params object) message {
	c.t.Helper()
	_, ch := c.begin(method, params)
	return c.end(ch)
}

// session initializes and makes a session.
func (c *client) session() string {
	c.t.Helper()
	if m := c.call("initialize", object{"protocolVersion": 1, "clientCapabilities": object{}}); m.Error != nil {
		c.t.Fatalf("initialize: %+v", m.Error)
	}
	m := c.call("session/new", object{"cwd": c.cwd, "mcpServers": []any{}})
	if m.Error != nil {
		c.t.Fatalf("session/new: %+v", m.Error)
	}
	// The agent tells its commands once the session is there.
	eventually(c.t, "the list of commands", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.updates) > 0
	})
	return m.Result["sessionId"].(string)
}

func promptOf(id, text string) object {
	return object{"sessionId": id, "prompt": []any{object{"type": "text", "text": text}}}
}

// prompt runs a turn and returns its answer and the updates of it.
func (c *client) prompt(id, text string) (message, []object) {
	c.t.Helper()
	c.takeUpdates()
	m := c.call("session/prompt", promptOf(id, text))
	return m, c.takeUpdates()
}

func (c *client) takeUpdates() []object {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.updates
	c.updates = nil
	return u
}

// said joins the text of a kind of chunks; messages are parted by "|".
func said(updates []object, kind string) string {
	var b strings.Builder
	last := any(nil)
	for _, u := range updates {
		if u["sessionUpdate"] != kind {
			continue
		}
		if last != nil && u["messageId"] != last {
			b.WriteString("|")
		}
		last = u["messageId"]
		content := u["content"].(object)
		s, _ := content["text"].(string)
		b.WriteString(s)
	}
	return b.String()
}

func kinds(updates []object) []string {
	var out []string
	for _, u := range updates {
		k := u["sessionUpdate"].(string)
		if len(out) == 0 || out[len(out)-1] != k {
			out = append(out, k)
		}
	}
	return out
}

// eventually polls for what another process does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not happen within 10 s", what)
		}
	}
}
