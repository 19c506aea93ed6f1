// Package operation is the one list of what can be asked of Hearth: each
// [Operation] has a name, one flat input, one output, a right and its refusals.
// Surfaces map the list and nothing else; REST is in package rest. Nothing here
// knows a transport: paths and methods are data for the surfaces.
//
// Start at [Register] for the operations, at [Operation.Invoke] for what happens
// to each call: the input is checked against its schema, unknown fields are
// refused, the right is asked for, then the handler runs.
package operation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// Right is what a caller must be allowed to do.
type Right string

// The rights.
const (
	RightRead   Right = "read"   // see sessions
	RightCreate Right = "create" // make sessions
	RightWrite  Right = "write"  // prompt, cancel, deliver, discard
	RightDelete Right = "delete"
)

// Meta describes an operation.
type Meta struct {
	Name     string // lower camel case, the same on every surface
	Method   string // of REST
	Path     string // of REST, with {field} for fields of the input
	Doc      string // one sentence
	Right    Right
	Mutation bool
	Keyed    bool // an idempotency key counts
	Status   int  // of REST when it went well
	// Media is the media type of an output that is a [Blob]; empty: the output is JSON.
	Media string
	// MoreMedia are further ones, which the input chooses; see [Blob.Media].
	MoreMedia []string
}

// Blob is an output of bytes, which are made while they are sent.
type Blob struct {
	Name  string // for a file; without folders
	Media string // empty: that of the operation
	Size  int64  // bytes; 0: not known
	// Write is called at most once. An error before the first byte is a refusal like
	// any other; later the surface must not let the output look whole.
	Write func(ctx context.Context, w io.Writer) error
}

// Call is who asks and how, apart from the input.
type Call struct {
	Caller session.Caller
	Key    string // idempotency key; empty: none
	op     string
	hash   string
}

// MaxKeyBytes bounds an idempotency key.
const MaxKeyBytes = 255

// key is the session's form of the idempotency key, nil when there is none.
func (c Call) key(now time.Time) *session.Key {
	if c.Key == "" {
		return nil
	}
	return &session.Key{Identity: c.Caller.Subject, Operation: c.op, Key: c.Key, BodyHash: c.hash, Now: now}
}

// Operation is one entry of the list.
type Operation struct {
	Meta
	In, Out reflect.Type
	Schema  *huma.Schema // of the input
	run     func(ctx context.Context, c Call, raw []byte) (any, error)
}

// Registry holds the operations. Fill it before use; then it is read only and
// safe for concurrent use.
type Registry struct {
	// Authorize decides whether the caller has the right. Nil refuses everything.
	Authorize  func(ctx context.Context, c session.Caller, right Right) error
	Schemas    huma.Registry
	Operations []*Operation
}

// NewRegistry makes an empty list.
func NewRegistry(authorize func(ctx context.Context, c session.Caller, right Right) error) *Registry {
	return &Registry{Authorize: authorize, Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)}
}

// OwnerMay allows everything to every authenticated caller, within its workspace.
func OwnerMay(context.Context, session.Caller, Right) error { return nil }

// Add adds an operation. It panics when two share a name, when the path has a field
// that the input has not, or when the media type does not fit the output: all are
// mistakes of the program.
func Add[In, Out any](r *Registry, m Meta, handler func(context.Context, Call, In) (Out, error)) {
	for _, o := range r.Operations {
		if o.Name == m.Name {
			panic("operation: two are called " + m.Name)
		}
	}
	if (reflect.TypeFor[Out]() == reflect.TypeFor[Blob]()) != (m.Media != "") {
		panic("operation: " + m.Name + " has bytes without a media type, or a media type without bytes")
	}
	schema := huma.SchemaFromType(r.Schemas, reflect.TypeFor[In]())
	for _, f := range PathFields(m.Path) {
		if schema.Properties[f] == nil {
			panic(fmt.Sprintf("operation: %s has {%s} in its path and not in its input", m.Name, f))
		}
	}
	schema.PrecomputeMessages()
	r.Operations = append(r.Operations, &Operation{
		Meta: m, In: reflect.TypeFor[In](), Out: reflect.TypeFor[Out](), Schema: schema,
		run: func(ctx context.Context, c Call, raw []byte) (any, error) {
			var in In
			if err := json.Unmarshal(raw, &in); err != nil {
				return nil, badField(err)
			}
			return handler(ctx, c, in)
		},
	})
}

