package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/term"

	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/bubblewrap"
	"github.com/hearthd/hearth/internal/sandbox/gvisor"
	"github.com/hearthd/hearth/internal/sandbox/gvisor/runsc"
	"github.com/hearthd/hearth/internal/sandbox/rootfs"
	"github.com/hearthd/hearth/internal/server"
)

// logger writes to stderr as the settings say.
func logger(c config.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // checked by package config
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

// provider makes what the settings ask for; it starts nothing.
func provider(c config.Config, log *slog.Logger) func(server.Dirs) (sandbox.Provider, error) {
	return func(d server.Dirs) (sandbox.Provider, error) {
		roots, err := rootfs.New(rootfs.Config{Dir: filepath.Join(d.State, "roots")})
		if err != nil {
			return nil, fmt.Errorf("sandbox roots: %w", err)
		}
		host, err := server.HostID(d.State)
		if err != nil {
			return nil, err
		}
		if c.Sandbox == "bubblewrap" {
			return bubblewrap.New(bubblewrap.Config{StateDir: filepath.Join(d.Run, "b"), Host: host, Roots: roots, Logger: log, Now: time.Now})
		}
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		return gvisor.New(gvisor.Config{
			StateDir: filepath.Join(d.Run, "g"), Executable: exe, Version: runsc.Version(), Host: host, Roots: roots, Logger: log, Now: time.Now,
		})
	}
}

// runGroup is the group of sandboxes that run as a user who must be let through to their doors; 0: they do not.
func runGroup(c config.Config) int {
	if c.Sandbox == "bubblewrap" && os.Geteuid() == 0 {
		return bubblewrap.DefaultGID
	}
	return 0
}

func options(c config.Config, log *slog.Logger) server.Options {
	root := sandbox.Root{Kind: "oci", Ref: c.SandboxRoot}
	if c.SandboxRoot == "host" {
		root = sandbox.Root{Kind: "host"}
	}
	registries := c.Registries
	if registries == nil {
		registries = []string{}
	}
	return server.Options{
		StateDir: c.StateDir, AgentsDir: c.AgentsDir, TokenFile: c.TokenFile, Listen: c.Listen, Version: version,
		Sandboxes: provider(c, log), RunGroup: runGroup(c), Root: root,
		Limits:  sandbox.Limits{CPUMillis: c.SandboxCPUMillis, MemoryBytes: c.SandboxMemory, DiskBytes: c.SandboxDisk},
		MaxLive: c.MaxSandboxes, Idle: c.SandboxIdle, IdleExit: c.IdleExit,
		GitCredentials: c.GitCredentials, AllowFile: c.AllowFile, Registries: registries, AllowHosts: c.AllowHosts, AllowPrivate: c.AllowPrivate, Origins: c.Origins,
		Lookup: os.LookupEnv, Log: log, Now: time.Now,
	}
}

func serve(ctx context.Context, c config.Config) error {
	log := logger(c)
	if err := checkEgress(c, os.LookupEnv); err != nil {
		return err
	}
	o := options(c, log)
	o.Announce = func(address, token string) {
		log.Info("ready", "address", address, "state", c.StateDir, "sandbox", c.Sandbox)
		switch {
		case token == "":
		case term.IsTerminal(int(os.Stdout.Fd())):
			fmt.Fprintf(os.Stdout, "Owner token, shown once (also in %s): %s\n", c.TokenFile, token)
		default: // a log or a journal is read by others
			log.Info("the owner's token was made", "file", c.TokenFile)
		}
	}
	if err := server.Run(ctx, o); err != nil {
		return fault.From(err)
	}
	return nil
}
