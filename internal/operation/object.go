package operation

import (
	"encoding/json"

	"github.com/danielgtaylor/huma/v2"
)

// Object is a JSON object whose members no operation names.
type Object json.RawMessage

// MarshalJSON implements json.Marshaler.
func (o Object) MarshalJSON() ([]byte, error) { return json.RawMessage(o).MarshalJSON() }

// UnmarshalJSON implements json.Unmarshaler.
func (o *Object) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(o).UnmarshalJSON(b) }

// Schema implements huma.SchemaProvider.
func (Object) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}
