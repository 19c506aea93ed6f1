// Package form is the forms by which agents ask a person for values: a [Schema] is read
// from the JSON schema that an agent sends, and an answer is checked against it. The
// schemas are flat: named fields that are texts, numbers, switches and choices. What
// cannot be shown to a person is refused as a whole. The package knows no agent, no
// store and no terminal. Start at [Parse] and [Schema.Check].
//
// Source: ElicitationSchema of agentclientprotocol.com, schema version 1, which is the
// restricted schema of MCP's elicitation.
package form

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/fault"
)

// Limits of a form.
const (
	MaxBytes   = 64 << 10 // of a schema
	MaxFields  = 50
	MaxChoices = 200      // of one field
	MaxName    = 200      // bytes of a field's name
	MaxText    = 4 << 10  // bytes of a title, description, choice or pattern
	MaxAnswer  = 64 << 10 // bytes of an answer
)

// Kind of a field, as JSON schema has it.
type Kind string

// The kinds of fields.
const (
	Text    Kind = "string"
	Number  Kind = "number"
	Integer Kind = "integer"
	Boolean Kind = "boolean"
	Several Kind = "array" // any of the choices
)

// Formats of a text. Others are not looked at.
const (
	FormatEmail    = "email"
	FormatURI      = "uri"
	FormatDate     = "date"
	FormatDateTime = "date-time"
)

// Schema is a form: what is asked for, in the order of the agent.
type Schema struct {
	Title       string
	Description string
	Fields      []Field
}

// Field is one value of a form.
type Field struct {
	Name        string
	Kind        Kind
	Title       string
	Description string
	Required    bool
	Choices     []Choice // of a text: one of them; of Several: any of them
	MinLength   *int64   // in characters
	MaxLength   *int64
	MinItems    *int64
	MaxItems    *int64
	Minimum     *float64
	Maximum     *float64
	Pattern     string          // as the agent wrote it; not looked at when it cannot be read
	Format      string          // of a text
	Default     json.RawMessage // fits the field; empty: none

	pattern *regexp.Regexp
}

// Choice is a value to choose.
type Choice struct {
	Value       string `json:"const"`
	Title       string `json:"title"`
	Description string `json:"description,omitempty"`
}

// Label is how to call the field to a person.
func (f Field) Label() string {
	if f.Title != "" {
		return f.Title
	}
	return f.Name
}

// Label is how to call the choice to a person.
func (c Choice) Label() string {
	if c.Title != "" {
		return c.Title
	}
	return c.Value
}

func refused(format string, args ...any) error {
	return fault.New(fault.InvalidInput, "The form "+format, args...)
}

// object is a JSON object whose members are not looked at yet.
type object map[string]json.RawMessage

// text is a member that is a text; anything else counts as absent.
func (o object) text(name string) string {
	var s string
	_ = json.Unmarshal(o[name], &s)
	return s
}

func number[T int64 | float64](o object, name string) *T {
	var n *T
	if json.Unmarshal(o[name], &n) != nil {
		return nil
	}
	return n
}

// Parse reads a schema. What only describes a field and has another shape is left out, as
// the protocol says; what changes what may be answered makes the form refused: nested
// values, unknown types, more than the limits. Code: INVALID_INPUT.
func Parse(raw []byte) (Schema, error) {
	if len(raw) > MaxBytes {
		return Schema{}, refused("has %d bytes; %d are allowed.", len(raw), MaxBytes)
	}
	if !utf8.Valid(raw) {
		return Schema{}, refused("is not valid UTF-8.")
	}
	var o object
	if json.Unmarshal(raw, &o) != nil || o == nil {
		return Schema{}, refused("is no JSON object.")
	}
	if t := o.text("type"); t != "object" && t != "" {
		return Schema{}, refused("is of the type %.40q; it must be an object.", t)
	}
	var required []string
	if r := o["required"]; r != nil && json.Unmarshal(r, &required) != nil {
		return Schema{}, refused("does not say which fields are required in a way that can be read.")
	}
	s := Schema{Title: o.text("title"), Description: o.text("description")}
	if max(len(s.Title), len(s.Description)) > MaxText {
		return Schema{}, refused("has a title or description of more than %d bytes.", MaxText)
	}
	names, fields, err := members(o["properties"])
	if err != nil {
		return Schema{}, err
	}
	for i, name := range names {
		f, err := parseField(name, fields[i])
		if err != nil {
			return Schema{}, err
		}
		f.Required = slices.Contains(required, name)
		s.Fields = append(s.Fields, f)
	}
	for _, name := range required {
		if !slices.Contains(names, name) {
			return Schema{}, refused("requires the field %.80q, which it does not have.", name)
		}
	}
	if n := len(s.JSON()); n > MaxBytes {
		return Schema{}, refused("has %d bytes; %d are allowed.", n, MaxBytes)
	}
	return s, nil
}

