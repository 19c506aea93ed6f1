package transcript

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Mask is what stands where a secret was.
const Mask = "[masked]"

// MinSecret is the length in bytes below which a value is not looked for: short
// values are found everywhere.
const MinSecret = 16

// Masker replaces known secrets in the parts of one turn: in raw, base64 and hex
// form, also where a text is split over deltas. It keeps the number and order of
// parts: a part whose text may be the beginning of a secret is held back until
// the next one of its block is there. It is not safe for concurrent use.
type Masker struct {
	needles [][]byte // longest first
	held    []heldPart
}

type heldPart struct {
	n    int64
	body json.RawMessage
	d    *delta
}

// NewMasker looks for these secrets; those shorter than [MinSecret] are left out.
func NewMasker(secrets [][]byte) *Masker {
	m := &Masker{}
	for _, s := range secrets {
		if len(s) < MinSecret {
			continue
		}
		m.add(s)
		m.add([]byte(hex.EncodeToString(s)))
		// A value inside a longer base64 text stands at one of three alignments; the
		// characters that mix with its neighbours are left out.
		for skip := range 3 {
			enc := base64.StdEncoding.EncodeToString(append(make([]byte, skip), s...))
			from, to := (skip*8+5)/6, (skip+len(s))*8/6
			m.add([]byte(enc[from:to]))
			m.add([]byte(base64.URLEncoding.EncodeToString(append(make([]byte, skip), s...))[from:to]))
		}
		if q, err := json.Marshal(string(s)); err == nil {
			m.add(q[1 : len(q)-1])
		}
	}
	slices.SortFunc(m.needles, func(a, b []byte) int { return len(b) - len(a) })
	return m
}

func (m *Masker) add(n []byte) {
	if len(n) < MinSecret || slices.ContainsFunc(m.needles, func(x []byte) bool { return bytes.Equal(x, n) }) {
		return
	}
	m.needles = append(m.needles, n)
}

// delta is a part that carries a piece of a longer text.
type delta struct {
	Type  string `json:"type"`
	ID    string `json:"id"`
	Call  string `json:"toolCallId"`
	Delta string `json:"delta"`
	Input string `json:"inputTextDelta"`
}

func (d *delta) key() string { return d.Type + "\x00" + d.ID + d.Call }
func (d *delta) text() *string {
	if d.Type == "tool-input-delta" {
		return &d.Input
	}
	return &d.Delta
}

// Numbered is a part with its number within the turn.
type Numbered struct {
	N    int64
	Body json.RawMessage
}

// Add takes the next part and returns those that are ready, in order. With no
// secrets to look for every part comes back at once, as it is.
func (m *Masker) Add(n int64, body json.RawMessage) []Numbered {
	if len(m.needles) == 0 {
		return []Numbered{{n, body}}
	}
	p := heldPart{n: n, body: m.replace(body)}
	if bytes.Contains(body, []byte(`"delta"`)) || bytes.Contains(body, []byte(`"inputTextDelta"`)) {
		var d delta
		if json.Unmarshal(p.body, &d) == nil && (d.Type == "text-delta" || d.Type == "reasoning-delta" || d.Type == "tool-input-delta") {
			p.d = &d
		}
	}
	m.held = append(m.held, p)
	m.join()
	keep := m.open()
	return m.take(len(m.held) - keep)
}

// Flush returns what is held: the turn has ended, nothing follows that could
// complete a secret.
func (m *Masker) Flush() []Numbered { return m.take(len(m.held)) }

func (m *Masker) take(n int) []Numbered {
	var out []Numbered
	for _, p := range m.held[:n] {
		out = append(out, Numbered{p.n, p.body})
	}
	m.held = slices.Clone(m.held[n:])
	return out
}

// Text masks a text on its own: an error's sentence, a log's tail.
func (m *Masker) Text(s string) string {
	if m == nil {
		return s
	}
	return string(m.replace([]byte(s)))
}

func (m *Masker) replace(b []byte) []byte {
	for _, n := range m.needles {
		if bytes.Contains(b, n) {
			b = bytes.ReplaceAll(b, n, []byte(Mask))
		}
	}
	return b
}

// join looks for secrets over the held deltas of the newest one's block. A
// secret found there is taken out of every part that has a piece of it, and its mask
// stands where it began.
func (m *Masker) join() {
	last := m.held[len(m.held)-1]
	if last.d == nil {
		return
	}
	var idx []int
	var text []byte
	var ends []int // end of each part's text within text
	for i, p := range m.held {
		if p.d != nil && p.d.key() == last.d.key() {
			idx = append(idx, i)
			text = append(text, *p.d.text()...)
			ends = append(ends, len(text))
		}
	}
	if len(idx) < 2 {
		return
	}
	for _, n := range m.needles {
		for {
			at := bytes.Index(text, n)
			if at < 0 {
				break
			}
			end := at + len(n)
			start := 0
			shift := 0
			var joined []byte
			for k, i := range idx {
				piece := text[start:ends[k]]
				lo, hi := max(at, start), min(end, ends[k])
				if lo < hi {
					var b []byte
					b = append(b, piece[:lo-start]...)
					if lo == at {
						b = append(b, Mask...)
					}
					b = append(b, piece[hi-start:]...)
					m.setText(i, string(b))
					shift += len(b) - len(piece)
					piece = b
				}
				joined = append(joined, piece...)
				start = ends[k]
				ends[k] += shift
			}
			text = joined
		}
	}
}

// setText rewrites one held delta; other fields stay as they are.
func (m *Masker) setText(i int, s string) {
	p := &m.held[i]
	*p.d.text() = s
	var fields map[string]json.RawMessage
	if json.Unmarshal(p.body, &fields) != nil {
		return
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return
	}
	if p.d.Type == "tool-input-delta" {
		fields["inputTextDelta"] = raw
	} else {
		fields["delta"] = raw
	}
	if b, err := json.Marshal(fields); err == nil {
		p.body = b
	}
}

// open counts how many parts at the end must stay held: from the first one
// whose text, with what follows in its block, ends in the beginning of a secret.
func (m *Masker) open() int {
	last := map[string][]byte{} // text of each block so far
	from := map[string][]int{}
	for i, p := range m.held {
		if p.d == nil {
			continue
		}
		k := p.d.key()
		last[k] = append(last[k], *p.d.text()...)
		from[k] = append(from[k], i)
	}
	first := len(m.held)
	for k, text := range last {
		tail := m.prefixAtEnd(text)
		if tail == 0 {
			continue
		}
		// Walk back to the part in which that tail begins.
		for j := len(from[k]) - 1; j >= 0; j-- {
			i := from[k][j]
			first = min(first, i)
			tail -= len(*m.held[i].d.text())
			if tail <= 0 {
				break
			}
		}
	}
	return len(m.held) - first
}

// prefixAtEnd is the length of the longest end of text that begins a secret.
func (m *Masker) prefixAtEnd(text []byte) int {
	best := 0
	for _, n := range m.needles {
		for l := min(len(n)-1, len(text)); l > best; l-- {
			if bytes.HasSuffix(text, n[:l]) {
				best = l
				break
			}
		}
	}
	return best
}
