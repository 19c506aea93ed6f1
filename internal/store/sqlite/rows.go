package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/store/sqlite/db"
)

func sessionRow(a *session.Aggregate) (db.Session, error) {
	s := &a.Session
	limits, err := json.Marshal(s.Limits)
	if err != nil {
		return db.Session{}, fmt.Errorf("encode limits: %w", err)
	}
	row := db.Session{
		ID: string(s.ID), Workspace: s.Workspace, Title: s.Title, AuthorName: s.Author.Name, AuthorEmail: s.Author.Email,
		Repo: s.Repo, Base: s.Base, BaseOid: s.BaseOID, Format: s.Format, Branch: s.Branch, BranchNamed: flag(s.BranchNamed), Agent: s.Agent, Model: s.Model, Limits: string(limits),
		Sandbox: string(s.Sandbox), Generation: s.Generation, Handle: s.Handle,
		PackOid: s.PackOID, DeliveredOid: s.DeliveredOID, RemoteOid: s.RemoteOID, FloorOid: s.FloorOID,
		QueueHeld: flag(s.QueueHeld), Archived: flag(s.Archived), Pinned: flag(s.Pinned), Deleting: flag(s.Deleting),
		LastEnd: string(s.LastEnd), Turns: s.Turns, Ranks: s.Ranks, PromptLen: s.PromptLen, Phase: string(s.Phase), Version: s.Version,
		CreatedAt: micros(s.CreatedAt), UpdatedAt: micros(s.UpdatedAt), IdleSince: micros(s.IdleSince), Approvals: s.Approvals,
	}
	if a.Open != nil {
		row.OpenTurn, row.OpenState = string(a.Open.ID), string(a.Open.State)
	}
	if a.Last != nil {
		row.LastTurn = string(a.Last.ID)
	}
	return row, nil
}

func sessionOf(r db.Session) (session.Session, error) {
	s := session.Session{
		ID: session.ID(r.ID), Workspace: r.Workspace, Title: r.Title, Author: session.Author{Name: r.AuthorName, Email: r.AuthorEmail},
		Repo: r.Repo, Base: r.Base, BaseOID: r.BaseOid, Format: r.Format, Branch: r.Branch, BranchNamed: r.BranchNamed != 0, Agent: r.Agent, Model: r.Model,
		Sandbox: session.SandboxState(r.Sandbox), Generation: r.Generation, Handle: r.Handle,
		PackOID: r.PackOid, DeliveredOID: r.DeliveredOid, RemoteOID: r.RemoteOid, FloorOID: r.FloorOid,
		QueueHeld: r.QueueHeld != 0, Archived: r.Archived != 0, Pinned: r.Pinned != 0, Deleting: r.Deleting != 0,
		LastEnd: session.TurnState(r.LastEnd), Turns: r.Turns, Ranks: r.Ranks, PromptLen: r.PromptLen, Phase: session.Phase(r.Phase), Version: r.Version,
		CreatedAt: instant(r.CreatedAt), UpdatedAt: instant(r.UpdatedAt), IdleSince: instant(r.IdleSince), Approvals: r.Approvals,
	}
	if err := json.Unmarshal([]byte(r.Limits), &s.Limits); err != nil {
		return s, fmt.Errorf("decode limits of %s: %w", r.ID, err)
	}
	return s, nil
}

func turnRow(t *session.Turn) (db.Turn, error) {
	delivery, err := json.Marshal(t.Delivery)
	if err != nil {
		return db.Turn{}, fmt.Errorf("encode delivery: %w", err)
	}
	notes, err := json.Marshal(t.Notes)
	if err != nil {
		return db.Turn{}, fmt.Errorf("encode notes: %w", err)
	}
	return db.Turn{
		ID: string(t.ID), Session: string(t.Session), Number: t.Number, Rank: t.Rank, State: string(t.State), Prompt: t.Prompt,
		AuthorName: t.Author.Name, AuthorEmail: t.Author.Email, Agent: t.Agent, Build: t.Build, Fingerprint: t.Fingerprint,
		Rung: t.Rung, RungFailed: t.RungFailed, AgentSession: t.AgentSession, Generation: t.Generation,
		AcceptedAt: micros(t.AcceptedAt), StartingAt: micros(t.StartingAt), SandboxAt: micros(t.SandboxAt), StartedAt: micros(t.StartedAt), SentAt: micros(t.SentAt),
		FirstPartAt: micros(t.FirstPartAt), AgentDoneAt: micros(t.AgentDoneAt), PackedAt: micros(t.PackedAt), EndedAt: micros(t.EndedAt),
		StopReason: t.StopReason, StopBy: t.StopBy, EndRow: string(t.End), Code: string(t.Code), Message: t.Message, Clean: flag(t.Clean),
		PackOid: t.PackOID, PackBase: t.PackBase, Commits: t.Commits, DiffStat: t.DiffStat, Notes: string(notes), PushSent: flag(t.PushSent), Delivery: string(delivery),
		Complete: flag(t.Complete), Truncated: t.Truncated, Usage: t.Usage,
		Asked: t.Asked, WaitingSince: micros(t.WaitingSince), Waited: t.Waited.Microseconds(),
		EditedAt: micros(t.EditedAt), EditedBy: t.EditedBy,
	}, nil
}

