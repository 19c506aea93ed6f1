package scriptedagent

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/hearthd/hearth/internal/testkit/script"
)

// rawBytes says bytes that may be no text, as agents do that put a program's output into
// JSON as it is: "@@bytes say FILE@@" as the agent's words, "@@bytes tool FILE@@" as a tool's output.
// Without a file they are all 256. Control characters are escaped where JSON wants it.
func (t *turn) rawBytes(_ context.Context, d script.Directive) error {
	how, file := d.Split()
	said := make([]byte, 256)
	for i := range said {
		said[i] = byte(i)
	}
	if file != "" {
		var err error
		if said, err = os.ReadFile(file); err != nil {
			return t.say("agent_message_chunk", err.Error())
		}
	}
	quoted := quoteBytes(said)
	t.message = ""
	update := fmt.Sprintf(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%s}}`, quoted)
	if how == "tool" {
		t.seq++
		id := fmt.Sprintf("call-%s-%d", t.a.opts.NewID(), t.seq)
		if err := t.send(object{"sessionUpdate": "tool_call", "toolCallId": id, "title": "Bytes", "kind": "execute", "status": "in_progress", "rawInput": object{"file": file}}); err != nil {
			return err
		}
		update = fmt.Sprintf(`{"sessionUpdate":"tool_call_update","toolCallId":%q,"status":"completed","content":[{"type":"content","content":{"type":"text","text":%s}}]}`, id, quoted)
	}
	t.a.wire.line(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%q,"update":%s}}`, t.s.id, update))
	return nil
}

// quoteBytes is a JSON string but for its bytes that are no UTF-8, which stay.
func quoteBytes(said []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(said) + len(said)/8)
	b.WriteByte('"')
	for _, c := range said {
		switch {
		case c == '"' || c == '\\':
			b.Write([]byte{'\\', c})
		case c < ' ':
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.Bytes()
}
