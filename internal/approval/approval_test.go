package approval

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want Policy
	}{
		{``, Policy{Mode: Auto}},
		{`null`, Policy{Mode: Auto}},
		{`"ask"`, Policy{Mode: Asking}},
		{`"read-only"`, Policy{Mode: ReadOnly}},
		{`{"mode":"auto"}`, Policy{Mode: Auto}},
		{`{"rules":[{"kind":"read","do":"allow"}]}`, Policy{Mode: ByRules, Rules: []Rule{{Kind: "read", Do: Allow}}}},
		{`{"mode":"rules","default":"deny","rules":[{"command":"go test","do":"allow"}]}`, Policy{Mode: ByRules, Default: Deny, Rules: []Rule{{Command: "go test", Do: Allow}}}},
	} {
		got, err := Parse([]byte(c.in))
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%s: %v %s", c.in, err, d)
		}
		again, err := Parse([]byte(got.Text()))
		if d := cmp.Diff(got, again); d != "" || err != nil {
			t.Errorf("%s as text %s: %v %s", c.in, got.Text(), err, d)
		}
	}
	many := `{"rules":[` + strings.Repeat(`{"kind":"read","do":"ask"},`, MaxRules) + `{"kind":"read","do":"ask"}]}`
	for _, c := range []struct{ in, says string }{
		{`"maybe"`, "auto, ask, read-only"},
		{`"ask`, "not valid JSON"},
		{`7`, "neither a text nor an object."},
		{`{"rules":`, "not valid JSON"},
		{`{"foo":1}`, `have a field "foo" that means nothing here.`},
		{`{"rules":[{"kind":7,"do":"ask"}]}`, "The field rules.kind of the approvals must be a text, not a number."},
		{`{"mode":"ask","rules":[{"kind":"read","do":"allow"}]}`, "no rules of their own"},
		{`{"mode":"auto","default":"deny"}`, "no rules of their own"},
		{`{"mode":"rules"}`, "no rules"},
		{`{}`, "no rules"},
		{`{"rules":[{"kind":"read","do":"perhaps"}]}`, "perhaps"},
		{`{"rules":[{"do":"allow"}]}`, "names no kind"},
		{`{"rules":[{"kind":"reed","do":"allow"}]}`, "reed"},
		{`{"rules":[{"command":" ","do":"allow"}]}`, "blank"},
		{`{"rules":[{"path":"` + strings.Repeat("x", MaxText+1) + `","do":"allow"}]}`, "bytes in one field"},
		{`{"rules":[{"kind":"read","do":"ask"}],"default":"x"}`, "default"},
		{`{"rules":[{"kind":"read","do":"ask","then":1}]}`, "then"},
		{`{"rules":[{"kind":"read","do":"ask"}]} {}`, "more than one"},
		{many, "at most 100"},
		{`"` + strings.Repeat("a", maxBytes) + `"`, "bytes"},
	} {
		if _, err := Parse([]byte(c.in)); fault.CodeOf(err) != fault.InvalidInput || !strings.Contains(err.Error(), c.says) || fault.From(err).Details["fields"] == nil {
			t.Errorf("%.60s: %v, want %q", c.in, err, c.says)
		}
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const work = "/w"
	run := func(line string) Wish {
		cmds, ok := Split(line)
		return Wish{Kind: "execute", Name: "Bash", Commands: cmds, Opaque: !ok, Work: work}
	}
	edit := func(paths ...string) Wish { return Wish{Kind: "edit", Name: "Edit", Paths: paths, Work: work} }
	rules := func(def Verdict, rs ...Rule) Policy { return Policy{Mode: ByRules, Rules: rs, Default: def} }
	for _, c := range []struct {
		name string
		p    Policy
		w    Wish
		want Verdict
	}{
		{"zero", Policy{}, run("rm -rf /"), Allow},
		{"auto", Policy{Mode: Auto}, run("rm"), Allow},
		{"ask", Policy{Mode: Asking}, Wish{Kind: "read"}, Ask},
		{"read-only reads", Policy{Mode: ReadOnly}, Wish{Kind: "read", Paths: []string{"/w/a"}}, Allow},
		{"read-only does not run", Policy{Mode: ReadOnly}, run("ls"), Deny},
		{"read-only and unknown kind", Policy{Mode: ReadOnly}, Wish{Kind: ""}, Deny},
		{"read-only and unread", Policy{Mode: ReadOnly}, Wish{Kind: "read", Opaque: true}, Deny},
		{"no rule", rules("", Rule{Kind: "read", Do: Allow}), edit("/w/a"), Ask},
		{"default", rules(Deny, Rule{Kind: "read", Do: Allow}), edit("/w/a"), Deny},
		{"strictest", rules("", Rule{Kind: "edit", Do: Allow}, Rule{Path: "secret", Do: Deny}), edit("/w/secret/x"), Deny},
		{"strictest whatever the order", rules("", Rule{Path: "secret", Do: Deny}, Rule{Kind: "edit", Do: Allow}), edit("/w/secret"), Deny},
		{"sibling is not below", rules(Ask, Rule{Path: "secret", Do: Deny}), edit("/w/secrets"), Ask},
		{"up and down", rules(Ask, Rule{Path: "secret", Do: Deny}), edit("/w/a/../secret/x"), Deny},
		{"one of two is below", rules(Ask, Rule{Path: "src", Do: Allow}), edit("/w/src/a", "/etc/passwd"), Ask},
		{"both are below", rules(Ask, Rule{Path: "src", Do: Allow}), edit("/w/src/a", "/w/src/b"), Allow},
		{"name", rules(Ask, Rule{Name: "bash", Do: Deny}), run("ls"), Deny},
		{"command", rules(Ask, Rule{Command: "go test", Do: Allow}), run("go test ./..."), Allow},
		{"whole words", rules(Ask, Rule{Command: "go test", Do: Allow}), run("go testing"), Ask},
		{"every command of a line", rules(Ask, Rule{Command: "go test", Do: Allow}), run("go test ./... && rm -rf x"), Ask},
		{"one denied of a line", rules(Allow, Rule{Command: "rm", Do: Deny}), run("ls; rm -rf x"), Deny},
		{"denied in whichever folder", rules(Allow, Rule{Command: "rm", Do: Deny}), run("ls; /bin/rm -rf x"), Deny},
		{"asked in whichever folder", rules(Allow, Rule{Command: "git push", Do: Ask}), run("./tools/git push origin"), Ask},
		{"another program that ends alike", rules(Allow, Rule{Command: "rm", Do: Deny}), run("/bin/farm"), Allow},
		{"denied in one folder only", rules(Allow, Rule{Command: "/bin/rm", Do: Deny}), run("/opt/rm x"), Allow},
		{"allowed as it is named only", rules(Ask, Rule{Command: "go test", Do: Allow}), run("/tmp/go test ./..."), Ask},
		{"hidden by quotes", rules(Allow, Rule{Command: "rm", Do: Deny}), run(`r'm' -rf x`), Deny},
		{"expansion is unread", rules(Allow, Rule{Command: "rm", Do: Deny}), run(`$(echo rm) -rf x`), Ask},
		{"redirection is unread", rules(Ask, Rule{Command: "echo", Do: Allow}), run(`echo x > /etc/passwd`), Ask},
		{"assignment is unread", rules(Ask, Rule{Command: "go", Do: Allow}), run(`GOFLAGS=-toolexec=x go test`), Ask},
		{"unread, and no rule about it", rules(Ask, Rule{Kind: "execute", Do: Allow}), run(`echo $x`), Allow},
		{"quoted blank is one word", rules(Ask, Rule{Command: "go test", Do: Allow}), run(`'go test' x`), Ask},
	} {
		if got := c.p.Decide(c.w); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestAsks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want bool
	}{
		{`"auto"`, false}, {`"read-only"`, false}, {`"ask"`, true},
		{`{"rules":[{"kind":"edit","do":"deny"}],"default":"allow"}`, false},
		{`{"rules":[{"kind":"edit","do":"deny"}]}`, true},
		{`{"rules":[{"kind":"edit","do":"ask"}],"default":"allow"}`, true},
	} {
		p, err := Parse([]byte(c.in))
		if err != nil || p.Asks() != c.want {
			t.Errorf("%s: %t, %v", c.in, p.Asks(), err)
		}
	}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string
		want [][]string
	}{
		{"ls", [][]string{{"ls"}}},
		{"  go   test ./... ", [][]string{{"go", "test", "./..."}}},
		{"a && b || c | d; e & f\ng", [][]string{{"a"}, {"b"}, {"c"}, {"d"}, {"e"}, {"f"}, {"g"}}},
		{`echo "a b" 'c d'`, [][]string{{"echo", "a b", "c d"}}},
		{`g"i"t st'at'us`, [][]string{{"git", "status"}}},
		{`echo ''`, [][]string{{"echo", ""}}},
	} {
		got, ok := Split(c.line)
		if d := cmp.Diff(c.want, got); d != "" || !ok {
			t.Errorf("%q: %t %s", c.line, ok, d)
		}
	}
	for _, line := range []string{"", " ; ", "a $b", "a `b`", "a > b", "(a)", `a \b`, `a "b`, `a 'b`, `a "$b"`, "a # b", "A=1 b", "a *", "a\x00b", "a\r\nb", strings.Repeat("a;", maxCommands+2)} {
		if got, ok := Split(line); ok {
			t.Errorf("%.30q: %q", line, got)
		}
	}
}

// Whatever a line holds, a command that is not allowed by its own words is never allowed
// because of what stands beside it.
func FuzzDecide(f *testing.F) {
	f.Add("go test", "rm -rf /")
	f.Add("go test 'x", "y'")
	p := Policy{Mode: ByRules, Default: Ask, Rules: []Rule{{Command: "go test", Do: Allow}, {Command: "rm", Do: Deny}}}
	f.Fuzz(func(t *testing.T, a, b string) {
		whole, ok := Split(a + "\n" + b)
		w := Wish{Kind: "execute", Commands: whole, Opaque: !ok, Work: "/w"}
		got := p.Decide(w)
		for _, c := range whole {
			one := p.Decide(Wish{Kind: "execute", Commands: [][]string{c}, Work: "/w"})
			if stricter(got, one) != got {
				t.Errorf("%q is %s, the line %s", c, one, got)
			}
		}
		if !ok && got == Allow {
			t.Errorf("an unread line is allowed")
		}
	})
}
