// Command hearth-testkit runs the stand-ins that Hearth's demonstration and
// end-to-end scripts need: a scripted model, a git host, a scripted agent, and a
// sample project. It is for tests; it serves on loopback unless told otherwise
// and protects nothing. Each subcommand tells its flags with -h.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/testkit/gitserver"
	"github.com/hearthd/hearth/internal/testkit/sample"
	"github.com/hearthd/hearth/internal/testkit/scriptedagent"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

const usage = `usage: hearth-testkit COMMAND [FLAGS]

  model        serve a scripted model: Anthropic, OpenAI and Gemini APIs
  git          serve git repositories over HTTP
  agent        be a scripted ACP agent on stdin and stdout
  sample-repo  DIR: make the sample project there, as a git repository
  demo-task    print the task that mends the sample project
  demo         run that task the whole way with the hearth program

model and git print one line of JSON with their address when they are ready, and
end on SIGTERM or when interrupted.
`

// errUsage is a mistake on the command line that has been told already.
var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	var status exitStatus
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.As(err, &status):
		os.Exit(int(status))
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "hearth-testkit:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) error {
	commands := map[string]func(context.Context, []string) error{
		"model":       func(ctx context.Context, a []string) error { return model(ctx, a, out, errOut) },
		"git":         func(ctx context.Context, a []string) error { return git(ctx, a, out, errOut) },
		"agent":       func(ctx context.Context, a []string) error { return agent(ctx, a, in, out, errOut) },
		"sample-repo": func(ctx context.Context, a []string) error { return sampleRepo(ctx, a, out, errOut) },
		"demo":        func(ctx context.Context, a []string) error { return demo(ctx, a, out, errOut) },
		"demo-task": func(context.Context, []string) error {
			_, err := io.WriteString(out, sample.Task)
			return err
		},
	}
	if len(args) == 0 {
		_, _ = io.WriteString(errOut, usage) // nobody is left to be told
		return errUsage
	}
	if args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		_, err := io.WriteString(out, usage)
		return err
	}
	command, ok := commands[args[0]]
	if !ok {
		_, _ = fmt.Fprintf(errOut, "hearth-testkit: there is no command %q\n\n%s", args[0], usage) // as above
		return errUsage
	}
	return command(ctx, args[1:])
}

// parse reads flags; it has told what is wrong with them.
func parse(fs *flag.FlagSet, args []string, errOut io.Writer, operands int) error {
	fs.SetOutput(errOut)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if fs.NArg() != operands {
		_, _ = fmt.Fprintf(errOut, "hearth-testkit %s: %d arguments where %d belong\n", fs.Name(), fs.NArg(), operands) // as above
		fs.Usage()
		return errUsage
	}
	return nil
}

// list collects the values of a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}