// members are the names and values of an object, in its order.
func members(raw json.RawMessage) (names []string, values []json.RawMessage, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, nil, refused("has properties that are no object.")
	}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		var v json.RawMessage
		if err != nil || !ok || d.Decode(&v) != nil {
			return nil, nil, refused("has properties that cannot be read.")
		}
		switch {
		case name == "" || len(name) > MaxName:
			return nil, nil, refused("has a field whose name has %d bytes; 1 to %d are allowed.", len(name), MaxName)
		case slices.Contains(names, name):
			return nil, nil, refused("has the field %.80q twice.", name)
		case len(names) == MaxFields:
			return nil, nil, refused("has more than %d fields.", MaxFields)
		}
		names, values = append(names, name), append(values, v)
	}
	return names, values, nil
}

// mayNot are keywords that make another thing of a field than its type says.
var mayNot = []string{"$ref", "allOf", "not", "if", "const", "properties"}

func parseField(name string, raw json.RawMessage) (Field, error) {
	bad := func(format string, args ...any) (Field, error) {
		return Field{}, refused("has a field %.80q that "+format, append([]any{name}, args...)...)
	}
	var o object
	if json.Unmarshal(raw, &o) != nil || o == nil {
		return bad("is no object.")
	}
	for _, k := range mayNot {
		if o[k] != nil {
			return bad("uses %s, which cannot be shown.", k)
		}
	}
	f := Field{
		Name: name, Kind: Kind(o.text("type")), Title: o.text("title"), Description: o.text("description"),
		MinLength: number[int64](o, "minLength"), MaxLength: number[int64](o, "maxLength"),
		MinItems: number[int64](o, "minItems"), MaxItems: number[int64](o, "maxItems"),
		Minimum: number[float64](o, "minimum"), Maximum: number[float64](o, "maximum"),
		Pattern: o.text("pattern"), Format: o.text("format"),
	}
	if max(len(f.Title), len(f.Description), len(f.Pattern), len(f.Format)) > MaxText {
		return bad("has a text of more than %d bytes.", MaxText)
	}
	var err error
	switch f.Kind {
	case Text:
		if o["anyOf"] != nil {
			return bad("uses anyOf, which cannot be shown.")
		}
		f.Choices, err = choices(o, "oneOf")
	case Several:
		var items object
		if json.Unmarshal(o["items"], &items) != nil {
			return bad("is a list of nothing that can be read.")
		}
		if t := items.text("type"); t != "string" && (t != "" || items["type"] != nil) {
			return bad("is a list of %.40q; only lists of given texts can be shown.", t)
		}
		key := "anyOf"
		if items[key] == nil {
			key = "oneOf"
		}
		if f.Choices, err = choices(items, key); err == nil && len(f.Choices) == 0 {
			return bad("is a list without anything to choose from.")
		}
	case Number, Integer, Boolean:
		if o["enum"] != nil || o["oneOf"] != nil || o["anyOf"] != nil {
			return bad("has choices that are no texts, which cannot be shown.")
		}
	case "":
		return bad("has no type that can be read.")
	default:
		return bad("is of the type %.40q, which cannot be shown.", f.Kind)
	}
	if err != nil {
		return bad("%v", err)
	}
	if f.Pattern != "" {
		f.pattern, _ = regexp.Compile(f.Pattern) // one in another dialect is left to the agent
	}
	f.clear()
	if d := o["default"]; d != nil && string(d) != "null" {
		if v, problem := f.check(d); problem == "" {
			f.Default = v
		}
	}
	return f, nil
}

// clear removes what has no meaning for the kind.
func (f *Field) clear() {
	if f.Kind != Text {
		f.MinLength, f.MaxLength, f.Pattern, f.Format, f.pattern = nil, nil, "", "", nil
	}
	if f.Kind != Several {
		f.MinItems, f.MaxItems = nil, nil
	}
	if f.Kind != Number && f.Kind != Integer {
		f.Minimum, f.Maximum = nil, nil
	}
}

