package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/fault"
)

func (a *app) questionsCmd() *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "questions [SESSION]",
		Short: "List what the agent asks",
		Long: `List the questions that wait for an answer: an agent whose session asks
(--approvals) waits until somebody has answered, for at most a day. Those of a form
come with its fields. ` + newestRule,
		Example: "  hearth questions\n  hearth questions ses_01J… --all",
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
			state := "pending"
			if all {
				state = ""
			}
			list, err := c.Questions(cmd.Context(), id, state)
			if err != nil {
				return err
			}
			if asJSON {
				if list == nil {
					list = []client.Question{}
				}
				return a.printJSON(list)
			}
			if len(list) == 0 {
				a.print("Nothing waits for an answer.\n")
				return nil
			}
			for i := range list {
				a.question(&list[i])
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "those that are settled, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON array")
	return cmd
}

func (a *app) question(q *client.Question) {
	what := q.State
	if q.State == "answered" {
		what = "answered " + q.Verdict + " by " + q.By
	}
	a.print("%s  %s  %s\n", sanitizeLine(q.ID), sanitizeLine(what), clip(sanitizeLine(firstOf(q.Title, q.Tool, "?")), 100))
	if q.State != "pending" {
		return
	}
	if q.Kind == "form" {
		a.fields(q)
	}
	for _, o := range q.Options {
		a.print("    %s (%s)  %s\n", sanitizeLine(o.ID), sanitizeLine(o.Kind), sanitizeLine(o.Name))
	}
}

func firstOf(list ...string) string {
	for _, s := range list {
		if s != "" {
			return s
		}
	}
	return ""
}

// verdicts are the words of answers.
var verdicts = []string{"allow", "deny", "accept", "decline", "cancel"}

func (a *app) answerCmd() *cobra.Command {
	var question, file string
	var fields []string
	var in client.Answer
	cmd := &cobra.Command{
		Use:   "answer [SESSION] allow|deny|accept|decline|cancel",
		Short: "Answer what the agent asks",
		Long: `Answer the question that waits in a session. The first answer counts, whoever gives
it. Where several wait, --question names one. ` + newestRule + `

A permission is answered with allow or deny. A form is accepted with its values
(--field or --json), declined (you do not say it), or canceled (you want none of what
it is about). ‘hearth questions’ lists the fields. The values go to the agent, which may
repeat them in the conversation; Hearth itself keeps only which fields were filled in.`,
		Example: "  hearth answer allow\n  hearth answer ses_01J… deny --message 'Not on this branch.'\n  hearth answer --option allow_always\n" +
			"  hearth answer --field database=postgres --field port=5432\n  hearth answer accept --json values.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 2 {
				return misused("%q is too much: the command takes a session and one verdict", args[2])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if n := len(args); n > 0 && slices.Contains(verdicts, args[n-1]) {
				in.Verdict, args = args[n-1], args[:n-1]
			}
			if len(fields) > 0 && file != "" {
				return misused("--field and --json do not go together")
			}
			if in.Verdict == "" && in.Option == "" && len(fields) == 0 && file == "" {
				return misused("say allow or deny, or --option with the id of one of the question's options; of a form --field, --json, decline or cancel")
			}
			if len(args) > 1 {
				return misused("%q is neither allow nor deny, nor accept, decline or cancel", args[1])
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			id, err := a.sessionOf(ctx, c, args, false)
			if err != nil {
				return err
			}
			q, err := a.oneQuestion(ctx, c, id, question)
			if err != nil {
				return err
			}
			if err := a.fill(&q, &in, fields, file); err != nil {
				return err
			}
			if q, err = c.Answer(ctx, id, q.ID, in); err != nil {
				return err
			}
			a.print("%s: %s.\n", sanitizeLine(q.ID), sanitizeLine(q.Verdict))
			return nil
		},
	}
	cmd.Flags().StringVar(&question, "question", "", "question id (default: the only one that waits)")
	cmd.Flags().StringVar(&in.Option, "option", "", "choose this option of the question")
	cmd.Flags().StringArrayVar(&fields, "field", nil, "`NAME=VALUE` of a form, repeatable; the same name again for several choices; a field not named has its default")
	cmd.Flags().StringVar(&file, "json", "", "`FILE` with the form's values as a JSON object; - is standard input")
	cmd.Flags().StringVar(&in.Message, "message", "", "a word to it, kept with the question")
	return cmd
}

// oneQuestion is the question that was named, or the only one that waits.
func (a *app) oneQuestion(ctx context.Context, c *client.Client, id, question string) (client.Question, error) {
	if question != "" {
		return c.Question(ctx, id, question)
	}
	list, err := c.Questions(ctx, id, "pending")
	if err != nil {
		return client.Question{}, err
	}
	switch len(list) {
	case 0:
		return client.Question{}, fault.New(fault.QuestionNotFound, "Nothing waits for an answer in %s.", id)
	case 1:
		return list[0], nil
	}
	for i := range list {
		a.question(&list[i])
	}
	return client.Question{}, misused("%d questions wait: name one with --question", len(list))
}

