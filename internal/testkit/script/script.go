// Package script reads the directives that steer Hearth's scripted model and
// scripted agent: words between double at-signs in the text of a person, as in
//
//	@@run make test@@
//
// It only parses. What a directive means is told where it is carried out, in
// packages scriptedmodel and scriptedagent. Start at [Parse].
package script

import (
	"regexp"
	"strconv"
	"strings"
)

// Directive is one instruction: a lower-case name and the text after it, with
// the white space around it removed. The text may have several lines; it cannot
// hold two at-signs in a row.
type Directive struct {
	Name string
	Args string
}

// The name follows the at-signs at once, so that the "@@ -1,2 +1,2 @@" of a
// diff is not taken for a directive.
var directiveRE = regexp.MustCompile(`(?is)@@([a-z][a-z0-9-]*)(?:\s+(.*?))?@@`)

// Parse returns the directives of a text in their order.
func Parse(text string) []Directive {
	var out []Directive
	for _, m := range directiveRE.FindAllStringSubmatch(text, -1) {
		out = append(out, Directive{Name: strings.ToLower(m[1]), Args: strings.TrimSpace(m[2])})
	}
	return out
}

// Strip returns the text without its directives.
func Strip(text string) string {
	return strings.TrimSpace(directiveRE.ReplaceAllString(text, ""))
}

// Split returns the first word of the arguments and what follows it.
func (d Directive) Split() (first, rest string) {
	i := strings.IndexAny(d.Args, " \t\n")
	if i < 0 {
		return d.Args, ""
	}
	return d.Args[:i], strings.TrimLeft(d.Args[i:], " \t\n")
}

// Int returns the i-th word of the arguments as a number, or def where there is
// no such word or it is not a number that is 0 or more.
func (d Directive) Int(i, def int) int {
	words := strings.Fields(d.Args)
	if i >= len(words) {
		return def
	}
	n, err := strconv.Atoi(words[i])
	if err != nil || n < 0 {
		return def
	}
	return n
}

// String is the directive as it is written in a prompt.
func (d Directive) String() string {
	if d.Args == "" {
		return "@@" + d.Name + "@@"
	}
	return "@@" + d.Name + " " + d.Args + "@@"
}

var openTagRE = regexp.MustCompile(`(?m)^[ \t]*<([a-zA-Z][a-zA-Z0-9_:-]*)(?:\s[^<>\n]*)?>`)

// spoken names the elements in which agents put what the person says now.
var spoken = map[string]bool{
	"task": true, "user_input": true, "user_message": true, "user_query": true,
	"user-query": true, "feedback": true, "prompt": true,
}

// SplitQuoted parts a user text into what the person says now and what is only
// quoted to the agent: elements such as <system-reminder>…</system-reminder>
// that begin at the start of a line. A preamble that retells an earlier
// conversation is read in this way: its directives are history, they are not
// carried out again.
func SplitQuoted(text string) (now, quoted string) {
	var n, q strings.Builder
	for {
		m := openTagRE.FindStringSubmatchIndex(text)
		if m == nil {
			break
		}
		name := text[m[2]:m[3]]
		end := strings.Index(text[m[1]:], "</"+name+">")
		if end < 0 || spoken[strings.ToLower(name)] {
			n.WriteString(text[:m[1]])
			text = text[m[1]:]
			continue
		}
		n.WriteString(text[:m[0]])
		q.WriteString(text[m[1] : m[1]+end])
		q.WriteString("\n")
		text = text[m[1]+end+len("</"+name+">"):]
	}
	n.WriteString(text)
	return n.String(), q.String()
}
