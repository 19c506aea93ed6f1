package script_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/testkit/script"
)

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       []script.Directive
	}{
		{"none", "Please look at the code.", nil},
		{"one in words", "Do this: @@run make test@@ and stop.", []script.Directive{{"run", "make test"}}},
		{"without arguments", "@@cut@@ then @@recall@@", []script.Directive{{"cut", ""}, {"recall", ""}}},
		{"several in order", "@@say a@@@@write x y z@@", []script.Directive{{"say", "a"}, {"write", "x y z"}}},
		{"several lines", "@@write a.txt one\ntwo\n@@", []script.Directive{{"write", "a.txt one\ntwo"}}},
		{"any case", "@@WRITE a b@@", []script.Directive{{"write", "a b"}}},
		{"hunk headers of a diff", "@@ -1,3 +1,4 @@\n-a\n+b\n@@ -9 +10 @@", nil},
		{"not closed", "@@run make", nil},
		{"quotes and dollars stay", `@@run sed -i 's/a - b/a + b/' "$f"@@`, []script.Directive{{"run", `sed -i 's/a - b/a + b/' "$f"`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(tt.want, script.Parse(tt.text)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestSplitQuoted(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, now, quoted string }{
		{"plain", "hello", "hello", ""},
		{"reminder first", "<system-reminder>\n@@say old@@\n</system-reminder>\n@@say new@@", "\n@@say new@@", "\n@@say old@@\n\n"},
		{"attributes", "<earlier turns=\"2\">a</earlier>b", "b", "a\n"},
		{"the agent's wrapping of the prompt", "<task>\n@@say x@@\n</task>", "<task>\n@@say x@@\n</task>", ""},
		{"quoted inside the wrapping", "<task>\n<old>\na\n</old>\n</task>", "<task>\n\n</task>", "\na\n\n"},
		{"never closed", "<b>\n@@say x@@", "<b>\n@@say x@@", ""},
		{"in the middle of a line", "write if a <b> c </b>", "write if a <b> c </b>", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			now, quoted := script.SplitQuoted(tt.text)
			if d := cmp.Diff([]string{tt.now, tt.quoted}, []string{now, quoted}); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	d := script.Parse("@@write a/b.txt  two  words@@")[0]
	first, rest := d.Split()
	if first != "a/b.txt" || rest != "two  words" {
		t.Errorf("Split = %q, %q", first, rest)
	}
	n := script.Parse("@@slow 5 20 x -3@@")[0]
	if got := []int{n.Int(0, 9), n.Int(1, 9), n.Int(2, 9), n.Int(3, 9), n.Int(4, 9)}; !cmp.Equal(got, []int{5, 20, 9, 9, 9}) {
		t.Errorf("Int = %v", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("@@run make test@@ <a>\n@@say x@@</a>")
	f.Add("<task>\n<old>@@cut@@")
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range script.Parse(text) {
			if d.Name == "" || strings.Contains(d.Args, "@@") {
				t.Fatalf("bad directive %q", d)
			}
			if strings.HasSuffix(d.Args, "@") {
				continue // would run into the closing signs
			}
			if again := script.Parse(d.String()); len(again) != 1 || again[0] != d {
				t.Fatalf("%q reads back as %q", d, again)
			}
		}
		now, quoted := script.SplitQuoted(text)
		if len(now)+len(quoted) > 2*len(text)+1 {
			t.Fatalf("text grew from %d to %d", len(text), len(now)+len(quoted))
		}
	})
}
