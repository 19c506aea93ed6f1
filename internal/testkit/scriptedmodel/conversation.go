package scriptedmodel

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/testkit/numbered"
	"github.com/hearthd/hearth/internal/testkit/script"
)

// Who speaks in a turn.
const (
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
)

// turn is one message, or one text block of one.
type turn struct {
	role  string
	text  string
	calls int // tool calls in an assistant's message
	size  int // bytes, arguments of calls included
}

// conversation is a request of any dialect.
type conversation struct {
	model     string
	stream    bool
	system    string
	turns     []turn
	messages  int // as the dialect counts them
	tools     []tool
	toolBytes int
	forced    string         // the tool that must be called
	schema    map[string]any // of the answer, where JSON is asked for
	maxTokens int            // 0: no limit
	caching   bool           // the request asks for prompt caching (Anthropic)
	usageWant bool           // the stream shall end with usage (Chat)
}

func (c *conversation) add(t turn) {
	if t.size == 0 {
		t.size = len(t.text)
	}
	c.turns = append(c.turns, t)
}

// piece is text streamed at once, after a pause.
type piece struct {
	text  string
	pause time.Duration
	run   *numbered.Spec // pieces that are made while they are sent, in place of a text
}

// call is a tool call.
type call struct {
	name string
	args map[string]any
	free string // the input of a free-form tool, instead of args
	tool tool
}

func (c *call) json() string {
	b, err := json.Marshal(c.args)
	if err != nil {
		return "{}" // arguments come from JSON or from strings
	}
	return string(b)
}

// reply is an answer before it takes a dialect's shape.
type reply struct {
	pieces     []piece
	call       *call
	isJSON     bool
	truncated  bool // by the request's limit of output tokens
	cut        bool // the connection breaks in the middle
	status     int  // an error instead of all this
	retryAfter int
	usage      usage
}

func (r *reply) say(text string) {
	if text == "" {
		return
	}
	if len(r.pieces) > 0 {
		text = "\n\n" + text
	}
	for _, p := range chunks(text, 24) {
		r.pieces = append(r.pieces, piece{text: p})
	}
}

func (r *reply) text() string {
	var b strings.Builder
	for _, p := range r.pieces {
		b.WriteString(p.text)
	}
	return b.String()
}

func (r *reply) output() string {
	s := r.text()
	if r.call != nil {
		s += r.call.name + r.call.free
		if r.call.free == "" {
			s += r.call.json()
		}
	}
	return s
}

// limit shortens the reply to a number of tokens.
func (r *reply) limit(maxTokens int) {
	if maxTokens <= 0 || tokens(r.output()) <= maxTokens {
		return
	}
	left := maxTokens * bytesPerToken
	r.truncated, r.call = true, nil
	for i, p := range r.pieces {
		if len(p.text) > left {
			r.pieces[i].text = strings.ToValidUTF8(p.text[:left], "")
			r.pieces = r.pieces[:i+1]
			return
		}
		left -= len(p.text)
	}
}

func (r *reply) summary() string {
	switch {
	case r.status != 0:
		return "status " + strconv.Itoa(r.status)
	case r.cut:
		return "cut"
	case r.call != nil:
		return "tool " + r.call.name
	case r.isJSON:
		return "json"
	default:
		return "text"
	}
}

// maxSlow bounds a slow directive: pieces, and milliseconds between them.
const (
	maxSlowPieces = 100_000
	maxSlowMillis = 600_000
)

var titleRE = regexp.MustCompile(`(?i)\btitle\b`)

// decide makes the reply. first tells whether a thing that shall happen a number
// of times is still due.
func (c *conversation) decide(first func(key string, n int) bool) reply {
	var r reply
	if c.schema != nil {
		r.isJSON = true
		b, err := json.Marshal(instance(c.schema, 0))
		if err != nil {
			b = []byte("{}")
		}
		r.pieces = []piece{{text: string(b)}}
		return r
	}
	if t, ok := c.named(c.forced); ok {
		r.call = &call{name: t.name, args: t.fill(nil), tool: t}
		return r
	}
	at := c.scriptTurn()
	own := ""
	if at >= 0 {
		own, _ = script.SplitQuoted(c.turns[at].text)
	}
	if len(c.tools) == 0 && titleRE.MatchString(c.system) {
		r.say(title(own))
		return r
	}
	dirs := script.Parse(own)
	if len(c.tools) == 0 && !anyTextual(dirs) {
		dirs = nil
	}
	if len(dirs) == 0 {
		r.say(echo(own) + "\n\n" + c.seen(at))
		return r
	}
	c.follow(&r, at, dirs, first)
	return r
}

