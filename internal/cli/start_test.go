package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/cli"
	"github.com/hearthd/hearth/internal/config"
)

// alone is an environment without a server elsewhere.
func alone(t *testing.T, dir, kind string) cli.Env {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The started process has this process' environment; a script sets what it is to be.
	script := filepath.Join(t.TempDir(), "hearth")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nCLI_TEST_SERVER="+kind+" exec '"+exe+"' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return cli.Env{Stdin: strings.NewReader(""), Executable: script, Getenv: func(k string) string { return map[string]string{"HEARTH_STATE_DIR": dir}[k] }}
}

func TestServerIsStartedInTheBackground(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := alone(t, dir, "ok")
	var out, errs buffer
	env.Stdout, env.Stderr = &out, &errs
	// What a dead server left must not be in the way.
	if err := config.WriteServerFile(dir, config.ServerFile{Address: "http://127.0.0.1:1", PID: 1}); err != nil {
		t.Fatal(err)
	}
	if got := cli.Main(t.Context(), []string{"list"}, env); got != 0 || !strings.Contains(errs.String(), "Started a server in the background") {
		t.Fatalf("status %d: %s", got, errs.String())
	}
	s, err := config.ReadServerFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { // it is ours: its id is in its file
		if err := syscall.Kill(s.PID, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}()
	if sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(s.PID), 0, 0); errno != 0 || int(sid) != s.PID {
		t.Errorf("the server is in session %d, not its own (%d)", sid, s.PID)
	}
	errs = buffer{}
	if got := cli.Main(t.Context(), []string{"list"}, env); got != 0 || strings.Contains(errs.String(), "Started") {
		t.Errorf("a second command: status %d: %s", got, errs.String())
	}
	again, err := config.ReadServerFile(dir)
	if d := cmp.Diff(s, again); d != "" || err != nil {
		t.Error(d, err)
	}
}

func TestServerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	env := alone(t, t.TempDir(), "broken")
	var out, errs buffer
	env.Stdout, env.Stderr = &out, &errs
	if got := cli.Main(t.Context(), []string{"run", "x"}, env); got != 8 {
		t.Errorf("status %d", got)
	}
	for _, has := range []string{"did not become ready: the database is damaged", "server.log", "SERVER_UNAVAILABLE"} {
		if !strings.Contains(errs.String(), has) {
			t.Errorf("%q lacks %q", errs.String(), has)
		}
	}
}
