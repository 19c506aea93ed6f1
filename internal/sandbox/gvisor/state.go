package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// Get tells the state from the record, the runtime's state file and the process
// itself. It asks the sentry nothing, so that one that hangs cannot hold it up.
func (p *Provider) Get(ctx context.Context, h sandbox.Handle) (sandbox.Info, error) {
	unknown := sandbox.Info{Handle: h, State: sandbox.Unknown}
	if err := p.check(h); err != nil {
		if fault.CodeOf(err) == fault.SandboxNotFound {
			return sandbox.Info{Handle: h, State: sandbox.Absent}, nil
		}
		return unknown, err
	}
	if err := ctx.Err(); err != nil {
		return unknown, err
	}
	info, err := p.info(ctx, p.box(h.ID))
	if err != nil {
		return unknown, fault.Wrap(err, fault.SandboxUnreachable, "The state of sandbox %s could not be read.", h.ID)
	}
	return info, nil
}

// List returns the sandboxes of the state folder that bear all the labels.
func (p *Provider) List(ctx context.Context, labels map[string]string) ([]sandbox.Info, error) {
	names, err := os.ReadDir(p.boxesDir())
	if err != nil {
		return nil, fault.Wrap(err, fault.SandboxUnreachable, "The sandboxes' folder could not be read.")
	}
	var out []sandbox.Info
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !local.IDOK(n.Name()) {
			continue
		}
		info, err := p.info(ctx, p.box(n.Name()))
		if err != nil {
			return nil, fault.Wrap(err, fault.SandboxUnreachable, "The state of sandbox %s could not be read.", n.Name())
		}
		if info.State != sandbox.Absent && local.Bears(info.Labels, labels) {
			out = append(out, info)
		}
	}
	return out, nil
}

func (p *Provider) info(ctx context.Context, b box) (sandbox.Info, error) {
	info := sandbox.Info{Handle: p.handle(b.id)}
	r, err := b.load()
	switch {
	case absent(err):
		if _, err := os.Lstat(b.dir); absent(err) {
			info.State = sandbox.Absent
			return info, nil
		} else if err != nil {
			return info, err
		}
		info.State, info.Exit = sandbox.Stopped, "it was never completed"
		return info, nil
	case err != nil:
		return info, err
	}
	info.Labels, info.Created = r.Labels, r.Created
	for attempt := 0; ; attempt++ {
		info.State, err = p.state(b, r)
		if err == nil || attempt == 10 {
			break
		}
		if err := local.Wait(ctx, 10*time.Millisecond); err != nil {
			return info, err
		}
	}
	if info.State == sandbox.Stopped {
		info.Exit = p.exit(b, r)
	}
	return info, err
}

// state joins the process and the runtime's state file. The file is written in
// place, so it can be read half written: then there is an error, and a later try succeeds.
func (p *Provider) state(b box, r record) (sandbox.State, error) {
	if r.Process.PID == 0 { // made by a process that was killed in the middle, or is at it now
		if len(p.ours(b)) > 0 {
			return sandbox.Created, nil
		}
		return sandbox.Stopped, nil
	}
	if !r.Process.Alive() {
		return sandbox.Stopped, nil
	}
	data, err := os.ReadFile(p.stateFile(b))
	if absent(err) {
		return sandbox.Stopped, nil
	}
	if err != nil {
		return sandbox.Unknown, err
	}
	var st struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return sandbox.Unknown, fmt.Errorf("read the runtime's state: %w", err)
	}
	switch st.Status {
	case "creating", "created":
		return sandbox.Created, nil
	case "running":
		return sandbox.Running, nil
	case "paused":
		return sandbox.Paused, nil
	case "stopped":
		return sandbox.Stopped, nil
	}
	return sandbox.Unknown, fmt.Errorf("the runtime's state is %q", st.Status)
}

func (p *Provider) stateFile(b box) string { return p.runtimeFiles(b.runtimeID())[0] }

// exitMark begins the line that package runsc writes to the sentry's stderr
// when pid 1 has ended: its wait status as wait(2) gives it.
const exitMark = "hearth-exit: "

// exit says how a stopped sandbox ended, as far as its files tell.
func (p *Provider) exit(b box, r record) string {
	hits := p.cgroups.hit(r.Cgroup)
	log := tail(b.panicLog())
	var how string
	if i := strings.LastIndex(log, exitMark); i >= 0 {
		line, _, _ := strings.Cut(log[i+len(exitMark):], "\n")
		if n, err := strconv.ParseUint(strings.TrimSpace(line), 10, 32); err == nil {
			how = describe(unix.WaitStatus(n))
		}
	} else if line := panicLine(log); line != "" {
		how = "the sandbox runtime ended: " + line
	} else if r.Process.PID > 0 && r.Process.BootID != local.BootID() {
		how = "the machine was started again"
	} else {
		how = "the sandbox was killed"
	}
	return strings.Join(append(hits, how), "; ")
}

func describe(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return "pid 1 was ended by " + unix.SignalName(ws.Signal())
	}
	return fmt.Sprintf("pid 1 ended with exit status %d", ws.ExitStatus())
}

func panicLine(log string) string {
	for line := range bytes.Lines([]byte(log)) {
		s := strings.TrimSpace(string(line))
		if strings.HasPrefix(s, "panic:") || strings.HasPrefix(s, "fatal error:") || strings.HasPrefix(s, "FATAL ERROR:") {
			return s[:min(len(s), 300)]
		}
	}
	return ""
}
