// Command relock is for whoever changes what a profile pins: it makes the lock
// file of each named profile (or of node) anew, installs it into a folder, and
// prints tree and size for the profile. Run it in internal/agent with Node and npm:
//
//	go run ./relock -dir /tmp/agents pi codex
//
// Then read the difference of the lock files and the packages themselves.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hearthd/hearth/internal/agent"
)

func main() {
	dir := flag.String("dir", "", "install into this folder")
	keep := flag.Bool("keep-locks", false, "install only, with the lock files as they are")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dir, *keep, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "relock:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, keep bool, names []string) error {
	if dir == "" {
		return errors.New("-dir is needed")
	}
	in := &agent.Installer{Dir: dir, Now: time.Now, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	for _, name := range names {
		src, err := os.ReadFile(filepath.Join("profiles", name+".yaml"))
		if err != nil {
			return err
		}
		file := filepath.Join("locks", name+".json")
		if !keep {
			if err := relock(ctx, name, src, file); err != nil {
				return err
			}
		}
		lock, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		p, err := agent.Decode(src, lock)
		if err != nil {
			return err
		}
		reviewed := p.Tree
		p.Tree = ""
		m, err := in.Install(ctx, p, agent.InstallOptions{})
		if err != nil {
			return err
		}
		note := ""
		if m.Tree != reviewed {
			note = "  # differs from the profile"
		}
		fmt.Printf("%s: tree: %s, sizeBytes: %d%s\n", name, m.Tree, m.Bytes, note)
	}
	return nil
}

// relock lets npm choose all indirect versions for the exact direct ones.
func relock(ctx context.Context, name string, src []byte, file string) error {
	var p struct {
		Packages []agent.Package `yaml:"packages"`
	}
	if err := yaml.Unmarshal(src, &p); err != nil {
		return err
	}
	deps := map[string]string{}
	for _, k := range p.Packages {
		deps[k.Name] = k.Version
	}
	raw, err := json.Marshal(map[string]any{"name": "hearth-agent-" + name, "version": "1.0.0", "private": true, "dependencies": deps})
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "relock-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // below the system's temporary folder
	if err := os.WriteFile(filepath.Join(tmp, "package.json"), raw, 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "npm", "install", "--package-lock-only", "--ignore-scripts", "--omit-lockfile-registry-resolved", "--no-audit", "--no-fund")
	cmd.Dir, cmd.Stdout, cmd.Stderr = tmp, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm install: %w", err)
	}
	lock, err := os.ReadFile(filepath.Join(tmp, "package-lock.json"))
	if err != nil {
		return err
	}
	return os.WriteFile(file, lock, 0o644)
}
