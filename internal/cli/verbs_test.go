package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/session"
)

// before puts something in front of a world's server; f answers, or says that it does not.
func (s *shell) before(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.t.Helper()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !f(w, r) {
			s.w.Server.Config.Handler.ServeHTTP(w, r)
		}
	}))
	s.t.Cleanup(proxy.Close)
	s.env["HEARTH_SERVER"] = proxy.URL
}

// done makes a session whose turn has ended.
func (s *shell) done(prompt string) session.ID {
	s.t.Helper()
	id := s.w.Create(prompt)
	s.w.Begin(id)
	s.w.End(id)
	return id
}

func TestCutDiffIsAnError(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.done("one")
	s.before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/diff") {
			return false
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"text": "diff --git a/x b/x\n", "truncated": true})
		return true
	})
	if got := s.run("diff", string(id)); got != 7 || !strings.Contains(s.err.String(), "hearth bundle "+string(id)) || !strings.HasPrefix(s.out.String(), "diff --git") {
		t.Errorf("status %d: %s %s", got, s.out.String(), s.err.String())
	}
}

func TestListOfSeveralRepositories(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.done("one")
	s.done("two")
	if got := s.run("list"); got != 0 || strings.Contains(s.out.String(), "REPOSITORY") {
		t.Errorf("of one repository: %d %s", got, s.out.String())
	}
	_, err := s.w.Sessions.Create(t.Context(), s.w.Owner(), session.CreateInput{Repo: "https://git.example.org/a/very/long/path/to/other.git", Prompt: "three"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.out = buffer{}
	if got := s.run("list"); got != 0 || !regexp.MustCompile(`(?m)^SESSION .* REPOSITORY +BRANCH`).MatchString(s.out.String()) || !strings.Contains(s.out.String(), "path/to/other.git ") {
		t.Errorf("of two: %d %s", got, s.out.String())
	}
	s.out, s.err = buffer{}, buffer{}
	if got := s.run("list", "--limit", "1"); got != 0 || strings.Count(s.out.String(), "ses_") != 1 || !strings.Contains(s.err.String(), "There are more") {
		t.Errorf("one: %d %s%s", got, s.out.String(), s.err.String())
	}
	s.err = buffer{}
	if got := s.run("list", "--limit", "3"); got != 0 || strings.Contains(s.err.String(), "more") {
		t.Errorf("all: %d %s", got, s.err.String())
	}
	s.err = buffer{}
	if got := s.run("list", "--repo", "foo"); got != 0 || !strings.Contains(s.err.String(), "No session matches") {
		t.Errorf("none: %d %s", got, s.err.String())
	}
}

// TestEndOfAnID: what tells sessions apart is at the end of their ids.
func TestEndOfAnID(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	one := s.done("one")
	s.before(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/agent-sessions" {
			return false
		}
		if r.URL.Query().Get("below") == "" {
			_, _ = w.Write([]byte(`{"items":[{"id":"ses_01kaaaaaaaaaaaaaaaaa777777"},{"id":"ses_01kbbbbbbbbbbbbbbbbb777777"}],"next":"x"}`))
		} else {
			_ = json.NewEncoder(w).Encode(map[string]any{"items": []map[string]string{{"id": string(one)}}})
		}
		return true
	})
	end := string(one)[len(one)-6:]
	for _, args := range [][]string{{"diff", end}, {"diff", "ses_" + end}, {"diff", string(one)}, {"prompt", "-d", "ses_" + end, "more"}, {"prompt", "-d", end, "more"}} {
		s.out, s.err = buffer{}, buffer{}
		if got := s.run(args...); got != 0 {
			t.Errorf("%v: %d %s", args, got, s.err.String())
		}
	}
	if a := s.w.Get(one); a.Open == nil || a.Open.Prompt != "more" || len(a.Queue) != 1 || a.Queue[0].Prompt != "more" {
		t.Errorf("the end of the id is taken for text: %+v", a)
	}
	for _, c := range []struct {
		arg    string
		status int
		has    string
	}{
		{"777777", 2, "2 sessions have an id that ends with"}, {"a777777", 5, "SESSION_NOT_FOUND"}, {end[1:], 5, "SESSION_NOT_FOUND"}, {"999999", 5, "SESSION_NOT_FOUND"},
	} {
		s.err = buffer{}
		if got := s.run("diff", c.arg); got != c.status || !strings.Contains(s.err.String(), c.has) {
			t.Errorf("%s: %d %s", c.arg, got, s.err.String())
		}
	}
}

