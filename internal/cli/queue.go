package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
)

// turnPrefix begins the id of every turn.
const turnPrefix = "trn_"

func (a *app) queueCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "queue [SESSION]",
		Short: "List the prompts that wait, and change them",
		Long: `List the prompts that wait in a session, in the order in which they go out, with the
ids by which they are changed, or ends of those that no other has. ` + newestRule + `

A queue is held when a turn failed or was canceled, or by ‘hearth queue hold’; it goes
on with ‘hearth queue release’ or with a new prompt.`,
		Example: "  hearth queue\n  hearth queue edit trn_01J… \"Now with a test\"\n  hearth queue edit trn_01J… --position 1\n  hearth queue remove trn_01J…",
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
			q, err := c.Queue(cmd.Context(), id)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(q)
			}
			return a.queue(id, &q)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.AddCommand(a.queueEditCmd(), a.queueRemoveCmd(), a.queueHoldCmd(), a.queueReleaseCmd())
	return cmd
}

func (a *app) queue(id string, q *client.Queue) error {
	if len(q.Items) == 0 {
		a.print("No prompt waits.\n")
	} else {
		t := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "PLACE\tTURN\tAGE\tPROMPT")
		for i := range q.Items {
			x := &q.Items[i]
			edited := ""
			if x.EditedAt != nil {
				edited = "(edited) "
			}
			_, _ = fmt.Fprintf(t, "%d\t%s\t%s\t%s%s\n", i+1, sanitizeLine(x.ID), age(a.Now().Sub(x.AcceptedAt)), edited, clip(sanitizeLine(x.Prompt), 80))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if q.Held {
		a.note("The queue is held. Let it go on: %s queue release %s", a.self(), sanitizeLine(id))
	}
	return nil
}

// queuedArgs tells the session, if it is named, the turn and what follows it. A turn may be
// named by an end of its id: without trn_ only as the first word, or behind a session's ses_.
func queuedArgs(args []string) (session []string, turn string, rest []string, err error) {
	for i, arg := range args[:min(len(args), 2)] {
		if strings.HasPrefix(arg, turnPrefix) {
			return args[:i], arg, args[i+1:], nil
		}
	}
	at := 0
	if len(args) > 0 && strings.HasPrefix(args[0], sessionPrefix) {
		at = 1
	}
	if len(args) > at && maybeEnd(args[at]) {
		return args[:at], args[at], args[at+1:], nil
	}
	return nil, "", nil, usageError{error: fmt.Errorf("the id of a turn (%s…) is missing", turnPrefix), remedy: "hearth queue   shows those that wait"}
}

// queued is the turn of an argument: its id, or an end of it that no other that waits has.
func queued(ctx context.Context, c *client.Client, session, arg string) (string, error) {
	end := strings.ToLower(strings.TrimPrefix(arg, turnPrefix))
	if !maybeEnd(end) || len(end) == idTail {
		return arg, nil // the server judges it
	}
	q, err := c.Queue(ctx, session)
	if err != nil {
		return "", err
	}
	var found []string
	for i := range q.Items {
		switch id := q.Items[i].ID; {
		case id == arg:
			return id, nil
		case strings.HasSuffix(id, end):
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return arg, nil
	case 1:
		return found[0], nil
	}
	return "", usageError{error: fmt.Errorf("%d turns that wait have an id that ends with %q", len(found), end), remedy: strings.Join(found[:min(len(found), 5)], "\n")}
}

func (a *app) queueEditCmd() *cobra.Command {
	var in client.Edit
	cmd := &cobra.Command{
		Use:   "edit [SESSION] TURN [TEXT | -]",
		Short: "Change the text or the place of a prompt that waits",
		Long: `Give a prompt that waits another text, or another place with --position: the
argument, or standard input with "-". A prompt that has gone out meanwhile is left as
it is, and exit status 6 says so. ` + newestRule,
		Example: "  hearth queue edit trn_01J… \"Now with a test\"\n  hearth queue edit ses_01J… trn_01J… - < task.md\n  hearth queue edit trn_01J… --position 1",
		RunE: func(cmd *cobra.Command, args []string) error {
			session, turn, words, err := queuedArgs(args)
			if err != nil {
				return err
			}
			placed := cmd.Flags().Lookup("position").Changed
			switch {
			case placed && in.Position < 1:
				return misused("--position must be 1 or more")
			case len(words) == 0 && !placed:
				return misused("the new text of the prompt, or --position, is missing")
			case len(words) > 0:
				if in.Prompt, err = a.text("prompt", words); err != nil {
					return err
				}
			}
			c, id, err := a.sessionFor(cmd.Context(), answering, session)
			if err != nil {
				return err
			}
			if turn, err = queued(cmd.Context(), c, id, turn); err != nil {
				return err
			}
			e, err := c.EditQueued(cmd.Context(), id, turn, in)
			if err != nil {
				return err
			}
			a.print("%s is number %d in the queue.\n", sanitizeLine(turn), e.Position)
			return nil
		},
	}
	cmd.Flags().IntVar(&in.Position, "position", 0, "its new place: 1 goes first")
	return cmd
}

func (a *app) queueRemoveCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "remove [SESSION] TURN",
		Aliases: []string{"rm"},
		Short:   "Take a prompt out of the queue",
		Long: `Take a prompt out of the queue: its turn ends as canceled and never started. The turn
at work and the other prompts are not touched. A prompt that has gone out meanwhile is
left as it is, and exit status 6 says so. ` + newestRule,
		Example: "  hearth queue remove trn_01J…\n  hearth queue remove ses_01J… trn_01J…",
		RunE: func(cmd *cobra.Command, args []string) error {
			session, turn, rest, err := queuedArgs(args)
			switch {
			case err != nil:
				return err
			case len(rest) > 0:
				return misused("%q is too much: the command takes one turn", rest[0])
			}
			c, id, err := a.sessionFor(cmd.Context(), answering, session)
			if err != nil {
				return err
			}
			if turn, err = queued(cmd.Context(), c, id, turn); err != nil {
				return err
			}
			if _, err := c.RemoveQueued(cmd.Context(), id, turn); err != nil {
				return err
			}
			a.print("%s is not in the queue any more.\n", sanitizeLine(turn))
			return nil
		},
	}
}

