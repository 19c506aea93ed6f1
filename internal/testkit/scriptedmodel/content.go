package scriptedmodel

import (
	"encoding/json"
	"strings"
)

// flatten returns the text of a content value: a string, or a list of parts with
// text, or with content of their own.
func flatten(raw json.RawMessage) string {
	return flattenDepth(raw, 0)
}

func flattenDepth(raw json.RawMessage, depth int) string {
	if depth > 8 || len(raw) == 0 {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil {
		var parts []string
		for _, e := range list {
			if t := flattenDepth(e, depth+1); t != "" {
				parts = append(parts, t)
			}
		}
		return strings.Join(parts, "\n")
	}
	var part struct {
		Text    string          `json:"text"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &part) == nil {
		if part.Text != "" {
			return part.Text
		}
		return flattenDepth(part.Content, depth+1)
	}
	return ""
}

// texts returns the texts of a message's content, each part its own.
func texts(raw json.RawMessage) []string {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return []string{flatten(raw)}
	}
	var out []string
	for _, e := range list {
		if t := flatten(e); t != "" {
			out = append(out, t)
		}
	}
	return out
}
