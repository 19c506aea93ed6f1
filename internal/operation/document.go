package operation

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/markdown"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/uistream"
)

// markdown writes the session as a document. What the agent said is in quotes, the
// prompts, and what went into tools and came out of them, are in fences: neither can
// leave its place, and nothing of others becomes HTML. The only tags are the document's own.
// One turn at a time is in memory.
func (e *exporter) markdown(ctx context.Context, w *bufio.Writer) error {
	s := &e.a.Session
	d := document{w, map[string]*session.Question{}}
	asked, err := e.o.d.Sessions.Questions(ctx, e.caller, s.ID, "", session.MaxList)
	if err != nil {
		return err
	}
	for i := range asked {
		d.asked[string(asked[i].ID)] = &asked[i]
	}
	title := markdown.Line(s.Title)
	if title == "" {
		title = markdown.Line(string(s.ID))
	}
	d.put("# %s\n\n", title)
	d.item("Session", markdown.Code(string(s.ID)))
	d.item("Repository", markdown.Code(s.Repo))
	if s.Branch != "" && s.Base != "" {
		d.item("Branch", markdown.Code(s.Branch)+", from "+markdown.Code(s.Base))
	} else {
		d.item("Branch", markdown.Code(s.Branch))
	}
	d.item("Agent", markdown.Code(strings.TrimSpace(s.Agent+" "+s.Model)))
	d.item("Created", moment(s.CreatedAt)+" by "+author(s.Author))
	d.item("Exported", moment(e.at))
	if t := e.a.Open; t != nil {
		d.put("\n**Turn %d was at work when this was written. It ends here with what was stored by then.**\n", t.Number)
	}
	if n := len(e.a.Queue); n > 0 {
		d.put("\nPrompts in the queue, which are not part of this: %d.\n", n)
	}
	parts := &partReader{o: e.o, caller: e.caller, id: s.ID}
	err = e.turns(ctx, func(t *session.Turn) error {
		m, err := e.o.answerOf(ctx, parts, t, false, 0)
		if err != nil {
			return err
		}
		d.turn(s, t, m)
		return nil
	})
	if err != nil {
		return err
	}
	if e.count.Turns == 0 {
		d.put("\nNo turn has begun.\n")
	}
	return nil
}

// document writes Markdown. Errors are the writer's to keep.
type document struct {
	w     *bufio.Writer
	asked map[string]*session.Question // by id; the newest ones
}

func (d document) put(format string, args ...any) { fmt.Fprintf(d.w, format, args...) }

// item is an entry of the list at the top; without a value there is none.
func (d document) item(name, value string) {
	if value != "" {
		d.put("- %s: %s\n", name, value)
	}
}

func (d document) fence(info, text string) { d.put("\n%s", markdown.Fence(info, text)) }

func (d document) quote(text string) {
	if strings.TrimSpace(text) != "" {
		d.put("\n")
		_ = markdown.Quote(d.w, text) // the writer keeps the error
	}
}