// choices reads the texts that may be chosen: a plain list, or one with titles under key.
func choices(o object, key string) ([]Choice, error) {
	var out []Choice
	switch {
	case o["enum"] != nil && string(o["enum"]) != "null":
		var values, names []string
		if json.Unmarshal(o["enum"], &values) != nil {
			return nil, fmt.Errorf("has choices that are no texts.")
		}
		_ = json.Unmarshal(o["enumNames"], &names) // an older way to give titles
		for i, v := range values {
			c := Choice{Value: v}
			if i < len(names) {
				c.Title = names[i]
			}
			out = append(out, c)
		}
	case o[key] != nil && string(o[key]) != "null":
		var list []object
		if json.Unmarshal(o[key], &list) != nil {
			return nil, fmt.Errorf("has choices that cannot be read.")
		}
		for _, x := range list {
			var v *string
			if json.Unmarshal(x["const"], &v) != nil || v == nil {
				return nil, fmt.Errorf("has a choice that is no text.")
			}
			out = append(out, Choice{Value: *v, Title: x.text("title"), Description: x.text("description")})
		}
	default:
		return nil, nil
	}
	if len(out) == 0 || len(out) > MaxChoices {
		return nil, fmt.Errorf("has %d choices; 1 to %d are allowed.", len(out), MaxChoices)
	}
	for i, c := range out {
		if max(len(c.Value), len(c.Title), len(c.Description)) > MaxText {
			return nil, fmt.Errorf("has a choice of more than %d bytes.", MaxText)
		}
		if slices.ContainsFunc(out[:i], func(x Choice) bool { return x.Value == c.Value }) {
			return nil, fmt.Errorf("has the choice %.80q twice.", c.Value)
		}
	}
	return out, nil
}

// wire is a field in JSON.
type wire struct {
	Type        Kind            `json:"type"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Enum        []string        `json:"enum,omitempty"`
	OneOf       []Choice        `json:"oneOf,omitempty"`
	Items       *items          `json:"items,omitempty"`
	MinLength   *int64          `json:"minLength,omitempty"`
	MaxLength   *int64          `json:"maxLength,omitempty"`
	MinItems    *int64          `json:"minItems,omitempty"`
	MaxItems    *int64          `json:"maxItems,omitempty"`
	Minimum     *float64        `json:"minimum,omitempty"`
	Maximum     *float64        `json:"maximum,omitempty"`
	Pattern     string          `json:"pattern,omitempty"`
	Format      string          `json:"format,omitempty"`
	Default     json.RawMessage `json:"default,omitempty"`
}

type items struct {
	Type  string   `json:"type,omitempty"`
	Enum  []string `json:"enum,omitempty"`
	AnyOf []Choice `json:"anyOf,omitempty"`
}

func (f Field) wire() wire {
	w := wire{
		Type: f.Kind, Title: f.Title, Description: f.Description, MinLength: f.MinLength, MaxLength: f.MaxLength, MinItems: f.MinItems, MaxItems: f.MaxItems,
		Minimum: f.Minimum, Maximum: f.Maximum, Pattern: f.Pattern, Format: f.Format, Default: f.Default,
	}
	titled := slices.ContainsFunc(f.Choices, func(c Choice) bool { return c.Title != "" || c.Description != "" })
	var plain []string
	for _, c := range f.Choices {
		plain = append(plain, c.Value)
	}
	switch {
	case f.Kind == Several && titled:
		w.Items = &items{AnyOf: f.Choices}
	case f.Kind == Several:
		w.Items = &items{Type: "string", Enum: plain}
	case titled:
		w.OneOf = f.Choices
	default:
		w.Enum = plain
	}
	return w
}

// JSON is the schema as JSON text that Parse reads: the fields in their order, and nothing
// that was not understood.
func (s Schema) JSON() json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	put := func(v any) {
		_ = e.Encode(v) // texts and numbers that came from JSON
		b.Truncate(b.Len() - 1)
	}
	b.WriteString(`{"type":"object"`)
	if s.Title != "" {
		b.WriteString(`,"title":`)
		put(s.Title)
	}
	if s.Description != "" {
		b.WriteString(`,"description":`)
		put(s.Description)
	}
	b.WriteString(`,"properties":{`)
	var required []string
	for i, f := range s.Fields {
		if i > 0 {
			b.WriteByte(',')
		}
		put(f.Name)
		b.WriteByte(':')
		put(f.wire())
		if f.Required {
			required = append(required, f.Name)
		}
	}
	b.WriteByte('}')
	if len(required) > 0 {
		b.WriteString(`,"required":`)
		put(required)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// Field is the field of that name.
func (s Schema) Field(name string) (Field, bool) {
	i := slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return Field{}, false
	}
	return s.Fields[i], true
}

// names lists the fields for a sentence.
func (s Schema) names() string {
	if len(s.Fields) == 0 {
		return "none"
	}
	out := make([]string, len(s.Fields))
	for i, f := range s.Fields {
		out[i] = f.Name
	}
	return strings.Join(out, ", ")
}
