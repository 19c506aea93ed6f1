package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/ticket"
)

// document makes the OpenAPI 3.1 document from the list of operations.
func document(reg *operation.Registry, version string) ([]byte, error) {
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Hearth", Version: version,
			Description: "Coding agents in sandboxes of your own machine. Errors have one shape; decide on their code.",
		},
		Components: &huma.Components{
			Schemas:         reg.Schemas,
			SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}},
		},
		Security: []map[string][]string{{"token": {}}},
		Paths:    map[string]*huma.PathItem{},
	}
	failure := &huma.Response{
		Description: "Refused, with a code",
		Content:     map[string]*huma.MediaType{"application/json": {Schema: reg.Schemas.Schema(reflect.TypeFor[ErrorBody](), true, "")}},
	}
	for _, o := range reg.Operations {
		content := map[string]*huma.MediaType{}
		for _, media := range append([]string{o.Media}, o.MoreMedia...) {
			if media == "" {
				continue
			}
			content[media] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
		}
		if o.Media == "" {
			content["application/json"] = &huma.MediaType{Schema: reg.Schemas.Schema(o.Out, true, "")}
		}
		op := &huma.Operation{OperationID: o.Name, Method: o.Method, Path: o.Path, Summary: o.Doc, Responses: map[string]*huma.Response{
			strconv.Itoa(o.Status): {
				Description: http.StatusText(o.Status),
				Content:     content,
			},
			"default": failure,
		}}
		inPath := operation.PathFields(o.Path)
		query := o.Method == http.MethodGet || o.Method == http.MethodDelete
		body := &huma.Schema{Type: huma.TypeObject, Properties: map[string]*huma.Schema{}, AdditionalProperties: false}
		names := make([]string, 0, len(o.Schema.Properties))
		for name := range o.Schema.Properties {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			p := o.Schema.Properties[name]
			required := slices.Contains(o.Schema.Required, name)
			switch {
			case slices.Contains(inPath, name):
				op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "path", Required: true, Description: p.Description, Schema: p})
			case query:
				op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "query", Required: required, Description: p.Description, Schema: p})
			default:
				body.Properties[name] = p
				if required {
					body.Required = append(body.Required, name)
				}
			}
		}
		if o.Keyed {
			op.Parameters = append(op.Parameters, &huma.Param{
				Name: HeaderKey, In: "header", Schema: &huma.Schema{Type: huma.TypeString},
				Description: "The same key gives the same answer for 24 hours; with another body it is refused.",
			})
		}
		if !query {
			op.RequestBody = &huma.RequestBody{Required: len(body.Required) > 0, Content: map[string]*huma.MediaType{"application/json": {Schema: body}}}
		}
		doc.AddOperation(op)
	}
	doc.AddOperation(streamOperation())
	doc.AddOperation(chatOperation())
	doc.AddOperation(watchOperation())
	b, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return nil, fmt.Errorf("make the OpenAPI document: %w", err)
	}
	return b, nil
}

// streamOperation describes a path that is not an operation.
func streamOperation() *huma.Operation {
	text := func() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }
	return &huma.Operation{
		OperationID: "stream", Method: http.MethodGet, Path: operation.Root + "/{id}/stream",
		Summary:     "Follow the conversation as an AI SDK UI-message stream, version 1.",
		Description: "Server-sent events; each has the id turn.part. The running message is replayed from its start, then live, on into queued turns. A stream that ends without [DONE] was broken: come again with Last-Event-ID.",
		Parameters: []*huma.Param{
			{Name: "id", In: "path", Required: true, Schema: text()},
			{Name: "from", In: "query", Description: "beginning: replay every turn, with its prompt", Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"beginning"}}},
			{Name: "after", In: "query", Description: "turn.part: go on after that part", Schema: text()},
			{Name: "approvals", In: "query", Description: "close: the stream ends at a question that waits for an answer", Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"open", "close"}}},
			{Name: "heartbeat", In: "query", Description: "event: signs of life as visible events instead of comments", Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"event"}}},
			{Name: "padding", In: "query", Description: "bytes of a comment behind every write, for proxies that hold events back until a buffer is full", Schema: &huma.Schema{Type: huma.TypeInteger}},
			{Name: "Last-Event-ID", In: "header", Description: "as after, and before it", Schema: text()},
			{Name: ticket.Header, In: "header", Description: "an attach ticket, in place of a token", Schema: text()},
		},
		Responses: map[string]*huma.Response{
			"200":     {Description: "The stream", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: text()}}},
			"204":     {Description: "No turn is accepted or at work, and nothing is left to send"},
			"default": {Description: "Refused: one plain sentence", Content: map[string]*huma.MediaType{"text/plain": {Schema: text()}}},
		},
	}
}

// chatOperation describes what chats of the AI SDK send.
func chatOperation() *huma.Operation {
	text := func(doc string, values ...any) *huma.Schema {
		return &huma.Schema{Type: huma.TypeString, Description: doc, Enum: values}
	}
	message := &huma.Schema{Type: huma.TypeObject, Description: "a UIMessage of the AI SDK", AdditionalProperties: true}
	return &huma.Operation{
		OperationID: "chat", Method: http.MethodPost, Path: operation.Root + "/{id}/stream",
		Summary:     "Prompt, or answer questions, as a chat of the AI SDK does, and read the reply.",
		Description: "The newest message is the prompt and its id the idempotency key; or it is the agent's, with answers to its questions. The reply is the one message of that turn, from its start, or from behind the questions.",
		Parameters: []*huma.Param{
			{Name: "id", In: "path", Required: true, Schema: text("")},
			{Name: "approvals", In: "query", Description: "close: the reply ends at a question that waits for an answer", Schema: text("", "open", "close")},
			{Name: "heartbeat", In: "query", Description: "event: signs of life as visible events instead of comments", Schema: text("", "event")},
		},
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{
			Type: huma.TypeObject, AdditionalProperties: false,
			Properties: map[string]*huma.Schema{
				"id":        text("the chat's own; a session's id must be that of the address"),
				"messages":  {Type: huma.TypeArray, Items: message, Description: "only the newest is read"},
				"message":   message,
				"trigger":   text("", "submit-message"),
				"messageId": text("of the agent's message whose questions are answered"),
				"mode":      text("when a turn is at work", "queue", "interrupt", "reject"),
				"approvals": text("as in the query", "open", "close"),
			},
		}}}},
		Responses: map[string]*huma.Response{
			"200":     {Description: "The reply; the header Hearth-Turn names its turn", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: text("")}}},
			"default": {Description: "Refused, and nothing was accepted: one plain sentence", Content: map[string]*huma.MediaType{"text/plain": {Schema: text("")}}},
		},
	}
}
