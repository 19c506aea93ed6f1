package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/hearthd/hearth/internal/cli"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/driverbin"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/server"

	"os"
	"path/filepath"
)

// doctor looks at everything that a first turn needs, and says what to do.
func doctor(ctx context.Context, c config.Config) (cli.Report, error) {
	var r cli.Report
	add := func(name string, err error, ok string) {
		if err == nil {
			r.Checks = append(r.Checks, cli.Check{Name: name, OK: true, Detail: ok})
			return
		}
		f := fault.From(err)
		detail := f.Sentence()
		if f.Code == fault.InternalError {
			detail = err.Error()
		}
		r.Checks = append(r.Checks, cli.Check{Name: name, Detail: detail, Remedy: fault.Lookup(f.Code).Remedy})
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		add("machine", fault.New(fault.SandboxUnsupported, "This is %s on %s; sandboxes run on Linux x86-64.", runtime.GOOS, runtime.GOARCH), "")
	} else {
		add("machine", nil, "Linux x86-64, "+fmt.Sprint(runtime.NumCPU())+" cores")
	}
	git, err := exec.CommandContext(ctx, "git", "--version").Output()
	if err != nil {
		err = fault.Wrap(err, fault.ConfigInvalid, "Git is not installed. Install it: apt-get install git")
	}
	add("git", err, strings.TrimSpace(string(git)))
	dirs, err := server.FindDirs(c.StateDir, c.AgentsDir, runGroup(c))
	add("state folder", err, c.StateDir)
	if err != nil {
		return r, nil
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(c.StateDir, &st); err == nil {
		free := int64(st.Bavail) * st.Bsize
		if free < 2<<30 {
			add("disk", fault.New(fault.DiskFull, "%d MiB are free in the state folder; a sandbox and its agents need some 2 GiB.", free>>20), "")
		} else {
			add("disk", nil, fmt.Sprintf("%d GiB free", free>>30))
		}
	}
	_, build, err := driverbin.Lay(filepath.Join(c.StateDir, "driver"))
	add("driver", err, build)
	quiet := c
	quiet.LogLevel = "error"
	p, err := provider(c, logger(quiet))(dirs)
	if err != nil {
		add("sandbox", err, "")
	} else {
		probe, err := p.Probe(ctx)
		if err != nil {
			return r, err
		}
		for _, k := range probe.Checks {
			r.Checks = append(r.Checks, cli.Check{Name: "sandbox: " + k.Name, OK: k.OK, Detail: k.Detail})
		}
		caps := p.Capabilities()
		detail := probe.Provider + " " + probe.Build + ", isolation " + string(caps.Isolation)
		if !caps.Privileged {
			detail += ", without limits on CPU and memory, since the server is not root"
		}
		r.Checks = append(r.Checks, cli.Check{Name: "sandbox", OK: probe.OK, Detail: detail})
	}
	list, err := agentList(ctx, c)
	var installed []string
	for _, a := range list {
		if a.Installed {
			installed = append(installed, a.Name+" "+a.Version)
		}
	}
	if err == nil && len(installed) == 0 {
		err = fault.New(fault.AgentNotInstalled, "No agent is installed.")
	}
	add("agents", err, strings.Join(installed, ", "))
	providers, err := model.FromEnv(os.LookupEnv)
	if err == nil && len(providers.Names()) == 0 {
		err = fault.New(fault.ModelKeyMissing, "This environment has no key for any model provider.")
	}
	add("model providers", err, strings.Join(providers.Names(), ", "))
	return r, nil
}
