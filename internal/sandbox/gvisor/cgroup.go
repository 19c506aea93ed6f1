package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// cgroups is how this machine's cgroups are used: version 1 (a hierarchy a
// controller), version 2 (one for all), or 0 when they cannot be.
type cgroups struct {
	version int
	mount   string // where they are mounted
	parent  string // path below the mount that holds the sandboxes' own groups
	swap    bool   // version 1: memory and swap can be limited together
}

// Version 2 follows the kernel's documentation and has not been run: the machine
// this was measured on has version 1.

// detectCgroups looks for memory, cpu and pids below mount and tries to make a group there.
func detectCgroups(mount, parent string) cgroups {
	c := cgroups{mount: mount, parent: parent}
	var st unix.Statfs_t
	if err := unix.Statfs(mount, &st); err != nil {
		return cgroups{}
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		data, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
		if err != nil {
			return cgroups{}
		}
		have := strings.Fields(string(data))
		for _, want := range []string{"cpu", "memory", "pids"} {
			if !contains(have, want) {
				return cgroups{}
			}
		}
		c.version = 2
	} else {
		for _, want := range []string{"cpu", "memory", "pids"} {
			if err := unix.Statfs(filepath.Join(mount, want), &st); err != nil || st.Type != unix.CGROUP_SUPER_MAGIC {
				return cgroups{}
			}
		}
		c.version = 1
	}
	for _, d := range c.dirs(parent + testMark + local.Maker()) {
		c.sweepTests(filepath.Dir(d))
		if err := os.Mkdir(d, 0o755); err != nil {
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			return cgroups{}
		}
		if c.version == 1 && filepath.Base(filepath.Dir(d)) == "memory" {
			_, err := os.Stat(filepath.Join(d, "memory.memsw.limit_in_bytes"))
			c.swap = err == nil
		}
		_ = os.Remove(d)
	}
	return c
}

// testMark stands before the maker in the name of a group that is made to see whether it can be.
const testMark = "-probe-"

// sweepTests removes such groups of killed processes from a hierarchy.
func (c cgroups) sweepTests(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, filepath.Base(c.parent)+testMark+"*"))
	for _, n := range names {
		if _, maker, _ := strings.Cut(filepath.Base(n), testMark); !local.MakerAlive(maker) {
			_ = os.Remove(n) // it is empty; another server may be at it as well
		}
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// dirs are the folders of a group, in every hierarchy that is there.
func (c cgroups) dirs(path string) []string {
	switch c.version {
	case 2:
		return []string{filepath.Join(c.mount, path)}
	case 1:
		names, _ := os.ReadDir(c.mount)
		var out []string
		for _, n := range names {
			var st unix.Statfs_t
			dir := filepath.Join(c.mount, n.Name())
			if n.Type()&fs.ModeSymlink == 0 && unix.Statfs(dir, &st) == nil && (st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC) {
				out = append(out, filepath.Join(dir, path))
			}
		}
		return out
	}
	return nil
}

func (c cgroups) path(id string) string {
	if c.version == 0 {
		return ""
	}
	return c.parent + "/" + id
}

func (c cgroups) resources(l sandbox.Limits) *specs.LinuxResources {
	period := uint64(100_000)
	quota := max(l.CPUMillis*int64(period)/1000, 1000) // the kernel's least quota is 1 ms
	pids := max(l.Processes*tasksPerProcess+ownTasks, hostTasksMin)
	r := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Memory: &specs.LinuxMemory{Limit: &l.MemoryBytes},
		Pids:   &specs.LinuxPids{Limit: pids},
	}
	if c.swap || c.version == 2 {
		r.Memory.Swap = &l.MemoryBytes // memory and swap together: no swap
	}
	return r
}

// pids are the processes in a group.
func (c cgroups) pids(path string) []int {
	if path == "" {
		return nil
	}
	seen := map[int]bool{}
	var out []int
	for _, d := range c.dirs(path) {
		data, _ := os.ReadFile(filepath.Join(d, "cgroup.procs"))
		for _, l := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(l); err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				out = append(out, pid)
			}
		}
	}
	return out
}

// hit names the limits that a group has run into, in words for a person.
func (c cgroups) hit(path string) []string {
	if path == "" {
		return nil
	}
	var out []string
	if c.counter(path, "memory", "memory.oom_control", "memory.events", "oom_kill") > 0 {
		out = append(out, "the memory limit was reached")
	}
	if c.counter(path, "pids", "pids.events", "pids.events", "max") > 0 {
		out = append(out, "the process limit was reached")
	}
	return out
}

func (c cgroups) counter(path, controller, v1file, v2file, key string) int64 {
	name := filepath.Join(c.mount, path, v2file)
	if c.version == 1 {
		name = filepath.Join(c.mount, controller, path, v1file)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if f := strings.Fields(string(line)); len(f) == 2 && f[0] == key {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// remove takes a group away, which works once it has no processes. The kernel may
// count one that has ended for a moment more.
func (c cgroups) remove(ctx context.Context, path string) error {
	if path == "" || path == "/" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, killDeadline)
	defer cancel()
	var errs []error
	for _, d := range c.dirs(path) {
		// The runtime may make groups below for the container.
		for _, sub := range append(subDirs(d), d) {
			err := os.Remove(sub)
			for errors.Is(err, unix.EBUSY) && local.Wait(ctx, 5*time.Millisecond) == nil {
				err = os.Remove(sub)
			}
			if err != nil && !absent(err) {
				errs = append(errs, fmt.Errorf("remove the cgroup: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// removeParent takes away the group that holds the sandboxes' own, if it is empty.
func (c cgroups) removeParent() error {
	var errs []error
	for _, d := range c.dirs(c.parent) {
		if err := os.Remove(d); err != nil && !absent(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// subDirs lists the folders below a group, deepest first.
func subDirs(dir string) []string {
	var out []string
	names, _ := os.ReadDir(dir)
	for _, n := range names {
		if n.IsDir() {
			sub := filepath.Join(dir, n.Name())
			out = append(append(out, subDirs(sub)...), sub)
		}
	}
	return out
}
