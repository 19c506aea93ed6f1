package bubblewrap_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/bubblewrap"
	"github.com/hearthd/hearth/internal/sandbox/rootfs"
	"github.com/hearthd/hearth/internal/sandbox/sandboxtest"
)

var dir, guest string

// childEnv carries these to a test process without root.
const childEnv = "HEARTH_TEST_BUBBLEWRAP"

// serveEnv makes a test process the server of a state folder that will be killed.
const serveEnv = childEnv + "_SERVE"

func serve(d string) int {
	p, err := provider(d)
	if err == nil {
		err = sandboxtest.Serve(context.Background(), p)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func server(d string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveEnv+"="+d, childEnv+"="+strings.Join([]string{dir, guest}, ":"))
	return cmd
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if parts := strings.Split(os.Getenv(childEnv), ":"); len(parts) == 2 {
		dir, guest = parts[0], parts[1]
		if d := os.Getenv(serveEnv); d != "" {
			return serve(d)
		}
		return m.Run()
	}
	if _, err := exec.LookPath("bwrap"); err != nil {
		fmt.Println("SKIP: the package bubblewrap is not installed")
		return 0
	}
	var err error
	if dir, err = os.MkdirTemp("/tmp", "bw"); err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err = os.Chmod(dir, 0o755); err == nil {
		guest, err = sandboxtest.BuildGuest(dir)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}

func open(t *testing.T, d string) *bubblewrap.Provider {
	t.Helper()
	p, err := provider(d)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func provider(d string) (*bubblewrap.Provider, error) {
	roots, err := rootfs.New(rootfs.Config{Dir: filepath.Join(d, "roots")})
	if err != nil {
		return nil, err
	}
	return bubblewrap.New(bubblewrap.Config{StateDir: filepath.Join(d, "s"), Host: "test", Roots: roots})
}

func TestProvider(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) (sandbox.Provider, sandboxtest.Env) {
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
		return open(t, d), sandboxtest.Env{
			Dir: d, Guest: guest, Root: sandbox.Root{Kind: "host"},
			Server: func() *exec.Cmd { return server(d) },
			Reopen: func(t *testing.T) sandbox.Provider { return open(t, d) },
			Left: func(id string) []string {
				names, _ := filepath.Glob(filepath.Join(d, "s", "b", "*"+id+"*"))
				return names
			},
		}
	})
}

// TestUnprivileged runs the suite in a process that is not root.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: TestProvider has run without root")
	}
	const nobody = 65534
	d, err := os.MkdirTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(d)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(d, "test")
	data, err := os.ReadFile(exe)
	if err == nil {
		err = os.WriteFile(self, data, 0o755)
	}
	if err == nil {
		err = os.Chown(d, nobody, nobody)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.v", "-test.run=^TestProvider$")
	cmd.Dir = d
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + d, childEnv + "=" + d + ":" + guest}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("the suite without root: %v", err)
	}
}
