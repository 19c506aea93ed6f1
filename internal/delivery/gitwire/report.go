package gitwire

import (
	"errors"
	"io"
	"strings"
)

// RefStatus is what became of one command of a push.
type RefStatus struct {
	Ref     string
	OK      bool
	Reason  string   // words, when not OK
	Options []string // report-status-v2, as they came
}

// Report answers a push (gitprotocol-pack(5), "Report Status").
type Report struct {
	Unpack string // "ok" or an error
	Refs   []RefStatus
}

// MaxReport bounds a report in bytes.
const MaxReport = 8 << 20

// NewID is the id that the ref got, if the remote says that it is another than was asked for.
func (s RefStatus) NewID() string {
	for _, o := range s.Options {
		if id, ok := strings.CutPrefix(o, "new-oid "); ok && FormatOf(id) != "" {
			return id
		}
	}
	return ""
}

// ReadReport reads a report, without side bands, up to its flush.
func ReadReport(r io.Reader) (*Report, error) {
	in := NewReader(r, MaxReport)
	rep := &Report{}
	for {
		kind, data, err := in.Next()
		if err != nil {
			return nil, unexpected(err)
		}
		if kind == Flush {
			break
		}
		if kind != Data {
			return nil, malformed("special packet in the report")
		}
		line := strings.TrimSuffix(string(data), "\n")
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case rep.Unpack == "":
			if word != "unpack" || rest == "" {
				return nil, malformed("report begins with %.80q", line)
			}
			rep.Unpack = rest
		case word == "ok":
			rep.Refs = append(rep.Refs, RefStatus{Ref: rest, OK: true})
		case word == "ng":
			ref, reason, _ := strings.Cut(rest, " ")
			rep.Refs = append(rep.Refs, RefStatus{Ref: ref, Reason: reason})
		case word == "option" && len(rep.Refs) > 0:
			s := &rep.Refs[len(rep.Refs)-1]
			s.Options = append(s.Options, rest)
		default:
			return nil, malformed("report line %.80q", line)
		}
	}
	if rep.Unpack == "" {
		return nil, malformed("empty report")
	}
	return rep, nil
}

// Append encodes the report, without side bands.
func (r *Report) Append(b []byte) []byte {
	b = AppendLine(b, cut("unpack "+r.Unpack)+"\n")
	for _, s := range r.Refs {
		if !s.OK {
			b = AppendLine(b, cut("ng "+s.Ref+" "+s.Reason)+"\n")
			continue
		}
		b = AppendLine(b, cut("ok "+s.Ref)+"\n")
		for _, o := range s.Options {
			b = AppendLine(b, cut("option "+o)+"\n")
		}
	}
	return AppendFlush(b)
}

func cut(s string) string { return s[:min(len(s), MaxData-1)] }

// ErrRemote is a fatal error that the other side sent in words.
type ErrRemote struct{ Text string }

// Error gives the other side's words.
func (e *ErrRemote) Error() string { return "remote error: " + e.Text }

// Demux reads side bands up to the flush: band 1 goes to out, band 2 to words.
// A message on band 3 is an [*ErrRemote].
func Demux(r io.Reader, out io.Writer, words func([]byte) error) error {
	in := NewReader(r, 0)
	for {
		kind, data, err := in.Next()
		if err != nil {
			return unexpected(err)
		}
		if kind == Flush {
			return nil
		}
		if kind != Data || len(data) == 0 {
			return malformed("empty line among side bands")
		}
		switch data[0] {
		case 1:
			_, err = out.Write(data[1:])
		case 2:
			err = words(data[1:])
		case 3:
			return &ErrRemote{Text: strings.TrimSpace(string(data[1:]))}
		default:
			if t, ok := strings.CutPrefix(string(data), "ERR "); ok {
				return &ErrRemote{Text: strings.TrimSpace(t)}
			}
			return malformed("side band %d", data[0])
		}
		if err != nil {
			return err
		}
	}
}

// AsRemote gives the words of an [*ErrRemote] in err.
func AsRemote(err error) (string, bool) {
	var e *ErrRemote
	if errors.As(err, &e) {
		return e.Text, true
	}
	return "", false
}
