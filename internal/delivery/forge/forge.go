// Package forge is the contract with the places where repositories live: what
// can be asked of a git host, which login the server has for it, what a remote
// and a branch may be called. Each host kind is a package below that implements
// [Forge] and passes the suite in forgetest. Moving objects is not its task:
// package delivery pushes and fetches with git.
package forge

import (
	"context"
	"log/slog"
)

// Forge talks to one kind of git host. All methods are safe for concurrent use
// and bounded in time by the implementation, too.
//
// Codes: [Forge.Read] REPOSITORY_UNREACHABLE when there is nothing to read or it
// may not be read, FORGE_UNAVAILABLE when the host cannot be reached now;
// [Forge.Check] also REPOSITORY_NOT_WRITABLE. The sentence says what was seen.
type Forge interface {
	// Name is the kind of host: plain, github, …
	Name() string
	// Capabilities tells what may be asked of this forge.
	Capabilities() Capabilities
	// Credential is the login for one repository, with the least rights that
	// serve, empty when the server has none. Ask again before each use: it may expire.
	Credential(ctx context.Context, r Remote) (Credential, error)
	// Read lists the heads of a repository: those named, all when none is named.
	Read(ctx context.Context, r Remote, c Credential, branches ...string) (Repository, error)
	// Check is Read of all heads, and proves that c can write, without writing.
	Check(ctx context.Context, r Remote, c Credential) (Repository, error)
}

// Capabilities of a forge.
type Capabilities struct {
	PullRequests bool `json:"pullRequests"`
}

// Repository is what a remote said of itself.
type Repository struct {
	// DefaultBranch is the branch that HEAD names; empty when the host does not tell.
	DefaultBranch string
	Heads         map[string]string // branch → commit
	Format        string            // object format, sha1 or sha256
	// Empty: there is no head at all. It is told only when all heads were asked for.
	Empty bool
}

// Credential logs in to a git host over HTTP basic authentication. It never
// shows itself in logs, JSON or formatted text.
type Credential struct {
	Username string
	Password string
}

// IsZero says whether there is no login.
func (c Credential) IsZero() bool { return c == Credential{} }

// String hides the login.
func (c Credential) String() string {
	if c.IsZero() {
		return "no credential"
	}
	return "credential (hidden)"
}

// GoString hides the login.
func (c Credential) GoString() string { return c.String() }

// LogValue hides the login.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText hides the login.
func (c Credential) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
