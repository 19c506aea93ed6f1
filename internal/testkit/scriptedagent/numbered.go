package scriptedagent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/hearthd/hearth/internal/testkit/numbered"
	"github.com/hearthd/hearth/internal/testkit/script"
)

// numbered sends pieces for a measurement: each is one line and one write, made
// without encoding anything anew, so that the agent is no part of what is measured.
func (t *turn) numbered(ctx context.Context, d script.Directive) error {
	const here = "@here@"
	u := object{"sessionUpdate": "agent_message_chunk", "content": text(here)}
	if !t.a.opts.NoMessageIDs {
		u["messageId"] = "msg-" + t.a.opts.NewID()
	}
	t.message = ""
	frame, err := json.Marshal(object{"jsonrpc": "2.0", "method": "session/update", "params": object{"sessionId": t.s.id, "update": u}})
	if err != nil {
		return fmt.Errorf("encode an update: %w", err)
	}
	before, after, _ := bytes.Cut(frame, []byte(here))
	s := numbered.SpecOf(d)
	line := make([]byte, 0, len(frame)+s.Bytes)
	return s.Run(ctx, t.a.opts.Now, t.a.opts.Wait, func(piece []byte) error {
		t.said += len(piece)
		line = append(append(append(line[:0], before...), piece...), after...)
		t.a.wire.line(line)
		return nil
	})
}
