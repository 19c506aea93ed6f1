package agent

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What is installed, new, just replaced, or mounted by anybody stays; the rest goes.
func TestPrune(t *testing.T) {
	t.Parallel()
	now := time.Now()
	week := now.Add(-7 * 24 * time.Hour)
	in := &Installer{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Now: time.Now}
	if err := os.Mkdir(filepath.Join(in.Dir, "layers"), 0o755); err != nil {
		t.Fatal(err)
	}
	tree := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	layer := func(name, digit string, at time.Time) string {
		t.Helper()
		n := layerName(name, tree(digit))
		dir := filepath.Join(in.Dir, "layers", n)
		if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
		return n
	}
	installed := func(name, digit string, at time.Time) {
		t.Helper()
		raw, err := json.Marshal(Manifest{Version: 1, Name: name, Layer: layerName(name, tree(digit)), Tree: tree(digit), At: at})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(in.Dir, name+".json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := week.Add(-time.Hour)
	current := layer("claude", "1", old)
	gone := layer("claude", "2", old)
	younger := layer("claude", "3", week.Add(time.Hour))
	shown := layer("claude", "4", old)
	installed("claude", "1", old)
	replaced := layer("pi-two", "5", old) // there may be a sandbox that is just being made with it
	nowUsed := layer("pi-two", "6", now)
	installed("pi-two", "6", now)
	forgotten := layer("qwen", "7", old) // no profile has that name any more
	all := []string{current, younger, shown, replaced, nowUsed}

	// A sandbox of some server has one mounted.
	cmd := exec.Command("sh", "-c", `mount --bind "$1" "$1/bin" && echo mounted && read x`, "sh", filepath.Join(in.Dir, "layers", shown))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	}
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Skip("SKIPPED: this machine lets us make no mount namespace: ", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the sandbox said %q, %v", line, err)
	}
	for _, step := range []struct {
		name    string
		before  func()
		removed []string
	}{
		{"a manifest that cannot be read", func() { writeFile(t, filepath.Join(in.Dir, "broken.json"), "{") }, nil},
		{"all is well", func() { remove(t, filepath.Join(in.Dir, "broken.json")) }, []string{gone, forgotten}},
		{"nothing to do", func() {}, nil},
		{"the sandbox is gone", func() { _ = stdin.Close(); _ = cmd.Wait() }, []string{shown}},
	} {
		step.before()
		removed, err := in.Prune(t.Context(), week)
		if (err != nil) != (step.name == "a manifest that cannot be read") {
			t.Errorf("%s: %v", step.name, err)
		}
		if d := cmp.Diff(step.removed, removed); d != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, d)
		}
	}
	all = []string{all[0], all[1], all[3], all[4]}
	if d := cmp.Diff(all, names(t, filepath.Join(in.Dir, "layers"))); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
