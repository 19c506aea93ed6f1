package bubblewrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// Probe boots a throw-away sandbox from the host root and looks around in it, see
// [local.Probe.Run].
func (p *Provider) Probe(ctx context.Context) (sandbox.Probe, error) {
	return local.Probe{
		Name:     Name,
		Provider: p,
		Handle:   p.handle,
		StateDir: p.cfg.StateDir,
		BoxesDir: p.boxesDir(),
		Now:      p.now,
		Log:      p.log,
		Runtime: func(ctx context.Context) (string, error) {
			version, err := exec.CommandContext(ctx, p.bwrap, "--version").Output()
			return strings.TrimSpace(string(version)), err
		},
		Machine: sandbox.Check{Name: "isolation", OK: true, Detail: "Namespaces only: the agent shares the host's kernel. Use this for trusted code."},
		Root: func(ctx context.Context) (string, error) {
			root, err := p.cfg.Roots.Host(ctx)
			return root.Digest, err
		},
		Spec:          sandbox.Spec{Root: sandbox.Root{Kind: "host"}, Command: []string{"/usr/bin/sleep", "3600"}},
		Interfaces:    p.interfaces,
		RuntimeIs:     "%s is installed.",
		RuntimeRemedy: "Install the package bubblewrap.",
		BootRemedy:    "The kernel must let ordinary users make user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor), and others must be able to pass through the state folder's parents.",
		Process:       "bwrap",
	}.Run(ctx)
}

func (p *Provider) interfaces(ctx context.Context, h sandbox.Handle) ([]byte, error) {
	var data bytes.Buffer
	exit, err := p.Exec(ctx, h, sandbox.Command{Args: []string{"/usr/bin/cat", "/proc/net/dev"}, Stdout: &data})
	if err != nil || exit.Code != 0 {
		return nil, errors.Join(err, fmt.Errorf("read the interfaces: exit status %d", exit.Code))
	}
	return data.Bytes(), nil
}
