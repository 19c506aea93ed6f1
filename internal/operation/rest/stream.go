package rest

import (
	"errors"
	"io"
	"net/http"

	"github.com/rs/cors"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/ticket"
)

func (s *server) stream(w http.ResponseWriter, r *http.Request) {
	who, err := s.streamCaller(r, ticket.Watch, func() error { return nil })
	if err == nil {
		err = s.Stream(w, r, who, session.ID(r.PathValue("id")))
	}
	if err != nil {
		s.sentence(w, r, err)
	}
}

func (s *server) chat(w http.ResponseWriter, r *http.Request) {
	var c operation.Chat
	id := session.ID(r.PathValue("id"))
	who, err := s.streamCaller(r, ticket.Prompt, func() (err error) {
		c, err = readChat(w, r, id)
		return err
	})
	if err == nil {
		err = s.Chat(w, r, who, id, c)
	}
	if err != nil {
		s.sentence(w, r, err)
	}
}

func readChat(w http.ResponseWriter, r *http.Request, id session.ID) (operation.Chat, error) {
	if err := plainJSON(r.Header); err != nil {
		return operation.Chat{}, err
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, operation.MaxChatBytes))
	if err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return operation.Chat{}, fault.New(fault.InvalidInput, "The body is larger than %d bytes. Let the chat send only its newest message (prepareSendMessagesRequest).", operation.MaxChatBytes)
		}
		return operation.Chat{}, fault.Wrap(err, fault.InvalidInput, "The body could not be read.")
	}
	return operation.ReadChat(id, raw)
}

// crossOrigin lets pages of the given origins call (the Fetch standard, CORS
// protocol). Cookies and other credentials of the browser are never asked for.
func crossOrigin(h http.Handler, origins []string) http.Handler {
	if len(origins) == 0 {
		return h
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete},
		AllowedHeaders: []string{"Authorization", "Content-Type", "Last-Event-ID", "User-Agent", HeaderKey, ticket.Header},
		ExposedHeaders: []string{"Content-Disposition", "X-Vercel-AI-UI-Message-Stream", HeaderCode, HeaderRequestID, HeaderTurn},
		MaxAge:         600,
	}).Handler(h)
}
