package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/hop"
	"github.com/hearthd/hearth/internal/uistream/npmtest"
)

// chats is a page of one release of @ai-sdk/react that shows a session of a world.
type chats struct {
	*world
	page *npmtest.Page
	id   string
}

// eachChat runs a test for each release of the SDK, on one server.
func eachChat(t *testing.T, o options, f func(c *chats)) {
	t.Helper()
	o.agents = needed(t, "HEARTH_TEST_AGENTS")
	shared := newWorld(t, o)
	for line := range npmtest.ChatLines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			w := shared.in(t)
			f(&chats{world: w, page: npmtest.Open(t, line)})
		})
	}
}

// hop opens a hop to the world's server, which ends with the test.
func (w *world) hop() *hop.Hop {
	w.t.Helper()
	h, err := hop.New(w.t.Context(), strings.TrimPrefix(w.address, "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(h.Close)
	return h
}

// open makes a chat; the step says what is special about it. Session is a base address there.
func (c *chats) open(name string, s npmtest.Step) {
	c.t.Helper()
	if s.Session == "" {
		s.Session = c.address
	}
	s.Do, s.Chat, s.ID, s.Token = "open", name, c.id, c.token
	s.Session += "/v1/agent-sessions/" + c.id
	c.page.Do(s)
}

func (c *chats) do(what, name string) { c.t.Helper(); c.page.Do(npmtest.Step{Do: what, Chat: name}) }

func (c *chats) send(name, text string) {
	c.t.Helper()
	c.page.Do(npmtest.Step{Do: "send", Chat: name, Text: text})
}

// sees waits until a chat shows something.
func (c *chats) sees(name, what string, ok func(v npmtest.View) bool) npmtest.View {
	c.t.Helper()
	var v npmtest.View
	c.until(deadline, name+" to show "+what, func() (bool, string) {
		v = c.page.View(name)
		return ok(v), fmt.Sprintf("%s %q, %d pending: %s", v.Status, v.Error, v.Pending, clipEnd(string(v.Raw)))
	})
	return v
}

func clipEnd(s string) string { return s[max(0, len(s)-600):] }

// says waits until the newest message of a chat has a text in it.
func (c *chats) says(name, words string) npmtest.View {
	c.t.Helper()
	return c.sees(name, fmt.Sprintf("%q", words), func(v npmtest.View) bool { return strings.Contains(saidIn(v.Last()), words) })
}

// rests waits until a chat has nothing to do, and fails when its status is another.
func (c *chats) rests(name, status string) npmtest.View {
	c.t.Helper()
	v := c.sees(name, "a rest", func(v npmtest.View) bool { return v.Pending == 0 && (v.Status == "ready" || v.Status == "error") })
	if v.Status != status || (v.Error != "") != (status == "error") {
		c.t.Fatalf("%s is %s %q, want %s", name, v.Status, v.Error, status)
	}
	return v
}

// saidIn is the text of a message, with a line's end behind each of its text parts, as in [text].
func saidIn(m npmtest.Message) string {
	var b strings.Builder
	for _, p := range m.Parts {
		if p.Type == "text" {
			b.WriteString(p.Text + "\n")
		}
	}
	return b.String()
}

// end is what the message's data-turn-end says.
func end(m npmtest.Message) (state, code string) {
	for _, p := range m.Parts {
		if p.Type == "data-turn-end" {
			var d struct{ State, Code string }
			_ = json.Unmarshal(p.Data, &d) // judged with the transcript
			return d.State, d.Code
		}
	}
	return "", ""
}

func turnEnded(v npmtest.View) bool {
	state, _ := end(v.Last())
	return state != "" && v.Status == "ready" && v.Pending == 0
}

// same fails unless the newest message of a chat is that of the turn: its id, its text,
// its end, nothing left open, and no message twice.
func (c *chats) same(v npmtest.View, turn client.Turn) {
	c.t.Helper()
	m := v.Last()
	state, code := end(m)
	if m.ID != turn.ID || m.Role != "assistant" || state != turn.State || code != turn.Code {
		c.t.Errorf("the message %s of %s is %s %q; the turn %s is %s %q", m.ID, m.Role, state, code, turn.ID, turn.State, turn.Code)
	}
	if d := cmp.Diff(text(c.transcript(c.id), turn.Number), saidIn(m)); d != "" {
		c.t.Errorf("the text of turn %d (-stored +shown): %s", turn.Number, d)
	}
	for _, p := range m.Parts {
		if p.Type == "dynamic-tool" && !strings.HasPrefix(p.State, "output-") || p.State == "streaming" || p.Preliminary {
			c.t.Errorf("%s %s is left %s", p.Type, p.ToolCallID, p.State)
		}
	}
	var ids []string
	for _, m := range v.List {
		if slices.Contains(ids, m.ID) {
			c.t.Errorf("the message %s is there twice", m.ID)
		}
		ids = append(ids, m.ID)
	}
}

// turns are the session's turns, and as many as are wanted.
func (c *chats) turns(n int) []client.Turn {
	c.t.Helper()
	list, err := c.c.Turns(c.t.Context(), c.id, 0)
	if err != nil || len(list.Items) != n {
		c.t.Fatalf("%d turns, %v; want %d", len(list.Items), err, n)
	}
	return list.Items
}

// The newest message of a chat as any value, for comparing two chats.
func newest(t *testing.T, v npmtest.View) any {
	t.Helper()
	var list []any
	if err := json.Unmarshal(v.Raw, &list); err != nil || len(list) == 0 {
		t.Fatalf("%d messages, %v", len(list), err)
	}
	return list[len(list)-1]
}

// A conversation with pi: sent, watched by a second viewer, cut off and resumed, loaded
// anew in mid-turn, stopped, failed, and sent by two chats at once.
func TestChatOfTheSDK(t *testing.T) {
	t.Parallel()
	eachChat(t, options{}, func(c *chats) {
		t := c.t
		c.id = c.create(client.CreateInput{Agent: "pi"}).Session.ID
		broken := c.hop()
		c.open("a", npmtest.Step{})

		// Nothing at work: a chat that resumes is ready at once, and has no message.
		c.do("resume", "a")
		if v := c.rests("a", "ready"); len(v.List) != 0 {
			t.Errorf("an idle session gave %s", v.Raw)
		}
		c.send("a", "@@say One is done.@@")
		v := c.rests("a", "ready")
		c.same(v, c.turns(1)[0])
		if len(v.List) != 2 || !strings.Contains(saidIn(v.Last()), "One is done.") {
			t.Errorf("%d messages: %s", len(v.List), v.Raw)
		}

		// A second viewer in mid-turn, one that has half of the message already, and one whose
		// line is cut twice.
		c.send("a", "@@slow 50 40@@")
		half := c.says("a", "Step 8 of")
		c.open("viewer", npmtest.Step{Stock: true})
		c.do("resume", "viewer")
		c.open("reloaded", npmtest.Step{Messages: half.Raw})
		c.do("resume", "reloaded")
		// What the server has of the running turn comes with the messages, and again with the stream.
		seed, err := c.c.Messages(t.Context(), c.id, 0)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(seed.Items)
		if err != nil {
			t.Fatal(err)
		}
		c.open("seeded", npmtest.Step{Messages: raw})
		c.do("resume", "seeded")
		c.open("cut", npmtest.Step{Session: broken.URL()})
		c.do("resume", "cut")
		c.says("cut", "Step 12 of")
		broken.Reset()
		c.rests("cut", "error")
		c.do("resume", "cut")
		c.says("cut", "Step 25 of")
		broken.Reset()
		c.rests("cut", "error")
		c.do("resume", "cut")
		whole := c.rests("a", "ready")
		two := c.turns(2)[1]
		c.same(whole, two)
		for _, name := range []string{"viewer", "reloaded", "seeded", "cut"} {
			v := c.rests(name, "ready")
			c.same(v, two)
			if d := cmp.Diff(newest(t, whole), newest(t, v)); d != "" {
				t.Errorf("%s (-a +it): %s", name, clip(d))
			}
		}
		if v := c.page.View("viewer"); len(v.List) != 1 {
			t.Errorf("the viewer has %d messages", len(v.List))
		}
		if v := c.page.View("reloaded"); len(v.List) != 4 {
			t.Errorf("the reloaded page has %d messages", len(v.List))
		}
		if v := c.page.View("seeded"); len(v.List) != 4 {
			t.Errorf("the seeded page has %d messages", len(v.List))
		}

		// The line of the chat that sent is cut in mid-turn; and a request whose answer is lost is sent again.
		c.open("b", npmtest.Step{Session: broken.URL(), Stock: true, Retry: true, Messages: whole.Raw})
		broken.CutNext()
		c.send("b", "@@slow 30 40@@")
		c.says("b", "Step 8 of")
		broken.Reset()
		if v := c.rests("b", "error"); v.Retries != 1 {
			t.Errorf("%d retries", v.Retries)
		}
		c.do("resume", "b")
		v = c.rests("b", "ready")
		c.same(v, c.turns(3)[2])
		if len(v.List) != 6 {
			t.Errorf("%d messages", len(v.List))
		}

		// stop leaves, and the turn goes on; a cancel ends it, and the message says so.
		c.send("b", "@@slow 1000 50@@")
		c.says("b", "Step 3 of")
		c.do("stop", "b")
		c.rests("b", "ready")
		if s := c.get(c.id); s.OpenTurn == nil {
			t.Error("leaving ended the turn")
		}
		c.do("resume", "b")
		c.says("b", "Step 20 of")
		if _, err := c.c.Cancel(t.Context(), c.id, ""); err != nil {
			t.Fatal(err)
		}
		v = c.rests("b", "ready")
		c.same(v, c.turns(4)[3])
		if state, _ := end(v.Last()); state != "canceled" {
			t.Errorf("the message says %s", state)
		}

		// What is done cannot be done anew; the chat goes on afterwards.
		before := c.turns(4)
		c.open("past", npmtest.Step{Stock: true, Messages: v.Raw})
		c.do("regenerate", "past")
		if v := c.rests("past", "error"); !strings.Contains(v.Error, "Send a message that says what should be different.") {
			t.Errorf("regenerate: %q", v.Error)
		}
		c.open("past", npmtest.Step{Messages: v.Raw})
		c.page.Do(npmtest.Step{Do: "send", Chat: "past", Text: "@@say changed@@", MessageID: v.List[len(v.List)-2].ID})
		if v := c.rests("past", "error"); !strings.Contains(v.Error, "A message that was sent cannot be changed.") {
			t.Errorf("edit: %q", v.Error)
		}
		if d := cmp.Diff(before, c.turns(4)); d != "" {
			t.Errorf("the refusals changed the turns: %s", d)
		}

		// A turn that fails: the sentence is the chat's error, and the message keeps what it had.
		c.send("b", "@@say Before.@@ @@run echo ran@@ @@status 401@@")
		v = c.rests("b", "error")
		five := c.turns(5)[4]
		c.same(v, five)
		if five.State != "failed" || v.Error != five.Message {
			t.Errorf("the turn is %s %q; the chat's error is %q", five.State, five.Message, v.Error)
		}
		// The key's refusal stops the agent at once, at times before it has told that its command is done.
		if !slices.ContainsFunc(v.Last().Parts, func(p npmtest.MessagePart) bool {
			return p.Type == "dynamic-tool" && (p.State == "output-available" || p.State == "output-error")
		}) {
			t.Errorf("the message lost its tool call: %s", clipEnd(string(v.Raw)))
		}

		// Two chats at once: both are delivered, each reply to who sent it.
		c.open("c", npmtest.Step{Messages: v.Raw})
		c.send("b", "@@say From b.@@")
		c.send("c", "@@say From c.@@")
		for _, name := range []string{"b", "c"} {
			v := c.rests(name, "ready")
			list := c.turns(7)
			i := slices.IndexFunc(list, func(x client.Turn) bool { return x.ID == v.Last().ID })
			if i < 5 || !strings.Contains(list[i].Prompt, "From "+name) || !strings.Contains(saidIn(v.Last()), "From "+name) {
				t.Fatalf("%s shows turn %d: %s", name, i, saidIn(v.Last()))
			}
			c.same(v, list[i])
		}

		// The whole once more: what comes behind a turn that failed is shown, too.
		all := c.page.Read(c.address+"/v1/agent-sessions/"+c.id+"/stream?from=beginning", c.token)
		if all.Error != "" || len(all.List) != 7 {
			t.Fatalf("%d messages, %q", len(all.List), all.Error)
		}
		for i, turn := range c.turns(7) {
			v := all
			v.List = all.List[:i+1]
			if c.same(v, turn); v.Last().Parts[0].Type != "data-user-prompt" {
				t.Errorf("turn %d begins with %s", turn.Number, v.Last().Parts[0].Type)
			}
		}
	})
}

// approval waits until a chat shows a question that waits, and returns its id.
func (c *chats) approval(name string, other ...string) string {
	c.t.Helper()
	var id string
	c.sees(name, "a question", func(v npmtest.View) bool {
		for _, p := range v.Last().Parts {
			if p.State == "approval-requested" && p.Approval != nil && !slices.Contains(other, p.Approval.ID) {
				id = p.Approval.ID
				return true
			}
		}
		return false
	})
	return id
}

// states are those of the message's tool calls whose title or input has the words.
func states(m npmtest.Message, words string) (out []string) {
	for _, p := range m.Parts {
		if p.Type == "dynamic-tool" && (strings.Contains(p.Title, words) || strings.Contains(string(p.Input), words)) {
			out = append(out, p.State)
		}
	}
	return out
}

// Questions of Claude in both styles: the stream stays open, or ends at each question and
// the chat sends the answers.
func TestChatOfTheSDKAnswers(t *testing.T) {
	t.Parallel()
	eachChat(t, options{}, func(c *chats) {
		t := c.t
		c.id = c.create(client.CreateInput{Agent: "claude", Approvals: json.RawMessage(`"ask"`)}).Session.ID
		c.open("open", npmtest.Step{})
		c.send("open", "@@write a.txt one@@ @@write b.txt two@@ @@say Done.@@")
		first := c.approval("open")
		if v := c.page.View("open"); v.Status != "streaming" {
			t.Errorf("at the question the chat is %s", v.Status)
		}
		if _, err := c.c.Answer(t.Context(), c.id, first, client.Answer{Verdict: "allow"}); err != nil {
			t.Fatal(err)
		}
		second := c.approval("open", first)
		if _, err := c.c.Answer(t.Context(), c.id, second, client.Answer{Verdict: "deny"}); err != nil {
			t.Fatal(err)
		}
		v := c.rests("open", "ready")
		c.same(v, c.turns(1)[0])
		if d := cmp.Diff([][]string{{"output-available"}, {"output-denied"}}, [][]string{states(v.Last(), "a.txt"), states(v.Last(), "b.txt")}); d != "" {
			t.Errorf("held open: %s", d)
		}

		// The other style, said once in the address and once in the body.
		for i, s := range []npmtest.Step{{Query: "?approvals=close"}, {Body: map[string]any{"approvals": "close"}, Stock: true}} {
			name := fmt.Sprint("closed", i)
			s.Automatic, s.Messages = true, v.Raw
			c.open(name, s)
			file := func(n string) string { return fmt.Sprintf("%s%d.txt", n, i) }
			c.send(name, fmt.Sprintf("@@write %s one@@ @@write %s two@@ @@say Done.@@", file("c"), file("d")))
			first := c.approval(name)
			c.rests(name, "ready")
			c.page.Do(npmtest.Step{Do: "approve", Chat: name, Approval: first, Approved: true})
			second := c.approval(name, first)
			c.rests(name, "ready")
			c.page.Do(npmtest.Step{Do: "approve", Chat: name, Approval: second, Approved: false, Text: "Not that one."})
			v = c.sees(name, "the end of the turn", turnEnded)
			c.same(v, c.turns(2 + i)[1+i])
			if d := cmp.Diff([][]string{{"output-available"}, {"output-denied"}}, [][]string{states(v.Last(), file("c")), states(v.Last(), file("d"))}); d != "" {
				t.Errorf("%s: %s", name, d)
			}
			if len(v.List) != 4+2*i {
				t.Errorf("%s: %d messages", name, len(v.List))
			}
			var q client.Question
			if _, raw := c.raw("GET", "/v1/agent-sessions/"+c.id+"/questions/"+second, ""); json.Unmarshal([]byte(raw), &q) != nil || q.Verdict != "deny" || q.Message != "Not that one." {
				t.Errorf("the second question: %s", raw)
			}
		}

		// A page loaded at a question, which resumes: the question is there, and can be answered.
		c.send("closed0", "@@write e.txt one@@ @@say Done.@@")
		c.approval("closed0")
		c.open("reloaded", npmtest.Step{Query: "?approvals=close", Automatic: true, Messages: c.rests("closed0", "ready").Raw})
		c.do("resume", "reloaded")
		third := c.approval("reloaded")
		c.rests("reloaded", "ready")
		c.page.Do(npmtest.Step{Do: "approve", Chat: "reloaded", Approval: third, Approved: true})
		v = c.sees("reloaded", "the end of the turn", turnEnded)
		c.same(v, c.turns(4)[3])
	})
}

// A real EventSource over a line that is reset again and again: it comes again by itself, sees
// what is stored, part for part, and stops at the end.
func TestEventSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	line := w.hop()
	page := npmtest.Open(t, "react4")
	s := w.create(client.CreateInput{Prompt: "@@slow 150 60@@ @@say Done.@@"})
	id := s.Session.ID
	page.Do(npmtest.Step{Do: "follow", Chat: "e", Session: line.URL() + "/v1/agent-sessions/" + id + "/stream", Token: w.token})
	for _, n := range []int{10, 60} {
		w.until(deadline, "events", func() (bool, string) {
			f := page.Events("e")
			return len(f.Events) > n, fmt.Sprint(len(f.Events), f.Errors)
		})
		line.Reset()
	}
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	var f npmtest.Followed
	w.until(20*time.Second, "the EventSource to stop", func() (bool, string) {
		f = page.Events("e")
		return f.ReadyState == 2, fmt.Sprint(f.ReadyState, f.Opens, f.Errors, len(f.Events))
	})
	var got []string
	done := 0
	for _, e := range f.Events {
		switch {
		case e.Name != "message":
			t.Errorf("an event %s: %s", e.Name, e.Data)
		case e.Data == "[DONE]":
			done++
		default:
			got = append(got, e.ID+" "+e.Data)
		}
	}
	if d := cmp.Diff(lines(w.transcript(id)), got); d != "" {
		t.Errorf("it saw something else than is stored: %s", clip(d))
	}
	if f.Opens != 3 || done != 1 {
		t.Errorf("%d opens, %d times [DONE]", f.Opens, done)
	}
}