func (a *app) queueHoldCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "hold [SESSION]",
		Short: "Let the prompts that wait wait on",
		Long: `Hold a session's queue: the turn at work goes on, the next prompt waits for
‘hearth queue release’ or for a new prompt. ` + newestRule,
		Example: "  hearth queue hold\n  hearth queue hold ses_01J…",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.sessionFor(cmd.Context(), answering, args)
			if err != nil {
				return err
			}
			s, err := c.HoldQueue(cmd.Context(), id)
			if err != nil {
				return err
			}
			a.print("The queue of %s is held; %s.\n", sanitizeLine(id), waiting(len(s.Queue)))
			return nil
		},
	}
}

func (a *app) queueReleaseCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "release [SESSION]",
		Short:   "Let a held queue go on",
		Long:    "Let a session's held queue go on with the prompt that waits first. " + newestRule,
		Example: "  hearth queue release\n  hearth queue release ses_01J…",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.sessionFor(cmd.Context(), ready, args)
			if err != nil {
				return err
			}
			s, err := c.ReleaseQueue(cmd.Context(), id)
			if err != nil {
				return err
			}
			a.print("The queue of %s goes on; %s.\n", sanitizeLine(id), waiting(len(s.Queue)))
			return nil
		},
	}
}

func waiting(n int) string {
	switch n {
	case 0:
		return "no prompt waits"
	case 1:
		return "1 prompt waits"
	}
	return fmt.Sprintf("%d prompts wait", n)
}

// sessionFor reaches the server and finds the session that was named, else the newest one.
func (a *app) sessionFor(ctx context.Context, want need, args []string) (*client.Client, string, error) {
	c, err := a.reach(ctx, want)
	if err != nil {
		return nil, "", err
	}
	id, err := a.sessionOf(ctx, c, args, false)
	return c, id, err
}
