package acp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/acp"
)

// peer is the other end of a connection, by hand: what the test writes is what
// the agent prints.
type peer struct {
	conn  *acp.Conn
	lines *bufio.Scanner // what our side sent
	w     *io.PipeWriter
	r     *io.PipeReader
	ended chan error
}

func connect(t *testing.T, h acp.Handlers, o acp.Options) *peer {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &peer{conn: acp.NewConn(inR, outW, h, o), lines: bufio.NewScanner(outR), w: inW, r: outR, ended: make(chan error, 1)}
	p.lines.Buffer(nil, 64<<20)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { p.ended <- p.conn.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			t.Error("Run did not return")
		}
	})
	return p
}

func (p *peer) say(t *testing.T, format string, args ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(p.w, format+"\n", args...); err != nil {
		t.Error(err)
	}
}

// hear returns the next message of our side.
func (p *peer) hear(t *testing.T) map[string]any {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("nothing more came: %v", p.lines.Err())
	}
	var m map[string]any
	if err := json.Unmarshal(p.lines.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func update(n int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%d"}}}}`, n)
}

func within[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s did not happen", what)
		panic("unreachable")
	}
}

type answer struct {
	raw json.RawMessage
	err error
}

func (p *peer) call(ctx context.Context, method string) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		raw, err := p.conn.Call(ctx, method, map[string]any{})
		out <- answer{raw, err}
	}()
	return out
}

// TestReplayIsWholeAndInOrder: 5,000 updates before the answer, a slow handler,
// and every update handled before the call returns.
func TestReplayIsWholeAndInOrder(t *testing.T) {
	t.Parallel()
	const n = 5000
	var got []string
	p := connect(t, acp.Handlers{Notification: func(_ context.Context, m acp.Notification) {
		var s acp.SessionNotification
		if err := acp.Decode(m.Params, &s); err != nil {
			t.Error(err)
		}
		u, err := acp.ParseUpdate(s.Update)
		if err != nil {
			t.Error(err)
			return
		}
		got = append(got, u.Chunk.Content.Text)
	}}, acp.Options{})
	done := p.call(t.Context(), acp.MethodSessionLoad)
	id := p.hear(t)["id"]
	for i := range n {
		p.say(t, "%s", update(i))
	}
	p.say(t, `{"jsonrpc":"2.0","id":%v,"result":{"x":"<1>"}}`, id)
	a := within(t, done, "the answer")
	if a.err != nil || string(a.raw) != `{"x":"<1>"}` {
		t.Fatalf("%s, %v", a.raw, a.err)
	}
	if len(got) != n {
		t.Fatalf("%d updates were handled before the answer, want %d", len(got), n)
	}
	for i, s := range got {
		if s != fmt.Sprint(i) {
			t.Fatalf("update %d is %s", i, s)
		}
	}
	if s := p.conn.Stats(); s.Notifications != n || s.Messages != n+1 || s.NoiseLines != 0 {
		t.Errorf("%+v", s)
	}
}

// TestAnswerInOrder: what follows an answer is handled after CallThen's function.
func TestAnswerInOrder(t *testing.T) {
	t.Parallel()
	var order []string
	seen := make(chan struct{})
	p := connect(t, acp.Handlers{Notification: func(_ context.Context, n acp.Notification) {
		order = append(order, n.Method)
		if n.Method == "last" {
			close(seen)
		}
	}}, acp.Options{})
	go func() {
		_, _ = p.conn.CallThen(t.Context(), "ask", nil, func(raw json.RawMessage, err error) {
			order = append(order, "answer "+string(raw))
		})
	}()
	id := p.hear(t)["id"]
	p.say(t, `{"jsonrpc":"2.0","method":"first"}`+"\n"+`{"jsonrpc":"2.0","id":%v,"result":7}`+"\n"+`{"jsonrpc":"2.0","method":"last"}`, id)
	within(t, seen, "the last notification")
	if d := cmp.Diff([]string{"first", "answer 7", "last"}, order); d != "" {
		t.Error(d)
	}
}

