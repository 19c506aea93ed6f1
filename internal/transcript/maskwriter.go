package transcript

import (
	"io"

	"github.com/hearthd/hearth/internal/secret"
)

// MaskWriter passes bytes on with known secrets replaced, as [Masker] does in parts.
// It holds back no more than may be the beginning of a secret. Close gives the
// rest; it does not close what it writes to. It is not for concurrent use.
type MaskWriter struct {
	w      io.Writer
	text   *secret.Stream // nil: there is nothing to look for
	held   []byte
	at     int64 // offset of held
	masked int64
}

// NewMaskWriter looks for these secrets; those shorter than [secret.MinBytes] are left out.
func NewMaskWriter(secrets [][]byte, w io.Writer) *MaskWriter {
	m := &MaskWriter{w: w}
	if f := secret.NewFinder(secret.Forms(secrets)); !f.Empty() {
		m.text = f.Stream()
	}
	return m
}

// Masked is how many places were masked so far.
func (m *MaskWriter) Masked() int64 { return m.masked }

// Write takes the next bytes.
func (m *MaskWriter) Write(p []byte) (int, error) {
	if m.text == nil {
		return m.w.Write(p)
	}
	m.text.Write(p)
	m.held = append(m.held, p...)
	return len(p), m.settle(m.text.Settled())
}

// Close gives what is held back.
func (m *MaskWriter) Close() error {
	if m.text == nil {
		return nil
	}
	return m.settle(m.text.Size())
}

// settle gives what is before an offset: no secret begins there that is yet to be found.
func (m *MaskWriter) settle(upTo int64) error {
	for _, f := range m.text.Found() {
		if f.Start >= upTo {
			break
		}
		if f.Start >= m.at { // else it goes on, and was masked
			if err := m.give(f.Start); err != nil {
				return err
			}
			m.masked++
			if _, err := io.WriteString(m.w, Mask); err != nil {
				return err
			}
		}
		m.drop(min(f.End, upTo))
	}
	m.text.Forget(m.at)
	return m.give(upTo)
}

func (m *MaskWriter) give(upTo int64) error {
	if upTo <= m.at {
		return nil
	}
	_, err := m.w.Write(m.held[:upTo-m.at])
	m.drop(upTo)
	return err
}

func (m *MaskWriter) drop(upTo int64) {
	if upTo > m.at {
		m.held = m.held[:copy(m.held, m.held[upTo-m.at:])]
		m.at = upTo
	}
}
