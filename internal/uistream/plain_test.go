package uistream

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPlain(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain é\r\n\t":                      "plain é\r\n\t",
		"\x1b[31mred\x1b[0m":                 "red",
		"\x1b[?1049h\x1b[?1000hx":            "x",
		"a\x1b]0;title\x07b":                 "ab",
		"a\x1b]8;;http://x\x1b\\link":        "alink",
		"a\x1bPq#0\x1b\\b":                   "ab",
		"\x1b(Bx\x1b=y\x1bMz":                "xyz",
		"\x00\x07\x08\x0b\x0c\x7f":           strings.Repeat("\uFFFD", 6),
		"\u009b31m":                          "\uFFFD31m",
		"a\x1b":                              "a",
		"a\x1b[31":                           "a",
		"\x1b[31\x1b[1mx":                    "x",
		"\x1b]0;never ended\nshown":          "\nshown",
		"\x1b\x01é":                          "\uFFFDé",
		"\x1b]" + strings.Repeat("x", 10000): strings.Repeat("x", 10000-plainMost+1),
	} {
		got, changed := PlainText(in)
		if got != want || changed != (in != want) {
			t.Errorf("%.50q: %.80q (%d), %v", in, got, len(got), changed)
		}
		var p Plain
		var pieces strings.Builder
		for _, r := range in {
			s, _ := p.Text(string(r))
			pieces.WriteString(s)
		}
		if pieces.String() != want {
			t.Errorf("%.50q in pieces: %.80q", in, pieces.String())
		}
	}
}

func TestPlainJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"a":"\u001b[1mx","b":["\\u001b","\u0000"],"\u0007":1}`: `{"a":"x","b":["\\u001b","` + "\uFFFD" + `"],"` + "\uFFFD" + `":1}`,
		`{"a":"\u00e9\n\t\r","b":"\\b\\f"}`:                      `{"a":"\u00e9\n\t\r","b":"\\b\\f"}`,
		`"\f\b"`:                                                 "\"\uFFFD\uFFFD\"",
		"\"\x7f\u0085\"":                                         "\"\uFFFD\uFFFD\"",
	} {
		if got, _ := PlainJSON([]byte(in)); string(got) != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

func TestBlobDigest(t *testing.T) {
	t.Parallel()
	hex := strings.Repeat("0af9", 16)
	if got, ok := BlobDigest("sha256:" + hex); !ok || got != hex {
		t.Error(got, ok)
	}
	for _, id := range []string{"", hex, "sha256:", "sha256:" + hex[1:], "sha256:" + hex + "0", "sha256:" + strings.ToUpper(hex), "sha256:" + hex[:63] + "/", "md5:" + hex} {
		if _, ok := BlobDigest(id); ok {
			t.Errorf("%q", id)
		}
	}
}

// FuzzText: whatever bytes come in whatever pieces, text is valid and steers nothing, and the
// bytes are all there.
func FuzzText(f *testing.F) {
	f.Add([]byte("a\xe2\x82\xac\xed\xa0\xbd\xed\xb8\x80\xff\x1b[1m"), 2)
	f.Add([]byte("\xed\xa0"), 1)
	f.Add([]byte("\x1b]0;\x1b\\\u009b"), 3)
	f.Fuzz(func(t *testing.T, in []byte, n int) {
		n = max(1, min(n, 100))
		var j Joiner
		var p Plain
		var text strings.Builder
		var raw []byte
		lost := false
		take := func(s string, r []byte, lossy bool) {
			s, _ = p.Text(s)
			text.WriteString(s)
			raw = append(raw, r...)
			lost = lost || lossy
		}
		for rest := in; len(rest) > 0; {
			k := min(n, len(rest))
			take(j.Text(rest[:k:k]))
			rest = rest[k:]
		}
		take(j.End())
		if !utf8.ValidString(text.String()) || HasControl(text.String()) {
			t.Errorf("%q gives %q", in, text.String())
		}
		if utf8.Valid(in) && (lost || !bytes.Equal(raw, in)) || !bytes.Contains(in, []byte{0xed}) && !bytes.Equal(raw, in) {
			t.Errorf("%q became %q, %v", in, raw, lost)
		}
		quoted, err := json.Marshal(string(in))
		if err != nil {
			t.Fatal(err)
		}
		plain, _ := PlainJSON(quoted)
		var s string
		if err := json.Unmarshal(plain, &s); err != nil || HasControl(s) {
			t.Errorf("%s: %q %v", plain, s, err)
		}
		if got := Unquote(quoted); string(got) != strings.ToValidUTF8(string(in), "\uFFFD") && utf8.Valid(in) {
			t.Errorf("%s: %q", quoted, got)
		}
	})
}
