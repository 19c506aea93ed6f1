package proc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A list of processes that was read while they came and went.
func TestDescendantsOfARing(t *testing.T) {
	t.Parallel()
	all := []stat{
		{pid: 1, parent: 7, state: 'S', start: 1}, {pid: 5, parent: 1, state: 'S', start: 5}, {pid: 6, parent: 5, state: 'S', start: 6},
		{pid: 7, parent: 6, state: 'S', start: 7}, {pid: 7, parent: 6, state: 'S', start: 7}, {pid: 8, parent: 8, state: 'S', start: 8},
		{pid: 9, parent: 5, state: 'Z', start: 9}, {pid: 10, parent: 9, state: 'S', start: 10},
	}
	var got []int
	for _, s := range New(false).descendants(1, all, Mark{seen: map[int]uint64{5: 5}}, nil) {
		got = append(got, s.pid)
	}
	if d := cmp.Diff([]int{6, 7, 10}, got); d != "" {
		t.Error(d)
	}
}

// What is apart stays with its children, its session and theirs; what others leave does not.
func TestWithoutApart(t *testing.T) {
	t.Parallel()
	tab := New(false)
	tab.procs[20] = &Process{PID: 20, apart: true}
	tab.procs[30] = &Process{PID: 30}
	all := []stat{
		{pid: 20, parent: 1, session: 20, state: 'S'}, {pid: 21, parent: 20, session: 20, state: 'S'}, {pid: 22, parent: 21, session: 22, state: 'S'},
		{pid: 23, parent: 1, session: 20, state: 'S'}, {pid: 24, parent: 23, session: 24, state: 'S'},
		{pid: 30, parent: 1, session: 30, state: 'S'}, {pid: 31, parent: 30, session: 30, state: 'S'}, {pid: 32, parent: 1, session: 32, state: 'S'},
	}
	var got []int
	for _, s := range tab.descendants(1, tab.withoutApart(all), Mark{}, nil) {
		got = append(got, s.pid)
	}
	if d := cmp.Diff([]int{30, 31, 32}, got); d != "" {
		t.Error(d)
	}
}
