package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/testkit/numbered"
)

func piece(n int) string { return string(numbered.Append(nil, n, 40, time.Unix(1, int64(n)))) }

func TestViewer(t *testing.T) {
	t.Parallel()
	ours := func(texts ...string) string {
		var b strings.Builder
		b.WriteString(": stream-open\n\n")
		for i, text := range texts {
			fmt.Fprintf(&b, "id: 1.%d\ndata: {\"type\":\"text-delta\",\"id\":\"text-1\",\"delta\":\"%s\"}\n\n", i, text)
		}
		return b.String() + "data: {\"type\":\"text-end\",\"id\":\"text-1\"}\n\ndata: [DONE]\n\n"
	}
	rpc := func(text string) string {
		return `event: message` + "\n" + `data: {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"content":{"text":"` + text + `","type":"text"},"messageId":"m","sessionUpdate":"agent_message_chunk"}}}` + "\n" + "id: 1\n\n"
	}
	for _, c := range []struct {
		name string
		text func([]byte) []byte
		body string
		want whole
	}{
		{"one each", hearthText, ours(piece(1), piece(2), piece(3)), whole{}},
		{"joined", hearthText, ours(piece(1)+piece(2), piece(3)), whole{}},
		{"cut", hearthText, ours(piece(1)+piece(2)[:9], piece(2)[9:]+piece(3)), whole{}},
		{"joined until a line is longer than what is read at once", hearthText, ours(piece(1) + strings.Repeat("x", 3*lineBytes) + piece(2) + piece(3)), whole{}},
		{"with what JSON escapes", hearthText, ours(`say \"#\" \\`, piece(1)+`\n\\`, piece(2), piece(3)), whole{Back: 1}},
		{"one lost", hearthText, ours(piece(1), piece(3)), whole{Lost: 1}},
		{"one doubled", hearthText, ours(piece(1), piece(2), piece(2), piece(3)), whole{Doubled: 1}},
		{"two changed places", hearthText, ours(piece(2), piece(1), piece(3)), whole{Back: 1}},
		{"sandbox-agent", sandboxAgentText, rpc(piece(1)) + rpc(piece(2)) + rpc(piece(3)), whole{}},
		{"sandbox-agent, lagging", sandboxAgentText, rpc(piece(1)) + rpc(piece(3)), whole{Lost: 1}},
		{"opencode: what it tells again at the end is passed over", opencodeText,
			`data: {"type":"message.part.delta","properties":{"field":"text","delta":"` + piece(1) + piece(2) + piece(3) + `"}}` + "\n\n" +
				`data: {"type":"message.part.updated","properties":{"part":{"type":"text","text":"` + piece(1) + piece(2) + piece(3) + `"}}}` + "\n\n", whole{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := newViewer(c.text, numbered.Spec{Count: 3, Bytes: 40}, true)
			if err := v.read(strings.NewReader(c.body)); err != nil {
				t.Fatal(err)
			}
			var got whole
			got.add(v.tally, 3)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if v.bytes != int64(len(c.body)) {
				t.Errorf("%d bytes of %d", v.bytes, len(c.body))
			}
			if len(v.sent) != v.tally.Pieces {
				t.Errorf("%d times of %d pieces", len(v.sent), v.tally.Pieces)
			}
		})
	}
}

func TestFan(t *testing.T) {
	t.Parallel()
	f, err := newFloor()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.close(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}()
	c := fan{viewers: 5, spec: numbered.Spec{Count: 300, Bytes: 100}, times: true}
	s, w, err := c.take(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if w != (whole{}) {
		t.Errorf("lost, doubled, out of order: %s", w)
	}
	if n := len(s["latency"]); n != 5*300 {
		t.Errorf("%d latencies", n)
	}
	if v := s["bytes"][0]; v < 1 || v > 3 {
		t.Errorf("%v bytes for a byte of text", v)
	}
}
