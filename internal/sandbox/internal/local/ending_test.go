package local

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// leaderEnv makes the test binary a process whose first thread ends while others go on.
const leaderEnv = "HEARTH_TEST_LEADER"

func init() {
	if os.Getenv(leaderEnv) == "" {
		return
	}
	runtime.LockOSThread() // the first thread, in init
	go func() {
		for {
			time.Sleep(time.Minute) // until it is killed
		}
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// A process whose first thread has ended looks like a zombie. It lives as long as
// another thread does: it has files and a cgroup.
func TestFirstThreadEnded(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaderEnv+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the first thread's end", func() bool {
		st, err := readStat(p.PID)
		return err == nil && st.state == 'Z'
	})
	if !p.Alive() || !MakerAlive(fmt.Sprintf("%d-%d", p.PID, p.Start)) {
		t.Error("it is taken for dead")
	}
	if err := KillAll(t.Context(), 10*time.Second, func() []int { return []int{p.PID} }); err != nil {
		t.Error(err)
	}
	if p.Alive() {
		t.Error("it lives on")
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
		_ = Wait(t.Context(), time.Millisecond)
	}
}

// A program that was being started when its starter was killed does not look like
// itself yet. It is waited for, and killed once it does.
func TestEndCalls(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "calls")
	held, err := Hold(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Hold(path) // calls go on beside each other
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	// The shell is what its starter was, the sleep is the program.
	seconds := fmt.Sprintf("20.%06d", os.Getpid())
	cmd := exec.Command("sh", "-c", "echo begun; read x; exec sleep "+seconds)
	cmd.ExtraFiles = []*os.File{held}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = errors.Join(cmd.Start(), held.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	find := func() []int {
		return Find(func(args []string) bool { return slices.Equal(args, []string{"sleep", seconds}) })
	}
	if left := find(); len(left) > 0 {
		t.Fatalf("it is itself too early: %v", left)
	}
	release, err := EndCalls(t.Context(), 10*time.Second, path, func() []int {
		_ = in.Close() // now it becomes the program; twice does no harm
		return find()
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the program ended by itself: %v", err)
	}
	if _, err := Hold(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a call began while the sandbox is removed: %v", err)
	}
	release()
	// One that nothing ends is told.
	held, err = Hold(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := EndCalls(t.Context(), 50*time.Millisecond, path, func() []int { return nil }); err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("while a call is at work: %v", err)
	}
}
