package gvisor_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"archive/tar"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/gvisor"
	"github.com/hearthd/hearth/internal/sandbox/rootfs"
)

func spec(id string) sandbox.Spec {
	return sandbox.Spec{
		ID:      id,
		Root:    sandbox.Root{Kind: "host"},
		Binds:   []sandbox.Bind{{Source: guest, Target: sandbox.PathDriver}},
		Command: []string{sandbox.PathDriver, "pid1"},
	}
}

func boot(t *testing.T, p *gvisor.Provider, s sandbox.Spec) sandbox.Handle {
	t.Helper()
	h, err := p.Create(t.Context(), s)
	if err == nil {
		err = p.Start(t.Context(), h)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// sentry is the sandbox's main process.
func sentry(t *testing.T, d, id string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(d, "s", "b", id, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: not root")
	}
}

func remove(t *testing.T, p *gvisor.Provider, d string, h sandbox.Handle) {
	t.Helper()
	if err := p.Delete(t.Context(), h); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if l := left(d, h.ID); len(l) > 0 {
		t.Errorf("there are left %q", l)
	}
}

// A sandbox whose main process is killed is Stopped, says so, and can be deleted.
func TestKilled(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	p := open(t, d, nil)
	h := boot(t, p, spec("killed"))
	if err := syscall.Kill(sentry(t, d, h.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var info sandbox.Info
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		if info, err = p.Get(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if info.State == sandbox.Stopped {
			break
		}
	}
	if info.State != sandbox.Stopped || info.Exit != "the sandbox was killed" {
		t.Errorf("the state is %+v", info)
	}
	remove(t, p, d, h)
}

// A sandbox whose main process does not answer is deleted all the same.
func TestDeleteHanging(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	p := open(t, d, nil)
	h := boot(t, p, spec("hangs"))
	if err := syscall.Kill(sentry(t, d, h.ID), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if info, err := p.Get(t.Context(), h); err != nil || info.State != sandbox.Running {
		t.Errorf("Get = %+v, %v", info, err)
	}
	start := time.Now()
	remove(t, p, d, h)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("Delete took %v", took)
	}
}

// What a server that was killed in the middle of Create has left is listed and deleted.
func TestHalfMade(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	p := open(t, d, nil)
	h := boot(t, p, spec("whole"))
	for _, id := range []string{"hollow", "noted"} {
		if err := os.Mkdir(filepath.Join(d, "s", "b", id), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d, "s", "b", "noted", "record.json"), []byte(`{"version":1,"id":"noted","labels":{"a":"b"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// A whole one whose record knows no process yet: the runtime's own files and its processes are found by the id.
	if err := os.WriteFile(filepath.Join(d, "s", "b", "whole", "record.json"), []byte(`{"version":1,"id":"whole","cgroup":""}`), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := p.List(t.Context(), nil)
	if err != nil || len(list) != 3 {
		t.Fatalf("List = %+v, %v", list, err)
	}
	for _, i := range list {
		if i.Handle.ID != "whole" && i.State != sandbox.Stopped {
			t.Errorf("%+v", i)
		}
	}
	pid := sentry(t, d, h.ID)
	for _, i := range list {
		remove(t, p, d, i.Handle)
	}
	if args, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); len(args) > 0 {
		t.Error("the sandbox's process lives")
	}
}

// A record that cannot be read is "don't know", never "not there".
func TestDamagedRecord(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	p := open(t, d, nil)
	h := boot(t, p, spec("damaged"))
	if err := os.WriteFile(filepath.Join(d, "s", "b", "damaged", "record.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := p.Get(t.Context(), h); fault.CodeOf(err) != fault.SandboxUnreachable || info.State != sandbox.Unknown {
		t.Errorf("Get = %+v, %v", info, err)
	}
	if _, err := p.List(t.Context(), nil); fault.CodeOf(err) != fault.SandboxUnreachable {
		t.Errorf("List = %v", err)
	}
	remove(t, p, d, h)
}

// A start that fails says what the runtime said, and leaves nothing.
func TestStartFails(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	p := open(t, d, nil)
	s := spec("nodriver")
	s.Command = []string{"/opt/hearth/nothing"}
	h, err := p.Create(t.Context(), s)
	if err == nil {
		err = p.Start(t.Context(), h)
	}
	if fault.CodeOf(err) != fault.SandboxStartFailed || !strings.Contains(fault.From(err).Sentence(), "/opt/hearth/nothing") {
		t.Errorf("Start = %v", err)
	}
	remove(t, p, d, h)
}

// A program without the runtime, or with another version of it, is found by the
// probe and does not create.
func TestWrongProgram(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for name, change := range map[string]func(*gvisor.Config){
		"no runtime":    func(c *gvisor.Config) { c.Executable = guest },
		"not there":     func(c *gvisor.Config) { c.Executable = "/is/not/there" },
		"other version": func(c *gvisor.Config) { c.Version = "v0.0.0-19700101000000-000000000000" },
	} {
		p := open(t, shortDir(t), change)
		got, err := p.Probe(t.Context())
		if err != nil || got.OK || len(got.Checks) != 1 || got.Checks[0].Name != "runtime" || got.Checks[0].Detail == "" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if name == "other version" {
			continue
		}
		if _, err := p.Create(t.Context(), spec("x")); fault.CodeOf(err) != fault.SandboxStartFailed {
			t.Errorf("%s: Create = %v", name, err)
		}
	}
}

// The runtime that insists on its sidecar programs finds ours.
func TestSidecars(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	p := open(t, d, func(c *gvisor.Config) { c.Sidecars = true })
	h := boot(t, p, spec("sidecars"))
	if exe, err := os.Readlink("/proc/" + strconv.Itoa(sentry(t, d, h.ID)) + "/exe"); err != nil || exe != program {
		t.Errorf("the sentry is %q, %v", exe, err)
	}
	remove(t, p, d, h)
	for _, n := range []string{"gvisor_sentry", "gvisor-sentry-prewarmer"} { // each is needed: so it is used
		if err := os.Remove(filepath.Join(d, "s", "gvisor-bin", n)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Create(t.Context(), spec("without")); fault.CodeOf(err) != fault.SandboxStartFailed || !strings.Contains(err.Error(), n) {
			t.Errorf("without %s: %v", n, err)
		}
		p = open(t, d, func(c *gvisor.Config) { c.Sidecars = true })
	}
}

// Without cgroups root still has sandboxes, and says that limits do not hold.
func TestNoCgroups(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	p := open(t, d, func(c *gvisor.Config) { c.NoCgroups = true })
	if c := p.Capabilities(); c.LimitMemory || c.LimitCPU || c.LimitProcesses || !c.LimitDisk || !c.Privileged {
		t.Errorf("capabilities %+v", c)
	}
	got, err := p.Probe(t.Context())
	if err != nil || !got.OK {
		t.Errorf("probe %+v, %v", got, err)
	}
}

// An OCI image is a root as well; this one has nothing in it but a file and a
// link, and places that the sandbox needs are added.
func TestImageRoot(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	for _, h := range []*tar.Header{
		{Name: "etc/os-release", Typeflag: tar.TypeReg, Mode: 0o644, Size: 9},
		{Name: "opt", Typeflag: tar.TypeSymlink, Linkname: "/data"},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = w.Write([]byte("ID=ours\n\n"))
		}
	}
	w.Close()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	l, err := layout.Write(filepath.Join(d, "l"), empty.Index)
	if err == nil {
		err = l.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, d, nil)
	s := spec("image")
	s.Root = sandbox.Root{Kind: "oci", Ref: "oci-layout:" + filepath.Join(d, "l")}
	h := boot(t, p, s)
	defer remove(t, p, d, h)
	if got, err := p.ReadFile(t.Context(), h, "/etc/os-release", 100); err != nil || string(got) != "ID=ours\n\n" {
		t.Errorf("os-release is %q, %v", got, err)
	}
	if err := p.WriteFile(t.Context(), h, "/etc/os-release", []byte("changed"), 0o644); err != nil {
		t.Error(err)
	}
	if exit, err := p.Exec(t.Context(), h, sandbox.Command{Args: []string{sandbox.PathDriver, "exit", "6"}}); err != nil || exit.Code != 6 {
		t.Errorf("Exec = %+v, %v", exit, err)
	}
	if exit, err := p.Exec(t.Context(), h, sandbox.Command{Args: []string{"/usr/bin/true"}}); err != nil || exit.Code != 127 {
		t.Errorf("the host's /usr is inside an image: %+v, %v", exit, err)
	}
	root, err := filepath.Glob(filepath.Join(d, "roots", "oci-*", "etc", "os-release"))
	if err != nil || len(root) != 1 {
		t.Fatalf("%v %v", root, err)
	}
	if got, _ := os.ReadFile(root[0]); string(got) != "ID=ours\n\n" {
		t.Errorf("the shared root's file is now %q", got)
	}
}

// Excluded paths of /usr are empty inside.
func TestExcluded(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shortDir(t)
	roots, err := rootfs.New(rootfs.Config{Dir: filepath.Join(d, "roots"), Exclude: []string{"/usr/share", "/usr/bin/env"}})
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, d, func(c *gvisor.Config) { c.Roots = roots })
	h := boot(t, p, spec("excluded"))
	defer remove(t, p, d, h)
	var out bytes.Buffer
	exit, err := p.Exec(t.Context(), h, sandbox.Command{Args: []string{"/bin/sh", "-c", "ls -A /usr/share; cat /usr/bin/env; ls /usr | head -1"}, Env: []string{"PATH=/usr/bin"}, Stdout: &out, Stderr: &out})
	if err != nil || exit.Code != 0 || out.String() != "bin\n" {
		t.Errorf("inside: %+v, %v, %q", exit, err, out.String())
	}
}
