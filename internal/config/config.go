// Package config is the only reader of Hearth's settings: one struct, and one
// table that says for each field its flag, environment variable, default, and
// what it is for. docs/config.md is printed from the same table by [Markdown].
// Start at [Fields] and [Load].
package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// Config is every setting of a server.
type Config struct {
	Listen           string // host:port
	ListenPlain      bool
	StateDir         string // absolute
	LogLevel         string
	LogFormat        string
	Sandbox          string
	SandboxCPUMillis int64 // thousandths of a core
	SandboxMemory    int64 // bytes
	SandboxDisk      int64 // bytes
	SandboxIdle      time.Duration
	MaxSandboxes     int           // 0: by memory
	IdleExit         time.Duration // 0: never
	GitCredentials   string        // file; empty: none
	AllowPrivate     []string      // host or host:port
	Registries       []string
	TokenFile        string
	AgentsDir        string   // absolute
	AllowHosts       []string // reached by agents always
	SandboxRoot      string   // "host" or an image
	AllowFile        bool     // repositories of this machine by path
	Origins          []string // web pages that may call, as scheme://host[:port]
}

// Field is one setting and everything about it.
type Field struct {
	Name    string // of the flag
	Default string
	Doc     string // one or more sentences
	Type    string // what a value looks like, for help texts
	Bool    bool   // the flag may stand without a value
	set     func(c *Config, value string) error
}

// Env is the environment variable of the field.
func (f *Field) Env() string {
	return "HEARTH_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// DefaultListen is where a server listens when nothing else is said.
const DefaultListen = "127.0.0.1:7747"

// AutostartIdleExit is the idle exit of a server that the CLI starts.
const AutostartIdleExit = 30 * time.Minute

// Fields is the table. Defaults that depend on who runs the server are filled in
// by [Load].
func Fields() []Field {
	return []Field{
		{"listen", DefaultListen, "Address that the server listens on. Port 0 takes a free one.", "HOST:PORT", false, func(c *Config, v string) error {
			host, port, err := net.SplitHostPort(v)
			if err != nil {
				return fmt.Errorf("is not HOST:PORT")
			}
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
				return fmt.Errorf("has no port between 0 and 65535")
			}
			if strings.ContainsAny(host, " /@") {
				return fmt.Errorf("has no valid host")
			}
			c.Listen = v
			return nil
		}},
		{"listen-plain", "false", "Allow an address that is not loopback. The server speaks plain HTTP: whoever is on the way can read the token. Put a proxy with TLS in front.", "", true, boolean(func(c *Config) *bool { return &c.ListenPlain })},
		{"state-dir", "", "Folder of everything that lasts: database, work, agents, token. As root /var/lib/hearth, else ~/.local/state/hearth.", "DIR", false, func(c *Config, v string) error {
			if !filepath.IsAbs(v) {
				return fmt.Errorf("is not an absolute path")
			}
			c.StateDir = filepath.Clean(v)
			return nil
		}},
		{"log-level", "info", "What is logged: debug, info, warn or error.", "LEVEL", false, oneOf(func(c *Config) *string { return &c.LogLevel }, "debug", "info", "warn", "error")},
		{"log-format", "text", "How it is logged: text or json.", "FORMAT", false, oneOf(func(c *Config) *string { return &c.LogFormat }, "text", "json")},
		{"sandbox", "gvisor", "What sandboxes are made with: gvisor, which has a kernel of its own, or bubblewrap, which is weaker: it shares the host's kernel and is for trusted code only.", "PROVIDER", false, oneOf(func(c *Config) *string { return &c.Sandbox }, "gvisor", "bubblewrap")},
		{"sandbox-cpu", "2", "Cores of one sandbox; a fraction is fine.", "CORES", false, func(c *Config, v string) error {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil || !(f >= 0.1 && f <= 1024) {
				return fmt.Errorf("is not a number of cores between 0.1 and 1024")
			}
			c.SandboxCPUMillis = int64(f*1000 + 0.5)
			return nil
		}},
		{"sandbox-memory", "4GiB", "Memory of one sandbox.", "SIZE", false, size(func(c *Config) *int64 { return &c.SandboxMemory }, 256<<20)},
		{"sandbox-disk", "20GiB", "Disk of one sandbox: what it writes beside its root.", "SIZE", false, size(func(c *Config) *int64 { return &c.SandboxDisk }, 256<<20)},
		{"sandbox-idle", "30m", "How long a sandbox that nobody uses is kept.", "TIME", false, span(func(c *Config) *time.Duration { return &c.SandboxIdle }, time.Second)},
		{"max-sandboxes", "0", "How many sandboxes may live at once; 0: as long as 768 MiB of memory are free for another. When there is no room the longest idle one goes, then turns wait.", "N", false, func(c *Config, v string) error {
			n, err := strconv.ParseUint(v, 10, 16)
			if err != nil {
				return fmt.Errorf("is not a number between 0 and 65535")
			}
			c.MaxSandboxes = int(n)
			return nil
		}},
		{"idle-exit", "0", "The server ends when it had nothing to do for so long; 0: never. A server that the CLI starts by itself has 30m.", "TIME", false, span(func(c *Config) *time.Duration { return &c.IdleExit }, time.Second)},
		{"git-credentials", "", "File with credentials for git hosts, one URL a line: https://USER:TOKEN@HOST. Only its owner may read it.", "FILE", false, path(func(c *Config) *string { return &c.GitCredentials })},
		{"egress-allow-private", "", "Hosts among those that sandboxes may reach whose address is private or loopback: a registry in your own network. Comma-separated HOST:PORT. Model providers and git hosts need no entry.", "HOSTS", false, hosts(func(c *Config) *[]string { return &c.AllowPrivate })},
		{"registries", "registry.npmjs.org,pypi.org,files.pythonhosted.org,proxy.golang.org,sum.golang.org,index.crates.io,static.crates.io,crates.io,rubygems.org", "Hosts that a sandbox reaches while the repository is set up; not later. Comma-separated; \"none\" for none.", "HOSTS", false, func(c *Config, v string) error {
			if v == "none" {
				c.Registries = nil
				return nil
			}
			return hosts(func(c *Config) *[]string { return &c.Registries })(c, v)
		}},
		{"egress-allow", "", "Hosts that agents may always reach, on ports 443 and 80. Comma-separated; at most 32.", "HOSTS", false, hosts(func(c *Config) *[]string { return &c.AllowHosts })},
		{"agents-dir", "", "Folder of the installed agents. Empty: agents in the state folder.", "DIR", false, path(func(c *Config) *string { return &c.AgentsDir })},
		{"sandbox-root", "host", "What sandboxes see as their system: host, which shows this machine's /usr read-only, or an image: a registry reference, oci-layout:DIR or docker-archive:FILE.", "ROOT", false, func(c *Config, v string) error {
			if v == "" {
				return fmt.Errorf("is neither host nor an image")
			}
			c.SandboxRoot = v
			return nil
		}},
		{"allow-file-repositories", "false", "Allow repositories that are folders of this machine, named by absolute path.", "", true, boolean(func(c *Config) *bool { return &c.AllowFile })},
		{"cors-origins", "", "Web pages of other origins that may call the API from a browser, with a token or an attach ticket. Comma-separated, as https://chat.example.org. Cookies are never used.", "ORIGINS", false, origins},
		{"token-file", "", "File of the owner's token, made at the first start. Empty: owner-token in the state folder.", "FILE", false, path(func(c *Config) *string { return &c.TokenFile })},
	}
}

