// Package sandboxtest is the suite that every implementation of
// [sandbox.Provider] passes, with real sandboxes and real processes. [Run] is
// called by a provider's own test. What a provider does not offer, by its
// Capabilities, is not asked of it; everything else is.
package sandboxtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/sandbox"
)

// Env is what the suite needs to know around a provider.
type Env struct {
	Dir    string       // short folder that the provider can read and the test can write; removed by the caller
	Guest  string       // path of the program from [BuildGuest], which the provider can read
	Root   sandbox.Root // what sandboxes start from
	Reopen func(t *testing.T) sandbox.Provider
	// Server is a command that opens the provider as another process and hands
	// it to [Serve]; the suite kills it.
	Server func() *exec.Cmd
	// Left lists what is still on the host of the sandbox with that id, or of any
	// when it is empty: files, cgroups, mounts, processes. The suite adds what it finds itself.
	Left func(id string) []string
}

// BuildGuest builds the suite's guest program into dir.
func BuildGuest(dir string) (string, error) {
	return Build(dir, "github.com/hearthd/hearth/internal/sandbox/sandboxtest/guest", "")
}

// Build builds a static program of this module into dir; extra is added to the linker's flags.
func Build(dir, pkg, extra string) (string, error) {
	out := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w "+extra, "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, msg)
	}
	return out, os.Chmod(out, 0o755)
}

// suite is one run over one provider.
type suite struct {
	p   sandbox.Provider
	env Env
}

// Run runs the suite. The factory is called once; the subtests share what it makes.
func Run(t *testing.T, factory func(t *testing.T) (sandbox.Provider, Env)) {
	p, env := factory(t)
	s := &suite{p: p, env: env}
	t.Run("all", func(t *testing.T) {
		for _, c := range []struct {
			name string
			run  func(*testing.T)
		}{
			{"Lifecycle", s.lifecycle},
			{"StartTwice", s.startTwice},
			{"SameIDTwice", s.sameID},
			{"Pid1Ends", s.pid1Ends},
			{"Unknown", s.unknown},
			{"Refused", s.refused},
			{"Labels", s.labels},
			{"Exec", s.exec},
			{"ExecCancelled", s.execCancelled},
			{"Files", s.files},
			{"Door", s.door},
			{"NoNetwork", s.noNetwork},
			{"HostHidden", s.hostHidden},
			{"Binds", s.binds},
			{"CopyOnWrite", s.copyOnWrite},
			{"Reattach", s.reattach},
			{"ServerKilled", s.serverKilled},
			{"DeleteEndsAll", s.deleteEndsAll},
			{"DeleteUnstarted", s.deleteUnstarted},
			{"Concurrent", s.concurrent},
			{"Memory", s.memory},
			{"CPU", s.cpu},
			{"Disk", s.disk},
			{"Processes", s.processes},
			{"Probe", s.probe},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t)
			})
		}
	})
	if left := s.left(""); len(left) > 0 {
		t.Errorf("after all tests there are left: %q", left)
	}
	list, err := p.List(t.Context(), nil)
	if err != nil || len(list) > 0 {
		t.Errorf("after all tests List = %v, %v", list, err)
	}
}

func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return "t-" + hex.EncodeToString(b[:])
}

// spec is a sandbox with the guest as pid 1 and a door folder of its own.
func (s *suite) spec(t *testing.T) sandbox.Spec {
	t.Helper()
	id := newID()
	doors := filepath.Join(s.env.Dir, "d", id)
	if err := os.MkdirAll(doors, 0o755); err != nil {
		t.Fatal(err)
	}
	return sandbox.Spec{
		ID:       id,
		Labels:   map[string]string{"suite": id},
		Root:     s.env.Root,
		Binds:    []sandbox.Bind{{Source: s.env.Guest, Target: sandbox.PathDriver}},
		DoorDir:  doors,
		Command:  []string{sandbox.PathDriver, "pid1"},
		Env:      []string{"HOME=" + sandbox.PathHome},
		Hostname: "box",
		Hosts:    []string{"allowed.example"},
		Limits:   sandbox.Limits{MemoryBytes: 512 << 20, DiskBytes: 256 << 20, TmpBytes: 64 << 20, CPUMillis: 2000, Processes: 1000},
	}
}

