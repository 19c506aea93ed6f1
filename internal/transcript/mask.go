package transcript

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"github.com/hearthd/hearth/internal/secret"
)

// Mask is what stands where a secret was.
const Mask = "[masked]"

// Masker replaces known secrets in the parts of one turn: in every form of
// [secret.Forms], whichever characters are escaped in JSON or percent-encoded, also
// where a text is split over deltas. It looks at what the strings of a part stand
// for, names too; only the characters of a secret are replaced, and what has none
// stays as it is, byte for byte. It keeps the number and order of parts: a part whose
// text may be the beginning of a secret is held back until the next one of its
// block, or the block's end, is there. A secret's parts come out together, so that a
// masker that begins after any part given out finds what is left. It is not safe for
// concurrent use.
type Masker struct {
	find   *secret.Finder
	across [][]byte       // forms that can stand in a part outside its strings; mostly none
	text   *secret.Stream // for texts that come whole
	blocks map[blockKey]*block

	held []heldPart // in order; the first one is number first
	// first counts the parts given out. Of the held ones those before clear wait for
	// nothing; ties is how many secrets are cut in two by the border there.
	first, clear, ties int

	layout  layout
	decoded []byte
}

// heldPart is a part that was not given out yet.
type heldPart struct {
	n    int64
	body json.RawMessage
	// Of a part that carries a piece of a block's text: where the string is in the
	// body, where the piece ends in the text, and whether that is inside a secret.
	delta span
	end   int64
	tied  bool
	waits bool // for its block
	ties  int  // secrets that go on behind this part less those that go on in it
}

// blockKey names a text that comes in deltas.
type blockKey struct{ kind, id string }

// block is such a text.
type block struct {
	text  *secret.Stream
	parts []int // its held parts, by number
	seen  int   // how many of these were looked at: no secret is yet to be found in them
	spans int   // how many of the text's places end before the next part to look at does
}

// NewMasker looks for these secrets; those shorter than [secret.MinBytes] are left out.
func NewMasker(secrets [][]byte) *Masker {
	forms := secret.Forms(secrets)
	m := &Masker{find: secret.NewFinder(forms), blocks: map[blockKey]*block{}}
	for _, f := range forms {
		if mayStandAcross(f) {
			m.across = append(m.across, f)
		}
	}
	m.text = m.find.Stream()
	return m
}

// mayStandAcross says whether JSON text can have form elsewhere than in a string:
// as a number, or over the borders of strings.
func mayStandAcross(form []byte) bool {
	return bytes.IndexByte(form, '"') >= 0 || len(bytes.Trim(form, "0123456789+-.eE,:[]{} ")) == 0
}

// Numbered is a part with its number within the turn.
type Numbered struct {
	N    int64
	Body json.RawMessage
}

// Add takes the next part and returns those that are ready, in order. With no
// secrets to look for every part comes back at once, as it is.
func (m *Masker) Add(n int64, body json.RawMessage) []Numbered {
	if m.find.Empty() {
		return []Numbered{{n, body}}
	}
	if len(m.across) > 0 {
		body = m.maskAcross(body)
	}
	m.layout.read(body, false)
	p := heldPart{n: n}
	key, what := m.layout.block(body)
	p.body, p.delta = m.maskStrings(body, what == isDelta)
	m.held = append(m.held, p)
	switch b := m.blocks[key]; what {
	case isDelta:
		if b == nil {
			b = &block{text: m.find.Stream()}
			m.blocks[key] = b
		}
		m.add(b, len(m.held)-1)
	case endsBlock:
		if b != nil {
			m.settle(b, true)
			delete(m.blocks, key)
		}
	}
	return m.take()
}

// Flush returns what is held: the turn has ended, nothing follows that could
// complete a secret.
func (m *Masker) Flush() []Numbered {
	for _, b := range m.blocks {
		m.settle(b, true)
	}
	clear(m.blocks)
	return m.take()
}

// take gives out what waits for nothing, up to a border that cuts no secret in two.
func (m *Masker) take() []Numbered {
	ready := 0
	for m.clear < len(m.held) && !m.held[m.clear].waits {
		m.ties += m.held[m.clear].ties
		m.clear++
		if m.ties == 0 {
			ready = m.clear
		}
	}
	if ready == 0 {
		return nil
	}
	out := make([]Numbered, ready)
	for i, p := range m.held[:ready] {
		out[i] = Numbered{p.n, p.body}
	}
	clear(m.held[:ready])
	m.held, m.clear, m.first = m.held[ready:], m.clear-ready, m.first+ready
	return out
}

// Text masks a text on its own: an error's sentence, a log's tail.
func (m *Masker) Text(s string) string {
	if m == nil || m.find.Empty() {
		return s
	}
	m.text.Reset()
	m.text.Write([]byte(s))
	if len(m.text.Found()) == 0 {
		return s
	}
	var out []byte
	last := int64(0)
	for _, f := range m.text.Found() {
		out = append(append(out, s[last:f.Start]...), Mask...)
		last = f.End
	}
	return string(append(out, s[last:]...))
}

// add puts the piece of a held part to its block's text.
func (m *Masker) add(b *block, at int) {
	p := &m.held[at]
	b.text.Write(m.decode(p.body[p.delta.from:p.delta.to]))
	p.end, p.waits = b.text.Size(), true
	b.parts = append(b.parts, m.first+at)
	m.settle(b, false)
}

