package operation

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// MaxChatBytes is the largest body of a chat's request: chats send the whole
// conversation each time, of which only the newest message is read.
const MaxChatBytes = 32 << 20

// MaxChatAnswers is how many answers one message can have: it has those of its whole turn.
const MaxChatAnswers = 1000

// Chat is what a chat of the AI SDK (`useChat`, versions 6 and 7) asks for: a
// prompt, or answers to questions of a turn.
type Chat struct {
	Prompt  string
	Message string // id of the prompt's message, which is its idempotency key; may be empty
	Mode    session.Mode

	Turn    session.TurnID     // of the answers
	Answers []ChatAnswer       // empty: it is a prompt; at most MaxChatAnswers, each question once
	Shown   session.QuestionID // of that turn the newest that the message has, answered or not

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
	ID        string
	Messages  []json.RawMessage
	Message   json.RawMessage
	Trigger   string
	MessageID string
	Mode      session.Mode
	Approvals string
}

var chatFields = []string{"id", "messages", "message", "trigger", "messageId", "mode", "approvals"}

// ReadChat reads the body of a chat's request to a session. What is not valid is
// refused with one sentence that a person can read. Codes: INVALID_INPUT,
// HISTORY_IMMUTABLE, UNSUPPORTED.
func ReadChat(id session.ID, raw []byte) (Chat, error) {
	b, err := splitChat(raw)
	if err != nil {
		return Chat{}, err
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

// splitChat reads the body's fields. Messages stay where they are in it: a long conversation is
// sent with each prompt, and it is not held twice.
func splitChat(raw []byte) (b chatBody, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	noObject := fault.New(fault.InvalidInput, "The body is not a JSON object of the form {\"messages\": […]}.")
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return b, noObject
	}
	var scratch json.RawMessage
	value := func() (json.RawMessage, error) {
		err := d.Decode(&scratch)
		end := d.InputOffset()
		return raw[end-int64(len(scratch)) : end], err
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return b, noObject
		}
		var to any
		switch name := t.(string); name {
		case "id":
			to = &b.ID
		case "trigger":
			to = &b.Trigger
		case "messageId":
			to = &b.MessageID
		case "mode":
			to = &b.Mode
		case "approvals":
			to = &b.Approvals
		case "message":
			b.Message, err = value()
		case "messages":
			b.Messages, err = nil, nil
			if t, terr := d.Token(); terr != nil || t != json.Delim('[') {
				return b, fault.New(fault.InvalidInput, "messages is no list.")
			}
			for err == nil && d.More() {
				var m json.RawMessage
				m, err = value()
				b.Messages = append(b.Messages, m)
			}
			if err == nil {
				_, err = d.Token()
			}
		default:
			return b, fault.New(fault.InvalidInput, "The body has a field %.80q that means nothing here; it can have %s.", name, strings.Join(chatFields, ", "))
		}
		if to != nil {
			err = d.Decode(to)
		}
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &kind):
			return b, fault.New(fault.InvalidInput, "The body's field %s %s.", t, fault.Mismatch(kind))
		case err != nil:
			return b, noObject
		}
	}
	if _, err := d.Token(); err != nil {
		return b, noObject
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return b, fault.New(fault.InvalidInput, "The body goes on behind its JSON object.")
	}
	return b, nil
}

func readChatMessage(raw json.RawMessage) (chatMessage, error) {
	var m chatMessage
	if !bytes.HasPrefix(raw, []byte("{")) {
		return m, fault.New(fault.InvalidInput, "The newest message is not a JSON object.")
	}
	if _, err := DecodeObject(raw); err != nil {
		return m, err
	}
	err := json.Unmarshal(raw, &m)
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return m, fault.New(fault.InvalidInput, "The newest message's field %.80s %s.", kind.Field, fault.Mismatch(kind))
	case err != nil:
		return m, fault.Wrap(err, fault.InvalidInput, "The newest message is not what a chat sends.")
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
	at := map[session.QuestionID]int{}
	shown := int64(0)
	for _, p := range m.Parts {
		if p.Approval == nil || p.Approval.ID == "" {
			continue
		}
		q := session.QuestionID(p.Approval.ID)
		if n := session.QuestionNumber(c.Turn, q); n > shown {
			shown, c.Shown = n, q
		}
		if p.Approval.Approved == nil {
			continue
		}
		a := ChatAnswer{Question: q, Allow: *p.Approval.Approved, Message: p.Approval.Reason}
		if i, twice := at[q]; twice {
			if c.Answers[i].Allow != a.Allow {
				return fault.New(fault.InvalidInput, "The message both allows and denies the question %.80q.", q)
			}
			continue
		}
		if len(c.Answers) == MaxChatAnswers {
			return fault.New(fault.InvalidInput, "The message answers more than %d questions.", MaxChatAnswers)
		}
		at[q] = len(c.Answers)
		c.Answers = append(c.Answers, a)
	}
	if len(c.Answers) == 0 {
		return fault.New(fault.InvalidInput, "The newest message is the agent's and answers no question. Send a message of your own.")
	}
	return nil
}
