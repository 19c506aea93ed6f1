package git

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

const settleTimeout = 30 * time.Second

// pushOptions is the capability by which a push carries words for the host's
// hooks. On some hosts these merge, or make a repository public: they do not pass.
const pushOptions = "push-options"

// passCapabilities are those of a client that the host hears of (gitprotocol-capabilities(5)).
var passCapabilities = []string{
	"report-status", "report-status-v2", "side-band", "side-band-64k", "delete-refs", "ofs-delta", "atomic", "quiet", "object-format", "agent", "session-id",
}

const resultType = "application/x-" + receivePack + "-result"

// push reads the commands, lets the session's branch pass and answers for the rest.
func (e *exchange) push(ctx context.Context) error {
	if err := e.wantType(receivePack); err != nil {
		return err
	}
	body, err := e.unpacked()
	if err != nil {
		return err
	}
	p, err := gitwire.ReadPush(body)
	if err != nil {
		return pushReadError(err)
	}
	if p.Probe {
		// Before a large push git asks with an empty one; the push itself will be judged.
		e.answerHead()
		e.begin()
		e.outcome = "probe"
		return nil
	}
	if p.Signed {
		return e.report(p, body, &gitwire.Report{Unpack: "hearth: signed pushes do not pass this door; push without --signed"})
	}
	if p.Has(pushOptions) && len(p.Options) > 0 {
		return e.report(p, body, refuseAll(p, "push options do not pass this door; push without --push-option and push.pushOption"))
	}
	select {
	case e.pushing <- struct{}{}:
		defer func() { <-e.pushing }()
	case <-ctx.Done():
		return fmt.Errorf("wait for another push: %w", context.Cause(ctx))
	}
	known, err := e.cfg.Known(ctx)
	if err != nil {
		return e.report(p, body, refuseAll(p, "the session cannot be asked now; try again"), err)
	}
	v := judge(p, e.cfg.Branch, known)
	if v.pass == nil {
		return e.report(p, body, v.report)
	}
	return e.forward(ctx, p, v, body)
}

// unpacked is the request's body without its encoding.
func (e *exchange) unpacked() (io.Reader, error) {
	raw := e.body(e.cfg.Limits.PushBytes)
	switch e.r.Header.Get("Content-Encoding") {
	case "", "identity":
		return bufio.NewReaderSize(raw, 64<<10), nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, fault.Wrap(err, fault.InvalidInput, "The push is not well-formed gzip.")
		}
		return bufio.NewReaderSize(&limited{r: z, left: e.cfg.Limits.PushBytes}, 64<<10), nil
	}
	return nil, fault.New(fault.InvalidInput, "This content encoding does not pass.")
}

// limited bounds what a small body unpacks to.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

func pushReadError(err error) error {
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, gitwire.ErrTooLong):
		return fault.Wrap(err, fault.DoorTooLarge, "The push names more refs than may pass at once.")
	case errors.Is(err, gitwire.ErrFormat):
		return fault.Wrap(err, fault.InvalidInput, "The push cannot be read.")
	}
	return fault.Wrap(err, fault.InvalidInput, "The push broke off.")
}

// verdict is what becomes of the commands of a push.
type verdict struct {
	pass   *gitwire.Command // may go to the host; nil: none
	report *gitwire.Report  // refusals of the others, in order; the one that passes has no entry
	at     int              // where the passing command belongs in the report
}

// judge applies the rules for one session's branch. known is empty when the branch is not on the remote.
func judge(p *gitwire.Push, branch, known string) verdict {
	v := verdict{report: &gitwire.Report{Unpack: "ok"}}
	for i := range p.Commands {
		c := &p.Commands[i]
		reason := refusal(p, *c, branch, known)
		if reason == "" && v.pass != nil {
			reason = "hearth: the branch is named twice in this push"
		}
		if reason == "" {
			v.pass, v.at = c, len(v.report.Refs)
			continue
		}
		v.report.Refs = append(v.report.Refs, gitwire.RefStatus{Ref: c.Ref, Reason: reason})
	}
	if v.pass != nil && len(v.report.Refs) > 0 && p.Has("atomic") {
		v.report.Refs = append(v.report.Refs[:v.at:v.at], append([]gitwire.RefStatus{
			{Ref: v.pass.Ref, Reason: "hearth: atomic push, and another ref was refused"},
		}, v.report.Refs[v.at:]...)...)
		v.pass = nil
	}
	return v
}

func refusal(p *gitwire.Push, c gitwire.Command, branch, known string) string {
	old := c.Old
	if gitwire.IsZero(old) {
		old = ""
	}
	switch {
	case c.Ref != "refs/heads/"+branch:
		return "hearth: this sandbox may push only " + branch
	case gitwire.IsZero(c.New):
		return "hearth: the session's branch may not be deleted"
	case known != "" && gitwire.FormatOf(known) != p.Format:
		return "hearth: the repository's object format is " + gitwire.FormatOf(known)
	case old == known:
		return ""
	case known == "":
		return "hearth: somebody else made this branch; it is not this session's to move"
	case old == "":
		return "hearth: the branch was removed on the remote by somebody else"
	}
	return "hearth: somebody else moved this branch; the session still knows it at " + known[:min(12, len(known))]
}