func TestTranscript(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("Fix the\nlogin test")
	s.w.Begin(id)
	s.w.Say(id, conversation()...)
	s.w.Prompt(id, "And then?")
	s.w.EndWith(id, "failed", fault.AgentExited, session.Delivery{State: session.DeliveryHeld})
	s.w.Prompt(id, "Go on")
	s.w.Begin(id)
	s.w.Say(id, resttest.Text("x", "at work")...)
	if got := s.run("transcript", string(id)); got != 0 || s.err.String() != "" {
		t.Fatalf("status %d: %s", got, s.err.String())
	}
	golden(t, "transcript", regexp.MustCompile(`hearth/task-\S+?([ :]|$)`).ReplaceAllString(s.out.String(), "hearth/task$1"))

	s.out = buffer{}
	if got := s.run("transcript", "--json", string(id)); got != 0 {
		t.Fatalf("status %d: %s", got, s.err.String())
	}
	lines := strings.Split(strings.TrimSpace(s.out.String()), "\n")
	stored := s.w.Transcript(id)
	if len(lines) != len(stored) {
		t.Fatalf("%d lines of %d parts", len(lines), len(stored))
	}
	for i, l := range lines {
		var p struct {
			Cursor string
			Part   struct{ Type string }
		}
		if err := json.Unmarshal([]byte(l), &p); err != nil || p.Cursor != stored[i].Cursor.String() || p.Part.Type == "" {
			t.Errorf("line %d: %s, %v", i, l, err)
		}
	}
}

func TestDeleteGoesOn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	one, three := s.done("one"), s.done("three")
	got := s.run("delete", string(one), "ses_none", string(three))
	if got != 5 || !strings.Contains(s.err.String(), "ses_none is not deleted:") || !strings.Contains(s.err.String(), "1 of 3 sessions") {
		t.Errorf("status %d: %s", got, s.err.String())
	}
	for _, id := range []session.ID{one, three} {
		if !strings.Contains(s.out.String(), string(id)+" is being deleted.") {
			t.Errorf("%s: %s", id, s.out.String())
		}
	}
}

func TestAttachAfter(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.done("one")
	for _, c := range []struct {
		args []string
		has  string
	}{{[]string{"--after", "foo"}, "TURN.PART"}, {[]string{"--after", "1"}, "TURN.PART"}, {[]string{"--after", "1.-2"}, "TURN.PART"}, {[]string{"--after", "1.1", "--now"}, "do not go together"}} {
		s.err = buffer{}
		if got := s.run(append([]string{"attach"}, c.args...)...); got != 2 || !strings.Contains(s.err.String(), c.has) {
			t.Errorf("%v: %d %s", c.args, got, s.err.String())
		}
	}
	if got := s.run("attach", "--json", "--after", "1.1"); got != 0 || strings.Contains(s.out.String(), `"cursor":"1.1"`) {
		t.Errorf("after a part: %d %s", got, s.out.String())
	}
}

func TestStopOnInterrupt(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.terminal = true // nothing is asked there either
	id, status := s.start("run", "--stop-on-interrupt", "--no-next", "x")
	s.w.Begin(id)
	s.signals <- syscall.SIGTERM
	s.until("the stop", func() bool { return s.w.Get(id).Open.State == session.TurnStopping })
	s.w.EndWith(id, "cancelled", "", session.Delivery{})
	if got := <-status; got != 130 {
		t.Errorf("status %d", got)
	}
	if text := s.out.String() + s.err.String(); strings.Contains(text, "goes on") || strings.Contains(text, "Detach") || strings.Contains(text, "Next") || !strings.Contains(text, "Stopping") {
		t.Errorf("told: %s", text)
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	if got := s.run("--version"); got != 0 || s.out.String() != "hearth 1.2.3\n" {
		t.Errorf("%d %q", got, s.out.String())
	}
}

// TestRemediesOfTheServerHere: what to do about a setting of a server is told by whose it is.
func TestRemediesOfTheServerHere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		here       bool
		background bool
		has, not   string
	}{
		{name: "elsewhere", has: "Start the server with the provider's key", not: "hearth stop"},
		{name: "by hand", here: true, has: "end the server with `hearth stop` (or restart its service)"},
		{name: "in the background", here: true, background: true, has: "give the command again: the server in the background is started anew"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			s.before(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPost {
					return false
				}
				i := fault.Lookup(fault.ModelKeyMissing)
				w.WriteHeader(i.Kind.HTTPStatus())
				_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": i.Code, "kind": i.Kind, "message": i.Sentence, "remedy": i.Remedy}})
				return true
			})
			if c.here {
				dir := s.env["HEARTH_STATE_DIR"]
				if err := config.WriteServerFile(dir, config.ServerFile{Address: s.env["HEARTH_SERVER"], PID: os.Getpid()}); err != nil {
					t.Fatal(err)
				}
				s.env["HEARTH_SERVER"] = ""
				s.pid.Store(int64(os.Getpid()))
				if c.background {
					if err := os.WriteFile(dir+"/background.json", []byte(`{"pid":`+strconv.Itoa(os.Getpid())+`,"salt":"x","hash":{}}`), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := s.run("run", "x"); got != 2 || !strings.Contains(s.err.String(), c.has) || c.not != "" && strings.Contains(s.err.String(), c.not) {
				t.Errorf("status %d: %s", got, s.err.String())
			}
		})
	}
}

