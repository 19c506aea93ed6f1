package rootfs

import (
	"bufio"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

func TestHost(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "roots")
	root, err := store(t, dir).Resolve(t.Context(), sandbox.Root{Kind: "host"})
	if err != nil {
		t.Fatal(err)
	}
	if len(root.Binds) == 0 || root.Binds[0] != (sandbox.Bind{Source: "/usr", Target: "/usr"}) {
		t.Errorf("binds %v", root.Binds)
	}
	top, err := os.ReadDir(root.Dir)
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var", "workspace"}
	for _, n := range top {
		if !slices.Contains(allowed, n.Name()) {
			t.Errorf("/%s is in the root", n.Name())
		}
	}
	etc, _ := os.ReadDir(filepath.Join(root.Dir, "etc"))
	for _, n := range etc {
		if !slices.Contains([]string{"alternatives", "group", "hosts", "ld.so.cache", "mime.types", "nsswitch.conf", "os-release", "passwd", "protocols", "resolv.conf", "services", "ssl"}, n.Name()) {
			t.Errorf("/etc/%s is in the root", n.Name())
		}
	}
	for _, p := range []string{sandbox.PathHome, sandbox.PathWork, sandbox.PathDoors, sandbox.PathState, sandbox.PathAgents, sandbox.PathDriver, "/tmp", "/proc", "/usr"} {
		if _, err := os.Stat(filepath.Join(root.Dir, p)); err != nil {
			t.Errorf("a place is missing: %v", err)
		}
	}
	if passwd, _ := os.ReadFile(filepath.Join(root.Dir, "etc/passwd")); strings.Count(string(passwd), "\n") != 3 || !strings.HasPrefix(string(passwd), "root:x:0:0:root:/home/agent:") {
		t.Errorf("passwd is %q", passwd)
	}

	// Found again by another store, not written again.
	before, _ := os.Stat(root.Dir)
	again, err := store(t, dir).Host(t.Context())
	after, _ := os.Stat(root.Dir)
	if err != nil || cmp.Diff(root, again) != "" || !os.SameFile(before, after) {
		t.Errorf("the second time %+v, %v; the first %+v", again, err, root)
	}
}

func TestHostExtraCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("one")}))
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")}))
	host := func(ca string) (Root, error) {
		s, err := New(Config{Dir: filepath.Join(dir, "roots"), ExtraCA: ca})
		if err != nil {
			t.Fatal(err)
		}
		return s.Host(t.Context())
	}
	plain, err := host("")
	if err != nil {
		t.Fatal(err)
	}
	with, err := host(write("ca.pem", "# ours\n"+cert+cert))
	if err != nil {
		t.Fatal(err)
	}
	if plain.Digest == with.Digest {
		t.Error("another CA bundle and the same digest")
	}
	data, _ := os.ReadFile(filepath.Join(with.Dir, caPath))
	if !strings.HasSuffix(string(data), "\n"+cert+cert) {
		t.Errorf("the bundle ends %q", data[max(0, len(data)-200):])
	}
	for _, bad := range []string{write("key.pem", cert+key), write("none.pem", "nothing"), filepath.Join(dir, "missing")} {
		if _, err := host(bad); fault.CodeOf(err) != fault.RootInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestHostExclude(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := New(Config{Dir: dir, Exclude: []string{"/usr/share", "/usr/bin/env", "/usr/is/not/there"}})
	if err != nil {
		t.Fatal(err)
	}
	root, err := s.Host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	masks := root.Binds[len(root.Binds)-2:]
	for i, want := range []struct {
		target string
		dir    bool
	}{{"/usr/share", true}, {"/usr/bin/env", false}} {
		fi, err := os.Stat(masks[i].Source)
		if err != nil || masks[i].Target != want.target || fi.IsDir() != want.dir || (!fi.IsDir() && fi.Size() != 0) {
			t.Errorf("mask %+v, %v", masks[i], err)
		}
	}
	for _, bad := range []string{"/etc/x", "/usr", "/usr/../etc", "usr/x", "/usr/x/"} {
		if _, err := New(Config{Dir: dir, Exclude: []string{bad}}); fault.CodeOf(err) != fault.ConfigInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestResolveRefused(t *testing.T) {
	t.Parallel()
	s := store(t, t.TempDir())
	for _, r := range []sandbox.Root{{}, {Kind: "moon"}, {Kind: "host", Ref: "x"}, {Kind: "oci"}} {
		if _, err := s.Resolve(t.Context(), r); fault.CodeOf(err) != fault.RootInvalid {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// What a killed process has left is neither used nor kept; what one makes now is.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := store(t, dir)
	for _, n := range []string{".tmp-1234", ".tmp-999999999-1.ab", filepath.Base(s.temporary())} {
		half := filepath.Join(dir, n, "a")
		if err := os.MkdirAll(half, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(half, 0o500); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Host(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Clean(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	names, _ := os.ReadDir(dir)
	for _, n := range names {
		kind, _, _ := strings.Cut(n.Name(), "-")
		kinds = append(kinds, kind)
	}
	if d := cmp.Diff([]string{".tmp", "host", "used"}, kinds); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Roots that nobody has asked for go, but not the last of a kind nor one that is mounted.
func TestClean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	clock := now
	s, err := New(Config{Dir: dir, Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	week := now.Add(-7 * 24 * time.Hour)
	root := func(kind, digit string, used time.Time) string {
		t.Helper()
		name := kind + "-" + strings.Repeat(digit, 32)
		clock = used
		if _, err := s.make(t.Context(), name, func(dir string) error { return os.Mkdir(filepath.Join(dir, "etc"), 0o755) }); err != nil {
			t.Fatal(err)
		}
		clock = now
		return name
	}
	old := week.Add(-time.Hour)
	root("oci", "1", old)
	lastImage := root("oci", "2", old.Add(time.Minute))
	root("host", "3", old)
	used := root("host", "4", old)
	lastHost := root("host", "5", now)
	shown := root("oci", "6", old)
	again := root("oci", "7", old)
	unknown := root("host", "8", old)
	if err := os.Remove(filepath.Join(dir, usedMark+unknown)); err != nil { // made before such files were
		t.Fatal(err)
	}
	if used != root("host", "4", week.Add(time.Minute)) { // it is asked for again
		t.Fatal("it has another name")
	}
	for digit, ref := range map[string]string{"1": "a@sha256:x", "2": "b@sha256:y"} {
		if err := s.remember(ref, strings.Repeat(digit, 64)); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := s.known("b@sha256:y"); !ok { // which is a use of it
		t.Fatal("the reference is not known")
	}
	clock = old.Add(2 * time.Minute)
	s.use(lastImage)
	s.use(again)
	clock = now

	cmd := exec.Command("sh", "-c", `mount --bind "$1" "$1/etc" && echo mounted && read x`, "sh", filepath.Join(dir, shown))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	}
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip("SKIPPED: this machine lets us make no mount namespace: ", err)
	}
	defer func() { _ = stdin.Close(); _ = cmd.Wait() }()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the sandbox said %q, %v", line, err)
	}
	clock = old.Add(3 * time.Minute)
	s.use(lastImage) // the newest of its kind, and old
	clock = now
	if err := s.Clean(t.Context(), week); err != nil {
		t.Fatal(err)
	}
	var got []string
	names, _ := os.ReadDir(dir)
	for _, n := range names {
		if !strings.HasPrefix(n.Name(), usedMark) && !strings.HasPrefix(n.Name(), refMark) {
			got = append(got, n.Name())
		}
	}
	if d := cmp.Diff([]string{used, lastHost, unknown, lastImage, shown}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := os.Lstat(s.refFile("a@sha256:x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the reference to a root that is gone: %v", err)
	}
	if _, err := os.Lstat(s.refFile("b@sha256:y")); err != nil {
		t.Errorf("the reference to a root that is there: %v", err)
	}
}

func TestReadPublic(t *testing.T) {
	t.Parallel()
	p := filepath.Join(t.TempDir(), "f")
	for mode, want := range map[fs.FileMode]bool{0o644: true, 0o600: false, 0o640: false} {
		if err := os.WriteFile(p, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := readPublic(p); (err == nil) != want {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if _, err := readPublic(filepath.Dir(p)); err == nil {
		t.Error("a folder was read")
	}
}
