package model

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
)

const includeUsage = `{"include_usage":true}`

// askForUsage makes a streaming Chat request ask for its usage
// (stream_options.include_usage). The rest of the body stays as it is, byte for
// byte, and is not copied: what is to be sent comes in pieces. It gives false, and
// the body, when there is nothing to add: no stream, asked for already, or not a
// JSON object, which the provider will say.
func askForUsage(body []byte) (sent [][]byte, asks bool) {
	sent = [][]byte{body}
	start := bytes.IndexByte(body, '{') + 1
	if start == 0 || !json.Valid(body) || len(bytes.TrimLeft(body[:start-1], " \t\r\n")) > 0 {
		return sent, false
	}
	var stream, found bool
	var at, end int // of the options
	for key, value := range members(body, start) {
		switch key {
		case "stream":
			stream = string(body[value[0]:value[1]]) == "true"
		case "stream_options":
			found, at, end = true, value[0], value[1]
		}
	}
	if !stream {
		return sent, false
	}
	if !found {
		return [][]byte{body[:start], []byte(`"stream_options":` + includeUsage + `,`), body[start:]}, true
	}
	fields := map[string]json.RawMessage{}
	if json.Unmarshal(body[at:end], &fields) != nil || string(fields["include_usage"]) == "true" {
		return sent, false
	}
	if fields == nil { // of null
		fields = map[string]json.RawMessage{}
	}
	fields["include_usage"] = json.RawMessage("true")
	options, err := json.Marshal(fields)
	if err != nil {
		return sent, false
	}
	return [][]byte{body[:at], options, body[end:]}, true
}

// members gives the members of a JSON object that is known to be valid, and that
// begins before start: each key, and where its value begins and ends.
func members(body []byte, start int) iter.Seq2[string, [2]int] {
	return func(yield func(string, [2]int) bool) {
		for i := start; ; {
			from := i + bytes.IndexByte(body[i:], '"')
			if from < i || bytes.IndexByte(body[i:from], '}') >= 0 {
				return // no member is left
			}
			to := skipValue(body, from)
			var key string
			if json.Unmarshal(body[from:to], &key) != nil {
				return
			}
			i = to + bytes.IndexByte(body[to:], ':') + 1
			for strings.IndexByte(" \t\r\n", body[i]) >= 0 {
				i++
			}
			end := skipValue(body, i)
			if !yield(key, [2]int{i, end}) {
				return
			}
			i = end
		}
	}
}

// skipValue is the end of the value that begins at i, in valid JSON.
func skipValue(body []byte, i int) int {
	depth := 0
	for ; i < len(body); i++ {
		switch body[i] {
		case '"':
			for i++; body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		default:
			// Within a number or a word the value goes on to what cannot be in one.
			if depth > 0 || i+1 < len(body) && strings.IndexByte(" \t\r\n,}]", body[i+1]) < 0 {
				continue
			}
		}
		if depth <= 0 {
			return i + 1
		}
	}
	return i
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
