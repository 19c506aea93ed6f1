package cli_test

import (
	"net/http"
	"strings"
	"testing"
)

// What waits is listed, changed and taken out; what has gone out is refused in words.
func TestQueue(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := s.w.Create("At work")
	run := func(want int, has string, args ...string) {
		t.Helper()
		s.out, s.err = buffer{}, buffer{}
		got := s.run(args...)
		if said := s.out.String() + s.err.String(); got != want || !strings.Contains(said, has) {
			t.Errorf("hearth %q: status %d, want %d with %q: %s", args, got, want, has, said)
		}
	}
	run(0, "No prompt waits", "queue")
	one, two := string(s.w.Prompt(id, "First \x1b[31mthis\nthen")), string(s.w.Prompt(id, "Second"))
	run(0, "1      "+one, "queue", string(id))
	if out := s.out.String(); strings.Contains(out, "\x1b") || !strings.Contains(out, "Second") || strings.Contains(out, "edited") {
		t.Errorf("listed as %q", out)
	}
	run(0, two+" is number 1", "queue", "edit", two, "--position", "1")
	run(0, "number 2", "queue", "edit", string(id), one, "Rather", "that")
	s.stdin = strings.NewReader("From\nstdin")
	run(0, "number 1", "queue", "edit", two, "-")
	if q := s.w.Get(id).Queue; q[0].Prompt != "From\nstdin" || q[1].Prompt != "Rather that" {
		t.Errorf("queue: %q, %q", q[0].Prompt, q[1].Prompt)
	}
	run(0, "(edited) Rather that", "queue")
	run(0, "2 prompts wait", "queue", "hold")
	run(0, "The queue is held", "queue", string(id))
	run(0, `"held": true`, "queue", "--json")
	run(0, "2 prompts wait", "queue", "release", string(id))
	run(0, one+" is not in the queue", "queue", "remove", one)
	run(0, one+" is not in the queue", "queue", "rm", string(id), one)
	run(6, "TURN_NOT_QUEUED", "queue", "edit", one, "late")
	run(6, "its turn is starting", "queue", "remove", string(s.w.Get(id).Open.ID))
	run(5, "no such turn", "queue", "remove", "trn_none")
	run(2, "id of a turn", "queue", "edit", "Rather that")
	run(2, "id of a turn", "queue", "remove")
	run(2, "is missing", "queue", "edit", two)
	run(2, "is empty", "queue", "edit", two, " ")
	run(2, "1 or more", "queue", "edit", two, "--position", "0")
	run(2, "too much", "queue", "remove", two, one)
	run(2, "too much", "queue", "hold", string(id), "x")
}

// A turn that waits is named by an end of its id, as a session is.
func TestEndOfATurn(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	id := string(s.w.Create("At work"))
	const one, two = "trn_01kaaaaaaaaaaaaaaaa7777771", "trn_01kbbbbbbbbbbbbbbbb7777772"
	var called []string
	s.before(func(w http.ResponseWriter, r *http.Request) bool {
		_, path, ok := strings.Cut(r.URL.Path, "/"+id+"/queue")
		switch {
		case !ok:
			return false
		case path == "":
			_, _ = w.Write([]byte(`{"items":[{"id":"` + one + `"},{"id":"` + two + `"},{"id":"trn_01kcccccccccccccccc7777772"}]}`))
		default:
			called = append(called, r.Method+" "+path)
			_, _ = w.Write([]byte(`{"position":1}`))
		}
		return true
	})
	for _, args := range [][]string{
		{"queue", "edit", "777771", "Now", "this"}, {"queue", "edit", "trn_777771", "x"}, {"queue", "edit", id, "A7777771", "--position", "1"},
		{"queue", "remove", "777771"}, {"queue", "remove", id, "777771"}, {"queue", "remove", one},
	} {
		called = nil
		if got := s.run(args...); got != 0 || len(called) != 1 || !strings.HasSuffix(called[0], "/"+one) {
			t.Errorf("%q: %d %q %s", args, got, called, s.err.String())
		}
	}
	called, s.err = nil, buffer{}
	if got := s.run("queue", "remove", "777772"); got != 2 || len(called) != 0 || !strings.Contains(s.err.String(), "2 turns that wait have an id that ends with \"777772\"") {
		t.Errorf("%d %q %s", got, called, s.err.String())
	}
}
