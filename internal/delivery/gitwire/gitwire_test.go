package gitwire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/delivery/gitwire"
)

var (
	zero = strings.Repeat("0", 40)
	idA  = strings.Repeat("a", 40)
	idB  = strings.Repeat("b", 40)
)

func lines(l ...string) string {
	var b []byte
	for _, s := range l {
		if s == "0000" {
			b = gitwire.AppendFlush(b)
			continue
		}
		b = gitwire.AppendLine(b, s)
	}
	return string(b)
}

func TestReader(t *testing.T) {
	t.Parallel()
	in := "0006a\n" + "0000" + "0001" + "0002" + "0004" + "000Bfoobar\n" + "rest"
	r := strings.NewReader(in)
	pr := gitwire.NewReader(r, 0)
	type got struct {
		Kind gitwire.Kind
		Data string
	}
	var all []got
	for range 6 {
		k, d, err := pr.Next()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got{k, string(d)})
	}
	want := []got{{gitwire.Data, "a\n"}, {gitwire.Flush, ""}, {gitwire.Delim, ""}, {gitwire.ResponseEnd, ""}, {gitwire.Data, ""}, {gitwire.Data, "foobar\n"}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	rest, err := io.ReadAll(r)
	if err != nil || string(rest) != "rest" {
		t.Errorf("behind the lines is %q, %v", rest, err)
	}
}

func TestReaderErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in    string
		limit int64
		want  error
	}{
		{"", 0, io.EOF}, {"00", 0, io.ErrUnexpectedEOF}, {"0006a", 0, io.ErrUnexpectedEOF}, {"0008", 0, io.ErrUnexpectedEOF},
		{"0003", 0, gitwire.ErrFormat}, {"zzzz", 0, gitwire.ErrFormat}, {"fff1", 0, gitwire.ErrFormat}, {"-001", 0, gitwire.ErrFormat},
		{"0006a\n", 5, gitwire.ErrTooLong},
	} {
		if _, _, err := gitwire.NewReader(strings.NewReader(c.in), c.limit).Next(); !errors.Is(err, c.want) {
			t.Errorf("%q: error %v, want %v", c.in, err, c.want)
		}
	}
}

func TestReadPush(t *testing.T) {
	t.Parallel()
	in := lines("shallow "+idA, zero+" "+idA+" refs/heads/x\x00 report-status push-options atomic agent=git/2.39", idA+" "+idB+" refs/heads/y\n", "0000", "ci.skip", "two words", "0000") + "PACK"
	r := strings.NewReader(in)
	got, err := gitwire.ReadPush(r)
	if err != nil {
		t.Fatal(err)
	}
	want := &gitwire.Push{
		Shallow:      []string{idA},
		Commands:     []gitwire.Command{{Old: zero, New: idA, Ref: "refs/heads/x"}, {Old: idA, New: idB, Ref: "refs/heads/y"}},
		Capabilities: []string{"report-status", "push-options", "atomic", "agent=git/2.39"},
		Options:      []string{"ci.skip", "two words"}, Format: "sha1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("push (-want +got):\n%s", diff)
	}
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "PACK" {
		t.Errorf("behind the commands is %q, %v", rest, err)
	}
}

