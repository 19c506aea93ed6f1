package model

import (
	"bytes"
	"encoding/json"
)

const includeUsage = `{"include_usage":true}`

// askForUsage makes a streaming Chat request ask for its usage
// (stream_options.include_usage). The rest of the body stays as it is, byte for
// byte. It gives false when there is nothing to add: no stream, asked for
// already, or not a JSON object, which the provider will say.
func askForUsage(body []byte) ([]byte, bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	first := dec.InputOffset()
	var stream bool
	var options json.RawMessage
	var optionsEnd int64
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, false
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, false
		}
		switch key {
		case "stream":
			stream = bytes.Equal(value, []byte("true"))
		case "stream_options":
			options, optionsEnd = value, dec.InputOffset()
		}
	}
	if !stream {
		return nil, false
	}
	if options == nil {
		out := make([]byte, 0, len(body)+len(includeUsage)+24)
		out = append(out, body[:first]...)
		out = append(out, `"stream_options":`+includeUsage+`,`...)
		return append(out, body[first:]...), true
	}
	fields := map[string]json.RawMessage{}
	if json.Unmarshal(options, &fields) != nil { // null is an empty map
		return nil, false
	}
	if bytes.Equal(fields["include_usage"], []byte("true")) {
		return nil, false
	}
	if fields == nil {
		fields = map[string]json.RawMessage{}
	}
	fields["include_usage"] = json.RawMessage("true")
	value, err := json.Marshal(fields)
	if err != nil {
		return nil, false
	}
	out := make([]byte, 0, len(body)+len(value))
	out = append(out, body[:optionsEnd-int64(len(options))]...)
	out = append(out, value...)
	return append(out, body[optionsEnd:]...), true
}

// modelOf is the model that a request body asks for.
func modelOf(body []byte) string {
	var v struct {
		Model string `json:"model"`
	}
	if json.Unmarshal(body, &v) != nil || len(v.Model) > 256 {
		return ""
	}
	return v.Model
}