// TestSlowHandlerStopsTheReader: back-pressure reaches the agent, nothing piles up.
func TestSlowHandlerStopsTheReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		handled, sent := 0, 0
		p := connect(t, acp.Handlers{Notification: func(context.Context, acp.Notification) {
			<-gate
			handled++
		}}, acp.Options{})
		line := update(1) + strings.Repeat(" ", 1000) + "\n"
		const n = 1000
		go func() {
			for range n {
				if _, err := io.WriteString(p.w, line); err != nil {
					return
				}
				sent++
			}
		}()
		synctest.Wait() // everybody stands still: the handler, and so the agent
		if handled != 0 || sent == 0 || sent > 128 {
			t.Errorf("%d lines of 1 KiB were taken while the handler stood still", sent)
		}
		close(gate)
		synctest.Wait()
		if sent != n || handled != n {
			t.Errorf("%d sent, %d handled", sent, handled)
		}
	})
}

// TestBothSidesFull: the agent prints much before it reads anything; our answers
// must not stop us from reading it.
func TestBothSidesFull(t *testing.T) {
	t.Parallel()
	p := connect(t, acp.Handlers{}, acp.Options{})
	const n = 2000
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range n {
			p.say(t, `{"jsonrpc":"2.0","id":"q%d","method":"fs/write_text_file","params":{}}`, i)
		}
	}()
	within(t, written, "the agent's output being read")
	for i := range n {
		m := p.hear(t)
		if e, _ := m["error"].(map[string]any); m["id"] != fmt.Sprintf("q%d", i) || e["code"] != float64(acp.CodeMethodNotFound) {
			t.Fatalf("answer %d: %v", i, m)
		}
	}
	if s := p.conn.Stats(); s.UnknownCalls != n {
		t.Errorf("%+v", s)
	}
}

// TestPeerThatNeverReads ends with a cause and not with all memory.
func TestPeerThatNeverReads(t *testing.T) {
	t.Parallel()
	p := connect(t, acp.Handlers{}, acp.Options{MaxQueueBytes: 4096})
	go func() {
		for {
			if _, err := io.WriteString(p.w, `{"jsonrpc":"2.0","id":1,"method":"x"}`+"\n"); err != nil {
				return
			}
		}
	}()
	within(t, p.conn.Done(), "the end")
	if err := p.conn.Err(); !errors.Is(err, acp.ErrBacklog) {
		t.Errorf("%v", err)
	}
}

func TestNoiseIsCountedAndKept(t *testing.T) {
	t.Parallel()
	seen := make(chan acp.Notification, 10)
	p := connect(t, acp.Handlers{Notification: func(_ context.Context, n acp.Notification) { seen <- n }}, acp.Options{})
	noise := []string{
		"npm warn something", `{"level":30,"msg":"a log","method":"GET"}`, `[{"jsonrpc":"2.0","method":"batch"}]`, `{"jsonrpc":"2.0"`, "\xff\xfe\x00",
		`{"jsonrpc":"1.0","method":"old"}`, `{"jsonrpc":"2.0","method":7}`, `{"jsonrpc":"2.0","id":{},"method":"x"}`, `{"jsonrpc":"2.0","id":3}`, `null`, "  ",
	}
	for i := range 30 {
		noise = append(noise, fmt.Sprintf("%d%s", i, strings.Repeat("n", 2000)))
	}
	for _, l := range noise {
		p.say(t, "%s", l)
	}
	p.say(t, "  %s\r", `{"jsonrpc":"2.0","method":"_auth/status_update","params":{"a":1}}`)
	n := within(t, seen, "the notification behind the noise")
	if n.Method != "_auth/status_update" || string(n.Params) != `{"a":1}` || n.Cut != nil || !strings.Contains(string(n.Raw), `"jsonrpc"`) {
		t.Errorf("%+v", n)
	}
	s := p.conn.Stats()
	if s.NoiseLines != int64(len(noise)-1) || len(s.NoiseSample) != 16 || s.NoiseSample[0] != noise[0] || len(s.NoiseSample[15]) != 512 {
		t.Errorf("%d lines, %d samples", s.NoiseLines, len(s.NoiseSample))
	}
}

