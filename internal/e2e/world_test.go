package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// process is one of the machine's processes.
type process struct {
	pid     int
	command string // arguments, parted by blanks
}

// processes lists those whose command line holds a text.
func processes(text string) []process {
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var out []process
	for _, d := range dirs {
		raw, err := os.ReadFile(d)
		if err != nil || len(raw) == 0 {
			continue // it has ended
		}
		if line := strings.TrimSpace(string(bytes.ReplaceAll(raw, []byte{0}, []byte{' '}))); strings.Contains(line, text) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(d)))
			if err == nil {
				out = append(out, process{pid, line})
			}
		}
	}
	return out
}

// tail is what all names that are made for a session have in them.
func tail(session string) string { return strings.TrimPrefix(session, "ses_") }

// traces finds whatever on this machine bears a name: processes, mounts, sockets,
// cgroups, files of the world. Logs and the database are not looked into.
func (w *world) traces(name string) []string {
	var out []string
	for _, p := range processes(name) {
		out = append(out, fmt.Sprintf("process %d %s", p.pid, clip(p.command)))
	}
	for _, f := range []string{"/proc/self/mountinfo", "/proc/net/unix"} {
		raw, err := os.ReadFile(f)
		if err != nil {
			out = append(out, err.Error())
		}
		for line := range strings.SplitSeq(string(raw), "\n") {
			if strings.Contains(line, name) {
				out = append(out, f+": "+clip(line))
			}
		}
	}
	groups, err := cgroups(name)
	if err != nil {
		out = append(out, err.Error())
	}
	out = append(out, groups...)
	err = filepath.WalkDir(w.state, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil // removed meanwhile
			}
			return err
		}
		if strings.Contains(filepath.Base(path), name) {
			out = append(out, "file "+path)
			if inside, err := os.ReadDir(path); err == nil {
				for _, e := range inside {
					out = append(out, "  with "+e.Name())
				}
			}
			return fs.SkipDir
		}
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		out = append(out, err.Error())
	}
	return out
}

func clip(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}

// cgroups lists groups whose name holds a text.
func cgroups(name string) ([]string, error) {
	var out []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // groups come and go
		}
		if d.IsDir() && strings.Contains(d.Name(), name) {
			out = append(out, "cgroup "+path)
			return fs.SkipDir
		}
		return nil
	})
	return out, err
}

// goneEventually fails when something of a session is left after a while.
func (w *world) goneEventually(ctx context.Context, session string) {
	w.t.Helper()
	w.poll(ctx, 15*time.Second, "nothing to be left of "+session, func() (bool, string) {
		left := w.traces(tail(session))
		return len(left) == 0, strings.Join(left, "\n")
	})
}

// nothingLeft fails when the ended server left a process, a mount, a socket or a group.
func (w *world) nothingLeft(ctx context.Context) {
	w.t.Helper()
	w.poll(ctx, 10*time.Second, "nothing to be left of the server", func() (bool, string) {
		var left []string
		for _, p := range processes(w.dir + "/") {
			left = append(left, fmt.Sprintf("process %d %s", p.pid, clip(p.command)))
		}
		for _, f := range []string{"/proc/self/mountinfo", "/proc/net/unix"} {
			raw, err := os.ReadFile(f)
			if err != nil {
				left = append(left, err.Error())
			}
			for line := range strings.SplitSeq(string(raw), "\n") {
				if strings.Contains(line, w.dir+"/") {
					left = append(left, f+": "+clip(line))
				}
			}
		}
		for _, d := range []string{"run/d", "run/g/b", "run/g/u", "run/g/r"} {
			entries, err := os.ReadDir(filepath.Join(w.state, d))
			if err != nil && !os.IsNotExist(err) {
				left = append(left, err.Error())
			}
			for _, e := range entries {
				left = append(left, "file "+filepath.Join(w.state, d, e.Name()))
			}
		}
		return len(left) == 0, strings.Join(left, "\n")
	})
}

// sandboxProcesses are the host's processes of a session's sandbox by their names.
func (w *world) sandboxProcesses(session, kind string) []int {
	var out []int
	for _, p := range processes("h" + tail(session) + "-") {
		if first, _, _ := strings.Cut(p.command, " "); strings.Contains(first, kind) {
			out = append(out, p.pid)
		}
	}
	slices.Sort(out)
	return out
}

// inCgroup lists the processes of a sandbox as the kernel counts them.
func killProcess(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// runsc calls the runtime in the shipped binary on a session's sandbox, as an
// operator of the machine could.
func (w *world) runsc(session string, args func(id string) []string) (string, error) {
	dirs, err := filepath.Glob(filepath.Join(w.state, "run/g/b", "h"+tail(session)+"-*"))
	if err != nil || len(dirs) == 0 {
		return "", fmt.Errorf("sandbox of %s: %v, %w", session, dirs, err)
	}
	slices.Sort(dirs)
	sum := sha256.Sum256([]byte(filepath.Base(dirs[len(dirs)-1])))
	id := hex.EncodeToString(sum[:10]) // the runtime's name for it
	cmd := &exec.Cmd{
		Path: needed(w.t, "HEARTH_BIN"),
		Args: append([]string{"runsc", "--root=" + filepath.Join(w.state, "run/g/r"), "--platform=systrap", "--network=none", "--host-uds=open"}, args(id)...),
		Env:  []string{"PATH=/usr/bin:/bin", "GVISOR_SIDECAR_BINARIES_DIR=" + filepath.Join(w.state, "run/g/gvisor-bin")},
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// inside runs a shell command in a session's sandbox from the host.
func (w *world) inside(session, command string) string {
	w.t.Helper()
	out, err := w.runsc(session, func(id string) []string { return []string{"exec", id, "/bin/sh", "-c", command} })
	if err != nil {
		w.t.Fatalf("in the sandbox: %s: %v: %s", command, err, out)
	}
	return out
}
