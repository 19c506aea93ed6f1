package forge

import (
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/fault"
)

// MaxURL bounds a repository's URL in bytes.
const MaxURL = 2048

// Remote is a repository that was named by a URL. Make one with [ParseRemote].
type Remote struct {
	// URL has lower-case scheme and host, no default port, no login, no trailing
	// slash. For a repository of this machine it is an absolute path.
	URL    string
	Scheme string // https, http or file
	Host   string // with a port that is not the default one; empty for file
	Path   string // as in the URL, percent-encoded, with its leading slash
}

// String is the URL.
func (r Remote) String() string { return r.URL }

// File says whether the repository is a folder of this machine.
func (r Remote) File() bool { return r.Scheme == "file" }

// ParseRemote reads what a person gave as a repository. Codes: INVALID_INPUT,
// UNSUPPORTED. Folders of this machine are taken only with allowFile.
func ParseRemote(raw string, allowFile bool) (Remote, error) {
	if err := plainText(raw); err != nil {
		return Remote{}, err
	}
	if strings.HasPrefix(raw, "/") || strings.HasPrefix(raw, ".") || strings.HasPrefix(raw, "~") || strings.HasPrefix(strings.ToLower(raw), "file:") {
		return parseFile(raw, allowFile)
	}
	if scheme, rest, ok := strings.Cut(raw, "::"); ok && !strings.ContainsAny(scheme, "/:") && rest != "" {
		return Remote{}, fault.New(fault.Unsupported, "Remote helpers such as %s:: are not used here. Give the repository's https:// URL.", scheme)
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		if host, p, ok := strings.Cut(raw, ":"); ok && !strings.Contains(host, "/") && p != "" {
			return Remote{}, unsupportedSSH(host, p)
		}
		return Remote{}, fault.New(fault.InvalidInput, "%s is not the URL of a repository. Give it as https://host/owner/name.", short(raw))
	}
	switch strings.ToLower(scheme) {
	case "https", "http":
	case "ssh", "git+ssh", "ssh+git":
		host, p, _ := strings.Cut(rest, "/")
		return Remote{}, unsupportedSSH(host, p)
	default:
		return Remote{}, fault.New(fault.Unsupported, "Repositories are reached by https only, not by %s. Give the https:// URL.", short(scheme))
	}
	return parseHTTP(raw)
}

func parseHTTP(raw string) (Remote, error) {
	u, err := url.Parse(raw)
	if err != nil { // the error quotes the URL, which may hold a password
		return Remote{}, fault.New(fault.InvalidInput, "The repository's URL cannot be read. Give it as https://host/owner/name.")
	}
	if u.User != nil {
		return Remote{}, fault.New(fault.InvalidInput, "The repository's URL has a login in it. Leave it out and put it into the server's credentials file.")
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(raw, "#") {
		return Remote{}, fault.New(fault.InvalidInput, "The repository's URL has a query or fragment. Give only https://host/owner/name.")
	}
	host, err := hostOf(u)
	if err != nil {
		return Remote{}, err
	}
	p := strings.TrimRight(u.EscapedPath(), "/")
	if p == "" || p == "/.git" {
		return Remote{}, fault.New(fault.InvalidInput, "The URL names a host but no repository. Give it as https://host/owner/name.")
	}
	plain, err := url.PathUnescape(p)
	odd := func(r rune) bool { return unicode.IsControl(r) || r == '\\' || r == utf8.RuneError }
	if err != nil || strings.ContainsFunc(plain, odd) || path.Clean(plain) != plain {
		return Remote{}, fault.New(fault.InvalidInput, "The path in the repository's URL is not a plain one.")
	}
	scheme := strings.ToLower(u.Scheme)
	return Remote{URL: scheme + "://" + host + p, Scheme: scheme, Host: host, Path: p}, nil
}

// hostOf checks and normalises the host and port.
func hostOf(u *url.URL) (string, error) {
	name, port := strings.ToLower(u.Hostname()), u.Port()
	bad := name == "" || strings.HasPrefix(name, "-") || strings.HasPrefix(name, ".")
	for _, r := range name {
		if r > unicode.MaxASCII {
			return "", fault.New(fault.InvalidInput, "The host in the repository's URL is not ASCII. Write it in its xn-- form.")
		}
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-._:", r) {
			bad = true
		}
	}
	if bad || strings.HasSuffix(u.Host, ":") || strings.Contains(name, ":") && net.ParseIP(name) == nil {
		return "", fault.New(fault.InvalidInput, "The host in the repository's URL is not valid.")
	}
	if strings.Contains(name, ":") {
		name = "[" + name + "]"
	}
	if port == "" || port == "443" && strings.EqualFold(u.Scheme, "https") || port == "80" && strings.EqualFold(u.Scheme, "http") {
		return name, nil
	}
	return name + ":" + port, nil
}

