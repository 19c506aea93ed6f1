package fault

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// FieldProblem is what is wrong with one field of an input; details.fields of an
// INVALID_INPUT lists them.
type FieldProblem struct {
	Field   string `json:"field"`
	Problem string `json:"problem"`
}

// Field makes an INVALID_INPUT with a sentence about one field, which its details name.
func Field(name, format string, args ...any) *Error {
	e := New(InvalidInput, format, args...)
	return e.With("fields", []FieldProblem{{Field: name, Problem: strings.TrimSuffix(e.Message, ".")}})
}

// Mismatch says what a JSON value should have been and is, such as "must be a list, not a
// text". The error's own text is about types of the program.
func Mismatch(e *json.UnmarshalTypeError) string {
	want := "an object"
	switch e.Type.Kind() {
	case reflect.Bool:
		want = "true or false"
	case reflect.String:
		want = "a text"
	case reflect.Slice, reflect.Array:
		want = "a list"
	case reflect.Float32, reflect.Float64:
		want = "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		want = "a whole number within its limits"
	}
	is := map[string]string{"bool": "true or false", "string": "a text", "array": "a list", "object": "an object", "number": "a number"}[e.Value]
	if is == "" { // of a number it may have the digits
		is = fmt.Sprintf("%.40s", strings.TrimPrefix(e.Value, "number "))
	}
	return "must be " + want + ", not " + is
}