// TestRefusedValues: what a flag or a topic cannot be is refused in words.
func TestRefusedValues(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.done("one")
	for _, c := range []struct {
		args []string
		has  string
	}{
		{[]string{"list", "--limit", "0"}, "--limit must be between 1 and 200"},
		{[]string{"list", "--limit", "-1"}, "--limit must be between 1 and 200"},
		{[]string{"list", "--limit", "201"}, "--limit must be between 1 and 200"},
		{[]string{"list", "--limit", "ten"}, "--limit is a whole number; \"ten\" is not."},
		{[]string{"run", "--limit", "0s", "x"}, "--limit must be between 1s and 24h"},
		{[]string{"run", "--limit", "soon", "x"}, "--limit is a time such as 90s, 30m or 2h; \"soon\" is not."},
		{[]string{"run", "-d=maybe", "x"}, "--detach is true or false; \"maybe\" is not."},
		{[]string{"queue", "edit", "trn_x", "--position", "abc"}, "--position is a whole number; \"abc\" is not."},
		{[]string{"help", "nope"}, "There is no help about \"nope\"."},
		{[]string{"help", "queue", "nope"}, "There is no help about \"queue nope\"."},
	} {
		s.out, s.err = buffer{}, buffer{}
		if got := s.run(c.args...); got != 2 || s.out.String() != "" || !strings.Contains(s.err.String(), c.has) || strings.Contains(s.err.String(), "strconv") {
			t.Errorf("%q: %d %s %s", c.args, got, s.out.String(), s.err.String())
		}
	}
	for _, args := range [][]string{{"help"}, {"help", "queue", "edit"}, {"help", "exit-status"}} {
		if got := s.run(args...); got != 0 {
			t.Errorf("%q: %d %s", args, got, s.err.String())
		}
	}
}

// TestAddressBeforeToken: no token helps with an address that is none.
func TestAddressBeforeToken(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["HEARTH_TOKEN"] = ""
	for _, address := range []string{"nope", "ftp://example.org"} {
		s.err = buffer{}
		if got := s.run("list", "--server", address); got != 2 || !strings.Contains(s.err.String(), "is not the address of a server") || strings.Contains(s.err.String(), "token") {
			t.Errorf("%s: %d %s", address, got, s.err.String())
		}
	}
	s.err = buffer{}
	if got := s.run("list", "--server", "https://example.org"); got != 3 || !strings.Contains(s.err.String(), "needs a token") {
		t.Errorf("%d %s", got, s.err.String())
	}
}

// TestNoStateFolder: what only reads makes no state folder and starts no server in it.
func TestNoStateFolder(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["HEARTH_SERVER"] = ""
	s.startServer = func(context.Context, config.Config) (bool, error) {
		t.Error("a server is started")
		return false, errors.New("not here")
	}
	dir := filepath.Join(t.TempDir(), "not", "there")
	for _, c := range []struct {
		args   []string
		status int
		has    string
	}{
		{[]string{"list"}, 0, "There are no sessions."}, {[]string{"list", "--json"}, 0, "[]"},
		{[]string{"transcript"}, 5, "There is no session yet"}, {[]string{"questions"}, 5, "SESSION_NOT_FOUND"},
		{[]string{"queue"}, 5, dir + " is not there"}, {[]string{"diff", "ses_x"}, 5, "There is no session yet"},
	} {
		s.out, s.err = buffer{}, buffer{}
		if got := s.run(append(c.args, "--state-dir", dir)...); got != c.status || !strings.Contains(s.out.String()+s.err.String(), c.has) {
			t.Errorf("%q: %d %s %s", c.args, got, s.out.String(), s.err.String())
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made")
	}
}

// TestNewestWithoutTitle: a session without a title is told without a colon.
func TestNewestWithoutTitle(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.done("one")
	s.before(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/agent-sessions" {
			return false
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": []map[string]string{{"id": string(id), "title": ""}}})
		return true
	})
	if got := s.run("diff"); got != 0 || !strings.HasPrefix(s.err.String(), "The newest session is "+string(id)+".\n") {
		t.Errorf("%d %q", got, s.err.String())
	}
}
