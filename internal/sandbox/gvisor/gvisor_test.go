package gvisor_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/gvisor"
	"github.com/hearthd/hearth/internal/sandbox/rootfs"
	"github.com/hearthd/hearth/internal/sandbox/sandboxtest"
)

// binaries of this test run, readable by everybody.
var (
	dir     string
	program string
	guest   string
	version string
)

// childEnv carries these to a test process without root.
const childEnv = "HEARTH_TEST_GVISOR"

// serveEnv makes a test process the server of a state folder that will be killed.
const serveEnv = childEnv + "_SERVE"

func serve(d string) int {
	p, err := provider(d, nil)
	if err == nil {
		err = sandboxtest.Serve(context.Background(), p)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func server(d string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveEnv+"="+d, childEnv+"="+strings.Join([]string{dir, program, guest, version}, ":"))
	return cmd
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		fmt.Println("SKIP: gVisor needs linux/amd64")
		return 0
	}
	if parts := strings.Split(os.Getenv(childEnv), ":"); len(parts) == 4 { // the same test without root
		dir, program, guest, version = parts[0], parts[1], parts[2], parts[3]
		switch d, how := os.Getenv(serveEnv), os.Getenv(probeEnv); {
		case d != "" && how != "":
			return probe(d, how)
		case d != "":
			return serve(d)
		}
		return m.Run()
	}
	var err error
	if dir, err = os.MkdirTemp("/tmp", "gv"); err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Println(err)
		return 1
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor").Output()
	if err != nil {
		fmt.Println("ask for gVisor's version:", err)
		return 1
	}
	version = strings.TrimSpace(string(out))
	if program, err = sandboxtest.Build(dir, "github.com/hearthd/hearth/internal/sandbox/gvisor/internal/runscbin", "-X gvisor.dev/gvisor/runsc/version.version="+version); err != nil {
		fmt.Println(err)
		return 1
	}
	if guest, err = sandboxtest.BuildGuest(dir); err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}

// shortDir is a temporary folder with a short path, since sockets are below it.
func shortDir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(d); err != nil {
			t.Errorf("remove the test's folder: %v", err)
		}
	})
	return d
}

func open(t testing.TB, d string, change func(*gvisor.Config)) *gvisor.Provider {
	t.Helper()
	p, err := provider(d, change)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func provider(d string, change func(*gvisor.Config)) (*gvisor.Provider, error) {
	roots, err := rootfs.New(rootfs.Config{Dir: filepath.Join(d, "roots")})
	if err != nil {
		return nil, err
	}
	cfg := gvisor.Config{StateDir: filepath.Join(d, "s"), Executable: program, Version: version, Host: "test", Roots: roots}
	if change != nil {
		change(&cfg)
	}
	return gvisor.New(cfg)
}

// TestUnprivileged runs the suite in a process that is not root.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: TestProvider has run without root")
	}
	d := shortDir(t)
	const nobody = 65534
	if err := os.Chown(d, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(d, "test") // where go put it nobody else can reach it
	data, err := os.ReadFile(exe)
	if err == nil {
		err = os.WriteFile(self, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.v", "-test.run=^TestProvider$")
	cmd.Dir = d
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + d, childEnv + "=" + strings.Join([]string{d, program, guest, version}, ":")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("the suite without root: %v", err)
	}
	if strings.Contains(string(out), "SKIP: TestProvider ") {
		t.Skip("SKIPPED: see above")
	}
}

func TestProvider(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := exec.Command("unshare", "--user", "--map-root-user", "true").Run(); err != nil {
			t.Skip("SKIPPED: this machine does not let ordinary users make user namespaces")
		}
	}
	sandboxtest.Run(t, func(t *testing.T) (sandbox.Provider, sandboxtest.Env) {
		d := shortDir(t)
		p := open(t, d, nil)
		return p, sandboxtest.Env{
			Dir: d, Guest: guest, Root: sandbox.Root{Kind: "host"},
			Server: func() *exec.Cmd { return server(d) },
			Reopen: func(t *testing.T) sandbox.Provider { return open(t, d, nil) },
			Left:   func(id string) []string { return left(d, id) },
		}
	})
}

// left lists files and cgroups of a sandbox, or of all.
func left(d, id string) []string {
	pattern := "*" + id + "*"
	if id == "" {
		pattern = "*"
	}
	var out []string
	for _, g := range []string{"s/b/" + pattern, "s/u/" + pattern} {
		names, _ := filepath.Glob(filepath.Join(d, g))
		out = append(out, names...)
	}
	if id == "" {
		names, _ := filepath.Glob(filepath.Join(d, "s", "r", "*"))
		out = append(out, names...)
	} else {
		for _, g := range []string{"/sys/fs/cgroup/" + group(d) + "/" + pattern, "/sys/fs/cgroup/*/" + group(d) + "/" + pattern} {
			names, _ := filepath.Glob(g)
			out = append(out, names...)
		}
	}
	return out
}

// group is the name of the cgroup that holds those of a folder's sandboxes.
func group(d string) string {
	sum := sha256.Sum256([]byte(filepath.Join(d, "s")))
	return "hearth-" + hex.EncodeToString(sum[:4])
}
