package scriptedmodel

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/hearthd/hearth/internal/testkit/script"
)

// failedRE finds a failure in what a tool brought back.
var failedRE = regexp.MustCompile(`(?i:exit(?:ed)?(?: with)?(?: code| status)?:? ?[1-9])|(?m:^make(?:\[\d+\])?: \*\*\*)|\bFAIL(?:ED|URE)?\b`)

var (
	testsRE = regexp.MustCompile(`\btests?\b`)
	looksRE = regexp.MustCompile(`^(?:cat|head|less|ls|grep|sed -n)\b`)
	editsRE = regexp.MustCompile(`^sed -i\b|\bperl -p?i\b`)
)

// intro says what comes next, as a model does before a tool call.
func intro(d script.Directive, failed bool) string {
	before := ""
	if failed {
		before = "That failed, as the output shows. "
	}
	switch d.Name {
	case "write":
		file, _ := d.Split()
		return before + "I will write " + path.Base(file) + "."
	case "tool":
		name, _ := d.Split()
		return before + "I will use " + name + "."
	}
	s := describe(d.Args)
	return before + "I will " + strings.ToLower(s[:1]) + s[1:] + "."
}

// describe tells what a command does.
func describe(cmd string) string {
	switch {
	case editsRE.MatchString(cmd):
		return "Change " + lastFile(cmd)
	case looksRE.MatchString(cmd):
		return "Look at " + lastFile(cmd)
	case testsRE.MatchString(cmd):
		return "Run the tests"
	default:
		return "Run `" + shorten(cmd, 80) + "`"
	}
}

// lastFile is the last word of the first command, where that is a name, not an option.
func lastFile(cmd string) string {
	words := strings.Fields(strings.FieldsFunc(cmd, func(r rune) bool { return r == '&' || r == ';' || r == '|' || r == '\n' })[0])
	w := words[len(words)-1]
	if len(words) == 1 || strings.HasPrefix(w, "-") {
		return "the files"
	}
	return path.Base(strings.Trim(w, `'"`))
}

// summary tells what was done in a turn; empty for nothing.
func summary(done []script.Directive, failed bool) string {
	var parts []string
	for _, d := range done {
		switch d.Name {
		case "write":
			file, _ := d.Split()
			parts = append(parts, "wrote "+path.Base(file))
		case "tool":
			name, _ := d.Split()
			parts = append(parts, "used "+name)
		default:
			parts = append(parts, past(describe(d.Args)))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	list := parts[0]
	if n := len(parts); n > 1 {
		list = strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	if failed {
		return fmt.Sprintf("I %s, but the last step failed.", list)
	}
	return fmt.Sprintf("Done: I %s.", list)
}

func past(s string) string {
	verb, rest, _ := strings.Cut(s, " ")
	return map[string]string{"Change": "changed", "Look": "looked", "Run": "ran"}[verb] + " " + rest
}

// echo answers words without a directive.
func echo(text string) string {
	words := strings.Join(strings.Fields(script.Strip(text)), " ")
	if words == "" {
		return "I am a scripted model and see no words to answer."
	}
	return "You asked: " + shorten(words, 120)
}

// title names a conversation by its first words.
func title(text string) string {
	words := strings.Fields(script.Strip(text))
	if len(words) == 0 {
		return "Scripted work"
	}
	return shorten(strings.Join(words[:min(len(words), 6)], " "), 50)
}

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
