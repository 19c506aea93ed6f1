package scriptedagent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// session is one conversation of this process.
type session struct {
	id  string
	cwd string

	mu      sync.Mutex
	mode    string
	model   string
	records []record
	file    *os.File
	request string // id of the prompt at work, empty when idle
	stop    context.CancelCauseFunc
	deaf    bool // the turn does not obey a cancel
}

// record is one line of a session's file.
type record struct {
	CWD     string    `json:"cwd,omitempty"` // the first line
	Created time.Time `json:"created,omitzero"`
	User    string    `json:"user,omitempty"`
	Update  object    `json:"update,omitempty"`
}

// maxRecord bounds what one update adds to the file.
const maxRecord = 1 << 20

func (s *session) keep(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode a record: %w", err)
	}
	if len(b) > maxRecord {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, r)
	if s.file == nil {
		return nil // closed or deleted meanwhile
	}
	if _, err := s.file.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write the session's file: %w", err)
	}
	return nil
}

// users are the texts of all prompts, oldest first.
func (s *session) users() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.records {
		if r.User != "" {
			out = append(out, r.User)
		}
	}
	return out
}

// begin makes the session busy with a prompt; false when it is already.
func (s *session) begin(request string, stop context.CancelCauseFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != "" {
		return false
	}
	s.request, s.stop, s.deaf = request, stop, false
	return true
}

func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.request, s.stop = "", nil
}

func (s *session) prompting() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.request
}

func (s *session) cancel(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil && !s.deaf {
		s.stop(cause)
	}
}

func (s *session) ignoreCancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = true
}

func (s *session) currentMode() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode
}

func (s *session) currentModel() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model
}

func (s *session) close() {
	s.cancel(errCanceled)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close() // every record was written on its own
		s.file = nil
	}
}

var (
	modeIDs  = []string{"auto", "ask"}
	modelIDs = []string{"scripted", "scripted-large"}
)

// state is the part of a new, load or resume result that shows modes and options.
func (s *session) state() object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return object{
		"modes": object{"currentModeId": s.mode, "availableModes": []any{
			object{"id": "auto", "name": "Auto", "description": "Acts without asking"},
			object{"id": "ask", "name": "Ask", "description": "Asks before it writes or runs"},
		}},
		"configOptions": s.options(),
	}
}

// options needs s.mu.
func (s *session) options() []any {
	pick := func(id, name, current string, values []string) object {
		list := []any{}
		for _, v := range values {
			list = append(list, object{"value": v, "name": v})
		}
		return object{"id": id, "name": name, "category": id, "type": "select", "currentValue": current, "options": list}
	}
	return []any{pick("mode", "Mode", s.mode, modeIDs), pick("model", "Model", s.model, modelIDs)}
}

type sessionParams struct {
	SessionID string `json:"sessionId"`
	CWD       string `json:"cwd"`
	ModeID    string `json:"modeId"`
	ConfigID  string `json:"configId"`
	Value     any    `json:"value"`
}

var idRE = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func (a *agent) path(id string) string { return filepath.Join(a.dir, id+".jsonl") }

// ready reads the parameters and refuses when nobody is logged in.
func (a *agent) ready(raw json.RawMessage) (sessionParams, *Failure) {
	var p sessionParams
	a.mu.Lock()
	authed := a.authed
	a.mu.Unlock()
	if !authed {
		return p, failure(codeAuthRequired, "Authentication required")
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, failure(codeInvalidParams, "Invalid params: %v", err)
	}
	return p, nil
}

func (a *agent) register(s *session) {
	a.mu.Lock()
	old := a.sessions[s.id]
	a.sessions[s.id] = s
	a.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// create opens a session's new file.
func (a *agent) create(cwd string) (*session, *Failure) {
	if !filepath.IsAbs(cwd) {
		return nil, failure(codeInvalidParams, "cwd must be an absolute path, it is %q", cwd)
	}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, failure(codeInternal, "Cannot keep sessions: %v", err)
	}
	s := &session{id: a.opts.NewID(), cwd: cwd, mode: a.opts.Mode, model: modelIDs[0]}
	f, err := os.OpenFile(a.path(s.id), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, failure(codeInternal, "Cannot keep the session: %v", err)
	}
	s.file = f
	if err := s.keep(record{CWD: cwd, Created: a.opts.Now().UTC()}); err != nil {
		return nil, failure(codeInternal, "Cannot keep the session: %v", err)
	}
	return s, nil
}

func (a *agent) newSession(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	s, f := a.create(p.CWD)
	if f != nil {
		return nil, f
	}
	a.register(s)
	result := s.state()
	result["sessionId"] = s.id
	return after{result, func() {
		a.update(s, object{"sessionUpdate": "available_commands_update", "availableCommands": []any{object{"name": "help", "description": "Tells the directives"}}})
	}}, nil
}

