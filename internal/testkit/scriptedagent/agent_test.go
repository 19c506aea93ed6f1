package scriptedagent_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/testkit/scriptedagent"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

func stopOf(t *testing.T, m message) string {
	t.Helper()
	if m.Error != nil {
		t.Fatalf("error %d %s", m.Error.Code, m.Error.Message)
	}
	return m.Result["stopReason"].(string)
}

func TestTurn(t *testing.T) {
	t.Parallel()
	c := spawn(t, t.TempDir())
	id := c.session()
	m, updates := c.prompt(id, "Work: @@think Let me see.@@ @@plan look; mend@@ @@write a/b.txt some words@@ @@run cat a/b.txt; exit 3@@ @@say All done.@@")
	if s := stopOf(t, m); s != "end_turn" {
		t.Errorf("stop %q", s)
	}
	if diff := cmp.Diff([]string{"agent_thought_chunk", "plan", "tool_call", "tool_call_update", "tool_call", "tool_call_update", "agent_message_chunk", "usage_update"}, kinds(updates)); diff != "" {
		t.Error(diff)
	}
	if got := said(updates, "agent_message_chunk"); got != "All done.|[directives seen: 5; earlier: 0]" {
		t.Errorf("said %q", got)
	}
	if got := said(updates, "agent_thought_chunk"); got != "Let me see." {
		t.Errorf("thought %q", got)
	}
	b, err := os.ReadFile(filepath.Join(c.cwd, "a/b.txt"))
	if err != nil || string(b) != "some words\n" {
		t.Errorf("file %q, %v", b, err)
	}
	var status []string
	for _, u := range updates {
		if s, ok := u["status"].(string); ok {
			status = append(status, s)
		}
		if raw, ok := u["rawOutput"].(object); ok && raw["exitCode"] != nil && raw["exitCode"] != 3.0 {
			t.Errorf("raw output %v", raw)
		}
		if u["sessionUpdate"] == "plan" {
			if n := len(u["entries"].([]any)); n != 2 {
				t.Errorf("%d plan entries", n)
			}
		}
	}
	if diff := cmp.Diff([]string{"pending", "in_progress", "completed", "pending", "in_progress", "failed"}, status); diff != "" {
		t.Error(diff)
	}
	if n := m.Result["usage"].(object)["totalTokens"].(float64); n < 10 {
		t.Errorf("usage %v", m.Result["usage"])
	}
	m, updates = c.prompt(id, "@@usage 700 30@@ @@dance@@")
	if u := m.Result["usage"].(object); u["inputTokens"] != 700.0 || u["totalTokens"] != 730.0 {
		t.Errorf("usage %v", u)
	}
	if got := said(updates, "agent_message_chunk"); !strings.HasPrefix(got, "I do not know the directive dance.|") {
		t.Errorf("said %q", got)
	}
}

func TestContinuity(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"session/load", "session/resume", "session/fork"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			c := spawn(t, home)
			id := c.session()
			c.call("session/set_mode", object{"sessionId": id, "modeId": "ask"})
			c.prompt(id, "@@mark green@@ @@say first@@")
			// Killed in the middle of a turn, which leaves half a line behind too.
			_, ch := c.begin("session/prompt", promptOf(id, "@@say second@@ @@kill@@"))
			select {
			case <-c.done:
			case m := <-ch:
				t.Fatalf("answered %+v", m)
			}
			file := filepath.Join(home, ".scripted", "sessions", id+".jsonl")
			f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString(`{"update":{"sess`); err != nil {
				t.Fatal(err)
			}
			_ = f.Close()

			d := spawn(t, home)
			d.call("initialize", object{"protocolVersion": 1})
			m := d.call(how, object{"sessionId": id, "cwd": d.cwd, "mcpServers": []any{}})
			if m.Error != nil {
				t.Fatalf("%s: %+v", how, m.Error)
			}
			replay := d.takeUpdates()
			wantUser, wantAgent := "", ""
			if how == "session/load" {
				wantUser, wantAgent = "@@mark green@@ @@say first@@@@say second@@ @@kill@@", "first|[directives seen: 2; earlier: 0]|second"
			}
			if got := []string{said(replay, "user_message_chunk"), said(replay, "agent_message_chunk")}; !cmp.Equal(got, []string{wantUser, wantAgent}) {
				t.Errorf("replay %q", got)
			}
			if mode := m.Result["modes"].(object)["currentModeId"]; mode != "auto" {
				t.Errorf("mode %v was kept", mode)
			}
			if how == "session/fork" {
				id = m.Result["sessionId"].(string)
			}
			_, updates := d.prompt(id, "@@recall@@ @@recall blue@@")
			if got := said(updates, "agent_message_chunk"); got != "The marker is green.|I do not remember blue.|[directives seen: 6; earlier: 4]" {
				t.Errorf("said %q", got)
			}
		})
	}
}

