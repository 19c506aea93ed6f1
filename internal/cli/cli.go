// Package cli is the command line: a tree of cobra commands that is thin over
// package client. It knows no store and no sandbox; what needs the server's
// insides is injected with [Env]. Nothing that an agent or a remote wrote reaches
// a terminal without [sanitize]. Start at [Main], then at run.go for `hearth run`.
package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/fault"
)

// Env is the world of the command line. Stdin, Stdout, Stderr and Getenv are
// required; a function that is nil makes its command answer UNSUPPORTED, but for
// those that say otherwise.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// IsTerminal tells of Stdin, Stdout or Stderr. Nil: none is.
	IsTerminal func(stream any) bool
	// Interrupts gives signals that ask to stop, and a function that ends that. Nil: SIGINT and SIGTERM.
	Interrupts func() (<-chan os.Signal, func())
	Now        func() time.Time // nil: time.Now
	NewKey     func() string    // a fresh idempotency key; nil: random
	Executable string           // to start a server with; empty: this program
	Program    string           // how this program was called, for what to try next; empty: hearth
	// SlowStart is how long a sandbox may take to start before that is shown, and how
	// often it is looked at then. Zero: a second.
	SlowStart time.Duration
	GiveUp    time.Duration // how long a watcher looks for its server in vain; 0: that of package client
	Version   client.Version

	// Serve runs a server until ctx ends. It leaves server.json and the token.
	Serve func(ctx context.Context, c config.Config) error
	// Holder is the process that works on a state folder; 0: none does. Without it no
	// server of a state folder is believed in.
	Holder func(stateDir string) (pid int, err error)
	// StartServer starts a server for the state folder in the background, if none
	// runs, and need not wait until it is ready. Nil: this program, detached.
	StartServer  func(ctx context.Context, c config.Config) (started bool, err error)
	AgentInstall func(ctx context.Context, c config.Config, ask InstallAsk, progress func(string)) error
	AgentList    func(ctx context.Context, c config.Config) ([]AgentStatus, error)
	AgentVerify  func(ctx context.Context, c config.Config, name string, progress func(string)) error
	Doctor       func(ctx context.Context, c config.Config) (Report, error)
}

// InstallAsk says what to install.
type InstallAsk struct {
	Name string
	From string // folder with what would be fetched; empty: from the network
}

// AgentStatus is one line of `hearth agent list`.
type AgentStatus struct {
	Name      string   `json:"name"`
	Title     string   `json:"title"`
	Version   string   `json:"version"`
	Installed bool     `json:"installed"`
	Providers []string `json:"providers"`
	Detail    string   `json:"detail,omitempty"`
}

// Report is the outcome of `hearth doctor`.
type Report struct {
	Checks []Check `json:"checks"`
}

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Exit statuses beside those of the kinds of errors.
const (
	exitOK             = 0
	exitDeliveryFailed = 10  // the turn completed, its work did not reach the remote
	exitDetached       = 11  // the person left; the turn goes on
	exitCanceled       = 130 // the turn was canceled
)

// app is one run of the program.
type app struct {
	Env
	stateDir   string
	server     string
	background bool // the server was started in the background by a command
	status     int
	lines      chan string // of Stdin, once somebody asked
}

// Main runs the command line and returns the exit status.
func Main(ctx context.Context, args []string, e Env) int {
	if e.Now == nil {
		e.Now = time.Now
	}
	if e.NewKey == nil {
		e.NewKey = rand.Text
	}
	if e.SlowStart == 0 {
		e.SlowStart = time.Second
	}
	if e.IsTerminal == nil {
		e.IsTerminal = func(any) bool { return false }
	}
	if e.Interrupts == nil {
		e.Interrupts = func() (<-chan os.Signal, func()) {
			ch := make(chan os.Signal, 2)
			signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
			return ch, func() { signal.Stop(ch) }
		}
	}
	a := &app{Env: e}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(e.Stdin)
	root.SetOut(e.Stdout)
	root.SetErr(e.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return a.status
	}
	return a.explain(cmd, err)
}

func (a *app) program() string {
	if a.Program == "" {
		return "hearth"
	}
	return sanitizeLine(quoted(a.Program))
}

// self is how to call this program again for the same server.
func (a *app) self() string {
	switch {
	case a.server != "":
		return a.program() + " --server " + sanitizeLine(a.server)
	case a.stateDir != "":
		return a.program() + " --state-dir " + sanitizeLine(quoted(a.stateDir))
	}
	return a.program()
}

