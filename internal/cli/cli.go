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

	"github.com/spf13/cobra"

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
	Version    client.Version

	// Serve runs a server until ctx ends. It leaves server.json and the token.
	Serve func(ctx context.Context, c config.Config) error
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
	exitCanceled       = 130 // the turn was canceled
)

// app is one run of the program.
type app struct {
	Env
	stateDir string
	server   string
	status   int
	lines    chan string // of Stdin, once somebody asked
}

// Main runs the command line and returns the exit status.
func Main(ctx context.Context, args []string, e Env) int {
	if e.Now == nil {
		e.Now = time.Now
	}
	if e.NewKey == nil {
		e.NewKey = rand.Text
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

// self is how to call this program again for the same server.
func (a *app) self() string {
	switch {
	case a.server != "":
		return "hearth --server " + sanitizeLine(a.server)
	case a.stateDir != "":
		return "hearth --state-dir " + sanitizeLine(a.stateDir)
	}
	return "hearth"
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

// explain prints an error as sentence, remedy and code, and gives its exit status.
func (a *app) explain(cmd *cobra.Command, err error) int {
	var ce *client.Error
	var fe *fault.Error
	sentence, remedy, code, request, status := "", "", "", "", 1
	switch {
	case errors.As(err, &ce):
		sentence, remedy, code, request, status = ce.Message, ce.Remedy, ce.Code, ce.RequestID, fault.Kind(ce.Kind).ExitStatus()
	case errors.As(err, &fe):
		info := fault.Lookup(fe.Code)
		sentence, remedy, code, status = fe.Sentence(), info.Remedy, string(fe.Code), info.Kind.ExitStatus()
		if info.Kind == fault.KindInternal { // on the command line there is no log to look it up in
			sentence = err.Error()
		}
	case errors.Is(err, context.Canceled):
		sentence, status = "Stopped.", exitCanceled
	default:
		sentence = strings.ToUpper(err.Error()[:1]) + err.Error()[1:]
		if isUsage(err) {
			status, remedy = fault.KindInvalid.ExitStatus(), "Run `"+cmd.CommandPath()+" --help`."
			if strings.HasPrefix(sentence, "unknown shorthand flag") || strings.HasPrefix(sentence, "unknown flag") {
				remedy += " A text that begins with a dash goes behind --, or comes from stdin with -."
			}
		}
	}
	st := a.style(a.Stderr)
	a.note("%s %s", st.bad("hearth:"), sanitizeBlock(sentence))
	if remedy != "" {
		a.note("  Try: %s", sanitizeBlock(remedy))
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

A server is started in the background when none runs. Set HEARTH_SERVER and
HEARTH_TOKEN to use one elsewhere.`,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&a.stateDir, "state-dir", "", "folder of the server's state; tells servers apart (HEARTH_STATE_DIR)")
	root.PersistentFlags().StringVar(&a.server, "server", "", "address of a server elsewhere (HEARTH_SERVER)")
	root.AddCommand(a.runCmd(), a.promptCmd(), a.attachCmd(), a.listCmd(), a.cancelCmd(), a.diffCmd(), a.deliverCmd(), a.discardCmd(), a.deleteCmd(),
		a.serveCmd(), a.agentCmd(), a.doctorCmd(), a.versionCmd())
	return root
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
