// Package scriptedagent is a coding agent for tests: it speaks the Agent Client
// Protocol (agentclientprotocol.com, wire version 1) on stdio like a real one,
// but does what directives in the prompt say, and misbehaves when they say so.
// It is a peer of its own: it shares no protocol code with Hearth's client.
//
// Good behaviour, carried out in order:
//
//	@@say TEXT@@        text          @@think TEXT@@   a thought
//	@@plan A; B; C@@    a plan, then each entry completed
//	@@write PATH TEXT@@ a file, really written, as a tool call with a diff
//	@@run COMMAND@@     a shell command, really run, as a tool call
//	@@slow N MS@@       N pieces of text, MS milliseconds apart
//	@@numbered N BYTES RATE WAIT@@  N pieces of text with number and time, RATE
//	                    a second, WAIT milliseconds before; not kept (package numbered)
//	@@ask TITLE@@       ask for permission and say what was answered
//	@@form QUESTION@@   ask by a form (elicitation) and say what was answered
//	@@fields SCHEMA@@   the same with this JSON schema
//	@@ask-many N TITLE@@ ask for N permissions at once and say what was answered
//	@@offered@@         say what the client said that it can do
//	@@model WORDS@@     ask the model at the base URL, with the script @@WORDS@@
//	@@fetch URL@@       GET a URL and say how it went
//	@@usage IN OUT@@    report these tokens
//	@@mark WORD@@, @@recall@@, @@recall WORD@@   as in package scriptedmodel
//
// Bad behaviour:
//
//	@@flood N [BYTES]@@      N updates as fast as they go
//	@@rubbish [N]@@          N lines on stdout that are no JSON-RPC
//	@@bytes say|tool [FILE]@@ a text or a tool's output of all 256 bytes, or of a file's
//	@@line BYTES@@           one update whose text has so many bytes
//	@@stderr N@@             N lines of noise on stderr
//	@@exit N@@, @@kill@@     end in mid-turn, by exit status or SIGKILL
//	@@hang@@                 never answer this prompt; a cancel still works
//	@@ignore-cancel@@        from here on this turn does not obey a cancel
//	@@orphan SECONDS@@       leave a process in a session of its own behind; says its pid
//	@@unknown-update@@       kinds of updates and content that do not exist
//	@@unknown-request@@      requests that the client cannot know; says the answers
//	@@update-first@@         a tool_call_update for a call that was never announced
//	@@dangling@@             a tool call that is never completed
//	@@stop REASON@@          end with this stop reason (refusal, max_tokens …)
//	@@error CODE TEXT@@      end with this JSON-RPC error
//	@@provider-failure TEXT@@ say an API error, then end_turn as if all were well
//	@@form-url URL@@         ask for a page to be opened; says the answer
//	@@ask-twice TITLE@@      two permission requests with one id; says both answers
//	@@ask-withdraw MS TITLE@@ take a request back ($/cancel_request) after MS; says the answer
//	@@ask-exit MS TITLE@@    end in mid-turn MS after asking, without waiting for the answer
//	@@late-ask TITLE@@       ask once the prompt was answered; the answers go to stderr
//	@@late N [MS]@@          N updates after the prompt was answered, MS apart
//	@@late-text N [MS]@@     the same with pieces of text
//
// How the agent starts is chosen by [Options]. Sessions are kept in
// HOME/.scripted/sessions, a file each that only grows. Start at [Run].
package scriptedagent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// AllCaps are the capabilities that can be switched.
var AllCaps = []string{"load", "resume", "list", "close", "delete", "fork", "image", "embedded"}

// What the agent does when the model refuses or cannot be reached.
const (
	ModelErrorFails   = "error"    // the prompt is answered with an error
	ModelErrorEndTurn = "end_turn" // the error is told as text, the turn ends as if well
	ModelErrorRetry   = "retry"    // try again each second, for ever
)

// When a load replays the conversation.
const (
	ReplayBefore = "before" // the response, as the protocol wants it
	ReplayAfter  = "after"  // the response, as some agents do
)

