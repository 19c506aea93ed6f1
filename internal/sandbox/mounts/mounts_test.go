package mounts

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMark(t *testing.T) {
	t.Parallel()
	names := []string{"claude-0123", "claude-01", "node-7.damaged-5"}
	for line, want := range map[string]map[string]bool{
		"494 492 254:0 /a/layers/claude-0123 /opt/agents/claude ro - ext4 /dev/vda rw": {"claude-0123": true},
		"494 492 254:0 /claude-0123 /opt/agents/claude ro - ext4 /dev/vda rw":          {"claude-0123": true}, // the folder above is a file system of its own
		"494 492 254:0 /layers/claude-0123/bin /x ro - ext4 /dev/vda rw":               {"claude-0123": true},
		"494 492 254:0 /layers/node-7.damaged-5 /x ro - ext4 /dev/vda rw":              {"node-7.damaged-5": true},
		"494 492 254:0 / /layers/claude-0123 ro - ext4 /dev/vda rw":                    {}, // that is where, not what
		"494 492 254:0 /layers/claude-0123x /x ro - ext4 /dev/vda rw":                  {},
		"494 492": {},
		"":        {},
	} {
		got := map[string]bool{}
		mark(got, names, line)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", line, d)
		}
	}
}

// A folder that a process has mounted in a namespace of its own is shown; when the
// process has ended it is not.
func TestShown(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "layer-for-TestShown")
	if err := os.MkdirAll(filepath.Join(dir, "on"), 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{filepath.Base(dir), "layer-that-nobody-has"}
	cmd := exec.Command("sh", "-c", `mount --bind "$1" "$1/on" && echo mounted && read x`, "sh", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Skip("SKIPPED: this machine lets us make no mount namespace: ", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the process said %q, %v", line, err)
	}
	got, err := Shown(names)
	if d := cmp.Diff(map[string]bool{names[0]: true}, got); d != "" || err != nil {
		t.Errorf("while it is mounted: %v (-want +got):\n%s", err, d)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its read fails
	got, err = Shown(names)
	if d := cmp.Diff(map[string]bool{}, got); d != "" || err != nil {
		t.Errorf("after its end: %v (-want +got):\n%s", err, d)
	}
}
