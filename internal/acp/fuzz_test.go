package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nbb\n\nccc"), 2)
	f.Add([]byte(`{"jsonrpc":"2.0","method":"m","params":{"update":{"a":"`+strings.Repeat("x", 100)+"\"}}}\n{}\n"), 16)
	f.Fuzz(func(t *testing.T, in []byte, limit int) {
		limit = 1 + max(limit, -limit)%64
		r := newLineReader(iotest.HalfReader(bytes.NewReader(in)), limit, "", 1<<20, nil)
		want := bytes.Split(in, []byte("\n"))
		if last := len(want) - 1; len(want[last]) == 0 {
			want = want[:last]
		}
		for i, w := range want {
			l, err := r.next()
			if err != nil {
				t.Fatalf("line %d of %d: %v", i, len(want), err)
			}
			switch {
			case l.cut == nil:
				if !bytes.Equal(l.text, w) || len(w) > limit+1 {
					t.Fatalf("line %d: %q, want %q", i, l.text, w)
				}
			case len(w) <= limit || l.cut.Bytes != int64(len(w)):
				t.Fatalf("line %d of %d bytes was cut to %d", i, len(w), l.cut.Bytes)
			case l.text != nil && !json.Valid(l.text):
				t.Fatalf("stand-in is no JSON: %q", l.text)
			}
		}
		if _, err := r.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last line: %v", err)
		}
	})
}

// FuzzSkim holds the stand-in against the real decoding: whatever it has is
// what the message has, but for long texts.
func FuzzSkim(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn","a":[1,{"b":2}],"c":null}}`,
		`{"a":{"b":{"c":{"d":{"e":{"f":{"g":1}}}}}},"x":-1.5e3 , "y":true}`,
		`{"params":{"update":{"t":"\"\\ué\n"}}}`, `{"a":"x"`, `[1]`, `{"a" 1}`, `{}`, `{"a":1}x`, `{"params":null}`, `{"":"","0":0,"0":{"":"","":[0,{}]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var s skim
		s.write(in)
		out := s.standIn(&Cut{Bytes: 5, File: `a"b`})
		if out == nil {
			return
		}
		var got map[string]any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("no JSON: %q", out)
		}
		var want map[string]any
		if json.Unmarshal(in, &want) != nil || !unique(json.NewDecoder(bytes.NewReader(in))) {
			return // of no JSON, or a name twice, anything may become, as long as it is JSON
		}
		if !within(got, want) {
			t.Fatalf("%s\nis not within\n%s", out, in)
		}
	})
}

// unique tells whether no object of the next value has a name twice.
func unique(d *json.Decoder) bool {
	tok, err := d.Token()
	if err != nil {
		return false
	}
	delim, is := tok.(json.Delim)
	if !is {
		return true
	}
	names := map[string]bool{}
	for d.More() {
		if delim == '{' {
			tok, err := d.Token()
			name, ok := tok.(string)
			if err != nil || !ok || names[name] {
				return false
			}
			names[name] = true
		}
		if !unique(d) {
			return false
		}
	}
	_, err = d.Token()
	return err == nil
}

func within(got, want map[string]any) bool {
	for k, g := range got {
		if k == CutField {
			continue
		}
		w, ok := want[k]
		if !ok {
			return false
		}
		if gm, is := g.(map[string]any); is {
			wm, is := w.(map[string]any)
			if !is || !within(gm, wm) {
				return false
			}
			continue
		}
		gs, a := g.(string)
		ws, b := w.(string)
		if a && b && len(ws) > skimText/2 {
			if !strings.HasPrefix(ws, strings.TrimSuffix(gs, "…")) {
				return false
			}
			continue
		}
		gj, _ := json.Marshal(g)
		wj, _ := json.Marshal(w)
		if !bytes.Equal(gj, wj) {
			return false
		}
	}
	return true
}

func TestSkimCutsLongTexts(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"x", "é", `\u00e9`, `\ud83d\ude00`, `\\`, `\"`} {
		var s skim
		for _, piece := range []string{`{"a":"`, strings.Repeat(unit, 100_000), `","b":1}`} {
			s.write([]byte(piece))
		}
		var got struct {
			A string `json:"a"`
			B int    `json:"b"`
		}
		out := s.standIn(&Cut{})
		if err := json.Unmarshal(out, &got); err != nil || got.B != 1 || !strings.HasSuffix(got.A, "…") || len(got.A) > skimText+8 || len(got.A) < skimText/8 {
			t.Errorf("%s: %v, %d bytes", unit, err, len(got.A))
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"x","params":[]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		e, ok := parseEnvelope(in)
		if ok && !json.Valid(in) {
			t.Fatal("taken, but no JSON")
		}
		if ok && e.Method == "" && e.Result == nil && e.Error == nil {
			t.Fatal("taken, but nothing")
		}
		if u, err := ParseUpdate(in); err == nil && u.Kind == "" {
			t.Fatal("an update without a kind")
		}
		var p PermissionRequest
		_ = Decode(in, &p)
	})
}

// FuzzJoin: however a message is broken into lines between its tokens, it comes out as it
// is, and no line is lost: each is part of a message or noise.
func FuzzJoin(f *testing.F) {
	f.Add(`{"jsonrpc":"2.0","method":"m","params":{"a":["}","\"]"]}}`, uint64(0xAAAA), "{ x")
	f.Add(`{"jsonrpc":"2.0","id":1,"result":{}}`, uint64(0xFFFF), "}")
	f.Fuzz(func(t *testing.T, message string, cuts uint64, noise string) {
		if strings.ContainsAny(noise, "\n") {
			return
		}
		lines := breakUp(message, cuts)
		_, is := parseEnvelope([]byte(message))
		var j joiner
		got, given := 0, 0
		for i, l := range lines {
			if _, ok := parseEnvelope([]byte(l)); ok && len(lines) > 1 {
				return // a message by itself
			}
			held, whole, back := j.add([]byte(l))
			given += len(back)
			if whole != nil {
				if got++; !is || i != len(lines)-1 || string(whole) != strings.Join(lines, "") {
					t.Fatalf("%q came out of %q", whole, lines)
				}
				given += len(lines)
			}
			if held && (whole != nil || len(back) > 0) {
				t.Fatal("held and given back")
			}
		}
		given += len(j.giveUp())
		if given != len(lines) {
			t.Fatalf("%d of %d lines came back", given, len(lines))
		}
		if is && len(lines) > 1 && len(lines) <= joinLines && got != 1 && strings.HasPrefix(lines[0], "{") {
			t.Fatalf("%q was not put together", lines)
		}
		held, whole, back := j.add([]byte(noise))
		if !held && whole == nil && len(back) != 1 {
			t.Fatalf("%q came back as %q", noise, back)
		}
	})
}

// breakUp cuts a text behind commas, colons and brackets that are outside strings.
func breakUp(text string, cuts uint64) []string {
	var out []string
	quoted, from := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && strings.IndexByte("{}[],:", c) >= 0 && i < len(text)-1:
			if cuts&1 == 1 {
				out, from = append(out, text[from:i+1]), i+1
			}
			cuts = cuts>>1 | cuts<<63
		}
	}
	return append(out, text[min(from, len(text)):])
}
