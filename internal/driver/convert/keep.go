package convert

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"io"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/uistream"
)

// Blobs keeps what no part can carry.
type Blobs interface {
	// Create begins a blob; nil when there are as many as may be. last asks for one of
	// the few that gather what has no blob of its own; it is never nil.
	Create(last bool) BlobWriter
	// Take makes a blob of a file that the connection has spilled, and removes it.
	Take(file string) (id string, bytes int64, lost string)
}

// BlobWriter writes a blob. Write does not fail; Seal tells the id, or why it is lost.
type BlobWriter interface {
	io.Writer
	Seal() (id string, bytes int64, lost string)
}

// Media types of blobs.
const (
	mediaText  = "text/plain; charset=utf-8"
	mediaBytes = "application/octet-stream"
	mediaJSON  = "application/json"
	mediaLines = "application/x-ndjson"
)

// keptBytes is how much of a text is held while nothing of it was lost: where
// something is, its blob begins so far back.
const keptBytes = 256 << 10

// keep is a text that becomes a blob when something of it is lost.
type keep struct {
	raw  []byte
	from int64 // where raw begins
	w    BlobWriter
	why  string
}

func (k *keep) write(raw []byte) {
	if k.w != nil {
		_, _ = k.w.Write(raw) // told by Seal
		return
	}
	if len(k.raw)+len(raw) > keptBytes {
		k.from += int64(len(k.raw) + len(raw))
		k.raw = nil
		return
	}
	k.raw = append(k.raw, raw...)
}

// must says that something will be lost of what is written next.
func (c *Converter) must(k *keep, why string) {
	if c.o.Blobs == nil {
		return
	}
	if k.w == nil {
		if k.w = c.o.Blobs.Create(false); k.w == nil {
			c.lost = true
			return
		}
		_, _ = k.w.Write(k.raw) // told by Seal
		k.raw = nil
	}
	if k.why == "" || why == uistream.BlobNotText {
		k.why = why
	}
}

// seal emits the blob of a text, if it has one.
func (c *Converter) seal(k *keep, of uistream.BlobOf) {
	if k.w == nil {
		*k = keep{}
		return
	}
	media := mediaText
	if k.why == uistream.BlobNotText {
		media = mediaBytes
	}
	b := uistream.Blob{MediaType: media, Of: of, Why: k.why, From: k.from}
	b.ID, b.Bytes, b.Lost = k.w.Seal()
	*k = keep{}
	c.blob(b)
}

func (c *Converter) blob(b uistream.Blob) {
	c.emit(uistream.Data{Name: uistream.DataBlob, Data: uistream.ValueOf(b), At: c.at})
}

// cutOf is what a line that was too long for memory was about.
func (c *Converter) cutOf(u acp.Update) uistream.BlobOf {
	if u.Tool != nil && u.Tool.ToolCallID != "" {
		return uistream.BlobOf{ToolCallID: c.id(u.Tool.ToolCallID)}
	}
	return uistream.BlobOf{Turn: "updates"}
}

// take makes a blob of a line that was too long for memory.
func (c *Converter) take(cut *acp.Cut, of uistream.BlobOf) {
	if cut == nil || c.o.Blobs == nil {
		return
	}
	b := uistream.Blob{MediaType: mediaJSON, Of: of, Why: uistream.BlobTooLarge, Bytes: cut.Bytes}
	if cut.File == "" {
		b.Lost = "It was larger than may be kept, or the sandbox's disk had no room for it."
	} else if id, n, lost := c.o.Blobs.Take(cut.File); lost == "" {
		b.ID, b.Bytes = id, n
	} else {
		b.Lost = lost
	}
	c.blob(b)
}

// keepUpdate gathers an update of which a part does not carry all and that has no
// other place.
func (c *Converter) keepUpdate(raw ...[]byte) {
	if c.o.Blobs == nil {
		return
	}
	if c.updates == nil {
		c.updates = c.o.Blobs.Create(true)
	}
	for _, b := range append(raw, []byte("\n")) {
		_, _ = c.updates.Write(b) // told by Seal
	}
}

func (c *Converter) sealUpdates() {
	if c.updates == nil {
		return
	}
	b := uistream.Blob{MediaType: mediaLines, Of: uistream.BlobOf{Turn: "updates"}, Why: uistream.BlobTooLarge}
	b.ID, b.Bytes, b.Lost = c.updates.Seal()
	c.updates = nil
	c.blob(b)
}

