package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

// refusal is a create that is refused before anything is stored.
type refusal struct {
	name string
	in   client.CreateInput
	code string
}

// refused sends creates and fails unless each is refused soon with its code, in words
// that hold no password, and nothing is stored.
func (w *world) refused(list []refusal) {
	w.t.Helper()
	for _, c := range list {
		began := time.Now()
		_, err := w.c.Create(w.t.Context(), c.in)
		var e *client.Error
		if !errors.As(err, &e) || e.Code != c.code {
			w.t.Errorf("%s: got %v, want %s", c.name, err, c.code)
			continue
		}
		if took := time.Since(began); took > 5*time.Second {
			w.t.Errorf("%s: refused after %s", c.name, took)
		}
		if e.Message == "" || e.Remedy == "" || e.RequestID == "" {
			w.t.Errorf("%s: a person is told too little: %+v", c.name, e)
		}
		for _, secret := range []string{w.key, w.password, "hunter2"} {
			if strings.Contains(fmt.Sprint(e.Message, e.Remedy, e.Details), secret) {
				w.t.Errorf("%s: the refusal holds a secret: %v", c.name, e)
			}
		}
	}
	all, err := w.c.List(w.t.Context(), client.ListInput{})
	if err != nil || len(all.Items) != 0 {
		w.t.Errorf("%d sessions are stored (%v), want none", len(all.Items), err)
	}
}

func TestCreateRefusals(t *testing.T) {
	t.Parallel()
	t.Run("input", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, options{})
		_, url := w.repo("acme/calc")
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		closed := "http://" + l.Addr().String() + "/acme/calc.git"
		_ = l.Close()
		in := func(f func(*client.CreateInput)) client.CreateInput {
			c := client.CreateInput{Repo: url, Agent: "scripted", Prompt: "Go."}
			f(&c)
			return c
		}
		w.refused([]refusal{
			{"unknown agent", in(func(c *client.CreateInput) { c.Agent = "nobody" }), "AGENT_UNKNOWN"},
			{"agent not installed", in(func(c *client.CreateInput) { c.Agent = "claude" }), "AGENT_NOT_INSTALLED"},
			{"nobody listens", in(func(c *client.CreateInput) { c.Repo = closed }), "REPOSITORY_UNREACHABLE"},
			{"no such repository", in(func(c *client.CreateInput) { c.Repo = w.gitURL + "/acme/none.git" }), "REPOSITORY_UNREACHABLE"},
			{"login in the URL", in(func(c *client.CreateInput) { c.Repo = strings.Replace(url, "://", "://me:hunter2@", 1) }), "INVALID_INPUT"},
			{"ssh", in(func(c *client.CreateInput) { c.Repo = "git@example.org:acme/calc.git" }), "UNSUPPORTED"},
			{"folder", in(func(c *client.CreateInput) { c.Repo = "file:///etc" }), "UNSUPPORTED"},
			{"helper", in(func(c *client.CreateInput) { c.Repo = "ext::true" }), "UNSUPPORTED"},
			{"option", in(func(c *client.CreateInput) { c.Repo = "--upload-pack=x" }), "INVALID_INPUT"},
			{"branch with dots", in(func(c *client.CreateInput) { c.Branch = "a..b" }), "BRANCH_INVALID"},
			{"branch as option", in(func(c *client.CreateInput) { c.Branch = "-f" }), "BRANCH_INVALID"},
			{"no such base", in(func(c *client.CreateInput) { c.Base = "none" }), "BRANCH_INVALID"},
			{"branch without repository", in(func(c *client.CreateInput) { c.Repo, c.Branch = "", "x" }), "INVALID_INPUT"},
			{"blank prompt", in(func(c *client.CreateInput) { c.Prompt = " \n" }), "INVALID_INPUT"},
			{"large prompt", in(func(c *client.CreateInput) { c.Prompt = strings.Repeat("x", 100<<10+1) }), "PROMPT_TOO_LARGE"},
			{"limit", in(func(c *client.CreateInput) { c.TotalLimitSeconds = 86401 }), "INVALID_INPUT"},
		})
		for _, body := range []string{`{`, `[]`, `"x"`, `{"prompt":1}`, `{"prompt":"x","surprise":true}`, `{"prompt":"a","prompt":"b"} x`} {
			if status, answer := w.raw(http.MethodPost, "/v1/agent-sessions", body); status != http.StatusUnprocessableEntity || !strings.Contains(answer, `"INVALID_INPUT"`) {
				t.Errorf("body %q: %d %s", body, status, answer)
			}
		}
		if status, answer := w.raw(http.MethodGet, "/v1/agent-sessions", "", "Authorization", "Bearer hearth_wrong"); status != http.StatusUnauthorized || !strings.Contains(answer, `"UNAUTHENTICATED"`) {
			t.Errorf("wrong token: %d %s", status, answer)
		}
		w.refused(nil)
	})
	t.Run("read only", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, options{readOnly: true})
		_, url := w.repo("acme/calc")
		w.refused([]refusal{{"not writable", client.CreateInput{Repo: url, Agent: "scripted", Prompt: "Go."}, "REPOSITORY_NOT_WRITABLE"}})
		w.git.SetUsers(gitserver.User{Name: "somebody", Password: "else", Write: true})
		w.refused([]refusal{{"login refused", client.CreateInput{Repo: url, Agent: "scripted", Prompt: "Go."}, "REPOSITORY_UNREACHABLE"}})
	})
	t.Run("no key", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, options{noKey: true})
		_, url := w.repo("acme/calc")
		w.refused([]refusal{{"no key", client.CreateInput{Repo: url, Agent: "scripted", Prompt: "Go."}, "MODEL_KEY_MISSING"}})
	})
}

