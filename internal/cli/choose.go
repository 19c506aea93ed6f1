package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/fault"
)

// The two rules for the argument SESSION, in the words of every help text.
const (
	newestRule = "Without SESSION it is the newest one."
	namedRule  = "The session must be named: this cannot be undone."
)

// sessionPrefix begins the id of every session.
const sessionPrefix = "ses_"

// usageError is a command line that cannot be understood.
type usageError struct {
	error
	remedy string // empty: see the command's help
}

func misused(format string, args ...any) error { return usageError{error: fmt.Errorf(format, args...)} }

// noArgs is for commands that take no arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return misused("%q is too much: the command takes no arguments", args[0])
	}
	return nil
}

// oneSession is for commands that take one session and nothing else.
func oneSession(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return misused("%q is too much: the command takes one session", args[1])
	}
	return nil
}

// someOf is for commands that need at least one of something.
func someOf(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return misused("%s is missing", what)
		}
		return nil
	}
}

// sessionOf is the session that was named, else the newest one. Which one that is
// is told, unless the command shows it anyway.
func (a *app) sessionOf(ctx context.Context, c *client.Client, args []string, shown bool) (string, error) {
	if len(args) > 0 {
		return a.named(ctx, c, args[0])
	}
	l, err := c.List(ctx, client.ListInput{Limit: 20})
	if err != nil {
		return "", err
	}
	for _, s := range l.Items {
		if s.Phase == "deleting" {
			continue
		}
		if !shown {
			a.note("%s", a.style(a.Stderr).dim("The newest session is "+sanitizeLine(s.ID)+titled(s.Title)))
		}
		return s.ID, nil
	}
	return "", fault.New(fault.SessionNotFound, "There is no session yet. Make one with `hearth run`.")
}

// titled is a title behind a colon, or the end of the sentence where there is none.
func titled(title string) string {
	if title = clip(sanitizeLine(title), 60); strings.TrimSpace(title) == "" {
		return "."
	}
	return ": " + title
}

// An id is its prefix and 26 characters, and the last ones tell sessions apart: the first are the time.
const (
	idTail   = 26
	leastEnd = 6
)

// maybeEnd says whether a word has the length and the letters of an id's end: those of Crockford's base32.
func maybeEnd(word string) bool {
	end := strings.ToLower(word)
	return len(end) >= leastEnd && len(end) <= idTail && strings.Trim(end, "0123456789abcdefghjkmnpqrstvwxyz") == ""
}

// named is the session of an argument: its id, or an end of it that no other has.
func (a *app) named(ctx context.Context, c *client.Client, arg string) (string, error) {
	end := strings.ToLower(strings.TrimPrefix(arg, sessionPrefix))
	if len(end) < leastEnd || len(end) >= idTail || strings.Trim(end, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return arg, nil // the server judges it
	}
	var found []string
	for below := ""; ; {
		l, err := c.List(ctx, client.ListInput{Below: below, Limit: 100})
		if err != nil {
			return "", err
		}
		for i := range l.Items {
			id := l.Items[i].ID
			if id == arg {
				return id, nil
			}
			if strings.HasSuffix(id, end) {
				found = append(found, id)
			}
		}
		if below = l.Next; below == "" {
			break
		}
	}
	switch len(found) {
	case 0:
		return arg, nil
	case 1:
		return found[0], nil
	}
	return "", usageError{error: fmt.Errorf("%d sessions have an id that ends with %q", len(found), end), remedy: strings.Join(found[:min(len(found), 5)], "\n")}
}

// unnamed is the error of a command whose session must be named. It lists those
// that may be meant, when a server runs; none is started for that.
func (a *app) unnamed(ctx context.Context, verb, what string, fits func(*client.Session) bool) error {
	e := usageError{error: fmt.Errorf("name the session: %s cannot be undone", what)}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var all []client.Session
	if c, err := a.running(ctx); err == nil {
		if l, err := c.List(ctx, client.ListInput{}); err == nil {
			all = l.Items
		}
	}
	const most = 5
	var lines []string
	n := 0
	for i := range all {
		s := &all[i]
		if s.Phase == "deleting" || !fits(s) {
			continue
		}
		if n++; n <= most {
			lines = append(lines, fmt.Sprintf("%s %s %s   (%s old: %s)", a.self(), verb, sanitizeLine(s.ID), age(a.Now().Sub(s.CreatedAt)), clip(sanitizeLine(s.Title), 50)))
		}
	}
	if n > most {
		lines = append(lines, fmt.Sprintf("and %d more: %s list", n-most, a.self()))
	}
	if len(lines) == 0 {
		lines = []string{a.self() + " list   shows the sessions there are"}
	}
	e.remedy = strings.Join(lines, "\n")
	return e
}

// running finds a server as [app.connect] does, and starts none.
func (a *app) running(ctx context.Context) (*client.Client, error) {
	if a.server != "" || a.Getenv("HEARTH_SERVER") != "" {
		return a.connect(ctx)
	}
	cfg, err := a.config(nil)
	if err != nil {
		return nil, err
	}
	return a.find(ctx, cfg, a.Getenv("HEARTH_TOKEN"), answering)
}

// promptArgs tells the session of a prompt, if it is named, from its text. A first word that
// could be the end of an id is one if there is such a session: exists is asked then.
func promptArgs(args []string, exists func(word string) (bool, error)) (session, text []string, err error) {
	switch {
	case strings.HasPrefix(args[0], sessionPrefix) && !strings.ContainsAny(args[0], " \n\t"):
		session, args = args[:1], args[1:]
	case len(args) > 1 && maybeEnd(args[0]):
		ok, err := exists(args[0])
		if err != nil {
			return nil, nil, err
		}
		if ok {
			session, args = args[:1], args[1:]
		}
	}
	if len(args) == 0 {
		return nil, nil, usageError{error: errors.New("the text of the prompt is missing"), remedy: `hearth prompt ` + sanitizeLine(session[0]) + ` "…"`}
	}
	return session, args, nil
}
