package convert

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/uistream"
)

// block is the open run of text or reasoning.
type block struct {
	kind  uistream.BlockKind
	id    string
	agent string // the agent's message id, if it gives one
	at    uistream.Stamp
	lossy bool
	cut   int64
	join  uistream.Joiner
	plain uistream.Plain
	keep  keep
}

func (c *Converter) chunk(k uistream.BlockKind, u acp.Update) {
	b := u.Chunk.Content
	if b.Type != "text" {
		c.closeBlock()
		c.turned()
		c.content(b)
		return
	}
	for _, p := range c.o.NoisePrefixes {
		if p != "" && strings.HasPrefix(b.Text, p) {
			c.closeBlock() // the answer may begin anew behind it
			c.data(uistream.Data{Name: uistream.DataNotice, Data: uistream.ValueOf(map[string]string{"text": b.Text, "source": "agent"})})
			return
		}
	}
	agent := c.id(u.Chunk.MessageID)
	if o := c.block; o != nil && (o.kind != k || agent != "" && o.agent != agent) {
		c.closeBlock()
	}
	if b.Text == "" {
		return
	}
	if c.block == nil {
		c.openBlock(k, agent)
	}
	text, raw, lossy := c.text(b)
	text, controls := c.block.plain.Text(text)
	var again []run
	if text != "" {
		if old, anew, ok := c.runs[k].within(text, !lossy && !controls && u.Cut == nil); ok {
			c.beginAnew()
			text, raw, again = anew, []byte(anew), append(again, old)
		}
		again = append(again, c.runs[k].again(text)...)
	}
	switch {
	case lossy:
		c.must(&c.block.keep, uistream.BlobNotText)
	case controls:
		c.must(&c.block.keep, uistream.BlobControlCodes)
	}
	c.block.keep.write(raw)
	if u.Cut != nil {
		c.block.cut = u.Cut.Bytes
	}
	c.lost = c.lost || c.bad && utf8.Valid(b.Raw) // what is no text is elsewhere in the update
	from := c.number() + 1
	c.delta(text, lossy || controls)
	if text != "" {
		c.runs[k].now.add(text, from, c.number())
	}
	for _, old := range again {
		c.superseded(old)
	}
}

func (c *Converter) openBlock(k uistream.BlockKind, agent string) {
	c.blocks++
	c.runs[k].next(c.blocks)
	c.block = &block{kind: k, id: string(k) + "-" + itoa(c.blocks), agent: agent, at: c.at}
	c.emit(uistream.BlockStart{Kind: k, ID: c.block.id, At: c.at, ProviderMetadata: uistream.HearthMeta(uistream.Hearth{At: c.at, Agent: agent})})
}

// beginAnew puts a block in the place of the open one. The beginning of a character that
// waits for its end goes into the new one.
func (c *Converter) beginAnew() {
	o := *c.block
	c.block.join = uistream.Joiner{}
	c.closeBlock()
	c.openBlock(o.kind, o.agent)
	c.block.join = o.join
}

// delta emits text in pieces that fit a part.
func (c *Converter) delta(text string, lossy bool) {
	c.block.lossy = c.block.lossy || lossy
	for len(text) > 0 {
		n := len(text)
		if n > deltaBytes {
			n = deltaBytes
			for !utf8.RuneStart(text[n]) {
				n--
			}
		}
		c.emit(uistream.BlockDelta{Kind: c.block.kind, ID: c.block.id, Delta: text[:n], Lossy: lossy})
		text = text[n:]
	}
}

func (c *Converter) closeBlock() {
	b := c.block
	if b == nil {
		return
	}
	if text, raw, lossy := b.join.End(); lossy {
		c.must(&b.keep, uistream.BlobNotText)
		b.keep.write(raw)
		c.delta(text, true)
	}
	c.emit(uistream.BlockEnd{Kind: b.kind, ID: b.id, EndAt: c.at, ProviderMetadata: uistream.HearthMeta(uistream.Hearth{
		At: b.at, EndAt: c.at, Agent: b.agent, Lossy: b.lossy, TruncatedBytes: b.cut,
	})})
	c.block = nil
	c.seal(&b.keep, uistream.BlobOf{Block: b.id})
}

// text gives the text of a chunk and its bytes. Agents cut text in the middle of a
// character; its beginning waits for the chunk with its end.
func (c *Converter) text(b acp.ContentBlock) (text string, raw []byte, lossy bool) {
	said := []byte(b.Text)
	if s := string(b.Raw); c.bad || strings.Contains(s, `\ud`) || strings.Contains(s, `\uD`) {
		var t struct {
			Text json.RawMessage `json:"text"`
		}
		if acp.Decode(b.Raw, &t) == nil {
			said = uistream.Unquote(t.Text)
		}
	}
	return c.block.join.Text(said)
}

// content emits a block that is no text.
func (c *Converter) content(b acp.ContentBlock) {
	switch b.Type {
	case "image":
		if b.Data != "" && c.file(b.MimeType, b.Data) {
			return
		}
		if c.link(b.MimeType, b.URI) {
			return
		}
	case "resource_link":
		title := firstOf(b.Title, b.Name, b.URI)
		if b.URI != "" && len(b.URI) < dataBytes && uistream.AllowedURL(b.URI) {
			c.emit(uistream.SourceURL{SourceID: c.source(), URL: b.URI, Title: cutText(title, titleBytes), At: c.at, ProviderMetadata: c.meta()})
			return
		}
		if title != "" {
			c.emit(uistream.SourceDocument{
				SourceID: c.source(), MediaType: cutText(firstOf(b.MimeType, "application/octet-stream"), 100), Title: cutText(title, titleBytes),
				Filename: cutText(b.Name, titleBytes), At: c.at, ProviderMetadata: c.meta(),
			})
			return
		}
	case "resource":
		var r struct {
			MimeType string `json:"mimeType"`
			Blob     string `json:"blob"`
		}
		if acp.Decode(b.Resource, &r) == nil && r.Blob != "" && c.file(r.MimeType, r.Blob) {
			return
		}
	}
	f := c.fit(uistream.Value(b.Raw), valueBytes)
	c.lost = c.lost || f.lossy || f.truncated > 0
	c.emit(uistream.Data{Name: uistream.DataContent, Data: f.value, At: c.at, Lossy: f.lossy, TruncatedBytes: f.truncated})
}

func (c *Converter) meta() *uistream.Meta {
	return uistream.HearthMeta(uistream.Hearth{At: c.at, Lossy: c.bad})
}

func (c *Converter) source() string {
	c.ids++
	return "source-" + itoa(c.ids)
}

// file emits an image as a data URL; false when it is none or too large.
func (c *Converter) file(mime, base64 string) bool {
	url := "data:" + mime + ";base64," + base64
	if !strings.HasPrefix(mime, "image/") || len(mime) > 100 || strings.ContainsAny(mime, ",; ") || len(url) > uistream.MaxPartBytes-4096 || !plainBase64(base64) {
		return false
	}
	c.emit(uistream.File{URL: url, MediaType: mime, At: c.at, ProviderMetadata: c.meta()})
	return true
}

func (c *Converter) link(mime, uri string) bool {
	if uri == "" || len(uri) > dataBytes || !uistream.AllowedURL(uri) {
		return false
	}
	c.emit(uistream.File{URL: uri, MediaType: cutText(firstOf(mime, "image/*"), 100), At: c.at, ProviderMetadata: c.meta()})
	return true
}

func plainBase64(s string) bool {
	for i := range len(s) {
		switch b := s[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '+', b == '/', b == '=', b == '-', b == '_':
		default:
			return false
		}
	}
	return true
}