// The same key gives the same answer, also to twins at the same time; another body is refused.
func TestIdempotency(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	_, url := w.repo("acme/calc")
	in := client.CreateInput{Repo: url, Agent: "scripted", Prompt: "@@write a.txt one@@", Key: "create-1"}
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			a, err := w.c.Create(t.Context(), in)
			if err != nil {
				t.Errorf("twin %d: %v", i, err)
				return
			}
			ids[i] = a.Session.ID + " " + a.Turn.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("twins made %q", ids)
		}
	}
	other := in
	other.Prompt = "another"
	if _, err := w.c.Create(t.Context(), other); client.CodeOf(err) != "IDEMPOTENCY_CONFLICT" {
		t.Errorf("other body: %v", err)
	}
	id, turn, _ := strings.Cut(ids[0], " ")
	w.wantTurn(w.ended(id, turn, deadline), "completed", "")
	again, err := w.c.Create(t.Context(), in)
	if err != nil || again.Session.ID != id || again.Turn.ID != turn {
		t.Errorf("after the end: %v", err)
	}
	p := client.PromptInput{Prompt: "@@write b.txt two@@", Key: "prompt-1"}
	one, err := w.c.Prompt(t.Context(), id, p)
	if err != nil {
		t.Fatal(err)
	}
	w.kill() // a replay is answered by another server too
	w.start()
	two, err := w.c.Prompt(t.Context(), id, p)
	if err != nil || two.Turn.ID != one.Turn.ID {
		t.Errorf("replayed prompt: %v, %v and %v", err, one.Turn, two.Turn)
	}
	w.wantTurn(w.ended(id, one.Turn.ID, deadline), "completed", "")
	if s := w.get(id); s.Turns != 2 || len(s.Queue) != 0 {
		t.Errorf("%d turns, %d in the queue, want 2 and none", s.Turns, len(s.Queue))
	}
	all, err := w.c.List(t.Context(), client.ListInput{})
	if err != nil || len(all.Items) != 1 {
		t.Errorf("%d sessions, %v", len(all.Items), err)
	}
}

// A machine that cannot run the sandbox says so before and after a prompt.
func TestNoSandboxPossible(t *testing.T) {
	t.Parallel()
	wrap := []string{"unshare", "--user", "--map-root-user", "sh", "-c", `echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"`, "sh"}
	if out, err := exec.Command(wrap[0], append(wrap[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("user namespaces cannot be forbidden here: %v: %s", err, out)
	}
	w := newWorld(t, options{wrap: wrap})
	w.until(deadline, "the self-test to fail", func() (bool, string) {
		c, err := w.c.Capabilities(t.Context())
		return err == nil && len(c.Missing) == 1 && c.Missing[0].Code == "SANDBOX_UNSUPPORTED", fmt.Sprintf("%+v, %v", c.Missing, err)
	})
	if err := w.c.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "user namespaces") {
		t.Errorf("ready: %v", err)
	}
	s := w.create(client.CreateInput{Prompt: "Go."})
	began := time.Now()
	one := w.ended(s.Session.ID, s.Turn.ID, deadline)
	w.wantTurn(one, "failed", "SANDBOX_UNSUPPORTED")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	w.transcript(s.Session.ID)
	w.delete(s.Session.ID, false)
}
