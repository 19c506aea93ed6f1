package form

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
)

// What agents send is kept in their order, and what is not understood is left out.
func TestParse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"nothing":      {`{}`, `{"type":"object","properties":{}}`},
		"null members": {`{"type":"object","title":null,"properties":null,"required":null}`, `{"type":"object","properties":{}}`},
		"order": {
			`{"properties":{"z":{"type":"string"},"a":{"type":"boolean","default":true}},"required":["z"],"title":"T","description":"D"}`,
			`{"type":"object","title":"T","description":"D","properties":{"z":{"type":"string"},"a":{"type":"boolean","default":true}},"required":["z"]}`,
		},
		"limits": {
			`{"properties":{"a":{"type":"string","minLength":1,"maxLength":3,"pattern":"^a","format":"email","minimum":3},"n":{"type":"number","minimum":0.5,"maximum":2,"maxLength":1},"i":{"type":"integer","default":3.0}}}`,
			`{"type":"object","properties":{"a":{"type":"string","minLength":1,"maxLength":3,"pattern":"^a","format":"email"},"n":{"type":"number","minimum":0.5,"maximum":2},"i":{"type":"integer","default":3}}}`,
		},
		"choices": {
			`{"properties":{"a":{"type":"string","enum":["x","<y>"]},"b":{"type":"string","enum":["x","y"],"enumNames":["X","Y"]},"c":{"type":"string","oneOf":[{"const":"x","title":"X","description":"d","_meta":{}}]}}}`,
			`{"type":"object","properties":{"a":{"type":"string","enum":["x","<y>"]},"b":{"type":"string","oneOf":[{"const":"x","title":"X"},{"const":"y","title":"Y"}]},"c":{"type":"string","oneOf":[{"const":"x","title":"X","description":"d"}]}}}`,
		},
		"several": {
			`{"properties":{"a":{"type":"array","minItems":1,"maxItems":2,"items":{"type":"string","enum":["x","y"]},"default":["y"]},"b":{"type":"array","items":{"anyOf":[{"const":"x","title":"X"}]}}}}`,
			`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string","enum":["x","y"]},"minItems":1,"maxItems":2,"default":["y"]},"b":{"type":"array","items":{"anyOf":[{"const":"x","title":"X"}]}}}}`,
		},
		"a default that does not fit":  {`{"properties":{"a":{"type":"integer","default":"x"}}}`, `{"type":"object","properties":{"a":{"type":"integer"}}}`},
		"descriptions of other shapes": {`{"title":7,"properties":{"a":{"type":"string","title":[],"description":{}}}}`, `{"type":"object","properties":{"a":{"type":"string"}}}`},
		"another dialect of patterns":  {`{"properties":{"a":{"type":"string","pattern":"(?<x"}}}`, `{"type":"object","properties":{"a":{"type":"string","pattern":"(?<x"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Parse([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, string(s.JSON())); d != "" {
				t.Error(d)
			}
			again, err := Parse(s.JSON())
			if err != nil || string(again.JSON()) != c.want {
				t.Errorf("read again: %v, %s", err, again.JSON())
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	field := func(f string) string { return `{"properties":{"a":` + f + `}}` }
	var many, choices []string
	for i := range 201 {
		many = append(many, fmt.Sprintf(`"f%d":{"type":"string"}`, i))
		choices = append(choices, fmt.Sprintf(`"c%d"`, i))
	}
	for in, says := range map[string]string{
		``: "no JSON object", `null`: "no JSON object", `7`: "no JSON object", "{\"a\":\"\xff\"}": "UTF-8", `{"type":"array"}`: "must be an object",
		`{"properties":[]}`: "no object", `{"properties":{"":{}}}`: "0 bytes", `{"properties":{"a":{"type":"string"},"a":{"type":"string"}}}`: "twice",
		`{"required":["x"]}`: "does not have", `{"required":7}`: "required",
		`{"properties":{"` + strings.Repeat("n", 201) + `":{"type":"string"}}}`: "201 bytes",
		`{"properties":{` + strings.Join(many[:51], ",") + `}}`:                 "more than 50 fields",
		field(`7`): "no object", field(`{}`): "no type", field(`{"type":["string","null"]}`): "no type", field(`{"type":"object"}`): "cannot be shown", field(`{"type":"null"}`): "cannot be shown",
		field(`{"type":"string","$ref":"#"}`): "$ref", field(`{"type":"string","anyOf":[]}`): "anyOf", field(`{"type":"string","const":"x"}`): "const",
		field(`{"type":"string","enum":[1]}`): "no texts", field(`{"type":"string","enum":[]}`): "0 choices", field(`{"type":"string","enum":["x","x"]}`): "twice",
		field(`{"type":"string","oneOf":[{"title":"x"}]}`): "no text", field(`{"type":"string","oneOf":7}`): "cannot be read",
		field(`{"type":"string","enum":[` + strings.Join(choices, ",") + `]}`): "201 choices",
		field(`{"type":"integer","enum":[1,2]}`):                               "no texts",
		field(`{"type":"array"}`):                                              "list", field(`{"type":"array","items":{"type":"string"}}`): "without anything to choose", field(`{"type":"array","items":{"type":"object"}}`): "only lists",
		field(`{"type":"string","title":"` + strings.Repeat("x", 4097) + `"}`): "4096 bytes",
		`{"description":"` + strings.Repeat("x", 64<<10) + `"}`:                "65536 are allowed",
	} {
		if _, err := Parse([]byte(in)); fault.CodeOf(err) != fault.InvalidInput || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v, want %q", in, err, says)
		}
	}
}

const schema = `{"properties":{
 "name":{"type":"string","minLength":2,"maxLength":3,"pattern":"^[a-zé]+$"},
 "mail":{"type":"string","format":"email"},"link":{"type":"string","format":"uri"},"day":{"type":"string","format":"date"},"at":{"type":"string","format":"date-time"},
 "one":{"type":"string","enum":["x","y"]},"some":{"type":"array","items":{"type":"string","enum":["x","y","z"]},"minItems":1,"maxItems":2},
 "n":{"type":"number","minimum":0.5,"maximum":2},"i":{"type":"integer"},"b":{"type":"boolean"}}, "required":["name"]}`

func TestCheck(t *testing.T) {
	t.Parallel()
	s, err := Parse([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ in, want, field, problem string }{
		{`{"name":"éé"}`, `{"name":"éé"}`, "", ""},
		{`{"b":false,"name":"ab","i":-3.0,"n":2,"some":["z","x"],"one":"y"}`, `{"name":"ab","one":"y","some":["z","x"],"n":2,"i":-3,"b":false}`, "", ""},
		{`{"name":"ab","one":null}`, `{"name":"ab"}`, "", ""},
		{`{"name":"ab","mail":"a@example.org","link":"https://example.org/","day":"2026-02-28","at":"2026-02-28T01:02:03+01:00"}`, `{"name":"ab","mail":"a@example.org","link":"https://example.org/","day":"2026-02-28","at":"2026-02-28T01:02:03+01:00"}`, "", ""},
		{``, "", "content.name", "is missing"},
		{`null`, "", "content.name", "is missing"},
		{`{"name":null}`, "", "content.name", "is missing"},
		{`"ab"`, "", "content", "no JSON object"},
		{`{"name":"ab"`, "", "content", "no JSON object"},
		{"{\"name\":\"a\xff\"}", "", "content", "no JSON object"},
		{`{"name":"ab","x":1}`, "", "content.x", "is no field"},
		{`{"name":"ab","Name":"ab"}`, "", "content.Name", "is no field"},
		{`{"name":7}`, "", "content.name", "must be a text"},
		{`{"name":"é"}`, "", "content.name", "has 1 characters; at least 2"},
		{`{"name":"abcd"}`, "", "content.name", "has 4 characters; at most 3"},
		{`{"name":"aB"}`, "", "content.name", "pattern"},
		{`{"name":"ab","mail":"Ada <a@example.org>"}`, "", "content.mail", "e-mail"},
		{`{"name":"ab","link":"example.org"}`, "", "content.link", "https://"},
		{`{"name":"ab","day":"2026-02-30"}`, "", "content.day", "date"},
		{`{"name":"ab","at":"noon"}`, "", "content.at", "date and time"},
		{`{"name":"ab","one":"z"}`, "", "content.one", "one of x, y"},
		{`{"name":"ab","some":"x"}`, "", "content.some", "must be a list"},
		{`{"name":"ab","some":[]}`, "", "content.some", "at least 1"},
		{`{"name":"ab","some":["x","y","z"]}`, "", "content.some", "at most 2"},
		{`{"name":"ab","some":["x","x"]}`, "", "content.some", "twice"},
		{`{"name":"ab","some":["q"]}`, "", "content.some", "one of"},
		{`{"name":"ab","n":"1"}`, "", "content.n", "must be a number"},
		{`{"name":"ab","n":0.4}`, "", "content.n", "at least 0.5"},
		{`{"name":"ab","n":2.1}`, "", "content.n", "at most 2"},
		{`{"name":"ab","n":1e999999}`, "", "content.n", "out of range"},
		{`{"name":"ab","i":1.5}`, "", "content.i", "whole"},
		{`{"name":"ab","i":9007199254740993}`, "", "content.i", "out of range"},
		{`{"name":"ab","b":"true"}`, "", "content.b", "true or false"},
		{`{"name":"` + strings.Repeat("a", 64<<10) + `"}`, "", "content", "65536 are allowed"},
	} {
		got, problems := s.Check([]byte(c.in))
		if c.problem == "" {
			if len(problems) > 0 || string(got) != c.want {
				t.Errorf("%s: %s %v, want %s", c.in, got, problems, c.want)
			}
			continue
		}
		if len(problems) != 1 || got != nil || problems[0].Field != c.field || !strings.Contains(problems[0].Problem, c.problem) {
			t.Errorf("%.80s: %s %+v, want %s %s", c.in, got, problems, c.field, c.problem)
		}
	}
	if d := cmp.Diff([]string{"name", "b"}, s.Names([]byte(`{"b":true,"name":"ab"}`))); d != "" {
		t.Error(d)
	}
	if err := Refusal([]Problem{{"content.a", "is missing"}, {"content.b", "is odd"}}); fault.CodeOf(err) != fault.InvalidInput || !strings.Contains(err.Error(), "content.a: is missing. content.b: is odd.") {
		t.Errorf("as an error: %v", err)
	}
}

// What a person types becomes the value that it looks like.
func TestRead(t *testing.T) {
	t.Parallel()
	s, err := Parse([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field, words string // words apart by |
		want, says   string
	}{
		{"name", "ab", `"ab"`, ""},
		{"name", "7 ", "", "pattern"},
		{"name", "ab|cd", "", "one value"},
		{"n", " 1.5 ", `1.5`, ""},
		{"n", "NaN", "", "must be a number"},
		{"n", "0x1", "", "must be a number"},
		{"i", "7", `7`, ""},
		{"i", "seven", "", "must be a number"},
		{"b", "Yes", `true`, ""},
		{"b", "n", `false`, ""},
		{"b", "perhaps", "", "yes or no"},
		{"some", "x|z", `["x","z"]`, ""},
		{"some", "", "", "at least 1"},
	} {
		f, _ := s.Field(c.field)
		got, problem := f.Read(strings.Split(c.words, "|")...)
		if c.says == "" && (problem != "" || string(got) != c.want) || c.says != "" && !strings.Contains(problem, c.says) {
			t.Errorf("%s %q: %s %q", c.field, c.words, got, problem)
		}
	}
}

// Whatever an agent sends as a schema, what is taken is taken again from its own text.
func FuzzParse(f *testing.F) {
	f.Add([]byte(schema))
	f.Add([]byte(`{"properties":{"a":{"type":"string","oneOf":[{"const":"x","title":""}],"default":"x"}},"required":["a"]}`))
	f.Add([]byte(`{"type":"object","properties":{"a":{"type":"array","items":{"anyOf":[{"const":"\u0000","title":"\u2028"}]}}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Parse(raw)
		if err != nil {
			if fault.CodeOf(err) != fault.InvalidInput {
				t.Fatal(err)
			}
			return
		}
		if len(s.Fields) > MaxFields || len(s.JSON()) > MaxBytes || !json.Valid(s.JSON()) {
			t.Fatalf("%d fields: %s", len(s.Fields), s.JSON())
		}
		again, err := Parse(s.JSON())
		if err != nil || string(again.JSON()) != string(s.JSON()) {
			t.Fatalf("%s is read as %s: %v", s.JSON(), again.JSON(), err)
		}
	})
}

// Whatever is answered, what passes is an object with the form's fields that passes again.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(schema), []byte(`{"name":"ab","n":1e0,"i":-0}`))
	f.Add([]byte(schema), []byte(`{"name":"ab","some":["x"],"b":true}`))
	f.Add([]byte(`{"properties":{"<":{"type":"string"}}}`), []byte(`{"<":"\ud800"}`))
	f.Fuzz(func(t *testing.T, raw, answer []byte) {
		s, err := Parse(raw)
		if err != nil {
			return
		}
		content, problems := s.Check(answer)
		if len(problems) > 0 {
			if content != nil || fault.CodeOf(Refusal(problems)) != fault.InvalidInput {
				t.Fatal(problems)
			}
			return
		}
		var o map[string]any
		if err := json.Unmarshal(content, &o); err != nil {
			t.Fatal(err)
		}
		for name := range o {
			if _, ok := s.Field(name); !ok {
				t.Fatalf("%q is no field", name)
			}
		}
		again, problems := s.Check(content)
		if len(problems) > 0 || string(again) != string(content) {
			t.Fatalf("%s is %s the second time: %v", content, again, problems)
		}
	})
}