func TestReadReport(t *testing.T) {
	t.Parallel()
	in := lines("unpack ok\n", "ok refs/heads/x\n", "option old-oid "+idA+"\n", "option new-oid "+idB+"\n", "ng refs/heads/y pre-receive hook declined\n", "0000")
	got, err := gitwire.ReadReport(strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	want := &gitwire.Report{Unpack: "ok", Refs: []gitwire.RefStatus{
		{Ref: "refs/heads/x", OK: true, Options: []string{"old-oid " + idA, "new-oid " + idB}},
		{Ref: "refs/heads/y", Reason: "pre-receive hook declined"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if got.Refs[0].NewID() != idB {
		t.Errorf("new id %q", got.Refs[0].NewID())
	}
	if string(got.Append(nil)) != in {
		t.Errorf("written again it is %q", got.Append(nil))
	}
	for _, bad := range []string{"", "0000", lines("ok refs/heads/x", "0000"), lines("unpack ok", "what"), lines("unpack ok", "option x", "0000")} {
		if _, err := gitwire.ReadReport(strings.NewReader(bad)); err == nil {
			t.Errorf("report %q is taken", bad)
		}
	}
}

func TestDemux(t *testing.T) {
	t.Parallel()
	var out, words bytes.Buffer
	say := func(b []byte) error { words.Write(b); return nil }
	in := lines("\x02hello ", "\x01rep", "\x02world", "\x01ort", "0000")
	if err := gitwire.Demux(strings.NewReader(in), &out, say); err != nil {
		t.Fatal(err)
	}
	if out.String() != "report" || words.String() != "hello world" {
		t.Errorf("band 1 %q, band 2 %q", out.String(), words.String())
	}
	err := gitwire.Demux(strings.NewReader(lines("\x03out of disk\n", "0000")), &out, say)
	if text, ok := gitwire.AsRemote(err); !ok || text != "out of disk" {
		t.Errorf("band 3 gives %v", err)
	}
	for _, bad := range []string{"", lines("\x01x"), lines("\x07x", "0000"), "0004"} {
		if err := gitwire.Demux(strings.NewReader(bad), &out, say); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestReadAdvertisement(t *testing.T) {
	t.Parallel()
	in := lines("# service=git-receive-pack\n", "0000", idA+" refs/heads/main\x00report-status object-format=sha1 symref=HEAD:refs/heads/main\n", idB+" refs/tags/v1\n", idA+" refs/tags/v1^{}\n", idB+" .have\n", "0000")
	got, err := gitwire.ReadAdvertisement(strings.NewReader(in), "git-receive-pack")
	if err != nil {
		t.Fatal(err)
	}
	want := &gitwire.Advertisement{
		Refs: map[string]string{"refs/heads/main": idA, "refs/tags/v1": idB}, Head: "refs/heads/main", Format: "sha1",
		Capabilities: []string{"report-status", "object-format=sha1", "symref=HEAD:refs/heads/main"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("advertisement (-want +got):\n%s", diff)
	}
	_, err = gitwire.ReadAdvertisement(strings.NewReader(lines("ERR no such repository")), "x")
	if text, ok := gitwire.AsRemote(err); !ok || text != "no such repository" {
		t.Errorf("an error in words gives %v", err)
	}
	if _, err := gitwire.ReadAdvertisement(strings.NewReader("<html><body>login</body></html>"), "x"); !errors.Is(err, gitwire.ErrFormat) {
		t.Errorf("a web page gives %v", err)
	}
}

func TestCopyAdvertisement(t *testing.T) {
	t.Parallel()
	const service = "# service=git-receive-pack\n"
	big := idA + " refs/heads/" + strings.Repeat("x", 60_000) + "\n"
	for name, c := range map[string]struct{ in, want string }{
		"version 0": {lines(service, "0000", idA+" refs/heads/main\x00report-status push-options atomic agent=git/2\n", big, "0000"),
			lines(service, "0000", idA+" refs/heads/main\x00report-status atomic agent=git/2\n", big, "0000")},
		"version 1": {lines(service, "0000", "version 1\n", idA+" refs/heads/push-options\x00 push-options quiet\n", "0000"),
			lines(service, "0000", "version 1\n", idA+" refs/heads/push-options\x00quiet\n", "0000")},
		"empty": {lines(service, "0000", zero+" capabilities^{}\x00push-options", "0000"), lines(service, "0000", zero+" capabilities^{}\x00\n", "0000")},
		"with a value, beside its like": {lines(service, "0000", idA+" a\x00push-options=1 push-options-2 x-push-options\n", "0000"),
			lines(service, "0000", idA+" a\x00push-options-2 x-push-options\n", "0000")},
		"version 2": {lines(service, "0000", "version 2\n", "agent=x\n", "push-options\n", "push-options=a\n", "ls-refs\n", "0000"),
			lines(service, "0000", "version 2\n", "agent=x\n", "ls-refs\n", "0000")},
		"an error in words": {lines(service, "0000", "ERR go away\n"), lines(service, "0000", "ERR go away\n")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := gitwire.CopyAdvertisement(&out, strings.NewReader(c.in), "push-options"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, out.String()); diff != "" {
				t.Errorf("advertisement (-want +got):\n%s", diff)
			}
		})
	}
	for _, bad := range []string{"<html>", "0001", lines(service)[:10]} {
		if err := gitwire.CopyAdvertisement(io.Discard, strings.NewReader(bad), "x"); err == nil {
			t.Errorf("%q is passed", bad)
		}
	}
}

func FuzzReadPush(f *testing.F) {
	f.Add([]byte(lines(zero+" "+idA+" refs/heads/x\x00report-status push-options", "0000", "o", "0000")))
	f.Add([]byte(lines("shallow "+idA, zero+" "+strings.Repeat("c", 64)+" refs/heads/x\x00object-format=sha256", "0000")))
	f.Add([]byte("0000"))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := gitwire.ReadPush(bytes.NewReader(in))
		if err != nil || p.Signed || p.Probe {
			return
		}
		// What was understood means the same when it is written again.
		again, err := gitwire.ReadPush(bytes.NewReader(p.Append(nil)))
		if err != nil {
			t.Fatalf("%q written again: %v", in, err)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Fatalf("%q changes (-first +again):\n%s", in, diff)
		}
		for _, c := range p.Commands {
			if len(c.Old) != gitwire.IDLen(p.Format) || len(c.New) != len(c.Old) || strings.ContainsAny(c.Ref, "\x00\n") || c.Ref == "" {
				t.Fatalf("command %+v", c)
			}
		}
	})
}

func FuzzReadAnswers(f *testing.F) {
	f.Add([]byte(lines("unpack ok", "ok refs/heads/x", "0000")))
	f.Add([]byte(lines("\x01"+lines("unpack ok", "0000"), "\x02words", "0000")))
	f.Add([]byte(lines("# service=s\n", "0000", idA+" HEAD\x00symref=HEAD:refs/heads/main", "0000")))
	f.Add([]byte(lines("version 2", "ls-refs=unborn", "0000", "unborn HEAD symref-target:refs/heads/main", "0000")))
	f.Fuzz(func(t *testing.T, in []byte) {
		_, _ = gitwire.ReadReport(bytes.NewReader(in))
		var out bytes.Buffer
		_ = gitwire.Demux(bytes.NewReader(in), &out, func([]byte) error { return nil })
		var copied bytes.Buffer
		if gitwire.CopyAdvertisement(&copied, bytes.NewReader(in), "push-options") == nil {
			if a, err := gitwire.ReadAdvertisement(&copied, "s"); err == nil {
				for _, c := range a.Capabilities {
					if c == "push-options" || strings.HasPrefix(c, "push-options=") {
						t.Fatalf("capability %q was passed", c)
					}
				}
			}
		}
		r := bytes.NewReader(in)
		if a, err := gitwire.ReadAdvertisement(r, "s"); err == nil {
			_ = a.ReadLsRefs(r)
			for name, id := range a.Refs {
				if gitwire.FormatOf(id) == "" || name == "" {
					t.Fatalf("ref %q is %q", name, id)
				}
			}
		}
	})
}
