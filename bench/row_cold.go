package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/gvisor"
)

// boxes makes sandboxes at the provider, without a server.
type boxes struct {
	b    *bench
	p    *gvisor.Provider
	dir  string
	made int
}

func (b *bench) newBoxes() (*boxes, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	x := &boxes{b: b, dir: dir}
	if err := os.Mkdir(filepath.Join(dir, "doors"), 0o755); err != nil { //nolint:gosec // shown in sandboxes
		return nil, err
	}
	x.p, err = b.provider(filepath.Join(dir, "g"), filepath.Join(dir, "roots"))
	return x, err
}

// spec is a sandbox whose pid 1 only waits.
func (x *boxes) spec() sandbox.Spec {
	x.made++
	return sandbox.Spec{
		ID: fmt.Sprintf("bench-%d-%d", os.Getpid(), x.made), Labels: map[string]string{"bench": "1"}, Root: sandbox.Root{Kind: "host"},
		DoorDir: filepath.Join(x.dir, "doors"), Command: []string{"/usr/bin/sleep", "infinity"}, Hostname: "bench", Env: guestEnv,
	}
}

var guestEnv = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + sandbox.PathHome, "LANG=C.UTF-8"}

// running makes and starts one.
func (x *boxes) running(ctx context.Context) (sandbox.Handle, error) {
	h, err := x.p.Create(ctx, x.spec())
	if err == nil {
		err = x.p.Start(ctx, h)
	}
	return h, err
}

// close deletes every sandbox; cause is the row's own error.
func (x *boxes) close(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, err := sweep(ctx, x.p)
	if left := family(x.dir + "/"); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("processes %v were left", left))
	}
	return errors.Join(cause, err, os.RemoveAll(x.dir))
}

// coldStart measures create, start and the first command's exit status, against
// the same calls of the runtime with the same bundle and flags.
func coldStart(ctx context.Context, b *bench) ([]metric, error) {
	x, err := b.newBoxes()
	if err != nil {
		return nil, err
	}
	out, err := x.coldStart(ctx)
	return out, x.close(ctx, err)
}