// PathFields are the names in braces of a path.
func PathFields(path string) []string {
	var out []string
	for _, s := range strings.Split(path, "/") {
		if strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}") {
			out = append(out, s[1:len(s)-1])
		}
	}
	return out
}

// Invoke runs the operation on an input as JSON would give it. Codes beside the
// handler's own: INVALID_INPUT with details.fields, and those of Authorize.
func (r *Registry) Invoke(ctx context.Context, o *Operation, c Call, input map[string]any) (any, error) {
	if r.Authorize == nil {
		return nil, errors.New("operation: no authorization is set")
	}
	if err := r.Authorize(ctx, c.Caller, o.Right); err != nil {
		return nil, err
	}
	if err := r.validate(o, input); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("encode the input of %s: %w", o.Name, err)
	}
	c.op = o.Name
	if c.Key != "" {
		if !o.Keyed {
			c.Key = ""
		} else if err := checkKey(c.Key); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(raw) // of the canonical form: keys are sorted by Marshal
		c.hash = hex.EncodeToString(sum[:])
	}
	return o.run(ctx, c, raw)
}

func checkKey(k string) error {
	if len(k) > MaxKeyBytes {
		return fault.New(fault.InvalidInput, "The idempotency key is longer than %d bytes.", MaxKeyBytes)
	}
	for _, b := range []byte(k) {
		if b < 0x21 || b > 0x7e {
			return fault.New(fault.InvalidInput, "The idempotency key may have only visible ASCII characters without spaces.")
		}
	}
	return nil
}

// FieldProblem is what is wrong with one field; details.fields lists them.
type FieldProblem = fault.FieldProblem

func (r *Registry) validate(o *Operation, input map[string]any) error {
	var out []FieldProblem
	for name := range input { // the validator passes over case
		if o.Schema.Properties[name] == nil {
			out = append(out, FieldProblem{Field: name, Problem: "is not a field of this operation"})
		}
	}
	if len(out) > 0 {
		slices.SortFunc(out, func(a, b FieldProblem) int { return strings.Compare(a.Field, b.Field) })
		return Invalid(out...)
	}
	var res huma.ValidateResult
	huma.Validate(r.Schemas, o.Schema, huma.NewPathBuffer(make([]byte, 0, 64), 0), huma.ModeWriteToServer, input, &res)
	if len(res.Errors) == 0 {
		return nil
	}
	for _, e := range res.Errors {
		p := FieldProblem{Problem: e.Error()}
		var d huma.ErrorDetailer
		if errors.As(e, &d) {
			p = FieldProblem{Field: d.ErrorDetail().Location, Problem: d.ErrorDetail().Message}
		}
		if strings.HasPrefix(p.Problem, "expected required property ") {
			name, _, _ := strings.Cut(strings.TrimPrefix(p.Problem, "expected required property "), " ")
			if p.Field != "" {
				name = p.Field + "." + name
			}
			p = FieldProblem{Field: name, Problem: "is missing"}
		}
		out = append(out, p)
	}
	return Invalid(out...)
}

// Invalid makes an INVALID_INPUT that names fields.
func Invalid(problems ...FieldProblem) error {
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
	if len(problems) > 20 {
		problems = problems[:20]
	}
	return fault.New(fault.InvalidInput, "%s", b.String()).With("fields", problems)
}

func badField(err error) error {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		return Invalid(FieldProblem{Field: t.Field, Problem: "has a value of the wrong type or out of range"})
	}
	return fault.Wrap(err, fault.InvalidInput, "The input could not be read.")
}
