package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/uistream"
)

// sink shows a conversation. It is called by one goroutine at a time.
type sink interface {
	session(s *client.Session)
	event(e client.Event) error
	starting(turn, step string, took time.Duration, fresh bool) // fresh: another step than before
	started(turn string, ok bool, took time.Duration)
	turn(s *client.Session, t *client.Turn) // a turn has ended; the session goes on
	end(s *client.Session, t *client.Turn, status int)
	detached(s *client.Session)
}

// jsonSink writes one JSON object a line.
type jsonSink struct{ w io.Writer }

func (j jsonSink) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	return escapeJSON(j.w, b)
}

func (j jsonSink) session(s *client.Session) {
	_ = j.line(map[string]any{"event": "session", "session": s}) // a closed stdout shows with the first part
}

func (j jsonSink) event(e client.Event) error {
	switch {
	case e.State != "":
		return j.line(map[string]any{"event": "connection", "state": e.State})
	case e.Reset:
		return j.line(map[string]any{"event": "reset", "after": e.ID()})
	}
	return j.line(map[string]any{"event": "part", "cursor": e.ID(), "part": e.Data})
}

func (j jsonSink) turn(_ *client.Session, t *client.Turn) {
	_ = j.line(map[string]any{"event": "turn", "turn": t})
}

func (j jsonSink) end(s *client.Session, t *client.Turn, status int) {
	_ = j.line(map[string]any{"event": "end", "session": s, "turn": t, "exitStatus": status})
}

func (j jsonSink) detached(s *client.Session) {
	_ = j.line(map[string]any{"event": "detached", "session": s.ID})
}

// textSink shows a conversation to a person: text as it comes, a line for each
// tool call, the plan, and a summary.
type textSink struct {
	w    io.Writer
	st   style
	live bool // w is a terminal: a line may be written over
	now  func() time.Time
	self string // how this program was called, for what to try next

	remedy func(code string, details map[string]any, own string) string // nil: the server's own
	brief  bool                                                         // nothing is said of what to try next
	broken bool                                                         // the connection broke, which was told
	asks   bool                                                         // what the agent asks is put to the person

	askedLast string // the question whose line is the last one

	questions func(id string) (client.Question, bool) // what is listed of a question; nil: nothing is known
	settled   map[string]bool                         // questions whose outcome was told

	column  bool   // the cursor is behind text
	pending string // the call whose line may still be written over
	tools   map[string]*toolLine
	plan    map[string]string // status by entry
	told    string            // the turn whose end was shown last
	id      string            // of the session
	err     error
}

type toolLine struct {
	title string
	at    time.Time
	done  bool
}

func newTextSink(w io.Writer, st style, live bool, now func() time.Time, self string) *textSink {
	return &textSink{w: w, st: st, live: live, now: now, self: self, tools: map[string]*toolLine{}, plan: map[string]string{}, settled: map[string]bool{}}
}

func (t *textSink) write(s string) {
	t.askedLast = ""
	if t.err == nil && s != "" {
		_, t.err = io.WriteString(t.w, s)
	}
}

// line begins a line of its own.
func (t *textSink) line(format string, args ...any) {
	t.fresh()
	t.write(fmt.Sprintf(format, args...) + "\n")
}

// fresh ends what is on the current line.
func (t *textSink) fresh() {
	if t.column || t.pending != "" {
		t.write("\n")
	}
	t.column, t.pending = false, ""
}

func (t *textSink) session(s *client.Session) {
	t.id = sanitizeLine(s.ID)
	t.line("%s %s", t.st.bold(sanitizeLine(s.ID)), sanitizeLine(s.Title))
	where := "a scratch folder"
	if s.Repo != "" {
		where = s.Repo + ", branch " + s.Branch
	}
	agent := s.Agent
	if s.Model != "" {
		agent += " with " + s.Model
	}
	t.line("%s", t.st.dim(sanitizeLine(fmt.Sprintf("%s on %s (sandbox: %s)", agent, where, s.Sandbox.Isolation))))
}

