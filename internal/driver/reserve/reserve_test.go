package reserve

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func small(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("SKIPPED: this machine lets us mount nothing: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all that is free, and returns how much that was.
func fill(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for total, b := 0, make([]byte, 4096); ; {
		n, err := f.Write(b)
		if total += n; err != nil {
			return total
		}
	}
}

func TestReserve(t *testing.T) {
	t.Parallel()
	dir := small(t, "12m")
	r := New(filepath.Join(dir, "reserve"), 8<<20)
	size := func() int64 {
		t.Helper()
		n, err := r.size()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	balance := func() {
		t.Helper()
		if err := r.Balance(); err != nil {
			t.Fatal(err)
		}
	}
	if r.Free() {
		t.Error("there was nothing to give")
	}
	balance()
	if size() != 1<<20 { // a twelfth
		t.Errorf("%d bytes", size())
	}
	r.Room()
	if size() != 1<<20 {
		t.Error("it was given back without need")
	}
	fill(t, filepath.Join(dir, "a"))
	balance()
	if size() != 512<<10 {
		t.Errorf("on a full disk %d bytes", size())
	}
	if got := fill(t, filepath.Join(dir, "b")); got < 400<<10 {
		t.Errorf("half of it gave %d bytes", got)
	}
	r.Room()
	if size() != 0 {
		t.Errorf("little is left and %d bytes are kept", size())
	}
	if got := fill(t, filepath.Join(dir, "c")); got < 400<<10 {
		t.Errorf("the other half gave %d bytes", got)
	}
	balance() // there is nothing to take
	if size() != 0 || r.Free() {
		t.Errorf("of nothing %d bytes", size())
	}
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	balance()
	if size() != 1<<20 || !r.Free() || size() != 0 {
		t.Errorf("when there is room again %d bytes", size())
	}
}
