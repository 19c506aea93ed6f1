package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox/mounts"
)

// source looks into the folder of --from: a finished layer of another
// installer's folder, or an npm cache.
func source(from string, r recipe) (layer, cache string, err error) {
	fi, err := os.Stat(from)
	if err != nil || !fi.IsDir() {
		return "", "", fault.New(fault.InvalidInput, "%s is not a folder. Give --from the agents folder of another Hearth server, or an npm cache.", from)
	}
	if m, err := readManifest(from, r.name); err == nil {
		dir := filepath.Join(from, "layers", m.Layer)
		if _, err := os.Stat(dir); err == nil {
			// Only the hash in the profile makes foreign files trustworthy.
			if r.tree == "" || m.Tree != r.tree {
				return "", "", fault.New(fault.AgentInstallFailed, "%s could not be installed: %s holds version %s of it, this Hearth wants exactly %s. Make the folder with the same Hearth.",
					r.title, from, m.Agent, r.version).With("reason", reasonSource)
			}
			return dir, "", nil
		}
	}
	for _, c := range []string{from, filepath.Join(from, "cache")} {
		if _, err := os.Stat(filepath.Join(c, "_cacache")); err == nil {
			return "", c, nil
		}
	}
	return "", "", fault.New(fault.AgentInstallFailed, "%s could not be installed: %s holds neither it (%s.json and layers/) nor an npm cache (_cacache/).", r.title, from, r.name).
		With("reason", reasonSource)
}

// copyOne takes the one file of a copied agent from a file or its folder.
func copyOne(from string, r recipe, work string) error {
	fi, err := os.Stat(from)
	if err == nil && fi.IsDir() {
		from = filepath.Join(from, r.copy)
		fi, err = os.Stat(from)
	}
	if err != nil || !fi.Mode().IsRegular() {
		return fault.New(fault.InvalidInput, "%s is not a file. Give --from the file %s or the folder with it.", from, r.copy)
	}
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	return copyFile(from, filepath.Join(work, r.copy), 0o555)
}

// lockPoll is how often a waiting install looks whether the other one has ended.
const lockPoll = 200 * time.Millisecond

// lock waits until no other install or prune works in the folder.
func (in *Installer) lock(ctx context.Context, name string, progress func(Progress)) (unlock func(), err error) {
	f, err := os.OpenFile(in.path("lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, in.failed(name, err)
	}
	told := false
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil // the lock goes with the descriptor
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, in.failed(name, fmt.Errorf("lock %s: %w", f.Name(), err))
		}
		if !told {
			told = true
			say(progress, Progress{Name: name, Phase: "waiting", Text: "another install is running"})
		}
		t := time.NewTimer(lockPoll)
		select {
		case <-ctx.Done():
			t.Stop()
			f.Close()
			return nil, context.Cause(ctx)
		case <-t.C:
		}
	}
}

// Prune removes the layers that nothing needs, and returns their names. A layer stays
// while it is the installed one, while any process of this machine has it mounted, as
// those of a sandbox have, whoever's server made that, and while it or what was
// installed in its place is newer than before: it may be just being bound.
func (in *Installer) Prune(ctx context.Context, before time.Time) ([]string, error) {
	if old, err := in.old(before); err != nil || len(old) == 0 {
		return nil, err // nothing to wait for an install for
	}
	unlock, err := in.lock(ctx, "prune", nil)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := in.old(before)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(in.path("tmp")); err != nil {
		return nil, fmt.Errorf("prune agents: %w", err)
	}
	shown, err := mounts.Shown(old)
	if err != nil {
		return nil, fmt.Errorf("prune agents: %w", err)
	}
	var removed []string
	for _, name := range old {
		if shown[name] {
			continue
		}
		if ctx.Err() != nil {
			return removed, context.Cause(ctx)
		}
		// First out of sight, so that a prune that is cut short leaves no half layer.
		if err := os.MkdirAll(in.path("tmp"), 0o755); err != nil {
			return removed, fmt.Errorf("prune agents: %w", err)
		}
		gone := in.path("tmp", name)
		if err := os.Rename(in.path("layers", name), gone); err != nil {
			return removed, fmt.Errorf("prune agents: %w", err)
		}
		if err := os.RemoveAll(gone); err != nil {
			return removed, fmt.Errorf("prune agents: %w", err)
		}
		removed = append(removed, name)
	}
	return removed, nil
}

// old lists the layers that are not installed and were not before either.
func (in *Installer) old(before time.Time) ([]string, error) {
	entries, err := os.ReadDir(in.path("layers"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for old agents: %w", err)
	}
	files, err := filepath.Glob(in.path("*.json"))
	if err != nil {
		return nil, fmt.Errorf("look for old agents: %w", err)
	}
	used := map[string]bool{}
	var fresh []string // names under which something was installed since
	for _, f := range files {
		m, err := in.manifest(strings.TrimSuffix(filepath.Base(f), ".json"))
		if err != nil {
			return nil, fmt.Errorf("look for old agents: %w", err) // what it names is unknown: remove nothing
		}
		used[m.Layer] = true
		if !m.At.Before(before) {
			fresh = append(fresh, m.Name+"-")
		}
	}
	var out []string
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return nil, fmt.Errorf("look for old agents: %w", err)
		}
		replaced := slices.ContainsFunc(fresh, func(name string) bool { return strings.HasPrefix(e.Name(), name) })
		if !used[e.Name()] && !replaced && fi.ModTime().Before(before) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}
