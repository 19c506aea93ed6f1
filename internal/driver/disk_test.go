package driver_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
)

// A disk that is full ends the turn with a code of its own, and what was said before can be read.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if err := os.Mkdir(b.cfg.State, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", b.cfg.State, "tmpfs", 0, "size=400k"); err != nil {
		t.Skip("no mounts here:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(b.cfg.State, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b.start()
	b.mustSetup(nil)
	b.mustAgent()
	o := b.run("turn_1", turnRequest("@@say begin@@ @@flood 5000 200@@"))
	if d := cmp.Diff(end{"failed", "DISK_FULL", false}, ended(o.end)); d != "" {
		t.Errorf("%s %+v", d, o.end)
	}
	if o.end.Parts < 100 {
		t.Errorf("%d parts", o.end.Parts)
	}
	if err := os.WriteFile(filepath.Join(b.cfg.Work, "new"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.cfg.State, "rest"), make([]byte, 400<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	if _, _, err := b.client.Pack(t.Context(), packRequest("")); fault.CodeOf(err) != fault.DiskFull {
		t.Errorf("pack: %v", err)
	}
	b.mustAgent()
	if _, _, err := b.client.Turn(t.Context(), "turn_2", turnRequest("@@say x@@")); err == nil {
		if o := b.follow("turn_2", nil); o.end.Code != string(fault.DiskFull) {
			t.Errorf("second turn %+v", o.end)
		}
	} else if fault.CodeOf(err) != fault.DiskFull {
		t.Errorf("second turn: %v", err)
	}
}