// partFields are the fields of all parts that are shown.
type partFields struct {
	ID             string          `json:"id"`
	Delta          string          `json:"delta"`
	ToolCallID     string          `json:"toolCallId"`
	ToolName       string          `json:"toolName"`
	Title          string          `json:"title"`
	ErrorText      string          `json:"errorText"`
	Preliminary    bool            `json:"preliminary"`
	At             uistream.Stamp  `json:"at"`
	EndAt          uistream.Stamp  `json:"endAt"`
	ApprovalReason string          `json:"approvalDescriptor"`
	Data           json.RawMessage `json:"data"`
}

func (t *textSink) event(e client.Event) error {
	switch {
	case e.State == client.StateBroken:
		if !t.broken {
			t.line("%s", t.st.dim("… the connection broke; trying again"))
		}
		t.broken = true
		return t.err
	case e.State != "":
		return t.err
	case e.Reset:
		t.line("%s", t.st.dim("… the server no longer has what was shown last; it is shown again"))
		return t.err
	}
	t.broken = false
	var p partFields
	if err := json.Unmarshal(e.Data, &p); err != nil {
		p = partFields{} // a part with a field of another shape: shown by its type alone
	}
	switch uistream.Type(e.Type) {
	case uistream.TypeStart:
		t.tools = map[string]*toolLine{}
	case uistream.TypeTextDelta:
		t.text(sanitize(p.Delta))
	case uistream.TypeTextEnd:
		t.fresh()
	case uistream.TypeReasoningDelta:
		if t.st.on {
			t.text(t.st.dim(sanitize(p.Delta)))
		}
	case uistream.TypeReasoningEnd:
		if t.st.on {
			t.fresh()
		}
	case uistream.TypeToolInputStart, uistream.TypeToolInputAvailable:
		t.toolBegins(p)
	case uistream.TypeToolOutputAvailable:
		if !p.Preliminary {
			t.toolEnds(p, t.st.good("✓"), "")
		}
	case uistream.TypeToolOutputError, uistream.TypeToolInputError:
		t.toolEnds(p, t.st.bad("✗"), clip(sanitizeLine(p.ErrorText), 120))
	case uistream.TypeToolOutputDenied:
		t.toolEnds(p, t.st.bad("✗"), "denied")
	case uistream.DataType(uistream.DataPermission), uistream.DataType(uistream.DataQuestion):
		t.asked(p)
	case uistream.DataType(uistream.DataPlan):
		t.showPlan(p.Data)
	case uistream.DataType(uistream.DataNotice):
		var n struct{ Text, Message string }
		if json.Unmarshal(p.Data, &n) == nil && n.Text+n.Message != "" {
			t.line("%s", t.st.dim("· "+clip(sanitizeLine(n.Text+n.Message), 200)))
		}
	case uistream.DataType(uistream.DataBlob):
		t.keptApart(p.Data)
	case uistream.DataType(uistream.DataLimit):
		t.line("%s", t.st.dim("· the turn has said as much as a transcript holds; the rest is kept apart"))
	case uistream.DataType(uistream.DataUserPrompt):
		var u struct{ Author, Text string }
		if json.Unmarshal(p.Data, &u) == nil {
			t.prompt(u.Text)
		}
	}
	return t.err
}

func (t *textSink) prompt(text string) {
	t.line("")
	t.line("%s %s", t.st.bold("›"), t.st.bold(strings.ReplaceAll(strings.TrimSpace(sanitize(text)), "\n", "\n  ")))
	t.line("")
}

func (t *textSink) text(s string) {
	if s == "" {
		return
	}
	if t.pending != "" {
		t.fresh()
	}
	t.write(s)
	t.column = !strings.HasSuffix(s, "\n")
}

