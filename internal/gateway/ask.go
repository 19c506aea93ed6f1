package gateway

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/transcript"
)

// ask is what a viewer wants.
type ask struct {
	beginning bool
	after     *transcript.Cursor
	unknown   bool // the header's id is not one of ours
	visible   bool // heartbeats as events
	close     bool // the stream ends at a question
	padding   int  // bytes of a comment behind every write
}

// CheckForm says whether the query and headers of a request for a stream, or of a chat's,
// are well formed, as [Gateway.ServeStream] and [Gateway.ServeChat] read them. Code:
// INVALID_INPUT.
func CheckForm(r *http.Request) error {
	_, err := readAsk(r)
	return err
}

func readAsk(r *http.Request) (ask, error) {
	var a ask
	given, err := parameters(r)
	if err != nil {
		return a, err
	}
	for name, v := range given {
		switch {
		case name == "from" && (v == "beginning" || v == ""):
			a.beginning = v != ""
		case name == "heartbeat" && (v == "event" || v == "comment" || v == ""):
			a.visible = v == "event"
		case name == "approvals" && (v == "close" || v == "open" || v == ""):
			a.close = v == "close"
		case name == "padding":
			if v == "" {
				continue
			}
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > maxPadding {
				return a, fault.New(fault.InvalidInput, "The query parameter padding must be a number of bytes from 1 to %d.", maxPadding)
			}
			a.padding = n
		case name == "after":
			if v == "" {
				continue
			}
			c, err := transcript.ParseCursor(v)
			if err != nil {
				return a, err
			}
			a.after = &c
		case name == "from" || name == "heartbeat" || name == "approvals":
			return a, fault.New(fault.InvalidInput, "The query parameter %s cannot be %.40q.", name, v)
		default:
			return a, fault.New(fault.InvalidInput, "%.40q is not a query parameter of the stream.", name)
		}
	}
	h, err := lastEventID(r)
	if err != nil {
		return a, err
	}
	if h != "" {
		c, err := transcript.ParseCursor(h)
		a.after, a.unknown = &c, err != nil
	}
	if r.Method == http.MethodPost && (a.beginning || a.after != nil) {
		return a, fault.New(fault.InvalidInput, "A message's reply always begins at its start; from, after and Last-Event-ID are for GET.")
	}
	return a, nil
}

// parameters are those of the query. One that is given twice is refused: nobody can tell
// which was meant. Code: INVALID_INPUT.
func parameters(r *http.Request) (map[string]string, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fault.New(fault.InvalidInput, "The query is not well formed: %.200s.", err.Error())
	}
	out := map[string]string{}
	for name, values := range q {
		if len(values) > 1 {
			return nil, operation.Invalid(operation.FieldProblem{Field: name, Problem: "is given more than once"})
		}
		out[name] = values[0]
	}
	return out, nil
}

// lastEventID is the header by which a client comes back, empty when there is none.
func lastEventID(r *http.Request) (string, error) {
	const name = "Last-Event-ID"
	if len(r.Header.Values(name)) > 1 {
		return "", fault.New(fault.InvalidInput, "The header %s is there more than once.", name)
	}
	return r.Header.Get(name), nil
}
