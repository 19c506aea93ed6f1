package npmtest

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

//go:embed page.mjs
var pageScript []byte

// ChatLines are the releases of @ai-sdk/react whose chats must work, with the major
// version of the ai that each of them brings.
var ChatLines = map[string]string{"react3": "6.", "react4": "7."}

// Page is a Node process that keeps chats of one release of @ai-sdk/react, and
// EventSources, for one test. A test may use it from several goroutines.
type Page struct {
	tb     testing.TB
	line   string
	mu     sync.Mutex
	in     io.WriteCloser
	out    *bufio.Reader
	cmd    *exec.Cmd
	stderr bytes.Buffer
}

// Step is what a page is told to do. Do is one of:
//
//	open        make the chat Chat of the session ID at the address Session, with Messages
//	send        send Text; with MessageID in place of that message
//	resume, regenerate, stop   the chat's methods
//	approve     answer the approval Approval with Approved and Text
//	follow      an EventSource, called Chat, on the address Session
//	unfollow    close it
//
// None of them waits for the outcome; see [Page.View] and [Page.Events].
type Step struct {
	Do        string          `json:"do"`
	Chat      string          `json:"chat,omitempty"`
	Session   string          `json:"session,omitempty"` // the session's URL
	ID        string          `json:"id,omitempty"`
	Token     string          `json:"token,omitempty"`
	Query     string          `json:"query,omitempty"`     // of the chat's addresses, with its question mark
	Body      map[string]any  `json:"body,omitempty"`      // further fields of what the chat sends
	Stock     bool            `json:"stock,omitempty"`     // the whole history is sent
	Automatic bool            `json:"automatic,omitempty"` // answers are sent by themselves
	Retry     bool            `json:"retry,omitempty"`     // a request without an answer is sent again
	Messages  json.RawMessage `json:"messages,omitempty"`
	Text      string          `json:"text,omitempty"`
	MessageID string          `json:"messageId,omitempty"`
	Approval  string          `json:"approval,omitempty"`
	Approved  bool            `json:"approved"`
}

// View is what a page shows of a chat.
type View struct {
	Status  string `json:"status"` // submitted, streaming, ready or error
	Error   string `json:"error"`
	Pending int    `json:"pending"` // steps that have not come to their end
	Retries int    `json:"retries"`
	Raw     json.RawMessage
	List    []Message
}

// Last is the newest message; the zero one when there is none.
func (v View) Last() Message {
	if len(v.List) == 0 {
		return Message{}
	}
	return v.List[len(v.List)-1]
}

// Followed is what an EventSource has seen. Open states: 0 connecting, 1 open, 2 closed for good.
type Followed struct {
	Opens      int `json:"opens"`
	Errors     int `json:"errors"`
	ReadyState int `json:"readyState"`
	Events     []struct {
		Name string `json:"name"`
		ID   string `json:"id"`
		Data string `json:"data"`
	} `json:"events"`
}

// Open starts a page, which ends with the test. It fails unless the release uses the ai that it should.
func Open(tb testing.TB, line string) *Page {
	tb.Helper()
	dir := Dir(tb)
	file := filepath.Join(tb.TempDir(), "page.mjs")
	if err := os.WriteFile(file, pageScript, 0o600); err != nil {
		tb.Fatal(err)
	}
	p := &Page{tb: tb, line: line, cmd: exec.Command(node(dir), file, dir, line)}
	p.cmd.Stderr = &p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReaderSize(out, 1<<20)
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.close)
	var v struct{ Version, Node string }
	p.do(Step{Do: "version"}, &v)
	tb.Logf("%s: ai %s, node %s", line, v.Version, v.Node)
	if want := ChatLines[line]; want == "" || !strings.HasPrefix(v.Version, want) {
		tb.Fatalf("%s uses ai %s, want %s", line, v.Version, want)
	}
	return p
}

func (p *Page) close() {
	p.in.Close()
	kill := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		p.tb.Errorf("the page of %s: %v\n%s", p.line, err, p.stderr.String())
	}
}

func (p *Page) do(s Step, out any) {
	p.tb.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		p.tb.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	late := time.AfterFunc(timeout, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	if _, err := p.in.Write(append(raw, '\n')); err != nil {
		p.tb.Fatalf("%s, %s: %v", p.line, s.Do, err)
	}
	answer, err := p.out.ReadBytes('\n')
	if err != nil {
		p.tb.Fatalf("%s, %s: %v", p.line, s.Do, err)
	}
	var problem struct{ Failed string }
	if err := json.Unmarshal(answer, &problem); err != nil || problem.Failed != "" {
		p.tb.Fatalf("%s, %s: %v %s", p.line, s.Do, err, problem.Failed)
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			p.tb.Fatalf("%s, %s: %v: %.300s", p.line, s.Do, err, answer)
		}
	}
}

// Do has the page do something.
func (p *Page) Do(s Step) { p.tb.Helper(); p.do(s, nil) }

// View looks at a chat.
func (p *Page) View(chat string) View {
	p.tb.Helper()
	return p.view(Step{Do: "state", Chat: chat})
}

// Read reads a stream at an address with readUIMessageStream, to its end.
func (p *Page) Read(url, token string) View {
	p.tb.Helper()
	return p.view(Step{Do: "read", Session: url, Token: token})
}

func (p *Page) view(s Step) View {
	p.tb.Helper()
	var v struct {
		View
		Messages json.RawMessage `json:"messages"`
	}
	p.do(s, &v)
	v.Raw = v.Messages
	if err := json.Unmarshal(v.Raw, &v.List); err != nil {
		p.tb.Fatalf("messages: %v: %.300s", err, v.Raw)
	}
	return v.View
}

// Events are what an EventSource has seen.
func (p *Page) Events(name string) Followed {
	p.tb.Helper()
	var f Followed
	p.do(Step{Do: "seen", Chat: name}, &f)
	return f
}
