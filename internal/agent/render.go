package agent

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

// PlaceholderKey stands in for the model provider's key inside a sandbox. The
// model door replaces it; it opens nothing.
const PlaceholderKey = "hearth-placeholder-key"

// ModelBase are the loopback addresses of the model door, as each dialect's
// clients expect their base address.
type ModelBase struct {
	Anthropic string // the client adds /v1/messages
	OpenAI    string // ends in /v1; the client adds /responses or /chat/completions
	Gemini    string // the client adds /v1beta/models/…
}

// RenderInput is what a session brings to a profile. Empty fields take the
// values that hold in every sandbox.
type RenderInput struct {
	Build     string    // of the installed layer; empty: the profile's own
	AgentsDir string    // where agents' folders are; empty: sandbox.PathAgents
	Home      string    // empty: sandbox.PathHome
	Models    ModelBase // empty: the driver's loopback port 3130
	Key       string    // empty: PlaceholderKey
	ProxyURL  string    // empty: the driver's loopback port 3128
	CAFile    string    // certificates of the root; empty: /etc/ssl/certs/ca-certificates.crt
	Provider  string    // empty: the profile's preferred one
	Model     string    // empty: the route's default, or the agent's own choice
	Approvals string    // empty: auto
	Env       []string  // of the session, KEY=VALUE; may not replace what Hearth sets
}

// Launch is what the driver starts, and what it sets in the agent's session.
type Launch struct {
	Command []string
	Env     []string // KEY=VALUE, sorted, whole environment
	Files   []File   // absolute paths, to be written before each start
	Dir     string   // working directory of the process: HOME
	// Fingerprint changes with anything that makes an agent's memory unfit:
	// profile build, provider, model, mode, environment, files.
	Fingerprint string

	Provider    string
	Dialect     string
	Model       string // empty: the agent's own choice
	Mode        string // to be set after new, load and resume, and read back; empty: none
	ModeConfig  string // config option that holds the mode; empty: session/set_mode
	ModelOption Option // to be set over ACP; empty: nothing to set
	Auth        string // ACP authenticate method; empty: none
	Resume      Resume
	LateReplay  bool // what comes after the answer to load, before the prompt, is replay
	Noise       []string
	Limits      Limits
}

// Option is an ACP config option and its value.
type Option struct{ ID, Value string }

// baseNames are the variables that are the same for every agent and that neither
// a profile nor a session replaces; of the others in environment a session may.
var baseNames = []string{
	"HOME", "PATH", "USER", "LOGNAME",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"DISABLE_TELEMETRY", "DO_NOT_TRACK",
}

// view is what the templates of a profile see.
type view struct {
	Dir       string // the agent's folder in its layer
	Node      string // the agent's own node; the word "node" when it needs none
	Home      string
	Provider  string
	Dialect   string
	Base      string // of the route's dialect
	Models    ModelBase
	Model     string
	Known     bool // Model is in the route's list of known ones
	Mode      string
	Approvals string
	Key       string
	Vars      map[string]string
}

// Render turns the profile into a launch. An environment variable whose template
// gives nothing is left out. Codes: MODEL_PROVIDER_UNSUPPORTED, MODEL_REQUIRED,
// APPROVALS_UNSUPPORTED, INVALID_INPUT (model or environment).
func (p Profile) Render(in RenderInput) (Launch, error) {
	in = p.defaults(in)
	route, err := p.Route(in.Provider)
	if err != nil {
		return Launch{}, err
	}
	if err := p.CheckApprovals(in.Approvals); err != nil {
		return Launch{}, err
	}
	mode, _ := p.approval(in.Approvals) // checked above
	if in.Model == "" {
		in.Model = route.Model
	}
	if in.Model == "" && route.NeedsModel {
		return Launch{}, fault.New(fault.ModelRequired, "%s needs a model to be named for the provider %s.", p.Title, route.Provider)
	}
	if err := checkModel(in.Model); err != nil {
		return Launch{}, err
	}
	v := view{
		Dir: path.Join(in.AgentsDir, p.Name), Node: "node", Home: in.Home,
		Provider: route.Provider, Dialect: route.Dialect, Base: in.Models.of(route.Dialect), Models: in.Models,
		Model: in.Model, Known: slices.Contains(route.Known, in.Model),
		Mode: mode.Mode, Approvals: in.Approvals, Key: in.Key, Vars: route.Vars,
	}
	if p.Node != "" {
		v.Node = path.Join(in.AgentsDir, nodeName, "bin", "node")
	}
	l := Launch{
		Dir: in.Home, Provider: route.Provider, Dialect: route.Dialect, Model: in.Model,
		Mode: v.Mode, ModeConfig: p.Mode.Config, Auth: p.Auth,
		Resume: p.Resume, LateReplay: p.Resume == ResumeLoadLateReplay, Noise: p.Noise, Limits: p.Limits,
	}
	if p.Model.Config != "" && in.Model != "" {
		l.ModelOption = Option{p.Model.Config, in.Model}
	}
	for _, c := range p.Command {
		s, err := v.expand("command", c)
		if err != nil {
			return Launch{}, err
		}
		l.Command = append(l.Command, s)
	}
	if l.Env, err = p.environment(in, route, v); err != nil {
		return Launch{}, err
	}
	for _, f := range slices.Concat(p.Files, route.Files) {
		s, err := v.expand("file "+f.Path, f.Content)
		if err != nil {
			return Launch{}, err
		}
		if path.Ext(f.Path) == ".json" && !json.Valid([]byte(s)) {
			return Launch{}, fmt.Errorf("render profile %s: file %s is not JSON", p.Name, f.Path)
		}
		mode := f.Mode
		if mode == 0 {
			mode = 0o600
		}
		l.Files = append(l.Files, File{Path: path.Join(in.Home, f.Path), Content: s, Mode: mode})
	}
	l.Fingerprint = l.fingerprint(in.Build)
	return l, nil
}

