package gitserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Repo is a bare repository of a server. Its methods look at it and change it
// from the host's side, past users and hooks.
type Repo struct {
	Name string // without ".git"
	Dir  string
	s    *Server
}

// RepoOption changes how [Server.NewRepo] makes a repository.
type RepoOption func(*repoOptions)

type repoOptions struct {
	branch string
	format string
}

// WithBranch names the default branch; it is "main" otherwise.
func WithBranch(name string) RepoOption { return func(o *repoOptions) { o.branch = name } }

// WithSHA256 makes a repository with SHA-256 object names.
func WithSHA256() RepoOption { return func(o *repoOptions) { o.format = "sha256" } }

// NewRepo makes a repository with one commit of the given files on its default
// branch, or an empty one when there are none. Names may have folders, as in
// "acme/calc". Files that begin with "#!" are executable. The same files make
// the same commit id. A name that is taken is an error.
func (s *Server) NewRepo(ctx context.Context, name string, files map[string]string, opts ...RepoOption) (*Repo, error) {
	o := repoOptions{branch: "main", format: "sha1"}
	for _, f := range opts {
		f(&o)
	}
	name = strings.TrimSuffix(name, ".git")
	if !nameRE.MatchString(name) {
		return nil, fmt.Errorf("make repository %q: use letters, digits, dot, dash and slash", name)
	}
	dir := filepath.Join(s.opts.Dir, filepath.FromSlash(name)+".git")
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("make repository %s: %w", name, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make repository %s: %w", name, err)
	}
	r := &Repo{Name: name, Dir: dir, s: s}
	if _, err := r.Git(ctx, "init", "--quiet", "--bare", "--template=", "--object-format="+o.format, "--initial-branch="+o.branch, "."); err != nil {
		return nil, fmt.Errorf("make repository %s: %w", name, err)
	}
	for _, kv := range [][2]string{{"receive.advertisePushOptions", "true"}, {"uploadpack.allowFilter", "true"}, {"uploadpack.allowAnySHA1InWant", "true"}} {
		if _, err := r.Git(ctx, "config", kv[0], kv[1]); err != nil {
			return nil, fmt.Errorf("configure repository %s: %w", name, err)
		}
	}
	if len(files) > 0 {
		if _, err := r.Commit(ctx, o.branch, "First commit", files); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// OpenRepo returns a repository that is there already.
func (s *Server) OpenRepo(name string) (*Repo, error) {
	dir, ok := s.repoDir(name)
	if !ok {
		return nil, fmt.Errorf("open repository %q: not found", name)
	}
	return &Repo{Name: strings.TrimSuffix(name, ".git"), Dir: dir, s: s}, nil
}

// Path is the path of the repository's address on the server.
func (r *Repo) Path() string { return "/" + r.Name + ".git" }

// Git runs git in the repository and returns what it prints, without the last line end.
func (r *Repo) Git(ctx context.Context, args ...string) (string, error) {
	out, err := r.git(ctx, nil, args...)
	return strings.TrimSuffix(out, "\n"), err
}

func (r *Repo) git(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd := r.s.command(ctx, r.Dir, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Commit adds a commit that writes the files to a branch, which is made if it is
// not there, and returns its object id. It is what another person's push does.
func (r *Repo) Commit(ctx context.Context, branch, message string, files map[string]string) (string, error) {
	ref := "refs/heads/" + branch
	var b bytes.Buffer
	fmt.Fprintf(&b, "commit %s\ncommitter A Person <person@hearth.test> 1767225600 +0000\ndata %d\n%s\n", ref, len(message), message)
	if head, err := r.Git(ctx, "rev-parse", "--verify", "--quiet", ref); err == nil {
		fmt.Fprintf(&b, "from %s\n", head)
	}
	names := make([]string, 0, len(files))
	for name := range files {
		if strings.ContainsAny(name, "\n\"\x00") || name == "" {
			return "", fmt.Errorf("commit to %s: file name %q", r.Name, name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		mode := "100644"
		if strings.HasPrefix(files[name], "#!") {
			mode = "100755"
		}
		fmt.Fprintf(&b, "M %s inline %s\ndata %d\n%s\n", mode, name, len(files[name]), files[name])
	}
	b.WriteString("done\n")
	if _, err := r.git(ctx, b.Bytes(), "fast-import", "--quiet", "--done", "--force"); err != nil {
		return "", fmt.Errorf("commit to %s: %w", r.Name, err)
	}
	return r.Head(ctx, branch)
}

// Head is the object id of a branch, an error when there is none.
func (r *Repo) Head(ctx context.Context, branch string) (string, error) {
	return r.Git(ctx, "rev-parse", "--verify", "refs/heads/"+branch)
}

// Refs are all refs and the object ids they point at.
func (r *Repo) Refs(ctx context.Context) (map[string]string, error) {
	out, err := r.Git(ctx, "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return nil, err
	}
	refs := map[string]string{}
	for line := range strings.SplitSeq(out, "\n") {
		if id, name, ok := strings.Cut(line, " "); ok {
			refs[name] = id
		}
	}
	return refs, nil
}

// File is the content of a file at a revision.
func (r *Repo) File(ctx context.Context, rev, path string) (string, error) {
	return r.git(ctx, nil, "cat-file", "blob", rev+":"+path)
}

// SetHook installs a hook, such as "pre-receive"; an empty script removes it.
func (r *Repo) SetHook(name, script string) error {
	file := filepath.Join(r.Dir, "hooks", name)
	if script == "" {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove hook %s: %w", name, err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("set hook %s: %w", name, err)
	}
	// A process forked while the file is open for writing would keep it busy
	// (ETXTBSY) for git, which may run it at once.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		return fmt.Errorf("set hook %s: %w", name, err)
	}
	return nil
}

// RefusePushes makes the repository refuse every push with these words, as a
// pre-receive hook does; empty words take that back.
func (r *Repo) RefusePushes(words string) error {
	if words == "" {
		return r.SetHook("pre-receive", "")
	}
	quoted := "'" + strings.ReplaceAll(words, "'", `'\''`) + "'"
	return r.SetHook("pre-receive", "#!/bin/sh\ncat >/dev/null\nprintf '%s\\n' "+quoted+" >&2\nexit 1\n")
}