// create makes a sandbox and sees to its end.
func (s *suite) create(t *testing.T, spec sandbox.Spec) sandbox.Handle {
	t.Helper()
	h, err := s.p.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { s.delete(t, h) })
	return h
}

func (s *suite) start(t *testing.T, h sandbox.Handle) {
	t.Helper()
	if err := s.p.Start(t.Context(), h); err != nil {
		t.Fatalf("Start: %v", err)
	}
}

// running makes and starts a sandbox.
func (s *suite) running(t *testing.T) (sandbox.Spec, sandbox.Handle) {
	t.Helper()
	spec := s.spec(t)
	h := s.create(t, spec)
	s.start(t, h)
	return spec, h
}

// delete deletes and looks for what is left.
func (s *suite) delete(t *testing.T, h sandbox.Handle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if err := s.p.Delete(ctx, h); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if left := s.left(h.ID); len(left) > 0 {
		t.Errorf("after Delete there are left: %q", left)
	}
	if got := s.state(t, h); got.State != sandbox.Absent {
		t.Errorf("after Delete the state is %q", got.State)
	}
	_ = os.RemoveAll(filepath.Join(s.env.Dir, "d", h.ID))
}

func (s *suite) state(t *testing.T, h sandbox.Handle) sandbox.Info {
	t.Helper()
	info, err := s.p.Get(context.WithoutCancel(t.Context()), h)
	if err != nil {
		t.Errorf("Get: %v", err)
	}
	return info
}

// eventually waits for a condition on a real process.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// result is a command's end with its output.
type result struct {
	exit   sandbox.Exit
	stdout string
	stderr string
}

func (s *suite) run(t *testing.T, h sandbox.Handle, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	exit, err := s.p.Exec(t.Context(), h, sandbox.Command{Args: append([]string{sandbox.PathDriver}, args...), Stdout: &out, Stderr: &errs})
	if err != nil {
		t.Fatalf("Exec %q: %v (stderr %q)", args, err, errs.String())
	}
	return result{exit: exit, stdout: out.String(), stderr: errs.String()}
}

// Look is what the guest's look command prints.
type Look struct {
	UID, PID   int
	Dir        string
	Env        []string
	Interfaces []string
	Routes     string
	Dial       map[string]string
	Lookup     map[string]string
	Loopback   string
	Root       []string
}

func (s *suite) look(t *testing.T, h sandbox.Handle) Look {
	t.Helper()
	r := s.run(t, h, "look")
	var l Look
	if err := json.Unmarshal([]byte(r.stdout), &l); err != nil {
		t.Fatalf("look said %+v: %v", r, err)
	}
	return l
}

// left joins the provider's own list with what any provider may leave:
// processes and mounts that bear the suite's folder or the sandbox's id.
func (s *suite) left(id string) []string {
	out := s.env.Left(id)
	mark := id
	if mark == "" {
		mark = s.env.Dir
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		if data, err := os.ReadFile(f); err == nil && bytes.Contains(data, []byte(mark)) {
			out = append(out, "process "+f+" "+strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, mark) {
			out = append(out, "mount "+strings.TrimSpace(line))
		}
	}
	return out
}

// listen opens the doors' socket of a sandbox; accepted connections come out of the channel.
func listen(t *testing.T, dir string) <-chan net.Conn {
	t.Helper()
	path := filepath.Join(dir, filepath.Base(sandbox.PathSocket))
	_ = os.Remove(path)
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn, 8)
	done := make(chan struct{})
	go func() { // waited for in the cleanup
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
		for len(conns) > 0 {
			(<-conns).Close()
		}
	})
	return conns
}
