package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/fault"
)

const statuses = `
Exit status: 0 completed · 10 completed, but the work did not reach the remote ·
130 canceled · for a failed turn or a refused command by the kind of its code:
1 internal, 2 invalid, 3 unauthenticated, 4 forbidden, 5 not found, 6 conflict,
7 exhausted, 8 unavailable, 9 timeout.`

func (a *app) sink() sink {
	return newTextSink(a.Stdout, a.style(a.Stdout), a.IsTerminal(a.Stdout) && a.Getenv("TERM") != "dumb", a.Now, a.self())
}

func (a *app) sinkFor(cmd *cobra.Command) sink {
	if a.wantJSON(cmd) {
		return jsonSink{a.Stdout}
	}
	return a.sink()
}

func jsonFlag(cmd *cobra.Command) {
	cmd.Flags().Bool("json", false, "one JSON object a line; the default when the output is no terminal")
}

// task is the prompt: the arguments, or standard input for "-".
func (a *app) task(args []string) (string, error) {
	text := strings.Join(args, " ")
	if text == "-" {
		b, err := io.ReadAll(io.LimitReader(a.Stdin, 1<<20))
		if err != nil {
			return "", fmt.Errorf("read the task from standard input: %w", err)
		}
		text = string(b)
	}
	if strings.TrimSpace(text) == "" {
		return "", usageError{errors.New("the task is empty")}
	}
	return text, nil
}

func (a *app) runCmd() *cobra.Command {
	var in client.CreateInput
	var detach bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   `run [--repo URL] TASK | -`,
		Short: "Give an agent a task in a new session and watch it",
		Long: `Make a session with a task, watch the agent work, and get a branch.

The task is the argument, or standard input with "-". Without --repo the agent
works in an empty scratch folder. Ctrl-C asks whether to detach or to stop; the
turn goes on when the command or its terminal goes away.
` + statuses,
		Example: `  hearth run --repo https://git.example.org/app.git "Fix the flaky login test"
  hearth run --repo https://git.example.org/app.git --agent codex --branch fix/login - < task.md
  hearth run --repo https://git.example.org/app.git --json "Update the README" | jq .`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			var err error
			if in.Prompt, err = a.task(args); err != nil {
				return err
			}
			if limit < 0 || limit > 24*time.Hour {
				return usageError{errors.New("--limit must be between 0 and 24h")}
			}
			in.TotalLimitSeconds = int64(limit.Round(time.Second) / time.Second)
			in.Key = a.NewKey()
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			made, err := again(ctx, func() (client.Accepted, error) { return c.Create(ctx, in) })
			if err != nil {
				return err
			}
			out := a.sinkFor(cmd)
			out.session(&made.Session)
			if detach {
				out.detached(&made.Session)
				a.note("See it: hearth attach %s", sanitizeLine(made.Session.ID))
				return nil
			}
			a.status, err = a.follow(ctx, &following{c: c, session: made.Session, turn: made.Turn.ID, options: client.StreamOptions{After: "0.0"}, out: out})
			return err
		},
	}
	cmd.Flags().StringVar(&in.Repo, "repo", "", "URL of the git repository")
	cmd.Flags().StringVar(&in.Agent, "agent", "", "agent: see hearth agent list (default claude)")
	cmd.Flags().StringVar(&in.Model, "model", "", "model (default: the agent's)")
	cmd.Flags().StringVar(&in.Branch, "branch", "", "branch for the work; an existing one is continued (default: a fresh one)")
	cmd.Flags().StringVar(&in.Base, "base", "", "branch to start from (default: the repository's)")
	cmd.Flags().StringVar(&in.Title, "title", "", "title (default: the first line of the task)")
	cmd.Flags().DurationVar(&limit, "limit", 0, "longest turn (default 30m)")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not watch")
	jsonFlag(cmd)
	return cmd
}

