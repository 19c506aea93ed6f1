package rest

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/ticket"
)

// streamCaller is who opens a stream, by token or by attach ticket, after they were found to
// have the right to. The request's form and its body, which body reads, are checked in between: only
// for somebody with a token or a ticket of ours, and before the ticket is used up. Codes:
// UNAUTHENTICATED, TICKET_INVALID, INVALID_INPUT, and those of Authorize and body.
func (s *server) streamCaller(r *http.Request, action ticket.Action, body func() error) (session.Caller, error) {
	for name := range r.URL.Query() {
		if strings.Contains(strings.ToLower(name), "ticket") {
			return session.Caller{}, fault.New(fault.InvalidInput, "An attach ticket belongs into the header %s, never into an address: those are kept in logs and histories.", ticket.Header)
		}
	}
	right := operation.RightRead
	if action == ticket.Prompt {
		right = operation.RightWrite
	}
	wellFormed := func() error {
		if err := s.StreamForm(r); err != nil {
			return err
		}
		return body()
	}
	id := session.ID(r.PathValue("id"))
	tickets := r.Header.Values(ticket.Header)
	switch {
	case len(tickets) == 0:
		who, err := s.authenticate(r)
		if err == nil {
			err = s.authorize(r, who, right)
		}
		if err == nil {
			err = wellFormed()
		}
		return who, err
	case len(tickets) > 1:
		return session.Caller{}, fault.New(fault.InvalidInput, "The header %s is there more than once.", ticket.Header)
	case strings.Join(r.Header.Values("Authorization"), "") != "":
		return session.Caller{}, fault.New(fault.InvalidInput, "Send either a token or an attach ticket, not both.")
	case s.Tickets == nil:
		return session.Caller{}, fault.New(fault.Unsupported, "This server takes no attach tickets.")
	}
	if err := s.Tickets.Verify(tickets[0], id, action); err != nil {
		return session.Caller{}, err
	}
	if err := wellFormed(); err != nil {
		return session.Caller{}, err
	}
	who, err := s.Tickets.Redeem(r.Context(), tickets[0], id, action)
	if err == nil {
		err = s.authorize(r, who, right)
	}
	return who, err
}

func (s *server) authorize(r *http.Request, who session.Caller, right operation.Right) error {
	if s.Registry.Authorize == nil {
		return errors.New("rest: no authorization is set")
	}
	return s.Registry.Authorize(r.Context(), who, right)
}

// watch answers GET /v1/watch.
func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	who, err := s.authenticate(r)
	if err == nil {
		err = s.authorize(r, who, operation.RightRead)
	}
	if err == nil && s.Watch == nil {
		err = fault.New(fault.Unsupported, "This server tells no changes.")
	}
	if err == nil {
		err = s.Watch(w, r, who)
	}
	if err != nil {
		s.fail(w, r, err)
	}
}

// sentence refuses with one plain sentence: chat clients show the body of a refusal as it is.
func (s *server) sentence(w http.ResponseWriter, r *http.Request, err error) {
	v := s.explain(r, err)
	challenge(w, v)
	w.Header().Set(HeaderCode, v.Code)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(statusOf(v))
	_, _ = io.WriteString(w, v.Message+"\n") // the client may be gone
}

// watchOperation describes the watch, which is no operation.
func watchOperation() *huma.Operation {
	text := func() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }
	return &huma.Operation{
		OperationID: "watch", Method: http.MethodGet, Path: "/v1/watch",
		Summary:     "Be told that something of a session in the workspace changed, never what.",
		Description: `Server-sent events with an opaque id and data {"kind","session"}; kind is session, question, queue or start. An event named reset says that everything must be read anew. The stream never ends well: come again with Last-Event-ID.`,
		Parameters: []*huma.Param{
			{Name: "after", In: "query", Description: "id to go on after", Schema: text()},
			{Name: "Last-Event-ID", In: "header", Description: "as after, and before it", Schema: text()},
		},
		Responses: map[string]*huma.Response{
			"200":     {Description: "The changes", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: text()}}},
			"default": {Description: "Refused, with a code", Content: map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Ref: "#/components/schemas/ErrorBody"}}}},
		},
	}
}
