package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/form"
	"github.com/hearthd/hearth/internal/uistream"
)

const (
	askLook   = time.Second           // how often a question at hand is looked at: somebody else may answer it
	askAppear = 5 * time.Second       // for a question that was shown to be listed
	askQuiet  = 30 * time.Millisecond // nothing was typed before a question for so long
)

// asking is the questions that were shown and are to be put to the person at the
// terminal, in their order. A nil one puts none.
type asking struct {
	wake chan struct{} // there may be one; capacity 1

	mu   sync.Mutex
	ids  []string
	seen map[string]bool
	off  bool // the person's input has ended
}

// asks makes the command put questions to the person, where there is one.
func (a *app) asks(out sink) *asking {
	t, ok := out.(*textSink)
	if !ok || !a.IsTerminal(a.Stdin) || !a.IsTerminal(a.Stdout) {
		return nil
	}
	t.asks = true
	return &asking{wake: make(chan struct{}, 1), seen: map[string]bool{}}
}

func (k *asking) woken() <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.wake
}

// noticed takes a part that shows a question or what became of it.
func (k *asking) noticed(e client.Event) {
	if k == nil || e.Type != string(uistream.DataType(uistream.DataPermission)) && e.Type != string(uistream.DataType(uistream.DataQuestion)) {
		return
	}
	var p struct {
		ID   string `json:"id"`
		Data struct {
			Outcome json.RawMessage `json:"outcome"`
		} `json:"data"`
	}
	if json.Unmarshal(e.Data, &p) != nil || p.ID == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch settled := len(p.Data.Outcome) > 0; {
	case settled:
		for i, id := range k.ids {
			if id == p.ID {
				k.ids = append(k.ids[:i:i], k.ids[i+1:]...)
				break
			}
		}
	case !k.seen[p.ID] && !k.off:
		k.ids = append(k.ids, p.ID)
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
	k.seen[p.ID] = true
}

// next takes the first question out; empty: there is none.
func (k *asking) next() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ids) == 0 || k.off {
		return ""
	}
	id := k.ids[0]
	k.ids = k.ids[1:]
	return id
}

func (k *asking) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.off, k.ids = true, nil
}

// Why asking a person ends without an answer.
var (
	errLeft    = errors.New("left open")
	errSettled = errors.New("settled by others")
	errLeave   = errors.New("the person goes")
	errLate    = errors.New("the limit has passed")
	errOver    = errors.New("the stream has ended")
)

// person is somebody at the terminal with one question. f.mu is held all the time:
// nothing else is shown meanwhile.
type person struct {
	a       *app
	f       *following
	t       *textSink
	signals <-chan os.Signal
	late    <-chan time.Time
	ended   <-chan error
	q       client.Question
}

// askPerson puts the questions that wait to the person, one after the other. It says
// whether the person goes, or the limit has passed. Called with f.mu held.
func (a *app) askPerson(ctx context.Context, f *following, signals <-chan os.Signal, late <-chan time.Time, ended <-chan error) (leave, isLate bool) {
	t, ok := f.out.(*textSink)
	if !ok {
		return false, false
	}
	p := &person{a: a, f: f, t: t, signals: signals, late: late, ended: ended}
	for id := f.asking.next(); id != ""; id = f.asking.next() {
		if p.q, ok = p.find(ctx, id); !ok || p.q.State != "pending" {
			continue
		}
		a.forgetTyped(ctx)
		switch err := p.put(ctx); {
		case errors.Is(err, errLeave):
			return true, false
		case errors.Is(err, errLate):
			return false, true
		case errors.Is(err, errOver), ctx.Err() != nil:
			return false, false
		}
	}
	return false, false
}

// find reads the question; it is shown a little before it is listed.
func (p *person) find(ctx context.Context, id string) (client.Question, bool) {
	ctx, cancel := context.WithTimeout(ctx, askAppear)
	defer cancel()
	for {
		q, err := p.f.c.Question(ctx, p.f.session.ID, id)
		if err == nil {
			return q, true
		}
		if client.CodeOf(err) != string(fault.QuestionNotFound) {
			return q, false
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return q, false
		}
	}
}

// forgetTyped drops what was typed before a question was shown: it was not meant for it.
func (a *app) forgetTyped(ctx context.Context) {
	if f, ok := a.Stdin.(*os.File); ok {
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) // no terminal has nothing to drop
	}
	if a.lines == nil {
		return
	}
	for {
		select {
		case _, ok := <-a.lines:
			if !ok {
				return
			}
		case <-time.After(askQuiet):
			return
		case <-ctx.Done():
			return
		}
	}
}