func TestLateReplay(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := spawn(t, home)
	id := c.session()
	c.prompt(id, "@@say first@@")
	d := spawnEnv(t, home, []string{"SCRIPTED_REPLAY=after"})
	d.call("initialize", object{"protocolVersion": 1})
	d.call("session/load", object{"sessionId": id, "cwd": d.cwd, "mcpServers": []any{}})
	eventually(t, "the replay", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.updates) == 4 // one prompt, three pieces of text
	})
}

func TestSessions(t *testing.T) {
	t.Parallel()
	c := spawn(t, t.TempDir())
	id := c.session()
	c.prompt(id, "Please mend it @@say a@@")
	list := func(cwd string) int {
		m := c.call("session/list", object{"cwd": cwd})
		return len(m.Result["sessions"].([]any))
	}
	if got := []int{list(""), list(c.cwd), list("/elsewhere")}; !cmp.Equal(got, []int{1, 1, 0}) {
		t.Errorf("listed %v", got)
	}
	refused := []struct {
		method string
		params object
		code   int
	}{
		{"session/new", object{"cwd": "relative", "mcpServers": []any{}}, -32602},
		{"session/load", object{"sessionId": "none", "cwd": c.cwd}, -32002},
		{"session/load", object{"sessionId": "../../etc/passwd", "cwd": c.cwd}, -32602},
		{"session/prompt", promptOf("none", "x"), -32002},
		{"session/prompt", object{"sessionId": id, "prompt": []any{}}, -32602},
		{"session/set_mode", object{"sessionId": id, "modeId": "wild"}, -32602},
		{"session/set_config_option", object{"sessionId": id, "configId": "model", "value": "none"}, -32602},
		{"session/fly", object{}, -32601},
	}
	for _, r := range refused {
		if m := c.call(r.method, r.params); m.Error == nil || m.Error.Code != r.code {
			t.Errorf("%s %v: %+v", r.method, r.params, m)
		}
	}
	m := c.call("session/set_config_option", object{"sessionId": id, "configId": "model", "value": "scripted-large"})
	if m.Error != nil || m.Result["configOptions"].([]any)[1].(object)["currentValue"] != "scripted-large" {
		t.Errorf("config %+v", m)
	}
	if m := c.call("session/close", object{"sessionId": id}); m.Error != nil {
		t.Errorf("close %+v", m.Error)
	}
	if m := c.call("session/prompt", promptOf(id, "x")); m.Error == nil {
		t.Error("a closed session took a prompt")
	}
	if m := c.call("session/delete", object{"sessionId": id}); m.Error != nil {
		t.Errorf("delete %+v", m.Error)
	}
	if n := list(""); n != 0 {
		t.Errorf("%d sessions after delete", n)
	}
}

