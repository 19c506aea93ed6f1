package forge_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/fault"
)

func TestParseRemote(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in, url, door string
		code          fault.Code
		words         string
	}{
		{in: "https://github.com/acme/calc", url: "https://github.com/acme/calc", door: "/github.com/acme/calc"},
		{in: "HTTPS://GitHub.com:443/Acme/Calc.git/", url: "https://github.com/Acme/Calc.git", door: "/github.com/Acme/Calc"},
		{in: "http://127.0.0.1:3000/a/b.git", url: "http://127.0.0.1:3000/a/b.git", door: "/127.0.0.1:3000/a/b"},
		{in: "http://[::1]:80/a", url: "http://[::1]/a", door: "/[::1]/a"},
		{in: "https://h.test/a%20b/c", url: "https://h.test/a%20b/c", door: "/h.test/a%20b/c"},
		{in: "/srv/git/x.git/", url: "/srv/git/x.git", door: "/local/srv/git/x"},
		{in: "file:///srv/git/x y.git", code: fault.InvalidInput, words: "spaces"},
		{in: "", code: fault.InvalidInput, words: "No repository"},
		{in: "https://me:secret-pass@h.test/a", code: fault.InvalidInput, words: "credentials file"},
		{in: "https://token@h.test/a", code: fault.InvalidInput, words: "credentials file"},
		{in: "https://h.test", code: fault.InvalidInput, words: "no repository"},
		{in: "https://h.test/a?x=1", code: fault.InvalidInput, words: "query"},
		{in: "https://h.test/a#x", code: fault.InvalidInput, words: "query"},
		{in: "https://h.test/a/../b", code: fault.InvalidInput, words: "path"},
		{in: "https://h.test/a/%2e%2e/b", code: fault.InvalidInput, words: "path"},
		{in: "https://h.test//a", code: fault.InvalidInput, words: "path"},
		{in: "https://h.test/a%0ab", code: fault.InvalidInput, words: "path"},
		{in: "https://münchen.test/a", code: fault.InvalidInput, words: "xn--"},
		{in: "https://-h.test/a", code: fault.InvalidInput, words: "host"},
		{in: "https://h.test:/a", code: fault.InvalidInput, words: "host"},
		{in: "https://h_\"x.test/a", code: fault.InvalidInput, words: "URL"},
		{in: "https://h.test/a\nb", code: fault.InvalidInput, words: "control"},
		{in: "-uhttps://h.test/a", code: fault.InvalidInput, words: "dash"},
		{in: "--upload-pack=x", code: fault.InvalidInput, words: "dash"},
		{in: "https://h.test/" + strings.Repeat("a", 3000), code: fault.InvalidInput, words: "longer"},
		{in: "git@github.com:acme/calc.git", code: fault.Unsupported, words: "https://github.com/acme/calc.git"},
		{in: "ssh://git@github.com:22/acme/calc", code: fault.Unsupported, words: "https://github.com/acme/calc"},
		{in: "ext::sh -c x", code: fault.InvalidInput, words: "spaces"},
		{in: "ext::sh", code: fault.Unsupported, words: "ext::"},
		{in: "fd::7", code: fault.Unsupported, words: "fd::"},
		{in: "ftp://h.test/a", code: fault.Unsupported, words: "ftp"},
		{in: "git://h.test/a", code: fault.Unsupported, words: "https"},
		{in: "../x", code: fault.InvalidInput, words: "slash"},
		{in: "~/x", code: fault.InvalidInput, words: "slash"},
		{in: "file://h.test/x", code: fault.InvalidInput, words: "file:///"},
		{in: "acme/calc", code: fault.InvalidInput, words: "https://host/owner/name"},
	} {
		r, err := forge.ParseRemote(c.in, true)
		if c.code != "" {
			if fault.CodeOf(err) != c.code || !strings.Contains(fault.From(err).Sentence(), c.words) {
				t.Errorf("%q: %+v, %v; want %s with %q", c.in, r, err, c.code, c.words)
			}
			if err != nil && strings.Contains(err.Error(), "secret-pass") {
				t.Errorf("%q: the error tells the password", c.in)
			}
			continue
		}
		if err != nil || r.URL != c.url || r.DoorPath() != c.door {
			t.Errorf("%q: %+v, door %s, %v", c.in, r, r.DoorPath(), err)
		}
	}
	for _, p := range []string{"/srv/x", "file:///srv/x", "./x"} {
		if _, err := forge.ParseRemote(p, false); fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("%s where folders are not allowed: %v", p, err)
		}
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	r, err := forge.ParseRemote("https://h.test:8443/acme/calc.git", false)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Forms()
	want := []string{
		"git+ssh://git@h.test/acme/calc.git", "git+ssh://git@h.test/acme/calc",
		"https://h.test:8443/acme/calc.git", "http://h.test:8443/acme/calc.git",
		"ssh://git@h.test/acme/calc.git", "https://h.test:8443/acme/calc",
		"http://h.test:8443/acme/calc", "ssh://git@h.test/acme/calc",
		"ssh://h.test/acme/calc.git", "git://h.test/acme/calc.git", "git@h.test:acme/calc.git",
		"ssh://h.test/acme/calc", "git://h.test/acme/calc", "git@h.test:acme/calc",
		"h.test:acme/calc.git", "h.test:acme/calc",
	}
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("forms (-want +got):\n%s", diff)
	}
	if !slices.IsSortedFunc(got, func(a, b string) int { return len(b) - len(a) }) {
		t.Errorf("not the longest first: %q", got)
	}
	// Git itself must lead each form, and a sibling's, to the door's path.
	args := []string{}
	for _, f := range got {
		args = append(args, "-c", "url.http://door"+r.DoorPath()+".insteadOf="+f)
	}
	for in, out := range map[string]string{
		"git@h.test:acme/calc.git":          "http://door/h.test:8443/acme/calc",
		"https://h.test:8443/acme/calc":     "http://door/h.test:8443/acme/calc",
		"https://h.test:8443/acme/calc.git": "http://door/h.test:8443/acme/calc",
		"ssh://git@h.test/acme/calc.git":    "http://door/h.test:8443/acme/calc",
	} {
		b, err := exec.CommandContext(t.Context(), "git", append(args, "ls-remote", "--get-url", in)...).Output()
		if err != nil || strings.TrimSpace(string(b)) != out {
			t.Errorf("git rewrites %s to %s, %v; want %s", in, b, err, out)
		}
	}
}

