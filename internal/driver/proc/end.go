package proc

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Mark is a moment: the processes that were there. The zero Mark is the moment before all of them.
type Mark struct{ seen map[int]uint64 }

// stat is what /proc tells of a process.
type stat struct {
	pid, parent int
	state       byte
	start       uint64 // clock ticks since boot: tells a reused pid from the old one
}

// Mark remembers the processes that are there now.
func (t *Table) Mark() (Mark, error) {
	all, err := list()
	if err != nil {
		return Mark{}, err
	}
	m := Mark{seen: make(map[int]uint64, len(all))}
	for _, s := range all {
		m.seen[s.pid] = s.start
	}
	return m, nil
}

// EndSince kills every descendant of this program that was started since m,
// whatever session or group it is in, and returns when none is left or ctx has
// ended. The processes in keep stay, their children do not; helpers stay with their children.
func (t *Table) EndSince(ctx context.Context, m Mark, keep ...*Process) error {
	var left int
	for round := 0; ; round++ {
		victims, err := t.since(m, keep)
		if err != nil {
			return err
		}
		if left = len(victims); left == 0 {
			return nil
		}
		// All are stopped before one is killed, so that none sees another end and starts a new one.
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, v := range victims {
				_ = syscall.Kill(v.pid, sig) // gone already is fine
			}
		}
		if round < 3 {
			continue // what was forked meanwhile is found at once
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d processes are still there: %w", left, context.Cause(ctx))
		}
	}
}

// since lists living descendants that came after m.
func (t *Table) since(m Mark, keep []*Process) ([]stat, error) {
	all, err := list()
	if err != nil {
		return nil, err
	}
	children := map[int][]stat{}
	for _, s := range all {
		children[s.parent] = append(children[s.parent], s)
	}
	kept := map[int]bool{}
	for _, p := range keep {
		kept[p.PID] = true
	}
	t.mu.Lock()
	helpers := map[int]bool{}
	for pid, p := range t.procs {
		if p.helper {
			helpers[pid] = true
		}
	}
	t.mu.Unlock()
	var out []stat
	var walk func(pid int)
	walk = func(pid int) {
		for _, s := range children[pid] {
			if helpers[s.pid] {
				continue
			}
			if start, old := m.seen[s.pid]; !kept[s.pid] && (!old || start != s.start) && s.state != 'Z' && s.state != 'X' {
				out = append(out, s)
			}
			if s.pid != pid {
				walk(s.pid)
			}
		}
	}
	walk(os.Getpid())
	return out, nil
}

// list reads /proc.
func list() ([]stat, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []stat
	for _, n := range names {
		if _, err := strconv.Atoi(n); err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + n + "/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		if s, ok := parseStat(string(b)); ok {
			out = append(out, s)
		}
	}
	return out, nil
}

// parseStat reads /proc/PID/stat (proc(5)). The second field may hold anything, parentheses too.
func parseStat(line string) (stat, bool) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return stat{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line[:open]))
	if err != nil {
		return stat{}, false
	}
	f := strings.Fields(line[end+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, false
	}
	parent, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	if err1 != nil || err2 != nil {
		return stat{}, false
	}
	return stat{pid: pid, parent: parent, state: f[0][0], start: start}, true
}
