package cli

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/internal/uistream"
)

func sessionAndBlob(_ *cobra.Command, args []string) error {
	switch {
	case len(args) < 2:
		return misused("a session and the id of a blob are needed; the session's transcript has the ids")
	case len(args) > 2:
		return misused("%q is too much: the command takes a session and a blob", args[2])
	}
	return nil
}

// keptApart tells of a blob. Colours and the like, which many commands write, are not worth a line.
func (t *textSink) keptApart(data json.RawMessage) {
	var b uistream.Blob
	if json.Unmarshal(data, &b) != nil || b.Why == uistream.BlobControlCodes && b.Lost == "" {
		return
	}
	what := "what was too large"
	switch b.Why {
	case uistream.BlobNotText, uistream.BlobControlCodes:
		what = "what is no text"
	case uistream.BlobTurnLimit:
		what = "the rest"
	}
	if b.Lost != "" {
		t.line("%s", t.st.dim("· "+what+" ("+bytesOf(b.Bytes)+") is lost: "+clip(sanitizeLine(b.Lost), 200)))
		return
	}
	t.line("%s", t.st.dim("· "+what+" ("+bytesOf(b.Bytes)+") is the blob "+clip(sanitizeLine(b.ID), 100)))
}

func (a *app) blobCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "blob SESSION BLOB",
		Short: "Fetch what the transcript could not hold",
		Long: `Write a blob, which is what an agent said and no part of the transcript could carry: an
output that was too large, bytes that are no text, a terminal's escape codes. The
transcript names blobs where they belong. It comes byte for byte, but for masked
secrets, and so goes to no terminal unless that is asked for with -o -.`,
		Example: "  hearth blob ses_01J… sha256:9f86d08… -o build.log\n  hearth blob ses_01J… sha256:9f86d08… | less",
		Args:    sessionAndBlob,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if file == "" && a.IsTerminal(a.Stdout) {
				return misused("a blob may steer the terminal that shows it: give -o FILE, send the output elsewhere, or insist with -o -")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			id, err := a.sessionOf(ctx, c, args[:1], false)
			if err != nil {
				return err
			}
			b, err := c.Blob(ctx, id, args[1])
			if err != nil {
				return err
			}
			defer b.Close()
			if file == "" || file == "-" {
				_, err := io.Copy(a.Stdout, b)
				return err
			}
			size, err := store(file, b)
			if err != nil {
				return err
			}
			a.print("%s: %s\n", sanitizeLine(file), bytesOf(size))
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, or to write over; - for standard output even where that is a terminal (default: standard output)")
	return cmd
}
