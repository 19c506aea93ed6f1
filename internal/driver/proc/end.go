package proc

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Mark is a moment: the processes that were there. The zero Mark is the moment before all of them.
type Mark struct{ seen map[int]uint64 }

// stat is what /proc tells of a process.
type stat struct {
	pid, parent, session int
	state                byte
	start                uint64 // clock ticks since boot: tells a reused pid from the old one
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
	return end(ctx, func() ([]stat, error) { return t.since(m, keep) })
}

// EndOthersSince is like [Table.EndSince], but processes that are apart stay,
// and so does what descends from them or is in their session.
func (t *Table) EndOthersSince(ctx context.Context, m Mark) error {
	return end(ctx, func() ([]stat, error) {
		all, err := list()
		if err != nil {
			return nil, err
		}
		return t.descendants(os.Getpid(), t.withoutApart(all), m, nil), nil
	})
}

// withoutApart takes out the processes that are apart and all of their sessions. What descends from them is not reached then.
func (t *Table) withoutApart(all []stat) []stat {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(all, func(s stat) bool {
		p, leader := t.procs[s.pid], t.procs[s.session]
		return p != nil && p.apart || leader != nil && leader.apart
	})
}

// end kills what victims finds until it finds nothing.
func end(ctx context.Context, find func() ([]stat, error)) error {
	var left int
	for round := 0; ; round++ {
		victims, err := find()
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
	return t.descendants(os.Getpid(), all, m, keep), nil
}

// descendants picks from all what descends from root and came after m. The list was
// not read in one moment: parents may form a ring.
func (t *Table) descendants(root int, all []stat, m Mark, keep []*Process) []stat {
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
	visited := map[int]bool{root: true}
	var walk func(pid int)
	walk = func(pid int) {
		for _, s := range children[pid] {
			if helpers[s.pid] || visited[s.pid] {
				continue
			}
			visited[s.pid] = true
			if start, old := m.seen[s.pid]; !kept[s.pid] && (!old || start != s.start) && s.state != 'Z' && s.state != 'X' {
				out = append(out, s)
			}
			walk(s.pid)
		}
	}
	walk(root)
	return out
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
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + n + "/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		// gVisor gives a process that is just being reaped the pid 0, and parent 0 to those whose parent is.
		if s, ok := parseStat(string(b)); ok && s.pid == pid {
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
	session, err2 := strconv.Atoi(f[3])
	start, err3 := strconv.ParseUint(f[19], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return stat{}, false
	}
	return stat{pid: pid, parent: parent, session: session, state: f[0][0], start: start}, true
}
