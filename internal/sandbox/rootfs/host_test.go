package rootfs

import (
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

// TestInterrupted: what a killed process has left is neither used nor kept.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	half := filepath.Join(dir, ".tmp-1234", "a")
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(half, 0o500); err != nil {
		t.Fatal(err)
	}
	s := store(t, dir)
	if _, err := s.Host(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Clean(); err != nil {
		t.Fatal(err)
	}
	names, _ := os.ReadDir(dir)
	if len(names) != 1 || !strings.HasPrefix(names[0].Name(), "host-") {
		t.Errorf("there is %v", names)
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