func refuseAll(p *gitwire.Push, reason string) *gitwire.Report {
	rep := &gitwire.Report{Unpack: "ok"}
	for _, c := range p.Commands {
		rep.Refs = append(rep.Refs, gitwire.RefStatus{Ref: c.Ref, Reason: "hearth: " + reason})
	}
	return rep
}

// full is the whole report, with what became of the command that passed.
func (v verdict) full(s gitwire.RefStatus, unpack string) *gitwire.Report {
	rep := &gitwire.Report{Unpack: unpack}
	rep.Refs = append(rep.Refs, v.report.Refs[:v.at]...)
	rep.Refs = append(rep.Refs, s)
	rep.Refs = append(rep.Refs, v.report.Refs[v.at:]...)
	return rep
}

func (v verdict) refused(reason string) *gitwire.Report {
	return v.full(gitwire.RefStatus{Ref: v.pass.Ref, Reason: "hearth: " + reason}, "ok")
}

func (e *exchange) answerHead() {
	e.w.Header().Set("Content-Type", resultType)
	e.w.Header().Set("Cache-Control", "no-cache")
}

// report ends the push with a report, after the rest of it has come in. Causes go to the log.
func (e *exchange) report(p *gitwire.Push, body io.Reader, rep *gitwire.Report, causes ...error) error {
	if err := errors.Join(causes...); err != nil {
		e.cfg.Log.WarnContext(e.r.Context(), "push refused for a fault", "error", err)
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return pushReadError(err)
	}
	if e.outcome == "" {
		e.outcome = "refused"
	}
	e.answerHead()
	e.begin()
	_, err := e.Write(encodeReport(p, rep))
	return err
}

// encodeReport wraps the report as the client asked for it.
func encodeReport(p *gitwire.Push, rep *gitwire.Report) []byte {
	if !p.Has("report-status") && !p.Has("report-status-v2") {
		// Such a client can only be told in words.
		var out []byte
		for _, s := range rep.Refs {
			if !s.OK {
				out = append(out, s.Ref+": "+s.Reason+"\n"...)
			}
		}
		if p.Has("side-band-64k") || p.Has("side-band") {
			out = gitwire.AppendBand(nil, 2, out, !p.Has("side-band-64k"))
			return gitwire.AppendFlush(out)
		}
		return nil
	}
	plain := rep.Append(nil)
	if !p.Has("side-band-64k") && !p.Has("side-band") {
		return plain
	}
	return gitwire.AppendFlush(gitwire.AppendBand(nil, 1, plain, !p.Has("side-band-64k")))
}

// forward sends the one allowed command and the pack, and tells what became of it.
func (e *exchange) forward(ctx context.Context, p *gitwire.Push, v verdict, body io.Reader) error {
	c := *v.pass
	old := c.Old
	if gitwire.IsZero(old) {
		old = ""
	}
	pack, done, reason, err := e.aboveFloor(ctx, old, c.New, body)
	defer done()
	if err != nil || reason != "" {
		return e.report(p, body, v.refused(reason), err)
	}
	if e.cfg.Moving != nil {
		if err := e.cfg.Moving(ctx, old, c.New); err != nil {
			return e.report(p, pack, v.refused("the push could not be noted; try again"), err)
		}
	}
	got := e.relay(ctx, p, v, pack)
	if got.status.OK {
		// Once the host has the commit it counts, whether or not the sandbox is still there.
		if err := e.cfg.Moved(context.WithoutCancel(ctx), old, got.id(c.New)); err != nil {
			e.cfg.Log.ErrorContext(ctx, "a push was accepted and could not be recorded", "old", old, "new", c.New, "error", err)
			got.status = gitwire.RefStatus{Ref: c.Ref, Reason: "hearth: the remote has it, but that could not be recorded"}
		}
		e.outcome = "accepted"
	}
	return e.report(p, pack, v.full(got.status, got.unpack), got.err)
}

// relayed is what became of the command that passed.
type relayed struct {
	status gitwire.RefStatus
	unpack string
	err    error // for the log
}

func (r relayed) id(asked string) string {
	if id := r.status.NewID(); id != "" {
		return id
	}
	return asked
}