// piece is what a tool call's blob may be of.
type piece struct {
	name string
	raw  json.RawMessage
	why  string
}

// why tells what of a value a part does not carry.
func why(raw json.RawMessage) string {
	if _, lossy := uistream.Clean(raw); lossy {
		return uistream.BlobNotText
	}
	if _, changed := uistream.PlainJSON(raw); changed {
		return uistream.BlobControlCodes
	}
	return ""
}

// smallPiece is never why something was too large.
const smallPiece = 1 << 10

// keepTool emits the blob of a call's input and output where its parts do not carry all of
// them: the text itself when it is one text, else the values as the agent sent them.
func (c *Converter) keepTool(t *tool, out fitted) {
	of := uistream.BlobOf{ToolCallID: t.id}
	if out.truncated > 0 && len(t.terminal) > smallPiece {
		c.must(&t.keep, uistream.BlobTooLarge)
	}
	c.seal(&t.keep, of)
	if c.o.Blobs == nil || !out.lossy && out.truncated == 0 && !t.inputLost {
		return
	}
	var lost []piece
	reason := ""
	for _, p := range []piece{{name: "input", raw: t.call.RawInput}, {name: "content", raw: t.call.Content}, {name: "rawOutput", raw: t.call.RawOutput}} {
		p.why = why(p.raw)
		if p.why == "" && len(p.raw) > smallPiece && (p.name == "input" && t.inputLost || p.name != "input" && out.truncated > 0) {
			p.why = uistream.BlobTooLarge
		}
		if p.why == "" {
			continue
		}
		lost = append(lost, p)
		if reason == "" || p.why == uistream.BlobTooLarge || p.why == uistream.BlobNotText && reason == uistream.BlobControlCodes {
			reason = p.why
		}
	}
	var key uint64
	for _, p := range lost {
		key ^= maphash.Bytes(seed, p.raw) ^ maphash.String(seed, p.name)
	}
	if len(lost) == 0 || key == t.kept {
		return
	}
	t.kept = key
	b := uistream.Blob{MediaType: mediaJSON, Of: of, Why: reason}
	pieces := values(lost)
	if text := oneText(lost); text != nil {
		pieces = [][]byte{text}
		if b.MediaType = mediaText; !utf8.Valid(text) {
			b.MediaType = mediaBytes
		}
	}
	w := c.o.Blobs.Create(false)
	if w == nil {
		id := uistream.ValueOf(map[string]string{"toolCallId": t.id})
		c.keepUpdate(append([][]byte{id[:len(id)-1], []byte(",")}, append([][]byte{values(lost)[0][1:]}, values(lost)[1:]...)...)...)
		return
	}
	for _, p := range pieces {
		_, _ = w.Write(p) // told by Seal
	}
	b.ID, b.Bytes, b.Lost = w.Seal()
	c.blob(b)
}

// values is the JSON object of the pieces, in pieces.
func values(lost []piece) [][]byte {
	out := make([][]byte, 0, 2*len(lost)+1)
	for i, p := range lost {
		before := `,"`
		if i == 0 {
			before = `{"`
		}
		out = append(out, []byte(before+p.name+`":`), p.raw)
	}
	return append(out, []byte("}"))
}

// oneText is the bytes of the text that all pieces are; nil when they are none or several.
func oneText(lost []piece) []byte {
	var text []byte
	for _, p := range lost {
		quoted := p.raw
		if p.name == "content" {
			var list []struct {
				Type    string `json:"type"`
				Content struct {
					Type string          `json:"type"`
					Text json.RawMessage `json:"text"`
				} `json:"content"`
			}
			if json.Unmarshal(p.raw, &list) != nil || len(list) != 1 || list[0].Type != "content" || list[0].Content.Type != "text" {
				return nil
			}
			quoted = list[0].Content.Text
		}
		if len(quoted) == 0 || quoted[0] != '"' {
			return nil
		}
		var j uistream.Joiner
		_, raw, _ := j.Text(uistream.Unquote(quoted))
		_, rest, _ := j.End()
		if raw = append(bytes.Clone(raw), rest...); text != nil && !bytes.Equal(text, raw) {
			return nil
		}
		text = raw
	}
	return text
}