func TestErrorsOfThePeer(t *testing.T) {
	t.Parallel()
	p := connect(t, acp.Handlers{}, acp.Options{})
	for _, tt := range []struct{ answer, want string }{
		{`"error":{"code":-32000,"message":"Authentication required","data":{"a":1}}`, `x: Authentication required (-32000): {"a":1}`},
		{`"error":{"code":"odd","message":"m"}`, `x: m (-32603)`},
		{`"error":"just text"`, `x: "just text" (-32603)`},
		{`"error":null,"result":null`, ``},
		{`"result":null`, ``},
		{`"error":null`, `x: the answer has neither result nor error (-32603)`},
	} {
		done := p.call(t.Context(), "x")
		p.say(t, `{"jsonrpc":"2.0","id":%v,%s}`, p.hear(t)["id"], tt.answer)
		a := within(t, done, tt.answer)
		if got := fmt.Sprint(a.err); got != tt.want && !(a.err == nil && tt.want == "") {
			t.Errorf("%s: %s", tt.answer, got)
		}
	}
	done := p.call(t.Context(), "x")
	id := p.hear(t)["id"]
	p.say(t, `{"jsonrpc":"2.0","id":"%v","result":1}`+"\n"+`{"jsonrpc":"2.0","id":99,"result":1}`+"\n"+`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse"}}`, id)
	p.say(t, `{"jsonrpc":"2.0","id":%v,"error":{"code":-32000,"message":"no"}}`, id)
	if a := within(t, done, "the answer"); !acp.IsCode(a.err, acp.CodeAuthRequired) || acp.IsCode(a.err, acp.CodeInternalError) {
		t.Errorf("%v", a.err)
	}
	if s := p.conn.Stats(); s.StrayAnswers != 3 {
		t.Errorf("%d stray answers", s.StrayAnswers)
	}
}

func TestContextEndsACall(t *testing.T) {
	t.Parallel()
	p := connect(t, acp.Handlers{}, acp.Options{})
	cause := errors.New("the limit was reached")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := p.call(ctx, "session/prompt")
	id := p.hear(t)["id"]
	cancel(cause)
	m := p.hear(t)
	if d := cmp.Diff(map[string]any{"jsonrpc": "2.0", "method": "$/cancel_request", "params": map[string]any{"requestId": id}}, m); d != "" {
		t.Error(d)
	}
	if a := within(t, done, "the end of the call"); !errors.Is(a.err, cause) {
		t.Errorf("%v", a.err)
	}
	p.say(t, `{"jsonrpc":"2.0","id":%v,"error":{"code":-32800,"message":"cancelled"}}`, id)
	done = p.call(t.Context(), "next")
	p.say(t, `{"jsonrpc":"2.0","id":%v,"result":true}`, p.hear(t)["id"])
	if a := within(t, done, "the next call"); string(a.raw) != "true" {
		t.Errorf("%s %v", a.raw, a.err)
	}
	if s := p.conn.Stats(); s.StrayAnswers != 1 {
		t.Errorf("%+v", s)
	}
}

func TestPeerCancelsItsRequest(t *testing.T) {
	t.Parallel()
	open := make(chan *acp.Request, 4)
	ended := make(chan string, 4)
	p := connect(t, acp.Handlers{Requests: map[string]func(context.Context, *acp.Request){
		"ask": func(ctx context.Context, r *acp.Request) {
			context.AfterFunc(ctx, func() { ended <- r.ID() })
			open <- r
		},
	}}, acp.Options{})
	p.say(t, `{"jsonrpc":"2.0","id":"a","method":"ask"}`)
	p.say(t, `{"jsonrpc":"2.0","id":2,"method":"ask"}`)
	p.say(t, `{"jsonrpc":"2.0","id":2,"method":"ask"}`)
	a, b := within(t, open, "request a"), within(t, open, "request 2")
	if m := p.hear(t); m["id"] != float64(2) || m["error"].(map[string]any)["code"] != float64(acp.CodeInvalidRequest) {
		t.Errorf("the doubled id was answered %v", m)
	}
	p.say(t, `{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"nobody"}}`)
	p.say(t, `{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"a"}}`)
	if id := within(t, ended, "the cancellation"); id != `"a"` {
		t.Errorf("%s was canceled", id)
	}
	if err := a.Fail(acp.Errorf(acp.CodeRequestCancelled, "gone")); err != nil {
		t.Error(err)
	}
	if m := p.hear(t); m["id"] != "a" || m["error"].(map[string]any)["code"] != float64(acp.CodeRequestCancelled) {
		t.Errorf("%v", m)
	}
	for range 2 { // only the first answer counts
		if err := b.Reply(acp.Selected("allow")); err != nil {
			t.Error(err)
		}
	}
	if m := p.hear(t); m["id"] != float64(2) || fmt.Sprint(m["result"]) != "map[outcome:map[optionId:allow outcome:selected]]" {
		t.Errorf("%v", m)
	}
	done := p.call(t.Context(), "x")
	if m := p.hear(t); m["method"] != "x" {
		t.Errorf("a second answer was sent: %v", m)
	}
	_ = p.w.CloseWithError(io.EOF)
	if got := within(t, done, "the end of the call"); !errors.Is(got.err, acp.ErrEOF) {
		t.Errorf("%v", got.err)
	}
}

