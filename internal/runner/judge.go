package runner

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/approval"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

var (
	_ session.Judge = (*Runner)(nil)
	_ session.Work  = (*Runner)(nil)
)

// Agent implements session.Judge.
func (r *Runner) Agent(_ context.Context, name, model, approvals string) error {
	p, err := agent.Lookup(name)
	if err != nil {
		return err
	}
	policy, err := approval.Parse([]byte(approvals))
	if err != nil {
		return err
	}
	if err := p.CheckApprovals(policy.Mode); err != nil {
		return err
	}
	_, build, err := r.cfg.Agents.Layer(p)
	if err != nil {
		return err
	}
	_, err = r.launch(session.Session{Agent: name, Model: model, Approvals: approvals}, p, build)
	return err
}

// Repository implements session.Judge.
func (r *Runner) Repository(ctx context.Context, ask session.RepositoryAsk) (session.Repository, error) {
	remote, err := forge.ParseRemote(ask.URL, r.cfg.AllowFile)
	if err != nil {
		return session.Repository{}, err
	}
	for _, b := range []string{ask.Base, ask.Branch} {
		if b != "" {
			if err := forge.CheckBranch(b); err != nil {
				return session.Repository{}, err
			}
		}
	}
	cred, err := r.cfg.Forge.Credential(ctx, remote)
	if err != nil {
		return session.Repository{}, err
	}
	repo, err := r.cfg.Forge.Check(ctx, remote, cred)
	if fault.CodeOf(err) == fault.ForgeUnavailable { // there is no work yet that could be kept
		return session.Repository{}, fault.Wrap(err, fault.RepositoryUnreachable, "%s", fault.From(err).Sentence())
	}
	if err != nil {
		return session.Repository{}, err
	}
	out := session.Repository{URL: remote.URL, Base: ask.Base, Format: repo.Format, Branch: ask.Branch}
	if out.Branch == "" {
		out.Branch = forge.FreshBranch(ask.Task, ask.Tail, repo.Heads)
	}
	out.RemoteOID = repo.Heads[out.Branch]
	if repo.Empty {
		if ask.Base != "" {
			return out, fault.New(fault.BranchInvalid, "The repository is empty: there is no branch %q to start from.", ask.Base)
		}
		return out, nil
	}
	if out.Base == "" {
		out.Base = repo.DefaultBranch
	}
	oid, ok := repo.Heads[out.Base]
	if !ok {
		switch {
		case ask.Base != "":
			return out, fault.New(fault.BranchInvalid, "The repository has no branch %q.", ask.Base)
		case out.RemoteOID == "":
			return out, fault.New(fault.BranchInvalid, "The repository names no default branch; say which branch to start from.")
		}
		out.Base, oid = out.Branch, out.RemoteOID
	}
	out.BaseOID = oid
	if out.RemoteOID != "" {
		out.BaseOID = out.RemoteOID
	}
	return out, nil
}

// plain is a file name on one line: quoted, as Go does, where it is not plain.
func plain(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// maxPatch bounds a rendered diff, in bytes.
const maxPatch = 4 << 20

// Diff implements session.Work.
func (r *Runner) Diff(ctx context.Context, id session.ID, from, to, format string) (session.Diff, error) {
	out := session.Diff{From: from, To: to, Format: format}
	if format == "patch" {
		var b bytes.Buffer
		cut, err := r.cfg.Delivery.Patch(ctx, string(id), from, to, &b, maxPatch)
		out.Text, out.Truncated = strings.ToValidUTF8(b.String(), "\uFFFD"), cut
		return out, err
	}
	d, err := r.cfg.Delivery.Diff(ctx, string(id), from, to)
	if err != nil {
		return out, err
	}
	out.Truncated = d.Truncated
	var b strings.Builder
	for _, c := range d.Changes {
		name := plain(c.Path)
		if c.OldPath != "" {
			name = plain(c.OldPath) + " => " + name
		}
		switch {
		case format == "names":
			fmt.Fprintf(&b, "%s\t%s\n", c.Status, name)
		case c.Binary:
			fmt.Fprintf(&b, "%s | binary, %s\n", name, c.Status)
		default:
			fmt.Fprintf(&b, "%s | +%d -%d, %s\n", name, c.Insertions, c.Deletions, c.Status)
		}
	}
	out.Text = b.String()
	return out, nil
}
