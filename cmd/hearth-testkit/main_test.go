package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/testkit/sample"
)

// TestMain makes the test program the command itself where the tests start it so.
func TestMain(m *testing.M) {
	if os.Getenv("HEARTH_TESTKIT_CHILD") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = []string{"HEARTH_TESTKIT_CHILD=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	return c
}

// server starts a serving subcommand and returns what it told when it was ready.
func server(t *testing.T, args ...string) map[string]any {
	t.Helper()
	c := command(t, args...)
	c.Cancel = func() error { return nil } // ended below, in good order
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		_ = c.Wait()
		t.Fatalf("not ready: %v %s", err, stderr.String())
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%v ended with %v: %s", args, err, stderr.String())
		}
	})
	var ready map[string]any
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return ready
}

func TestModel(t *testing.T) {
	t.Parallel()
	portFile := filepath.Join(t.TempDir(), "port")
	ready := server(t, "model", "--key", "good", "--port-file", portFile)
	b, err := os.ReadFile(portFile)
	if err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(ready["port"]) {
		t.Errorf("port file %q, %v; told %v", b, err, ready)
	}
	for key, want := range map[string]int{"good": 200, "bad": 401} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, ready["url"].(string)+"/v1/chat/completions",
			strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"@@say hello@@"}]}`))
		r.Header.Set("Authorization", "Bearer "+key)
		resp, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want || want == 200 && !bytes.Contains(body, []byte("hello")) {
			t.Errorf("key %s: status %d, %s", key, resp.StatusCode, body)
		}
	}
	resp, err := web.Get(ready["requests"].(string))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var log []map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&log); err != nil || len(log) != 2 {
		t.Errorf("log %v, %v", log, err)
	}
}

func TestGit(t *testing.T) {
	t.Parallel()
	ready := server(t, "git", "--dir", filepath.Join(t.TempDir(), "repos"), "--sample", "acme/tally", "--empty", "acme/new", "--user", "sam:pass:word:rw", "--user", ":token:r")
	url := strings.Replace(ready["repositories"].(map[string]any)["acme/tally"].(string), "http://", "http://sam:pass%3Aword@", 1)
	dir := filepath.Join(t.TempDir(), "w")
	sh := func(cmd string) (string, error) {
		c := exec.CommandContext(t.Context(), "sh", "-c", cmd)
		c.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_TERMINAL_PROMPT=0", "DIR=" + dir, "URL=" + url,
			"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@hearth.test", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@hearth.test",
		}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := sh(`git clone -q "$URL" "$DIR" && cd "$DIR" && test -x tally && git commit -q --allow-empty -m x && git push -q origin HEAD:topic`); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	url = strings.Replace(url, "sam:pass%3Aword@", "any:token@", 1)
	if out, err := sh(`git ls-remote "$URL" topic && cd "$DIR" && git push -q "$URL" HEAD:other`); err == nil || !strings.Contains(out, "refs/heads/topic") || !strings.Contains(out, "403") {
		t.Errorf("reader: %v: %s", err, out)
	}
}

// The whole demonstration by the scripted agent: sample, task, a mended project.
func TestAgentMendsTheSample(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tally")
	if out, err := command(t, "sample-repo", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	task, err := command(t, "demo-task").Output()
	if err != nil || string(task) != sample.Task {
		t.Fatalf("task %q, %v", task, err)
	}
	c := command(t, "agent")
	var in bytes.Buffer
	for i, m := range []map[string]any{
		{"method": "initialize", "params": map[string]any{"protocolVersion": 1}},
		{"method": "session/new", "params": map[string]any{"cwd": dir, "mcpServers": []any{}}},
	} {
		m["jsonrpc"], m["id"] = "2.0", i+1
		b, _ := json.Marshal(m)
		in.Write(append(b, '\n'))
	}
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write(in.Bytes()); err != nil {
		t.Fatal(err)
	}
	stop := ""
	sc := bufio.NewScanner(stdout)
	for stop == "" && sc.Scan() {
		var m struct {
			Result struct {
				SessionID  string `json:"sessionId"`
				StopReason string `json:"stopReason"`
			} `json:"result"`
		}
		if err := json.Unmarshal(sc.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		if id := m.Result.SessionID; id != "" {
			b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": map[string]any{
				"sessionId": id, "prompt": []any{map[string]any{"type": "text", "text": string(task)}},
			}})
			if _, err := stdin.Write(append(b, '\n')); err != nil {
				t.Fatal(err)
			}
		}
		stop = m.Result.StopReason
	}
	_ = stdin.Close()
	if err := c.Wait(); err != nil || stop != "end_turn" {
		t.Errorf("agent ended with %v, stop %q", err, stop)
	}
	test := exec.CommandContext(t.Context(), "./test.sh")
	test.Dir = dir
	if out, err := test.CombinedOutput(); err != nil {
		t.Errorf("the project is not mended: %v\n%s", err, out)
	}
}

func TestAgentThatStays(t *testing.T) {
	t.Parallel()
	c := command(t, "agent", "--ignore-term", "--ignore-eof")
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	if _, err := io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- c.Wait() }()
	_ = c.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		t.Fatalf("ended with %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	_ = c.Process.Kill()
	<-ended
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args []string
		exit int
		says string
	}{
		{nil, 2, "usage:"},
		{[]string{"fly"}, 2, `no command "fly"`},
		{[]string{"help"}, 0, "usage:"},
		{[]string{"model", "extra"}, 2, "1 arguments where 0 belong"},
		{[]string{"model", "--nothing"}, 2, "not defined"},
		{[]string{"model", "--listen", "127.0.0.1:99999"}, 1, "choose another address"},
		{[]string{"model", "--port-file", "/nowhere/at/all"}, 1, "/nowhere/at/all"},
		{[]string{"git"}, 1, "name the folder"},
		{[]string{"git", "--dir", t.TempDir(), "--user", "sam"}, 1, "NAME:PASSWORD:rw"},
		{[]string{"git", "--dir", t.TempDir(), "--sample", "../x"}, 1, "letters, digits"},
		{[]string{"agent", "--caps", "fly"}, 1, "no capability"},
		{[]string{"sample-repo"}, 2, "0 arguments where 1 belong"},
		{[]string{"sample-repo", full}, 1, "not empty"},
	}
	for _, tt := range tests {
		c := command(t, tt.args...)
		out, err := c.CombinedOutput()
		if got := c.ProcessState.ExitCode(); got != tt.exit || !strings.Contains(string(out), tt.says) {
			t.Errorf("%v: exit %d, %v: %s", tt.args, got, err, out)
		}
	}
}
