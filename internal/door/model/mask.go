package model

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/hearthd/hearth/internal/secret"
)

// Lengths in bytes: of a key that is looked for, and of a piece of it that counts
// as the key. Providers repeat keys without their beginning, or cut.
const (
	minKey   = 8
	minPiece = 12
)

// masker takes a key, and pieces of it, out of what a provider says: as it is,
// escaped for JSON and URLs, in hex and in base64. It is for concurrent use.
type masker struct {
	key    string
	n      int                 // bytes of a piece
	pieces map[string]struct{} // every one of each form; empty: nothing is looked for
}

func newMasker(key string) *masker {
	m := &masker{key: key, n: min(minPiece, len(key)), pieces: map[string]struct{}{}}
	if len(key) < minKey {
		return m
	}
	digits := hex.EncodeToString([]byte(key))
	m.add(key, url.QueryEscape(key), url.PathEscape(key), digits, strings.ToUpper(digits))
	for before := range 3 {
		// The characters that mix with a neighbour's bits are left out.
		padded := append(make([]byte, before), key...)
		from, to := (before*8+5)/6, len(padded)*8/6
		m.add(base64.RawStdEncoding.EncodeToString(padded)[from:to], base64.RawURLEncoding.EncodeToString(padded)[from:to])
	}
	for _, html := range []bool{true, false} {
		quoted := quote(key, html)
		m.add(quoted, strings.ReplaceAll(quoted, "/", `\/`))
	}
	return m
}

func (m *masker) add(forms ...string) {
	for _, f := range forms {
		for i := 0; i+m.n <= len(f); i++ {
			m.pieces[f[i:i+m.n]] = struct{}{}
		}
	}
}

// quote is a text as JSON has it between quotation marks.
func quote(s string, html bool) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	if err := enc.Encode(s); err != nil {
		panic(err) // a string
	}
	return b.String()[1 : b.Len()-2]
}

// text masks a text; without the key in it, it is the same.
func (m *masker) text(s string) string {
	if len(m.pieces) == 0 {
		return s
	}
	var out strings.Builder
	end := 0 // of what is written or hidden
	for i := 0; i+m.n <= len(s); i++ {
		if _, ok := m.pieces[s[i:i+m.n]]; !ok {
			continue
		}
		if i > end || end == 0 { // else it goes on with the one before
			out.WriteString(s[end:i])
			out.WriteString(secret.Hidden)
		}
		end = i + m.n
	}
	if end == 0 {
		return s
	}
	out.WriteString(s[end:])
	return out.String()
}

// body masks an answer: in JSON each text as it is read, however it is escaped.
func (m *masker) body(data []byte) []byte {
	masked := m.text(string(data))
	if masked == string(data) && bytes.IndexByte(data, '\\') < 0 {
		return data
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if !json.Valid(data) || dec.Decode(&v) != nil {
		return []byte(masked)
	}
	found := false
	if v = m.value(v, &found); !found {
		return []byte(masked)
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it came out of JSON
	}
	return b
}

// value masks all texts in a value of JSON.
func (m *masker) value(v any, found *bool) any {
	switch v := v.(type) {
	case string:
		masked := m.text(v)
		*found = *found || masked != v
		return masked
	case []any:
		for i := range v {
			v[i] = m.value(v[i], found)
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			name := m.text(k)
			*found = *found || name != k
			out[name] = m.value(x, found)
		}
		return out
	}
	return v
}