func TestStartOptions(t *testing.T) {
	t.Parallel()
	t.Run("capabilities", func(t *testing.T) {
		t.Parallel()
		c := spawn(t, t.TempDir(), "--caps", "list", "--version", "2")
		m := c.call("initialize", object{"protocolVersion": 1})
		caps := m.Result["agentCapabilities"].(object)
		if caps["loadSession"] != false || m.Result["protocolVersion"] != 2.0 || !cmp.Equal(caps["sessionCapabilities"], any(object{"list": object{}})) {
			t.Errorf("result %v", m.Result)
		}
		if m := c.call("session/load", object{"sessionId": "x", "cwd": "/"}); m.Error == nil || m.Error.Code != -32601 {
			t.Errorf("load %+v", m)
		}
	})
	t.Run("authentication", func(t *testing.T) {
		t.Parallel()
		c := spawn(t, t.TempDir(), "--auth")
		m := c.call("initialize", object{"protocolVersion": 1})
		if n := len(m.Result["authMethods"].([]any)); n != 1 {
			t.Errorf("%d methods", n)
		}
		if m := c.call("session/new", object{"cwd": c.cwd}); m.Error == nil || m.Error.Code != -32000 {
			t.Errorf("new %+v", m)
		}
		if m := c.call("authenticate", object{"methodId": "api-key"}); m.Error != nil {
			t.Errorf("authenticate %+v", m.Error)
		}
		if m := c.call("session/new", object{"cwd": c.cwd}); m.Error != nil {
			t.Errorf("new %+v", m.Error)
		}
	})
	t.Run("errors", func(t *testing.T) {
		t.Parallel()
		c := spawn(t, t.TempDir(), "--fail", "session/new=-32000:log in first;initialize=-32603:broken")
		if m := c.call("initialize", object{}); m.Error == nil || m.Error.Code != -32603 || m.Error.Message != "broken" {
			t.Errorf("initialize %+v", m)
		}
		if m := c.call("session/new", object{}); m.Error == nil || m.Error.Code != -32000 {
			t.Errorf("new %+v", m)
		}
	})
	t.Run("never answers", func(t *testing.T) {
		t.Parallel()
		for _, method := range []string{"initialize", "session/new", "session/prompt"} {
			c := spawnEnv(t, t.TempDir(), []string{"SCRIPTED_HANG=" + method})
			_, hung := c.begin(method, object{})
			// Requests are handled in order: one that is answered later shows
			// that the first is not going to be.
			c.call("session/list", object{})
			select {
			case m := <-hung:
				t.Errorf("%s answered %+v", method, m)
			default:
			}
		}
	})
	t.Run("no message ids", func(t *testing.T) {
		t.Parallel()
		c := spawn(t, t.TempDir(), "--no-message-ids")
		_, updates := c.prompt(c.session(), "@@say a@@")
		for _, u := range updates {
			if _, ok := u["messageId"]; ok {
				t.Errorf("update %v", u)
			}
		}
	})
	t.Run("bad flags", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{"--caps", "fly"}, {"--fail", "x"}, {"--replay", "never"}, {"--mode", "x"}, {"extra"}, {"--version", "x"}, {"--unknown"}} {
			if _, err := scriptedagent.FromArgs(args, func(string) string { return "" }, &lockedBuffer{}); err == nil {
				t.Errorf("%v was taken", args)
			}
		}
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"@@hang@@", "@@slow 1000 50@@", "@@run sleep 600@@", "@@run sleep 601 | cat@@"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			c := spawn(t, t.TempDir())
			id := c.session()
			_, ch := c.begin("session/prompt", promptOf(id, "@@say go@@ "+script))
			eventually(t, "the start", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return strings.Contains(said(c.updates, "agent_message_chunk"), "go")
			})
			c.notify("session/cancel", object{"sessionId": id})
			if s := stopOf(t, c.end(ch)); s != "cancelled" {
				t.Errorf("stop %q", s)
			}
			m, _ := c.prompt(id, "@@say again@@")
			if s := stopOf(t, m); s != "end_turn" {
				t.Errorf("the next prompt: stop %q", s)
			}
		})
	}
}

func TestCancelRequest(t *testing.T) {
	t.Parallel()
	c := spawn(t, t.TempDir())
	id := c.session()
	n, ch := c.begin("session/prompt", promptOf(id, "@@hang@@"))
	if m := c.call("session/prompt", promptOf(id, "@@say x@@")); m.Error == nil || m.Error.Code != -32600 {
		t.Errorf("a second prompt at the same time: %+v", m)
	}
	c.notify("$/cancel_request", object{"requestId": n})
	if m := c.end(ch); m.Error == nil || m.Error.Code != -32800 {
		t.Errorf("answer %+v", m)
	}
}

