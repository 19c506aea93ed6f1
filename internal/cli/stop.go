package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
)

// endWait is how long a server may take to end: it closes its doors within seconds.
const endWait = 30 * time.Second

// releaseWait is how long idle sandboxes may take to go.
const releaseWait = time.Minute

func (a *app) stopCmd() *cobra.Command {
	var sandboxes bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "End the server of the state folder",
		Long: `End the server that works on the state folder, whether it was started in the
background or by ‘hearth serve’. Nothing that was accepted is lost: sandboxes live
on, turns at work go on in them, and the next server takes them back. The next
command starts that, with the environment which that command has.

With --sandboxes those sandboxes that are idle go, too: their sessions go on from
the packed work in new ones. That is refused while a turn is at work.`,
		Example: "  hearth stop\n  hearth stop --sandboxes",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if address := a.elsewhere(); address != "" {
				return misused("%s is a server elsewhere: stop ends the one of this machine's state folder. Leave out --server and HEARTH_SERVER", address)
			}
			cfg, err := a.config(nil)
			if err != nil {
				return err
			}
			if sandboxes {
				if err := a.releaseSandboxes(cmd.Context(), cfg); err != nil {
					return err
				}
			}
			return a.stop(cmd.Context(), cfg, sandboxes)
		},
	}
	cmd.Flags().BoolVar(&sandboxes, "sandboxes", false, "release idle sandboxes first")
	return cmd
}

func (a *app) stop(ctx context.Context, cfg config.Config, released bool) error {
	pid, err := a.holder(cfg.StateDir)
	if err != nil {
		return err
	}
	if pid == 0 {
		a.note("No server runs for %s.", cfg.StateDir)
		return nil
	}
	live := -1 // not known
	if c, err := a.find(ctx, cfg, a.Getenv("HEARTH_TOKEN"), answering); err == nil {
		if n, err := liveSandboxes(ctx, c); err == nil {
			live = n
		}
	}
	if err := a.end(ctx, cfg.StateDir, pid); err != nil {
		return err
	}
	a.print("The server of %s (process %d) has ended.\n", cfg.StateDir, pid)
	switch {
	case live == 0:
	case live < 0 || released:
		a.print("Sandboxes that are there live on, and the next server takes them back.\n")
	default:
		a.print("%s, and the next server takes back what lives. To release what is idle: %s stop --sandboxes\n", liveOn(live), a.self())
	}
	if next := a.holderOf(cfg.StateDir); next != 0 {
		a.note("Another server (process %d) works on the folder already: whatever started it, such as a service manager, must be told to stop it.", next)
	}
	return nil
}

func liveOn(n int) string {
	if n == 1 {
		return "1 sandbox lives on"
	}
	return fmt.Sprintf("%d sandboxes live on", n)
}

// end tells a server to end and waits until it has left the state folder.
func (a *app) end(ctx context.Context, stateDir string, pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find the server's process: %w", err)
	}
	defer p.Release() //nolint:errcheck // nothing is done with it any more
	// The process is held: if it has the folder now, the signal reaches it and no other.
	if now, err := a.holder(stateDir); err != nil || now != pid {
		return err
	}
	switch err := p.Signal(syscall.SIGTERM); {
	case errors.Is(err, os.ErrPermission):
		return &client.Error{
			Code: string(fault.Unauthenticated), Kind: string(fault.KindUnauthenticated), Message: fmt.Sprintf("The server (process %d) runs as another user.", pid),
			Remedy: "Run this as that user or as root.",
		}
	case err != nil && !errors.Is(err, os.ErrProcessDone):
		return fmt.Errorf("end the server (process %d): %w", pid, err)
	}
	deadline := time.NewTimer(endWait)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if now, err := a.holder(stateDir); err != nil || now != pid {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return &client.Error{
				Code: string(fault.ServerUnavailable), Kind: string(fault.KindUnavailable), Message: fmt.Sprintf("The server (process %d) was told to end %v ago and still works on %s.", pid, endWait, stateDir),
				Remedy: fmt.Sprintf("Wait and look again, or end it at once: kill -9 %d. Nothing that was accepted is lost by that.", pid),
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// releaseSandboxes has idle sandboxes released by a server for that alone, whose idle time
// is short, in place of the one that runs.
func (a *app) releaseSandboxes(ctx context.Context, cfg config.Config) error {
	token := a.Getenv("HEARTH_TOKEN")
	pid, err := a.holder(cfg.StateDir)
	if err != nil {
		return err
	}
	flags := []string{"--sandbox-idle", "1s"}
	if pid != 0 {
		settings, ok := readSettings(cfg.StateDir, pid)
		if !ok {
			return usageError{error: fmt.Errorf("the server (process %d) was not started by a command, and its settings are its own", pid),
				remedy: fmt.Sprintf("Stop it first, as a service or with: %s stop\nThen %s stop --sandboxes releases what it left, with the settings of this shell.", a.self(), a.self())}
		}
		c, err := (&starter{a: a, cfg: cfg, token: token}).reach(ctx, answering)
		if err != nil {
			return err
		}
		why, err := atWork(ctx, c, false)
		if err != nil {
			return err
		}
		if why != "" {
			return fault.New(fault.TurnInFlight, "A turn is at work or waits: no sandbox is released.")
		}
		if n, err := liveSandboxes(ctx, c); err != nil || n == 0 {
			return err
		}
		for _, name := range a.changed(&settings) {
			if name == "HEARTH_SANDBOX" {
				return misused("the sandboxes were made with another HEARTH_SANDBOX than this shell has")
			}
		}
		if err := a.end(ctx, cfg.StateDir, pid); err != nil {
			return err
		}
	}
	s := &starter{a: a, cfg: cfg, token: token, flags: flags}
	defer s.done()
	c, err := s.reach(ctx, answering)
	if err != nil {
		return err
	}
	began, left, most := a.Now(), 0, 0
	for a.Now().Sub(began) < releaseWait {
		if left, err = liveSandboxes(ctx, c); err != nil {
			return err
		}
		if most = max(most, left); left == 0 {
			a.print("Idle sandboxes that were released: %d.\n", most)
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.note("%s after %v: %s says why.", liveOn(left), releaseWait, strings.TrimSpace(cfg.LogFile()))
	return nil
}
