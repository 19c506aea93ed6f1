package uistream

import (
	"fmt"
	"strings"
)

// kind is what a reader demands of a field.
type kind uint8

const (
	anyValue kind = iota
	str
	boolean
	object
	objects // an object of objects
	encoding
	reason
	absent // a field that only version 7 knows, and reads strictly
)

type field struct {
	name string
	kind kind
	need bool
}

func required(k kind, names ...string) []field { return makeFields(k, true, names) }
func optional(k kind, names ...string) []field { return makeFields(k, false, names) }

func makeFields(k kind, need bool, names []string) []field {
	out := make([]field, len(names))
	for i, n := range names {
		out[i] = field{n, k, need}
	}
	return out
}

func fields(groups ...[]field) []field {
	var out []field
	for _, g := range groups {
		out = append(out, g...)
	}
	return out
}

var (
	providerMeta = optional(objects, "providerMetadata")
	toolOptional = fields(optional(boolean, "dynamic", "providerExecuted"), optional(object, "toolMetadata"), providerMeta)
	block        = fields(required(str, "id"), providerMeta)
	blockDelta   = fields(block, required(str, "delta"))
	shapes       = map[Type][]field{
		TypeStart:           fields(optional(str, "messageId"), optional(object, "messageMetadata")),
		TypeFinish:          fields(optional(reason, "finishReason"), optional(object, "messageMetadata")),
		TypeAbort:           optional(str, "reason"),
		TypeError:           required(str, "errorText"),
		TypeMessageMetadata: required(object, "messageMetadata"),
		TypeStartStep:       nil,
		TypeFinishStep:      nil,

		TypeTextStart:      block,
		TypeTextDelta:      blockDelta,
		TypeTextEnd:        fields(block, optional(absent, "citations")),
		TypeReasoningStart: block,
		TypeReasoningDelta: blockDelta,
		TypeReasoningEnd:   block,

		TypeToolInputStart:      fields(required(str, "toolCallId", "toolName"), optional(str, "title"), optional(encoding, "inputEncoding"), toolOptional),
		TypeToolInputDelta:      required(str, "toolCallId", "inputTextDelta"),
		TypeToolInputAvailable:  fields(required(str, "toolCallId", "toolName"), required(anyValue, "input"), optional(str, "title"), toolOptional),
		TypeToolInputError:      fields(required(str, "toolCallId", "toolName", "errorText"), required(anyValue, "input"), optional(str, "title"), toolOptional),
		TypeToolApprovalRequest: fields(required(str, "approvalId", "toolCallId"), optional(str, "signature", "reason"), optional(boolean, "isAutomatic")),
		TypeToolOutputAvailable: fields(required(str, "toolCallId"), required(anyValue, "output"), optional(boolean, "preliminary"), toolOptional),
		TypeToolOutputError:     fields(required(str, "toolCallId", "errorText"), toolOptional),
		TypeToolOutputDenied:    required(str, "toolCallId"),

		TypeSourceURL:      fields(required(str, "sourceId", "url"), optional(str, "title"), providerMeta),
		TypeSourceDocument: fields(required(str, "sourceId", "mediaType", "title"), optional(str, "filename"), providerMeta),
		TypeFile:           fields(required(str, "url", "mediaType"), providerMeta),
	}
	dataShape = fields(required(anyValue, "data"), optional(str, "id"), optional(boolean, "transient"))
)

// shape holds the fields of a part against what both reader lines demand.
// Further fields are allowed: readers pass over them.
func (d document) shape(t Type) error {
	want, known := shapes[t]
	switch {
	case t == "":
		return fmt.Errorf("it has no type")
	case t.IsData():
		if !validDataName(string(t[len(dataPrefix):])) {
			return fmt.Errorf("the data part's name in %.80q is not of [A-Za-z0-9._-] or too long", string(t))
		}
		want = dataShape
	case !known:
		return fmt.Errorf("its type %.80q is unknown", string(t))
	}
	for _, f := range want {
		v, ok := d.value(f.name)
		if !ok {
			if f.need {
				return fmt.Errorf("a %s part has no field %s", t, f.name)
			}
			continue
		}
		if !f.kind.fits(v) {
			return fmt.Errorf("the field %s of a %s part has a value of the wrong type", f.name, t)
		}
	}
	return nil
}

func (k kind) fits(v []byte) bool {
	switch k {
	case str:
		return v[0] == '"'
	case absent:
		return false
	case boolean:
		return v[0] == 't' || v[0] == 'f'
	case object:
		return v[0] == '{'
	case objects:
		if v[0] != '{' {
			return false
		}
		for _, f := range walk(v).top {
			if f.value[0] != '{' {
				return false
			}
		}
		return true
	case encoding:
		return v[0] == '"' && (unquote(v) == "json" || unquote(v) == "text")
	case reason:
		if v[0] != '"' {
			return false
		}
		switch FinishReason(unquote(v)) {
		case FinishStop, FinishLength, FinishContentFilter, FinishToolCalls, FinishError, FinishOther:
			return true
		}
		return false
	}
	return true
}

func validDataName(name string) bool {
	if name == "" || len(name) > maxDataNameSize {
		return false
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return false
		}
	}
	return true
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}

// AllowedURL tells whether a file or source part may carry the address: http,
// https, or an image in a data URL. Everything else could run or read something
// in the page that shows it.
func AllowedURL(u string) bool {
	scheme, rest, ok := strings.Cut(u, ":")
	if !ok || strings.ContainsFunc(u, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return false
	}
	switch strings.ToLower(scheme) {
	case "http", "https":
		return strings.HasPrefix(rest, "//") && len(rest) > 2
	case "data":
		return len(rest) > len("image/") && strings.EqualFold(rest[:len("image/")], "image/")
	}
	return false
}
