package scriptedagent_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/hearthd/hearth/internal/testkit/scriptedagent"
)

// Whatever a client sends, the agent answers in JSON-RPC and ends with its input.
// Session ids are random, so no prompt, and with it no command, is ever reached.
func FuzzRun(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}` + "\n" + `{"id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}`))
	f.Add([]byte(`{"id":"x","method":"session/load","params":{"sessionId":"../a"}}` + "\nnot JSON\n[1]\nnull\n"))
	f.Add([]byte(`{"method":"session/cancel","params":[]}` + "\n" + `{"id":null,"method":"x"}` + "\n" + `{"id":1,"result":{}}`))
	home := f.TempDir()
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		if err := scriptedagent.Run(t.Context(), scriptedagent.Options{In: bytes.NewReader(in), Out: &out, Home: home}); err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(out.Bytes()) {
			var m struct{ JSONRPC string }
			if err := json.Unmarshal(line, &m); err != nil || m.JSONRPC != "2.0" {
				t.Fatalf("%q: %v", line, err)
			}
		}
	})
}
