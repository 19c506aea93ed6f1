package driver_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/uistream"
)

// onSmallDisk puts the driver's state and the work tree on a disk of this size.
func onSmallDisk(t *testing.T, b *box, size string) {
	t.Helper()
	disk := filepath.Join(b.dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("SKIPPED: this machine lets us mount nothing: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b.cfg.State, b.cfg.Work = filepath.Join(disk, "state"), filepath.Join(disk, "repo")
}

// wholeLog tells what is wrong with the order of a turn's parts.
func wholeLog(turn string, o outcome) error {
	check := uistream.NewChecker(turn)
	for _, r := range o.records {
		if r.Part == nil {
			continue
		}
		if _, err := check.Check(r.Part); err != nil {
			return fmt.Errorf("part %d: %w", r.N, err)
		}
	}
	if n := int64(len(o.types())); n != o.end.Parts {
		return fmt.Errorf("%d parts, the end says %d", n, o.end.Parts)
	}
	if open := check.OpenTools(); len(open) > 0 {
		return fmt.Errorf("open tools %v", open)
	}
	return nil
}

// An agent fills the disk: its turn ends with a code of its own and a whole log,
// the work can be packed, and the next turn can make room, again and again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	onSmallDisk(t, b, "24m")
	b.start()
	b.mustSetup(nil)
	b.mustAgent()
	base := ""
	for i := range 4 {
		full, after := fmt.Sprintf("full_%d", i), fmt.Sprintf("after_%d", i)
		o := b.run(full, turnRequest(fmt.Sprintf("@@write a.txt %d@@ @@run cat /dev/zero > big.bin; echo status $?@@ @@flood 5000 200@@", i)))
		if d := cmp.Diff(end{"failed", "DISK_FULL", false}, ended(o.end)); d != "" {
			t.Fatalf("%s %+v", d, o.end)
		}
		if err := wholeLog(full, o); err != nil {
			t.Errorf("log of %s: %v", full, err)
		}
		if got := o.types(); got[len(got)-1] == "text-delta" {
			t.Errorf("the log of %s has no end: %v", full, got[len(got)-3:])
		}
		if i == 1 { // nothing of it is known from memory only
			b.kill()
			b.start()
			if o := b.follow(full, nil); o.end.Code != "DISK_FULL" {
				t.Errorf("after a restart: %+v", o.end)
			}
		}
		r := packRequest(base)
		r.Turn = full
		p, body := b.pack(r)
		if !p.Changed || len(body) == 0 {
			t.Errorf("pack %+v", p)
		}
		base = p.Head
		b.mustAgent()
		if i == 2 { // again full, while the reserve is not whole
			continue
		}
		o = b.run(after, turnRequest("@@run rm big.bin@@"))
		if d := cmp.Diff(end{"end_turn", "", true}, ended(o.end)); d != "" {
			t.Fatalf("%s %+v", d, o.end)
		}
		if _, err := os.Stat(filepath.Join(b.cfg.Work, "big.bin")); !os.IsNotExist(err) {
			t.Error("big.bin is still there:", err)
		}
	}
}

// Where not even the reserve helps it is said, and nothing hangs.
func TestDiskFullWithoutReserve(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	onSmallDisk(t, b, "2m")
	b.start()
	b.mustSetup(nil)
	b.mustAgent()
	fill := func(name string) {
		t.Helper()
		f, err := os.Create(filepath.Join(b.cfg.Work, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for buf := bytes.Repeat([]byte("x"), 4096); err == nil; {
			_, err = f.Write(buf)
		}
	}
	o := b.follow("turn_1", whenToolRuns(b, "turn_1", turnRequest("@@say begin@@ @@run echo go; sleep 0.5@@ @@flood 5000 200@@"), func() {
		fill("rest")
		if err := os.Remove(filepath.Join(b.cfg.State, "reserve")); err != nil {
			t.Error(err)
		}
		fill("more")
	}))
	if d := cmp.Diff(end{"failed", "DISK_FULL", false}, ended(o.end)); d != "" {
		t.Errorf("%s %+v", d, o.end)
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
	for _, name := range []string{"rest", "more"} {
		if err := os.Remove(filepath.Join(b.cfg.Work, name)); err != nil {
			t.Fatal(err)
		}
	}
	b.mustAgent()
	if o := b.run("turn_3", turnRequest("@@say x@@")); o.end.Outcome != "end_turn" {
		t.Errorf("third turn %+v", o.end)
	}
}

// whenToolRuns begins a turn and gives what to call once when its first tool runs.
func whenToolRuns(b *box, turn string, req driverapi.TurnRequest, once func()) func(driverapi.Record) {
	b.begin(turn, req)
	done := false
	return func(r driverapi.Record) {
		if !done && strings.Contains(string(r.Part), `"tool-input-available"`) {
			done = true
			once()
		}
	}
}
