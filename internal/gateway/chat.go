package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// chat is what the reply to a chat's request is bound to.
type chat struct {
	turn  session.TurnID
	after session.QuestionID // what comes up to this question the chat has already
}

// ServeChat answers POST …/{id}/stream of a chat with the one message of its turn.
//
// A prompt is accepted in the ledger first, with the message's id as its
// idempotency key, so that the same request once more gives the same turn from its
// start. While it waits in the queue there are comments. When the turn failed, the
// last event is an error with its sentence. Answers are given to their questions,
// and the reply goes on with the same message behind the newest question that the
// chat has. With Close, or ?approvals=close, it ends well at a question that waits
// for an answer. A client that leaves has canceled nothing.
//
// An error means that nothing was written and, unless it is STREAM_LIMIT after an
// answer, that nothing was accepted; for the rest see [Gateway.ServeStream]. Codes: those of
// [session.Service.Prompt] and [session.Service.Answer], STREAM_LIMIT, TURN_NOT_FOUND.
func (g *Gateway) ServeChat(w http.ResponseWriter, r *http.Request, who session.Caller, id session.ID, c operation.Chat) error {
	if g.Recheck == nil {
		return errors.New("gateway: no recheck is set")
	}
	ask, err := readAsk(r)
	if err != nil {
		return err
	}
	ask.close = ask.close || c.Close
	if _, err := g.Sessions.Get(r.Context(), who, id); err != nil {
		return err
	}
	f := g.follower(w, r, who, id, ask)
	room, v, err := g.Hub.watch(id, ticketOf(r, who)) // before anything is accepted: a refusal must mean that nothing was
	if err != nil {
		return err
	}
	defer g.Hub.leave(id, room, v)
	f.room, f.viewer = room, v
	if len(c.Answers) > 0 {
		err = f.answer(r.Context(), c)
	} else {
		err = f.accept(r.Context(), c)
	}
	if err != nil {
		return err
	}
	w.Header().Set("Hearth-Turn", string(f.chat.turn))
	f.look = true
	defer f.audited(r, &err)()
	// What is accepted cannot be refused any more, whatever becomes of the stream.
	f.out.buf = uistream.AppendComment(f.out.buf, "stream-open")
	if err = f.out.flush(); err == nil {
		err = f.run(r.Context())
	}
	return f.end(r.Context(), err)
}

// accept gives the session the prompt.
func (f *follower) accept(ctx context.Context, c operation.Chat) error {
	var key *session.Key
	if c.Message != "" {
		sum := sha256.Sum256([]byte(string(c.Mode) + "\x00" + c.Prompt))
		key = &session.Key{Identity: f.who.Subject, Operation: "chat " + string(f.id), Key: c.Message, BodyHash: hex.EncodeToString(sum[:]), Now: f.g.Now()}
	}
	a, err := f.g.Sessions.Prompt(ctx, f.who, f.id, session.PromptInput{Prompt: c.Prompt, Mode: c.Mode}, key)
	switch {
	case fault.CodeOf(err) == fault.IdempotencyConflict:
		return fault.New(fault.HistoryImmutable, "A message that was sent cannot be changed. This one was sent before with another text or mode: send a new one that says what should be different.")
	case err != nil:
		return err
	}
	f.chat.turn = a.Turn.ID
	f.at = transcript.Cursor{Turn: a.Turn.Number}
	return nil
}

// answer settles the questions that the chat answers, all or, when one of them cannot be
// answered so, none. One that is settled is passed over as long as there is something
// else to do, so that a request can be repeated, and a message that has an answer which came
// too late can still answer another question: its own parts show what it became.
func (f *follower) answer(ctx context.Context, c operation.Chat) error {
	t, err := f.g.Sessions.Turn(ctx, f.who, f.id, c.Turn)
	if err != nil {
		return err
	}
	newest := int64(0)
	for _, a := range c.Answers {
		q, err := operation.AwaitQuestion(ctx, f.g.Sessions, f.who, f.id, a.Question)
		switch {
		case err != nil:
			return err
		case q.Turn != t.ID:
			return fault.New(fault.QuestionNotFound, "The question %.80q is not one of this message.", a.Question)
		case q.Kind != session.QuestionPermission:
			return fault.New(fault.InvalidInput, "The question %s is a form: it is filled in by POST …/questions/%s/answer or `hearth answer`, not by allowing it.", q.ID, q.ID)
		}
		if err := (session.AnswerInput{Message: a.Message}).Check(); err != nil {
			return err
		}
		if q.Number > newest {
			newest, f.chat.after = q.Number, q.ID
		}
	}
	if c.Shown != "" {
		q, err := f.g.Sessions.Question(ctx, f.who, f.id, c.Shown)
		switch {
		case err == nil && q.Turn == t.ID && q.Number > newest:
			f.chat.after = q.ID
		case err != nil && fault.CodeOf(err) != fault.QuestionNotFound:
			return err
		}
	}
	var refused error
	settled := 0
	for _, a := range c.Answers {
		verdict := session.VerdictDeny
		if a.Allow {
			verdict = session.VerdictAllow
		}
		_, err := f.g.Sessions.Answer(ctx, f.who, f.id, a.Question, session.AnswerInput{Verdict: verdict, Message: a.Message})
		switch {
		case err == nil:
			settled++
		case fault.CodeOf(err) != fault.QuestionSettled:
			return err
		default:
			q, qerr := f.g.Sessions.Question(ctx, f.who, f.id, a.Question)
			if qerr != nil {
				return qerr
			}
			if q.Verdict != verdict {
				refused = err
			}
		}
	}
	if settled == 0 && refused != nil {
		return refused
	}
	f.chat.turn = t.ID
	f.at = transcript.Cursor{Turn: t.Number}
	f.out.add(uistream.AppendEvent(nil, "", uistream.Start{MessageID: string(t.ID)}.Part().Raw))
	return nil
}

