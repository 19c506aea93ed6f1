package server

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/fault"
)

// lockFor makes the test binary a process that takes the lock of a folder, hands the open
// file on to a child, and waits.
const lockFor = "HEARTH_TEST_LOCK"

func TestMain(m *testing.M) {
	dir := os.Getenv(lockFor)
	if dir == "" {
		os.Exit(m.Run())
	}
	f, err := Lock(dir)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("locked", child.Process.Pid)
	_ = child.Wait() // until it is killed
	_ = f.Close()
}

// A folder belongs to one process while it lives and to nobody the moment it is killed,
// even when a child still has its files open.
func TestLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		holder := exec.Command(os.Args[0], "-test.run=^$") //nolint:gosec // this test
		holder.Env = append(os.Environ(), lockFor+"="+dir)
		out, err := holder.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := holder.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		var child int
		if _, serr := fmt.Sscanf(line, "locked %d", &child); serr != nil {
			t.Fatalf("the holder said %q, %v", line, err)
		}
		t.Cleanup(func() {
			if p, err := os.FindProcess(child); err == nil {
				_ = p.Kill()
			}
		})
		_, err = Lock(dir)
		if fault.CodeOf(err) != fault.ServerRunning || !strings.Contains(err.Error(), fmt.Sprintf("process %d", holder.Process.Pid)) {
			t.Errorf("while another has it: %v", err)
		}
		if err := holder.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = holder.Wait() // killed
	}
	f, err := Lock(dir)
	if err != nil {
		t.Fatalf("after its holder was killed: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
