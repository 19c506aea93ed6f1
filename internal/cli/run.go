package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/fault"
)

// statuses is in the help text of what waits for a turn.
const statuses = `
Exit status: 0 completed · 9 too late · 10 completed, but the work did not reach
the remote · 11 detached with Ctrl-C · 130 canceled · others by the kind of the
error: hearth help exit-status`

func (a *app) sink() *textSink {
	t := newTextSink(a.Stdout, a.style(a.Stdout), a.IsTerminal(a.Stdout) && a.Getenv("TERM") != "dumb", a.Now, a.self())
	t.remedy = a.remedy
	return t
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

// text is a prompt: the arguments, or standard input for "-".
func (a *app) text(what string, args []string) (string, error) {
	text := strings.Join(args, " ")
	if text == "-" {
		b, err := io.ReadAll(io.LimitReader(a.Stdin, 1<<20))
		if err != nil {
			return "", fmt.Errorf("read the %s from standard input: %w", what, err)
		}
		text = string(b)
	}
	if strings.TrimSpace(text) == "" {
		return "", misused("the %s is empty", what)
	}
	return text, nil
}

func (a *app) runCmd() *cobra.Command {
	var in client.CreateInput
	var detach, stop, brief bool
	var limit time.Duration
	var ask string
	cmd := &cobra.Command{
		Use:   `run [--repo URL] TASK | -`,
		Short: "Give an agent a task in a new session and watch it",
		Long: `Make a session with a task, watch the agent work, and get a branch.

The task is the argument, or standard input with "-". Without --repo the agent
works in an empty scratch folder. Ctrl-C asks whether to detach or to stop; the
turn goes on when the command or its terminal goes away. For scripts there is
--stop-on-interrupt: Ctrl-C or SIGTERM stops the turn and waits for its end.

What the agent asks (--approvals) is put to you on a terminal: answer by number, or
Enter leaves it open for ‘hearth answer’. Elsewhere it is shown how to answer.

--limit covers everything that you wait for: a server that is started, the
sandbox, the repository's setup, the agent's work. Then the turn is stopped and
its work kept. The server holds every turn of the session to the same limit,
there from the moment the agent begins, also when nobody watches.
` + statuses,
		Example: `  hearth run --repo https://git.example.org/app.git "Fix the flaky login test"
  hearth run --repo https://git.example.org/app.git --agent codex --branch fix/login - < task.md
  hearth run --repo https://git.example.org/app.git --json "Update the README" | jq .`,
		Args: someOf("the task"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, began := cmd.Context(), a.Now()
			var err error
			if in.Prompt, err = a.text("task", args); err != nil {
				return err
			}
			if cmd.Flags().Changed("limit") && limit < time.Second || limit > 24*time.Hour {
				return misused("--limit must be between 1s and 24h")
			}
			in.TotalLimitSeconds = int64((limit + time.Second - 1) / time.Second)
			if detach && stop {
				return misused("--detach and --stop-on-interrupt do not go together")
			}
			if in.Approvals, err = approvals(ask); err != nil {
				return err
			}
			in.Key = a.NewKey()
			c, err := a.readyWithin(ctx, limit)
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
				a.note("See it: %s attach %s", a.self(), sanitizeLine(made.Session.ID))
				return nil
			}
			if t, ok := out.(*textSink); ok {
				t.brief = brief
			}
			f := &following{c: c, session: made.Session, turn: made.Turn.ID, limit: limit, stop: stop, options: client.StreamOptions{After: "0.0"}, out: out}
			if limit > 0 {
				f.deadline = began.Add(limit)
			}
			a.status, err = a.follow(ctx, f)
			return err
		},
	}
	cmd.Flags().StringVar(&in.Repo, "repo", "", "URL of the git repository (default: an empty scratch folder)")
	cmd.Flags().StringVar(&in.Agent, "agent", "", "agent to run, one that ‘hearth agent list’ shows (default claude)")
	cmd.Flags().StringVar(&in.Model, "model", "", "model for the agent, by the name its provider has for it (default: the agent's own)")
	cmd.Flags().StringVar(&in.Branch, "branch", "", "branch for the work; an existing one is continued (default: a fresh one)")
	cmd.Flags().StringVar(&in.Base, "base", "", "branch to start from (default: the repository's)")
	cmd.Flags().StringVar(&in.Title, "title", "", "title (default: the first line of the task)")
	cmd.Flags().StringVar(&ask, "approvals", "", "when the agent asks whether it may: auto, ask (see ‘hearth answer’), read-only, or a file with rules (default auto)")
	cmd.Flags().DurationVar(&limit, "limit", 0, "stop the turn so long after this command began (default: 30m after the agent began)")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait: print the session and return")
	cmd.Flags().BoolVar(&stop, "stop-on-interrupt", false, "Ctrl-C and SIGTERM stop the turn and do not ask; a second one leaves it alone")
	cmd.Flags().BoolVar(&brief, "no-next", false, "do not say what may be done next")
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
		Use:   "prompt [SESSION] TEXT | -",
		Short: "Send a further prompt and watch its turn",
		Long: `Send a prompt to a session and watch its turn. The text is the argument, or
standard input with "-". ` + newestRule + `

When a turn is at work, the prompt waits in the queue; --interrupt stops that
turn, --reject refuses instead.
` + statuses,
		Example: `  hearth prompt "Now add a test"
  hearth prompt ses_01J… --interrupt "Stop: use the other library"`,
		Args: someOf("the text of the prompt"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			named, words, err := promptArgs(args, func(word string) (bool, error) {
				c, err := a.connect(ctx)
				if err != nil {
					return false, err
				}
				id, err := a.named(ctx, c, word)
				return id != word, err
			})
			if err != nil {
				return err
			}
			if in.Prompt, err = a.text("prompt", words); err != nil {
				return err
			}
			interrupt, reject := cmd.Flags().Lookup("interrupt").Changed, cmd.Flags().Lookup("reject").Changed
			switch {
			case interrupt && reject:
				return misused("--interrupt and --reject do not go together")
			case interrupt:
				in.Mode = "interrupt"
			case reject:
				in.Mode = "reject"
			}
			in.Key = a.NewKey()
			c, err := a.reach(ctx, ready)
			if err != nil {
				return err
			}
			id, err := a.sessionOf(ctx, c, named, true)
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
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait: print the session and return")
	jsonFlag(cmd)
	return cmd
}

// cursor is the place of a part.
var cursor = regexp.MustCompile(`^\d{1,18}\.\d{1,18}$`)

func (a *app) attachCmd() *cobra.Command {
	var now bool
	var after string
	cmd := &cobra.Command{
		Use:   "attach [SESSION]",
		Short: "Watch a session: its whole conversation, then live",
		Long: `Show a session's conversation from its beginning and go on live until nothing is
accepted any more; each turn's end is shown. Many may watch at once; leaving
cancels nothing. On a terminal what the agent asks is put to you, until somebody has
answered. ` + newestRule + `

With --json each line is an object; its "event" is session, connection, start (of a
sandbox that takes long), part, reset, turn (its end), detached or end.
` + statuses,
		Example: `  hearth attach
  hearth attach ses_01J… --now
  hearth attach ses_01J… --json --after 3.17`,
		Args: oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			switch {
			case after != "" && now:
				return misused("--after and --now do not go together")
			case after != "" && !cursor.MatchString(after):
				return misused("--after %q is no part: it is TURN.PART, such as 3.17, as --json prints it in \"cursor\"", after)
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			id, err := a.sessionOf(ctx, c, args, true)
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
	cmd.Flags().StringVar(&after, "after", "", "go on after this part, TURN.PART as --json prints it")
	jsonFlag(cmd)
	return cmd
}