// settle masks the parts of a block in which no secret is yet to be found, and lets
// them go as far as a border that is not inside a secret. Each part is looked at once:
// what was found before such a border does not change any more.
func (m *Masker) settle(b *block, ended bool) {
	upTo := b.text.Settled()
	if ended {
		upTo = b.text.Size()
	}
	found := b.text.Found()
	done := 0
	for b.seen < len(b.parts) {
		p := &m.held[b.parts[b.seen]-m.first]
		if p.end > upTo {
			break
		}
		for b.spans < len(found) && found[b.spans].End <= p.end {
			b.spans++
		}
		b.seen++
		if p.tied = b.spans < len(found) && found[b.spans].Start < p.end; !p.tied {
			done = b.seen
		}
	}
	if done == 0 {
		return
	}
	tied := false
	next := found
	for _, number := range b.parts[:done] {
		p := &m.held[number-m.first]
		p.waits = false
		if tied {
			p.ties--
		}
		if tied = p.tied; tied {
			p.ties++
		}
		next = p.mask(next)
	}
	last := &m.held[b.parts[done-1]-m.first]
	b.spans -= b.text.Forget(last.end)
	b.parts, b.seen = b.parts[done:], b.seen-done
}

// mask takes out what was found in the part's piece. It returns what may also be
// in the next part.
func (p *heldPart) mask(found []secret.Span) []secret.Span {
	if len(found) == 0 {
		return nil
	}
	raw := p.body[p.delta.from:p.delta.to]
	start := p.end - int64(decodedLen(raw))
	if found[0].Start < p.end && found[0].End > start {
		out := append(json.RawMessage{}, p.body[:p.delta.from]...)
		out = cut(out, raw, start, found, Mask)
		p.body = append(out, p.body[p.delta.to:]...)
	}
	for len(found) > 0 && found[0].End <= p.end {
		found = found[1:]
	}
	return found
}

// maskStrings masks the strings of a part, of which the layout was read, without the
// delta's, and says where that is.
func (m *Masker) maskStrings(body json.RawMessage, hasDelta bool) (json.RawMessage, span) {
	var out json.RawMessage
	last := 0
	at := m.layout.delta
	for _, t := range m.layout.tokens {
		if hasDelta && t.span == m.layout.delta.span {
			at.from, at.to = len(out)+t.from-last, len(out)+t.to-last
			continue
		}
		if t.to-t.from < secret.MinBytes {
			continue
		}
		raw := body[t.from:t.to]
		text := m.decode(raw)
		word := Mask
		if t.span == m.layout.kind.span {
			// Only the type of a data part can be one that nobody knows; it stays one,
			// and its name takes no brackets.
			if !bytes.HasPrefix(text, dataType) {
				continue
			}
			word = "masked"
		}
		m.text.Reset()
		m.text.Write(text)
		found := m.text.Found()
		if len(found) == 0 {
			continue
		}
		if word != Mask {
			found[0].Start = max(found[0].Start, int64(len(dataType)))
		}
		out = append(out, body[last:t.from]...)
		out = cut(out, raw, 0, found, word)
		last = t.to
	}
	if last == 0 {
		return body, at.span
	}
	return append(out, body[last:]...), at.span
}

var dataType = []byte("data-")

// maskAcross replaces as a whole the strings and numbers that a secret reaches into
// which stands in the part's JSON text itself. Names, type and ids of the part stay.
func (m *Masker) maskAcross(body json.RawMessage) json.RawMessage {
	var found []secret.Span
	for _, form := range m.across {
		for at := 0; ; {
			n := bytes.Index(body[at:], form)
			if n < 0 {
				break
			}
			found = append(found, secret.Span{Start: int64(at + n), End: int64(at + n + len(form))})
			at += n + len(form)
		}
	}
	if len(found) == 0 {
		return body
	}
	slices.SortFunc(found, func(a, b secret.Span) int { return cmp.Compare(a.Start, b.Start) })
	m.layout.read(body, true)
	var out json.RawMessage
	last := 0
	for _, t := range m.layout.tokens {
		for len(found) > 0 && found[0].End <= int64(t.from) {
			found = found[1:]
		}
		switch t.span {
		case m.layout.kind.span, m.layout.id.span, m.layout.call.span:
			continue
		}
		if t.ownName || !t.reached(found) {
			continue
		}
		out = append(out, body[last:t.from]...)
		if t.number {
			out = append(out, `"`+Mask+`"`...)
		} else {
			out = append(out, Mask...)
		}
		last = t.to
	}
	return append(out, body[last:]...)
}

// reached says whether one of the places is in the number, or in the string and in
// what is around it; those within a string are found there.
func (t token) reached(found []secret.Span) bool {
	for _, f := range found {
		if f.Start >= int64(t.to) {
			return false
		}
		if t.number || f.Start < int64(t.from) || f.End > int64(t.to) {
			return true
		}
	}
	return false
}

// decode is what the inside of a JSON string stands for, until it is called again.
func (m *Masker) decode(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	m.decoded = decode(m.decoded[:0], raw)
	return m.decoded
}
