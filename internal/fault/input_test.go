package fault_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
)

func TestField(t *testing.T) {
	t.Parallel()
	e := fault.Field("mode", "mode is %q; it can be queue.", "x")
	want := []fault.FieldProblem{{Field: "mode", Problem: `mode is "x"; it can be queue`}}
	if d := cmp.Diff(want, e.Details["fields"]); d != "" || e.Code != fault.InvalidInput || e.Message != `mode is "x"; it can be queue.` {
		t.Errorf("%v %s", e, d)
	}
}

func TestMismatch(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{"b":"yes"}`: "must be true or false, not a text",
		`{"s":[1]}`:   "must be a text, not a list",
		`{"l":true}`:  "must be a list, not true or false",
		`{"n":1.5}`:   "must be a whole number within its limits, not 1.5",
		`{"f":{}}`:    "must be a number, not an object",
		`{"o":7}`:     "must be an object, not a number",
	} {
		var v struct {
			B bool
			S string
			L []string
			N int
			F float64
			O struct{}
		}
		var e *json.UnmarshalTypeError
		if err := json.Unmarshal([]byte(raw), &v); !errors.As(err, &e) {
			t.Fatal(err)
		}
		if got := fault.Mismatch(e); got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
}
