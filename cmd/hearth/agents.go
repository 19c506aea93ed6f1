package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/cli"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/verify"
)

func installer(c config.Config) *agent.Installer {
	return &agent.Installer{Dir: c.AgentsDir, Logger: logger(c), Now: time.Now}
}

func agentInstall(ctx context.Context, c config.Config, ask cli.InstallAsk, progress func(string)) error {
	p, err := agent.Lookup(ask.Name)
	if err != nil {
		return err
	}
	_, err = installer(c).Install(ctx, p, agent.InstallOptions{From: ask.From, Progress: func(pr agent.Progress) {
		line := pr.Name + ": " + pr.Phase
		if pr.Total > 0 {
			line += fmt.Sprintf(" %d of %d", pr.Done, pr.Total)
		}
		if pr.Text != "" {
			line += ", " + pr.Text
		}
		progress(line)
	}})
	return err
}

func agentList(_ context.Context, c config.Config) ([]cli.AgentStatus, error) {
	list, err := installer(c).List()
	if err != nil {
		return nil, err
	}
	var out []cli.AgentStatus
	for _, st := range list {
		p, err := agent.Lookup(st.Name)
		if err != nil || st.Hidden && !st.Installed {
			continue
		}
		s := cli.AgentStatus{Name: st.Name, Title: st.Title, Version: st.Version, Installed: st.Installed, Providers: p.Providers()}
		if st.Installed {
			s.Detail = verify.Shown(c.AgentsDir, p)
		}
		out = append(out, s)
	}
	return out, nil
}

// agentVerify checks the files, then runs the agent in a sandbox against a scripted model.
func agentVerify(ctx context.Context, c config.Config, name string, progress func(string)) error {
	p, err := agent.Lookup(name)
	if err != nil {
		return err
	}
	progress(name + ": checking files")
	if err := installer(c).Verify(ctx, p); err != nil {
		return err
	}
	c.LogLevel = "error"
	log := logger(c)
	return verify.Run(ctx, verify.Config{Profile: p, AgentsDir: c.AgentsDir, Options: options(c, log), RunGroup: runGroup(c), Progress: progress, Log: log})
}