// origins reads what browsers send as Origin (RFC 6454, section 6.2).
func origins(c *Config, v string) error {
	c.Origins = nil
	for o := range strings.SplitSeq(v, ",") {
		if o = strings.TrimSpace(o); o == "" {
			continue
		}
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Scheme+"://"+u.Host != o || strings.Contains(o, "*") {
			return fmt.Errorf("has %.80q, which is not of the form https://HOST[:PORT]", o)
		}
		c.Origins = append(c.Origins, strings.ToLower(o))
	}
	return nil
}

func boolean(p func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("is neither true nor false")
		}
		*p(c) = b
		return nil
	}
}

func oneOf(p func(*Config) *string, words ...string) func(*Config, string) error {
	return func(c *Config, v string) error {
		if !slices.Contains(words, v) {
			return fmt.Errorf("can be %s", strings.Join(words, ", "))
		}
		*p(c) = v
		return nil
	}
}

func span(p func(*Config) *time.Duration, least time.Duration) func(*Config, string) error {
	return func(c *Config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 || d > 0 && d < least {
			return fmt.Errorf("is not a time such as 90s, 30m or 2h")
		}
		*p(c) = d
		return nil
	}
}

func size(p func(*Config) *int64, least int64) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := ParseSize(v)
		if err != nil {
			return err
		}
		if n < least {
			return fmt.Errorf("is less than %dMiB", least>>20)
		}
		*p(c) = n
		return nil
	}
}

// ParseSize reads a size such as 512MiB, 4GiB or 1073741824, in bytes.
func ParseSize(v string) (int64, error) {
	num, unit := v, int64(1)
	for _, u := range []struct {
		name string
		n    int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}} {
		if s, ok := strings.CutSuffix(v, u.name); ok {
			num, unit = s, u.n
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(num), 10, 64)
	if err != nil || n < 0 || n > (1<<62)/unit {
		return 0, fmt.Errorf("is not a size such as 512MiB or 4GiB")
	}
	return n * unit, nil
}

func path(p func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error {
		if v != "" && !filepath.IsAbs(v) {
			return fmt.Errorf("is not an absolute path")
		}
		*p(c) = v
		return nil
	}
}

