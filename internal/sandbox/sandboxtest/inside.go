package sandboxtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

func (s *suite) exec(t *testing.T) {
	_, h := s.running(t)
	for _, c := range []struct {
		args []string
		want sandbox.Exit
	}{
		{[]string{"exit", "0"}, sandbox.Exit{}},
		{[]string{"exit", "3"}, sandbox.Exit{Code: 3}},
		{[]string{"exit", "128"}, sandbox.Exit{Code: 128}},
		{[]string{"exit", "137"}, sandbox.Exit{Code: 137}},
		{[]string{"signal"}, sandbox.Exit{Code: -1, Signal: "SIGKILL"}},
	} {
		if got := s.run(t, h, c.args...).exit; got != c.want {
			t.Errorf("%v = %+v, want %+v", c.args, got, c.want)
		}
	}
	exit, err := s.p.Exec(t.Context(), h, sandbox.Command{Args: []string{"/no/such/program"}})
	if err != nil || exit.Code != 127 {
		t.Errorf("a missing program = %+v, %v", exit, err)
	}

	start := time.Now()
	if r := s.run(t, h, "hold"); r.stdout != "said before the end\n" || time.Since(start) > 15*time.Second {
		t.Errorf("with the output held open: %+v after %v", r, time.Since(start))
	}

	in := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // more than pipes hold
	var out bytes.Buffer
	exit, err = s.p.Exec(t.Context(), h, sandbox.Command{Args: []string{sandbox.PathDriver, "cat"}, Stdin: bytes.NewReader(in), Stdout: &out})
	if err != nil || exit.Code != 0 || !bytes.Equal(in, out.Bytes()) {
		t.Errorf("1 MiB through cat: %+v, %v, %d bytes came back", exit, err, out.Len())
	}
	if r := s.run(t, h, "cat"); r.exit.Code != 0 || r.stdout != "" {
		t.Errorf("cat without stdin = %+v", r)
	}

	out.Reset()
	_, err = s.p.Exec(t.Context(), h, sandbox.Command{Args: []string{sandbox.PathDriver, "look"}, Env: []string{"A=1", "B=x y", "HOME=/x"}, Dir: sandbox.PathHome, Stdout: &out})
	var l Look
	if err := errors.Join(err, json.Unmarshal(out.Bytes(), &l)); err != nil {
		t.Fatal(err)
	}
	slices.Sort(l.Env)
	if diff := cmp.Diff([]string{"A=1", "B=x y", "HOME=/x"}, l.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if l.Dir != sandbox.PathHome || l.UID != 0 {
		t.Errorf("ran in %q as %d", l.Dir, l.UID)
	}
}

func (s *suite) execCancelled(t *testing.T) {
	_, h := s.running(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	if exit, err := s.p.Exec(ctx, h, sandbox.Command{Args: []string{sandbox.PathDriver, "sleep"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Exec = %+v, %v", exit, err)
	}
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("Exec returned after %v", d)
	}
	if got := s.run(t, h, "exit", "0").exit.Code; got != 0 {
		t.Errorf("the sandbox is not well afterwards: %d", got)
	}
}

func (s *suite) files(t *testing.T) {
	_, h := s.running(t)
	name := sandbox.PathHome + "/a/b c/d"
	if _, err := s.p.ReadFile(t.Context(), h, name, 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file = %v", err)
	}
	for _, want := range []string{"hello", "", strings.Repeat("x", 300<<10)} {
		if err := s.p.WriteFile(t.Context(), h, name, []byte(want), 0o640); err != nil {
			t.Fatalf("WriteFile of %d bytes: %v", len(want), err)
		}
		got, err := s.p.ReadFile(t.Context(), h, name, 1<<20)
		if err != nil || string(got) != want {
			t.Errorf("ReadFile of %d bytes = %d bytes, %v", len(want), len(got), err)
		}
	}
	if _, err := s.p.ReadFile(t.Context(), h, name, 100); err == nil {
		t.Error("a file larger than allowed was read")
	}
	if _, err := s.p.ReadFile(t.Context(), h, sandbox.PathHome, 100); err == nil {
		t.Error("a folder was read")
	}
	if err := s.p.WriteFile(t.Context(), h, "relative", nil, 0o644); err == nil {
		t.Error("a relative path was written")
	}
	if got := s.run(t, h, "read", name); len(got.stdout) != 300<<10 {
		t.Errorf("a command inside reads %d bytes, %q", len(got.stdout), got.stderr)
	}
	s.run(t, h, "write", sandbox.PathHome+"/inside")
	if got, err := s.p.ReadFile(t.Context(), h, sandbox.PathHome+"/inside", 100); err != nil || string(got) != "written inside" {
		t.Errorf("a file that was written inside = %q, %v", got, err)
	}
}

// door: the socket in the door folder is reached from inside, one that replaces
// it later too, and files beside it can be read and not written.
func (s *suite) door(t *testing.T) {
	spec := s.spec(t)
	if err := os.WriteFile(filepath.Join(spec.DoorDir, "driver.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	conns := listen(t, spec.DoorDir)
	h := s.create(t, spec)
	s.start(t, h)
	c := <-conns
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "hello from pid 1 on box\n" {
		t.Errorf("pid 1 said %q, %v", line, err)
	}
	if r := s.run(t, h, "read", sandbox.PathConfig); r.stdout != "{}" {
		t.Errorf("driver.json inside: %+v", r)
	}
	if r := s.run(t, h, "write", sandbox.PathConfig); r.exit.Code == 0 {
		t.Error("driver.json can be written from inside")
	}
	if r := s.run(t, h, "write", sandbox.PathDoors+"/new"); r.exit.Code == 0 {
		t.Error("the door folder can be written from inside")
	}
	again := listen(t, spec.DoorDir)
	c.Close()
	select {
	case c := <-again:
		c.Close()
	case <-time.After(20 * time.Second):
		t.Error("pid 1 did not find the new socket")
	}
}

func (s *suite) noNetwork(t *testing.T) {
	_, h := s.running(t)
	l := s.look(t, h)
	if diff := cmp.Diff([]string{"lo"}, l.Interfaces); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	if l.Routes != "" {
		t.Errorf("routes: %s", l.Routes)
	}
	for a, how := range l.Dial {
		if how != "refused" {
			t.Errorf("%s: %s", a, how)
		}
	}
	if l.Loopback != "works" {
		t.Errorf("loopback: %s", l.Loopback)
	}
	if diff := cmp.Diff(map[string]string{"localhost": "127.0.0.1", "allowed.example": "127.0.0.1"}, l.Lookup); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// hostHidden: nothing of the host is seen but what the root and the binds show.
func (s *suite) hostHidden(t *testing.T) {
	spec, h := s.running(t)
	canary := filepath.Join(s.env.Dir, "canary-"+spec.ID)
	if err := os.WriteFile(canary, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(canary)
	l := s.look(t, h)
	hidden := []string{canary, s.env.Dir, spec.DoorDir, s.env.Guest, "/etc/shadow", "/etc/machine-id", "/root/.profile", "/root/.bashrc", "/boot", "/var/lib/dpkg/status", "/etc/fstab", "/dev/kmsg", "/dev/mem", "/dev/vda", "/dev/sda"}
	if hostname, err := os.ReadFile("/etc/hostname"); err == nil && len(hostname) > 0 {
		hidden = append(hidden, "/etc/hostname")
	}
	for _, p := range hidden {
		if r := s.run(t, h, "read", p); r.exit.Code == 0 || strings.Contains(r.stderr, "permission") {
			t.Errorf("%s is seen inside: %+v", p, r)
		}
	}
	allowed := []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "dev", "proc", "sys", "tmp", "var", "run", "home", "root", "opt", "workspace", "mnt", "media", "srv"}
	for _, n := range l.Root {
		if !slices.Contains(allowed, n) {
			t.Errorf("/%s is seen inside", n)
		}
	}
	for _, e := range l.Env {
		if strings.Contains(e, s.env.Dir) {
			t.Errorf("the environment shows a host path: %s", e)
		}
	}
}

func (s *suite) binds(t *testing.T) {
	spec := s.spec(t)
	src := filepath.Join(s.env.Dir, "bind-"+spec.ID)
	if err := os.MkdirAll(filepath.Join(src, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(src)
	if err := os.WriteFile(filepath.Join(src, "sub", "file"), []byte("shown"), 0o666); err != nil {
		t.Fatal(err)
	}
	spec.Binds = append(spec.Binds, sandbox.Bind{Source: src, Target: sandbox.PathAgents})
	h := s.create(t, spec)
	s.start(t, h)
	if r := s.run(t, h, "read", sandbox.PathAgents+"/sub/file"); r.stdout != "shown" {
		t.Errorf("the bind inside: %+v", r)
	}
	for _, p := range []string{sandbox.PathAgents + "/sub/file", sandbox.PathAgents + "/new", sandbox.PathDriver, "/etc/hosts"} {
		if r := s.run(t, h, "write", p); r.exit.Code == 0 || !(strings.Contains(r.stderr, "read-only") || strings.Contains(r.stderr, "text file busy")) {
			t.Errorf("write to %s: %+v", p, r)
		}
	}
	if data, _ := os.ReadFile(filepath.Join(src, "sub", "file")); string(data) != "shown" {
		t.Errorf("the host's file is now %q", data)
	}
}

// copyOnWrite: the places that a session writes to are there, hold what is
// written, and nobody else sees it.
func (s *suite) copyOnWrite(t *testing.T) {
	_, h := s.running(t)
	_, other := s.running(t)
	for _, dir := range []string{sandbox.PathHome, sandbox.PathWork, sandbox.PathState, "/tmp", "/var/tmp", "/etc", "/opt"} {
		p := dir + "/new"
		if r := s.run(t, h, "write", p); r.exit.Code != 0 {
			t.Errorf("write %s: %+v", p, r)
		}
		if r := s.run(t, h, "read", p); r.stdout != "written inside" {
			t.Errorf("read %s: %+v", p, r)
		}
		if r := s.run(t, other, "read", p); r.exit.Code == 0 {
			t.Errorf("another sandbox sees %s", p)
		}
	}
}

// memory: a process that takes more than the limit is killed, by name, and if
// that takes the sandbox along, the state says why.
func (s *suite) memory(t *testing.T) {
	if !s.p.Capabilities().LimitMemory {
		t.Skip("SKIPPED: the provider does not limit memory")
	}
	spec := s.spec(t)
	spec.Limits.MemoryBytes = 160 << 20
	h := s.create(t, spec)
	s.start(t, h)
	var out bytes.Buffer
	exit, err := s.p.Exec(t.Context(), h, sandbox.Command{Args: []string{sandbox.PathDriver, "hog", "400"}, Stdout: &out})
	info := s.state(t, h)
	t.Logf("the hog: %+v, %v, %q; the sandbox: %s %q", exit, err, out.String(), info.State, info.Exit)
	if strings.Contains(out.String(), "held") {
		t.Errorf("400 MiB were held under a limit of 160")
	}
	if info.State == sandbox.Running {
		if err != nil || exit.Signal != "SIGKILL" {
			t.Errorf("the process ended as %+v, %v", exit, err)
		}
		return
	}
	if fault.CodeOf(err) != fault.SandboxNotFound || !strings.Contains(err.Error(), "memory limit") {
		t.Errorf("the command ended with %v, want that the sandbox ended for its memory limit", err)
	}
	if info.State != sandbox.Stopped || !strings.Contains(info.Exit, "memory limit") {
		t.Errorf("the sandbox is %s, %q", info.State, info.Exit)
	}
}

func (s *suite) cpu(t *testing.T) {
	if !s.p.Capabilities().LimitCPU {
		t.Skip("SKIPPED: the provider does not limit processor time")
	}
	work := func(millis int64) int {
		spec := s.spec(t)
		spec.Limits.CPUMillis = millis
		h := s.create(t, spec)
		s.start(t, h)
		r := s.run(t, h, "burn", "1500")
		var n, x int
		if _, err := fmt.Sscan(r.stdout, &n, &x); err != nil {
			t.Fatalf("burn said %+v", r)
		}
		return n
	}
	slow, fast := work(100), work(1000)
	t.Logf("work done with 0.1 and 1 processors: %d and %d", slow, fast)
	if slow*2 > fast {
		t.Errorf("0.1 processors did %d, 1 processor %d", slow, fast)
	}
}

func (s *suite) disk(t *testing.T) {
	_, h := s.running(t)
	fill := func(path string, mib int) (written int64, full bool) {
		r := s.run(t, h, "fill", path, fmt.Sprint(mib))
		var got struct {
			Written int64
			Full    bool
		}
		if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
			t.Fatalf("fill said %+v", r)
		}
		return got.Written, got.Full
	}
	if n, full := fill("/tmp/f", 200); !full || n > 64<<20 {
		t.Errorf("/tmp took %d bytes with a limit of 64 MiB, full %v", n, full)
	}
	if !s.p.Capabilities().LimitDisk {
		t.Skip("SKIPPED: the provider does not limit the disk")
	}
	if n, full := fill(sandbox.PathWork+"/f", 400); !full || n > 256<<20 || n < 200<<20 {
		t.Errorf("the disk took %d bytes with a limit of 256 MiB, full %v", n, full)
	}
	if err := s.p.WriteFile(t.Context(), h, sandbox.PathWork+"/g", make([]byte, 1<<20), 0o644); err == nil {
		t.Error("WriteFile succeeded on a full disk")
	}
	if r := s.run(t, h, "exit", "4"); r.exit.Code != 4 {
		t.Errorf("with a full disk a command ends as %+v", r)
	}
}

// processes: too many processes meet an end that is named.
func (s *suite) processes(t *testing.T) {
	if !s.p.Capabilities().LimitProcesses {
		t.Skip("SKIPPED: the provider does not limit processes")
	}
	spec := s.spec(t)
	spec.Limits.Processes = 300
	spec.Limits.MemoryBytes = 6 << 30
	h := s.create(t, spec)
	s.start(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	exit, err := s.p.Exec(ctx, h, sandbox.Command{Args: []string{sandbox.PathDriver, "fork", "1500"}, Stdout: &out})
	info := s.state(t, h)
	t.Logf("fork: %+v, %v, %q; the sandbox: %s %q", exit, err, out.String(), info.State, info.Exit)
	if strings.TrimSpace(out.String()) == "1500" {
		t.Error("1500 processes were started under a limit of 300")
	}
	if info.State == sandbox.Stopped && !strings.Contains(info.Exit, "process limit") {
		t.Errorf("the sandbox stopped as %q", info.Exit)
	}
}
