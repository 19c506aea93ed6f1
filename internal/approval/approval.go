// Package approval decides what becomes of an agent's wish to do something: it is
// allowed, denied, or put to a person. A [Policy] is a keyword or rules; it is pure
// data that a session stores and the driver applies. The package knows no agent
// and no transport. Start at [Parse] and [Policy.Decide].
package approval

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
)

// Verdict is what becomes of a wish.
type Verdict string

// The verdicts, laxest first: of several that apply the last one counts.
const (
	Allow Verdict = "allow"
	Ask   Verdict = "ask"
	Deny  Verdict = "deny"
)

// Modes of a policy.
const (
	Auto     = "auto"      // everything is allowed: the sandbox is the guard
	Asking   = "ask"       // everything is asked
	ReadOnly = "read-only" // what changes something is denied
	ByRules  = "rules"     // see Policy.Rules
)

// Kinds of wishes, as ACP has them.
var kinds = []string{"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}

// harmless are the kinds that change nothing.
var harmless = []string{"read", "search", "think"}

// Limits of a policy.
const (
	MaxRules = 100
	MaxText  = 1024 // bytes of one name, path or command
	maxBytes = 64 << 10
)

// Policy of a session. The zero value is Auto.
type Policy struct {
	Mode  string `json:"mode"`
	Rules []Rule `json:"rules,omitempty"` // with ByRules only
	// Default is for wishes that no rule names; empty: ask.
	Default Verdict `json:"default,omitempty"`
}

// Rule applies to a wish when all that it names fits. A rule that names nothing is refused.
type Rule struct {
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"` // of the tool, as the agent calls it, letters' case aside
	Path string `json:"path,omitempty"` // the wish's paths, or a folder above each of them; relative ones are below the work tree
	// Command is the beginning of the command, whole words. To ask or deny, a first word
	// without a folder also means the program of that name in any folder.
	Command string  `json:"command,omitempty"`
	Do      Verdict `json:"do"`
}

// Wish is what an agent wants to do. Fields that cannot be read from what it said are empty.
type Wish struct {
	Kind     string
	Name     string
	Paths    []string   // absolute
	Commands [][]string // the words of each simple command, see Split
	Opaque   bool       // there is a command or path that cannot be read
	Work     string     // the work tree, absolute
}

// Parse reads a policy: a JSON string with a mode, or an object. Empty and null are Auto.
// Code: INVALID_INPUT with details.fields.
func Parse(raw []byte) (Policy, error) {
	bad := func(format string, args ...any) (Policy, error) {
		return Policy{}, fault.Field("approvals", "The approvals "+format, args...)
	}
	if len(raw) == 0 || string(raw) == "null" {
		return Policy{Mode: Auto}, nil
	}
	if len(raw) > maxBytes {
		return bad("may have at most %d bytes.", maxBytes)
	}
	var p Policy
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &p.Mode); err != nil {
			return bad("are not valid JSON.")
		}
	} else {
		dec := json.NewDecoder(strings.NewReader(string(raw)))
		dec.DisallowUnknownFields()
		err := dec.Decode(&p)
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &kind) && kind.Field == "":
			return bad("are neither a text nor an object.")
		case errors.As(err, &kind):
			return Policy{}, fault.Field("approvals."+kind.Field, "The field %.80s of the approvals %s.", kind.Field, fault.Mismatch(kind))
		case err != nil:
			if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
				return bad("have a field %.80s that means nothing here.", name)
			}
			return bad("are not valid JSON.")
		}
		if dec.More() {
			return bad("are more than one JSON value.")
		}
		if p.Mode == "" {
			p.Mode = ByRules
		}
	}
	return p, p.check()
}

func (p Policy) check() error {
	bad := func(field, format string, args ...any) error {
		return fault.Field("approvals"+field, "The approvals "+format, args...)
	}
	if !slices.Contains([]string{Auto, Asking, ReadOnly, ByRules}, p.Mode) {
		return bad("", "cannot be %.40q: they are auto, ask, read-only, or an object with rules.", p.Mode)
	}
	if p.Mode != ByRules && (len(p.Rules) > 0 || p.Default != "") {
		return bad("", "%q have no rules of their own: leave out the mode, or the rules and the default.", p.Mode)
	}
	if p.Mode == ByRules && len(p.Rules) == 0 {
		return bad(".rules", "have no rules.")
	}
	if len(p.Rules) > MaxRules {
		return bad(".rules", "may have at most %d rules.", MaxRules)
	}
	if p.Default != "" && !known(p.Default) {
		return bad(".default", "cannot have the default %.40q: it is allow, ask or deny.", p.Default)
	}
	for i, r := range p.Rules {
		rule := fmt.Sprintf(".rules[%d]", i)
		switch {
		case !known(r.Do):
			return bad(rule+".do", "have a rule %d that does %.40q: it is allow, ask or deny.", i+1, r.Do)
		case r.Kind == "" && r.Name == "" && r.Path == "" && r.Command == "":
			return bad(rule, "have a rule %d that names no kind, name, path or command.", i+1)
		case r.Kind != "" && !slices.Contains(kinds, r.Kind):
			return bad(rule+".kind", "have a rule %d of the kind %.40q: it is one of %s.", i+1, r.Kind, strings.Join(kinds, ", "))
		case max(len(r.Name), len(r.Path), len(r.Command)) > MaxText:
			return bad(rule, "have a rule %d with more than %d bytes in one field.", i+1, MaxText)
		case r.Command != "" && len(strings.Fields(r.Command)) == 0:
			return bad(rule+".command", "have a rule %d whose command is blank.", i+1)
		}
	}
	return nil
}

