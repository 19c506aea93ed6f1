// Package transcript is the record of a session's conversation: parts of the
// UI-message stream, numbered by turn and part, that never change once stored.
// It holds the [Part] and [Cursor] values, the [Log] contract and the masking of
// known secrets. What a part may say is package uistream's business.
package transcript

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
)

// Cursor is a place in a session's transcript: after that part. Turn and part
// are counted from 1; the zero Cursor is the beginning. Its text form is "turn.part".
type Cursor struct {
	Turn int64
	Part int64
}

// String is "turn.part".
func (c Cursor) String() string {
	return strconv.FormatInt(c.Turn, 10) + "." + strconv.FormatInt(c.Part, 10)
}

// Before says that c comes before d.
func (c Cursor) Before(d Cursor) bool {
	return c.Turn < d.Turn || c.Turn == d.Turn && c.Part < d.Part
}

// ParseCursor reads the text form. Code: INVALID_INPUT.
func ParseCursor(s string) (Cursor, error) {
	turn, part, ok := strings.Cut(s, ".")
	t, err1 := strconv.ParseUint(turn, 10, 62)
	p, err2 := strconv.ParseUint(part, 10, 62)
	if !ok || err1 != nil || err2 != nil {
		return Cursor{}, fault.New(fault.InvalidInput, "%q is not a cursor of the form turn.part.", clip(s))
	}
	return Cursor{Turn: int64(t), Part: int64(p)}, nil
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// Part is one stored chunk.
type Part struct {
	Cursor Cursor
	Body   json.RawMessage // one JSON object, verbatim for ever
}

// Log keeps transcripts. Appending is idempotent by (session, turn, part): the
// first body stays. Methods may be called concurrently.
type Log interface {
	// Append stores parts of one session in one transaction.
	Append(ctx context.Context, session string, parts []Part) error
	// Read returns at most limit parts after the cursor, in order. Parts of 4 MiB
	// together end a page early; one part is always given when there is one.
	Read(ctx context.Context, session string, after Cursor, limit int) ([]Part, error)
	// Last is the cursor of the newest part of a turn; its Part is 0 when there is none.
	Last(ctx context.Context, session string, turn int64) (Cursor, error)
}

// Page limits.
const (
	MaxPageParts = 1000
	MaxPageBytes = 4 << 20
)

// Check that a page's numbers go on from the cursor without a gap within each turn.
func Check(after Cursor, parts []Part) error {
	for _, p := range parts {
		next := Cursor{Turn: after.Turn, Part: after.Part + 1}
		first := p.Cursor.Turn > after.Turn && p.Cursor.Part == 1
		if p.Cursor != next && !first {
			return fmt.Errorf("transcript: part %s follows %s", p.Cursor, after)
		}
		after = p.Cursor
	}
	return nil
}