func (t *textSink) toolBegins(p partFields) {
	l := t.tools[p.ToolCallID]
	if l == nil {
		l = &toolLine{at: p.At.Time()}
		if l.at.IsZero() {
			l.at = t.now()
		}
		t.tools[p.ToolCallID] = l
	}
	title := p.Title
	if title == "" {
		title = p.ToolName
	}
	if title != "" {
		l.title = clip(sanitizeLine(title), 100)
	}
	l.done = false
	if t.live {
		// The line of a call at work is written over when it ends, if nothing came between.
		if t.pending != p.ToolCallID {
			t.fresh()
		} else {
			t.write("\r\x1b[K")
		}
		t.write("  " + t.st.dim("… "+l.title))
		t.pending = p.ToolCallID
	}
}

func (t *textSink) toolEnds(p partFields, mark, detail string) {
	l := t.tools[p.ToolCallID]
	if l == nil || l.done {
		return
	}
	l.done = true
	end := p.EndAt.Time()
	if end.IsZero() {
		end = t.now()
	}
	s := fmt.Sprintf("  %s %s %s", mark, l.title, t.st.dim(seconds(end.Sub(l.at))))
	if detail != "" {
		s += " " + t.st.bad(detail)
	}
	if t.live && t.pending == p.ToolCallID {
		t.write("\r\x1b[K" + s + "\n")
		t.pending = ""
		return
	}
	t.line("%s", s)
}

func (t *textSink) showPlan(raw json.RawMessage) {
	var plan struct {
		Entries []struct{ Content, Status string }
	}
	if json.Unmarshal(raw, &plan) != nil {
		return
	}
	for _, e := range plan.Entries {
		if t.plan[e.Content] == e.Status {
			continue
		}
		t.plan[e.Content] = e.Status
		mark := "○"
		switch e.Status {
		case "in_progress":
			mark = "◐"
		case "completed":
			mark = "●"
		}
		t.line("  %s", t.st.dim(mark+" "+clip(sanitizeLine(e.Content), 120)))
	}
}

func (t *textSink) detached(s *client.Session) {
	t.fresh()
}

// turn shows how a turn ended, and what became of its work.
func (t *textSink) turn(s *client.Session, turn *client.Turn) {
	t.told = turn.ID
	t.line("")
	took := ""
	if turn.Times.Total != nil {
		took = " in " + millis(*turn.Times.Total)
	}
	why := ""
	if turn.Code != "" && turn.State != "completed" {
		why = ": " + sanitizeBlock(turn.Message) + " (" + sanitizeLine(turn.Code) + ")"
	}
	switch turn.State {
	case "completed":
		word := "Completed"
		if turn.End == "refused" {
			word = "Completed, but the agent stopped before it was done"
		}
		t.line("%s %s%s", t.st.good("✓"), t.st.bold(word), took)
	case "failed":
		t.line("%s %s%s%s", t.st.bad("✗"), t.st.bold("Failed"), took, why)
	case "canceled":
		t.line("%s %s%s%s", t.st.bad("■"), t.st.bold("Canceled"), took, why)
	default:
		t.line("%s The turn is %s.", t.st.dim("…"), sanitizeLine(turn.State))
	}
	t.delivery(s, turn)
	if turn.DiffStat != "" {
		t.row("Changes", diffStat(turn))
	}
	for _, n := range turn.Notes {
		t.row("Note", sanitizeLine(n))
	}
}

// end shows the rest of the newest turn's end, and what to try next.
func (t *textSink) end(s *client.Session, turn *client.Turn, _ int) {
	if turn == nil {
		t.line("")
		t.line("No turn has run in this session. Send one: %s prompt %s \"…\"", t.self, sanitizeLine(s.ID))
		return
	}
	if t.told != turn.ID {
		t.turn(s, turn)
	}
	if p := phases(&turn.Times); p != "" {
		t.row("Time", p)
	}
	if turn.Generation > 0 {
		t.row("Sandbox", fmt.Sprintf("%s, generation %d", sanitizeLine(s.Sandbox.Isolation), turn.Generation))
	}
	if turn.Rung != "" {
		memory := turn.Rung
		if n := len(turn.RungFailed); n > 0 {
			memory += fmt.Sprintf(" (tried before: %s)", strings.Join(turn.RungFailed, "; "))
		}
		t.row("Memory", sanitizeLine(memory))
	}
	if turn.Truncated != "" {
		t.row("Missing", "the conversation lacks its end: "+sanitizeLine(turn.Truncated))
	}
	if t.brief {
		return
	}
	for _, n := range t.next(s, turn) {
		t.row("Next", n)
	}
}

