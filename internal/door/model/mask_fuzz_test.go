package model

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
)

func FuzzMask(f *testing.F) {
	const key = `sk-proj-Ab+Cd/Ef0123456789"QrStUvWx`
	m := newMasker(key)
	f.Add("x", "y", 0)
	f.Add(`\`, `\"`, 3)
	f.Add(key[:13], key[5:], 1)
	f.Fuzz(func(t *testing.T, before, after string, form int) {
		forms := []string{key, hex.EncodeToString([]byte(key)), key[8:], key[:20]}
		secret := forms[uint(form)%uint(len(forms))]
		if got := m.text(before + secret + after); strings.Contains(got, secret) {
			t.Errorf("%q has %q", got, secret)
		}
		whole := base64.StdEncoding.EncodeToString([]byte(before + key + after))
		if got := m.text(whole); got == whole {
			t.Errorf("base64 %q passes", whole)
		}
		body, err := json.Marshal(map[string]any{"error": []any{before, before + secret + after, 1.5}, after: "x"})
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if got := m.body(body); strings.Contains(string(got), secret) || json.Unmarshal(got, &v) != nil {
			t.Errorf("%q became %q", body, got)
		}
		if plain := m.text(before); len(before) < minPiece && plain != before {
			t.Errorf("%q became %q", before, plain)
		}
	})
}
