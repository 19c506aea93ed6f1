package secret

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

const key = "sk-canary/Ünïq+\"01\\234<abc>😀xyz%41"

// written are texts that give the key away, each with what may be left of it.
func written() map[string]string {
	js := func(s string) string {
		b, _ := json.Marshal(s)
		return string(b[1 : len(b)-1])
	}
	var all strings.Builder
	for _, r := range []byte("sk-canary-0123456789") {
		fmt.Fprintf(&all, `\u%04X`, r)
	}
	out := map[string]string{
		"raw": key, "json": js(key), "json twice": js(js(key)),
		"python":      `sk-canary/\u00dcn\u00efq+\"01\\234<abc>\ud83d\ude00xyz%41`,
		"java":        `sk-canary/\u00DCn\u00EFq+\"01\\234<abc>\uD83D\uDE00xyz%41`,
		"php":         `sk-canary\/\u00dcn\u00efq+\"01\\234<abc>\ud83d\ude00xyz%41`,
		"slashes":     `sk-canary\/Ünïq+\"01\\234<abc>😀xyz%41`,
		"mixed json":  `\u0073k-c\u0061nary\u002fÜn\u00EFq+\u002201\u005c234<abc\u003e😀xy\u007a%41`,
		"query":       url.QueryEscape(key),
		"path":        url.PathEscape(key),
		"small query": strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(key), "%C3", "%c3"), "%2F", "%2f"),
		"mixed query": "%73k%2Dcanary/%C3%9Cn%c3%afq+%2201%5c234%3Cabc>%F0%9F%98%80xyz%2541",
		"hex":         hex.EncodeToString([]byte(key)),
		"HEX":         strings.ToUpper(hex.EncodeToString([]byte(key))),
	}
	for name, enc := range map[string]*base64.Encoding{"std": base64.StdEncoding, "url": base64.URLEncoding, "raw std": base64.RawStdEncoding, "raw url": base64.RawURLEncoding} {
		for before := range 4 {
			for _, after := range []string{"", "a", "ab"} {
				t := enc.EncodeToString([]byte("abc"[:before] + key + after))
				out[fmt.Sprintf("base64 %s %d %d", name, before, len(after))] = t
				out[fmt.Sprintf("base64 %s %d %d in JSON", name, before, len(after))] = strings.ReplaceAll(t, "/", `\/`)
				out[fmt.Sprintf("base64 %s %d %d in a URL", name, before, len(after))] = url.QueryEscape(t)
			}
		}
	}
	return out
}

func TestEveryWayOfWritingIsFound(t *testing.T) {
	t.Parallel()
	f := NewFinder(Forms([][]byte{[]byte("short"), []byte(" " + key + "\n")}))
	for name, form := range written() {
		s := f.Stream()
		s.Write([]byte("the key is " + form + ", and more"))
		from, to := int64(len("the key is ")), int64(len("the key is "+form))
		found := s.Found()
		if len(found) != 1 {
			t.Errorf("%s: found at %v in %s", name, found, form)
			continue
		}
		rest := int64(0)
		if strings.HasPrefix(name, "base64") {
			rest = 12 // four characters that mix with the neighbours, percent-encoded at worst
		}
		if d := found[0].Start - from; d < 0 || d > rest {
			t.Errorf("%s: %d bytes before it are left", name, d)
		}
		if d := to - found[0].End; d < 0 || d > rest {
			t.Errorf("%s: %d bytes behind it are left", name, d)
		}
	}
}

func TestOtherTextsAreNotFound(t *testing.T) {
	t.Parallel()
	f := NewFinder(Forms([][]byte{[]byte("short"), []byte("   fifteen-bytes-x   "), []byte(key)}))
	for _, text := range []string{
		"", "short", "fifteen-bytes-x", key[:len(key)-1], key[1:], hex.EncodeToString([]byte(key))[2:],
		`\u0073k-c\u0061nary\u00`, `\`, `%`, `%7`, `\ud83d`, `\ud83d\u`, `\ud83d\u0041`, `\x\y\uzzzz%zz%%%\\\`, strings.Repeat("sk-canary/", 1000),
	} {
		s := f.Stream()
		s.Write([]byte(text))
		if got := s.Found(); len(got) > 0 {
			t.Errorf("%q: found at %v", text, got)
		}
	}
	if f := NewFinder(Forms([][]byte{[]byte("fifteen-bytes-x"), nil})); !f.Empty() {
		t.Error("a short value is looked for")
	}
	none := NewFinder(nil).Stream()
	none.Write([]byte(`any \u0041 text %41`))
	if len(none.Found()) != 0 || none.Settled() != none.Size() {
		t.Errorf("without forms: %v, settled at %d", none.Found(), none.Settled())
	}
}

func TestFormsAreDifferentAndLong(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range Forms([][]byte{[]byte(key), []byte(key), []byte("0123456789abcdef"), []byte("0123456789\xff\xfe\xfdabc")}) {
		if seen[string(f)] || len(f) < MinBytes {
			t.Errorf("form %q", f)
		}
		seen[string(f)] = true
	}
}
