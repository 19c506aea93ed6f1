package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// npmRun is one `npm ci` into a folder.
type npmRun struct {
	npm      string // program
	env      []string
	dir      string // gets package.json, package-lock.json and node_modules
	cache    string // npm's cache
	offline  bool
	title    string
	packages []Package
	lock     []byte
	progress func(done, total int, last string)
}

// npmLine is a line that npm writes for each request to the registry or its cache.
var npmLine = regexp.MustCompile(`^npm http (?:fetch|cache) `)

// run installs exactly what the lock file says. Scripts of packages never run:
// no agent needs them, and they would run with the server's rights.
func (n npmRun) run(ctx context.Context) error {
	deps := map[string]string{}
	for _, k := range n.packages {
		deps[k.Name] = k.Version
	}
	var lock struct {
		Name     string                     `json:"name"`
		Version  string                     `json:"version"`
		Packages map[string]json.RawMessage `json:"packages"`
	}
	if err := json.Unmarshal(n.lock, &lock); err != nil {
		return fmt.Errorf("read lock file: %w", err)
	}
	manifest, err := json.Marshal(map[string]any{"name": lock.Name, "version": lock.Version, "private": true, "dependencies": deps})
	if err != nil {
		return fmt.Errorf("write package.json: %w", err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "package.json"), manifest, 0o644); err != nil {
		return fmt.Errorf("write package.json: %w", err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "package-lock.json"), n.lock, 0o644); err != nil {
		return fmt.Errorf("write package-lock.json: %w", err)
	}
	// All that a person's npm configuration could change about the tree is given here.
	args := []string{"ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=http", "--no-progress",
		"--color=false", "--cache", n.cache, "--logs-max=0", "--include=prod", "--include=optional", "--include=peer", "--omit=dev",
		"--os=linux", "--cpu=x64", "--libc=glibc", "--bin-links=true", "--install-strategy=hoisted", "--global=false",
		"--engine-strict=false", "--legacy-peer-deps=false", "--dry-run=false", "--package-lock=true", "--package-lock-only=false"}
	if n.offline {
		args = append(args, "--offline")
	} else {
		// Whatever the registry says of staleness: contents are checked by hash anyway.
		args = append(args, "--prefer-offline")
	}
	cmd := exec.CommandContext(ctx, n.npm, args...)
	cmd.Dir = n.dir
	cmd.Env = append(npmOwn(os.Environ()), n.env...)
	// npm must not outlive us: the next install would find it writing.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	words := &npmWords{total: len(lock.Packages) - 1, progress: n.progress}
	cmd.Stdout, cmd.Stderr = words, words

	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return npmFailure(err, words.last(), n.title, n.offline)
	}
	return nil
}

// npmVariables are what npm is given of the server's environment, beside
// npm_config_* and LC_*. The tokens are those that a person's .npmrc names for a
// registry; keys of model providers and logins of git hosts are not npm's business.
var npmVariables = []string{
	"PATH", "HOME", "TMPDIR", "LANG", "LANGUAGE", "TZ", "NPM_TOKEN", "NODE_AUTH_TOKEN",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "PROXY", "proxy",
	"NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "SSL_CERT_FILE", "SSL_CERT_DIR",
}

func npmOwn(environ []string) []string {
	var out []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(npmVariables, name) || strings.HasPrefix(strings.ToLower(name), "npm_config_") || strings.HasPrefix(name, "LC_") {
			out = append(out, kv)
		}
	}
	return out
}

// npmWords reads npm's output: counts its fetches and keeps its last other lines.
type npmWords struct {
	total    int
	done     int
	progress func(done, total int, last string)
	rest     []byte
	lines    []string
}

func (w *npmWords) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			if len(w.rest) > 64<<10 {
				w.rest = nil
			}
			return len(p), nil
		}
		w.line(strings.TrimSpace(string(w.rest[:i])))
		w.rest = w.rest[i+1:]
	}
}

func (w *npmWords) line(s string) {
	switch {
	case s == "":
	case npmLine.MatchString(s):
		w.done = min(w.done+1, w.total)
		if w.progress != nil {
			w.progress(w.done, w.total, fetched(s))
		}
	default:
		w.lines = append(w.lines, s)
		if len(w.lines) > 200 {
			w.lines = w.lines[100:]
		}
	}
}