func logger(verbose bool, w io.Writer) *slog.Logger {
	if !verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func model(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := flag.NewFlagSet("model", flag.ContinueOnError)
	listen := fs.String("listen", "127.0.0.1:0", "address to listen on; port 0 picks a free one")
	portFile := fs.String("port-file", "", "write the port there when ready")
	var keys, models list
	fs.Var(&keys, "key", "accepted key, may be repeated; none: any key")
	fs.Var(&models, "model", "known model, may be repeated; none: any name")
	maxBody := fs.Int64("max-body-bytes", scriptedmodel.DefaultMaxBodyBytes, "larger requests get 413")
	gemini400 := fs.Bool("gemini-key-error-400", false, "answer a wrong Gemini key with 400, as the real service does")
	verbose := fs.Bool("v", false, "log requests to stderr")
	if err := parse(fs, args, errOut, 0); err != nil {
		return err
	}
	m := scriptedmodel.New(scriptedmodel.Options{
		Keys: keys, Models: models, MaxBodyBytes: *maxBody, GeminiKeyError400: *gemini400, Logger: logger(*verbose, errOut),
	})
	mux := http.NewServeMux()
	mux.Handle("/", m)
	mux.Handle("/_testkit/requests", m.RequestsHandler())
	return serve(ctx, *listen, *portFile, mux, out, func(url string) map[string]any {
		return map[string]any{"service": "model", "requests": url + "/_testkit/requests"}
	})
}

func git(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := flag.NewFlagSet("git", flag.ContinueOnError)
	listen := fs.String("listen", "127.0.0.1:0", "address to listen on; port 0 picks a free one")
	portFile := fs.String("port-file", "", "write the port there when ready")
	dir := fs.String("dir", "", "folder of the bare repositories, made if missing (required)")
	var users, samples, empties list
	fs.Var(&users, "user", "NAME:PASSWORD:r or :rw, may be repeated; an empty name takes the password under every name; none: anybody may do all")
	fs.Var(&samples, "sample", "make a repository of this name with the sample project unless it is there; may be repeated")
	fs.Var(&empties, "empty", "make an empty repository of this name unless it is there; may be repeated")
	publicRead := fs.Bool("public-read", false, "with users: reading needs no password")
	refuse := fs.String("refuse-pushes", "", "refuse pushes to the repositories named by -sample and -empty with these words")
	verbose := fs.Bool("v", false, "log requests to stderr")
	if err := parse(fs, args, errOut, 0); err != nil {
		return err
	}
	o := gitserver.Options{Dir: *dir, PublicRead: *publicRead, Logger: logger(*verbose, errOut)}
	for _, u := range users {
		user, err := parseUser(u)
		if err != nil {
			return err
		}
		o.Users = append(o.Users, user)
	}
	s, err := gitserver.New(o)
	if err != nil {
		return err
	}
	repos := map[string]string{}
	for _, want := range []struct {
		names list
		files map[string]string
	}{{samples, sample.Files()}, {empties, nil}} {
		for _, name := range want.names {
			r, err := s.OpenRepo(name)
			if err != nil {
				r, err = s.NewRepo(ctx, name, want.files)
			}
			if err != nil {
				return err
			}
			if err := r.RefusePushes(*refuse); err != nil {
				return err
			}
			repos[r.Name] = r.Path()
		}
	}
	return serve(ctx, *listen, *portFile, s, out, func(url string) map[string]any {
		for name, path := range repos {
			repos[name] = url + path
		}
		return map[string]any{"service": "git", "repositories": repos}
	})
}

// parseUser reads NAME:PASSWORD:RIGHTS; the password may hold colons.
func parseUser(s string) (gitserver.User, error) {
	name, rest, ok := strings.Cut(s, ":")
	i := strings.LastIndexByte(rest, ':')
	if !ok || i <= 0 || rest[i+1:] != "r" && rest[i+1:] != "rw" {
		return gitserver.User{}, fmt.Errorf("-user is not NAME:PASSWORD:r or NAME:PASSWORD:rw")
	}
	return gitserver.User{Name: name, Password: rest[:i], Write: rest[i+1:] == "rw"}, nil
}

// serve listens, tells the address as a line of JSON, and serves until ctx ends.
func serve(ctx context.Context, listen, portFile string, h http.Handler, out io.Writer, more func(url string) map[string]any) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another address or port 0", listen, err)
	}
	addr := l.Addr().(*net.TCPAddr) // of a TCP listener
	url := "http://" + addr.String()
	ready := more(url)
	ready["address"], ready["port"], ready["url"] = addr.String(), addr.Port, url
	b, err := json.Marshal(ready)
	if err != nil {
		_ = l.Close()
		return fmt.Errorf("encode the address: %w", err)
	}
	if portFile != "" {
		if err := writeWhole(portFile, strconv.Itoa(addr.Port)+"\n"); err != nil {
			_ = l.Close()
			return err
		}
	}
	if _, err := out.Write(append(b, '\n')); err != nil {
		_ = l.Close()
		return fmt.Errorf("tell the address: %w", err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }() // waited for below
	select {
	case err = <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		_ = srv.Close() // open streams are cut; nobody waits for a stand-in
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	}
}

// writeWhole writes a small file so that a reader sees all of it or none.
func writeWhole(name, content string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".port-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.WriteString(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func agent(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) error {
	o, err := scriptedagent.FromArgs(args, os.Getenv, errOut)
	if err != nil {
		return err
	}
	o.In, o.Out, o.Err = in, out, errOut
	ended := make(chan error, 1)
	// Reading stdin cannot be broken off: on a signal the process ends under it.
	go func() { ended <- scriptedagent.Run(ctx, o) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

func sampleRepo(ctx context.Context, args []string, out, errOut io.Writer) error {
	fs := flag.NewFlagSet("sample-repo", flag.ContinueOnError)
	if err := parse(fs, args, errOut, 1); err != nil {
		return err
	}
	dir, err := filepath.Abs(fs.Arg(0))
	if err != nil {
		return fmt.Errorf("resolve %s: %w", fs.Arg(0), err)
	}
	head, err := sample.Make(ctx, dir)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(map[string]string{"dir": dir, "branch": "main", "head": head})
}