func parseFile(raw string, allow bool) (Remote, error) {
	if !allow {
		return Remote{}, fault.New(fault.Unsupported, "Folders of the server are not used as repositories. Give an https:// URL, or start the server with --allow-file-repositories.")
	}
	p := raw
	if len(raw) >= 5 && strings.EqualFold(raw[:5], "file:") {
		u, err := url.Parse(raw)
		if err != nil || u.Host != "" || u.RawQuery != "" || u.Fragment != "" || u.Path == "" {
			return Remote{}, fault.New(fault.InvalidInput, "%s is not the path of a folder. Give it as file:///path.", short(raw))
		}
		p = u.Path
	}
	if !strings.HasPrefix(p, "/") {
		return Remote{}, fault.New(fault.InvalidInput, "The path of a repository on the server must begin with a slash.")
	}
	if err := plainText(p); err != nil {
		return Remote{}, err
	}
	p = path.Clean(p)
	return Remote{URL: p, Scheme: "file", Path: p}, nil
}

// plainText refuses what could be taken for an option or change a line.
func plainText(s string) error {
	switch {
	case s == "":
		return fault.New(fault.InvalidInput, "No repository is given.")
	case len(s) > MaxURL:
		return fault.New(fault.InvalidInput, "The repository's URL is longer than %d bytes.", MaxURL)
	case strings.HasPrefix(s, "-"):
		return fault.New(fault.InvalidInput, "The repository's URL begins with a dash.")
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }):
		return fault.New(fault.InvalidInput, "The repository's URL has spaces or control characters in it.")
	}
	return nil
}

func unsupportedSSH(host, p string) error {
	if i := strings.LastIndex(host, "@"); i >= 0 {
		host = host[i+1:]
	}
	name, _, _ := strings.Cut(host, ":")
	return fault.New(fault.Unsupported, "Repositories are reached by https, not by ssh. Try https://%s/%s.", short(name), short(strings.TrimPrefix(p, "/")))
}

func short(s string) string {
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// DoorPath is where the git door offers the repository: /host/owner/name, without
// .git. Paths are kept, so that a relative submodule leads to its own path.
func (r Remote) DoorPath() string {
	p := strings.TrimSuffix(r.Path, ".git")
	if r.File() {
		return "/local" + (&url.URL{Path: p}).EscapedPath()
	}
	return "/" + r.Host + p
}

// Forms lists the ways to write the remote, for git's insteadOf: https, http and
// ssh, with and without the user git, the scp form, each with and without .git,
// the longest first. A folder has only its path.
func (r Remote) Forms() []string {
	bare := strings.TrimSuffix(r.Path, ".git")
	if r.File() {
		return dedupe([]string{"file://" + r.Path, r.Path})
	}
	name := r.Host
	if h, _, err := net.SplitHostPort(r.Host); err == nil {
		name = h
		if strings.Contains(h, ":") {
			name = "[" + h + "]"
		}
	}
	var out []string
	for _, p := range []string{bare + ".git", bare} {
		out = append(out,
			"https://"+r.Host+p, "http://"+r.Host+p,
			"ssh://git@"+name+p, "ssh://"+name+p, "git+ssh://git@"+name+p,
			"git@"+name+":"+strings.TrimPrefix(p, "/"), name+":"+strings.TrimPrefix(p, "/"),
			"git://"+name+p,
		)
	}
	return dedupe(out)
}

func dedupe(s []string) []string {
	slices.SortStableFunc(s, func(a, b string) int { return len(b) - len(a) })
	seen := map[string]bool{}
	return slices.DeleteFunc(s, func(x string) bool {
		had := seen[x]
		seen[x] = true
		return had
	})
}