// explain prints an error as sentence, remedy and code, and gives its exit status.
func (a *app) explain(cmd *cobra.Command, err error) int {
	var ce *client.Error
	var fe *fault.Error
	sentence, remedy, code, request, status := "", "", "", "", 1
	switch {
	case errors.As(err, &ce):
		sentence, remedy, code, request, status = ce.Message, a.remedy(ce.Code, ce.Details, ce.Remedy), ce.Code, ce.RequestID, fault.Kind(ce.Kind).ExitStatus()
	case errors.As(err, &fe):
		info := fault.Lookup(fe.Code)
		sentence, remedy, code, status = fe.Sentence(), info.Remedy, string(fe.Code), info.Kind.ExitStatus()
		if info.Kind == fault.KindInternal { // on the command line there is no log to look it up in
			sentence = err.Error()
		}
	case errors.Is(err, context.Canceled):
		sentence, status = "Stopped.", exitCanceled
	default:
		sentence = sentenceOf(err.Error())
		var u usageError
		switch errors.As(err, &u); {
		case u.remedy != "":
			status, remedy = fault.KindInvalid.ExitStatus(), u.remedy
		case isUsage(err):
			status, remedy = fault.KindInvalid.ExitStatus(), "Run `"+cmd.CommandPath()+" --help`."
			switch text := err.Error(); {
			case strings.HasPrefix(text, "unknown shorthand flag"), strings.HasPrefix(text, "unknown flag"):
				remedy += " A text that begins with a dash goes behind --, or comes from stdin with -."
			case strings.HasPrefix(text, "unknown command"):
				// Cobra's guesses stand on lines of their own behind the sentence.
				line, guesses, _ := strings.Cut(text, "\n")
				sentence = sentenceOf(line)
				if words := strings.Fields(guesses); len(words) > 4 { // Did you mean this?
					remedy = "Run `" + cmd.CommandPath() + " " + words[4] + " --help`, or `" + cmd.CommandPath() + " --help` for all commands."
				}
			}
		}
	}
	st := a.style(a.Stderr)
	a.note("%s %s", st.bad("hearth:"), sanitizeBlock(sentence))
	if remedy != "" {
		a.note("  Try: %s", strings.ReplaceAll(sanitizeBlock(remedy), "\n", "\n     "))
	}
	if request != "" {
		code += ", request " + request
	}
	if code != "" {
		a.note("  Code: %s", sanitizeLine(code))
	}
	if status == 0 {
		status = 1
	}
	return status
}

// remedy is what to do about a code of the server here, where its own words are about a
// server in general.
func (a *app) remedy(code string, details map[string]any, own string) string {
	if a.elsewhere() != "" {
		return own
	}
	start := "end the server with `" + a.self() + " stop` (or restart its service) and start it with that."
	if a.background {
		start = "give the command again: the server in the background is started anew with it when nothing is at work, at once with `" + a.self() + " stop` before."
	}
	switch fault.Code(code) {
	case fault.ModelKeyMissing:
		return "Put the provider's key into the environment, such as ANTHROPIC_API_KEY, or choose another agent with --agent; then " + start
	case fault.ModelKeyRejected:
		return "Put a valid key into the environment, then " + start
	case fault.RepositoryUnreachable, fault.RepositoryNotWritable:
		return own + " If it is in the environment (HEARTH_GIT_CREDENTIALS, GITHUB_TOKEN) since the server was started, " + start
	case fault.AgentNotInstalled:
		if name, ok := details["agent"].(string); ok {
			return "Run `" + a.self() + " agent install " + sanitizeLine(name) + "`."
		}
	}
	return own
}

// sentenceOf makes a sentence of an error's text.
func sentenceOf(text string) string {
	r, n := utf8.DecodeRuneInString(text)
	text = string(unicode.ToUpper(r)) + text[n:]
	if !strings.ContainsAny(text[len(text)-1:], ".!?\n") {
		text += "."
	}
	return text
}

