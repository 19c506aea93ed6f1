package form

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/fault"
)

// Problem is what is wrong with one value of an answer.
type Problem struct {
	Field   string `json:"field"` // content, or content.NAME
	Problem string `json:"problem"`
}

// Refusal is the error for an answer with problems. Code: INVALID_INPUT; details.fields
// lists them.
func Refusal(problems []Problem) error {
	var b strings.Builder
	for i, p := range problems {
		if i == 5 {
			fmt.Fprintf(&b, " And %d more.", len(problems)-i)
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%.80s: %.200s.", p.Field, p.Problem)
	}
	return fault.New(fault.InvalidInput, "%s", b.String()).With("fields", problems)
}

// Check judges an answer, a JSON object with values by the fields' names, and returns it as
// the agent gets it: only what was given, in the order of the form. A field that is null is
// not given. Defaults are not filled in: whoever shows the form does.
func (s Schema) Check(raw []byte) (json.RawMessage, []Problem) {
	if len(raw) > MaxAnswer {
		return nil, []Problem{{"content", fmt.Sprintf("has %d bytes; %d are allowed", len(raw), MaxAnswer)}}
	}
	var o object
	if len(raw) > 0 && (!utf8.Valid(raw) || json.Unmarshal(raw, &o) != nil) {
		return nil, []Problem{{"content", "is no JSON object with the fields' values"}}
	}
	var problems []Problem
	var unknown []string
	for name := range o {
		if _, ok := s.Field(name); !ok {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		problems = append(problems, Problem{"content." + name, "is no field of the form; it has: " + s.names()})
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for _, f := range s.Fields {
		v, given := o[f.Name]
		if !given || string(v) == "null" {
			if f.Required {
				problems = append(problems, Problem{"content." + f.Name, "is missing"})
			}
			continue
		}
		value, problem := f.check(v)
		if problem != "" {
			problems = append(problems, Problem{"content." + f.Name, problem})
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.Write(encode(f.Name))
		b.WriteByte(':')
		b.Write(value)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Names are the fields that an answer gives, in the order of the form.
func (s Schema) Names(answer []byte) []string {
	var o object
	if json.Unmarshal(answer, &o) != nil {
		return nil
	}
	var out []string
	for _, f := range s.Fields {
		if _, ok := o[f.Name]; ok {
			out = append(out, f.Name)
		}
	}
	return out
}

func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // texts, numbers and lists of texts
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// check judges one value and returns it as it is passed on, or what is wrong with it.
func (f Field) check(raw json.RawMessage) (value json.RawMessage, problem string) {
	switch f.Kind {
	case Text:
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return nil, "must be a text"
		}
		return encode(s), f.checkText(s)
	case Boolean:
		var b bool
		if json.Unmarshal(raw, &b) != nil {
			return nil, "must be true or false"
		}
		return encode(b), ""
	case Number, Integer:
		return f.checkNumber(raw)
	case Several:
		list := []string{}
		if json.Unmarshal(raw, &list) != nil {
			return nil, "must be a list of texts"
		}
		return encode(list), f.checkSeveral(list)
	}
	return nil, "cannot be answered"
}

func (f Field) checkText(s string) string {
	n := int64(utf8.RuneCountInString(s))
	switch {
	case len(f.Choices) > 0:
		return f.chosen(s)
	case f.MinLength != nil && n < *f.MinLength:
		return fmt.Sprintf("has %d characters; at least %d are wanted", n, *f.MinLength)
	case f.MaxLength != nil && n > *f.MaxLength:
		return fmt.Sprintf("has %d characters; at most %d are allowed", n, *f.MaxLength)
	case f.pattern != nil && !f.pattern.MatchString(s):
		return fmt.Sprintf("does not fit the pattern %.80s", f.Pattern)
	}
	var err error
	switch f.Format {
	case FormatEmail:
		var a *mail.Address
		if a, err = mail.ParseAddress(s); err != nil || a.Address != s {
			return "must be an e-mail address"
		}
	case FormatURI:
		var u *url.URL
		if u, err = url.Parse(s); err != nil || u.Scheme == "" {
			return "must be an address such as https://example.org/"
		}
	case FormatDate:
		if _, err = time.Parse(time.DateOnly, s); err != nil {
			return "must be a date such as 2026-01-31"
		}
	case FormatDateTime:
		if _, err = time.Parse(time.RFC3339, s); err != nil {
			return "must be a date and time such as 2026-01-31T15:04:05Z"
		}
	}
	return ""
}

// chosen tells what is wrong with a value that must be one of the choices.
func (f Field) chosen(s string) string {
	if slices.ContainsFunc(f.Choices, func(c Choice) bool { return c.Value == s }) {
		return ""
	}
	var values []string
	for _, c := range f.Choices[:min(len(f.Choices), 20)] {
		values = append(values, c.Value)
	}
	return fmt.Sprintf("cannot be %.40q; it is one of %s", s, strings.Join(values, ", "))
}

func (f Field) checkSeveral(list []string) string {
	n := int64(len(list))
	switch {
	case f.MinItems != nil && n < *f.MinItems:
		return fmt.Sprintf("has %d choices; at least %d are wanted", n, *f.MinItems)
	case f.MaxItems != nil && n > *f.MaxItems:
		return fmt.Sprintf("has %d choices; at most %d are allowed", n, *f.MaxItems)
	}
	for i, s := range list {
		if problem := f.chosen(s); problem != "" {
			return problem
		}
		if slices.Contains(list[:i], s) {
			return fmt.Sprintf("has %.40q twice", s)
		}
	}
	return ""
}

// maxInteger is the largest whole number that every reader of JSON has exactly (RFC 8259, section 6).
const maxInteger = 1<<53 - 1

func (f Field) checkNumber(raw json.RawMessage) (json.RawMessage, string) {
	var n json.Number
	if len(raw) == 0 || raw[0] == '"' || json.Unmarshal(raw, &n) != nil {
		return nil, "must be a number"
	}
	x, err := n.Float64()
	if err != nil || math.IsInf(x, 0) {
		return nil, "is a number out of range"
	}
	value := json.RawMessage(n.String())
	if f.Kind == Integer {
		switch {
		case x != math.Trunc(x):
			return nil, "must be a whole number"
		case math.Abs(x) > maxInteger:
			return nil, "is a number out of range"
		}
		value = json.RawMessage(strconv.FormatInt(int64(x), 10))
	}
	switch {
	case f.Minimum != nil && x < *f.Minimum:
		return nil, fmt.Sprintf("must be at least %v", *f.Minimum)
	case f.Maximum != nil && x > *f.Maximum:
		return nil, fmt.Sprintf("must be at most %v", *f.Maximum)
	}
	return value, ""
}

// Read takes what a person typed for a field; for [Several] there may be more words than
// one. The value is as Check takes it, or the problem says what is wrong.
func (f Field) Read(words ...string) (value json.RawMessage, problem string) {
	if f.Kind == Several {
		if len(words) == 1 && words[0] == "" {
			words = nil
		}
		return f.check(encode(append([]string{}, words...)))
	}
	if len(words) != 1 {
		return nil, "takes one value"
	}
	word := words[0]
	switch f.Kind {
	case Text:
		return f.check(encode(word))
	case Boolean:
		switch strings.ToLower(strings.TrimSpace(word)) {
		case "y", "yes", "true", "on":
			return encode(true), ""
		case "n", "no", "false", "off":
			return encode(false), ""
		}
		return nil, "must be yes or no"
	}
	word = strings.TrimSpace(word)
	if _, err := strconv.ParseFloat(word, 64); err != nil || !json.Valid([]byte(word)) {
		return nil, "must be a number"
	}
	return f.check(json.RawMessage(word))
}