// again repeats a call with an idempotency key whose answer was lost.
func again(ctx context.Context, call func() (client.Accepted, error)) (client.Accepted, error) {
	for try := 0; ; try++ {
		out, err := call()
		var e *client.Error
		if err == nil || !errors.As(err, &e) || e.Code != string(fault.ServerUnavailable) || e.Status != 0 || try == 2 {
			return out, err
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

func (a *app) promptCmd() *cobra.Command {
	var in client.PromptInput
	var detach bool
	cmd := &cobra.Command{
		Use:   "prompt SESSION TEXT | -",
		Short: "Send a further prompt and watch its turn",
		Long: `Send a prompt to a session and watch its turn.

When a turn is at work, the prompt waits in the queue; --interrupt stops that
turn, --reject refuses instead.
` + statuses,
		Example: `  hearth prompt ses_01J… "Now add a test"
  hearth prompt ses_01J… --interrupt "Stop: use the other library"`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			id := args[0]
			var err error
			if in.Prompt, err = a.task(args[1:]); err != nil {
				return err
			}
			interrupt, reject := cmd.Flags().Lookup("interrupt").Changed, cmd.Flags().Lookup("reject").Changed
			switch {
			case interrupt && reject:
				return usageError{errors.New("--interrupt and --reject do not go together")}
			case interrupt:
				in.Mode = "interrupt"
			case reject:
				in.Mode = "reject"
			}
			in.Key = a.NewKey()
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			before, err := c.Get(ctx, id)
			if err != nil {
				return err
			}
			made, err := again(ctx, func() (client.Accepted, error) { return c.Prompt(ctx, id, in) })
			if err != nil {
				return err
			}
			out := a.sinkFor(cmd)
			out.session(&made.Session)
			if made.Position > 0 {
				a.note("The prompt is number %d in the queue.", made.Position)
			}
			if detach {
				out.detached(&made.Session)
				return nil
			}
			// From the newest turn there was before: whatever came since is not missed.
			after := fmt.Sprintf("%d.0", before.Turns)
			a.status, err = a.follow(ctx, &following{c: c, session: made.Session, turn: made.Turn.ID, options: client.StreamOptions{After: after}, out: out})
			return err
		},
	}
	cmd.Flags().Bool("interrupt", false, "stop the turn at work first")
	cmd.Flags().Bool("reject", false, "refuse when a turn is at work")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not watch")
	jsonFlag(cmd)
	return cmd
}

func (a *app) attachCmd() *cobra.Command {
	var now bool
	var after string
	cmd := &cobra.Command{
		Use:   "attach [SESSION]",
		Short: "Watch a session: its whole conversation, then live",
		Long: `Show a session's conversation from its beginning and go on live until nothing is
accepted any more. Without SESSION it is the newest one. Many may watch at once;
leaving cancels nothing.
` + statuses,
		Example: `  hearth attach
  hearth attach ses_01J… --now
  hearth attach ses_01J… --json --after 3.17`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			id, err := sessionOf(ctx, c, args)
			if err != nil {
				return err
			}
			s, err := c.Get(ctx, id)
			if err != nil {
				return err
			}
			out := a.sinkFor(cmd)
			out.session(&s)
			a.status, err = a.follow(ctx, &following{c: c, session: s, options: client.StreamOptions{Beginning: !now && after == "", After: after}, out: out})
			return err
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "only the turn at work and what follows")
	cmd.Flags().StringVar(&after, "after", "", "go on after this part, TURN.PART")
	jsonFlag(cmd)
	return cmd
}

// sessionOf is the session that was named, else the newest.
func sessionOf(ctx context.Context, c *client.Client, args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	l, err := c.List(ctx, client.ListInput{Limit: 1})
	if err != nil {
		return "", err
	}
	if len(l.Items) == 0 {
		return "", fault.New(fault.SessionNotFound, "There is no session yet. Make one with hearth run.")
	}
	return l.Items[0].ID, nil
}