func FuzzParseRemote(f *testing.F) {
	for _, s := range []string{"https://h.test/a/b.git", "git@h:x", "http://[::1]:80/a", "/a/b", "file:///x", "https://a@b/c", "ext::x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		r, err := forge.ParseRemote(in, true)
		if err != nil {
			if fault.CodeOf(err) == fault.InternalError {
				t.Fatalf("%q: %v", in, err)
			}
			return
		}
		again, err := forge.ParseRemote(r.URL, true)
		if err != nil || again != r {
			t.Fatalf("%q gives %+v, that gives %+v, %v", in, r, again, err)
		}
		if strings.HasPrefix(r.URL, "-") || strings.ContainsAny(r.URL, "\n\r\x00 ") || !r.File() && strings.Contains(r.URL, "@") && strings.Contains(r.Host, "@") {
			t.Fatalf("%q gives %q", in, r.URL)
		}
	})
}

func TestCheckBranch(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"main", "hearth/x-1", "ünï/cödé", "a.b", "feature/#12", "x@y"} {
		if err := forge.CheckBranch(ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "-x", "HEAD", "@", "refs/heads/x", "a b", "a..b", "a/", "/a", "a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "a@{b", "a\x7f", "a\nb", "\xff", strings.Repeat("a", 201)} {
		if err := forge.CheckBranch(bad); fault.CodeOf(err) != fault.BranchInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzValidRef(f *testing.F) {
	for _, s := range []string{"main", "a/b", "a..b", "x.lock", "@", "@{", "a/@", ".", "a\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if strings.ContainsRune(name, 0) || len(name) > 10_000 {
			return // cannot be an argument
		}
		want := exec.CommandContext(t.Context(), "git", "check-ref-format", "refs/heads/"+name).Run() == nil
		if got := forge.ValidRef(name); got != want {
			t.Errorf("%q: %v, git says %v", name, got, want)
		}
	})
}

func TestFreshBranch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		task, want string
		heads      map[string]string
	}{
		{"Fix the bug\nin calc", "hearth/fix-the-bug-7k", nil},
		{"Fix it!", "hearth/fix-it-7k-2", map[string]string{"hearth/fix-it-7k": "x"}},
		{"Fix it!", "hearth/fix-it-7k-3", map[string]string{"hearth/fix-it-7k/sub": "x", "hearth/FIX-IT-7k-2": "y"}},
		{"Fix it", "hearth-fix-it-7k", map[string]string{"hearth": "x"}},
		{"日本語", "hearth/7k", nil},
		{"  ../..//-x .lock ", "hearth/x-lock-7k", nil},
		{strings.Repeat("word ", 40), "hearth/word-word-word-word-word-word-word-7k", nil},
		{strings.Repeat("x", 400), "hearth/" + strings.Repeat("x", 40) + "-7k", nil},
	} {
		got := forge.FreshBranch(c.task, "7k", c.heads)
		if got != c.want {
			t.Errorf("%.40q beside %v: %s, want %s", c.task, c.heads, got, c.want)
		}
		if err := forge.CheckBranch(got); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "credentials")
	content := `# comment
https://host:pa%40ss@h.test
https://one:1@h.test/acme/calc.git
http://plain:2@h.test
https://port:3@h.test:8443
https://nopass@other.test
garbage
`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &forge.Credentials{File: file, Tokens: forge.EnvTokens(func(k string) string {
		return map[string]string{"GITHUB_TOKEN": " gh-token\n"}[k]
	})}
	for in, want := range map[string]forge.Credential{
		"https://h.test/a/b":         {Username: "host", Password: "pa@ss"},
		"https://h.test/acme/calc":   {Username: "one", Password: "1"},
		"https://h.test/acme/calc2":  {Username: "host", Password: "pa@ss"},
		"http://h.test/a":            {Username: "plain", Password: "2"},
		"https://h.test:8443/a":      {Username: "port", Password: "3"},
		"https://sub.h.test/a":       {},
		"https://other.test/a":       {},
		"https://github.com/a/b":     {Username: "x-access-token", Password: "gh-token"},
		"http://github.com/a/b":      {},
		"https://github.com:444/a/b": {},
		"/srv/x":                     {},
	} {
		r, err := forge.ParseRemote(in, true)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.For(r)
		if err != nil || got != want {
			t.Errorf("%s: user %q, %v; want %q", in, got.Username, err, want.Username)
		}
	}
	r, _ := forge.ParseRemote("https://h.test/a", false)
	if _, err := (&forge.Credentials{File: file + "-gone"}).For(r); fault.CodeOf(err) != fault.ConfigInvalid {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestCredentialHidesItself(t *testing.T) {
	t.Parallel()
	c := forge.Credential{Username: "u", Password: "canary"}
	b, err := json.Marshal(map[string]any{"c": c})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{string(b), fmt.Sprint(c), fmt.Sprintf("%v %+v %#v %s", c, c, c, c), c.LogValue().String()} {
		if strings.Contains(s, "canary") {
			t.Errorf("shown as %s", s)
		}
	}
}