func (t *textSink) row(name, value string) {
	t.line("  %s %s", t.st.dim(fmt.Sprintf("%-9s", name)), value)
}

func (t *textSink) delivery(s *client.Session, turn *client.Turn) {
	d := turn.Delivery
	if d == nil {
		return
	}
	branch := sanitizeLine(s.Branch)
	switch d.State {
	case "pushed":
		t.row("Branch", fmt.Sprintf("%s at %s, as read back from the remote", branch, sanitizeLine(d.Commit)))
	case "no_changes":
		t.row("Branch", "nothing changed, nothing was pushed")
	case "held":
		t.row("Branch", fmt.Sprintf("%s: commit %s is kept on the server and not pushed", branch, sanitizeLine(turn.Commit)))
	case "scratch":
		t.row("Work", "commit "+sanitizeLine(d.Commit)+", kept on the server; there is no remote")
	case "failed":
		t.row("Branch", fmt.Sprintf("%s: %s %s (%s)", branch, t.st.bad("not delivered:"), sanitizeBlock(d.Message), sanitizeLine(d.Code)))
		if d.Remedy != "" {
			t.row("", sanitizeBlock(d.Remedy))
		}
		if turn.Commit != "" {
			t.row("Work", "commit "+sanitizeLine(turn.Commit)+", kept on the server")
		}
	}
}

func diffStat(t *client.Turn) string {
	lines := strings.Split(strings.TrimSpace(sanitize(t.DiffStat)), "\n")
	s := strings.TrimSpace(lines[len(lines)-1])
	switch {
	case t.Commits == 1:
		s += ", 1 commit"
	case t.Commits > 1:
		s += fmt.Sprintf(", %d commits", t.Commits)
	}
	return s
}

// phases tells how long each part of a turn took.
func phases(t *client.Times) string {
	var out []string
	for _, p := range []struct {
		name string
		ms   *int64
	}{{"queue", t.Accepted}, {"sandbox", t.Sandbox}, {"agent ready", t.AgentReady}, {"first answer", t.FirstPart}, {"turn", t.Turn}, {"pack", t.Packed}, {"push", t.Delivered}} {
		if p.ms != nil {
			out = append(out, p.name+" "+millis(*p.ms))
		}
	}
	return strings.Join(out, " · ")
}

// next is what to try after a turn.
func (t *textSink) next(s *client.Session, turn *client.Turn) []string {
	id, self := sanitizeLine(s.ID), t.self
	var out []string
	if turn.State == "failed" && turn.Remedy != "" {
		own := turn.Remedy
		if t.remedy != nil {
			own = t.remedy(turn.Code, nil, own)
		}
		out = append(out, sanitizeBlock(own))
	}
	if d := turn.Delivery; d != nil {
		switch open := d.State == "held" || d.State == "failed"; {
		case open && s.Undelivered && s.Repo != "":
			out = append(out, self+" deliver "+id+"   or   "+self+" discard "+id)
		case d.State == "failed":
			out = append(out, self+" discard "+id) // what was refused is in the sandbox only
		}
		if turn.Commit != "" && (d.State == "failed" || d.State == "scratch") {
			out = append(out, self+" bundle "+id)
		}
	}
	if turn.Commit != "" {
		out = append(out, self+" diff "+id)
	}
	return append(out, self+" prompt "+id+` "…"`)
}

func millis(ms int64) string { return seconds(time.Duration(ms) * time.Millisecond) }

// seconds is a duration for people.
func seconds(d time.Duration) string {
	switch {
	case d < 0:
		return "0.0 s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}
