package operation

import (
	"context"
	"net/http"
	"time"

	"github.com/hearthd/hearth/internal/audit"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/ticket"
)

// AttachTicketInput asks for a ticket.
type AttachTicketInput struct {
	ID     string `json:"id" maxLength:"100"`
	Action string `json:"action,omitempty" enum:"watch,prompt" doc:"watch (unless said) opens GET of the stream; prompt opens GET and POST"`
}

// AttachTicketView is a ticket.
type AttachTicketView struct {
	Ticket    string    `json:"ticket" doc:"opens one stream of the session, once"`
	ExpiresAt time.Time `json:"expiresAt"`
	Header    string    `json:"header" doc:"the request header to send it in; never put it into an address"`
}

// addTickets adds the operation that makes attach tickets.
func addTickets(r *Registry, o operations) {
	Add(r, Meta{Name: "attachTicket", Method: http.MethodPost, Path: Root + "/{id}/attach-ticket", Right: RightRead, Mutation: true, Status: http.StatusCreated,
		Doc: "Make a ticket that opens the stream of a session once within 90 seconds, for browsers."},
		func(ctx context.Context, c Call, in AttachTicketInput) (AttachTicketView, error) {
			if o.d.Tickets == nil {
				return AttachTicketView{}, fault.New(fault.Unsupported, "This server makes no attach tickets.")
			}
			action := ticket.Action(in.Action)
			switch action {
			case "":
				action = ticket.Watch
			case ticket.Prompt:
				if err := r.Authorize(ctx, c.Caller, RightWrite); err != nil {
					return AttachTicketView{}, err
				}
			}
			id := session.ID(in.ID)
			if _, err := o.d.Sessions.Get(ctx, c.Caller, id); err != nil {
				return AttachTicketView{}, err
			}
			text, expires, err := o.d.Tickets.Issue(c.Caller, id, action)
			if err != nil {
				return AttachTicketView{}, err
			}
			o.d.Audit.Add(ctx, audit.Entry{
				Workspace: c.Caller.Workspace, Subject: c.Caller.Subject, Session: in.ID, Action: audit.TicketIssued,
				Details: map[string]any{"action": string(action), "expires": expires.Format(time.RFC3339)},
			})
			return AttachTicketView{Ticket: text, ExpiresAt: expires, Header: ticket.Header}, nil
		})
}
