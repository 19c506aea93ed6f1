package gitwire

import (
	"errors"
	"io"
	"slices"
	"strings"
)

// Advertisement is what a remote says of its refs.
type Advertisement struct {
	Version      int               // 0, 1 or 2
	Refs         map[string]string // name → id, without peeled tags and .have lines
	Capabilities []string
	Head         string // ref that HEAD names, empty when it is not told
	Format       string // object format
}

// MaxAdvertisement bounds an advertisement in bytes: some 400,000 refs.
const MaxAdvertisement = 64 << 20

// ReadAdvertisement reads the answer to info/refs?service=… (gitprotocol-http(5),
// "Smart Server Response"). For version 2 only the capabilities are there;
// the refs come from ls-refs.
func ReadAdvertisement(r io.Reader, service string) (*Advertisement, error) {
	in := NewReader(r, MaxAdvertisement)
	a := &Advertisement{Refs: map[string]string{}, Format: SHA1}
	kind, data, err := in.Next()
	if err != nil {
		return nil, unexpected(err)
	}
	if kind == Data && strings.TrimSuffix(string(data), "\n") == "# service="+service {
		if kind, _, err = in.Next(); err != nil {
			return nil, unexpected(err)
		}
		if kind != Flush {
			return nil, malformed("no flush after the service")
		}
		if kind, data, err = in.Next(); err != nil {
			return nil, unexpected(err)
		}
	}
	first := true
	for ; kind != Flush; kind, data, err = in.Next() {
		if err != nil {
			return nil, unexpected(err)
		}
		if kind != Data {
			return nil, malformed("special packet in the advertisement")
		}
		line := strings.TrimSuffix(string(data), "\n")
		if t, ok := strings.CutPrefix(line, "ERR "); ok {
			return nil, &ErrRemote{Text: t}
		}
		if first && a.Version == 0 {
			switch line {
			case "version 1":
				a.Version = 1
				continue
			case "version 2":
				a.Version = 2
				continue
			}
		}
		if a.Version == 2 {
			a.capability(line)
			a.Capabilities = append(a.Capabilities, line)
			continue
		}
		if err := a.line(line, first); err != nil {
			return nil, err
		}
		first = false
	}
	return a, nil
}

// CopyAdvertisement passes an advertisement of any version on as it is, but for
// one capability. What follows the capabilities is not looked at.
func CopyAdvertisement(w io.Writer, r io.Reader, without string) error {
	in := NewReader(r, 0)
	v2 := false
	for {
		kind, data, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out, last := []byte(nil), false
		switch kind {
		case Flush: // behind the service, or at the end of version 2
			out, last = AppendFlush(nil), v2
		case Data:
			line := string(data)
			v2 = v2 || line == "version 2\n" || line == "version 2"
			ref, caps, found := strings.Cut(line, "\x00")
			if found {
				last = true
				kept := slices.DeleteFunc(strings.Fields(caps), func(c string) bool { return isCapability(c, without) })
				line = ref + "\x00" + strings.Join(kept, " ") + "\n"
			}
			if v2 && isCapability(strings.TrimSuffix(line, "\n"), without) {
				continue
			}
			if len(line) > MaxData {
				return ErrTooLong
			}
			out = AppendLine(nil, line)
		default:
			return malformed("special packet in the advertisement")
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
		if last {
			_, err := io.Copy(w, r)
			return err
		}
	}
}

func (a *Advertisement) line(line string, first bool) error {
	if first {
		var caps string
		line, caps, _ = strings.Cut(line, "\x00")
		for _, c := range strings.Fields(caps) {
			a.capability(c)
			a.Capabilities = append(a.Capabilities, c)
		}
	}
	if strings.HasPrefix(line, "shallow ") {
		return nil
	}
	id, name, ok := strings.Cut(line, " ")
	if !ok || FormatOf(id) == "" || name == "" {
		return malformed("advertised ref %.80q", line)
	}
	a.add(id, name)
	return nil
}

func (a *Advertisement) capability(c string) {
	if v, ok := strings.CutPrefix(c, "symref=HEAD:"); ok {
		a.Head = v
	}
	if v, ok := strings.CutPrefix(c, "object-format="); ok && IDLen(v) > 0 {
		a.Format = v
	}
}

func (a *Advertisement) add(id, name string) {
	if IsZero(id) || name == ".have" || strings.HasSuffix(name, "^{}") {
		return
	}
	a.Refs[name] = id
}

// Can says whether a version 2 remote has a command, with a feature unless that is empty.
func (a *Advertisement) Can(command, feature string) bool {
	for _, c := range a.Capabilities {
		name, features, _ := strings.Cut(c, "=")
		if name != command {
			continue
		}
		if feature == "" {
			return true
		}
		for _, f := range strings.Fields(features) {
			if f == feature {
				return true
			}
		}
	}
	return false
}

// AppendLsRefs encodes a version 2 request for refs with these prefixes
// (gitprotocol-v2(5), "ls-refs"), to a remote that advertised a.
func (a *Advertisement) AppendLsRefs(b []byte, prefixes ...string) []byte {
	b = AppendLine(b, "command=ls-refs\n")
	if a.Format != SHA1 {
		b = AppendLine(b, "object-format="+a.Format+"\n")
	}
	b = append(b, "0001"...)
	b = AppendLine(b, "symrefs\n")
	if a.Can("ls-refs", "unborn") {
		b = AppendLine(b, "unborn\n")
	}
	for _, p := range prefixes {
		b = AppendLine(b, "ref-prefix "+p+"\n")
	}
	return AppendFlush(b)
}

// ReadLsRefs reads the answer to [Advertisement.AppendLsRefs] into a.
func (a *Advertisement) ReadLsRefs(r io.Reader) error {
	in := NewReader(r, MaxAdvertisement)
	for {
		kind, data, err := in.Next()
		if err != nil {
			return unexpected(err)
		}
		if kind == Flush {
			return nil
		}
		if kind != Data {
			return malformed("special packet among the refs")
		}
		line := strings.TrimSuffix(string(data), "\n")
		if t, ok := strings.CutPrefix(line, "ERR "); ok {
			return &ErrRemote{Text: t}
		}
		words := strings.Split(line, " ")
		if len(words) < 2 || words[0] != "unborn" && FormatOf(words[0]) == "" {
			return malformed("ref %.80q", line)
		}
		if words[1] == "HEAD" {
			for _, w := range words[2:] {
				if t, ok := strings.CutPrefix(w, "symref-target:"); ok {
					a.Head = t
				}
			}
		}
		if words[0] != "unborn" {
			a.add(words[0], words[1])
		}
	}
}
