package convert

import (
	"encoding/json"
	"strings"
	"unicode/utf16"
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
	high  uint16 // first half of a surrogate pair that a chunk ended with
}

func (c *Converter) chunk(k uistream.BlockKind, u acp.Update) {
	b := u.Chunk.Content
	if b.Type != "text" {
		c.closeBlock()
		c.content(b)
		return
	}
	for _, p := range c.o.NoisePrefixes {
		if p != "" && strings.HasPrefix(b.Text, p) {
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
		c.blocks++
		c.block = &block{kind: k, id: string(k) + "-" + itoa(c.blocks), agent: agent, at: c.at}
		c.emit(uistream.BlockStart{Kind: k, ID: c.block.id, At: c.at, ProviderMetadata: uistream.HearthMeta(uistream.Hearth{At: c.at, Agent: agent})})
	}
	text, lossy := c.pairs(b)
	if u.Cut != nil {
		c.block.cut = u.Cut.Bytes
	}
	c.delta(text, lossy || c.bad)
}

// delta emits text in pieces that fit a part.
func (c *Converter) delta(text string, lossy bool) {
	if lossy {
		c.block.lossy, c.lost = true, true
	}
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
	if b.high != 0 {
		b.high = 0
		c.delta("\uFFFD", true)
	}
	c.emit(uistream.BlockEnd{Kind: b.kind, ID: b.id, EndAt: c.at, ProviderMetadata: uistream.HearthMeta(uistream.Hearth{
		At: b.at, EndAt: c.at, Agent: b.agent, Lossy: b.lossy, TruncatedBytes: b.cut,
	})})
	c.block = nil
}

// pairs gives the text of a chunk. Agents that count in UTF-16 cut text in the
// middle of a surrogate pair, which JSON can carry and UTF-8 cannot: the first
// half waits for the chunk with the second.
func (c *Converter) pairs(b acp.ContentBlock) (text string, lossy bool) {
	raw := string(b.Raw)
	if c.block.high == 0 && !strings.Contains(raw, `\ud`) && !strings.Contains(raw, `\uD`) {
		return b.Text, false
	}
	var t struct {
		Text json.RawMessage `json:"text"`
	}
	if acp.Decode(b.Raw, &t) != nil {
		return b.Text, false
	}
	var units []uint16
	if c.block.high != 0 {
		units = append(units, c.block.high)
		c.block.high = 0
	}
	units = appendUnits(units, t.Text)
	if n := len(units); n > 0 && units[n-1] >= 0xD800 && units[n-1] < 0xDC00 {
		c.block.high = units[n-1]
		units = units[:n-1]
	}
	for i := 0; i < len(units); i++ {
		if !utf16.IsSurrogate(rune(units[i])) {
			continue
		}
		if i+1 < len(units) && utf16.DecodeRune(rune(units[i]), rune(units[i+1])) != utf8.RuneError {
			i++
			continue
		}
		lossy = true
	}
	return string(utf16.Decode(units)), lossy
}

// appendUnits decodes a valid JSON string to UTF-16, lone surrogates kept.
func appendUnits(dst []uint16, quoted []byte) []uint16 {
	s := quoted
	if len(s) < 2 {
		return dst
	}
	s = s[1 : len(s)-1]
	for i := 0; i < len(s); {
		if s[i] == '\\' && i+1 < len(s) {
			if s[i+1] == 'u' && i+6 <= len(s) {
				dst = append(dst, hex4(s[i+2:i+6]))
				i += 6
				continue
			}
			r := s[i+1]
			switch r {
			case 'n':
				r = '\n'
			case 't':
				r = '\t'
			case 'r':
				r = '\r'
			case 'b':
				r = '\b'
			case 'f':
				r = '\f'
			}
			dst = append(dst, uint16(r))
			i += 2
			continue
		}
		r, size := utf8.DecodeRune(s[i:])
		dst = utf16.AppendRune(dst, r)
		i += size
	}
	return dst
}

func hex4(b []byte) uint16 {
	var v uint16
	for _, c := range b {
		v <<= 4
		switch {
		case c >= '0' && c <= '9':
			v |= uint16(c - '0')
		case c >= 'a' && c <= 'f':
			v |= uint16(c-'a') + 10
		case c >= 'A' && c <= 'F':
			v |= uint16(c-'A') + 10
		}
	}
	return v
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