func TestIgnoresCancel(t *testing.T) {
	t.Parallel()
	c := spawn(t, t.TempDir())
	id := c.session()
	_, ch := c.begin("session/prompt", promptOf(id, "@@ignore-cancel@@ @@run until test -e go; do sleep 0.05; done@@ @@say went on@@"))
	eventually(t, "the command", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.updates) >= 3
	})
	c.notify("session/cancel", object{"sessionId": id})
	c.call("session/list", object{}) // the cancel has been read
	if err := os.WriteFile(filepath.Join(c.cwd, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if s := stopOf(t, c.end(ch)); s != "end_turn" {
		t.Errorf("stop %q", s)
	}
}

func TestPermission(t *testing.T) {
	t.Parallel()
	answers := map[string]struct {
		outcome object
		want    string
		file    bool
		stop    string
	}{
		"yes":       {object{"outcome": "selected", "optionId": "yes"}, "Allowed: Deploy (yes).", true, "end_turn"},
		"always":    {object{"outcome": "selected", "optionId": "always"}, "Allowed: Deploy (always).", true, "end_turn"},
		"no":        {object{"outcome": "selected", "optionId": "no"}, "Refused: Deploy (no).", false, "end_turn"},
		"cancelled": {object{"outcome": "cancelled"}, "", false, "cancelled"},
	}
	for name, tt := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := spawn(t, t.TempDir(), "--mode", "ask")
			var kinds []string
			c.asked = func(m message) (object, int) {
				if m.Method != "session/request_permission" {
					return nil, -32601
				}
				for _, o := range m.Params["options"].([]any) {
					kinds = append(kinds, o.(object)["kind"].(string))
				}
				return object{"outcome": tt.outcome}, 0
			}
			id := c.session()
			m, updates := c.prompt(id, "@@ask Deploy@@ @@write a.txt b@@")
			if s := stopOf(t, m); s != tt.stop {
				t.Errorf("stop %q", s)
			}
			if got := said(updates, "agent_message_chunk"); !strings.HasPrefix(got, tt.want) {
				t.Errorf("said %q", got)
			}
			_, err := os.Stat(filepath.Join(c.cwd, "a.txt"))
			if (err == nil) != tt.file {
				t.Errorf("file: %v", err)
			}
			if len(kinds)%3 != 0 || kinds[0] != "allow_once" || kinds[2] != "reject_once" {
				t.Errorf("kinds %v", kinds)
			}
		})
	}
}

func TestForm(t *testing.T) {
	t.Parallel()
	c := spawn(t, t.TempDir())
	c.asked = func(m message) (object, int) {
		if m.Method != "elicitation/create" || m.Params["message"] != "Which one?" {
			return nil, -32601
		}
		return object{"action": "accept", "content": object{"answer": "the left"}}, 0
	}
	_, updates := c.prompt(c.session(), "@@form Which one?@@")
	if got := said(updates, "agent_message_chunk"); !strings.HasPrefix(got, `The form: accept {"answer":"the left"}|`) {
		t.Errorf("said %q", got)
	}
}

func TestMisbehaviour(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	c := spawn(t, home)
	id := c.session()

	m, updates := c.prompt(id, "@@flood 3000 100@@")
	if n := len(updates); stopOf(t, m) != "end_turn" || n < 3001 || !strings.Contains(said(updates, "agent_message_chunk"), "Update 3000. xxx") {
		t.Errorf("%d updates", n)
	}
	if m, _ := c.prompt(id, "@@rubbish@@ @@stderr 3@@"); stopOf(t, m) != "end_turn" || len(c.lines) != 9 || strings.Count(c.stderr.String(), "noise") != 3 {
		t.Errorf("lines %q, stderr %q", c.lines, c.stderr.String())
	}
	_, updates = c.prompt(id, "@@line 3000000@@")
	if n := len(updates[0]["content"].(object)["text"].(string)); n != 3_000_000 {
		t.Errorf("a line with %d bytes of text", n)
	}
	for script, want := range map[string]string{"@@stop refusal@@": "refusal", "@@say a@@ @@stop max_tokens@@": "max_tokens", "@@provider-failure 529 overloaded@@": "end_turn", "@@dangling@@": "end_turn", "@@update-first@@": "end_turn"} {
		m, _ := c.prompt(id, script)
		if s := stopOf(t, m); s != want {
			t.Errorf("%s: stop %q", script, s)
		}
	}
	if m, _ := c.prompt(id, "@@error -32000 Please log in@@"); m.Error == nil || m.Error.Code != -32000 || m.Error.Message != "Please log in" {
		t.Errorf("error %+v", m)
	}
	_, updates = c.prompt(id, "@@unknown-update@@")
	if k := kinds(updates); k[0] != "scripted_surprise" || c.notes[0] != "_scripted/status_update" {
		t.Errorf("kinds %v, notes %v", k, c.notes)
	}
	_, updates = c.prompt(id, "@@unknown-request@@")
	if got := said(updates, "agent_message_chunk"); strings.Count(got, "error -32601.") != 4 {
		t.Errorf("said %q", got)
	}
	c.call("session/prompt", promptOf(id, "@@late 3@@"))
	eventually(t, "late updates", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.updates) > 0 && c.updates[len(c.updates)-1]["title"] == "Late 3 of 3"
	})
}

