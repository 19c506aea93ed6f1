package operation_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/session"
)

type input struct {
	ID   string   `json:"id" maxLength:"5"`
	N    int64    `json:"n,omitempty" minimum:"1" maximum:"9"`
	Mode string   `json:"mode,omitempty" enum:"a,b"`
	Tags []string `json:"tags,omitempty"`
}

func list(authorize func(context.Context, session.Caller, operation.Right) error) (*operation.Registry, *[]input) {
	r := operation.NewRegistry(authorize)
	var got []input
	operation.Add(r, operation.Meta{Name: "do", Method: "POST", Path: "/x/{id}", Right: operation.RightWrite, Keyed: true},
		func(_ context.Context, _ operation.Call, in input) (string, error) {
			got = append(got, in)
			return "done", nil
		})
	return r, &got
}

func TestInvoke(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		input  map[string]any
		want   input
		fields []operation.FieldProblem
	}{
		{"all", map[string]any{"id": "x", "n": 3.0, "mode": "a", "tags": []any{"p"}}, input{"x", 3, "a", []string{"p"}}, nil},
		{"least", map[string]any{"id": "x"}, input{ID: "x"}, nil},
		{"missing", map[string]any{}, input{}, []operation.FieldProblem{{Field: "id", Problem: "is missing"}}},
		{"unknown and in other case", map[string]any{"id": "x", "ID": "y", "z": 1.0}, input{}, []operation.FieldProblem{
			{Field: "ID", Problem: "is not a field of this operation"}, {Field: "z", Problem: "is not a field of this operation"}}},
		{"out of range", map[string]any{"id": "x", "n": 10.0}, input{}, []operation.FieldProblem{{Field: "n", Problem: "expected number <= 9"}}},
		{"not in the enumeration", map[string]any{"id": "x", "mode": "c"}, input{}, []operation.FieldProblem{{Field: "mode", Problem: `expected value to be one of "a, b"`}}},
		{"wrong type within", map[string]any{"id": "x", "tags": []any{1.0}}, input{}, []operation.FieldProblem{{Field: "tags[0]", Problem: "expected string"}}},
	} {
		r, got := list(operation.OwnerMay)
		_, err := r.Invoke(t.Context(), r.Operations[0], operation.Call{}, c.input)
		if c.fields == nil {
			if err != nil || len(*got) != 1 {
				t.Errorf("%s: %v", c.name, err)
			} else if d := cmp.Diff(c.want, (*got)[0]); d != "" {
				t.Errorf("%s: %s", c.name, d)
			}
			continue
		}
		if fault.CodeOf(err) != fault.InvalidInput || len(*got) != 0 {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if d := cmp.Diff(c.fields, fault.From(err).Details["fields"]); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestRightIsAskedFirst(t *testing.T) {
	t.Parallel()
	no := fault.New(fault.SessionNotFound, "no")
	r, got := list(func(_ context.Context, _ session.Caller, right operation.Right) error {
		if right != operation.RightWrite {
			t.Errorf("right %q", right)
		}
		return no
	})
	if _, err := r.Invoke(t.Context(), r.Operations[0], operation.Call{}, map[string]any{"nonsense": 1}); !errors.Is(err, no) || len(*got) != 0 {
		t.Errorf("got %v", err)
	}
	r, got = list(nil)
	if _, err := r.Invoke(t.Context(), r.Operations[0], operation.Call{}, map[string]any{"id": "x"}); err == nil || len(*got) != 0 {
		t.Error("without authorization everything must be refused")
	}
}

func TestEveryOperationIsDescribed(t *testing.T) {
	t.Parallel()
	r := operation.NewRegistry(operation.OwnerMay)
	operation.Register(r, operation.Deps{})
	for _, o := range r.Operations {
		if o.Doc == "" || o.Right == "" || o.Status == 0 || o.Mutation != (o.Method != "GET") {
			t.Errorf("%+v", o.Meta)
		}
	}
}

func TestBundleName(t *testing.T) {
	t.Parallel()
	for branch, want := range map[string]string{
		"main": "main.bundle", "hearth/fix-it-abc": "hearth-fix-it-abc.bundle", "../../etc/passwd": "etc-passwd.bundle", `a\b`: "a-b.bundle", ".hidden": "hidden.bundle",
		"-rf": "rf.bundle", "": "work.bundle", "a\nb\u202e": "a-b-.bundle", "größe": "größe.bundle",
	} {
		if got := operation.BundleName(branch); got != want {
			t.Errorf("%q: %q, want %q", branch, got, want)
		}
	}
}
