package sandboxtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

func (s *suite) lifecycle(t *testing.T) {
	spec := s.spec(t)
	conns := listen(t, spec.DoorDir)
	before := time.Now().Add(-time.Second)
	h := s.create(t, spec)
	if h.ID != spec.ID || h.Provider == "" || h.Host == "" || h.Version == 0 {
		t.Errorf("the handle is %+v", h)
	}
	info := s.state(t, h)
	if info.State != sandbox.Created {
		t.Errorf("after Create the state is %q", info.State)
	}
	if diff := cmp.Diff(spec.Labels, info.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if info.Created.Before(before) || info.Created.After(time.Now().Add(time.Second)) {
		t.Errorf("created at %v", info.Created)
	}
	select {
	case <-conns:
		t.Error("pid 1 ran before Start")
	default:
	}
	s.start(t, h)
	if got := s.state(t, h).State; got != sandbox.Running {
		t.Errorf("after Start the state is %q", got)
	}
	select {
	case c := <-conns:
		c.Close()
	case <-time.After(20 * time.Second):
		t.Error("pid 1 did not dial")
	}
}

func (s *suite) startTwice(t *testing.T) {
	_, h := s.running(t)
	if err := s.p.Start(t.Context(), h); fault.CodeOf(err) != fault.SandboxStartFailed {
		t.Errorf("the second Start = %v", err)
	}
	if got := s.state(t, h).State; got != sandbox.Running {
		t.Errorf("then the state is %q", got)
	}
}

func (s *suite) sameID(t *testing.T) {
	spec, h := s.running(t)
	if _, err := s.p.Create(t.Context(), spec); fault.CodeOf(err) != fault.SandboxStartFailed {
		t.Errorf("a second Create of the same id = %v", err)
	}
	if got := s.state(t, h).State; got != sandbox.Running {
		t.Errorf("then the first one is %q", got)
	}
}

// pid1Ends: a sandbox whose pid 1 has ended is Stopped and says how.
func (s *suite) pid1Ends(t *testing.T) {
	spec := s.spec(t)
	conns := listen(t, spec.DoorDir)
	h := s.create(t, spec)
	s.start(t, h)
	c := <-conns
	defer c.Close()
	fmt.Fprintln(c, "exit 7")
	eventually(t, "the sandbox is stopped", func() bool { return s.state(t, h).State == sandbox.Stopped })
	var exit string
	eventually(t, "the exit is known", func() bool {
		exit = s.state(t, h).Exit
		return strings.Contains(exit, "exit status 7")
	})
	if _, err := s.p.Exec(t.Context(), h, sandbox.Command{Args: []string{sandbox.PathDriver, "exit", "0"}}); fault.CodeOf(err) != fault.SandboxNotFound {
		t.Errorf("Exec in a stopped sandbox = %v", err)
	}
}

func (s *suite) unknown(t *testing.T) {
	_, h := s.running(t)
	h.ID = newID()
	if info := s.state(t, h); info.State != sandbox.Absent {
		t.Errorf("an unknown handle is %q", info.State)
	}
	if err := s.p.Delete(t.Context(), h); err != nil {
		t.Errorf("Delete of an unknown handle = %v", err)
	}
	if err := s.p.Start(t.Context(), h); fault.CodeOf(err) != fault.SandboxNotFound {
		t.Errorf("Start of an unknown handle = %v", err)
	}
	if _, err := s.p.Exec(t.Context(), h, sandbox.Command{Args: []string{"/x"}}); fault.CodeOf(err) != fault.SandboxNotFound {
		t.Errorf("Exec of an unknown handle = %v", err)
	}
	h.Host = "another-machine"
	if info, err := s.p.Get(t.Context(), h); fault.CodeOf(err) != fault.SandboxForeign || info.State != sandbox.Unknown {
		t.Errorf("Get of another machine's handle = %q, %v", info.State, err)
	}
	if err := s.p.Delete(t.Context(), h); fault.CodeOf(err) != fault.SandboxForeign {
		t.Errorf("Delete of another machine's handle = %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if info, err := s.p.Get(gone, h); err == nil || info.State != sandbox.Unknown {
		t.Errorf("Get with an ended context = %q, %v", info.State, err)
	}
}

func (s *suite) refused(t *testing.T) {
	for _, c := range []struct {
		name string
		code fault.Code
		make func(*sandbox.Spec)
	}{
		{"empty id", fault.InvalidInput, func(p *sandbox.Spec) { p.ID = "" }},
		{"path as id", fault.InvalidInput, func(p *sandbox.Spec) { p.ID = "../x" }},
		{"long id", fault.InvalidInput, func(p *sandbox.Spec) { p.ID = strings.Repeat("a", 49) }},
		{"flag as id", fault.InvalidInput, func(p *sandbox.Spec) { p.ID = "-x" }},
		{"bad label", fault.InvalidInput, func(p *sandbox.Spec) { p.Labels = map[string]string{"a": "b c"} }},
		{"no command", fault.InvalidInput, func(p *sandbox.Spec) { p.Command = nil }},
		{"relative command", fault.InvalidInput, func(p *sandbox.Spec) { p.Command = []string{"driver"} }},
		{"bad environment", fault.InvalidInput, func(p *sandbox.Spec) { p.Env = []string{"NOVALUE"} }},
		{"bad host", fault.InvalidInput, func(p *sandbox.Spec) { p.Hosts = []string{"a\n1.2.3.4 b"} }},
		{"relative bind", fault.InvalidInput, func(p *sandbox.Spec) { p.Binds = []sandbox.Bind{{Source: "x", Target: "/x"}} }},
		{"bind over the root", fault.InvalidInput, func(p *sandbox.Spec) { p.Binds = []sandbox.Bind{{Source: "/usr", Target: "/"}} }},
		{"bind up", fault.InvalidInput, func(p *sandbox.Spec) { p.Binds = []sandbox.Bind{{Source: "/usr", Target: "/a/../../b"}} }},
		{"missing bind", fault.SandboxStartFailed, func(p *sandbox.Spec) { p.Binds = []sandbox.Bind{{Source: "/is/not/there", Target: "/x"}} }},
		{"unknown root", fault.RootInvalid, func(p *sandbox.Spec) { p.Root = sandbox.Root{Kind: "moon"} }},
		{"missing image", fault.RootInvalid, func(p *sandbox.Spec) { p.Root = sandbox.Root{Kind: "oci", Ref: "oci-layout:/is/not/there"} }},
	} {
		spec := s.spec(t)
		id := spec.ID
		c.make(&spec)
		_, err := s.p.Create(t.Context(), spec)
		if got := fault.CodeOf(err); got != c.code {
			t.Errorf("%s: Create = %v, want %s", c.name, err, c.code)
		}
		if left := s.left(id); len(left) > 0 {
			t.Errorf("%s: there are left %q", c.name, left)
		}
	}
}

func (s *suite) labels(t *testing.T) {
	group := newID()
	ids := map[string]bool{}
	for i := range 2 {
		spec := s.spec(t)
		spec.Labels = map[string]string{"group": group, "number": fmt.Sprint(i)}
		s.create(t, spec)
		ids[spec.ID] = true
	}
	for _, c := range []struct {
		want   int
		labels map[string]string
	}{
		{2, map[string]string{"group": group}},
		{1, map[string]string{"group": group, "number": "1"}},
		{0, map[string]string{"group": group, "number": "2"}},
		{0, map[string]string{"group": group, "other": ""}},
	} {
		list, err := s.p.List(t.Context(), c.labels)
		if err != nil || len(list) != c.want {
			t.Errorf("List(%v) = %v, %v; want %d", c.labels, list, err, c.want)
		}
		for _, i := range list {
			if !ids[i.Handle.ID] || i.State != sandbox.Created || i.Labels["group"] != group {
				t.Errorf("List(%v) has %+v", c.labels, i)
			}
		}
	}
}

// reattach: another instance, as after a server's restart, finds the sandbox
// by its handle alone, and the sandbox has noticed nothing.
func (s *suite) reattach(t *testing.T) {
	spec := s.spec(t)
	conns := listen(t, spec.DoorDir)
	h := s.create(t, spec)
	other := s.env.Reopen(t)
	if err := other.Start(t.Context(), h); err != nil {
		t.Fatalf("Start by the second instance: %v", err)
	}
	c := <-conns
	defer c.Close()
	third := s.env.Reopen(t)
	info, err := third.Get(t.Context(), h)
	if err != nil || info.State != sandbox.Running || info.Labels["suite"] != spec.ID {
		t.Errorf("Get by a third instance = %+v, %v", info, err)
	}
	list, err := third.List(t.Context(), map[string]string{"suite": spec.ID})
	if err != nil || len(list) != 1 {
		t.Errorf("List by a third instance = %v, %v", list, err)
	}
	exit, err := third.Exec(t.Context(), h, sandbox.Command{Args: []string{sandbox.PathDriver, "exit", "5"}})
	if err != nil || exit.Code != 5 {
		t.Errorf("Exec by a third instance = %+v, %v", exit, err)
	}
	fmt.Fprintln(c, "still there")
	r := bufio.NewReader(c)
	_, _ = r.ReadString('\n') // the greeting
	if line, err := r.ReadString('\n'); err != nil || line != "echo still there\n" {
		t.Errorf("pid 1 said %q, %v", line, err)
	}
	if err := third.Delete(t.Context(), h); err != nil {
		t.Errorf("Delete by a third instance: %v", err)
	}
}

// Serve is the other side of Env.Server: it makes and starts the sandbox that
// stdin describes as JSON, writes its handle to stdout and waits to be killed.
func Serve(ctx context.Context, p sandbox.Provider) error {
	var spec sandbox.Spec
	if err := json.NewDecoder(os.Stdin).Decode(&spec); err != nil {
		return err
	}
	h, err := p.Create(ctx, spec)
	if err == nil {
		err = p.Start(ctx, h)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(h)
	}
	if err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// serverKilled: the sandbox of a server that is killed, with all of its process
// group, goes on, and another server has it.
func (s *suite) serverKilled(t *testing.T) {
	spec := s.spec(t)
	conns := listen(t, spec.DoorDir)
	in, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.env.Server()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.Stdin = bytes.NewReader(in)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var h sandbox.Handle
	err = json.NewDecoder(out).Decode(&h)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
	if err != nil {
		t.Fatalf("the other server said: %v, %s", err, errs.String())
	}
	t.Cleanup(func() { s.delete(t, h) })
	c := <-conns
	defer c.Close()
	fmt.Fprintln(c, "still there")
	r := bufio.NewReader(c)
	_, _ = r.ReadString('\n') // the greeting
	if line, err := r.ReadString('\n'); err != nil || line != "echo still there\n" {
		t.Errorf("pid 1 said %q, %v", line, err)
	}
	if got := s.state(t, h).State; got != sandbox.Running {
		t.Errorf("the state is %q", got)
	}
	if r := s.run(t, h, "exit", "9"); r.exit.Code != 9 {
		t.Errorf("Exec = %+v", r)
	}
}

// deleteEndsAll: also what pid 1 has started in other sessions ends.
func (s *suite) deleteEndsAll(t *testing.T) {
	_, h := s.running(t)
	s.run(t, h, "hold")
	s.run(t, h, "fork", "5")
	for range 2 {
		if err := s.p.Delete(t.Context(), h); err != nil {
			t.Errorf("Delete = %v", err)
		}
		if left := s.left(h.ID); len(left) > 0 {
			t.Errorf("there are left %q", left)
		}
	}
}

func (s *suite) deleteUnstarted(t *testing.T) {
	h := s.create(t, s.spec(t))
	s.delete(t, h)
}

// concurrent: creates, starts and deletes beside each other, two deletes of the
// same sandbox among them.
func (s *suite) concurrent(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		spec := s.spec(t)
		wg.Go(func() {
			h, err := s.p.Create(t.Context(), spec)
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			if err := s.p.Start(t.Context(), h); err != nil {
				t.Errorf("Start: %v", err)
			}
			if exit, err := s.p.Exec(t.Context(), h, sandbox.Command{Args: []string{sandbox.PathDriver, "exit", "3"}}); err != nil || exit.Code != 3 {
				t.Errorf("Exec = %+v, %v", exit, err)
			}
			var twice sync.WaitGroup
			for range 2 {
				twice.Go(func() { s.delete(t, h) })
			}
			twice.Wait()
		})
	}
	wg.Wait()
}

func (s *suite) probe(t *testing.T) {
	start := time.Now()
	got, err := s.p.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !got.OK {
		t.Errorf("the probe found: %+v", got.Checks)
	}
	if got.Provider == "" || got.Build == "" || len(got.Checks) < 3 || got.Took <= 0 || time.Since(start) > 40*time.Second {
		t.Errorf("the probe is %+v", got)
	}
	for _, c := range got.Checks {
		if c.Name == "" || c.Detail == "" {
			t.Errorf("a check without name or detail: %+v", c)
		}
	}
}