func hosts(p func(*Config) *[]string) func(*Config, string) error {
	return func(c *Config, v string) error {
		var out []string
		for _, h := range strings.Split(v, ",") {
			if h = strings.TrimSpace(h); h == "" {
				continue
			}
			if !validHost(h) {
				return fmt.Errorf("has %q, which is not HOST or HOST:PORT", h)
			}
			out = append(out, strings.ToLower(h))
		}
		*p(c) = out
		return nil
	}
}

func validHost(h string) bool {
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	host := h
	if x, port, err := net.SplitHostPort(h); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
		host = x
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if host == "" || len(host) > 253 {
		return false
	}
	for _, label := range strings.Split(host, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			return false
		}
	}
	return true
}

// Load takes flags that were given (by name), then the environment, then the
// defaults, and judges all of it. Code: CONFIG_INVALID, whose message names every
// mistake and where it was made.
func Load(flags map[string]string, getenv func(string) string) (Config, error) {
	var c Config
	var wrong []string
	known := map[string]bool{}
	for _, f := range Fields() {
		known[f.Name] = true
		value, from := f.Default, "the default of --"+f.Name
		if f.Name == "state-dir" {
			value = defaultStateDir(getenv)
		}
		if v := getenv(f.Env()); v != "" {
			value, from = v, f.Env()
		}
		if v, ok := flags[f.Name]; ok {
			value, from = v, "--"+f.Name
		}
		if err := f.set(&c, value); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s %q %v", from, value, err))
		}
	}
	for name := range flags {
		if !known[name] {
			wrong = append(wrong, "--"+name+" is not a setting")
		}
	}
	slices.Sort(wrong)
	if c.Listen != "" && !c.ListenPlain && !loopback(c.Listen) {
		wrong = append(wrong, fmt.Sprintf("--listen %q is not loopback and the server speaks plain HTTP; give --listen-plain too if a proxy with TLS is in front", c.Listen))
	}
	if c.GitCredentials != "" {
		if st, err := os.Stat(c.GitCredentials); err != nil {
			wrong = append(wrong, fmt.Sprintf("--git-credentials %q cannot be read", c.GitCredentials))
		} else if st.IsDir() || st.Mode().Perm()&0o077 != 0 {
			wrong = append(wrong, fmt.Sprintf("--git-credentials %q must be a file that only its owner can read: chmod 600 it", c.GitCredentials))
		}
	}
	if len(wrong) > 0 {
		return Config{}, fault.New(fault.ConfigInvalid, "%s.", strings.Join(wrong, ".\n")).With("mistakes", wrong)
	}
	c.AgentsDir = cmp.Or(c.AgentsDir, filepath.Join(c.StateDir, "agents"))
	c.TokenFile = cmp.Or(c.TokenFile, filepath.Join(c.StateDir, "owner-token"))
	return c, nil
}

func loopback(address string) bool {
	host, _, _ := net.SplitHostPort(address) // checked before
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func defaultStateDir(getenv func(string) string) string {
	if os.Geteuid() == 0 {
		return "/var/lib/hearth"
	}
	if d := getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "hearth")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "hearth")
	}
	return ""
}

// providers tells of the variables that package door/model reads.
const providers = `
## Model providers

Keys and addresses come from the environment only, in the variables that the providers' own tools use; a flag would be seen by every process of
the machine. A key never enters a sandbox.

| provider | key, the first that is set | address |
|---|---|---|
| anthropic | ` + "`ANTHROPIC_API_KEY`, `ANTHROPIC_AUTH_TOKEN`, `CLAUDE_CODE_OAUTH_TOKEN`" + ` | ` + "`ANTHROPIC_BASE_URL`" + ` |
| openai | ` + "`OPENAI_API_KEY`" + ` | ` + "`OPENAI_BASE_URL`" + `, with its version: https://host/v1 |
| openai-compatible | as openai, when the address is not OpenAI's | |
| gemini | ` + "`GEMINI_API_KEY`, `GOOGLE_API_KEY`" + ` | ` + "`GOOGLE_GEMINI_BASE_URL`" + ` |

Git hosts: ` + "`GITHUB_TOKEN`" + ` and its like are used for their own host; everything else is in the file of ` + "`--git-credentials`" + `.
`

//go:generate go test . -run SettingsDocument -update

// Markdown prints docs/config.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# Settings\n\nGenerated from internal/config; do not edit.\n\nA flag of `hearth serve` comes before its environment variable, and that before the default. All mistakes are reported at once.\n\n")
	b.WriteString("| flag | environment | default | what it is |\n|---|---|---|---|\n")
	for _, f := range Fields() {
		flag := "--" + f.Name
		if f.Type != "" {
			flag += " " + f.Type
		}
		def := "`" + strings.ReplaceAll(f.Default, ",", ", ") + "`"
		if f.Default == "" {
			def = ""
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", flag, f.Env(), def, f.Doc)
	}
	b.WriteString(providers)
	return b.String()
}