// queued waits until the turn has left the queue.
func (f *follower) queued(ctx context.Context) (idle, done bool, err error) {
	f.room.next(f.viewer, f.at) // takes the notice
	t, err := f.g.Sessions.Turn(ctx, f.who, f.id, f.chat.turn)
	switch {
	case err != nil:
		return false, false, err
	case t.Number > 0:
		f.at = transcript.Cursor{Turn: t.Number}
		return false, false, nil
	case t.State.Terminal():
		f.out.add(uistream.AppendEvent(nil, "", uistream.Start{MessageID: string(t.ID)}.Part().Raw))
		f.out.add(uistream.AppendEvent(nil, "", uistream.Error{ErrorText: "The prompt was taken out of the queue before the agent had it."}.Part().Raw))
		return false, true, nil
	}
	return true, false, nil
}

// outcome adds the error of a turn that failed, behind everything else: a chat shows
// nothing of what comes after it.
func (f *follower) outcome(ctx context.Context) error {
	t, err := f.g.Sessions.Turn(ctx, f.who, f.id, f.chat.turn)
	if err != nil || t.State != session.TurnFailed {
		return err
	}
	text := t.Message
	if text == "" {
		text = fault.Lookup(t.Code).Sentence
	}
	f.out.add(uistream.AppendEvent(nil, "", uistream.Error{ErrorText: text}.Part().Raw))
	return nil
}

// beyond says whether the part is one that the chat does not have yet.
func (f *follower) beyond(wire []byte) bool {
	if id, _ := permission(wire); id == f.chat.after {
		f.chat.after = ""
		return false // the part itself is what the chat has last
	}
	if isFinish(data(wire)) {
		f.chat.after = ""
		return true
	}
	return false
}

// note keeps what questions the client was shown, also with what is not sent again.
func (f *follower) note(wire []byte) {
	switch id, settled := permission(wire); {
	case id == "":
	case settled:
		f.drop(id)
	case !slices.Contains(f.asked, id):
		f.asked = append(f.asked, id)
	}
}

func (f *follower) drop(id session.QuestionID) {
	f.asked = slices.DeleteFunc(f.asked, func(x session.QuestionID) bool { return x == id })
}

// atEnd says whether the stream may end here, at a question.
func (f *follower) atEnd() bool {
	return len(f.asked) > 0 && f.chat.after == "" && (f.at.Turn != f.had.Turn || f.at.Part >= f.had.Part)
}

// atQuestion ends the stream when nobody has answered the newest question yet. Its row may
// come a moment after its part.
func (f *follower) atQuestion(ctx context.Context) (idle, done bool, err error) {
	next := f.room.next(f.viewer, f.at)
	if next.broken {
		return false, false, errBroken
	}
	f.look = f.look || next.changed
	newest := f.asked[len(f.asked)-1]
	q, err := f.g.Sessions.Question(ctx, f.who, f.id, newest)
	switch {
	case fault.CodeOf(err) == fault.QuestionNotFound:
		t, err := f.g.Sessions.Turns(ctx, f.who, f.id, f.at.Turn-1, 1)
		if err == nil && len(t) > 0 && t[0].State.Terminal() {
			f.drop(newest) // it never became one
			return false, false, nil
		}
		return true, false, err
	case err != nil:
		return false, false, err
	case q.State != session.QuestionPending:
		f.drop(newest) // one before it may wait still
		return false, false, nil
	}
	// Questions that were asked at the same time are shown at the same time.
	rest := next.wires
	for i, p := range f.page { // what was read from the store already comes first
		if i == 0 {
			rest = nil
		}
		if p.Cursor != (transcript.Cursor{Turn: f.at.Turn, Part: f.at.Part + int64(i) + 1}) {
			break
		}
		rest = append(rest, wire(p))
	}
	for i := len(rest) - 1; i >= 0; i-- {
		if id, settled := permission(rest[i]); id == "" || settled {
			continue
		}
		f.page = f.page[min(i+1, len(f.page)):]
		for _, w := range rest[:i+1] {
			f.at.Part++
			if err := f.send(ctx, w); err != nil {
				return false, false, err
			}
		}
		return false, false, nil
	}
	f.out.add(uistream.AppendEvent(nil, "", uistream.Finish{FinishReason: uistream.FinishToolCalls}.Part().Raw))
	return false, true, nil
}

var permissionType = []byte(uistream.DataType(uistream.DataPermission))

// data is the data line of an event that has one.
func data(wire []byte) []byte {
	_, body, _ := bytes.Cut(wire, []byte("data: "))
	return bytes.TrimRight(body, "\n")
}

// permission is the question that an event shows, and whether it is settled there.
func permission(wire []byte) (id session.QuestionID, settled bool) {
	if !bytes.Contains(wire, permissionType) {
		return "", false
	}
	var p struct {
		Type string `json:"type"`
		ID   string `json:"id"`
		Data struct {
			Outcome json.RawMessage `json:"outcome"`
		} `json:"data"`
	}
	if json.Unmarshal(data(wire), &p) != nil || p.Type != string(permissionType) || !strings.HasPrefix(p.ID, "qst_") {
		return "", false
	}
	return session.QuestionID(p.ID), len(p.Data.Outcome) > 0
}