// folded is a block that a reader opens. The empty line ends the HTML, so that what is
// in it is Markdown.
func (d document) folded(summary string, body func()) {
	d.put("\n<details><summary>%s</summary>\n", summary)
	body()
	d.put("\n</details>\n")
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func author(a session.Author) string {
	name := markdown.Line(a.Name)
	if name == "" {
		name = "somebody"
	}
	if a.Email != "" {
		name += " (" + markdown.Line(a.Email) + ")"
	}
	return name
}

func (d document) turn(s *session.Session, t *session.Turn, m *uistream.Message) {
	d.put("\n## Turn %d\n\n**%s**, %s:\n", t.Number, author(t.Author), moment(t.AcceptedAt))
	d.fence("text", t.Prompt)
	who := markdown.Line(t.Agent)
	if who == "" {
		who = markdown.Line(s.Agent)
	}
	d.put("\n**%s**", who)
	if t.Rung != "" {
		d.put(" (%s)", markdown.Line(t.Rung))
	}
	d.put(":\n")
	said, old := false, m.Superseded()
	for _, p := range m.Parts() {
		if old[p] {
			d.folded("Broke off, and was said again", func() { d.quote(p.Text("text")) })
			continue
		}
		said = d.part(p) || said
	}
	if !said {
		d.put("\nNothing was said.\n")
	}
	d.end(s, t)
}

// part writes one part of an answer; false: there is nothing of it to read.
func (d document) part(p *uistream.MessagePart) bool {
	switch kind := p.Kind(); {
	case kind == "text":
		text := p.Text("text")
		d.quote(text)
		return strings.TrimSpace(text) != ""
	case kind == "reasoning":
		text := p.Text("text")
		if strings.TrimSpace(text) == "" {
			return false
		}
		d.folded("Reasoning", func() { d.quote(text) })
	case kind == "dynamic-tool" || strings.HasPrefix(kind, "tool-"):
		d.tool(p)
	case kind == "source-url" || kind == "file":
		address := p.Text("url")
		if strings.HasPrefix(strings.ToLower(address), "data:") {
			address = p.Text("mediaType") + fmt.Sprintf(", %d bytes in the transcript", len(address))
		}
		d.put("\n%s %s\n", markdown.Line(p.Text("title")), markdown.Code(address))
	case kind == "source-document":
		d.put("\n%s %s\n", markdown.Line(p.Text("title")), markdown.Code(p.Text("filename")))
	case kind == string(uistream.DataType(uistream.DataPermission)):
		d.question(p)
	case kind == string(uistream.DataType(uistream.DataNotice)), kind == string(uistream.DataType(uistream.DataPlan)),
		kind == string(uistream.DataType(uistream.DataContent)), kind == string(uistream.DataType(uistream.DataCompaction)):
		raw, _ := p.Field("data")
		name := strings.TrimPrefix(kind, "data-")
		d.folded(strings.ToUpper(name[:1])+name[1:], func() { d.fence("json", indented(raw)) })
	default:
		return false
	}
	return true
}

func (d document) tool(p *uistream.MessagePart) {
	title, name := p.Text("title"), p.Text("toolName")
	if name == "" {
		name = strings.TrimPrefix(p.Kind(), "tool-")
	}
	if title == "" {
		title = name
	}
	how := map[string]string{
		"input-streaming": "not begun", "input-available": "at work", "approval-requested": "waits for an answer", "approval-responded": "answered",
		"output-available": "done", "output-error": "failed", "output-denied": "denied",
	}[p.Text("state")]
	if v, _ := p.Field("preliminary"); string(v) == "true" {
		how = "at work"
	}
	d.put("\n**Tool** %s: %s, %s\n", markdown.Code(name), markdown.Line(title), how)
	if raw, ok := p.Field("input"); ok && string(raw) != "{}" && string(raw) != "null" {
		d.folded("Input", func() { d.fence("json", indented(raw)) })
	}
	if raw, ok := p.Field("output"); ok {
		d.folded("Output", func() { d.output(raw) })
	}
	if text := p.Text("errorText"); text != "" {
		d.folded("Error", func() { d.fence("text", text) })
	}
}

// output writes a tool's output: text as text, everything else as JSON.
func (d document) output(raw json.RawMessage) {
	var text string
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		d.fence("text", text)
		return
	}
	var acp struct {
		Content []struct {
			Type    string `json:"type"`
			Content struct {
				Type string `json:"type"`
				Text string `json:"text"`
			} `json:"content"`
		} `json:"content"`
		RawOutput json.RawMessage `json:"rawOutput"`
	}
	if json.Unmarshal(raw, &acp) == nil && len(acp.Content) > 0 {
		plain := true
		for _, c := range acp.Content {
			plain = plain && c.Type == "content" && c.Content.Type == "text"
		}
		if plain {
			for _, c := range acp.Content {
				d.fence("text", c.Content.Text)
			}
			return
		}
	}
	d.fence("json", indented(raw))
}

// question writes what the agent asked and what became of it.
func (d document) question(p *uistream.MessagePart) {
	raw, _ := p.Field("data")
	var q struct {
		Title   string `json:"title"`
		Kind    string `json:"kind"`
		Outcome *struct {
			Allowed  bool   `json:"allowed"`
			Denied   bool   `json:"denied"`
			OptionID string `json:"optionId"`
		} `json:"outcome"`
		Options []struct {
			OptionID string `json:"optionId"`
			Name     string `json:"name"`
		} `json:"options"`
	}
	if json.Unmarshal(raw, &q) != nil {
		d.folded("Question", func() { d.fence("json", indented(raw)) })
		return
	}
	d.put("\n**Question** %s: %s\n", markdown.Code(q.Kind), markdown.Line(q.Title))
	answer, chosen, by := "not answered", "", ""
	if o := q.Outcome; o != nil {
		answer = "withdrawn"
		if o.Allowed {
			answer = "allowed"
		} else if o.Denied {
			answer = "denied"
		}
		for _, x := range q.Options {
			if x.OptionID == o.OptionID && x.Name != "" {
				chosen = " (" + markdown.Line(x.Name) + ")"
			}
		}
	}
	if row := d.asked[p.Text("id")]; row != nil && row.State != session.QuestionPending {
		if row.State == session.QuestionExpired {
			answer = "denied: nobody answered in time"
		}
		if row.By != "" {
			by = ", by " + markdown.Line(row.By)
		}
		if row.Message != "" {
			by += ": " + markdown.Line(row.Message)
		}
	}
	d.put("\n**Answer:** %s%s%s\n", answer, chosen, by)
}

// end writes how the turn ended.
func (d document) end(s *session.Session, t *session.Turn) {
	if !t.State.Terminal() {
		d.put("\n*The turn is %s.*\n", t.State)
		return
	}
	v := viewOfTurn(t, s)
	d.put("\n**End:** %s", t.State)
	if v.Code != "" {
		d.put(", %s", markdown.Code(v.Code))
	}
	if v.Message != "" {
		d.put(". %s", markdown.Line(v.Message))
	}
	d.put("\n")
	if del := v.Delivery; del != nil {
		d.put("\n**Delivery:** %s", markdown.Line(del.State))
		for _, x := range []string{del.Branch, del.Commit, del.Code} {
			if x != "" {
				d.put(" %s", markdown.Code(x))
			}
		}
		if del.Message != "" {
			d.put(". %s", markdown.Line(del.Message))
		}
		d.put("\n")
	}
	for _, n := range v.Notes {
		d.put("\n%s\n", markdown.Line(n))
	}
	if v.DiffStat != "" {
		d.fence("text", v.DiffStat)
	}
	if !whole(t) {
		d.put("\nThe transcript of this turn is not whole: %s\n", markdown.Line(v.Truncated))
	}
}

func indented(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}
