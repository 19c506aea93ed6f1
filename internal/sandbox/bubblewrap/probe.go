package bubblewrap

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

const probeDeadline = 30 * time.Second

// Probe boots a throw-away sandbox from the host root and looks around in it.
func (p *Provider) Probe(ctx context.Context) (sandbox.Probe, error) {
	start := p.now()
	bounded, cancel := context.WithTimeout(ctx, probeDeadline)
	defer cancel()
	out := sandbox.Probe{OK: true, Provider: Name}
	say := func(name string, err error, detail, remedy string) bool {
		c := sandbox.Check{Name: name, OK: err == nil, Detail: detail}
		if err != nil {
			c.Detail = fault.From(err).Sentence()
			if fault.CodeOf(err) == fault.InternalError {
				c.Detail = err.Error()
			}
			c.Detail += " " + remedy
			out.OK = false
		}
		out.Checks = append(out.Checks, c)
		return c.OK
	}
	p.probe(bounded, say, &out)
	out.Took = p.now().Sub(start)
	return out, ctx.Err()
}

func (p *Provider) probe(ctx context.Context, say func(name string, err error, detail, remedy string) bool, out *sandbox.Probe) {
	p.sweepProbes(ctx)
	// And once more at the end: what a killed process had started may have been in the middle of being made.
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeDeadline)
		defer cancel()
		p.sweepProbes(clean)
	}()
	version, err := exec.CommandContext(ctx, p.bwrap, "--version").Output()
	out.Build = strings.TrimSpace(string(version))
	if !say("runtime", err, out.Build+" is installed.", "Install the package bubblewrap.") {
		return
	}
	say("isolation", nil, "Namespaces only: the agent shares the host's kernel. Use this for trusted code.", "")
	root, err := p.cfg.Roots.Host(ctx)
	if !say("root", err, "The host root "+root.Digest+" is ready.", "Check the state folder's disk and permissions.") {
		return
	}
	var tail [6]byte
	_, _ = rand.Read(tail[:])
	id := "probe-" + hex.EncodeToString(tail[:])
	doors, err := local.ProbeFolder(p.cfg.StateDir)
	if err == nil {
		defer func() { _ = os.RemoveAll(doors) }() // the next probe removes it as well
		err = errors.Join(os.Chmod(doors, 0o755), os.WriteFile(filepath.Join(doors, "canary"), []byte(id), 0o644))
	}
	var h sandbox.Handle
	if err == nil {
		h, err = p.Create(ctx, sandbox.Spec{
			ID: id, Labels: map[string]string{probeLabel: local.Maker()}, Root: sandbox.Root{Kind: "host"}, DoorDir: doors,
			Command: []string{"/usr/bin/sleep", "3600"},
		})
	}
	if err == nil {
		defer func() {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeDeadline)
			defer cancel()
			say("delete", p.Delete(clean, h), "The sandbox was removed entirely.", "Look for processes named bwrap that hang.")
		}()
		err = p.Start(ctx, h)
	}
	if !say("boot", err, "A sandbox was started.", "The kernel must let ordinary users make user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor), and others must be able to pass through the state folder's parents.") {
		return
	}
	say("canary", p.probeCanary(ctx, h, id, filepath.Join(doors, "canary")), "A file shown to the sandbox is the one seen inside, and its folder on the host is not seen.", "Do not use this machine: what is shown inside is not what was asked for.")
	say("network", p.probeNetwork(ctx, h), "Only the loopback interface is inside.", "Do not use this machine: the sandbox is not cut off.")
}

// probeLabel bears who made a sandbox for a self-test.
const probeLabel = "probe"

// sweepProbes deletes what self-tests of killed processes have left.
func (p *Provider) sweepProbes(ctx context.Context) {
	infos, err := p.List(ctx, nil)
	if err != nil {
		p.log.Warn("look for sandboxes of former self-tests", "error", err)
	}
	for _, i := range infos {
		if maker, ok := i.Labels[probeLabel]; ok && !local.MakerAlive(maker) {
			if err := p.Delete(ctx, i.Handle); err != nil {
				p.log.Warn("delete the sandbox of a former self-test", "sandbox", i.Handle.ID, "error", err)
			}
		}
	}
}

func (p *Provider) probeCanary(ctx context.Context, h sandbox.Handle, want, host string) error {
	got, err := p.ReadFile(ctx, h, sandbox.PathDoors+"/canary", 1<<10)
	if err != nil {
		return err
	}
	if string(got) != want {
		return errors.New("the file shown inside is another one")
	}
	if _, err := p.ReadFile(ctx, h, host, 1<<10); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the host's path %s is seen inside: %w", host, errors.Join(err, errSeen))
	}
	return nil
}

func (p *Provider) probeNetwork(ctx context.Context, h sandbox.Handle) error {
	var data bytes.Buffer
	if exit, err := p.Exec(ctx, h, sandbox.Command{Args: []string{"/usr/bin/cat", "/proc/net/dev"}, Stdout: &data}); err != nil || exit.Code != 0 {
		return errors.Join(err, fmt.Errorf("read the interfaces: exit status %d", exit.Code))
	}
	for line := range bytes.Lines(data.Bytes()) {
		name, _, ok := strings.Cut(string(line), ":")
		if name = strings.TrimSpace(name); ok && name != "lo" {
			return fmt.Errorf("the network interface %s is inside", name)
		}
	}
	return nil
}

// errSeen stands for a file that should not be there and could be read.
var errSeen = errors.New("it should not be there")
