package secret

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

// MinBytes is the length below which neither a secret nor a form of one is looked
// for: short values are found everywhere.
const MinBytes = 16

// encodings are the ways in which a secret may be written. Mixtures of escaped
// and plain characters are not among them: a [Stream] reads through those.
var encodings = []func(s []byte) []string{
	func(s []byte) []string { return []string{string(s)} },
	jsonForms,
	func(s []byte) []string { return []string{url.QueryEscape(string(s)), url.PathEscape(string(s))} },
	func(s []byte) []string {
		h := hex.EncodeToString(s)
		return []string{h, strings.ToUpper(h)}
	},
	base64Forms,
}

// Forms are the texts that give values away: each value as it is, escaped for JSON
// and for URLs, in base64 and in hex. White space around a value is no part of it;
// values below [MinBytes] are left out, and so are forms that come twice.
func Forms(values [][]byte) [][]byte {
	seen := map[string]bool{}
	var out [][]byte
	for _, v := range values {
		v = bytes.TrimSpace(v)
		if len(v) < MinBytes {
			continue
		}
		for _, encoding := range encodings {
			for _, form := range encoding(v) {
				if len(form) >= MinBytes && !seen[form] {
					seen[form] = true
					out = append(out, []byte(form))
				}
			}
		}
	}
	return out
}

// base64Forms are the characters that depend on s alone, whatever is before it and
// after it in the encoded text: one for each of the three alignments and each
// alphabet. Padding and the characters that mix with the neighbours are left out.
func base64Forms(s []byte) []string {
	var forms []string
	for shift := range 3 {
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			full := enc.EncodeToString(append(make([]byte, shift), s...))
			forms = append(forms, full[(shift*8+5)/6:(shift+len(s))*8/6])
		}
	}
	return forms
}

// jsonForms are the ways in which usual encoders write a string: Go's with and
// without escapes for HTML, those that escape slashes, those that keep to ASCII, and both.
func jsonForms(s []byte) []string {
	var forms []string
	var b bytes.Buffer
	for _, html := range []bool{true, false} {
		b.Reset()
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(html)
		if err := enc.Encode(string(s)); err != nil { // strings always encode
			continue
		}
		t := strings.TrimSuffix(b.String(), "\n")
		forms = append(forms, t[1:len(t)-1])
	}
	plain := forms[len(forms)-1]
	slashes := strings.ReplaceAll(plain, "/", `\/`)
	return append(forms, slashes, asciiOnly(plain), asciiOnly(slashes))
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
