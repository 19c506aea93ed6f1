package markdown_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/markdown"
)

func quote(s string) string {
	var b strings.Builder
	if err := markdown.Quote(&b, s); err != nil {
		panic(err) // a builder takes everything
	}
	return b.String()
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, want string }{
		{"text", "one\n\ntwo  \n\n", "> one\n>\n> two\n"},
		{"HTML", "a <b>c</b> <!-- x --> 1 < 2 <= <?php", "> a &lt;b>c&lt;/b> &lt;!-- x --> 1 < 2 <= &lt;?php\n"},
		{"a heading stays in the quote", "# x\n---\n</details>", "> # x\n> ---\n> &lt;/details>\n"},
		{"code keeps its signs", "use `List<T>` and ``a ` <b>``", "> use `List<T>` and ``a ` <b>``\n"},
		{"a fence keeps its signs", "x\n```html\n<script>\n\tx\n```\n<b>", "> x\n> ```html\n> <script>\n> \tx\n> ```\n> &lt;b>\n"},
		{"a fence without an end", "~~~\n<script>\n```", "> ~~~\n> <script>\n> ```\n"},
		{"a shorter mark ends nothing", "````\n```\n<b>\n   `````\n<i>", "> ````\n> ```\n> <b>\n>    `````\n> &lt;i>\n"},
		{"a tab before the mark", "```\n<b>\n\t```\n<i>", "> ```\n> <b>\n>     ```\n> <i>\n"},
		{"an indented fence is not sure", "  ```\n<b>\n  ```\n```\n<script>\n```", ">   ```\n> &lt;b>\n>   ```\n> ```\n> &lt;script>\n> ```\n"},
		{"a mark that has its twin on another line", "a ` b\n`<script>`", "> a ` b\n> `&lt;script>`\n"},
		{"cells of a table", "| ` | <script> ` |", "> | ` | &lt;script> ` |\n"},
		{"an escaped mark", "\\`<script>` `", "> \\`&lt;script>` `\n"},
		{"a mark in an address", "[a](b`c) <script> `", "> [a](b`c) &lt;script> `\n"},
		{"a tag over code", "<a`b`>", "> &lt;a`b`>\n"},
		{"control characters", "\x1b[2Ja\rb\u202e", "> ␛[2Ja␍b\n"},
	} {
		if d := cmp.Diff(c.want, quote(c.in)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestFenceLineCode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, got, want string }{
		{"fence", markdown.Fence("text", "a"), "```text\na\n```\n"},
		{"fence in a fence", markdown.Fence("text", "````\n</details>\n```\n"), "`````text\n````\n</details>\n```\n`````\n"},
		{"empty fence", markdown.Fence("json", ""), "```json\n```\n"},
		{"CR", markdown.Fence("text", "a\r```\r\nb"), "````text\na␍```\nb\n````\n"},
		{"line", markdown.Line("a\n# *b* <i>&lt; [x](y) `c` | ~"), "a \\# \\*b\\* \\<i\\>\\&lt; \\[x\\](y) \\`c\\` \\| \\~"},
		{"code", markdown.Code("a`b\n``"), "``` a`b `` ```"},
		{"no code", markdown.Code(" \n"), ""},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func FuzzQuote(f *testing.F) {
	for _, s := range []string{"```\n<b>\n```", "- ```\n  <b>\n`<i>`", "a ` <b>\n ~~~\n<i>", "\t```\n> ```\n<b>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := quote(s)
		if !utf8.ValidString(got) || !strings.HasSuffix(got, "\n") {
			t.Fatalf("%q", got)
		}
		for _, l := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
			if l != ">" && !strings.HasPrefix(l, "> ") || strings.ContainsAny(l, "\r\x1b") {
				t.Fatalf("the line %q of %q", l, got)
			}
		}
		// Without a mark nothing is code.
		plain := quote(strings.NewReplacer("`", "", "~", "").Replace(s))
		for i, c := range plain {
			if c == '<' && i+1 < len(plain) && strings.ContainsAny(plain[i+1:i+2], "/!?abcXYZ") {
				t.Fatalf("HTML in %q", plain)
			}
		}
		fence := strings.Split(strings.TrimSuffix(markdown.Fence("text", s), "\n"), "\n")
		mark := strings.TrimSuffix(fence[0], "text")
		for _, l := range fence[1 : len(fence)-1] {
			if strings.Contains(l, mark) {
				t.Fatalf("%q ends the fence early", l)
			}
		}
	})
}
