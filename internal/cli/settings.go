package cli

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/config"
)

// What a server reads of its environment beside its settings: docs/config.md lists it.
// A secret that a command lacks is not missed, since a shell without keys is no wish
// to have none.
var (
	secretVariables = []string{
		"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY",
		"GH_TOKEN", "GITHUB_TOKEN", "GITLAB_TOKEN",
	}
	plainVariables = []string{
		"ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	}
)

// settings are those of a server in the background, as hashes: none can be read back. They
// are kept beside its server.json, with its process.
type settings struct {
	PID  int               `json:"pid"`
	Salt string            `json:"salt"`
	Hash map[string]string `json:"hash"` // by variable
}

func settingsFile(stateDir string) string { return filepath.Join(stateDir, "background.json") }

// values are the settings of this command, by variable; flags go before the environment.
func (a *app) values(flags []string) map[string]string {
	out := map[string]string{}
	for _, f := range config.Fields() {
		switch f.Name {
		case "state-dir", "log-level", "log-format":
			continue // not what it does
		}
		v := a.setting(f.Env())
		if i := slices.Index(flags, "--"+f.Name); i >= 0 {
			v = flags[i+1]
		}
		if v == f.Default {
			v = "" // as if it had not been said
		}
		out[f.Env()] = v
	}
	for _, name := range slices.Concat(secretVariables, plainVariables) {
		out[name] = strings.TrimSpace(a.Getenv(name))
	}
	return out
}

func (s *settings) hash(name, value string) string {
	if value == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(s.Salt + "\x00" + name + "\x00" + value))
	return hex.EncodeToString(sum[:8])
}

// keepSettings writes down with what a server was started.
func (a *app) keepSettings(stateDir string, pid int, flags []string) error {
	s := settings{PID: pid, Salt: rand.Text(), Hash: map[string]string{}}
	for name, v := range a.values(flags) {
		s.Hash[name] = s.hash(name, v)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the settings: %w", err)
	}
	path := settingsFile(stateDir)
	f, err := os.CreateTemp(stateDir, ".background.*") // mode 0600
	if err != nil {
		return fmt.Errorf("keep the settings: %w", err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it has its name by then
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("keep the settings: %w", err)
	}
	return nil
}

// readSettings reads those of the server that is the process; ok: a command started it.
func readSettings(stateDir string, pid int) (s settings, ok bool) {
	b, err := os.ReadFile(settingsFile(stateDir))
	return s, err == nil && pid > 0 && json.Unmarshal(b, &s) == nil && s.PID == pid
}

func isBackground(stateDir string, pid int) bool {
	_, ok := readSettings(stateDir, pid)
	return ok
}

// changed lists the variables in which this command differs from the server.
func (a *app) changed(s *settings) []string {
	var out []string
	for name, v := range a.values(nil) {
		was, known := s.Hash[name]
		if !known || v == "" && slices.Contains(secretVariables, name) {
			continue
		}
		if s.hash(name, v) != was {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// renew ends a server in the background that has other settings than this command, if
// nothing is at work on it. It gives the names of those settings then; empty: the server
// goes on.
func (a *app) renew(ctx context.Context, cfg config.Config, c *client.Client) (string, error) {
	pid := a.holderOf(cfg.StateDir)
	s, ok := readSettings(cfg.StateDir, pid)
	if !ok {
		return "", nil
	}
	names := a.changed(&s)
	if len(names) == 0 {
		return "", nil
	}
	list := strings.Join(names, ", ")
	why, err := atWork(ctx, c, slices.Contains(names, "HEARTH_SANDBOX"))
	if err != nil {
		return "", nil //nolint:nilerr // whatever is wrong, the command itself meets it next
	}
	if why != "" {
		a.note("The server in the background was started with other settings and %s, so that these are not in force now: %s.", why, list)
		a.note("  To have them: %s stop, then this again. What is at work goes on meanwhile.", a.self())
		return "", nil
	}
	if err := a.end(ctx, cfg.StateDir, pid); err != nil {
		return "", err
	}
	return list, nil
}

// atWork says what a server is busy with; empty: nothing. With sandboxes one that lives is
// work too: a server for another kind of them could not take it back.
func atWork(ctx context.Context, c *client.Client, sandboxes bool) (string, error) {
	l, err := c.List(ctx, client.ListInput{Phases: []string{"starting", "running", "waiting", "stopping", "delivering", "deleting"}, Limit: 1})
	if err != nil || len(l.Items) > 0 {
		return "is at work", err
	}
	l, err = c.List(ctx, client.ListInput{Phases: []string{"queued"}})
	if err != nil {
		return "", err
	}
	for i := range l.Items {
		if !l.Items[i].QueueHeld {
			return "is at work", nil
		}
	}
	if !sandboxes {
		return "", nil
	}
	n, err := liveSandboxes(ctx, c)
	if err != nil || n > 0 {
		return "has sandboxes of another kind", err
	}
	return "", nil
}

// liveSandboxes counts the sandboxes there are, those that are being removed too.
func liveSandboxes(ctx context.Context, c *client.Client) (int, error) {
	caps, err := c.Capabilities(ctx)
	return caps.Sandbox.Live, err
}