func TestEndFailsEverything(t *testing.T) {
	t.Parallel()
	reqEnded := make(chan struct{})
	opened := make(chan *acp.Request, 1)
	p := connect(t, acp.Handlers{Requests: map[string]func(context.Context, *acp.Request){
		"ask": func(ctx context.Context, r *acp.Request) {
			context.AfterFunc(ctx, func() { close(reqEnded) })
			opened <- r
		},
	}}, acp.Options{})
	p.say(t, `{"jsonrpc":"2.0","id":1,"method":"ask"}`)
	r := within(t, opened, "the request")
	var calls []<-chan answer
	for range 5 {
		calls = append(calls, p.call(t.Context(), "x"))
		p.hear(t)
	}
	broken := errors.New("pipe broke")
	_ = p.w.CloseWithError(broken)
	for _, c := range calls {
		if a := within(t, c, "the end of a call"); !errors.Is(a.err, broken) || !errors.Is(a.err, acp.ErrClosed) {
			t.Errorf("%v", a.err)
		}
	}
	within(t, reqEnded, "the end of the request's context")
	if err := r.Reply(1); !errors.Is(err, broken) {
		t.Errorf("answer: %v", err)
	}
	if _, err := p.conn.Call(t.Context(), "x", nil); !errors.Is(err, broken) {
		t.Errorf("call: %v", err)
	}
	if err := p.conn.Notify("x", nil); !errors.Is(err, broken) {
		t.Errorf("notify: %v", err)
	}
}

// TestRealProcess: an agent that talks nonsense and dies in the middle.
func TestRealProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", `echo starting; read line; printf '{"jsonrpc":"2.0","method":"session/update","params":{}}'; exit 3`)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	updates := 0
	conn := acp.NewConn(stdout, stdin, acp.Handlers{Notification: func(context.Context, acp.Notification) { updates++ }}, acp.Options{})
	ended := make(chan error, 1)
	go func() { ended <- conn.Run(t.Context()) }()
	_, err = acp.Client{Conn: conn}.Initialize(t.Context(), acp.InitializeRequest{ProtocolVersion: acp.ProtocolVersion})
	if !errors.Is(err, acp.ErrEOF) || !strings.HasPrefix(err.Error(), "initialize: ") {
		t.Errorf("%v", err)
	}
	if err := within(t, ended, "the end"); !errors.Is(err, acp.ErrEOF) {
		t.Errorf("%v", err)
	}
	_ = cmd.Wait()
	if s := conn.Stats(); updates != 1 || s.NoiseLines != 1 || s.NoiseSample[0] != "starting" {
		t.Errorf("%d updates, %+v", updates, s)
	}
}

