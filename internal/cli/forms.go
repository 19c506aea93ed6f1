package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/form"
)

// formOf reads the form of a question.
func formOf(q *client.Question) (message string, s form.Schema, err error) {
	var d struct {
		Message string          `json:"message"`
		Schema  json.RawMessage `json:"schema"`
	}
	if err := json.Unmarshal(q.Detail, &d); err != nil {
		return "", s, fmt.Errorf("read the form %s: %w", q.ID, err)
	}
	s, err = form.Parse(d.Schema)
	return d.Message, s, err
}

// content makes the content of an answer from values NAME=VALUE. Fields that are not named
// have their default.
func content(s form.Schema, given []string) (json.RawMessage, error) {
	words := map[string][]string{}
	for _, g := range given {
		name, value, ok := strings.Cut(g, "=")
		if !ok {
			return nil, misused("--field %q is not NAME=VALUE", g)
		}
		if _, ok := s.Field(name); !ok {
			var names []string
			for _, f := range s.Fields {
				names = append(names, f.Name)
			}
			return nil, misused("the form has no field %q; it has: %s", name, firstOf(strings.Join(names, ", "), "none"))
		}
		words[name] = append(words[name], value)
	}
	values := map[string]json.RawMessage{}
	var problems []form.Problem
	for _, f := range s.Fields {
		w, ok := words[f.Name]
		if !ok {
			if f.Default != nil {
				values[f.Name] = f.Default
			}
			continue
		}
		v, problem := f.Read(w...)
		if problem != "" {
			problems = append(problems, form.Problem{Field: f.Name, Problem: problem})
		}
		values[f.Name] = v
	}
	if len(problems) > 0 {
		return nil, form.Refusal(problems)
	}
	out, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("encode the values: %w", err)
	}
	return out, nil
}

// contentFile reads the content of an answer from a file; "-" is standard input.
func (a *app) contentFile(file string) (json.RawMessage, error) {
	in := a.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fault.Wrap(err, fault.InvalidInput, "The values cannot be read: %v.", errors.Unwrap(err))
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, form.MaxAnswer+1))
	if err != nil {
		return nil, fault.Wrap(err, fault.InvalidInput, "The values cannot be read: %v.", err)
	}
	if len(raw) > form.MaxAnswer {
		return nil, fault.New(fault.InvalidInput, "The values have more than %d bytes.", form.MaxAnswer)
	}
	if !json.Valid(raw) {
		return nil, fault.New(fault.InvalidInput, "The values are not valid JSON.")
	}
	return raw, nil
}

// fill completes the answer to a question with what was given on the command line.
func (a *app) fill(q *client.Question, in *client.Answer, fields []string, file string) error {
	if q.Kind == "form" && (in.Verdict == "allow" || in.Verdict == "deny") {
		return misused("%s is a form: it is answered with accept, decline or cancel, not with %s", q.ID, in.Verdict)
	}
	given := len(fields) > 0 || file != ""
	if q.Kind != "form" {
		if given {
			return misused("--field and --json are for forms; %s asks for a permission", q.ID)
		}
		return nil
	}
	if in.Verdict == "" && given {
		in.Verdict = "accept"
	}
	if in.Verdict != "accept" {
		if given {
			return misused("only a form that is accepted has values")
		}
		return nil
	}
	var err error
	if file != "" {
		in.Content, err = a.contentFile(file)
		return err
	}
	_, s, err := formOf(q)
	if err != nil {
		return err
	}
	in.Content, err = content(s, fields)
	return err
}

// fields lists the fields of a form that waits.
func (a *app) fields(q *client.Question) {
	message, s, err := formOf(q)
	if err != nil {
		a.print("    %s\n", sanitizeLine(err.Error()))
		return
	}
	if m := sanitizeBlock(message); strings.Contains(m, "\n") {
		a.print("    %s\n", strings.ReplaceAll(m, "\n", "\n  "))
	}
	for _, f := range s.Fields {
		what := string(f.Kind)
		if len(f.Choices) > 0 {
			var values []string
			for _, c := range f.Choices {
				values = append(values, c.Value)
			}
			what = strings.Join(values, ", ")
			if f.Kind == form.Several {
				what = "any of " + what
			}
		}
		switch {
		case f.Default != nil:
			what += "; else " + defaultText(f)
		case f.Required:
			what += "; needed"
		}
		words := f.Title
		if f.Description != "" {
			words += ": " + f.Description
		}
		a.print("    --field %s=  (%s)  %s\n", sanitizeLine(f.Name), clip(sanitizeLine(what), 200), clip(sanitizeLine(strings.TrimPrefix(words, ": ")), 160))
	}
}