// put shows the question until it is answered, left open or settled by others.
func (p *person) put(ctx context.Context) error {
	if p.t.askedLast != p.q.ID {
		p.t.line("%s", p.t.st.bold("? The agent asks: "+clip(sanitizeLine(firstOf(p.q.Title, p.q.Tool, "may it go on")), 160)))
	}
	for {
		in, err := p.answer(ctx)
		if err == nil {
			_, err = p.f.c.Answer(ctx, p.f.session.ID, p.q.ID, in)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errSettled):
			p.settled(ctx)
			return nil
		case client.CodeOf(err) == string(fault.QuestionSettled):
			p.t.line("%s", p.t.st.dim("  "+sanitizeLine(err.Error())))
			return nil
		case client.CodeOf(err) == string(fault.InvalidInput):
			p.t.line("  %s", sanitizeLine(err.Error())) // and once more
			continue
		case errors.Is(err, errLeave), errors.Is(err, errLate), errors.Is(err, errOver), ctx.Err() != nil:
			return err
		case !errors.Is(err, errLeft):
			p.t.line("  %s", sanitizeLine(err.Error()))
		}
		p.t.line("%s", p.t.st.dim("  Left open. Answer it later: "+p.how()))
		return nil
	}
}

// how is the command that answers the question.
func (p *person) how() string {
	how := p.a.self() + " answer " + sanitizeLine(p.f.session.ID) + " --question " + sanitizeLine(p.q.ID)
	if p.q.Kind == "form" {
		return how + " accept --field NAME=VALUE | decline | cancel"
	}
	return how + " allow | deny"
}

// settled says what became of a question that somebody else settled.
func (p *person) settled(ctx context.Context) {
	q, err := p.f.c.Question(ctx, p.f.session.ID, p.q.ID)
	p.t.settled[p.q.ID] = err == nil // its part need not tell it again
	switch {
	case err != nil:
	case q.State == "answered":
		p.t.line("%s", p.t.st.dim("  Answered elsewhere: "+sanitizeLine(q.Verdict)+" by "+sanitizeLine(q.By)+"."))
	case q.State == "expired":
		p.t.line("%s", p.t.st.dim("  Nobody answered in time."))
	default:
		p.t.line("%s", p.t.st.dim("  Not to be answered any more: its turn ended, or the agent took it back."))
	}
}

// line asks for a line.
func (p *person) line(ctx context.Context, prompt string) (string, error) {
	p.t.fresh()
	p.t.write(prompt)
	p.t.column = true
	lines := p.a.readLines()
	look := time.NewTicker(askLook)
	defer look.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				p.f.asking.stop()
				p.t.asks = false
				return "", errLeft
			}
			p.t.column = false // the person's own line feed
			return line, nil
		case <-look.C:
			if len(p.ended) > 0 {
				return "", errOver
			}
			q, err := p.f.c.Question(ctx, p.f.session.ID, p.q.ID)
			if err == nil && q.State != "pending" {
				return "", errSettled
			}
		case <-p.signals:
			if p.a.signaled(ctx, p.f, p.signals) {
				return "", errLeave
			}
			p.t.fresh()
			p.t.write(prompt)
			p.t.column = true
		case <-p.late:
			return "", errLate
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// choose asks for one of numbered lines; 0: none.
func (p *person) choose(ctx context.Context, lines []string) (int, error) {
	for i, l := range lines {
		p.t.line("  %d  %s", i+1, l)
	}
	for {
		in, err := p.line(ctx, "  Number, or Enter to leave it open: ")
		if err != nil {
			return 0, err
		}
		in = strings.ToLower(strings.TrimSpace(in))
		if in == "" || in == "s" {
			return 0, nil
		}
		if n, err := strconv.Atoi(in); err == nil && n >= 1 && n <= len(lines) {
			return n, nil
		}
		p.t.line("  %s is none of the numbers.", clip(sanitizeLine(in), 40))
	}
}

// answer asks the person what to answer; errLeft: nothing.
func (p *person) answer(ctx context.Context) (client.Answer, error) {
	if p.q.Kind == "form" {
		return p.fill(ctx)
	}
	var d struct {
		Input json.RawMessage `json:"input"`
	}
	if json.Unmarshal(p.q.Detail, &d) == nil && len(d.Input) > 2 && string(d.Input) != "null" { // more than {}
		p.t.line("%s", p.t.st.dim("  "+clip(sanitizeLine(string(d.Input)), 400)))
	}
	var lines []string
	for _, o := range p.q.Options {
		lines = append(lines, clip(sanitizeLine(firstOf(o.Name, o.ID)), 80)+p.t.st.dim("  "+meaning(o.Kind)))
	}
	if len(lines) == 0 {
		lines = []string{"Allow", "Deny"}
	}
	n, err := p.choose(ctx, lines)
	switch {
	case err != nil:
		return client.Answer{}, err
	case n == 0:
		return client.Answer{}, errLeft
	case len(p.q.Options) > 0:
		return client.Answer{Option: p.q.Options[n-1].ID}, nil
	}
	return client.Answer{Verdict: []string{"allow", "deny"}[n-1]}, nil
}

