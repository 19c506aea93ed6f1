package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/hearthd/hearth/client"
)

// cloneInside measures a clone by the repository's own address, by a command that
// the agent runs in its sandbox, through the git door.
func cloneInside(ctx context.Context, b *bench) ([]metric, error) {
	w, err := b.world(ctx, b.scripted)
	if err != nil {
		return nil, err
	}
	out, err := w.cloneInside(ctx)
	return out, w.close(ctx, err)
}

const cloneFileKiB = 200

func (w *world) cloneInside(ctx context.Context) ([]metric, error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	mib := w.b.small(100, 5)
	r, err := w.git.NewRepo(ctx, "acme/large", noise(mib*1024/cloneFileKiB, cloneFileKiB<<10))
	if err != nil {
		return nil, err
	}
	url := w.gitURL + r.Path()
	c, err := w.create(ctx, client.CreateInput{Repo: url, Prompt: "@@say ready@@"})
	if err != nil {
		return nil, err
	}
	t, err := w.completed(ctx, c.Session.ID, c.Turn.ID)
	if err != nil {
		return nil, err
	}
	host := filepath.Join(w.dir, "clone")
	s, f, err := w.b.alternate(ctx, func(ctx context.Context, _ int) (sample, error) {
		v, err := w.timedInside(ctx, c.Session.ID, `git clone -q "$(git config remote.origin.url)" /var/tmp/clone`, "rm -rf /var/tmp/clone")
		return sample{"clone": {v}}, err
	}, func(ctx context.Context, _ int) (sample, error) {
		v, err := w.timedHost(ctx, "git clone -q '"+url+"' '"+host+"'", "rm -rf '"+host+"'")
		return sample{"clone": {v}}, err
	})
	if err != nil {
		return nil, err
	}
	out := []metric{{
		What: fmt.Sprintf("git clone of %d MB inside", mib), Unit: unitMS, Quantile: median, Measured: s["clone"], Floor: f["clone"],
		FloorIs: "git clone of the same address on the host", Compare: ofRatio, Target: 1.3, TargetOf: ofRatio,
	}}
	if t.Times.Sandbox != nil {
		out = append(out, metric{
			What: "accept → sandbox with that repository, never seen before", Unit: unitMS, Quantile: median,
			Measured: series{{float64(*t.Times.Sandbox)}}, Floor: f["clone"], FloorIs: "git clone of the same address on the host", Compare: ofDifference,
		})
	}
	return out, nil
}

// noise are files that do not compress, the same ones each time.
func noise(n, size int) map[string]string {
	src := rand.NewChaCha8([32]byte{7})
	out := map[string]string{}
	for i := range n {
		b := make([]byte, size)
		_, _ = src.Read(b) // never fails
		out[fmt.Sprintf("data/%02d/%d.bin", i%20, i)] = string(b)
	}
	return out
}

// clocked is a script that prints what a command took, in microseconds. Bash
// knows the time without a process for it.
func clocked(command, before string) string {
	return before + `; s=${EPOCHREALTIME/./}; ` + command + ` || exit 1; e=${EPOCHREALTIME/./}; echo "took=$((e-s))"; ` + before
}

var tookRE = regexp.MustCompile(`took=(\d+)`)

func tookOf(text string) (float64, error) {
	m := tookRE.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("the command did not tell its time: %.500s", text)
	}
	us, err := strconv.ParseFloat(m[1], 64)
	return us / 1000, err
}

// timedInside has the scripted agent run a command in its work tree, ms.
func (w *world) timedInside(ctx context.Context, id, command, before string) (float64, error) {
	t, err := w.prompt(ctx, id, "@@run bash -c '"+clocked(command, before)+"'@@")
	if err != nil {
		return 0, err
	}
	for after := ""; ; {
		page, err := w.c.Transcript(ctx, id, after)
		if err != nil {
			return 0, fmt.Errorf("read the transcript: %w", err)
		}
		for _, p := range page.Items {
			if turn, _, _ := cutCursor(p.Cursor); turn == t.Number {
				if v, err := tookOf(string(p.Part)); err == nil {
					return v, nil
				}
			}
		}
		if page.Next == "" {
			return 0, fmt.Errorf("turn %d does not tell what the command took", t.Number)
		}
		after = page.Next
	}
}

func (w *world) timedHost(ctx context.Context, command, before string) (float64, error) {
	out, err := exec.CommandContext(ctx, "bash", "-c", clocked(command, before)).CombinedOutput() //nolint:gosec // our own words
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %.500s", command, err, out)
	}
	return tookOf(string(out))
}
