package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/delivery"
	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
)

// committer of what the driver commits.
var committer = driverapi.Person{Name: "Hearth", Email: "hearth@localhost"}

const (
	packTimeout = 10 * time.Minute
	maxNotes    = 50
	maxNote     = 500 // bytes
)

// pack takes the turn's work over from the sandbox into the quarantine repository.
func (r *Runner) pack(ctx context.Context, e session.Effect) error {
	a, t, err := r.open(ctx, e)
	if err != nil {
		return err
	}
	if t.State != session.TurnDelivering || !t.PackedAt.IsZero() {
		return nil
	}
	s := a.Session
	taken, notes, err := r.takePack(ctx, s, t)
	if err == nil {
		ev := session.Packed{Turn: t.ID, Notes: notes}
		if taken.Changed {
			ev.OID, ev.Commits, ev.DiffStat = taken.Head, taken.Commits, taken.Stat
		}
		_, err = r.cfg.Service.Apply(ctx, s.ID, ev)
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, context.Canceled) {
		return nil // the sandbox went meanwhile, and the session was told
	}
	if rerr := retry(e, err); rerr != nil {
		return rerr
	}
	f := fault.From(err)
	if f.Code == fault.InternalError {
		f = fault.Wrap(err, fault.PackFailed, "")
	}
	r.cfg.Slog.Error("pack", "session", s.ID, "turn", t.ID, "error", err)
	_, err = r.cfg.Service.Apply(ctx, s.ID, session.PackFailed{Turn: t.ID, Code: f.Code, Message: f.Sentence()})
	return err
}

// takePack gives what was taken, and the driver's remarks on it: what was left out, in sentences.
func (r *Runner) takePack(ctx context.Context, s session.Session, t *session.Turn) (delivery.Taken, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, packTimeout)
	defer cancel()
	b := r.box(s.ID, s.Generation)
	if b == nil {
		return delivery.Taken{}, nil, fault.New(fault.SandboxLost, "The sandbox ended before its work was packed.")
	}
	have, err := r.cfg.Delivery.Have(ctx, string(s.ID))
	if err != nil {
		return delivery.Taken{}, nil, err
	}
	ctx, drop := b.call(ctx)
	defer drop()
	mask := transcript.NewMasker(r.cfg.Recorder.Secrets())
	subject, body := commitMessage(mask.Text(t.Prompt))
	res, pack, err := b.driver.Pack(ctx, driverapi.PackRequest{
		Turn: string(t.ID), Have: have, Base: t.PackBase,
		Message: fmt.Sprintf("%s\n\n%sHearth-Session: %s\nHearth-Turn: %s\n", subject, body, s.ID, t.ID),
		Author:  driverapi.Person{Name: t.Author.Name, Email: t.Author.Email}, Commit: committer, At: t.AgentDoneAt, MaxBytes: delivery.DefaultMaxPack,
	})
	if err != nil {
		return delivery.Taken{}, nil, err
	}
	defer pack.Close()
	var notes []string
	for _, n := range res.Notes[:min(len(res.Notes), maxNotes)] {
		notes = append(notes, mask.Text(clipText(strings.ToValidUTF8(n, "\uFFFD"), maxNote)))
	}
	if len(res.Notes) > maxNotes {
		notes = append(notes, fmt.Sprintf("And %d remarks more.", len(res.Notes)-maxNotes))
	}
	if !res.Changed || res.Head == "" {
		return delivery.Taken{}, notes, nil
	}
	taken, err := r.cfg.Delivery.Take(ctx, delivery.TakeRequest{
		Session: string(s.ID), Turn: string(t.ID), Head: res.Head, Base: t.PackBase, Pack: pack, Secrets: r.cfg.Recorder.Secrets(),
	})
	if err == nil {
		taken.Changed = true // commits count even when the tree is the same
	}
	return taken, notes, err
}

