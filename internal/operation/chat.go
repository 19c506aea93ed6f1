package operation

import (
	"bytes"
	"encoding/json"
	"mime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// MaxChatBytes is the largest body of a chat's request: chats send the whole
// conversation each time, of which only the newest message is read.
const MaxChatBytes = 32 << 20

// Chat is what a chat of the AI SDK (`useChat`, versions 6 and 7) asks for: a
// prompt, or answers to questions of a turn.
type Chat struct {
	Prompt  string
	Message string // id of the prompt's message, which is its idempotency key; may be empty
	Mode    session.Mode

	Turn    session.TurnID // of the answers
	Answers []ChatAnswer   // empty: it is a prompt

	Close bool // the reply ends at a question
}

// ChatAnswer is a verdict on a question, as the chat has it in a tool part.
type ChatAnswer struct {
	Question session.QuestionID
	Allow    bool
	Message  string
}

// chatMessage is what is read of a UIMessage.
type chatMessage struct {
	ID    string     `json:"id"`
	Role  string     `json:"role"`
	Parts []chatPart `json:"parts"`
}

type chatPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	State    string `json:"state"`
	Approval *struct {
		ID       string `json:"id"`
		Approved *bool  `json:"approved"`
		Reason   string `json:"reason"`
	} `json:"approval"`
}

// chatBody is what `DefaultChatTransport` sends, with the fields that an
// application may add. message stands for messages with one in it.
type chatBody struct {
	ID        string            `json:"id"`
	Messages  []json.RawMessage `json:"messages"`
	Message   json.RawMessage   `json:"message"`
	Trigger   string            `json:"trigger"`
	MessageID string            `json:"messageId"`
	Mode      session.Mode      `json:"mode"`
	Approvals string            `json:"approvals"`
}

var chatFields = []string{"id", "messages", "message", "trigger", "messageId", "mode", "approvals"}

// ReadChat reads the body of a chat's request to a session. What is not valid is
// refused with one sentence that a person can read. Codes: INVALID_INPUT,
// HISTORY_IMMUTABLE, UNSUPPORTED.
func ReadChat(id session.ID, contentType string, raw []byte) (Chat, error) {
	if mt, _, err := mime.ParseMediaType(contentType); contentType != "" && (err != nil || mt != "application/json") {
		return Chat{}, fault.New(fault.InvalidInput, "The body's content type is %.80q; it must be application/json.", contentType)
	}
	var b chatBody
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return Chat{}, fault.New(fault.InvalidInput, "The body is not a JSON object of the form {\"messages\": […]}.")
	}
	for name := range fields {
		if !slices.Contains(chatFields, name) {
			return Chat{}, fault.New(fault.InvalidInput, "The body has a field %.80q that means nothing here; it can have %s.", name, strings.Join(chatFields, ", "))
		}
	}
	if err := json.Unmarshal(raw, &b); err != nil {
		return Chat{}, fault.New(fault.InvalidInput, "The body is not what a chat sends: %.200s.", err.Error())
	}
	switch {
	case strings.HasPrefix(b.ID, "ses_") && b.ID != string(id):
		return Chat{}, fault.New(fault.InvalidInput, "The body is for the session %.60q, the address for %s.", b.ID, id)
	case b.Trigger == "regenerate-message":
		return Chat{}, fault.New(fault.HistoryImmutable, "What the agent did cannot be done anew. Send a message that says what should be different.")
	case b.Trigger != "" && b.Trigger != "submit-message":
		return Chat{}, fault.New(fault.InvalidInput, "trigger is %.40q; it can be submit-message.", b.Trigger)
	case b.Approvals != "" && b.Approvals != "close" && b.Approvals != "open":
		return Chat{}, fault.New(fault.InvalidInput, "approvals is %.40q; it can be open or close.", b.Approvals)
	case b.Mode != "" && b.Mode != session.ModeQueue && b.Mode != session.ModeInterrupt && b.Mode != session.ModeReject:
		return Chat{}, fault.New(fault.InvalidInput, "mode is %.40q; it can be queue, interrupt or reject.", b.Mode)
	case len(b.Message) > 0 && len(b.Messages) > 0:
		return Chat{}, fault.New(fault.InvalidInput, "The body has both message and messages; one of them must go.")
	}
	if len(b.Message) > 0 {
		b.Messages = []json.RawMessage{b.Message}
	}
	if len(b.Messages) == 0 {
		return Chat{}, fault.New(fault.InvalidInput, "The body has no message.")
	}
	c := Chat{Mode: b.Mode, Close: b.Approvals == "close"}
	newest, err := readChatMessage(b.Messages[len(b.Messages)-1])
	if err != nil {
		return Chat{}, err
	}
	if b.MessageID != "" && newest.ID != b.MessageID {
		// An answer to a question behind which the person has written already.
		for _, m := range b.Messages {
			if !bytes.Contains(m, []byte(b.MessageID)) {
				continue
			}
			if x, err := readChatMessage(m); err == nil && x.ID == b.MessageID && x.Role == "assistant" {
				return c, c.answers(x)
			}
		}
		return Chat{}, fault.New(fault.HistoryImmutable, "messageId names a message that this session cannot change. Send a new message instead.")
	}
	switch newest.Role {
	case "assistant":
		return c, c.answers(newest)
	case "user":
		if b.MessageID != "" {
			return Chat{}, fault.New(fault.HistoryImmutable, "A message that was sent cannot be changed. Send a new one that says what should be different.")
		}
		return c, c.prompt(newest)
	}
	return Chat{}, fault.New(fault.InvalidInput, "The newest message has the role %.40q; it must be user.", newest.Role)
}

