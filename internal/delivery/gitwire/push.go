package gitwire

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
)

// Object formats.
const (
	SHA1   = "sha1"
	SHA256 = "sha256"
)

// IDLen is the number of hex digits of an object id, 0 for an unknown format.
func IDLen(format string) int {
	switch format {
	case SHA1:
		return 40
	case SHA256:
		return 64
	}
	return 0
}

// FormatOf is the object format that an id belongs to, empty when it is none.
// Ids are lower case hex.
func FormatOf(id string) string {
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	switch len(id) {
	case 40:
		return SHA1
	case 64:
		return SHA256
	}
	return ""
}

// IsZero says whether id is the id that stands for "no object".
func IsZero(id string) bool { return id != "" && strings.Trim(id, "0") == "" }

// Zero is the id that stands for "no object".
func Zero(format string) string { return strings.Repeat("0", IDLen(format)) }

// Command asks to move one ref. Old or New is zero for a ref that is made or removed.
type Command struct {
	Old, New, Ref string
}

// Push is a push up to its pack.
type Push struct {
	Shallow      []string // commits where the sender's history ends
	Commands     []Command
	Capabilities []string
	Options      []string
	Format       string
	// Signed is set for a push certificate; nothing else is read of it.
	Signed bool
	// Probe is set for the lone flush with which a client asks whether it may send.
	Probe bool
}

// MaxPush bounds a push up to its pack, in bytes: some 20,000 refs.
const MaxPush = 2 << 20

// Has says whether the client has a capability, with or without a value: git's
// own receive-pack looks at the name only.
func (p *Push) Has(name string) bool {
	return slices.ContainsFunc(p.Capabilities, func(c string) bool { return isCapability(c, name) })
}

func isCapability(c, name string) bool {
	rest, ok := strings.CutPrefix(c, name)
	return ok && (rest == "" || rest[0] == '=')
}

// ReadPush reads a request to git-receive-pack up to the pack (gitprotocol-pack(5),
// "Reference Update Request and Packfile Transfer"). r stands at the pack afterwards.
func ReadPush(r io.Reader) (*Push, error) {
	in := NewReader(r, MaxPush)
	p := &Push{Format: SHA1}
	for {
		kind, line, err := in.Next()
		if err != nil {
			return nil, unexpected(err)
		}
		if kind == Flush {
			break
		}
		if kind != Data {
			return nil, malformed("special packet among the commands")
		}
		if err := p.line(line); err != nil {
			return nil, err
		}
		if p.Signed {
			return p, nil
		}
	}
	if len(p.Commands) == 0 {
		if len(p.Shallow) > 0 {
			return nil, malformed("shallow lines without a command")
		}
		p.Probe = true
		return p, nil
	}
	for _, id := range p.Shallow {
		if FormatOf(id) != p.Format {
			return nil, malformed("shallow id %.80q", id)
		}
	}
	if !p.Has("push-options") {
		return p, nil
	}
	for {
		kind, line, err := in.Next()
		if err != nil {
			return nil, unexpected(err)
		}
		if kind == Flush {
			return p, nil
		}
		if kind != Data {
			return nil, malformed("special packet among the options")
		}
		p.Options = append(p.Options, string(bytes.TrimSuffix(line, []byte("\n"))))
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (p *Push) line(line []byte) error {
	first := len(p.Commands) == 0
	text, caps, hasCaps := strings.Cut(string(line), "\x00")
	text = strings.TrimSuffix(text, "\n")
	if id, ok := strings.CutPrefix(text, "shallow "); ok {
		if !first || hasCaps || FormatOf(id) == "" {
			return malformed("shallow line %.80q", text)
		}
		p.Shallow = append(p.Shallow, id)
		return nil
	}
	if text == "push-cert" && first {
		p.Signed = true
		p.Capabilities = strings.Fields(caps)
		return nil
	}
	if hasCaps != first {
		return malformed("capabilities belong on the first command")
	}
	if first {
		p.Capabilities = strings.Fields(caps)
		for _, c := range p.Capabilities {
			if f, ok := strings.CutPrefix(c, "object-format="); ok {
				p.Format = f
			}
		}
		if IDLen(p.Format) == 0 {
			return malformed("object format %.20q", p.Format)
		}
	}
	n := IDLen(p.Format)
	if len(text) < 2*n+3 || text[n] != ' ' || text[2*n+1] != ' ' {
		return malformed("command %.200q", text)
	}
	c := Command{Old: text[:n], New: text[n+1 : 2*n+1], Ref: text[2*n+2:]}
	if FormatOf(c.Old) != p.Format || FormatOf(c.New) != p.Format {
		return malformed("object ids in command %.200q", text)
	}
	if strings.ContainsAny(c.Ref, "\n\x00") {
		return malformed("ref in command %.200q", text)
	}
	p.Commands = append(p.Commands, c)
	return nil
}

// Append encodes the push up to its pack.
func (p *Push) Append(b []byte) []byte {
	for _, id := range p.Shallow {
		b = AppendLine(b, "shallow "+id)
	}
	for i, c := range p.Commands {
		line := c.Old + " " + c.New + " " + c.Ref
		if i == 0 {
			line += "\x00" + strings.Join(p.Capabilities, " ")
		}
		b = AppendLine(b, line)
	}
	b = AppendFlush(b)
	if p.Has("push-options") {
		for _, o := range p.Options {
			b = AppendLine(b, o)
		}
		b = AppendFlush(b)
	}
	return b
}
