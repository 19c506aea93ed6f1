package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// footprint is the proportional memory of some processes, in MiB.
type footprint struct {
	processes int
	pss       float64 // all of it: a program's mapped text weighs too
	own       float64 // of it what is not a file: anonymous and shared memory
}

func memoryOf(pids []int) (footprint, error) {
	var f footprint
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue // it has ended
		}
		for l := range bytes.Lines(raw) {
			w := strings.Fields(string(l))
			if len(w) < 2 {
				continue
			}
			kib, _ := strconv.ParseFloat(w[1], 64) // the head of the file has no number
			switch w[0] {
			case "Pss:":
				f.processes++
				f.pss += kib / 1024
			case "Pss_Anon:", "Pss_Shmem:":
				f.own += kib / 1024
			}
		}
	}
	if f.processes == 0 {
		return f, fmt.Errorf("none of the processes %v tells its memory", pids)
	}
	return f, nil
}

// family lists the processes whose command line holds a text, and all that
// descend from them.
func family(text string) []int {
	parents := map[int]int{}
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*") // a good pattern
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		if raw, err := os.ReadFile(filepath.Join(d, "cmdline")); err == nil && strings.Contains(string(raw), text) {
			out = append(out, pid)
		}
		raw, err := os.ReadFile(filepath.Join(d, "stat"))
		if err != nil {
			continue // it has ended
		}
		// The name is in brackets and may hold anything.
		if f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:])); len(f) > 1 {
			parents[pid], _ = strconv.Atoi(f[1])
		}
	}
	for i := 0; i < len(out); i++ {
		for pid, parent := range parents {
			if parent == out[i] && !slices.Contains(out, pid) {
				out = append(out, pid)
			}
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(out, func(pid int) bool { return pid == os.Getpid() })
}

// lines lists the lines of a file that hold a text.
func lines(file, text string) []string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for l := range strings.SplitSeq(string(raw), "\n") {
		if strings.Contains(l, text) {
			out = append(out, l)
		}
	}
	return out
}

// groups lists the cgroups whose names are asked for, those below them included.
func groups(wanted func(name string) bool) []string {
	var out []string
	var walk func(dir string, inside bool)
	walk = func(dir string, inside bool) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return // groups come and go
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			in := inside || wanted(e.Name())
			if in {
				out = append(out, filepath.Join(dir, e.Name()))
			}
			walk(filepath.Join(dir, e.Name()), in)
		}
	}
	walk("/sys/fs/cgroup", false)
	return out
}

// descriptors counts the open files of a process.
func descriptors(pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return -1
	}
	return len(entries)
}
