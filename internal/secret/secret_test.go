package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	const canary = "sk-canary-0123456789"
	s := New(canary)
	type inner struct{ key Secret }
	type outer struct {
		Key  Secret
		deep inner
		many []Secret
		by   map[string]Secret
	}
	o := outer{Key: s, deep: inner{s}, many: []Secret{s}, by: map[string]Secret{"k": s}}
	var shown []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%08.3f", "%U", "%c"} {
		for _, v := range []any{s, &s, o, &o, []any{s}} {
			shown = append(shown, fmt.Sprintf(verb, v))
		}
	}
	for _, v := range []any{s, o, &o} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		shown = append(shown, string(b))
	}
	var text, js bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("m", "key", s, "outer", o, "ptr", &o)
	slog.New(slog.NewJSONHandler(&js, nil)).Info("m", "key", s, "outer", o, "ptr", &o)
	shown = append(shown, text.String(), js.String(), fmt.Errorf("use %v: %w", s, fmt.Errorf("%s", s)).Error())
	for _, out := range shown {
		for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary)} {
			if strings.Contains(out, form) {
				t.Errorf("shown: %s", out)
			}
		}
	}
	if got := s.Reveal(); got != canary {
		t.Errorf("Reveal() = %q", got)
	}
}

func TestSecretEqualAndEmpty(t *testing.T) {
	t.Parallel()
	var zero Secret
	if !zero.Empty() || !New("").Empty() || New("a").Empty() {
		t.Error("Empty is wrong")
	}
	if !New("a").Equal(New("a")) || New("a").Equal(New("b")) || !zero.Equal(New("")) {
		t.Error("Equal is wrong")
	}
}