func TestOrphan(t *testing.T) {
	t.Parallel()
	c := spawn(t, t.TempDir())
	_, updates := c.prompt(c.session(), "@@orphan 300@@")
	found := regexp.MustCompile(`pid (\d+)`).FindStringSubmatch(said(updates, "agent_message_chunk"))
	if found == nil {
		t.Fatalf("said %q", said(updates, "agent_message_chunk"))
	}
	pid, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	_ = c.in.Close()
	<-c.done
	if err := c.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatalf("the process has ended with its agent: %v", err)
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if sid, err := syscall.Getpgid(pid); err != nil || sid == c.cmd.Process.Pid || f[0] == "Z" {
		t.Errorf("group %d, state %s, %v", sid, f[0], err)
	}
}

func TestEnds(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{"@@say x@@ @@exit 7@@": "exit status 7", "@@kill@@": "signal: killed"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			c := spawn(t, t.TempDir())
			_, ch := c.begin("session/prompt", promptOf(c.session(), script))
			select {
			case <-c.done:
			case m := <-ch:
				t.Fatalf("answered %+v", m)
			case <-time.After(20 * time.Second):
				t.Fatal("goes on")
			}
			err := c.cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Error() != want {
				t.Errorf("ended with %v, want %s", err, want)
			}
		})
	}
}

func TestStaysUntilKilled(t *testing.T) {
	t.Parallel()
	c := spawn(t, t.TempDir(), "--ignore-term", "--ignore-eof")
	c.session()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	c.call("session/list", object{}) // it has not ended by the signal
	_ = c.in.Close()
	select {
	case <-c.done:
		t.Error("ended with its input")
	case <-time.After(200 * time.Millisecond):
	}
	_ = c.cmd.Process.Kill()
	<-c.done
}

func TestModel(t *testing.T) {
	t.Parallel()
	m := scriptedmodel.New(scriptedmodel.Options{Keys: []string{"good"}})
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	ask := func(key string, args ...string) (message, string) {
		c := spawnEnv(t, t.TempDir(), []string{"ANTHROPIC_BASE_URL=" + srv.URL, "ANTHROPIC_API_KEY=" + key}, args...)
		answer, updates := c.prompt(c.session(), "@@model say It is four.@@")
		return answer, said(updates, "agent_message_chunk")
	}
	if answer, got := ask("good"); stopOf(t, answer) != "end_turn" || !strings.HasPrefix(got, "It is four.") {
		t.Errorf("said %q", got)
	}
	if answer, _ := ask("bad"); answer.Error == nil || !strings.Contains(answer.Error.Message, "API Error: 401") || !strings.Contains(answer.Error.Message, "authentication_error") {
		t.Errorf("answer %+v", answer)
	}
	if answer, got := ask("bad", "--on-model-error", "end_turn"); stopOf(t, answer) != "end_turn" || !strings.HasPrefix(got, "API Error: 401") {
		t.Errorf("said %q", got)
	}

	c := spawnEnv(t, t.TempDir(), []string{"ANTHROPIC_BASE_URL=" + srv.URL, "ANTHROPIC_API_KEY=bad"}, "--on-model-error", "retry")
	before := len(m.Requests())
	_, ch := c.begin("session/prompt", promptOf(c.session(), "@@model say x@@"))
	eventually(t, "a second try", func() bool { return len(m.Requests()) >= before+2 })
	m.SetKeys("bad")
	if s := stopOf(t, c.end(ch)); s != "end_turn" {
		t.Errorf("stop %q", s)
	}
}
