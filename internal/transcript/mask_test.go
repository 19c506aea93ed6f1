package transcript

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/secret"
)

// escape writes the inside of a JSON string with any mix of escaped and plain characters.
func escape(r *rand.Rand, s string) string {
	much := r.IntN(4) // 0: only what must be
	var b strings.Builder
	for _, c := range s {
		short := strings.IndexRune("\"\\/\b\f\n\r\t", c)
		must := c == '"' || c == '\\' || c < ' '
		switch any := much > 0 && r.IntN(4-much) == 0; {
		case short >= 0 && (must || any) && r.IntN(2) == 0:
			b.WriteString(`\` + `"\/bfnrt`[short:short+1])
		case must || any:
			units := []rune{c}
			if hi, lo := utf16.EncodeRune(c); hi != utf8.RuneError {
				units = []rune{hi, lo}
			}
			for _, u := range units {
				fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`}[r.IntN(2)], u)
			}
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// percent encodes what must be and, at times, what need not be.
func percent(r *rand.Rand, s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c == '%' || c == ' ' || c >= utf8.RuneSelf || r.IntN(3) == 0 {
			fmt.Fprintf(&b, []string{"%%%02x", "%%%02X"}[r.IntN(2)], c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func newSecret(r *rand.Rand) string {
	alphabet := []rune([]string{
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_",
		"ab", "0123456789", `"\/u0061nt{}:,%<>&+ .`, "aé😀\"\\/%\t日",
	}[r.IntN(5)])
	for {
		var b strings.Builder
		for n := secret.MinBytes + r.IntN(40); b.Len() < n; {
			b.WriteRune(alphabet[r.IntN(len(alphabet))])
		}
		if s := strings.TrimSpace(b.String()); len(s) >= secret.MinBytes {
			return s
		}
	}
}

// encode writes a secret in one way. exact: nothing of the text remains when it is masked.
func encode(r *rand.Rand, s string) (text string, exact bool) {
	b64 := func(e *base64.Encoding) (string, bool) {
		return e.EncodeToString([]byte("αβ"[:r.IntN(3)] + s + "αβ"[:r.IntN(3)])), false
	}
	switch r.IntN(10) {
	case 0:
		return escape(r, s), true // JSON within a string
	case 1:
		return percent(r, s), true
	case 2:
		return url.QueryEscape(s), true
	case 3:
		return hex.EncodeToString([]byte(s)), true
	case 4:
		return strings.ToUpper(hex.EncodeToString([]byte(s))), true
	case 5:
		return b64(base64.StdEncoding)
	case 6:
		return b64(base64.RawURLEncoding)
	case 7:
		return b64(base64.URLEncoding)
	}
	return s, true
}

// pieces cuts a text at borders of characters; some pieces are empty.
func pieces(r *rand.Rand, s string) []string {
	var out []string
	at, most := 0, 1+r.IntN(40)
	for i := range s {
		if i > at && r.IntN(most) == 0 {
			out = append(out, s[at:i])
			at = i
			for r.IntN(10) == 0 {
				out = append(out, "")
			}
		}
	}
	return append(out, s[at:])
}

// stream is a turn's parts with what they say.
type stream struct {
	parts []json.RawMessage
	want  map[string]string // text of each block when masked; absent: not known exactly
	clean map[int]bool      // parts without anything of a secret
}

// noise has nothing that a form begins or ends with.
const noise = "λόγος ἐν ἀρχῇ ἦν — ὁ λόγος "

func newStream(r *rand.Rand, secrets []string) stream {
	st := stream{want: map[string]string{}, clean: map[int]bool{}}
	var blocks [][]string
	for i, kind := range []string{"text", "reasoning", "tool-input"}[:1+r.IntN(3)] {
		id := fmt.Sprint("b", i)
		var text, want strings.Builder
		// A secret that is in quotes takes the string that has it with it.
		exact := !slices.ContainsFunc(secrets, func(s string) bool { return s[0] == '"' || s[len(s)-1] == '"' })
		for range 1 + r.IntN(3) {
			n := string([]rune(noise)[:r.IntN(20)])
			text.WriteString(n + "·")
			want.WriteString(n + "·")
			if len(secrets) > 0 && r.IntN(4) > 0 {
				form, ok := encode(r, secrets[r.IntN(len(secrets))])
				exact = exact && ok
				text.WriteString(form)
				want.WriteString(Mask)
			}
		}
		text.WriteString("· end")
		want.WriteString("· end")
		if exact {
			st.want[id] = want.String()
		}
		idField, textField := "id", "delta"
		if kind == "tool-input" {
			idField, textField = "toolCallId", "inputTextDelta"
		}
		block := []string{fmt.Sprintf(`{"type":"%s-start","%s":"%s","x": 1.50 }`, kind, idField, id)}
		for _, p := range pieces(r, text.String()) {
			fields := []string{`"type":"` + kind + `-delta"`, `"` + idField + `" : "` + escape(r, id) + `"`, `"` + escape(r, textField) + `":"` + escape(r, p) + `"`, `"z":{"delta":[1,true,"x"]}`}
			r.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
			block = append(block, "{"+strings.Join(fields, ", ")+"}")
		}
		switch {
		case r.IntN(3) == 0: // it never ends
		case kind == "tool-input":
			block = append(block, fmt.Sprintf(`{"type":"tool-input-available","toolCallId":"%s","input":{}}`, id))
		default:
			block = append(block, fmt.Sprintf(`{"type":"%s-end","id":"%s"}`, kind, id))
		}
		blocks = append(blocks, block)
	}
	for len(blocks) > 0 {
		if r.IntN(5) == 0 {
			p := fmt.Sprintf(`{"type":"data-x","data":[{"%s":"%s"},-1.5e+300,null]}`, escape(r, noise), escape(r, noise+`"\`))
			st.clean[len(st.parts)] = true
			if len(secrets) > 0 && r.IntN(2) == 0 {
				form, _ := encode(r, secrets[r.IntN(len(secrets))])
				p = fmt.Sprintf(`{"type":"data-x","data":[{"%s":"k"},-1.5e+300,null,"%s"]}`, escape(r, noise+form), escape(r, form+noise))
				delete(st.clean, len(st.parts))
			}
			st.parts = append(st.parts, json.RawMessage(p))
			continue
		}
		i := r.IntN(len(blocks))
		st.parts = append(st.parts, json.RawMessage(blocks[i][0]))
		if blocks[i] = blocks[i][1:]; len(blocks[i]) == 0 {
			blocks = slices.Delete(blocks, i, i+1)
		}
	}
	return st
}

// said is what the blocks of parts say, and all other strings of the parts.
func said(t *testing.T, parts []Numbered) (blocks map[string]string, others []string) {
	t.Helper()
	blocks = map[string]string{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			others = append(others, v)
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			for k, x := range v {
				others = append(others, k)
				walk(x)
			}
		}
	}
	for _, p := range parts {
		var d struct {
			Type, ID, Delta, ToolCallID, InputTextDelta string
		}
		var v any
		if err := json.Unmarshal(p.Body, &d); err != nil {
			t.Fatalf("%v: %s", err, p.Body)
		}
		if strings.HasSuffix(d.Type, "-delta") {
			blocks[d.ID+d.ToolCallID] += d.Delta + d.InputTextDelta
			continue
		}
		if err := json.Unmarshal(p.Body, &v); err != nil {
			t.Fatal(err)
		}
		walk(v)
	}
	return blocks, others
}

// hides fails when parts have a form of a secret, escaped in whatever way.
func hides(t *testing.T, parts []Numbered, secrets []string) {
	t.Helper()
	blocks, others := said(t, parts)
	for _, s := range blocks {
		others = append(others, s)
	}
	var forms []string
	for _, s := range secrets {
		b := []byte(s)
		forms = append(forms, s, hex.EncodeToString(b), strings.ToUpper(hex.EncodeToString(b)))
		for shift := range 3 {
			e := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), b...))
			e = e[4 : len(e)-4]
			forms = append(forms, e, strings.NewReplacer("+", "-", "/", "_").Replace(e))
		}
	}
	for _, s := range others {
		var unquoted string
		_ = json.Unmarshal([]byte(`"`+strings.ReplaceAll(s, "\t", `\t`)+`"`), &unquoted)
		unescaped, _ := url.PathUnescape(s)
		plus, _ := url.QueryUnescape(s)
		for _, f := range forms {
			for _, seen := range []string{s, unquoted, unescaped, plus} {
				if strings.Contains(seen, f) {
					t.Fatalf("%q is still in %q", f, s)
				}
			}
		}
	}
}

func checkStream(t *testing.T, r *rand.Rand, secrets []string) {
	t.Helper()
	st := newStream(r, secrets)
	var values [][]byte
	for _, s := range secrets {
		values = append(values, []byte(s))
	}
	m := NewMasker(values)
	var out []Numbered
	var given []int // how many parts were given out after each one
	for i, p := range st.parts {
		before := bytes.Clone(p)
		out = append(out, m.Add(int64(i+1), p)...)
		given = append(given, len(out))
		if !bytes.Equal(before, p) {
			t.Fatal("a part was changed in place")
		}
	}
	out = append(out, m.Flush()...)
	if len(out) != len(st.parts) {
		t.Fatalf("%d parts in, %d out", len(st.parts), len(out))
	}
	for i, o := range out {
		if o.N != int64(i+1) {
			t.Fatalf("part %d came out as number %d", i+1, o.N)
		}
		if (st.clean[i] || len(secrets) == 0) && !bytes.Equal(o.Body, st.parts[i]) {
			t.Fatalf("a part without a secret changed:\n%s\n%s", st.parts[i], o.Body)
		}
	}
	hides(t, out, secrets)
	blocks, _ := said(t, out)
	for id, want := range st.want {
		if d := cmp.Diff(want, blocks[id]); d != "" {
			t.Fatalf("block %s of secrets %q:\n%s", id, secrets, d)
		}
	}
	// Whatever was given out, another masker can go on behind it.
	n := given[r.IntN(len(given))]
	rest := NewMasker(values)
	both := slices.Clone(out[:n])
	for i, p := range st.parts[n:] {
		both = append(both, rest.Add(int64(n+i+1), p)...)
	}
	both = append(both, rest.Flush()...)
	hides(t, both, secrets)
	blocks, _ = said(t, both)
	for id, want := range st.want {
		if d := cmp.Diff(want, blocks[id]); d != "" {
			t.Fatalf("block %s with another masker from part %d on, secrets %q:\n%s", id, n+1, secrets, d)
		}
	}
}

func TestMaskerHidesAnySecretHoweverWritten(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 11))
		var secrets []string
		for range r.IntN(4) {
			secrets = append(secrets, newSecret(r))
		}
		checkStream(t, r, secrets)
	}
}

func FuzzMaskerStreams(f *testing.F) {
	f.Add("sk-CANARY-0123456789", uint64(1))
	f.Add(`a"b\c/d%41é😀0123456789`, uint64(2))
	f.Add("1234567890123456", uint64(3))
	f.Fuzz(func(t *testing.T, s string, seed uint64) {
		if s = strings.TrimSpace(s); !utf8.ValidString(s) || len(s) > 200 || len(s) < secret.MinBytes || strings.ContainsAny(noise+Mask, s[:1]+s[len(s)-1:]) {
			return
		}
		r := rand.New(rand.NewPCG(seed, 2))
		checkStream(t, r, []string{s, newSecret(r)})
	})
}

// FuzzMaskerPasses: parts with nothing of a secret come back as they were, and those
// with something stay JSON.
func FuzzMaskerPasses(f *testing.F) {
	const account = `{"key":"abcdefghijk"}`
	f.Add([]byte(`{"type":"text-delta","id":"a","delta":"x\u0079\ud83d"}`), []byte(`{"type":"text-delta","id":"a","delta":"\"}"}`))
	f.Add([]byte(`{"a":{"type":"text-delta"},"n":[12345678901234567890,"`+canary+`"]}`), []byte(`["`+canary+`",{"`+canary+`":1}]`))
	f.Add([]byte(`{"type":"data-`+canary+`","delta":"x"} `), []byte(`{"x":`+account+`}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if !json.Valid(a) || !json.Valid(b) || !utf8.Valid(a) || !utf8.Valid(b) {
			return
		}
		parts := []json.RawMessage{a, b, a}
		run(t, NewMasker([][]byte{[]byte(canary), []byte("1234567890123456"), []byte(account)}), parts)
		for i, o := range run(t, NewMasker([][]byte{[]byte("\uE000 in no text of ours"), []byte("\"\uE000\":\"in no text of ours")}), parts) {
			if !bytes.Equal(o.Body, parts[i]) && !bytes.Contains(parts[i], []byte("ours")) {
				t.Fatalf("changed:\n%s\n%s", parts[i], o.Body)
			}
		}
	})
}

func TestMaskerInJSON(t *testing.T) {
	t.Parallel()
	const account = `{"type":"service_account","id":12}`
	for name, c := range map[string]struct{ in, want string }{
		"a value":            {`{"type":"data-x", "data":{"k" : "a ` + canary + ` b\u00e9"}}`, `{"type":"data-x", "data":{"k" : "a ` + Mask + ` b\u00e9"}}`},
		"a name":             {`{"type":"data-x","data":{"` + canary + `":1}}`, `{"type":"data-x","data":{"` + Mask + `":1}}`},
		"escaped":            {`{"type":"data-x","data":"\u0073k-\u0043ANARY-0123456789abcdefghi\u006a\n"}`, `{"type":"data-x","data":"` + Mask + `\n"}`},
		"twice":              {`{"type":"data-x","data":"` + canary + `,` + canary + `"}`, `{"type":"data-x","data":"` + Mask + `,` + Mask + `"}`},
		"JSON in a string":   {`{"type":"data-x","data":"{\"k\":\"\\u0073k-CANARY-0123456789abcdefghij\"}"}`, `{"type":"data-x","data":"{\"k\":\"` + Mask + `\"}"}`},
		"a number":           {`{"type":"data-x","data":[1234567890123456, 12]}`, `{"type":"data-x","data":["` + Mask + `", 12]}`},
		"a longer number":    {`{"type":"data-x","data":-1234567890123456.5e3}`, `{"type":"data-x","data":"` + Mask + `"}`},
		"JSON itself":        {`{"type":"data-x","data":` + account + `}`, `{"type":"data-x","data":{"` + Mask + `":"` + Mask + `","` + Mask + `":"` + Mask + `"}}`},
		"JSON as text":       {`{"type":"data-x","data":"{\"type\":\"service_account\",\"id\":12}"}`, `{"type":"data-x","data":"` + Mask + `"}`},
		"a type":             {`{"type":"data-` + canary + `","data":1}`, `{"type":"data-masked","data":1}`},
		"an escaped type":    {`{"type":"\u0064ata-x.` + canary + `","data":1}`, `{"type":"\u0064ata-x.masked","data":1}`},
		"an id":              {`{"type":"text-start","id":"` + canary + `"}`, `{"type":"text-start","id":"` + Mask + `"}`},
		"beside a delta":     {`{"type":"text-delta","id":"a","x":"` + canary + `","delta":"` + canary + `.","y":"` + canary + `"}`, `{"type":"text-delta","id":"a","x":"` + Mask + `","delta":"` + Mask + `.","y":"` + Mask + `"}`},
		"half a character":   {`{"type":"data-x","data":"\u00fcx"}`, `{"type":"data-x","data":"\u00fcx"}`},
		"not in two strings": {`{"type":"data-x","data":["sk-CANARY-01234567","89abcdefghij"]}`, `{"type":"data-x","data":["sk-CANARY-01234567","89abcdefghij"]}`},
	} {
		m := NewMasker([][]byte{[]byte(canary), []byte("1234567890123456"), []byte(account)})
		if got := run(t, m, []json.RawMessage{json.RawMessage(c.in)}); string(got[0].Body) != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got[0].Body, c.want)
		}
	}
}

// TestMaskerLetsEndedBlocksGo: what stands at the end of a block waits no longer than
// the block lasts.
func TestMaskerLetsEndedBlocksGo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ delta, end string }{
		{`{"type":"text-delta","id":"a","delta":"it ends as keys begin: sk"}`, `{"type":"text-end","id":"a"}`},
		{`{"type":"reasoning-delta","id":"a","delta":"sk"}`, `{"type":"reasoning-end","id":"a"}`},
		{`{"type":"tool-input-delta","toolCallId":"a","inputTextDelta":"sk"}`, `{"type":"tool-input-available","toolCallId":"a","input":1}`},
		{`{"type":"tool-input-delta","toolCallId":"a","inputTextDelta":"sk"}`, `{"type":"tool-output-error","toolCallId":"a","errorText":"x"}`},
	} {
		m := NewMasker([][]byte{[]byte(canary)})
		if out := m.Add(1, json.RawMessage(c.delta)); len(out) != 0 {
			t.Errorf("%s was not held back", c.delta)
		}
		if out := m.Add(2, json.RawMessage(`{"type":"data-x","data":1}`)); len(out) != 0 {
			t.Errorf("parts went past %s", c.delta)
		}
		if out := m.Add(3, json.RawMessage(c.end)); len(out) != 3 {
			t.Errorf("%d parts after %s", len(out), c.end)
		}
		if out := m.Add(4, json.RawMessage(`{"type":"data-x","data":1}`)); len(out) != 1 {
			t.Error("the block did not end")
		}
	}
}

// TestMaskerTakesNoLongerWithMoreParts feeds what a quadratic masker would not bear:
// a hundred thousand parts that all wait for one block, a chain of secrets each of which is
// cut in two, and one string with a million escapes.
func TestMaskerTakesNoLongerWithMoreParts(t *testing.T) {
	t.Parallel()
	m := NewMasker([][]byte{[]byte(canary)})
	n, out := int64(0), 0
	add := func(body string) {
		n++
		out += len(m.Add(n, json.RawMessage(body)))
	}
	add(`{"type":"text-delta","id":"waits","delta":"sk-"}`)
	for i := range 50_000 {
		add(fmt.Sprintf(`{"type":"text-delta","id":"b%d","delta":"sk-"}`, i%5000))
		add(fmt.Sprintf(`{"type":"text-delta","id":"chain","delta":"%s"}`, canary[15:]+canary[:15]))
	}
	add(`{"type":"data-x","data":"` + strings.Repeat(`\n`, 1<<20) + strings.Repeat(`\u0073`, 1<<17) + `"}`)
	if out != 0 {
		t.Fatalf("%d parts went past one that waits", out)
	}
	if out += len(m.Flush()); out != int(n) {
		t.Fatalf("%d parts of %d", out, n)
	}
}

func TestMaskerText(t *testing.T) {
	t.Parallel()
	m := NewMasker([][]byte{[]byte(canary)})
	var none *Masker
	for in, want := range map[string]string{
		"":                       "",
		"no key":                 "no key",
		"a " + canary + " b":     "a " + Mask + " b",
		canary + canary + "\xff": Mask + Mask + "\xff",
		`{"error":"\u0073k-CANARY-0123456789abcdefghij"}`: `{"error":"` + Mask + `"}`,
		"?k=" + url.QueryEscape(canary):                   "?k=" + Mask,
	} {
		if got := m.Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if none.Text(in) != in || NewMasker(nil).Text(in) != in {
			t.Errorf("%q changed without secrets", in)
		}
	}
}