// meaning says what an option's kind does, whatever the agent calls it.
func meaning(kind string) string {
	switch kind {
	case "allow_once":
		return "(allows it once)"
	case "allow_always":
		return "(allows it from now on)"
	case "reject_once":
		return "(denies it)"
	case "reject_always":
		return "(denies it from now on)"
	}
	return ""
}

// leaves is what a person types in the middle of a form to leave it open.
const leaves = "/skip"

// fill asks for the values of a form, one by one.
func (p *person) fill(ctx context.Context) (client.Answer, error) {
	message, s, err := formOf(&p.q)
	if err != nil {
		return client.Answer{}, err
	}
	if rest := sanitizeBlock(message); strings.Contains(rest, "\n") || len([]rune(rest)) > 160 {
		p.t.line("  %s", rest)
	}
	if s.Description != "" {
		p.t.line("  %s", sanitizeBlock(s.Description))
	}
	n, err := p.choose(ctx, []string{"Fill it in", "Decline: say nothing", "Cancel what is asked for"})
	switch {
	case err != nil:
		return client.Answer{}, err
	case n == 0:
		return client.Answer{}, errLeft
	case n == 2:
		return client.Answer{Verdict: "decline"}, nil
	case n == 3:
		return client.Answer{Verdict: "cancel"}, nil
	}
	values := map[string]json.RawMessage{}
	for _, f := range s.Fields {
		v, err := p.field(ctx, f)
		if err != nil {
			return client.Answer{}, err
		}
		if v != nil {
			values[f.Name] = v
		}
	}
	content, err := json.Marshal(values)
	if err != nil {
		return client.Answer{}, fmt.Errorf("encode the values: %w", err)
	}
	return client.Answer{Verdict: "accept", Content: content}, nil
}

// field asks for one value; nil: none is given.
func (p *person) field(ctx context.Context, f form.Field) (json.RawMessage, error) {
	head := p.t.st.bold(sanitizeLine(f.Label()))
	if f.Required {
		head += " (needed)"
	}
	if f.Description != "" {
		head += p.t.st.dim("  " + sanitizeLine(f.Description))
	}
	p.t.line("  %s", head)
	for i, c := range f.Choices {
		l := fmt.Sprintf("    %d  %s", i+1, clip(sanitizeLine(c.Label()), 80))
		if c.Description != "" {
			l += p.t.st.dim("  " + clip(sanitizeLine(c.Description), 120))
		}
		p.t.line("%s", l)
	}
	for {
		in, err := p.line(ctx, "  "+expects(f)+": ")
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(in) == leaves {
			return nil, errLeft
		}
		if strings.TrimSpace(in) == "" {
			switch {
			case f.Default != nil:
				return f.Default, nil
			case f.Required:
				p.t.line("  A value is needed; %s leaves the question open.", leaves)
				continue
			}
			return nil, nil
		}
		v, problem := f.Read(picked(f, in)...)
		if problem == "" {
			return v, nil
		}
		p.t.line("  It %s.", sanitizeLine(problem))
	}
}

// picked turns numbers of choices into the choices; what is no number stays as it is.
func picked(f form.Field, in string) []string {
	if len(f.Choices) == 0 {
		return []string{in}
	}
	words := []string{in}
	if f.Kind == form.Several {
		words = strings.Split(in, ",")
	}
	for i, w := range words {
		words[i] = strings.TrimSpace(w)
		if n, err := strconv.Atoi(words[i]); err == nil && n >= 1 && n <= len(f.Choices) {
			words[i] = f.Choices[n-1].Value
		}
	}
	return words
}

// expects says what to type for a field, and what Enter alone does.
func expects(f form.Field) string {
	what := "Text"
	switch {
	case f.Kind == form.Several:
		what = "Numbers, with commas"
	case len(f.Choices) > 0:
		what = "Number"
	case f.Kind == form.Boolean:
		what = "Yes or no"
	case f.Kind == form.Number:
		what = "Number"
	case f.Kind == form.Integer:
		what = "Whole number"
	}
	switch {
	case f.Default != nil:
		what += ", Enter for " + clip(sanitizeLine(defaultText(f)), 60)
	case !f.Required:
		what += ", Enter for none"
	}
	return what
}

// defaultText is a field's default as a person would say it.
func defaultText(f form.Field) string {
	var s string
	var list []string
	var b bool
	switch {
	case json.Unmarshal(f.Default, &s) == nil:
		return s
	case json.Unmarshal(f.Default, &list) == nil:
		return firstOf(strings.Join(list, ", "), "none of them")
	case json.Unmarshal(f.Default, &b) == nil && b:
		return "yes"
	case string(f.Default) == "false":
		return "no"
	}
	return string(f.Default)
}