// Failure is a JSON-RPC error.
type Failure struct {
	Code    int
	Message string
}

// Options configure an agent. In, Out and Home must be set.
type Options struct {
	In   io.Reader
	Out  io.Writer
	Err  io.Writer // nil: nothing is written
	Home string

	Caps          []string           // nil: AllCaps
	Hang          []string           // methods that are never answered
	Fail          map[string]Failure // methods that are answered with an error
	Version       int                // protocol version answered; 0: 1
	Replay        string             // ReplayBefore when empty
	ResumeReplays bool               // session/resume replays the conversation, too, whatever it promises
	Auth          bool               // sessions need an authenticate first
	Mode          string             // mode of a new, loaded or resumed session: "auto" (default) or "ask"
	NoMessageIDs  bool               // send no messageId, as some agents do
	IgnoreEOF     bool               // stay when stdin ends
	IgnoreTerm    bool               // the whole process does not end on SIGTERM, SIGINT and SIGHUP

	ModelURL     string // base URL, without /v1
	ModelKey     string
	OnModelError string // ModelErrorFails when empty

	Now   func() time.Time
	NewID func() string
	Exit  func(int)                                  // ends the process; nil: os.Exit
	Wait  func(context.Context, time.Duration) error // nil: real time
}

// agent is one connection.
type agent struct {
	opts Options
	wire *wire
	dir  string // of the sessions

	mu       sync.Mutex
	authed   bool
	offered  json.RawMessage // capabilities of the client
	sessions map[string]*session
	turns    sync.WaitGroup // every goroutine of a prompt; Run waits
}

