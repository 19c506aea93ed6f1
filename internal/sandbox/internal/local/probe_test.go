package local

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/sandbox"
)

// folders is a provider whose sandboxes are folders in which nothing runs.
type folders struct {
	sandbox.Provider
	boxes   string
	doors   string
	create  func(ctx context.Context, id string) error // after it was made; an error leaves it there
	deletes int                                        // so many fail
}

func (f *folders) Create(ctx context.Context, s sandbox.Spec) (sandbox.Handle, error) {
	f.doors = s.DoorDir
	if err := NewFolder(filepath.Join(f.boxes, s.ID), 0o711, "record", nil, 0o600); err != nil {
		return sandbox.Handle{}, err
	}
	if f.create != nil {
		if err := f.create(ctx, s.ID); err != nil {
			return sandbox.Handle{}, err
		}
	}
	return sandbox.Handle{ID: s.ID}, nil
}

func (f *folders) Start(context.Context, sandbox.Handle) error { return nil }

func (f *folders) ReadFile(_ context.Context, _ sandbox.Handle, name string, _ int64) ([]byte, error) {
	if rest, ok := strings.CutPrefix(name, sandbox.PathDoors); ok {
		return os.ReadFile(f.doors + rest)
	}
	return nil, fs.ErrNotExist
}

func (f *folders) Delete(_ context.Context, h sandbox.Handle) error {
	if f.deletes--; f.deletes >= 0 {
		return errors.New("its process is busy dying")
	}
	return RemoveFolder(filepath.Join(f.boxes, h.ID))
}

func TestProbe(t *testing.T) {
	t.Parallel()
	const dead = "probe-999999999-1-"
	alive := "probe-" + Maker() + "-00"
	for name, c := range map[string]struct {
		former []string // sandboxes that are there before
		f      folders
		cancel bool // the test is cancelled while the sandbox is made
		failed []string
		left   []string
	}{
		"nothing before":                    {},
		"of killed processes":               {former: []string{dead + "ab", dead + "cd", "probe-unreadable", dead + "ef" + partMark + "999999999-1"}},
		"of somebody else":                  {former: []string{alive, "hsession-1"}, left: []string{"hsession-1", alive}},
		"a delete fails at first":           {former: []string{dead + "ab"}, f: folders{deletes: 1}},
		"its own delete fails at first":     {f: folders{deletes: 2}},
		"a create that fails leaves some":   {f: folders{create: func(context.Context, string) error { return errors.New("no") }}, failed: []string{"boot"}},
		"cancelled while it makes one":      {cancel: true, failed: []string{"boot"}},
		"cancelled, and a delete must wait": {cancel: true, f: folders{deletes: 2}, failed: []string{"boot"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			boxes := filepath.Join(dir, "b")
			for _, n := range append(c.former, dead+"doors") {
				if err := os.MkdirAll(filepath.Join(boxes, n, "x"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Rename(filepath.Join(boxes, dead+"doors"), filepath.Join(dir, dead+"doors")); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c.f.boxes = boxes
			if c.cancel {
				c.f.create = func(ctx context.Context, _ string) error { cancel(); return ctx.Err() }
			}
			tidied := false
			got, err := Probe{
				Name: "folders", Provider: &c.f, Handle: func(id string) sandbox.Handle { return sandbox.Handle{ID: id} },
				StateDir: dir, BoxesDir: boxes, Now: time.Now, Log: slog.New(slog.DiscardHandler),
				Runtime: func(context.Context) (string, error) { return "1", nil },
				Machine: sandbox.Check{Name: "limits", OK: true, Detail: "none"},
				Root:    func(context.Context) (string, error) { return "sha256:0", nil },
				Interfaces: func(context.Context, sandbox.Handle) ([]byte, error) {
					return []byte("face |bytes\n    lo: 0 0\n"), nil
				},
				Tidy:      func() { tidied = true },
				RuntimeIs: "%s is there.",
			}.Run(ctx)
			if (err != nil) != c.cancel {
				t.Errorf("Run = %v", err)
			}
			var failed []string
			for _, k := range got.Checks {
				if !k.OK {
					failed = append(failed, k.Name)
				}
			}
			if d := cmp.Diff(c.failed, failed); d != "" || got.OK != (len(c.failed) == 0) || !tidied {
				t.Errorf("(-want +got):\n%s%+v, tidied %v", d, got, tidied)
			}
			if d := cmp.Diff(c.left, list(t, boxes)); d != "" {
				t.Errorf("left (-want +got):\n%s", d)
			}
			if d := cmp.Diff([]string{"b"}, list(t, dir)); d != "" {
				t.Errorf("left in the state folder (-want +got):\n%s", d)
			}
		})
	}
}

// What is wrong inside is told.
func TestProbeFindings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		devices string
		canary  string
		failed  string
	}{
		"a network":       {"  lo: 0\neth0: 0\n", "", "network"},
		"another canary":  {"  lo: 0\n", "x", "canary"},
		"unknown devices": {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			f := &folders{boxes: filepath.Join(dir, "b")}
			if err := os.Mkdir(f.boxes, 0o700); err != nil {
				t.Fatal(err)
			}
			if c.canary != "" {
				f.create = func(context.Context, string) error {
					return os.WriteFile(filepath.Join(f.doors, "canary"), []byte(c.canary), 0o600)
				}
			}
			got, err := Probe{
				Provider: f, Handle: func(id string) sandbox.Handle { return sandbox.Handle{ID: id} },
				StateDir: dir, BoxesDir: f.boxes, Now: time.Now, Log: slog.New(slog.DiscardHandler), RuntimeIs: "%s",
				Runtime:    func(context.Context) (string, error) { return "1", nil },
				Root:       func(context.Context) (string, error) { return "", nil },
				Interfaces: func(context.Context, sandbox.Handle) ([]byte, error) { return []byte(c.devices), nil },
				Machine:    sandbox.Check{OK: true},
			}.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			failed := ""
			for _, k := range got.Checks {
				if !k.OK {
					failed += k.Name
				}
			}
			if failed != c.failed {
				t.Errorf("%+v", got.Checks)
			}
		})
	}
}
