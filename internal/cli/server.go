package cli

import (
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
)

// setting is a flag of `hearth serve`; what was given is judged by package config.
type setting struct {
	field config.Field
	into  map[string]string
}

// String is the value given; the type is a pflag.Value.
func (s *setting) String() string {
	if s.into == nil {
		return ""
	}
	return s.into[s.field.Name]
}

// Set keeps the value.
func (s *setting) Set(v string) error {
	s.into[s.field.Name] = v
	return nil
}

// Type is shown in the help text.
func (s *setting) Type() string { return s.field.Type }

func (a *app) serveCmd() *cobra.Command {
	given := map[string]string{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Run the server until it is told to stop. Running sandboxes survive a restart.

Every flag has an environment variable: --listen is HEARTH_LISTEN. Keys of model
providers come from the environment only, such as ANTHROPIC_API_KEY.`,
		Example: "  hearth serve\n  hearth serve --listen 127.0.0.1:8080 --max-sandboxes 4",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config(given)
			if err != nil {
				return err
			}
			if a.Serve == nil {
				return fault.New(fault.Unsupported, "This program has no server in it.")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return a.Serve(ctx, cfg)
		},
	}
	for _, f := range config.Fields() {
		if f.Name == "state-dir" {
			continue // every command has it
		}
		doc := f.Doc
		if f.Default != "" && !f.Bool {
			doc += " Default: " + strings.ReplaceAll(f.Default, ",", ", ") + "."
		}
		cmd.Flags().Var(&setting{f, given}, f.Name, doc)
		if f.Bool {
			cmd.Flags().Lookup(f.Name).NoOptDefVal = "true"
		}
	}
	return cmd
}

func (a *app) agentCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Install and check agents",
		Long:  "Agents are installed on the server's machine, pinned and checked by hash, and shown read-only to sandboxes.",
	}
	var from string
	install := &cobra.Command{
		Use:     "install NAME…",
		Short:   "Fetch agents, pinned and checked",
		Example: "  hearth agent install claude codex\n  hearth agent install claude --from /media/agents",
		Args:    someOf("the name of an agent"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.AgentInstall == nil {
				return fault.New(fault.Unsupported, "This program cannot install agents.")
			}
			cfg, err := a.config(nil)
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := a.AgentInstall(cmd.Context(), cfg, InstallAsk{Name: name, From: from}, a.progress); err != nil {
					return err
				}
				a.print("%s is installed.\n", sanitizeLine(name))
			}
			return nil
		},
	}
	install.Flags().StringVar(&from, "from", "", "folder that has what would be fetched; nothing is then taken from the network")
	var asJSON bool
	list := &cobra.Command{
		Use:   "list",
		Short: "List known agents",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.AgentList == nil {
				return fault.New(fault.Unsupported, "This program knows no agents.")
			}
			cfg, err := a.config(nil)
			if err != nil {
				return err
			}
			all, err := a.AgentList(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(all)
			}
			t := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(t, "AGENT\tVERSION\tINSTALLED\tPROVIDERS\tTITLE")
			for _, s := range all {
				installed := "no"
				if s.Installed {
					installed = "yes"
				}
				_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", sanitizeLine(s.Name), sanitizeLine(s.Version), installed,
					sanitizeLine(strings.Join(s.Providers, ", ")), sanitizeLine(strings.TrimSpace(s.Title+" "+s.Detail)))
			}
			return t.Flush()
		},
	}
	list.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	verify := &cobra.Command{
		Use:   "verify NAME…",
		Short: "Check installed agents and try them in a sandbox",
		Long: `Check the files of installed agents against their hashes, then run each, the real
program, in a sandbox of a server of its own: it is started, does a task, is
canceled at another, killed at a third, and must go on where it was. The model is a
scripted one: no key is needed, nothing is spent, no session of yours is touched.

This takes about half a minute an agent. The last line says that it passed; a step
that fails is named, with exit status 8.`,
		Example: "  hearth agent verify claude",
		Args:    someOf("the name of an agent"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.AgentVerify == nil {
				return fault.New(fault.Unsupported, "This program cannot check agents.")
			}
			cfg, err := a.config(nil)
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := a.AgentVerify(cmd.Context(), cfg, name, a.progress); err != nil {
					return err
				}
				a.print("%s passed: its files are as they were installed, and it works in a sandbox.\n", sanitizeLine(name))
			}
			return nil
		},
	}
	cmd.AddCommand(install, list, verify)
	return cmd
}

// progress shows a line of what goes on.
func (a *app) progress(line string) {
	a.note("%s", a.style(a.Stderr).dim(clip(sanitizeLine(line), 160)))
}

func (a *app) doctorCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine needs to run sandboxes",
		Long:  "Check what this machine needs. Every check that fails says what to do. Exit status 8 when one fails.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Doctor == nil {
				return fault.New(fault.Unsupported, "This program has no checks.")
			}
			cfg, err := a.config(nil)
			if err != nil {
				return err
			}
			r, err := a.Doctor(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			for _, c := range r.Checks {
				if !c.OK {
					a.status = fault.KindUnavailable.ExitStatus()
				}
			}
			if asJSON {
				return a.printJSON(r)
			}
			st := a.style(a.Stdout)
			for _, c := range r.Checks {
				mark := st.good("✓")
				if !c.OK {
					mark = st.bad("✗")
				}
				a.print("%s %s", mark, sanitizeLine(c.Name))
				if c.Detail != "" {
					a.print(": %s", sanitizeBlock(c.Detail))
				}
				a.print("\n")
				if !c.OK && c.Remedy != "" {
					a.print("  Try: %s\n", sanitizeBlock(c.Remedy))
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func (a *app) versionText() string {
	v := a.Version.Version
	if v == "" {
		v = "dev"
	}
	return strings.Join(strings.Fields(v+" "+a.Version.Commit+" "+a.Version.Go), " ")
}

func (a *app) versionCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return a.printJSON(a.Version)
			}
			a.print("hearth %s\n", a.versionText())
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}
