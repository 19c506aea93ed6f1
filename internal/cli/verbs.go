package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/fault"
)

func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return escapeJSON(a.Stdout, b)
}

// mostListed is the largest page of sessions that a server gives.
const mostListed = 200

func (a *app) listCmd() *cobra.Command {
	var in client.ListInput
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sessions, newest first",
		Example: "  hearth list\n  hearth list --phase running,queued\n  hearth list --all --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("limit") && (in.Limit < 1 || in.Limit > mostListed) {
				return misused("--limit must be between 1 and %d; --all shows all", mostListed)
			}
			c, err := a.connect(cmd.Context())
			none := errors.Is(err, errNoState)
			if err != nil && !none {
				return err
			}
			var items []client.Session
			more := false
			for !none {
				page, err := c.List(cmd.Context(), in)
				if err != nil {
					return err
				}
				items = append(items, page.Items...)
				if in.Below = page.Next; !all || page.Next == "" {
					more = page.Next != ""
					break
				}
			}
			if asJSON {
				if items == nil {
					items = []client.Session{}
				}
				return a.printJSON(items)
			}
			switch {
			case len(items) == 0 && (in.Repo != "" || len(in.Phases) > 0):
				a.note("No session matches. All of them: %s list", a.self())
				return nil
			case len(items) == 0:
				a.note("There are no sessions. Make one with `hearth run`.")
				return nil
			}
			// Where all are of one repository it would only take room.
			repo := func(*client.Session) string { return "" }
			head := "SESSION\tPHASE\tAGENT\tTURNS\tAGE\tBRANCH\tTITLE"
			if slices.ContainsFunc(items, func(s client.Session) bool { return s.Repo != items[0].Repo }) {
				head = strings.Replace(head, "BRANCH", "REPOSITORY\tBRANCH", 1)
				repo = func(s *client.Session) string { return clipFront(cmp.Or(sanitizeLine(s.Repo), "-"), 40) + "\t" }
			}
			t := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(t, head)
			for i := range items {
				s := &items[i]
				_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s%s\t%s\n", sanitizeLine(s.ID), sanitizeLine(s.Phase), sanitizeLine(s.Agent), s.Turns,
					age(a.Now().Sub(s.CreatedAt)), repo(s), clip(sanitizeLine(s.Branch), 40), clip(sanitizeLine(s.Title), 60))
			}
			err = t.Flush()
			if more {
				a.note("There are more: --all shows them.")
			}
			return err
		},
	}
	cmd.Flags().StringSliceVar(&in.Phases, "phase", nil, "only sessions in these phases, such as running, queued, failed, idle")
	cmd.Flags().StringVar(&in.Repo, "repo", "", "only sessions of this repository")
	cmd.Flags().IntVar(&in.Limit, "limit", 0, "how many to show, 1 to 200 (default 50)")
	cmd.Flags().BoolVar(&all, "all", false, "show all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// clipFront shortens a text to its end, where repositories differ.
func clipFront(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return "…" + string(r[len(r)-most+1:])
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
		Long:    "Stop the turn at work; what it did is packed and kept, and prompts that wait stay in\nthe queue until the next prompt. " + newestRule,
		Example: "  hearth cancel ses_01J…\n  hearth cancel ses_01J… --turn trn_01J…",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			id, err := a.sessionOf(cmd.Context(), c, args, false)
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
		Use:   "diff [SESSION]",
		Short: "Show what a session changed",
		Long: `Compare a session's packed work with where it began. Wakes nothing.
` + newestRule + `

Exit status 7 when the difference is longer than 4 MiB, and only its beginning is
shown: hearth bundle has all of it.`,
		Example: "  hearth diff ses_01J… --stat\n  hearth diff ses_01J… | git apply",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			format := "patch"
			switch {
			case stat && names:
				return misused("--stat and --names do not go together")
			case stat:
				format = "stat"
			case names:
				format = "names"
			}
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			id, err := a.sessionOf(cmd.Context(), c, args, false)
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
				a.status = fault.KindExhausted.ExitStatus()
				a.note("The difference is longer than is shown: what was written is not all of it and cannot be applied.")
				a.note("  All of it, as a file for git: %s bundle %s", a.self(), sanitizeLine(id))
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
		Use:   "deliver [SESSION]",
		Short: "Push work that the remote does not have",
		Long: `Push a session's packed work that the remote does not have, such as that of a turn
that failed or was canceled, or whose push was refused. Nobody's commits are
overwritten. ` + newestRule + `

Exit status: 0 pushed, as read back from the remote · 10 not pushed · others by
the kind of the error: hearth help exit-status`,
		Example: "  hearth deliver\n  hearth deliver ses_01J…",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.reach(ctx, current)
			if err != nil {
				return err
			}
			id, err := a.sessionOf(ctx, c, args, false)
			if err != nil {
				return err
			}
			before, err := c.Get(ctx, id)
			if err != nil {
				return err
			}
			s, err := c.Deliver(ctx, id)
			if err != nil {
				return err
			}
			// A push takes seconds, at most a quarter of an hour; what came of it is on the last turn.
			asked, told := a.Now(), false
			for a.Now().Sub(asked) < 20*time.Minute {
				if t := s.LastTurn; t != nil && delivered(t) != delivered(before.LastTurn) {
					if t.Delivery.State == "failed" {
						a.status = exitDeliveryFailed
						a.note("Not delivered: %s (%s)", sanitizeBlock(t.Delivery.Message), sanitizeLine(t.Delivery.Code))
						a.note("  Try: %s", sanitizeBlock(t.Delivery.Remedy))
						if t.Commit != "" {
							a.note("  As a file: %s bundle %s", a.self(), sanitizeLine(id))
						}
						return nil
					}
					a.print("%s is at %s, as read back from the remote.\n", sanitizeLine(s.Branch), sanitizeLine(t.Delivery.Commit))
					return nil
				}
				if !told && a.Now().Sub(asked) > 10*time.Second {
					told = true
					a.note("The push goes on …")
				}
				select {
				case <-time.After(200 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
				if s, err = c.Get(ctx, id); err != nil {
					return err
				}
			}
			return fault.New(fault.ForgeUnavailable, "The push has not ended. See what came of it: %s attach %s", a.self(), id)
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
		Use:   "discard SESSION",
		Short: "Throw away work that the remote does not have",
		Long: `Set a session's work back to the last delivered commit, or to where it began.
` + namedRule + ` To keep a copy, fetch it with
‘hearth bundle’ first.`,
		Example: "  hearth discard ses_01J…",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.unnamed(cmd.Context(), "discard", "throwing work away", func(s *client.Session) bool { return s.Undelivered })
			}
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			id, err := a.sessionOf(cmd.Context(), c, args, true)
			if err != nil {
				return err
			}
			if _, err := c.Discard(cmd.Context(), id); err != nil {
				return err
			}
			a.print("The undelivered work of %s is being discarded.\n", sanitizeLine(id))
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
		Long: `Delete sessions with their conversation and sandbox. Branches at the remote stay.
` + namedRule + `
A session with a turn at work or undelivered work needs --force. When one of several
cannot be deleted the others are; the exit status is that of the last error.`,
		Example: "  hearth delete ses_01J…\n  hearth delete --force ses_01J…",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.unnamed(cmd.Context(), "delete", "deleting a session", func(*client.Session) bool { return true })
			}
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			failed := 0
			for _, arg := range args {
				id, err := a.sessionOf(cmd.Context(), c, []string{arg}, true)
				if err == nil {
					_, err = c.Delete(cmd.Context(), id, force)
				}
				switch {
				case err == nil:
					a.print("%s is being deleted.\n", sanitizeLine(id))
				case len(args) == 1 || cmd.Context().Err() != nil:
					return err
				default:
					failed++
					a.note("%s is not deleted:", sanitizeLine(arg))
					a.status = a.explain(cmd, err)
				}
			}
			if failed > 0 {
				a.note("%d of %d sessions are not deleted.", failed, len(args))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also with a turn at work or undelivered work, which is lost")
	return cmd
}