func turnOf(r db.Turn) (session.Turn, error) {
	t := session.Turn{
		ID: session.TurnID(r.ID), Session: session.ID(r.Session), Number: r.Number, Rank: r.Rank, State: session.TurnState(r.State), Prompt: r.Prompt,
		Author: session.Author{Name: r.AuthorName, Email: r.AuthorEmail}, Agent: r.Agent, Build: r.Build, Fingerprint: r.Fingerprint,
		Rung: r.Rung, RungFailed: r.RungFailed, AgentSession: r.AgentSession, Generation: r.Generation,
		AcceptedAt: instant(r.AcceptedAt), StartingAt: instant(r.StartingAt), SandboxAt: instant(r.SandboxAt), StartedAt: instant(r.StartedAt), SentAt: instant(r.SentAt),
		FirstPartAt: instant(r.FirstPartAt), AgentDoneAt: instant(r.AgentDoneAt), PackedAt: instant(r.PackedAt), EndedAt: instant(r.EndedAt),
		StopReason: r.StopReason, StopBy: r.StopBy, End: session.End(r.EndRow), Code: fault.Code(r.Code), Message: r.Message, Clean: r.Clean != 0,
		PackOID: r.PackOid, PackBase: r.PackBase, Commits: r.Commits, DiffStat: r.DiffStat, PushSent: r.PushSent != 0,
		Complete: r.Complete != 0, Truncated: r.Truncated, Usage: r.Usage,
		Asked: r.Asked, WaitingSince: instant(r.WaitingSince), Waited: time.Duration(r.Waited) * time.Microsecond,
		EditedAt: instant(r.EditedAt), EditedBy: r.EditedBy,
	}
	if err := json.Unmarshal([]byte(r.Notes), &t.Notes); err != nil {
		return t, fmt.Errorf("decode notes of %s: %w", r.ID, err)
	}
	if err := json.Unmarshal([]byte(r.Delivery), &t.Delivery); err != nil {
		return t, fmt.Errorf("decode delivery of %s: %w", r.ID, err)
	}
	return t, nil
}

func turnsOf(rows []db.Turn, err error) ([]session.Turn, error) {
	if err != nil {
		return nil, err
	}
	out := make([]session.Turn, 0, len(rows))
	for _, r := range rows {
		t, err := turnOf(r)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func effectOf(r db.Effect) session.Effect {
	return session.Effect{
		ID: session.EffectID(r.ID), Session: session.ID(r.Session), Turn: session.TurnID(r.Turn), Kind: session.EffectKind(r.Kind),
		Generation: r.Generation, Handle: r.Handle, Question: session.QuestionID(r.Question), Code: fault.Code(r.Code), Message: r.Message, NotBefore: instant(r.NotBefore), Attempts: int(r.Attempts),
	}
}

func questionRow(x *session.Question) (db.UpsertQuestionParams, error) {
	options, err := json.Marshal(x.Options)
	if err != nil {
		return db.UpsertQuestionParams{}, fmt.Errorf("encode options: %w", err)
	}
	return db.UpsertQuestionParams{
		ID: string(x.ID), Session: string(x.Session), Turn: string(x.Turn), Number: x.Number, Kind: x.Kind, State: string(x.State), Title: x.Title,
		Tool: x.Tool, ToolCall: x.ToolCall, Options: string(options), Detail: x.Detail, AskedAt: micros(x.AskedAt), Deadline: micros(x.Deadline),
		Verdict: x.Verdict, OptionID: x.Option, Content: x.Content, Message: x.Message, SettledBy: x.By, SettledAt: micros(x.SettledAt),
	}, nil
}

func questionOf(r db.Question) (session.Question, error) {
	x := session.Question{
		ID: session.QuestionID(r.ID), Session: session.ID(r.Session), Turn: session.TurnID(r.Turn), Number: r.Number, Kind: r.Kind,
		State: session.QuestionState(r.State), Title: r.Title, Tool: r.Tool, ToolCall: r.ToolCall, Detail: r.Detail, AskedAt: instant(r.AskedAt), Deadline: instant(r.Deadline),
		Verdict: r.Verdict, Option: r.OptionID, Content: r.Content, Message: r.Message, By: r.SettledBy, SettledAt: instant(r.SettledAt),
	}
	if err := json.Unmarshal([]byte(r.Options), &x.Options); err != nil {
		return x, fmt.Errorf("decode options of %s: %w", r.ID, err)
	}
	return x, nil
}

func questionsOf(rows []db.Question, err error) ([]session.Question, error) {
	if err != nil {
		return nil, fmt.Errorf("read questions: %w", err)
	}
	out := make([]session.Question, 0, len(rows))
	for _, r := range rows {
		x, err := questionOf(r)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}
