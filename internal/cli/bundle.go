package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
)

func (a *app) bundleCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "bundle [SESSION]",
		Short: "Fetch the packed work as a file that git can take in",
		Long: `Write a session's packed work, delivered or not, to a git bundle: for work that
could not be pushed, or of a session without a repository. The command that takes
it in is printed. Wakes nothing. ` + newestRule,
		Example: "  hearth bundle ses_01J…\n  hearth bundle ses_01J… -o work.bundle\n  hearth bundle ses_01J… -o - | ssh other 'cat > work.bundle'",
		Args:    oneSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if file == "-" && a.IsTerminal(a.Stdout) {
				return misused("a bundle is no text for a terminal: give -o FILE, or send the output elsewhere")
			}
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			id, err := a.sessionOf(ctx, c, args, false)
			if err != nil {
				return err
			}
			s, err := c.Get(ctx, id)
			if err != nil {
				return err
			}
			b, err := c.Bundle(ctx, id)
			if err != nil {
				return err
			}
			defer b.Close()
			if file == "-" {
				_, err := io.Copy(a.Stdout, b)
				return err
			}
			path := file
			if path == "" {
				path = b.Name
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					return usageError{error: fmt.Errorf("there is a file %s already", path), remedy: fmt.Sprintf("%s bundle %s -o FILE   (a file that is named is written over)", a.self(), id)}
				}
			}
			size, err := store(path, b)
			if err != nil {
				return err
			}
			a.print("%s: %s, %s\n", sanitizeLine(path), sanitizeLine(s.Branch), bytesOf(size))
			a.note("Take it in: %s", sanitize(takeIn(&s, path)))
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, or to write over; - for standard output (default: the branch's name and .bundle)")
	return cmd
}

// store writes a file that is whole or not there; what is no file, such as a pipe,
// is written as it is.
func store(path string, from io.Reader) (size int64, err error) {
	to := path
	if st, err := os.Stat(path); err != nil || st.Mode().IsRegular() {
		to += ".part"
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666) //nolint:gosec // the person's own file: their umask decides
	if err != nil {
		return 0, fmt.Errorf("write the file: %w", err)
	}
	size, err = io.Copy(f, from)
	var ce *client.Error
	if err != nil && !errors.As(err, &ce) {
		err = fmt.Errorf("write the file: %w", err)
	}
	if cerr := f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("write the file: %w", cerr)
	}
	if err == nil && to != path {
		if err = os.Rename(to, path); err != nil {
			err = fmt.Errorf("write the file: %w", err)
		}
	}
	if err != nil && to != path {
		_ = os.Remove(to) // what counts is told already
	}
	return size, err
}

// takeIn is the command that brings a bundle into a repository.
func takeIn(s *client.Session, path string) string {
	if strings.HasPrefix(path, "-") {
		path = "./" + path
	}
	branch := sanitizeLine(s.Branch)
	if s.Repo == "" {
		return "git clone -b " + quoted(branch) + " " + quoted(path) + " work"
	}
	return "git fetch " + quoted(path) + " " + quoted(branch+":"+branch) + "   (in a clone of " + sanitizeLine(s.Repo) + ")"
}

// quoted is a word for a POSIX shell.
func quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("@%+=:,./_-", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// bytesOf is a size for people.
func bytesOf(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