// relay sends the push on and reads the host's report. The host's words go to the
// sandbox at once, the report does not.
func (e *exchange) relay(ctx context.Context, p *gitwire.Push, v verdict, pack io.Reader) relayed {
	c := *v.pass
	asked := gitwire.Push{Shallow: p.Shallow, Commands: []gitwire.Command{c}}
	for _, name := range p.Capabilities {
		if bare, _, _ := strings.Cut(name, "="); slices.Contains(passCapabilities, bare) {
			asked.Capabilities = append(asked.Capabilities, name)
		}
	}
	head := asked.Append(nil)
	fail := func(err error) relayed {
		return relayed{
			status: gitwire.RefStatus{Ref: c.Ref, Reason: "hearth: " + door.Printable(fault.From(err).Sentence(), 400)},
			unpack: "ok", err: err,
		}
	}
	_ = e.rc.EnableFullDuplex() // the host's words come while the pack still goes out
	out, length, err := sized(io.MultiReader(bytes.NewReader(head), pack))
	if err != nil {
		return fail(pushReadError(err))
	}
	resp, err := e.send(ctx, http.MethodPost, "/"+receivePack, out, length, false)
	if err != nil {
		return e.settle(ctx, c, fail(err))
	}
	defer resp.Body.Close()
	if !p.Has("report-status") && !p.Has("report-status-v2") {
		_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, gitwire.MaxReport))
		return e.settle(ctx, c, fail(errors.Join(errors.New("the client wants no report"), err)))
	}
	var report bytes.Buffer
	if p.Has("side-band-64k") || p.Has("side-band") {
		err = gitwire.Demux(resp.Body, &boundedBuffer{&report}, func(words []byte) error {
			e.answerHead()
			e.begin()
			_, err := e.Write(gitwire.AppendBand(nil, 2, words, !p.Has("side-band-64k")))
			return err
		})
	} else {
		_, err = io.Copy(&boundedBuffer{&report}, resp.Body)
	}
	if text, ok := gitwire.AsRemote(err); ok {
		err = fault.Wrap(err, fault.PushRefused, "The git host says: %s", door.Printable(text, 400))
	}
	rep, rerr := gitwire.ReadReport(&report)
	if rerr != nil {
		return e.settle(ctx, c, fail(errors.Join(err, rerr)))
	}
	got := relayed{unpack: rep.Unpack, status: gitwire.RefStatus{Ref: c.Ref, Reason: "hearth: the git host did not say what became of it"}}
	for _, s := range rep.Refs {
		if s.Ref == c.Ref {
			got.status = s
		}
	}
	return got
}

// sized reads up to 1 MiB ahead, so that a small push has a Content-Length, as
// git's own has: some hosts want no chunked bodies. -1 is a length not known.
func sized(r io.Reader) (io.Reader, int64, error) {
	const most = 1 << 20
	var b bytes.Buffer
	n, err := io.CopyN(&b, r, most)
	switch {
	case errors.Is(err, io.EOF):
		return bytes.NewReader(b.Bytes()), n, nil
	case err != nil:
		return nil, 0, err
	}
	return io.MultiReader(&b, r), -1, nil
}

type boundedBuffer struct{ b *bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.b.Len()+len(p) > gitwire.MaxReport {
		return 0, gitwire.ErrTooLong
	}
	return b.b.Write(p)
}

// settle asks the host where the branch is, when its answer to the push is lost.
func (e *exchange) settle(ctx context.Context, c gitwire.Command, lost relayed) relayed {
	// The sandbox may have gone with the answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	resp, err := e.send(ctx, http.MethodGet, "/info/refs?service="+receivePack, nil, -1, false)
	if err != nil {
		lost.err = errors.Join(lost.err, err)
		return lost
	}
	defer resp.Body.Close()
	a, err := gitwire.ReadAdvertisement(resp.Body, receivePack)
	if err != nil {
		lost.err = errors.Join(lost.err, err)
		return lost
	}
	if a.Refs[c.Ref] == c.New {
		return relayed{status: gitwire.RefStatus{Ref: c.Ref, OK: true}, unpack: "ok", err: lost.err}
	}
	return lost
}

// aboveFloor makes sure that nobody else's commits are left out. A pack that must
// be looked at is kept in a file meanwhile. reason is a refusal for the sandbox.
func (e *exchange) aboveFloor(ctx context.Context, old, candidate string, body io.Reader) (pack io.Reader, done func(), reason string, err error) {
	done = func() {}
	if e.cfg.Floor == nil || old == "" {
		return body, done, "", nil
	}
	floor, err := e.cfg.Floor(ctx)
	if err != nil {
		return body, done, "the session cannot be asked now; try again", err
	}
	if floor == "" {
		return body, done, "", nil
	}
	if e.cfg.Descends == nil {
		return body, done, "this branch has other people's commits and cannot be pushed from here; it is delivered when the turn ends", nil
	}
	f, err := os.CreateTemp(e.cfg.Dir, "hearth-push-")
	if err != nil {
		return body, done, "the server cannot keep the push; try again", err
	}
	done = func() { f.Close() }
	if err := os.Remove(f.Name()); err != nil { // its name is not needed
		return body, done, "the server cannot keep the push; try again", err
	}
	if _, err := io.Copy(f, body); err != nil {
		return body, done, "the push could not be read", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return body, done, "the server cannot keep the push; try again", err
	}
	ok, err := e.cfg.Descends(ctx, floor, candidate, f)
	switch {
	case err != nil:
		return body, done, door.Printable(fault.From(err).Sentence(), 300), err
	case !ok:
		return body, done, "this would remove other people's commits from the branch; pull them in first", nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return body, done, "the server cannot keep the push; try again", err
	}
	return f, done, "", nil
}
