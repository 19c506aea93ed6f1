package acp

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
)

// Decode reads a JSON object into the struct that dst points to, as far as it
// fits: a field with a value of the wrong type is as if it were absent, an
// element of a list that does not fit is left out, names count exactly, and
// unknown names are passed over. A field `Raw json.RawMessage` with the tag
// json:"-" gets the whole text, not a copy. The only error is text that is no JSON object.
func Decode(raw []byte, dst any) error {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return errors.New("acp: Decode wants a pointer to a struct")
	}
	if !into(raw, v.Elem()) {
		return errors.New("it is not a JSON object")
	}
	return nil
}

var rawType = reflect.TypeFor[json.RawMessage]()

// into sets v from raw; false leaves v as it was or partly set, to be dropped.
func into(raw json.RawMessage, v reflect.Value) bool {
	t := v.Type()
	switch {
	case t == rawType:
		if string(raw) == "null" {
			return true
		}
		v.SetBytes(raw)
		return true
	case t.Kind() == reflect.Pointer:
		if string(raw) == "null" {
			return true
		}
		e := reflect.New(t.Elem())
		if !into(raw, e.Elem()) {
			return false
		}
		v.Set(e)
		return true
	case t.Kind() == reflect.Slice:
		var elements []json.RawMessage
		if json.Unmarshal(raw, &elements) != nil {
			return false
		}
		if elements == nil {
			return true
		}
		s := reflect.MakeSlice(t, 0, len(elements))
		for _, e := range elements {
			x := reflect.New(t.Elem()).Elem()
			if into(e, x) {
				s = reflect.Append(s, x)
			}
		}
		v.Set(s)
		return true
	case t.Kind() == reflect.Struct:
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) != nil || m == nil {
			return false
		}
		fill(m, raw, v)
		return true
	}
	return json.Unmarshal(raw, v.Addr().Interface()) == nil
}

// fill sets the fields of the struct v from the members of raw.
func fill(m map[string]json.RawMessage, raw json.RawMessage, v reflect.Value) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Name == "Raw" && name == "-" && f.Type == rawType:
			v.Field(i).SetBytes(raw)
		case name == "" || name == "-":
		default:
			if x, has := m[name]; has {
				e := reflect.New(f.Type).Elem()
				if into(x, e) {
					v.Field(i).Set(e)
				}
			}
		}
	}
}