// approvals reads the flag --approvals: a keyword, or a file with rules as JSON.
func approvals(flag string) (json.RawMessage, error) {
	switch flag {
	case "":
		return nil, nil
	case "auto", "ask", "read-only":
		return json.RawMessage(`"` + flag + `"`), nil
	}
	if !strings.ContainsAny(flag, "./") {
		return nil, misused("--approvals is auto, ask, read-only, or a file with rules; %q is none", flag)
	}
	raw, err := os.ReadFile(flag)
	if err != nil {
		return nil, fault.Wrap(err, fault.InvalidInput, "The rules cannot be read: %v.", errors.Unwrap(err))
	}
	if !json.Valid(raw) {
		return nil, fault.New(fault.InvalidInput, "The rules in %s are not valid JSON.", flag)
	}
	return raw, nil
}

// knownWait is how long a line of the conversation waits for what is listed of its question.
const knownWait = 2 * time.Second

// known looks up questions of a session.
func known(ctx context.Context, c *client.Client, id string) func(question string) (client.Question, bool) {
	return func(question string) (client.Question, bool) {
		ctx, cancel := context.WithTimeout(ctx, knownWait)
		defer cancel()
		q, err := c.Question(ctx, id, question)
		return q, err == nil
	}
}

// outcomePart is what a part tells of how its question was settled: at most one is true.
type outcomePart struct{ Allowed, Denied, Accepted, Declined, Canceled bool }

// asked shows a question: how to answer it while it waits, else what became of it.
func (t *textSink) asked(p partFields) {
	var d struct {
		Kind    string       `json:"kind"`
		Title   string       `json:"title"`
		Message string       `json:"message"`
		Outcome *outcomePart `json:"outcome"`
	}
	if json.Unmarshal(p.Data, &d) != nil {
		return
	}
	message, _, _ := strings.Cut(strings.TrimSpace(d.Message), "\n")
	title := clip(sanitizeLine(firstOf(message, d.Title, d.Kind, "may it go on")), 160)
	var q client.Question // its state is empty where it is not known
	if t.questions != nil && (d.Outcome == nil || !t.settled[p.ID]) {
		q, _ = t.questions(p.ID)
	}
	if d.Outcome != nil {
		if !t.settled[p.ID] { // it was not told with the question itself
			mark, what := t.outcome(&q, *d.Outcome)
			t.line("%s %s: %s", mark, title, what)
			t.settled[p.ID] = true
		}
		return
	}
	t.line("%s", t.st.bold("? The agent asks: "+title))
	switch {
	case q.State != "" && q.State != "pending":
		mark, what := t.outcome(&q, outcomePart{})
		t.line("  %s %s", mark, what)
		t.settled[p.ID] = true
	case t.asks: // the person is asked at once
		t.askedLast = p.ID
	case d.Kind == "form":
		t.line("%s", t.st.dim(fmt.Sprintf("  %s answer %s accept --field NAME=VALUE | decline | cancel", t.self, t.id)))
	default:
		t.line("%s", t.st.dim(fmt.Sprintf("  %s answer %s allow | deny", t.self, t.id)))
	}
}

// outcome says what became of a question: what is listed of it, else what its part tells.
func (t *textSink) outcome(q *client.Question, o outcomePart) (mark, what string) {
	yes, no, none := t.st.good("✓"), t.st.bad("✗"), t.st.bad("■")
	switch q.State {
	case "expired":
		if q.Kind == "form" {
			return no, "expired: nobody answered in time, it counts as declined"
		}
		return no, "expired: nobody answered in time, it counts as denied"
	case "canceled":
		return none, "canceled: its turn ended, or the agent took it back"
	case "answered":
		o = outcomePart{Allowed: q.Verdict == "allow", Denied: q.Verdict == "deny", Accepted: q.Verdict == "accept", Declined: q.Verdict == "decline", Canceled: q.Verdict == "cancel"}
	}
	switch {
	case o.Allowed:
		mark, what = yes, "allowed"
	case o.Denied:
		mark, what = no, "denied"
	case o.Accepted:
		mark, what = yes, "accepted"
	case o.Declined:
		mark, what = no, "declined"
	case o.Canceled:
		mark, what = none, "canceled"
	default:
		mark, what = none, "settled"
	}
	for _, x := range q.Options {
		if x.ID == q.Option && x.Name != "" {
			what += " (" + clip(sanitizeLine(x.Name), 80) + ")"
		}
	}
	if q.By != "" {
		what += " by " + sanitizeLine(q.By)
	}
	if q.State == "answered" && q.Message != "" {
		what += ": " + clip(sanitizeLine(q.Message), 200)
	}
	return mark, what
}
