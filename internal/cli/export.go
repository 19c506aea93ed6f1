package cli

import (
	"bufio"
	"errors"
	"io"

	"github.com/spf13/cobra"
)

func (a *app) exportCmd() *cobra.Command {
	var file, format string
	cmd := &cobra.Command{
		Use:   "export [SESSION]",
		Short: "Write a session's whole conversation to a file",
		Long: `Write what is stored of a session: every part to the letter, or a document to read.
A turn at work is written as far as it is stored. Wakes nothing. ` + newestRule + `

--format jsonl is one JSON object a line: the session; each turn and its parts; an
end, without which the file was cut. --format markdown is a document in which text
of the agent can neither leave its place nor be HTML.`,
		Example: "  hearth export > session.jsonl\n  hearth export ses_01J… --format markdown -o session.md",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if format != "jsonl" && format != "markdown" {
				return misused("--format is %s; it can be jsonl or markdown", clip(sanitizeLine(format), 40))
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			id, err := a.sessionOf(ctx, c, args, false)
			if err != nil {
				return err
			}
			f, err := c.Export(ctx, id, format)
			if err != nil {
				return err
			}
			defer f.Close()
			switch {
			case file != "" && file != "-":
				size, err := store(file, f)
				if err != nil {
					return err
				}
				a.print("%s: %s\n", sanitizeLine(file), bytesOf(size))
				return nil
			case format == "jsonl" && a.IsTerminal(a.Stdout):
				return eachLine(f, func(line []byte) error { return escapeJSON(a.Stdout, line) })
			}
			_, err = io.Copy(a.Stdout, f)
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "jsonl", "jsonl or markdown")
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, or to write over (default: standard output)")
	return cmd
}

// eachLine gives the lines without their ends.
func eachLine(r io.Reader, f func([]byte) error) error {
	for b := bufio.NewReader(r); ; {
		line, err := b.ReadBytes('\n')
		if n := len(line); n > 0 {
			if line[n-1] == '\n' {
				line = line[:n-1]
			}
			if err := f(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
