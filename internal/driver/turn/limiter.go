package turn

import (
	"time"

	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
)

// Caps of one turn. They stay below what the server takes ([uistream] has the
// limits), so that what was begun can still be closed.
const (
	capParts   = 99_000
	capBytes   = 60 << 20
	closeBytes = 64 << 10 // a closing part beyond the cap may have so many
	blobBytes  = 4 << 10  // and one that tells of a blob so many
)

// limiter lets parts through up to the caps. Beyond them it says so once, and
// lets through only what closes a block or tool call that was begun, and what tells of
// blobs; the rest becomes a blob.
type limiter struct {
	maxParts, maxBytes int64

	parts, bytes int64
	dropped      int64
	over         bool
	blobs        convert.Blobs // nil: the rest is lost
	rest         convert.BlobWriter
	open         map[string]bool // blocks and tool calls
}

// full says that nothing new gets through any more.
func (l *limiter) full() bool {
	const reserve = 8 // parts of a question and its end
	return l.over || l.parts+reserve > l.maxParts || l.bytes+closeBytes > l.maxBytes
}

func (l *limiter) pass(in []uistream.Part, now time.Time) []uistream.Part {
	var out []uistream.Part
	for _, p := range in {
		if !l.over && (l.parts+1 > l.maxParts || l.bytes+int64(len(p.Raw)) > l.maxBytes) {
			l.over = true
			out = append(out, uistream.Data{
				Name: uistream.DataLimit, ID: uistream.DataLimit, At: uistream.At(now),
				Data: uistream.ValueOf(map[string]any{"reason": "turn limit", "parts": l.parts, "bytes": l.bytes}),
			}.Part())
		}
		if l.over && !l.closes(p) {
			l.dropped++
			l.keep(p)
			continue
		}
		if p.Type == uistream.TypeFinishStep {
			out = append(out, l.seal(now)...)
		}
		l.track(p)
		l.parts++
		l.bytes += int64(len(p.Raw))
		out = append(out, p)
	}
	return out
}

// keep puts a part to the rest.
func (l *limiter) keep(p uistream.Part) {
	if l.blobs == nil {
		return
	}
	if l.rest == nil {
		l.rest = l.blobs.Create(true)
	}
	_, _ = l.rest.Write(p.Raw) // told by Seal
	_, _ = l.rest.Write([]byte("\n"))
}

// seal gives the part that tells where the rest is.
func (l *limiter) seal(now time.Time) []uistream.Part {
	if l.rest == nil {
		return nil
	}
	b := uistream.Blob{MediaType: "application/x-ndjson", Of: uistream.BlobOf{Turn: "rest"}, Why: uistream.BlobTurnLimit}
	b.ID, b.Bytes, b.Lost = l.rest.Seal()
	l.rest = nil
	return []uistream.Part{uistream.Data{Name: uistream.DataBlob, Data: uistream.ValueOf(b), At: uistream.At(now)}.Part()}
}

// key is what a part belongs to, empty for none.
func key(p uistream.Part) string {
	switch p.Type {
	case uistream.TypeTextStart, uistream.TypeTextEnd:
		return "text " + p.Text("id")
	case uistream.TypeReasoningStart, uistream.TypeReasoningEnd:
		return "reasoning " + p.Text("id")
	case uistream.TypeToolInputStart, uistream.TypeToolInputAvailable, uistream.TypeToolInputError,
		uistream.TypeToolOutputAvailable, uistream.TypeToolOutputError, uistream.TypeToolOutputDenied:
		return "tool " + p.Text("toolCallId")
	}
	return ""
}

func (l *limiter) track(p uistream.Part) {
	k := key(p)
	if k == "" {
		return
	}
	if l.open == nil {
		l.open = map[string]bool{}
	}
	switch p.Type {
	case uistream.TypeTextStart, uistream.TypeReasoningStart, uistream.TypeToolInputStart, uistream.TypeToolInputAvailable:
		l.open[k] = true
	case uistream.TypeToolOutputAvailable:
		if !preliminary(p) {
			delete(l.open, k)
		}
	default:
		delete(l.open, k)
	}
}

func preliminary(p uistream.Part) bool {
	raw, ok := p.Field("preliminary")
	return ok && string(raw) == "true"
}

func (l *limiter) closes(p uistream.Part) bool {
	switch p.Type {
	case uistream.TypeFinishStep:
		return true
	case uistream.DataType(uistream.DataBlob):
		return len(p.Raw) <= blobBytes
	case uistream.TypeTextEnd, uistream.TypeReasoningEnd, uistream.TypeToolOutputError, uistream.TypeToolOutputDenied, uistream.TypeToolInputError:
		return l.open[key(p)]
	case uistream.TypeToolInputAvailable:
		return l.open[key(p)] && len(p.Raw) <= closeBytes
	case uistream.TypeToolOutputAvailable:
		return l.open[key(p)] && !preliminary(p)
	}
	return false
}