// commitMessage makes subject and body of the prompt.
func commitMessage(prompt string) (subject, body string) {
	p := strings.Join(strings.Fields(firstLine(prompt)), " ")
	if p == "" {
		return "Work on the task", ""
	}
	if utf8.RuneCountInString(p) <= 72 {
		return p, ""
	}
	r := []rune(p)
	return strings.TrimSpace(string(r[:71])) + "…", p + "\n\n"
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// deliver publishes the newest packed work.
func (r *Runner) deliver(ctx context.Context, e session.Effect) error {
	a, err := r.cfg.Store.Get(ctx, e.Session)
	if err != nil {
		return err
	}
	s := a.Session
	if a.Open != nil && a.Open.ID == e.Turn && a.Open.State != session.TurnDelivering {
		return nil
	}
	if _, err := r.cfg.Service.Apply(ctx, s.ID, session.PushSent{Turn: e.Turn}); fault.CodeOf(err) == fault.TurnCanceled {
		_, err = r.cfg.Service.Apply(ctx, s.ID, session.Delivered{Turn: e.Turn, Unread: true,
			Delivery: session.Delivery{State: session.DeliveryHeld, Message: "The turn was canceled before its work was pushed.", At: r.now()}})
		return err
	} else if err != nil {
		return err
	}
	out, err := r.publish(ctx, s)
	ev := session.Delivered{Turn: e.Turn, Unread: true, Delivery: session.Delivery{At: r.now()}}
	switch {
	case err == nil && out.Outcome == delivery.OutcomeNoChanges:
		ev.Delivery.State = session.DeliveryNoChanges
	case err == nil:
		ev.Unread, ev.RemoteOID = false, out.OID
		ev.Delivery.State, ev.Delivery.OID, ev.Delivery.Message = session.DeliveryPushed, out.OID, out.Words
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		if rerr := retry(e, err); rerr != nil {
			return rerr
		}
		f := fault.From(err)
		if f.Code == fault.InternalError {
			f = fault.Wrap(err, fault.ForgeUnavailable, "")
		}
		r.cfg.Slog.Warn("deliver", "session", s.ID, "turn", e.Turn, "error", err)
		ev.Delivery.State, ev.Delivery.Code, ev.Delivery.Message = session.DeliveryFailed, f.Code, f.Sentence()
	}
	_, err = r.cfg.Service.Apply(ctx, s.ID, ev)
	return err
}

func (r *Runner) publish(ctx context.Context, s session.Session) (delivery.Published, error) {
	remote, err := forge.ParseRemote(s.Repo, r.cfg.AllowFile)
	if err != nil {
		return delivery.Published{}, err
	}
	cred, err := r.cfg.Forge.Credential(ctx, remote)
	if err != nil {
		return delivery.Published{}, err
	}
	return r.cfg.Delivery.Publish(ctx, delivery.PublishRequest{
		Session: string(s.ID), Remote: remote, Credential: cred, Branch: s.Branch, Candidate: s.PackOID, Base: s.BaseOID, Known: s.RemoteOID,
		Foreign: func(ctx context.Context, oid string) error {
			_, err := r.cfg.Service.Apply(ctx, s.ID, session.FloorRaised{OID: oid})
			return err
		},
	})
}

// discard sets the sandbox's tree and the packed work back to the last delivered commit.
func (r *Runner) discard(ctx context.Context, e session.Effect) error {
	a, err := r.cfg.Store.Get(ctx, e.Session)
	if err != nil {
		return err
	}
	s := a.Session
	if a.Open != nil || !s.Discardable(a.Last) {
		return nil
	}
	oid := s.DeliveredOID
	if oid == "" {
		oid = s.BaseOID
	}
	if b := r.box(s.ID, s.Generation); b != nil && s.Sandbox == session.SandboxHot {
		c, drop := b.call(ctx)
		err := b.driver.Reset(c, driverapi.ResetRequest{OID: oid})
		drop()
		if err != nil {
			if rerr := retry(e, err); rerr != nil {
				return rerr
			}
			// A tree that cannot be set back must not be worked in: the next turn gets a new one.
			if err := r.gone(ctx, s, fault.SandboxLost, "The work tree could not be set back."); err != nil {
				return err
			}
		}
	}
	if err := r.cfg.Delivery.Rewind(ctx, string(s.ID), s.DeliveredOID); err != nil && !errors.Is(err, &fault.Error{Code: fault.InvalidInput}) {
		return fmt.Errorf("set packed work back: %w", err)
	}
	_, err = r.cfg.Service.Apply(ctx, s.ID, session.Discarded{})
	return err
}
