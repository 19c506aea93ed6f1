package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

// Deadlines of a self-test: of the test itself, and of each of the two times at
// which what self-tests have left is removed.
const (
	probeDeadline = 30 * time.Second
	sweepDeadline = 20 * time.Second
)

// Probe is a provider's self-test: one order of steps for all, with what each has of its own.
type Probe struct {
	Name     string
	Provider sandbox.Provider
	Handle   func(id string) sandbox.Handle // of a sandbox of the provider
	StateDir string                         // what is shown to the sandbox is made here
	BoxesDir string                         // holds a folder for each sandbox, named by its id
	Now      func() time.Time
	Log      *slog.Logger

	Runtime    func(ctx context.Context) (build string, err error)
	Machine    sandbox.Check // what is known without asking; it is told as it stands
	Root       func(ctx context.Context) (digest string, err error)
	Spec       sandbox.Spec                                                // ID and DoorDir are filled in
	Interfaces func(ctx context.Context, h sandbox.Handle) ([]byte, error) // what /proc/net/dev says inside
	Tidy       func()                                                      // at the end, after all sandboxes of self-tests are gone; may be nil

	RuntimeIs, RuntimeRemedy string // said of a runtime that is there and of one that is not; %s is its build
	BootRemedy               string
	Process                  string // the name of the processes that a sandbox has
}

// Run boots a throw-away sandbox from the host root and looks around in it. Each
// check stands for itself; one that could not be made because an earlier one failed
// is left out. What killed processes have left of theirs is removed before, and once
// more at the end. The error is that of ctx.
func (x Probe) Run(ctx context.Context) (sandbox.Probe, error) {
	run := probeRun{Probe: x, id: probePrefix + Maker() + "-" + tail(), out: sandbox.Probe{OK: true, Provider: x.Name}}
	start := x.Now()
	if err := run.sweep(ctx, ""); err != nil {
		x.Log.Warn("remove what former self-tests have left; it is tried again at the end", "error", err)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, probeDeadline, errors.New("the self-test took too long"))
	defer cancel()
	made := run.steps(bounded)
	// A cancelled test cleans up as well.
	if err := run.sweep(context.WithoutCancel(ctx), run.id); err != nil || made {
		run.say("delete", err, "The sandbox was removed entirely.", "Look for processes named "+x.Process+" that hang.")
	}
	if x.Tidy != nil {
		x.Tidy()
	}
	run.out.Took = x.Now().Sub(start)
	return run.out, ctx.Err()
}

func tail() string {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// probeRun is one self-test at work.
type probeRun struct {
	Probe
	id  string
	out sandbox.Probe
}

func (x *probeRun) say(name string, err error, detail, remedy string) bool {
	c := sandbox.Check{Name: name, OK: err == nil, Detail: detail}
	if err != nil {
		c.Detail = fault.From(err).Sentence()
		if fault.CodeOf(err) == fault.InternalError {
			c.Detail = err.Error()
		}
		c.Detail += " " + remedy
		x.out.OK = false
	}
	x.out.Checks = append(x.out.Checks, c)
	return c.OK
}

// steps tells whether a sandbox was made.
func (x *probeRun) steps(ctx context.Context) bool {
	const ours = "Check the state folder's disk and permissions."
	build, err := x.Runtime(ctx)
	x.out.Build = build
	if !x.say("runtime", err, fmt.Sprintf(x.RuntimeIs, build), x.RuntimeRemedy) {
		return false
	}
	x.out.Checks = append(x.out.Checks, x.Machine)
	digest, err := x.Root(ctx)
	if !x.say("root", err, "The host root "+digest+" is ready.", ours) {
		return false
	}
	doors := filepath.Join(x.StateDir, x.id)
	canary := filepath.Join(doors, "canary")
	if err := NewFolder(doors, 0o755, filepath.Base(canary), []byte(x.id), 0o644); err != nil {
		return x.say("boot", err, "", ours)
	}
	s := x.Spec
	s.ID, s.DoorDir = x.id, doors
	h, err := x.Provider.Create(ctx, s)
	made := err == nil
	if made {
		err = x.Provider.Start(ctx, h)
	}
	if x.say("boot", err, "A sandbox was started.", x.BootRemedy) {
		x.say("canary", x.canary(ctx, h, canary), "A file shown to the sandbox is the one seen inside, and its folder on the host is not seen.", "Do not use this machine: what is shown inside is not what was asked for.")
		x.say("network", x.network(ctx, h), "Only the loopback interface is inside.", "Do not use this machine: the sandbox is not cut off.")
	}
	return made
}

func (x *probeRun) canary(ctx context.Context, h sandbox.Handle, host string) error {
	got, err := x.Provider.ReadFile(ctx, h, sandbox.PathDoors+"/"+filepath.Base(host), 1<<10)
	if err != nil {
		return err
	}
	if string(got) != x.id {
		return errors.New("the file shown inside is another one")
	}
	if _, err := x.Provider.ReadFile(ctx, h, host, 1<<10); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the host's path %s is seen inside: %w", host, errors.Join(err, errSeen))
	}
	return nil
}

// errSeen stands for a file that should not be there and could be read.
var errSeen = errors.New("it should not be there")

func (x *probeRun) network(ctx context.Context, h sandbox.Handle) error {
	data, err := x.Interfaces(ctx, h)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		name, _, ok := strings.Cut(string(line), ":")
		if name = strings.TrimSpace(name); ok && name != "lo" {
			return fmt.Errorf("the network interface %s is inside", name)
		}
	}
	return nil
}

// sweep removes what self-tests of killed processes have left, and the one with the
// id own. What cannot be removed at once is tried again: a process may be at its end
// still. Names alone tell whose something is, so that nothing damaged hides it.
func (x *probeRun) sweep(ctx context.Context, own string) error {
	ctx, cancel := context.WithTimeout(ctx, sweepDeadline)
	defer cancel()
	for {
		err := x.sweepOnce(ctx, own)
		if err == nil || Wait(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

func (x *probeRun) sweepOnce(ctx context.Context, own string) error {
	errs := []error{SweepParts(x.BoxesDir), SweepParts(x.StateDir)}
	boxes, err := os.ReadDir(x.BoxesDir)
	errs = append(errs, err)
	for _, n := range boxes {
		if abandoned(n.Name(), own) {
			errs = append(errs, x.Provider.Delete(ctx, x.Handle(n.Name())))
		}
	}
	folders, err := os.ReadDir(x.StateDir)
	errs = append(errs, err)
	for _, n := range folders {
		if abandoned(n.Name(), own) {
			errs = append(errs, RemoveFolder(filepath.Join(x.StateDir, n.Name())))
		}
	}
	return errors.Join(errs...)
}

// probePrefix begins the names of what a self-test makes; the maker follows, and a tail.
const probePrefix = "probe-"

func abandoned(name, own string) bool {
	rest, ok := strings.CutPrefix(name, probePrefix)
	if !ok || strings.Contains(name, partMark) {
		return false
	}
	if name == own {
		return true
	}
	if i := strings.LastIndexByte(rest, '-'); i >= 0 {
		rest = rest[:i]
	}
	return !MakerAlive(rest)
}
