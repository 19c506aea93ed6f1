package forge

import (
	"bufio"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
)

// Credentials finds the login for a remote in a file in git-credential-store(1)'s
// format, then among tokens by host. Scheme, host and port must be equal; a line
// with a path serves only that repository and goes before one without.
type Credentials struct {
	File   string                // read at each use; empty: none
	Tokens map[string]Credential // by host, for https only
}

// EnvTokens are the logins that well-known variables give.
func EnvTokens(getenv func(string) string) map[string]Credential {
	out := map[string]Credential{}
	for _, v := range []struct{ name, host, user string }{
		{"GH_TOKEN", "github.com", "x-access-token"},
		{"GITHUB_TOKEN", "github.com", "x-access-token"},
		{"GITLAB_TOKEN", "gitlab.com", "oauth2"},
	} {
		if t := strings.TrimSpace(getenv(v.name)); t != "" {
			out[v.host] = Credential{Username: v.user, Password: t}
		}
	}
	return out
}

// For returns the login for a remote, an empty one when there is none.
// A file that is set and cannot be read is CONFIG_INVALID.
func (c *Credentials) For(r Remote) (Credential, error) {
	if c == nil || r.File() {
		return Credential{}, nil
	}
	if c.File != "" {
		found, err := c.fromFile(r)
		if err != nil {
			return Credential{}, err
		}
		if !found.IsZero() {
			return found, nil
		}
	}
	if r.Scheme == "https" {
		return c.Tokens[r.Host], nil
	}
	return Credential{}, nil
}

func (c *Credentials) fromFile(r Remote) (Credential, error) {
	f, err := os.Open(c.File)
	if errors.Is(err, os.ErrNotExist) {
		return Credential{}, fault.New(fault.ConfigInvalid, "The git credentials file %s is not there.", c.File)
	}
	if err != nil {
		return Credential{}, fault.Wrap(err, fault.ConfigInvalid, "The git credentials file %s cannot be read.", c.File)
	}
	defer f.Close()
	var host Credential
	in := bufio.NewScanner(f)
	for in.Scan() {
		login, p, ok := match(in.Text(), r)
		switch {
		case !ok:
		case p != "":
			return login, nil
		case host.IsZero():
			host = login
		}
	}
	if err := in.Err(); err != nil {
		return Credential{}, fmt.Errorf("read git credentials file: %w", err)
	}
	return host, nil
}

// match reads one line. p is the repository's path when the line names one.
func match(line string, r Remote) (login Credential, p string, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || strings.HasPrefix(line, "#") {
		return Credential{}, "", false
	}
	u, err := url.Parse(line)
	if err != nil || u.User == nil || !strings.EqualFold(u.Scheme, r.Scheme) {
		return Credential{}, "", false
	}
	if h, err := hostOf(u); err != nil || h != r.Host {
		return Credential{}, "", false
	}
	pass, has := u.User.Password()
	if !has {
		return Credential{}, "", false
	}
	p = repositoryPath(u.EscapedPath())
	if p != "" && p != repositoryPath(r.Path) {
		return Credential{}, "", false
	}
	return Credential{Username: u.User.Username(), Password: pass}, p, true
}

func repositoryPath(p string) string {
	return strings.TrimSuffix(strings.TrimRight(p, "/"), ".git")
}

// Secrets are all passwords that there are now, to be masked and looked for. What
// cannot be read gives none: [Credentials.For] tells of that.
func (c *Credentials) Secrets() [][]byte {
	var out [][]byte
	if c == nil {
		return nil
	}
	for _, t := range c.Tokens {
		out = append(out, []byte(t.Password))
	}
	if c.File == "" {
		return out
	}
	raw, err := os.ReadFile(c.File)
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(raw)) {
		u, err := url.Parse(strings.TrimSpace(line))
		if err != nil || u.User == nil {
			continue
		}
		if p, ok := u.User.Password(); ok && p != "" {
			out = append(out, []byte(p))
		}
	}
	return out
}