// follow carries out the directives of the turn at, as far as its tool results say.
func (c *conversation) follow(r *reply, at int, dirs []script.Directive, first func(string, int) bool) {
	results, last, unread := 0, "", false
	for _, t := range c.turns[at+1:] {
		if t.role != roleTool {
			continue
		}
		last = t.text
		// An editing tool that wants a file read before it is replaced has
		// done nothing: the same step is taken again, by shell.
		if unread = strings.Contains(t.text, "has not been read yet"); !unread {
			results++
		}
	}
	var done []script.Directive
	i := 0
	for ; i < len(dirs) && len(done) < results; i++ {
		if usesTool(dirs[i]) {
			done = append(done, dirs[i])
		}
	}
	failed := results > 0 && failedRE.MatchString(last)
	for ; i < len(dirs); i++ {
		d := dirs[i]
		due := func(n int) bool { return first(c.key(at, results, i, d), n) }
		switch d.Name {
		case "say":
			r.say(d.Args)
		case "slow":
			n, ms := min(d.Int(0, 10), maxSlowPieces), min(d.Int(1, 100), maxSlowMillis)
			for k := range n {
				r.pieces = append(r.pieces, piece{text: fmt.Sprintf("Step %d of %d. ", k+1, n), pause: time.Duration(ms) * time.Millisecond})
			}
		case "numbered":
			spec := numbered.SpecOf(d)
			r.pieces = append(r.pieces, piece{run: &spec})
		case "mark":
		case "recall":
			r.say(c.recall(at, d.Args))
		case "status":
			if due(d.Int(1, 0)) {
				r.status, r.retryAfter = d.Int(0, 500), d.Int(2, 1)
				if r.status < 400 || r.status > 599 {
					r.status = 500
				}
				return
			}
		case "cut":
			if due(d.Int(0, 0)) {
				r.cut = true
			}
		case "write", "run", "tool":
			if len(c.tools) == 0 {
				r.say("I have no tool for that here.")
				continue
			}
			call, problem := c.toolFor(d, unread)
			if call == nil {
				r.say(problem)
				break
			}
			r.say(intro(d, failed))
			r.call = call
			return
		default:
			r.say("I do not know the directive " + d.Name + ".")
		}
	}
	if s := summary(done, failed); s != "" {
		r.say(s)
	}
	r.say(c.seen(at))
}

// key names one directive of one request for the counts of [Server.first].
func (c *conversation) key(at, results, i int, d script.Directive) string {
	h := sha256.New()
	for _, t := range c.turns[:at+1] {
		if t.role == roleUser {
			fmt.Fprintf(h, "%d:%s", len(t.text), t.text)
		}
	}
	fmt.Fprintf(h, "/%d/%d/%t/%s", results, i, len(c.tools) > 0, d)
	return hex.EncodeToString(h.Sum(nil))
}

// scriptTurn finds the user text that holds the script of the newest turn: the
// last one with directives since the assistant last ended an answer without a
// tool call, else the first of that time with words of its own, else -1.
func (c *conversation) scriptTurn() int {
	start := 0
	answered := false
	for i, t := range c.turns {
		switch {
		case t.role == roleAssistant:
			answered = t.calls == 0
		case t.role == roleUser && answered:
			start, answered = i, false
		}
	}
	at, spoke := -1, -1
	for i := start; i < len(c.turns); i++ {
		if c.turns[i].role != roleUser {
			continue
		}
		own, _ := script.SplitQuoted(c.turns[i].text)
		if len(script.Parse(own)) > 0 {
			at = i
		} else if spoke < 0 && strings.TrimSpace(own) != "" {
			spoke = i
		}
	}
	if at >= 0 {
		return at
	}
	return spoke
}

// seen counts the directives in all user texts, quoted ones too; earlier are
// those that are not of the turn being answered.
func (c *conversation) seen(at int) string {
	all, own := 0, 0
	for i, t := range c.turns {
		if t.role != roleUser {
			continue
		}
		all += len(script.Parse(t.text))
		if i == at {
			now, _ := script.SplitQuoted(t.text)
			own = len(script.Parse(now))
		}
	}
	return fmt.Sprintf("[directives seen: %d; earlier: %d]", all, all-own)
}

func (c *conversation) recall(at int, word string) string {
	if word == "" {
		for _, t := range c.turns {
			if t.role != roleUser {
				continue
			}
			for _, d := range script.Parse(t.text) {
				if d.Name == "mark" {
					return "The marker is " + d.Args + "."
				}
			}
		}
		return "I see no marker in this conversation."
	}
	for i, t := range c.turns {
		text := t.text
		if i == at {
			_, text = script.SplitQuoted(text)
		}
		if strings.Contains(text, word) {
			return "I remember " + word + "."
		}
	}
	return "I do not remember " + word + "."
}

func usesTool(d script.Directive) bool {
	return d.Name == "write" || d.Name == "run" || d.Name == "tool"
}

// anyTextual tells whether something of a script can be carried out without tools.
func anyTextual(dirs []script.Directive) bool {
	for _, d := range dirs {
		if !usesTool(d) {
			return true
		}
	}
	return false
}

// bytesPerToken is the rule of thumb by which texts become tokens.
const bytesPerToken = 4

func tokens(s string) int { return tokensOf(len(s)) }

func tokensOf(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// usage are the tokens of one exchange.
type usage struct {
	input  int // the whole prompt
	cached int // of it, read from the cache: all before the last answer
	last   int // of it, the newest message
	output int
}

func (c *conversation) usage() usage {
	total, before, last := len(c.system)+c.toolBytes, 0, 0
	if len(c.turns) > 0 {
		last = c.turns[len(c.turns)-1].size
	}
	for _, t := range c.turns {
		if t.role == roleAssistant {
			before = total
		}
		total += t.size
	}
	u := usage{input: max(tokensOf(total), 1), cached: before / bytesPerToken}
	u.last = min(max(tokensOf(last), 1), u.input-u.cached)
	return u
}

// chunks cuts a text into pieces of at most n runes.
func chunks(s string, n int) []string {
	var out []string
	start, count := 0, 0
	for i := range s {
		if count == n {
			out = append(out, s[start:i])
			start, count = i, 0
		}
		count++
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}
