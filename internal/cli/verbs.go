package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
)

func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return escapeJSON(a.Stdout, b)
}

func (a *app) listCmd() *cobra.Command {
	var in client.ListInput
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sessions, newest first",
		Example: "  hearth list\n  hearth list --phase running,queued\n  hearth list --all --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			var items []client.Session
			for {
				page, err := c.List(cmd.Context(), in)
				if err != nil {
					return err
				}
				items = append(items, page.Items...)
				if in.Below = page.Next; !all || page.Next == "" {
					break
				}
			}
			if asJSON {
				if items == nil {
					items = []client.Session{}
				}
				return a.printJSON(items)
			}
			if len(items) == 0 {
				a.note("There are no sessions. Make one with hearth run.")
				return nil
			}
			t := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(t, "SESSION\tPHASE\tAGENT\tTURNS\tAGE\tBRANCH\tTITLE")
			for _, s := range items {
				_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", sanitizeLine(s.ID), sanitizeLine(s.Phase), sanitizeLine(s.Agent), s.Turns,
					age(a.Now().Sub(s.CreatedAt)), clip(sanitizeLine(s.Branch), 40), clip(sanitizeLine(s.Title), 60))
			}
			return t.Flush()
		},
	}
	cmd.Flags().StringSliceVar(&in.Phases, "phase", nil, "only sessions in these phases")
	cmd.Flags().StringVar(&in.Repo, "repo", "", "only sessions of this repository")
	cmd.Flags().IntVar(&in.Limit, "limit", 0, "page size (default 50)")
	cmd.Flags().BoolVar(&all, "all", false, "all pages")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func (a *app) cancelCmd() *cobra.Command {
	var turn string
	cmd := &cobra.Command{
		Use:     "cancel [SESSION]",
		Short:   "Stop the turn at work, or take one out of the queue",
		Long:    "Stop the turn at work; its work is packed and kept. Without SESSION it is the newest one.",
		Example: "  hearth cancel ses_01J…\n  hearth cancel ses_01J… --turn trn_01J…",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			id, err := sessionOf(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			s, err := c.Cancel(cmd.Context(), id, turn)
			if err != nil {
				return err
			}
			a.print("%s is %s.\n", sanitizeLine(s.ID), sanitizeLine(s.Phase))
			return nil
		},
	}
	cmd.Flags().StringVar(&turn, "turn", "", "turn id (default: the one at work)")
	return cmd
}

func (a *app) diffCmd() *cobra.Command {
	var turn string
	var stat, names bool
	cmd := &cobra.Command{
		Use:     "diff [SESSION]",
		Short:   "Show what a session changed",
		Long:    "Compare a session's packed work with where it began. Wakes nothing. Without SESSION it is the newest one.",
		Example: "  hearth diff ses_01J… --stat\n  hearth diff ses_01J… | git apply",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format := "patch"
			switch {
			case stat && names:
				return usageError{errors.New("--stat and --names do not go together")}
			case stat:
				format = "stat"
			case names:
				format = "names"
			}
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			id, err := sessionOf(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			d, err := c.Diff(cmd.Context(), id, turn, format)
			if err != nil {
				return err
			}
			text := d.Text
			if a.IsTerminal(a.Stdout) {
				text = a.colourDiff(sanitize(text), format)
			}
			a.print("%s", text)
			if d.Truncated {
				a.note("The difference is longer than is shown.")
			}
			if text == "" {
				a.note("Nothing changed.")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&turn, "turn", "", "only this turn's work")
	cmd.Flags().BoolVar(&stat, "stat", false, "files and how many lines")
	cmd.Flags().BoolVar(&names, "names", false, "only names of files")
	return cmd
}

// colourDiff colours a patch that is harmless already.
func (a *app) colourDiff(text, format string) string {
	st := a.style(a.Stdout)
	if !st.on || format != "patch" {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	for i, l := range lines {
		body, end := strings.CutSuffix(l, "\n")
		switch {
		case strings.HasPrefix(l, "diff "), strings.HasPrefix(l, "+++"), strings.HasPrefix(l, "---"):
			body = st.bold(body)
		case strings.HasPrefix(l, "@@"):
			body = st.paint("36", body)
		case strings.HasPrefix(l, "+"):
			body = st.good(body)
		case strings.HasPrefix(l, "-"):
			body = st.bad(body)
		}
		if lines[i] = body; end {
			lines[i] += "\n"
		}
	}
	return strings.Join(lines, "")
}

func (a *app) deliverCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "deliver SESSION",
		Short:   "Push work that the remote does not have",
		Example: "  hearth deliver ses_01J…",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			before, err := c.Get(ctx, args[0])
			if err != nil {
				return err
			}
			s, err := c.Deliver(ctx, args[0])
			if err != nil {
				return err
			}
			// A push takes seconds; what came of it is on the last turn.
			for range 300 {
				if t := s.LastTurn; t != nil && delivered(t) != delivered(before.LastTurn) {
					if t.Delivery.State == "failed" {
						a.status = exitDeliveryFailed
						a.note("Not delivered: %s (%s)", sanitizeBlock(t.Delivery.Message), sanitizeLine(t.Delivery.Code))
						a.note("  Try: %s", sanitizeBlock(t.Delivery.Remedy))
						return nil
					}
					a.print("%s is at %s, as read back from the remote.\n", sanitizeLine(s.Branch), sanitizeLine(t.Delivery.Commit))
					return nil
				}
				select {
				case <-time.After(200 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
				if s, err = c.Get(ctx, args[0]); err != nil {
					return err
				}
			}
			a.note("The push still goes on. See it with hearth list or hearth attach %s.", sanitizeLine(args[0]))
			return nil
		},
	}
}

// delivered says when a turn's delivery was last decided; it tells one from the next.
func delivered(t *client.Turn) string {
	if t == nil || t.Delivery == nil || t.Delivery.At == nil {
		return ""
	}
	return t.ID + t.Delivery.At.String()
}

func (a *app) discardCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "discard SESSION",
		Short:   "Set the work back to the last delivered commit",
		Example: "  hearth discard ses_01J…",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := c.Discard(cmd.Context(), args[0]); err != nil {
				return err
			}
			a.print("The undelivered work of %s is being discarded.\n", sanitizeLine(args[0]))
			return nil
		},
	}
}

func (a *app) deleteCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "delete SESSION…",
		Aliases: []string{"rm"},
		Short:   "Delete sessions; their branches stay",
		Long:    "Delete sessions with their conversation and sandbox. Branches at the remote stay.\nA session with a turn at work or undelivered work needs --force.",
		Example: "  hearth delete ses_01J…\n  hearth delete --force ses_01J…",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			for _, id := range args {
				if _, err := c.Delete(cmd.Context(), id, force); err != nil {
					return err
				}
				a.print("%s is being deleted.\n", sanitizeLine(id))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also with a turn at work or undelivered work")
	return cmd
}
