package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/uistream"
)

func (a *app) transcriptCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "transcript [SESSION]",
		Short: "Print a session's whole conversation",
		Long: `Print what was said in a session so far as plain text: prompts, answers, a line for
each tool call, and how each turn ended. It does not wait for a turn at work; that
is ‘hearth attach’. Wakes nothing. ` + newestRule + `

With --json each line is a stored part, {"cursor": "TURN.PART", "part": {…}}; prompts
are not parts of their own.`,
		Example: "  hearth transcript > conversation.txt\n  hearth transcript ses_01J… --json | jq -r .part.delta",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			id, err := a.sessionOf(ctx, c, args, false)
			if err != nil {
				return err
			}
			if asJSON {
				return eachPart(ctx, c, id, func(p client.Part) error {
					b, err := json.Marshal(p)
					if err != nil {
						return fmt.Errorf("encode a part: %w", err)
					}
					return escapeJSON(a.Stdout, b)
				})
			}
			return a.transcript(ctx, c, id)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "the stored parts, one JSON object a line")
	return cmd
}

// eachPart gives the stored parts of a session in order.
func eachPart(ctx context.Context, c *client.Client, id string, f func(client.Part) error) error {
	for after := ""; ; {
		page, err := c.Transcript(ctx, id, after)
		if err != nil {
			return err
		}
		for _, p := range page.Items {
			if err := f(p); err != nil {
				return err
			}
		}
		if after = page.Next; after == "" || len(page.Items) == 0 {
			return nil
		}
	}
}

func (a *app) transcript(ctx context.Context, c *client.Client, id string) error {
	s, err := c.Get(ctx, id)
	if err != nil {
		return err
	}
	turns := map[int64]*client.Turn{}
	for after := int64(0); ; {
		page, err := c.Turns(ctx, id, after)
		if err != nil {
			return err
		}
		for i := range page.Items {
			turns[page.Items[i].Number] = &page.Items[i]
		}
		if after = page.Next; after == 0 {
			break
		}
	}
	out := a.sink()
	out.live = false // nothing is written over
	out.questions = known(ctx, c, id)
	out.session(&s)
	err = eachPart(ctx, c, id, func(p client.Part) error {
		var head struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(p.Part, &head); err != nil {
			return fmt.Errorf("read part %s: %w", p.Cursor, err)
		}
		number, _, _ := strings.Cut(p.Cursor, ".")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return fmt.Errorf("read the cursor %q: %w", p.Cursor, err)
		}
		if err := out.event(client.Event{Turn: n, Type: head.Type, Data: p.Part}); err != nil {
			return err
		}
		t := turns[n]
		switch {
		case t == nil: // it began meanwhile
		case head.Type == string(uistream.TypeStart):
			out.prompt(t.Prompt)
		case head.Type == string(uistream.TypeFinish) && t.Ended():
			out.turn(&s, t)
		}
		return out.err
	})
	out.fresh()
	if err == nil {
		err = out.err
	}
	return err
}
