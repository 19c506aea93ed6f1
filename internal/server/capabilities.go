package server

import (
	"context"
	"strings"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/session"
)

// capabilities tells what this server can do, and what is missing for a first turn.
type capabilities struct {
	o         Options
	boxes     sandbox.Provider
	agents    *agent.Installer
	providers model.Providers
	live      func() int
	test      *selfTest
}

func (c *capabilities) read(ctx context.Context) (operation.Capabilities, error) {
	sc := c.boxes.Capabilities()
	live := c.live()
	if all, err := c.boxes.List(ctx, map[string]string{"hearth": "1"}); err == nil {
		live = len(all) // those that are being removed too
	}
	out := operation.Capabilities{
		Version: c.o.Version,
		Sandbox: operation.SandboxCapabilities{
			Isolation: string(sc.Isolation), Pause: sc.Pause, Memory: sc.MemorySnapshot, Files: sc.FilesSnapshot, Privileged: sc.Privileged,
			Live: live, Max: c.o.MaxLive,
		},
		Missing: []operation.Missing{},
		Limits: operation.LimitsView{
			TotalSeconds: int64(session.DefaultLimits.Total.Seconds()), SilenceSeconds: int64(session.DefaultLimits.Silence.Seconds()),
			FirstEventSeconds: int64(session.DefaultLimits.FirstEvent.Seconds()), ToolSeconds: int64(session.DefaultLimits.Tool.Seconds()),
		},
	}
	select {
	case <-c.test.done:
		out.Sandbox.Provider, out.Sandbox.Build = c.test.probe.Provider, c.test.probe.Build
	default: // the self-test still runs
	}
	list, err := c.agents.List()
	if err != nil {
		return out, err
	}
	installed, ready := false, false
	for _, st := range list {
		p, err := agent.Lookup(st.Name)
		if err != nil || st.Hidden && !st.Installed {
			continue
		}
		a := operation.AgentCapabilities{Name: st.Name, Title: st.Title, Version: st.Version, Installed: st.Installed, Providers: p.Providers(), Ready: []string{}, Default: st.Name == session.DefaultAgent}
		for _, name := range a.Providers {
			if c.providers.Has(name) {
				a.Ready = append(a.Ready, name)
			}
		}
		installed = installed || st.Installed
		ready = ready || st.Installed && len(a.Ready) > 0
		out.Agents = append(out.Agents, a)
	}
	missing := func(code fault.Code, message string) {
		out.Missing = append(out.Missing, operation.Missing{Code: string(code), Message: message, Remedy: fault.Lookup(code).Remedy})
	}
	switch {
	case !installed:
		missing(fault.AgentNotInstalled, "No agent is installed.")
	case !ready && len(c.providers.Names()) == 0:
		missing(fault.ModelKeyMissing, "The server has no key for any model provider.")
	case !ready:
		missing(fault.ModelKeyMissing, "None of the installed agents can use the providers that have a key: "+strings.Join(c.providers.Names(), ", ")+".")
	}
	if err := c.test.failure(); err != nil {
		missing(fault.CodeOf(err), fault.From(err).Sentence())
	}
	return out, nil
}