// open reads a session from its file. A last line that a killed process left
// half written is cut off.
func (a *agent) open(p sessionParams) (*session, *Failure) {
	if !idRE.MatchString(p.SessionID) {
		return nil, failure(codeInvalidParams, "Invalid session id %q", p.SessionID)
	}
	f, err := os.OpenFile(a.path(p.SessionID), os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, failure(codeNotFound, "Session not found: %s", p.SessionID)
	}
	if err != nil {
		return nil, failure(codeInternal, "Cannot read the session: %v", err)
	}
	s := &session{id: p.SessionID, cwd: p.CWD, mode: a.opts.Mode, model: modelIDs[0], file: f}
	br := bufio.NewReader(f)
	good := int64(0)
	for {
		line, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		var r record
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		if err != nil {
			_ = f.Close()
			return nil, failure(codeInternal, "The session's file is damaged: %v", err)
		}
		good += int64(len(line))
		s.records = append(s.records, r)
	}
	if len(s.records) == 0 {
		_ = f.Close()
		return nil, failure(codeNotFound, "Session not found: %s", p.SessionID)
	}
	if err := f.Truncate(good); err != nil {
		_ = f.Close()
		return nil, failure(codeInternal, "Cannot mend the session's file: %v", err)
	}
	if s.cwd == "" {
		s.cwd = s.records[0].CWD
	}
	return s, nil
}

func (a *agent) loadSession(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	s, f := a.open(p)
	if f != nil {
		return nil, f
	}
	a.register(s)
	return a.replayed(s), nil
}

// replayed sends the conversation before or after the answer, as the options say.
func (a *agent) replayed(s *session) any {
	replay := func() {
		s.mu.Lock()
		records := slices.Clone(s.records)
		s.mu.Unlock()
		for _, r := range records {
			if r.User != "" {
				a.update(s, object{"sessionUpdate": "user_message_chunk", "content": text(r.User)})
			}
			if r.Update != nil {
				a.update(s, r.Update)
			}
		}
	}
	if a.opts.Replay == ReplayAfter {
		return after{s.state(), replay}
	}
	replay()
	return s.state()
}

func (a *agent) resumeSession(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	s, f := a.open(p)
	if f != nil {
		return nil, f
	}
	a.register(s)
	if a.opts.ResumeReplays {
		return a.replayed(s), nil
	}
	return s.state(), nil
}

func (a *agent) forkSession(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	from, f := a.open(p)
	if f != nil {
		return nil, f
	}
	defer from.close()
	s, f := a.create(from.cwd)
	if f != nil {
		return nil, f
	}
	for _, r := range from.records[1:] {
		if err := s.keep(r); err != nil {
			return nil, failure(codeInternal, "Cannot copy the session: %v", err)
		}
	}
	a.register(s)
	result := s.state()
	result["sessionId"] = s.id
	return result, nil
}

func (a *agent) listSessions(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	entries, err := os.ReadDir(a.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, failure(codeInternal, "Cannot list sessions: %v", err)
	}
	list := []any{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".jsonl")
		info, err := e.Info()
		if !ok || err != nil {
			continue
		}
		s, f := a.open(sessionParams{SessionID: id})
		if f != nil {
			continue // not ours, or broken
		}
		users := s.users()
		s.close()
		if p.CWD != "" && p.CWD != s.cwd {
			continue
		}
		o := object{"sessionId": id, "cwd": s.cwd, "updatedAt": info.ModTime().UTC().Format(time.RFC3339)}
		if len(users) > 0 {
			o["title"] = title(users[0])
		}
		list = append(list, o)
	}
	return object{"sessions": list}, nil
}

func (a *agent) closeSession(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	s := a.session(p.SessionID)
	if s == nil {
		return nil, failure(codeNotFound, "Session not found: %s", p.SessionID)
	}
	s.close()
	a.mu.Lock()
	delete(a.sessions, s.id)
	a.mu.Unlock()
	return object{}, nil
}

func (a *agent) deleteSession(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	if !idRE.MatchString(p.SessionID) {
		return nil, failure(codeInvalidParams, "Invalid session id %q", p.SessionID)
	}
	if a.session(p.SessionID) != nil {
		if _, f := a.closeSession(raw); f != nil {
			return nil, f
		}
	}
	if err := os.Remove(a.path(p.SessionID)); errors.Is(err, os.ErrNotExist) {
		return nil, failure(codeNotFound, "Session not found: %s", p.SessionID)
	} else if err != nil {
		return nil, failure(codeInternal, "Cannot delete the session: %v", err)
	}
	return object{}, nil
}

func (a *agent) setMode(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	if _, f := a.set(p.SessionID, "mode", p.ModeID); f != nil {
		return nil, f
	}
	return object{}, nil
}

func (a *agent) setConfig(raw json.RawMessage) (any, *Failure) {
	p, f := a.ready(raw)
	if f != nil {
		return nil, f
	}
	v, _ := p.Value.(string)
	s, f := a.set(p.SessionID, p.ConfigID, v)
	if f != nil {
		return nil, f
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return object{"configOptions": s.options()}, nil
}

func (a *agent) set(id, option, value string) (*session, *Failure) {
	s := a.session(id)
	if s == nil {
		return nil, failure(codeNotFound, "Session not found: %s", id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case option == "mode" && slices.Contains(modeIDs, value):
		s.mode = value
	case option == "model" && slices.Contains(modelIDs, value):
		s.model = value
	default:
		return nil, failure(codeInvalidParams, "There is no %s %q", option, value)
	}
	return s, nil
}
