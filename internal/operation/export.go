package operation

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
)

// Formats of an export, and what they are on the wire.
const (
	FormatJSONL    = "jsonl"
	FormatMarkdown = "markdown"
	MediaJSONL     = "application/jsonl"
	MediaMarkdown  = "text/markdown"
)

// ExportVersion is the version of the lines of a JSONL export.
const ExportVersion = 1

// ExportInput asks for a session as a file.
type ExportInput struct {
	ID     string `json:"id" maxLength:"100" doc:"session id"`
	Format string `json:"format,omitempty" enum:"jsonl,markdown" doc:"jsonl: every part to the letter, one JSON object a line; markdown: to read; jsonl unless said"`
}

// exportHead is the first line of a JSONL export.
type exportHead struct {
	Type       string    `json:"type"`
	Version    int       `json:"version"`
	ExportedAt time.Time `json:"exportedAt"`
	AtWork     string    `json:"atWork,omitempty"`
	SessionView
}

// exportTurn is the line before a turn's parts.
type exportTurn struct {
	Type string `json:"type"`
	TurnView
}

// exportEnd is the last line; an export without it was cut.
type exportEnd struct {
	Type     string `json:"type"`
	Turns    int64  `json:"turns"`
	Parts    int64  `json:"parts"`
	Complete bool   `json:"complete"` // no turn was at work, and the transcript of each is whole
}

func (o operations) export(ctx context.Context, c Call, in ExportInput) (Blob, error) {
	a, err := o.d.Sessions.Get(ctx, c.Caller, session.ID(in.ID))
	if err != nil {
		return Blob{}, err
	}
	e := &exporter{o: o, caller: c.Caller, a: &a, at: o.d.Now().UTC()}
	b := Blob{Name: ExportName(&a.Session) + ".jsonl", Media: MediaJSONL}
	write := e.jsonl
	if in.Format == FormatMarkdown {
		b.Name, b.Media, write = ExportName(&a.Session)+".md", MediaMarkdown+"; charset=utf-8", e.markdown
	}
	b.Write = func(ctx context.Context, w io.Writer) error {
		buf := bufio.NewWriterSize(w, 64<<10)
		if err := write(ctx, buf); err != nil {
			return err // what is gathered is not sent: the output ends in the middle
		}
		return buf.Flush()
	}
	return b, nil
}

// ExportName is the name of a session's file without its extension: words of the
// title, and the id.
func ExportName(s *session.Session) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s.Title) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() >= 48 {
			break
		}
	}
	return strings.TrimLeft(strings.TrimRight(b.String(), "-")+"-"+string(s.ID), "-")
}

// exporter writes one export. What was accepted after it began is not part of it.
type exporter struct {
	o      operations
	caller session.Caller
	a      *session.Aggregate
	at     time.Time
	count  exportEnd
}

// turns gives the turns that had left the queue when the export began.
func (e *exporter) turns(ctx context.Context, f func(*session.Turn) error) error {
	e.count = exportEnd{Type: "end", Complete: true}
	last := e.a.Session.Turns
	for after := int64(0); after < last; {
		page, err := e.o.d.Sessions.Turns(ctx, e.caller, e.a.Session.ID, after, MaxMessageTurns)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return nil
		}
		for i := range page {
			t := &page[i]
			if after = t.Number; after > last {
				return nil
			}
			if err := f(t); err != nil {
				return err
			}
			e.count.Turns++
			e.count.Complete = e.count.Complete && t.State.Terminal() && whole(t)
		}
	}
	return nil
}

func (e *exporter) jsonl(ctx context.Context, w *bufio.Writer) error {
	line := func(v any) error {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("write a line: %w", err)
		}
		return nil
	}
	head := exportHead{Type: "session", Version: ExportVersion, ExportedAt: e.at, SessionView: e.o.viewOf(e.a)}
	if e.a.Open != nil {
		head.AtWork = string(e.a.Open.ID)
	}
	head.OpenTurn, head.LastTurn = nil, nil // they have lines of their own
	if err := line(head); err != nil {
		return err
	}
	parts := &partReader{o: e.o, caller: e.caller, id: e.a.Session.ID}
	total := int64(0)
	err := e.turns(ctx, func(t *session.Turn) error {
		if err := line(exportTurn{Type: "turn", TurnView: viewOfTurn(t, &e.a.Session)}); err != nil {
			return err
		}
		return parts.turn(ctx, t.Number, func(p transcript.Part) error {
			total++
			_, err := fmt.Fprintf(w, "{\"type\":\"part\",\"cursor\":%q,\"part\":%s}\n", p.Cursor, bytes.TrimSpace(p.Body))
			return err
		})
	})
	if err != nil {
		return err
	}
	e.count.Parts = total
	return line(e.count)
}