// isUsage tells cobra's complaints about the command line from errors of a command.
func isUsage(err error) bool {
	var u usageError
	if errors.As(err, &u) {
		return true
	}
	s := err.Error()
	for _, p := range []string{"unknown command", "unknown flag", "unknown shorthand", "accepts ", "requires ", "invalid argument", "flag needs", "required flag", "bad flag"} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// note writes a line for the person, to stderr.
func (a *app) note(format string, args ...any) { _, _ = fmt.Fprintf(a.Stderr, format+"\n", args...) }

// print writes to stdout.
func (a *app) print(format string, args ...any) { _, _ = fmt.Fprintf(a.Stdout, format, args...) }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "hearth",
		Short: "Coding agents in sandboxes on your own machine",
		Long: `Hearth gives a coding agent a git repository and a task, in a sandbox on this
machine, keeps the conversation, and hands back a branch.

  hearth agent install claude
  hearth run --repo https://git.example.org/app.git "Fix the flaky login test"

A server is started in the background when none runs, and ends by itself when it
has nothing to do, or by ‘hearth stop’. It has the environment of the command that
started it; ‘run’, ‘prompt’ and ‘deliver’ start it anew when theirs is another and
nothing is at work. Set HEARTH_SERVER and HEARTH_TOKEN to use one elsewhere.

Where a command takes [SESSION], it is the newest one unless it is named: by its id,
or by an end of it that no other has, of six characters or more.`,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		Version:           a.versionText(),
	}
	root.SetVersionTemplate("hearth {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.PersistentFlags().StringVar(&a.stateDir, "state-dir", "", "folder of the server's state: another folder, another server (HEARTH_STATE_DIR)")
	root.PersistentFlags().StringVar(&a.server, "server", "", "address of a server elsewhere (HEARTH_SERVER); its token is in HEARTH_TOKEN or the file HEARTH_TOKEN_FILE")
	root.AddCommand(a.runCmd(), a.promptCmd(), a.attachCmd(), a.listCmd(), a.transcriptCmd(), a.exportCmd(), a.questionsCmd(), a.answerCmd(), a.queueCmd(), a.cancelCmd(), a.diffCmd(), a.deliverCmd(), a.bundleCmd(), a.blobCmd(), a.discardCmd(), a.deleteCmd(),
		a.serveCmd(), a.stopCmd(), a.agentCmd(), a.doctorCmd(), a.versionCmd(), exitStatusTopic())
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Args = helpTopic // cobra would print all of the help, and be content
		}
	}
	return root
}

// helpTopic refuses to help with what is no command.
func helpTopic(help *cobra.Command, args []string) error {
	if _, rest, err := help.Root().Find(args); err != nil || len(rest) > 0 {
		return usageError{error: fmt.Errorf("there is no help about %q", strings.Join(args, " ")), remedy: "Run `hearth --help` for all commands."}
	}
	return nil
}

// flagError says which value a flag does not take, without the words of the parser.
func flagError(err error) error {
	var e *pflag.InvalidValueError
	if !errors.As(err, &e) {
		return usageError{error: err}
	}
	wants := ""
	switch e.GetFlag().Value.Type() {
	case "int":
		wants = "a whole number"
	case "duration":
		wants = "a time such as 90s, 30m or 2h"
	case "bool":
		wants = "true or false"
	default:
		return usageError{error: err}
	}
	return misused("--%s is %s; %q is not", e.GetFlag().Name, wants, e.GetValue())
}

// exitStatusTopic is a page of help; it does nothing.
func exitStatusTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-status",
		Short: "What the exit statuses mean",
		Long: `What the exit statuses mean, the same for every command.

  0    done; of a turn: completed
  10   the turn completed, but its work did not reach the remote
  11   detached: you left with Ctrl-C, and the turn goes on (not with --detach: 0)
  130  the turn was canceled, or the command was interrupted

An error, or a turn that failed, has the status of its code's kind:

  1    internal         something went wrong inside Hearth
  2    invalid          the command line, the input or a setting is wrong
  3    unauthenticated  no token, or a wrong one
  4    forbidden        not allowed, or the remote refused
  5    not_found        there is no such session or turn
  6    conflict         not possible in the present state
  7    exhausted        something is full, or too long: queue, disk, sandboxes, a diff
  8    unavailable      server, sandbox, agent or git host do not work now
  9    timeout          a limit of time has passed, --limit too

The code is printed as "Code:", and with --json in turn.code. docs/errors.md lists
all codes with their kinds.`,
	}
}

// wantJSON decides between people and programs: --json says, else a terminal.
func (a *app) wantJSON(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("json")
	if f.Changed {
		return f.Value.String() == "true"
	}
	return !a.IsTerminal(a.Stdout)
}

// readLines begins to read Stdin by line. The goroutine ends with Stdin or with
// the program: a read cannot be taken back.
func (a *app) readLines() <-chan string {
	if a.lines == nil {
		a.lines = make(chan string)
		go func() {
			defer close(a.lines)
			s := bufio.NewScanner(a.Stdin)
			for s.Scan() {
				a.lines <- s.Text()
			}
		}()
	}
	return a.lines
}