// Run serves one client until its input ends or ctx does, then ends all turns
// and waits for them. Some directives end the process: run it in one of its own.
func Run(ctx context.Context, opts Options) error {
	if opts.Home == "" {
		return errors.New("scripted agent: no home folder; set HOME")
	}
	if opts.Caps == nil {
		opts.Caps = AllCaps
	}
	if opts.Err == nil {
		opts.Err = io.Discard
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.NewID == nil {
		opts.NewID = func() string { return strings.ToLower(rand.Text()) }
	}
	if opts.Exit == nil {
		opts.Exit = os.Exit
	}
	if opts.Wait == nil {
		opts.Wait = wait
	}
	if opts.Version == 0 {
		opts.Version = 1
	}
	if opts.Mode == "" {
		opts.Mode = "auto"
	}
	if opts.IgnoreTerm {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	a := &agent{
		opts: opts, wire: newWire(opts.Out), sessions: map[string]*session{}, authed: !opts.Auth,
		dir: filepath.Join(opts.Home, ".scripted", "sessions"),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		a.turns.Wait()
		for _, s := range a.sessions {
			s.close()
		}
	}()
	err := a.wire.read(opts.In, func(m message) { a.dispatch(ctx, m) })
	if opts.IgnoreEOF {
		<-ctx.Done()
	}
	a.wire.close()
	return err
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *agent) has(capability string) bool { return slices.Contains(a.opts.Caps, capability) }

// Error codes: JSON-RPC 2.0, section 5.1, and the protocol's own.
const (
	codeInvalidRequest  = -32600
	codeMethodNotFound  = -32601
	codeInvalidParams   = -32602
	codeInternal        = -32603
	codeAuthRequired    = -32000
	codeNotFound        = -32002
	codeRequestCanceled = -32800
)

func failure(code int, format string, args ...any) *Failure {
	return &Failure{code, fmt.Sprintf(format, args...)}
}

// methods are the requests that are answered at once.
var methods = map[string]struct {
	capability string
	serve      func(*agent, json.RawMessage) (any, *Failure)
}{
	"initialize":                {"", (*agent).initialize},
	"authenticate":              {"", (*agent).authenticate},
	"session/new":               {"", (*agent).newSession},
	"session/load":              {"load", (*agent).loadSession},
	"session/resume":            {"resume", (*agent).resumeSession},
	"session/list":              {"list", (*agent).listSessions},
	"session/close":             {"close", (*agent).closeSession},
	"session/delete":            {"delete", (*agent).deleteSession},
	"session/fork":              {"fork", (*agent).forkSession},
	"session/set_mode":          {"", (*agent).setMode},
	"session/set_config_option": {"", (*agent).setConfig},
}

// dispatch handles one message from the client. Only prompts get a goroutine.
func (a *agent) dispatch(ctx context.Context, m message) {
	if m.Method == "" {
		return // an answer, which wire has handed on
	}
	if m.ID == nil {
		a.notified(m)
		return
	}
	if slices.Contains(a.opts.Hang, m.Method) {
		return
	}
	if f, ok := a.opts.Fail[m.Method]; ok {
		a.wire.answer(m.ID, nil, &f)
		return
	}
	if m.Method == "session/prompt" {
		a.prompt(ctx, m)
		return
	}
	h, ok := methods[m.Method]
	if !ok || h.capability != "" && !a.has(h.capability) {
		a.wire.answer(m.ID, nil, failure(codeMethodNotFound, "Method not found: %s", m.Method))
		return
	}
	result, f := h.serve(a, m.Params)
	if then, ok := result.(after); ok {
		a.wire.answer(m.ID, then.result, f)
		then.do()
		return
	}
	a.wire.answer(m.ID, result, f)
}

// after is a result with something to be done once it is sent.
type after struct {
	result any
	do     func()
}

func (a *agent) notified(m message) {
	switch m.Method {
	case "session/cancel":
		var p struct{ SessionID string }
		if json.Unmarshal(m.Params, &p) != nil {
			return
		}
		if s := a.session(p.SessionID); s != nil {
			s.cancel(errCanceled)
		}
	case "$/cancel_request":
		var p struct{ RequestID json.RawMessage }
		if json.Unmarshal(m.Params, &p) != nil {
			return
		}
		a.mu.Lock()
		list := make([]*session, 0, len(a.sessions))
		for _, s := range a.sessions {
			list = append(list, s)
		}
		a.mu.Unlock()
		for _, s := range list {
			if s.prompting() == string(p.RequestID) {
				s.cancel(errRequestCanceled)
			}
		}
	}
}

var (
	errCanceled        = errors.New("turn canceled")
	errRequestCanceled = errors.New("request canceled")
)

func (a *agent) session(id string) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sessions[id]
}

func (a *agent) initialize(raw json.RawMessage) (any, *Failure) {
	var p struct{ ClientCapabilities json.RawMessage }
	if json.Unmarshal(raw, &p) == nil {
		a.mu.Lock()
		a.offered = p.ClientCapabilities
		a.mu.Unlock()
	}
	session := object{}
	for _, c := range []string{"list", "resume", "close", "delete", "fork"} {
		if a.has(c) {
			session[c] = object{}
		}
	}
	auth := []any{}
	if a.opts.Auth {
		auth = append(auth, object{"id": "api-key", "name": "API key", "description": "Use the key in the environment"})
	}
	return object{
		"protocolVersion": a.opts.Version,
		"agentInfo":       object{"name": "hearth-scripted-agent", "title": "Scripted agent", "version": "1"},
		"agentCapabilities": object{
			"loadSession":         a.has("load"),
			"promptCapabilities":  object{"image": a.has("image"), "audio": false, "embeddedContext": a.has("embedded")},
			"mcpCapabilities":     object{"http": false, "sse": false},
			"sessionCapabilities": session,
		},
		"authMethods": auth,
	}, nil
}

func (a *agent) authenticate(raw json.RawMessage) (any, *Failure) {
	var p struct{ MethodID string }
	if json.Unmarshal(raw, &p) != nil || p.MethodID != "api-key" || !a.opts.Auth {
		return nil, failure(codeInvalidParams, "Unknown authentication method %q", p.MethodID)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.authed = true
	return object{}, nil
}