// TestLongLines: a line beyond the limit is spilled or cut, its message comes as
// a stand-in, and the session goes on.
func TestLongLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		limit int
		size  int
		spill bool
		max   int64
	}{
		{"cut", 64 << 10, 3 << 20, false, 0},
		{"spilled", 64 << 10, 3 << 20, true, 0},
		{"too long for the file", 64 << 10, 3 << 20, true, 1 << 20},
		{"100 MiB with the defaults", 0, 100 << 20, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.size > 10<<20 {
				t.Skip("large")
			}
			t.Parallel()
			dir := t.TempDir()
			o := acp.Options{MaxLineBytes: tt.limit, MaxSpillBytes: tt.max}
			if tt.spill {
				o.SpillDir = dir
			}
			seen := make(chan acp.Notification, 4)
			p := connect(t, acp.Handlers{Notification: func(_ context.Context, n acp.Notification) { seen <- n }}, o)
			done := p.call(t.Context(), "session/prompt")
			id := p.hear(t)["id"]
			head := `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":[{"type":"content","content":{"type":"text","text":"`
			tail := `"}}],"rawOutput":"done","title":"big \"one\""},"_meta":null}}`
			pad := strings.Repeat(strings.Repeat("0123456789abcdef", 64)+"\\n", tt.size/1026+1)
			second := pad
			if tt.limit == 0 {
				second = "" // one such line is enough
			}
			go p.say(t, "%s%s%s\n%s\n"+`{"jsonrpc":"2.0","id":%v,"result":{"stopReason":"end_turn","pad":"%s"}}`, head, pad, tail, update(1), id, second)
			n := within(t, seen, "the long update")
			size := int64(len(head) + len(pad) + len(tail))
			if n.Cut == nil || n.Cut.Bytes != size || n.Raw != nil || (n.Cut.File != "") != (tt.spill && tt.max == 0) {
				t.Fatalf("cut: %+v", n.Cut)
			}
			var s acp.SessionNotification
			if err := acp.Decode(n.Params, &s); err != nil || s.SessionID != "s" {
				t.Fatal(err, s.SessionID)
			}
			u, err := acp.ParseUpdate(s.Update)
			if err != nil {
				t.Fatal(err)
			}
			if u.Tool == nil || u.Tool.ToolCallID != "c" || *u.Tool.Status != "completed" || *u.Tool.Title != `big "one"` || string(u.Tool.RawOutput) != `"done"` ||
				u.Tool.Content != nil || u.Cut == nil || *u.Cut != *n.Cut {
				t.Errorf("stand-in: %s", s.Update)
			}
			if n.Cut.File != "" {
				info, err := os.Stat(n.Cut.File)
				if err != nil || info.Size() != size || info.Mode().Perm() != 0o600 {
					t.Errorf("spilled: %v %v", info, err)
				}
			}
			if n := within(t, seen, "the update behind it"); n.Cut != nil {
				t.Errorf("%+v", n)
			}
			a := within(t, done, "the long answer")
			var r acp.PromptResponse
			if a.err != nil || acp.Decode(a.raw, &r) != nil || r.StopReason != acp.StopEndTurn || len(a.raw) > 300<<10 {
				t.Errorf("answer: %v %.200s", a.err, a.raw)
			}
			if s := p.conn.Stats(); s.CutLines != 1 && tt.limit == 0 || s.CutLines != 2 && tt.limit != 0 || s.NoiseLines != 0 {
				t.Errorf("%+v", s)
			}
			if files, _ := filepath.Glob(filepath.Join(dir, "*")); tt.max > 0 && len(files) != 0 {
				t.Errorf("left behind: %v", files)
			}
		})
	}
}

func TestLongNoiseDoesNotEndTheSession(t *testing.T) {
	t.Parallel()
	for name, junk := range map[string]string{
		"text": "xxxxxxxx", "lists": "[", "objects": `{"a":`, "quotes": `"`, "half a message": `{"jsonrpc":"2.0","method":"session/update","params":{"update":"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := make(chan acp.Notification, 1)
			p := connect(t, acp.Handlers{Notification: func(_ context.Context, n acp.Notification) { seen <- n }}, acp.Options{MaxLineBytes: 1000})
			go p.say(t, "%s\n%s", strings.Repeat(junk, 1+200_000/len(junk)), update(1))
			if n := within(t, seen, "the update behind it"); n.Cut != nil {
				t.Errorf("%+v", n)
			}
			if s := p.conn.Stats(); s.CutLines != 1 || s.NoiseLines != 1 || len(s.NoiseSample[0]) > 512 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestLastAnswerIsSentAfterTheInputEnds(t *testing.T) {
	t.Parallel()
	p := connect(t, acp.Handlers{Requests: map[string]func(context.Context, *acp.Request){
		"ask": acp.Handle(func(context.Context, struct{}) (int, error) { return 7, nil }),
	}}, acp.Options{})
	p.say(t, `{"jsonrpc":"2.0","id":1,"method":"ask","params":{}}`)
	_ = p.w.Close()
	if m := p.hear(t); m["result"] != float64(7) {
		t.Errorf("%v", m)
	}
}
