package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
)

func env(kv ...string) func(string) string {
	m := map[string]string{"HOME": "/home/ada", "HEARTH_STATE_DIR": "/srv/hearth"}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return func(k string) string { return m[k] }
}

func TestOrder(t *testing.T) {
	t.Parallel()
	c, err := config.Load(map[string]string{"listen": "127.0.0.1:1", "sandbox-memory": "512MiB"},
		env("HEARTH_LISTEN", "127.0.0.1:2", "HEARTH_SANDBOX_CPU", "0.5", "HEARTH_EGRESS_ALLOW_PRIVATE", "127.0.0.1:8080, Models.lan", "HEARTH_REGISTRIES", "none"))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Config{
		Listen: "127.0.0.1:1", StateDir: "/srv/hearth", LogLevel: "info", LogFormat: "text", Sandbox: "gvisor", SandboxCPUMillis: 500,
		SandboxMemory: 512 << 20, SandboxDisk: 20 << 30, SandboxIdle: 30 * time.Minute,
		AllowPrivate: []string{"127.0.0.1:8080", "models.lan"}, TokenFile: "/srv/hearth/owner-token",
		AgentsDir: "/srv/hearth/agents", SandboxRoot: "host",
	}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	open := filepath.Join(t.TempDir(), "git")
	if err := os.WriteFile(open, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := config.Load(map[string]string{
		"listen": "0.0.0.0:7747", "sandbox": "docker", "sandbox-memory": "4GB", "idle-exit": "-1s", "git-credentials": open, "colour": "red",
	}, env("HEARTH_STATE_DIR", "relative", "HEARTH_MAX_SANDBOXES", "many", "HEARTH_REGISTRIES", "a/b", "HEARTH_LOG_LEVEL", "loud", "HEARTH_SANDBOX_CPU", "NaN"))
	if fault.CodeOf(err) != fault.ConfigInvalid {
		t.Fatalf("got %v", err)
	}
	for _, has := range []string{
		`--listen "0.0.0.0:7747" is not loopback`, `--sandbox "docker" can be gvisor, bubblewrap`, `--sandbox-memory "4GB"`, `--idle-exit "-1s"`,
		`--git-credentials "` + open + `" must be a file that only its owner can read`, `--colour is not a setting`, `HEARTH_STATE_DIR "relative" is not an absolute path`,
		`HEARTH_MAX_SANDBOXES "many"`, `HEARTH_REGISTRIES "a/b"`, `HEARTH_LOG_LEVEL "loud"`, `HEARTH_SANDBOX_CPU "NaN"`,
	} {
		if !strings.Contains(fault.From(err).Sentence(), has) {
			t.Errorf("the message lacks %q:\n%s", has, fault.From(err).Sentence())
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address string
		plain   string
		ok      bool
	}{
		{"127.0.0.1:0", "false", true}, {"[::1]:7747", "false", true}, {"localhost:1", "false", true}, {":7747", "false", false}, {":7747", "true", true},
		{"127.0.0.1", "true", false}, {"127.0.0.1:http", "true", false}, {"127.0.0.1:70000", "true", false}, {"example.org:1", "false", false}, {"a b:1", "true", false},
	} {
		_, err := config.Load(map[string]string{"listen": c.address, "listen-plain": c.plain}, env())
		if (err == nil) != c.ok {
			t.Errorf("%s, plain %s: %v", c.address, c.plain, err)
		}
	}
}

func TestMarkdownNamesEveryField(t *testing.T) {
	t.Parallel()
	md := config.Markdown()
	for _, f := range config.Fields() {
		if !strings.Contains(md, "`--"+f.Name) || !strings.Contains(md, "`"+f.Env()+"`") || f.Doc == "" {
			t.Errorf("%s is not told in full", f.Name)
		}
	}
}

func TestServerFileAndToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := config.ReadServerFile(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	want := config.ServerFile{Address: "http://127.0.0.1:1", PID: 7, Started: time.Unix(1, 0).UTC()}
	if err := config.WriteServerFile(dir, want); err != nil {
		t.Fatal(err)
	}
	if err := config.RemoveServerFile(dir, 8); err != nil { // another server's
		t.Fatal(err)
	}
	got, err := config.ReadServerFile(dir)
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	if err := config.RemoveServerFile(dir, 7); err != nil {
		t.Fatal(err)
	}
	if _, err := config.ReadServerFile(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after removal: %v", err)
	}
	file := filepath.Join(dir, "owner-token")
	if err := config.WriteToken(file, "secret"); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(file)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if tok, err := config.ReadToken(file); tok != "secret" || err != nil {
		t.Errorf("%q, %v", tok, err)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"1", "4GiB", "9223372036854775807TiB", "-1MiB", "GiB", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := config.ParseSize(s); err == nil && n < 0 {
			t.Fatalf("%q is %d", s, n)
		}
	})
}