func readChatMessage(raw json.RawMessage) (chatMessage, error) {
	var m chatMessage
	if _, err := DecodeObject(raw); err != nil {
		return m, err
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fault.New(fault.InvalidInput, "The newest message is not what a chat sends: %.200s.", err.Error())
	}
	return m, nil
}

// prompt takes the text of the newest message.
func (c *Chat) prompt(m chatMessage) error {
	var texts []string
	for _, p := range m.Parts {
		switch {
		case p.Type == "text":
			texts = append(texts, p.Text)
		case p.Type == "file":
			return fault.New(fault.Unsupported, "Files cannot be sent with a message here. Put them into the repository, or their text into the message.")
		case strings.HasPrefix(p.Type, "data-"):
			// An application's own; the agent has no use for it.
		default:
			return fault.New(fault.Unsupported, "The newest message has a part of the type %.40q; only text can be sent.", p.Type)
		}
	}
	c.Prompt = strings.Join(texts, "\n\n")
	if strings.TrimSpace(c.Prompt) == "" {
		return fault.New(fault.InvalidInput, "The message is empty.")
	}
	if len(m.ID) > MaxKeyBytes || !utf8.ValidString(m.ID) || strings.ContainsRune(m.ID, 0) {
		return fault.New(fault.InvalidInput, "The id of the newest message must be at most %d bytes long.", MaxKeyBytes)
	}
	c.Message = m.ID
	return nil
}

// answers takes what the person said to the questions in an agent's message.
func (c *Chat) answers(m chatMessage) error {
	c.Turn = session.TurnID(m.ID)
	for _, p := range m.Parts {
		if p.Approval == nil || p.Approval.Approved == nil || p.Approval.ID == "" {
			continue
		}
		c.Answers = append(c.Answers, ChatAnswer{Question: session.QuestionID(p.Approval.ID), Allow: *p.Approval.Approved, Message: p.Approval.Reason})
	}
	if len(c.Answers) == 0 {
		return fault.New(fault.InvalidInput, "The newest message is the agent's and answers no question. Send a message of your own.")
	}
	return nil
}
