package scriptedagent

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// FromArgs reads options from a command line and, for what it leaves out, from
// the environment: a flag --hang is SCRIPTED_HANG there. The model's address and
// key come from ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, the home from HOME. In,
// Out and Err are left to the caller. Help and complaints about flags go to usage.
func FromArgs(args []string, getenv func(string) string, usage io.Writer) (Options, error) {
	fs := flag.NewFlagSet("agent", flag.ContinueOnError)
	fs.SetOutput(usage)
	fs.String("caps", strings.Join(AllCaps, ","), "capabilities, comma-separated; \"none\" for none")
	fs.String("hang", "", "methods never answered, comma-separated, such as initialize,session/new")
	fs.String("fail", "", "methods answered with an error, as METHOD=CODE:WORDS; several parted by ;")
	fs.String("version", "1", "protocol version answered")
	fs.String("replay", ReplayBefore, "when session/load replays: before or after its response")
	fs.Bool("auth", false, "sessions need authenticate api-key first")
	fs.String("mode", "auto", "mode of new, loaded and resumed sessions: auto or ask")
	fs.Bool("no-message-ids", false, "send no messageId")
	fs.Bool("ignore-eof", false, "stay when stdin ends")
	fs.Bool("ignore-term", false, "do not end on SIGTERM, SIGINT and SIGHUP")
	fs.String("on-model-error", ModelErrorFails, "what a refused model request becomes: error, end_turn or retry")
	if err := fs.Parse(args); err != nil {
		return Options{}, err
	}
	if fs.NArg() > 0 {
		return Options{}, fmt.Errorf("agent takes no arguments, only flags; %q is one too many", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	val := func(name string) string {
		if v := getenv("SCRIPTED_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))); v != "" && !given[name] {
			return v
		}
		return fs.Lookup(name).Value.String()
	}
	o := Options{
		Home: getenv("HOME"), ModelURL: getenv("ANTHROPIC_BASE_URL"), ModelKey: getenv("ANTHROPIC_API_KEY"),
		Hang: list(val("hang")), Replay: val("replay"), Mode: val("mode"), OnModelError: val("on-model-error"),
		Fail: map[string]Failure{}, Caps: list(val("caps")),
	}
	if val("caps") == "none" {
		o.Caps = []string{}
	}
	for _, c := range o.Caps {
		if !slices.Contains(AllCaps, c) {
			return Options{}, fmt.Errorf("--caps: there is no capability %q; choose from %s", c, strings.Join(AllCaps, ", "))
		}
	}
	for name, choices := range map[string][]string{
		"replay": {ReplayBefore, ReplayAfter}, "mode": modeIDs, "on-model-error": {ModelErrorFails, ModelErrorEndTurn, ModelErrorRetry},
	} {
		if !slices.Contains(choices, val(name)) {
			return Options{}, fmt.Errorf("--%s: %q is not one of %s", name, val(name), strings.Join(choices, ", "))
		}
	}
	for name, at := range map[string]*bool{"auth": &o.Auth, "no-message-ids": &o.NoMessageIDs, "ignore-eof": &o.IgnoreEOF, "ignore-term": &o.IgnoreTerm} {
		b, err := strconv.ParseBool(val(name))
		if err != nil {
			return Options{}, fmt.Errorf("--%s: %q is neither true nor false", name, val(name))
		}
		*at = b
	}
	var err error
	if o.Version, err = strconv.Atoi(val("version")); err != nil {
		return Options{}, fmt.Errorf("--version: %q is no number", val("version"))
	}
	for f := range strings.SplitSeq(val("fail"), ";") {
		if f == "" {
			continue
		}
		method, rest, ok := strings.Cut(f, "=")
		code, words, _ := strings.Cut(rest, ":")
		n, err := strconv.Atoi(code)
		if !ok || err != nil {
			return Options{}, fmt.Errorf("--fail: %q is not METHOD=CODE:WORDS", f)
		}
		o.Fail[method] = Failure{n, words}
	}
	return o, nil
}

func list(s string) []string {
	out := []string{}
	for e := range strings.SplitSeq(s, ",") {
		if e = strings.TrimSpace(e); e != "" && e != "none" {
			out = append(out, e)
		}
	}
	return out
}