func (x *boxes) coldStart(ctx context.Context) (out []metric, err error) {
	f, err := x.newRuntime(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	per := x.b.small(5, 2)
	// The first of each side pays for page cache and roots; it is not counted.
	for _, warm := range []func(context.Context) (float64, error){x.cold, f.cold} {
		if _, err := warm(ctx); err != nil {
			return nil, err
		}
	}
	repeat := func(one func(context.Context) (float64, error)) side {
		return func(ctx context.Context, _ int) (sample, error) {
			s := sample{}
			for range per {
				v, err := one(ctx)
				if err != nil {
					return nil, err
				}
				s.add("cold", v)
			}
			return s, nil
		}
	}
	s, fl, err := x.b.alternate(ctx, repeat(x.cold), repeat(f.cold))
	if err != nil {
		return nil, err
	}
	return []metric{{
		What: "create, start, exec /bin/true at the provider", Unit: unitMS, Quantile: median, Measured: s["cold"], Floor: fl["cold"],
		FloorIs: "runsc create, start, exec with the same bundle and flags", Compare: ofDifference, Target: 150, TargetOf: ofDifference,
	}}, nil
}

var trueCommand = sandbox.Command{Args: []string{"/usr/bin/true"}, Env: guestEnv}

func (x *boxes) cold(ctx context.Context) (took float64, err error) {
	var h sandbox.Handle
	took, err = timed(func() error {
		if h, err = x.running(ctx); err != nil {
			return err
		}
		exit, err := x.p.Exec(ctx, h, trueCommand)
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("true ended with %d %s", exit.Code, exit.Signal)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return took, x.p.Delete(ctx, h)
}

// runtimeFloor calls the runtime in the shipped binary by hand.
type runtimeFloor struct {
	b      *bench
	dir    string
	flags  []string
	bundle map[string]any
	group  string // cgroup above those of its sandboxes; empty: without
	made   int
}

// newRuntime takes the bundle of one of the provider's own sandboxes.
func (x *boxes) newRuntime(ctx context.Context) (*runtimeFloor, error) {
	f := &runtimeFloor{b: x.b, dir: filepath.Join(x.dir, "f")}
	spec := x.spec()
	h, err := x.p.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(x.dir, "g", "b", spec.ID, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the sandbox's bundle: %w", err)
	}
	hosts, err := os.ReadFile(filepath.Join(x.dir, "g", "b", spec.ID, "hosts"))
	if err != nil {
		return nil, fmt.Errorf("read the sandbox's bundle: %w", err)
	}
	if err := x.p.Delete(ctx, h); err != nil {
		return nil, err
	}
	for _, d := range []string{"r", "u"} {
		if err := os.MkdirAll(filepath.Join(f.dir, d), 0o755); err != nil { //nolint:gosec // as the provider's
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(f.dir, "hosts"), hosts, 0o644); err != nil { //nolint:gosec // shown in sandboxes
		return nil, err
	}
	raw = []byte(strings.ReplaceAll(string(raw), filepath.Join(x.dir, "g", "b", spec.ID, "hosts"), filepath.Join(f.dir, "hosts")))
	if err := json.Unmarshal(raw, &f.bundle); err != nil {
		return nil, fmt.Errorf("read the sandbox's bundle: %w", err)
	}
	f.flags = []string{"--root=" + filepath.Join(f.dir, "r"), "--platform=systrap", "--network=none", "--host-uds=open"}
	linux, ok := f.bundle["linux"].(map[string]any)
	if !ok {
		return nil, errors.New("the sandbox's bundle has no section for Linux")
	}
	if _, ok := linux["cgroupsPath"]; ok {
		f.group = fmt.Sprintf("hearth-bench-%d", os.Getpid())
	} else {
		f.flags = append(f.flags, "--ignore-cgroups")
	}
	return f, nil
}

func (f *runtimeFloor) cold(ctx context.Context) (took float64, err error) {
	f.made++
	id := fmt.Sprintf("floor%d", f.made)
	dir := filepath.Join(f.dir, id)
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as the provider's
		return 0, err
	}
	if f.group != "" {
		f.bundle["linux"].(map[string]any)["cgroupsPath"] = "/" + f.group + "/" + id
	}
	raw, err := json.Marshal(f.bundle)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		return 0, err
	}
	log := []string{"--log=" + filepath.Join(dir, "runsc.log"), "--panic-log=" + filepath.Join(dir, "sentry.log")}
	overlay := fmt.Sprintf("--overlay2=root:dir=%s,size=%d", filepath.Join(f.dir, "u"), 10<<30)
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, f.call(clean, log, "delete", "--force", id), os.RemoveAll(dir))
	}()
	return timed(func() error {
		if err := f.call(ctx, log, overlay, "create", "--bundle="+dir, "--pid-file="+filepath.Join(dir, "pid"), id); err != nil {
			return err
		}
		if err := f.call(ctx, log, overlay, "start", id); err != nil {
			return err
		}
		return f.call(ctx, log, "exec", id, trueCommand.Args[0])
	})
}

func (f *runtimeFloor) call(ctx context.Context, log []string, args ...string) error {
	cmd := exec.CommandContext(ctx, f.b.program) //nolint:gosec // the binary under test
	cmd.Args = append(append(append([]string{"runsc"}, f.flags...), log...), args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GVISOR_SIDECAR_BINARIES_DIR=" + filepath.Join(f.dir, "none")}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(strings.TrimPrefix(log[0], "--log=")) // may not be there
		return fmt.Errorf("runsc %v: %w: %s", args, err, said[max(0, len(said)-500):])
	}
	return nil
}

// close takes away what the sandboxes shared.
func (f *runtimeFloor) close() error {
	pin := filepath.Join(f.dir, "r", "null-netns")
	for range 64 { // one may lie on another
		if err := unix.Unmount(pin, unix.MNT_DETACH); err != nil {
			break
		}
	}
	if f.group == "" {
		return nil
	}
	dirs := groups(func(name string) bool { return name == f.group })
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the floor's cgroup: %w", err)
		}
	}
	return nil
}