func (p Profile) defaults(in RenderInput) RenderInput {
	set := func(s *string, d string) {
		if *s == "" {
			*s = d
		}
	}
	set(&in.Build, p.build)
	set(&in.AgentsDir, sandbox.PathAgents)
	set(&in.Home, sandbox.PathHome)
	set(&in.Models.Anthropic, "http://127.0.0.1:3130/anthropic")
	set(&in.Models.OpenAI, "http://127.0.0.1:3130/openai/v1")
	set(&in.Models.Gemini, "http://127.0.0.1:3130/gemini")
	set(&in.Key, PlaceholderKey)
	set(&in.ProxyURL, "http://127.0.0.1:3128")
	set(&in.CAFile, "/etc/ssl/certs/ca-certificates.crt")
	set(&in.Approvals, ApprovalsAuto)
	return in
}

func (m ModelBase) of(dialect string) string {
	switch dialect {
	case DialectAnthropic:
		return m.Anthropic
	case DialectGemini:
		return m.Gemini
	default:
		return m.OpenAI
	}
}

// environment is what every agent gets, what the profile and its route add, and
// last what the session brings.
func (p Profile) environment(in RenderInput, route Route, v view) ([]string, error) {
	// The agent's own Node comes last: a repository's tools run on the root's.
	search := "/usr/local/bin:/usr/bin:/bin"
	if p.Node != "" {
		search += ":" + path.Dir(v.Node)
	}
	env := map[string]string{
		"HOME": in.Home, "PATH": search, "USER": "root", "LOGNAME": "root",
		"HTTP_PROXY": in.ProxyURL, "HTTPS_PROXY": in.ProxyURL, "NO_PROXY": "127.0.0.1,localhost",
		"http_proxy": in.ProxyURL, "https_proxy": in.ProxyURL, "no_proxy": "127.0.0.1,localhost",
		"LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1",
		"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0",
		"SSL_CERT_FILE": in.CAFile, "NODE_EXTRA_CA_CERTS": in.CAFile,
		"DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "NO_UPDATE_NOTIFIER": "1",
		"npm_config_update_notifier": "false", "npm_config_audit": "false", "npm_config_fund": "false",
	}
	for _, m := range []map[string]string{p.Env, route.Env} {
		for k, t := range m {
			s, err := v.expand("env "+k, t)
			if err != nil {
				return nil, err
			}
			if s != "" {
				env[k] = s
			}
		}
	}
	for _, kv := range in.Env {
		k, s, ok := strings.Cut(kv, "=")
		if !ok || !reEnvName.MatchString(k) || strings.ContainsRune(s, 0) {
			return nil, fault.New(fault.InvalidInput, "%q is not an environment variable: give NAME=VALUE.", k)
		}
		_, byProfile := p.Env[k]
		_, byRoute := route.Env[k]
		if byProfile || byRoute || slices.Contains(baseNames, k) {
			return nil, fault.New(fault.InvalidInput, "The environment variable %s is set by Hearth for %s. Leave it out.", k, p.Title).With("name", k)
		}
		env[k] = s
	}
	out := make([]string, 0, len(env))
	for k, s := range env {
		out = append(out, k+"="+s)
	}
	sort.Strings(out)
	return out, nil
}

// checkModel keeps a model's name out of the syntax of everything it is put into.
func checkModel(m string) error {
	const ok = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:/@[]+"
	if len(m) > 200 || strings.ContainsFunc(m, func(r rune) bool { return !strings.ContainsRune(ok, r) }) {
		return fault.New(fault.InvalidInput, "%q is not a model's name: letters, digits and -._:/@[]+ only, at most 200.", m)
	}
	return nil
}

func (v view) expand(what, s string) (string, error) {
	t, err := parseTemplate(what, s)
	if err != nil {
		return "", fmt.Errorf("render profile: %w", err)
	}
	var b strings.Builder
	if err := t.Execute(&b, v); err != nil {
		return "", fmt.Errorf("render profile: %w", err)
	}
	return b.String(), nil
}

func (l Launch) fingerprint(build string) string {
	parts := [][]byte{[]byte(build), []byte(l.Provider), []byte(l.Model), []byte(l.Mode), []byte(l.ModeConfig),
		[]byte(l.ModelOption.ID), []byte(l.ModelOption.Value), []byte(l.Auth), []byte(l.Dir)}
	list := func(ss []string) {
		parts = append(parts, []byte(strconv.Itoa(len(ss))))
		for _, s := range ss {
			parts = append(parts, []byte(s))
		}
	}
	list(l.Command)
	list(l.Env)
	for _, f := range l.Files {
		list([]string{f.Path, f.Content, strconv.Itoa(int(f.Mode))})
	}
	return digest(parts...)[:32]
}