// fetched is the file that a line of npm's is about, without the registry's address.
func fetched(line string) string {
	for _, f := range strings.Fields(line) {
		if _, p, ok := strings.Cut(f, "://"); ok {
			_, p, _ = strings.Cut(p, "/")
			p, _, _ = strings.Cut(p, "?")
			return p
		}
	}
	return ""
}

// last is what npm said of its failure, in a few lines, without its own log hints.
func (w *npmWords) last() string {
	if len(w.rest) > 0 {
		w.line(strings.TrimSpace(string(w.rest)))
		w.rest = nil
	}
	var out []string
	for _, l := range w.lines {
		s := strings.TrimPrefix(strings.TrimPrefix(l, "npm error"), "npm ERR!")
		if s == l && strings.HasPrefix(l, "npm ") { // warnings, notices
			continue
		}
		s = strings.TrimSpace(s)
		if s == "" || strings.Contains(s, "complete log of this run") || strings.Contains(s, "Log files were not written") {
			continue
		}
		out = append(out, s)
	}
	if len(out) > 8 {
		out = out[len(out)-8:]
	}
	s := strings.Join(out, "\n")
	return s[max(0, len(s)-1500):]
}

// Reasons of a failed install, in the error's details.
const (
	reasonNoNPM     = "no_npm"
	reasonNetwork   = "network"
	reasonDisk      = "disk"
	reasonIntegrity = "integrity"
	reasonSource    = "source" // what --from named
	reasonOther     = "other"
)

var (
	reNetwork   = regexp.MustCompile(`ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ERR_SOCKET_TIMEOUT|ENETUNREACH|EHOSTUNREACH|network|CERT_|SELF_SIGNED|UNABLE_TO_|E407`)
	reDisk      = regexp.MustCompile(`ENOSPC|EDQUOT|no space left`)
	reIntegrity = regexp.MustCompile(`EINTEGRITY`)
	reRegistry  = regexp.MustCompile(`\bE40[134]\b|\bE5\d\d\b|ETARGET`)
	reNotCached = regexp.MustCompile(`ENOTCACHED`)
)

// npmFailure says in words for a person why npm failed and what helps.
func npmFailure(err error, words, title string, offline bool) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return noNPM(err, title)
	}
	reason, advice := reasonOther, "Look at what npm said."
	switch {
	case reDisk.MatchString(words):
		reason, advice = reasonDisk, "The disk is full: free some space and run the same install again."
	case reIntegrity.MatchString(words):
		reason, advice = reasonIntegrity, "The registry served something else than what was reviewed; nothing of it was kept. Check which registry npm uses (npm config get registry)."
	case reNotCached.MatchString(words) && offline:
		reason, advice = reasonSource, "The folder given with --from lacks a package. Make it again on a machine with a network."
	case reNetwork.MatchString(words):
		reason, advice = reasonNetwork, "The npm registry could not be reached. Check the network and npm's proxy and registry settings, or install from a folder with --from; the next run goes on with what was fetched."
	case reRegistry.MatchString(words):
		reason, advice = reasonNetwork, "The npm registry refused or lacks a package. Check which registry npm uses (npm config get registry) and its login."
	}
	e := fault.Wrap(err, fault.AgentInstallFailed, "%s could not be installed. %s", title, advice).With("reason", reason)
	if words != "" {
		e.Message += "\nnpm said:\n" + words
		e = e.With("npm", words)
	}
	return e
}

func noNPM(err error, title string) error {
	return fault.Wrap(err, fault.AgentInstallFailed,
		"%s could not be installed: there is no npm on this machine. Install Node.js with npm (on Debian: apt-get install npm), or bring a prepared folder and give it with --from.", title).
		With("reason", reasonNoNPM)
}

// npmVersion asks npm for its version, which must be able to read the lock files.
func npmVersion(ctx context.Context, npm, title string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "--version")
	cmd.Env = npmOwn(os.Environ())
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() == nil && (errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)) {
			return "", noNPM(err, title)
		}
		return "", fault.Wrap(err, fault.AgentInstallFailed, "%s could not be installed: npm does not run.", title).With("reason", reasonNoNPM)
	}
	v, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	var major int
	if _, err := fmt.Sscanf(v, "%d.", &major); err != nil || major < 9 {
		return "", fault.New(fault.AgentInstallFailed, "%s could not be installed: npm %s is too old. Install npm 9 or newer.", title, v).With("reason", reasonNoNPM)
	}
	return v, nil
}
