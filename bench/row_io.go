package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hearthd/hearth/internal/sandbox"
)

// ioWorks are what is done inside and on the host, in their order, in a folder
// that holds the tree "src".
var ioWorks = []struct{ name, script string }{
	{"copy the tree", "cp -r src copy"},
	{"git add -A", "git -C copy add -A"},
	{"git status, warm", "git -C copy status --porcelain >/dev/null"},
	{"grep -r", "grep -r needle copy >/dev/null"},
	{"200 × /bin/true", "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done"},
	{"processor loop, awk", "awk 'BEGIN { for (i = 0; i < 5000000; i++) x += i % 7 }'"},
	{"remove the copy", "rm -rf copy"},
}

// inputOutput measures what programs do in a sandbox, without Hearth's agents
// or doors, against the same on the host.
func inputOutput(ctx context.Context, b *bench) ([]metric, error) {
	x, err := b.newBoxes()
	if err != nil {
		return nil, err
	}
	out, err := x.inputOutput(ctx)
	return out, x.close(ctx, err)
}

func (x *boxes) inputOutput(ctx context.Context) ([]metric, error) {
	files := x.b.small(2000, 200)
	tree, err := archive(files)
	if err != nil {
		return nil, err
	}
	h, err := x.running(ctx)
	if err != nil {
		return nil, err
	}
	inside := func(ctx context.Context, stdin io.Reader, dir string, args ...string) (string, error) {
		var out, errs bytes.Buffer
		exit, err := x.p.Exec(ctx, h, sandbox.Command{Args: args, Env: guestEnv, Dir: dir, Stdin: stdin, Stdout: &out, Stderr: &errs})
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("%v ended with %d %s: %.500s", args[:1], exit.Code, exit.Signal, errs.String())
		}
		return out.String(), err
	}
	host := filepath.Join(x.dir, "host")
	if err := os.Mkdir(host, 0o700); err != nil {
		return nil, err
	}
	native := func(ctx context.Context, stdin io.Reader, dir string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // our own words
		var errs bytes.Buffer
		cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stderr = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + host, "LANG=C.UTF-8"}, dir, stdin, &errs
		out, err := cmd.Output()
		if err != nil {
			err = errors.Join(fmt.Errorf("%v: %w: %.500s", args[:1], err, errs.String()), ctx.Err())
		}
		return string(out), err
	}
	run := func(at func(context.Context, io.Reader, string, ...string) (string, error), dir string) side {
		return func(ctx context.Context, round int) (sample, error) {
			if round == 0 {
				if _, err := at(ctx, bytes.NewReader(tree), dir, "/usr/bin/tar", "-xf", "-"); err != nil {
					return nil, err
				}
			}
			out, err := at(ctx, nil, dir, "/usr/bin/bash", "-c", ioScript())
			if err != nil {
				return nil, err
			}
			return ioSample(out)
		}
	}
	s, f, err := x.b.alternate(ctx, run(inside, sandbox.PathHome), run(native, host))
	if err != nil {
		return nil, err
	}
	var out []metric
	for _, k := range ioWorks {
		out = append(out, metric{
			What: k.name, Unit: unitMS, Quantile: median, Measured: s[k.name], Floor: f[k.name], Compare: ofRatio,
			FloorIs: fmt.Sprintf("the same script on the host, below %s; the tree has %d files of 1 to 24 kB", x.b.dir, files),
		})
	}
	return out, nil
}

// ioScript prints a line for each work: microseconds and its number.
func ioScript() string {
	var b strings.Builder
	b.WriteString("set -e\n")
	for i, k := range ioWorks {
		switch k.name {
		case "git add -A":
			b.WriteString("git init -q copy\n")
		case "git status, warm":
			b.WriteString(k.script + "\n") // the cold one is not measured
		}
		fmt.Fprintf(&b, "s=${EPOCHREALTIME/./}; %s; e=${EPOCHREALTIME/./}; echo $((e-s)) %d\n", k.script, i)
	}
	return b.String()
}

func ioSample(out string) (sample, error) {
	s := sample{}
	for l := range strings.SplitSeq(strings.TrimSpace(out), "\n") {
		us, work, _ := strings.Cut(l, " ")
		v, err1 := strconv.ParseFloat(us, 64)
		i, err2 := strconv.Atoi(work)
		if err1 != nil || err2 != nil || i < 0 || i >= len(ioWorks) {
			return nil, fmt.Errorf("the script printed %q", l)
		}
		s.add(ioWorks[i].name, v/1000)
	}
	if len(s) != len(ioWorks) {
		return nil, fmt.Errorf("the script told of %d works: %q", len(s), out)
	}
	return s, nil
}

// archive is a tree of text files, the same one each time, as tar.
func archive(files int) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same tree each time
	for i := range files {
		var text strings.Builder
		for size := 1<<10 + rnd.IntN(23<<10); text.Len() < size; {
			fmt.Fprintf(&text, "line %x of a source file %d\n", rnd.Uint64(), i)
		}
		if i%100 == 0 {
			text.WriteString("a needle\n")
		}
		name := fmt.Sprintf("src/pkg%02d/dir%d/file%d.txt", i%40, i%7, i)
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(text.Len())}); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, text.String()); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
