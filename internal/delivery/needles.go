package delivery

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// MinSecret is the length in bytes from which a secret is looked for: shorter ones are found by chance.
const MinSecret = 16

// needles are the forms of the secrets that are looked for: as they are, escaped
// for JSON and URLs, in base64 (each of the three alignments, both alphabets) and in hex.
func needles(secrets [][]byte) [][]byte {
	seen := map[string]bool{}
	var out [][]byte
	add := func(b []byte) {
		if len(b) >= MinSecret && !seen[string(b)] {
			seen[string(b)] = true
			out = append(out, b)
		}
	}
	for _, s := range secrets {
		s = bytes.TrimSpace(s)
		if len(s) < MinSecret {
			continue
		}
		add(s)
		for _, e := range jsonForms(string(s)) {
			add([]byte(e))
		}
		add([]byte(url.QueryEscape(string(s))))
		add([]byte(url.PathEscape(string(s))))
		h := hex.EncodeToString(s)
		add([]byte(h))
		add([]byte(strings.ToUpper(h)))
		for shift := range 3 {
			for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				add(base64Core(enc, s, shift))
			}
		}
	}
	return out
}

// base64Core are the characters of an encoding that depend on s alone when shift
// bytes are before it (modulo 3) and anything follows.
func base64Core(enc *base64.Encoding, s []byte, shift int) []byte {
	full := enc.EncodeToString(append(make([]byte, shift), s...))
	first := (shift*8 + 5) / 6
	last := (shift + len(s)) * 8 / 6
	return []byte(full[first:last])
}

// jsonForms are the ways in which usual encoders write a string.
func jsonForms(s string) []string {
	var forms []string
	var b bytes.Buffer
	for _, html := range []bool{true, false} {
		b.Reset()
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(html)
		if err := enc.Encode(s); err != nil { // strings always encode
			continue
		}
		t := strings.TrimSuffix(b.String(), "\n")
		forms = append(forms, t[1:len(t)-1])
	}
	plain := forms[len(forms)-1]
	return append(forms, strings.ReplaceAll(plain, "/", `\/`), asciiOnly(plain))
}

// asciiOnly escapes what is beyond ASCII, as Python's encoder does.
func asciiOnly(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
			continue
		}
		units := []rune{r}
		if r1, r2 := utf16.EncodeRune(r); r1 != utf8.RuneError {
			units = []rune{r1, r2}
		}
		for _, u := range units {
			const digits = "0123456789abcdef"
			b.WriteString(`\u`)
			for shift := 12; shift >= 0; shift -= 4 {
				b.WriteByte(digits[u>>shift&15])
			}
		}
	}
	return b.String()
}

// finder looks for needles in a stream that comes in pieces.
type finder struct {
	needles [][]byte
	keep    int // longest needle less one
	tail    []byte
}

func newFinder(n [][]byte) *finder {
	f := &finder{needles: n}
	for _, x := range n {
		f.keep = max(f.keep, len(x)-1)
	}
	return f
}

func (f *finder) reset() { f.tail = f.tail[:0] }

// found says whether a needle ends in p, given what came before it.
func (f *finder) found(p []byte) bool {
	for _, n := range f.needles {
		if bytes.Contains(p, n) {
			return true
		}
	}
	if len(f.tail) > 0 {
		seam := append(bytes.Clone(f.tail), p[:min(len(p), f.keep)]...)
		for _, n := range f.needles {
			if bytes.Contains(seam, n) {
				return true
			}
		}
	}
	if len(p) >= f.keep {
		f.tail = append(f.tail[:0], p[len(p)-f.keep:]...)
	} else {
		f.tail = append(f.tail, p...)
		if over := len(f.tail) - f.keep; over > 0 {
			f.tail = append(f.tail[:0], f.tail[over:]...)
		}
	}
	return false
}
