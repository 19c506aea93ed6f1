// Package plain is the [forge.Forge] for any git host that speaks smart HTTP, and
// for bare repositories of this machine where those are allowed. It knows
// nothing of pull requests. Start with [New].
package plain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/fault"
)

// Config of a [Forge].
type Config struct {
	Credentials *forge.Credentials // nil: none
	Transport   http.RoundTripper  // nil: like [http.DefaultTransport], fresh
	Git         *gitcmd.Git        // for folders of this machine; nil: those are UNSUPPORTED
	Timeout     time.Duration      // of one call; 0: 45 s
}

// Forge is plain git. It is safe for concurrent use.
type Forge struct {
	creds   *forge.Credentials
	client  *http.Client
	git     *gitcmd.Git
	timeout time.Duration
}

var _ forge.Forge = (*Forge)(nil)

// New makes a plain forge.
func New(cfg Config) *Forge {
	if cfg.Transport == nil {
		cfg.Transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 45 * time.Second
	}
	return &Forge{
		creds: cfg.Credentials,
		git:   cfg.Git,
		client: &http.Client{
			Transport: cfg.Transport,
			// A redirect is told, not followed: the login is for the host that was named.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		timeout: cfg.Timeout,
	}
}

// Name is "plain".
func (f *Forge) Name() string { return "plain" }

// Capabilities are none.
func (f *Forge) Capabilities() forge.Capabilities { return forge.Capabilities{} }

// Credential looks into the credentials file and among the tokens by host.
func (f *Forge) Credential(_ context.Context, r forge.Remote) (forge.Credential, error) {
	return f.creds.For(r)
}

// Read lists heads.
func (f *Forge) Read(ctx context.Context, r forge.Remote, c forge.Credential, branches ...string) (forge.Repository, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	if r.File() {
		return f.readFile(ctx, r, branches)
	}
	prefixes := []string{"HEAD", "refs/heads/"}
	if len(branches) > 0 {
		prefixes = prefixes[:1]
		for _, b := range branches {
			prefixes = append(prefixes, "refs/heads/"+b)
		}
	}
	a, err := f.refs(ctx, r, c, prefixes)
	if err != nil {
		return forge.Repository{}, err
	}
	return repository(a, branches), nil
}

// Check lists all heads and asks for the advertisement that a push begins with:
// hosts give it only to those who may push.
func (f *Forge) Check(ctx context.Context, r forge.Remote, c forge.Credential) (forge.Repository, error) {
	repo, err := f.Read(ctx, r, c)
	if err != nil {
		return forge.Repository{}, err
	}
	if r.File() {
		return repo, writableFolder(r)
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	a, err := f.advertisement(ctx, r, c, "git-receive-pack", "")
	if err != nil {
		if fault.CodeOf(err) == fault.RepositoryUnreachable {
			return forge.Repository{}, notWritable(r, c, err)
		}
		return forge.Repository{}, err
	}
	repo.Format = a.Format
	return repo, nil
}

func repository(a *gitwire.Advertisement, branches []string) forge.Repository {
	repo := forge.Repository{Heads: map[string]string{}, Format: a.Format}
	for name, id := range a.Refs {
		b, ok := strings.CutPrefix(name, "refs/heads/")
		if !ok {
			continue
		}
		if len(branches) == 0 || contains(branches, b) {
			repo.Heads[b] = id
		}
	}
	repo.DefaultBranch = strings.TrimPrefix(a.Head, "refs/heads/")
	if repo.DefaultBranch == "" && len(branches) == 0 {
		repo.DefaultBranch = guessDefault(repo.Heads, a.Refs["HEAD"])
	}
	repo.Empty = len(branches) == 0 && len(repo.Heads) == 0
	return repo
}

// guessDefault serves hosts too old to say what HEAD names.
func guessDefault(heads map[string]string, head string) string {
	for _, b := range []string{"main", "master", "trunk"} {
		if id, ok := heads[b]; ok && (head == "" || id == head) {
			return b
		}
	}
	if len(heads) == 1 {
		for b := range heads {
			return b
		}
	}
	return ""
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func (f *Forge) readFile(ctx context.Context, r forge.Remote, branches []string) (forge.Repository, error) {
	if f.git == nil {
		return forge.Repository{}, fault.New(fault.Unsupported, "Folders of the server are not used as repositories. Give an https:// URL, or start the server with --allow-file-repositories.")
	}
	if _, err := os.Stat(r.Path); err != nil {
		return forge.Repository{}, fault.Wrap(err, fault.RepositoryUnreachable, "There is no readable folder %s on the server.", r.Path)
	}
	format, _, err := f.git.Run(ctx, gitcmd.Run{Dir: r.Path, Args: []string{"rev-parse", "--show-object-format"}, Timeout: f.timeout})
	if err != nil {
		return forge.Repository{}, fileError(r, err)
	}
	head, _, err := f.git.Run(ctx, gitcmd.Run{Dir: r.Path, Args: []string{"symbolic-ref", "-q", "HEAD"}, Timeout: f.timeout})
	var failed *gitcmd.Error
	if err != nil && (!errors.As(err, &failed) || failed.Exit != 1) {
		return forge.Repository{}, fileError(r, err)
	}
	list, _, err := f.git.Run(ctx, gitcmd.Run{Dir: r.Path, Args: []string{"for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/"}, Timeout: f.timeout})
	if err != nil {
		return forge.Repository{}, fileError(r, err)
	}
	a := &gitwire.Advertisement{Refs: map[string]string{}, Head: strings.TrimSpace(string(head)), Format: strings.TrimSpace(string(format))}
	for line := range strings.Lines(string(list)) {
		if id, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			a.Refs[name] = id
		}
	}
	return repository(a, branches), nil
}

func fileError(r forge.Remote, err error) error {
	return fault.Wrap(err, fault.RepositoryUnreachable, "The folder %s on the server is not a bare git repository.", r.Path)
}

func writableFolder(r forge.Remote) error {
	var st syscall.Stat_t
	if err := syscall.Stat(r.Path, &st); err != nil {
		return fault.Wrap(fmt.Errorf("stat %s: %w", r.Path, err), fault.RepositoryUnreachable, "The folder %s on the server cannot be read.", r.Path)
	}
	if int(st.Uid) != os.Geteuid() {
		// git refuses to read such a folder for others, since its configuration could run programs.
		return fault.New(fault.RepositoryUnreachable, "The folder %s on the server belongs to another user (%d) than the server (%d). Change its owner, or run the server as that user.", r.Path, st.Uid, os.Geteuid())
	}
	const write = 2 // access(2), W_OK
	for _, p := range []string{"/objects", "/refs"} {
		if err := syscall.Access(r.Path+p, write); err != nil {
			return fault.Wrap(fmt.Errorf("access %s: %w", r.Path+p, err), fault.RepositoryNotWritable, "The server may not write the folder %s.", r.Path)
		}
	}
	return nil
}