func known(v Verdict) bool { return v == Allow || v == Ask || v == Deny }

// Text is the policy as Parse reads it.
func (p Policy) Text() string {
	if p.Mode != ByRules {
		if p.Mode == "" {
			return `"` + Auto + `"`
		}
		return `"` + p.Mode + `"`
	}
	raw, err := json.Marshal(p)
	if err != nil { // strings only
		return `"` + Asking + `"`
	}
	return string(raw)
}

// Asks tells whether a person may be asked.
func (p Policy) Asks() bool {
	switch p.Mode {
	case Asking:
		return true
	case ByRules:
		return p.Default == "" || p.Default == Ask || slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Do == Ask })
	}
	return false
}

// Decide judges a wish. Of the rules that apply the strictest counts. A wish with several
// paths or commands is judged by each of them; one that cannot be read is asked when a rule
// about paths or commands might have applied.
func (p Policy) Decide(w Wish) Verdict {
	switch p.Mode {
	case Auto, "":
		return Allow
	case Asking:
		return Ask
	case ReadOnly:
		if slices.Contains(harmless, w.Kind) && !w.Opaque {
			return Allow
		}
		return Deny
	}
	verdict := Verdict("")
	for _, part := range w.parts() {
		verdict = stricter(verdict, p.one(part))
	}
	return verdict
}

// parts are the wish's single commands and paths, each with what is common.
func (w Wish) parts() []Wish {
	var out []Wish
	for _, c := range w.Commands {
		x := w
		x.Commands = [][]string{c}
		out = append(out, x)
	}
	if len(out) == 0 {
		out = append(out, w)
	}
	return out
}

func (p Policy) one(w Wish) Verdict {
	verdict, unread := Verdict(""), false
	for _, r := range p.Rules {
		switch fits, unknown := r.fits(w); {
		case fits:
			verdict = stricter(verdict, r.Do)
		case unknown:
			unread = true
		}
	}
	if verdict == "" {
		verdict = p.Default
		if verdict == "" {
			verdict = Ask
		}
	}
	if unread {
		verdict = stricter(verdict, Ask)
	}
	return verdict
}

// fits tells whether a rule applies; unknown says that it might: the wish cannot be read.
func (r Rule) fits(w Wish) (fits, unknown bool) {
	if r.Kind != "" && r.Kind != w.Kind || r.Name != "" && !strings.EqualFold(r.Name, w.Name) {
		return false, false
	}
	if r.Command != "" {
		if len(w.Commands) == 0 {
			return false, w.Opaque
		}
		if !begins(w.Commands[0], r.Command, r.Do != Allow) {
			return false, w.Opaque
		}
	}
	if r.Path != "" {
		if len(w.Paths) == 0 {
			return false, w.Opaque
		}
		below := 0
		for _, p := range w.Paths {
			if under(absolute(w.Work, p), absolute(w.Work, r.Path)) {
				below++
			}
		}
		// To allow, all must be below; to ask or deny, one is enough.
		if below == 0 || r.Do == Allow && below < len(w.Paths) {
			return false, w.Opaque
		}
	}
	if w.Opaque && r.Do == Allow && (r.Path != "" || r.Command != "") {
		return false, true // there is more in it than what was read
	}
	return true, false
}

func absolute(work, p string) string {
	if !path.IsAbs(p) {
		p = path.Join(work, p)
	}
	return path.Clean(p)
}

func under(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// begins tells whether a command begins with words; anywhere: in whichever folder its
// program is.
func begins(have []string, words string, anywhere bool) bool {
	want := strings.Fields(words)
	if len(have) < len(want) {
		return false
	}
	first := have[0]
	if anywhere && !strings.Contains(want[0], "/") {
		first = path.Base(first)
	}
	return first == want[0] && slices.Equal(have[1:len(want)], want[1:])
}

func stricter(a, b Verdict) Verdict {
	order := []Verdict{"", Allow, Ask, Deny}
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}
