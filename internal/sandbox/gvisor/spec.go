package gvisor

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
	"github.com/hearthd/hearth/internal/sandbox/rootfs"
)

// guestCapabilities are those of root inside: enough to install software and
// change identities, nothing that concerns networks, modules or devices.
var guestCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// The kernel counts tasks of the host: about three for each of the guest's
// processes, and the runtime's own threads. Where these run out the guest's fork
// fails, and with a very low limit the sandbox ends as a whole.
const (
	tasksPerProcess = 3
	ownTasks        = 256
	hostTasksMin    = 1000
)

// bundle writes the runtime's configuration of a sandbox into its folder.
func (p *Provider) bundle(b box, s sandbox.Spec, root rootfs.Root, cgroup string) error {
	if err := local.WriteFile(b.hosts(), local.HostsFile(s), 0o644); err != nil {
		return err
	}
	data, err := json.MarshalIndent(p.ociSpec(b, s, root, cgroup), "", " ")
	if err != nil {
		return err
	}
	return local.WriteFile(filepath.Join(b.dir, "config.json"), data, 0o600)
}

func (p *Provider) ociSpec(b box, s sandbox.Spec, root rootfs.Root, cgroup string) *specs.Spec {
	tmpfs := func(target string, size int64, mode string) specs.Mount {
		return specs.Mount{Destination: target, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=" + mode, fmt.Sprintf("size=%d", size)}}
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
		tmpfs("/tmp", s.Limits.TmpBytes, "1777"),
		tmpfs("/dev/shm", s.Limits.TmpBytes, "1777"),
	}
	for _, m := range slices.Concat(root.Binds, s.Binds, ownBinds(b, s)) {
		mounts = append(mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{"rbind", "ro"}})
	}
	out := &specs.Spec{
		Version:  specs.Version,
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: root.Dir},
		Process: &specs.Process{
			Args: s.Command,
			Cwd:  "/",
			Env:  s.Env,
			Capabilities: &specs.LinuxCapabilities{
				Bounding: guestCapabilities, Effective: guestCapabilities, Permitted: guestCapabilities,
			},
			NoNewPrivileges: true,
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 65536, Soft: 65536}},
		},
		Mounts: mounts,
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
	if cgroup != "" {
		out.Linux.CgroupsPath = cgroup
		out.Linux.Resources = p.cgroups.resources(s.Limits)
	}
	return out
}

// ownBinds are those that every sandbox has; they come last, so that nothing covers them.
func ownBinds(b box, s sandbox.Spec) []sandbox.Bind {
	out := []sandbox.Bind{{Source: b.hosts(), Target: "/etc/hosts"}}
	if s.DoorDir != "" {
		out = append(out, sandbox.Bind{Source: s.DoorDir, Target: sandbox.PathDoors})
	}
	return out
}
