package driver_test

import (
	"bytes"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
)

// As the first process of a PID namespace the driver inherits and reaps what others leave behind.
func TestFirstProcess(t *testing.T) {
	t.Parallel()
	prefix := []string{"unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"}
	if err := exec.Command(prefix[0], append(prefix[1:], "true")...).Run(); err != nil {
		t.Skip("SKIPPED: this machine lets us make no PID namespace: ", err)
	}
	b := newBox(t)
	b.prefix = prefix
	b.start()
	b.mustSetup(nil)
	b.mustAgent()
	// Fifty orphans that end at once, and one that stays.
	o := b.run("turn_1", turnRequest(`@@run for i in $(seq 50); do (setsid sh -c 'exit 0' &) ; done@@ @@run (setsid sleep 300 &)@@`))
	if !o.end.Clean {
		t.Fatalf("end %+v", o.end)
	}
	look := regexp.MustCompile(`zombies=(\d+) sleeps=(\d+)`)
	count := func(turn string) (zombies, sleeps int) {
		o := b.run(turn, turnRequest(`@@run echo zombies=$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l) sleeps=$(grep -lx sleep /proc/[0-9]*/comm 2>/dev/null | wc -l)@@`))
		for _, r := range o.records {
			if m := look.FindSubmatch(r.Part); m != nil {
				zombies, _ = strconv.Atoi(string(m[1]))
				sleeps, _ = strconv.Atoi(string(m[2]))
				return zombies, sleeps
			}
		}
		t.Fatalf("no count in %v", o.types())
		return 0, 0
	}
	if z, s := count("turn_2"); z != 0 || s != 1 {
		t.Errorf("%d zombies, %d sleeps", z, s)
	}
	b.begin("turn_3", turnRequest("@@run (setsid sleep 300 &) ; sleep 300@@"))
	canceled := false
	o = b.follow("turn_3", func(r driverapi.Record) {
		if !canceled && bytes.Contains(r.Part, []byte(`"tool-input-available"`)) {
			canceled = true
			if err := b.client.Cancel(t.Context(), "turn_3", driverapi.CancelRequest{Grace: 10 * time.Second}); err != nil {
				t.Error(err)
			}
		}
	})
	if d := cmp.Diff(end{"canceled", "", true}, ended(o.end)); d != "" {
		t.Error(d)
	}
	// What an earlier turn left behind stays, what the canceled one started does not.
	if z, s := count("turn_4"); z != 0 || s != 1 {
		t.Errorf("after the cancel %d zombies, %d sleeps", z, s)
	}
}
