package recorder_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthd/hearth/internal/blob"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/recorder"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

const canary = "sk-CANARY-0123456789abcdefghij"

// guest is a driver with blobs.
type guest struct {
	records []driverapi.Record
	blob    func(ctx context.Context, id string, w io.Writer) error
	hold    <-chan struct{} // before the end record
	before  func(n int64)   // is called before each part is told of
	stuck   bool            // it does not answer what is done
	heard   chan<- struct{} // something is done

	mu    sync.Mutex
	done  []string
	files map[string]bool // blobs that it keeps: from when it tells of one until it is done
}

// left are the blobs that it still keeps.
func (g *guest) left() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.files))
}

// keep writes the blob that a part tells of.
func (g *guest) keep(part json.RawMessage) {
	var p struct {
		Type string `json:"type"`
		Data struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if json.Unmarshal(part, &p) != nil || p.Type != "data-blob" || p.Data.ID == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.files == nil {
		g.files = map[string]bool{}
	}
	g.files[p.Data.ID] = true
}

func (g *guest) Log(ctx context.Context, _ string, after int64, fn func(driverapi.Record) error) error {
	for _, r := range g.records {
		if r.Part != nil && r.N <= after || r.Part == nil && r.N < after {
			continue
		}
		if g.before != nil && r.Part != nil {
			g.before(r.N)
		}
		g.keep(r.Part)
		if r.End != nil && g.hold != nil {
			select {
			case <-g.hold:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	return nil
}

func (g *guest) Blob(ctx context.Context, _, id string, _ int64, w io.Writer) error {
	return g.blob(ctx, id, w)
}

func (g *guest) BlobDone(ctx context.Context, _, id string) error {
	if g.stuck {
		<-ctx.Done()
		return fault.Wrap(context.Cause(ctx), fault.SandboxUnreachable, "")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = append(g.done, id)
	if g.heard != nil {
		g.heard <- struct{}{}
	}
	delete(g.files, id)
	return nil
}

func idOf(b string) string {
	sum := sha256.Sum256([]byte(b))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// turnWith is a turn's log that tells of these blobs.
func turnWith(turn session.TurnID, blobs ...uistream.Blob) []driverapi.Record {
	parts := []uistream.Part{uistream.Start{MessageID: string(turn)}.Part()}
	for _, b := range blobs {
		parts = append(parts, uistream.Data{Name: uistream.DataBlob, Data: uistream.ValueOf(b)}.Part())
	}
	var out []driverapi.Record
	for i, p := range parts {
		out = append(out, driverapi.Record{N: int64(i + 1), Part: p.Raw})
	}
	return append(out, driverapi.Record{N: int64(len(parts)), End: &driverapi.End{Outcome: driverapi.OutcomeEndTurn, Clean: true, Parts: int64(len(parts))}})
}

// server is a recorder over a real store.
func server(w *resttest.World) *recorder.Recorder {
	secrets := func() [][]byte { return [][]byte{[]byte(canary)} }
	w.Blobs.Secrets = secrets
	return &recorder.Recorder{
		Sessions: w.Sessions, Log: w.Sessions.Log, Publish: w.Hub.Publish, Stored: w.Hub.Stored, Now: time.Now, Slog: slog.New(slog.DiscardHandler),
		Secrets: secrets, Blobs: w.Blobs,
	}
}

func told() recorder.Told { return recorder.Told{} }

func read(t *testing.T, w *resttest.World, id session.ID, of string) (string, blob.Row, error) {
	t.Helper()
	row, err := w.Blobs.Find(t.Context(), string(id), of)
	if err != nil {
		return "", row, err
	}
	f, err := w.Blobs.Open(row)
	if err != nil {
		return "", row, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), row, nil
}

func TestBlobsAreTakenOver(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	turn := w.Get(id).Open
	plain := strings.Repeat("\x1b[1mline\x00\xff\n", 100_000)
	keyed := "the key is " + canary + "\x00, and in JSON \\u0073" + canary[1:] + "."
	contents := map[string]string{idOf(plain): plain, idOf(keyed): keyed}
	g := &guest{records: turnWith(turn.ID,
		uistream.Blob{ID: idOf(plain), Bytes: int64(len(plain)), MediaType: "text/plain; charset=utf-8", Why: uistream.BlobControlCodes},
		uistream.Blob{ID: idOf(keyed), Bytes: int64(len(keyed)), MediaType: "text/html", Why: uistream.BlobNotText},
		uistream.Blob{ID: idOf(plain), Bytes: int64(len(plain)), MediaType: "text/plain; charset=utf-8", Why: uistream.BlobControlCodes},
		uistream.Blob{Bytes: 5, Why: uistream.BlobTooLarge, Lost: "The disk."},
	), blob: func(_ context.Context, id string, w io.Writer) error {
		for rest := contents[id]; rest != ""; {
			n := min(len(rest), 7)
			if _, err := io.WriteString(w, rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	}}
	if err := server(w).Record(t.Context(), g, id, *turn, told); err != nil {
		t.Fatal(err)
	}
	if got, row, err := read(t, w, id, idOf(plain)); err != nil || got != plain || "sha256:"+row.Digest != row.ID || row.Masked != 0 || row.MediaType != "text/plain; charset=utf-8" {
		t.Errorf("%d bytes, %+v, %v", len(got), row, err)
	}
	want := "the key is [masked]\x00, and in JSON [masked]."
	if got, row, err := read(t, w, id, idOf(keyed)); err != nil || got != want || "sha256:"+row.Digest != idOf(want) || row.Masked != 2 || row.MediaType != "application/octet-stream" {
		t.Errorf("%q, %+v, %v", got, row, err)
	}
	if left := g.left(); len(left) > 0 || !slices.Contains(g.done, idOf(plain)) || !slices.Contains(g.done, idOf(keyed)) {
		t.Errorf("left %v, done %v", left, g.done)
	}
}

// The sandbox keeps nothing that has been settled, whenever and however that was.
func TestSandboxHasItsRoomBack(t *testing.T) {
	t.Parallel()
	a := idOf("a")
	gives := func(_ context.Context, _ string, w io.Writer) error { _, err := io.WriteString(w, "a"); return err }
	told2 := func(turn session.TurnID) []driverapi.Record {
		return turnWith(turn, uistream.Blob{ID: a, Bytes: 1}, uistream.Blob{ID: a, Bytes: 1})
	}
	for name, tt := range map[string]struct {
		state blob.State // before; of a former turn, but for one that is missing
		guest func(t *testing.T, turn session.TurnID) *guest
	}{
		"stored before": {blob.Stored, func(_ *testing.T, turn session.TurnID) *guest {
			return &guest{records: turnWith(turn, uistream.Blob{ID: a, Bytes: 1}), blob: gives}
		}},
		"missing before": {blob.Missing, func(_ *testing.T, turn session.TurnID) *guest {
			return &guest{records: turnWith(turn, uistream.Blob{ID: a, Bytes: 1}), blob: gives}
		}},
		"again while it is fetched": {"", func(_ *testing.T, turn session.TurnID) *guest {
			again := make(chan struct{})
			return &guest{records: told2(turn), blob: func(ctx context.Context, id string, w io.Writer) error {
				<-again
				return gives(ctx, id, w)
			}, before: func(n int64) {
				if n == 3 {
					close(again)
				}
			}}
		}},
		"again after it was done": {"", func(t *testing.T, turn session.TurnID) *guest {
			heard := make(chan struct{}, 2)
			g := &guest{records: told2(turn), blob: gives, heard: heard}
			g.before = func(n int64) {
				if n == 3 {
					select {
					case <-heard:
					case <-t.Context().Done():
					}
				}
			}
			return g
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := resttest.New(t)
			id := w.Create("x")
			turn := w.Get(id).Open
			row := blob.Row{Session: string(id), ID: a, Turn: "trn_former", Bytes: 1}
			var err error
			switch tt.state {
			case blob.Stored:
				if row, err = w.Blobs.Announce(t.Context(), row); err == nil {
					err = w.Blobs.Take(t.Context(), row, func(ctx context.Context, w io.Writer) error { return gives(ctx, a, w) })
				}
			case blob.Missing:
				row.Turn = string(turn.ID)
				if row, err = w.Blobs.Announce(t.Context(), row); err == nil {
					err = w.Blobs.Miss(t.Context(), row, "It took too long.")
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			g := tt.guest(t, turn.ID)
			if err := server(w).Record(t.Context(), g, id, *turn, told); err != nil {
				t.Fatal(err)
			}
			if left := g.left(); len(left) > 0 {
				t.Errorf("left %v, done %v", left, g.done)
			}
		})
	}
}

// What a guest says of blobs ends no turn and brings nothing but what it is.
func TestGuestsLies(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	turn := w.Get(id).Open
	refused := fault.New(fault.DriverInvalid, "The driver said something that was refused: a blob that is another than its id says.")
	a, b, c := idOf("a"), idOf("b"), idOf("c")
	long := "sha256:" + strings.Repeat("../", 21) + "x"
	records := turnWith(turn.ID,
		uistream.Blob{ID: a, Bytes: 1}, uistream.Blob{ID: b, Bytes: 1 << 40}, uistream.Blob{ID: c, Bytes: 1},
		uistream.Blob{ID: "../../../../etc/passwd", Bytes: 1}, uistream.Blob{ID: long, Bytes: 1}, uistream.Blob{ID: idOf("d"), Bytes: -1},
		uistream.Blob{ID: strings.Repeat("x", 5000), Bytes: 1},
	)
	n := records[len(records)-1].N
	records[len(records)-1] = driverapi.Record{N: n + 1, Part: json.RawMessage(`{"type":"data-blob","data":"no object"}`)}
	records = append(records, driverapi.Record{N: n + 1, End: &driverapi.End{Outcome: driverapi.OutcomeEndTurn, Clean: true, Parts: n + 1}})
	g := &guest{records: records, blob: func(_ context.Context, id string, w io.Writer) error {
		if id == c {
			return fault.New(fault.BlobNotFound, "x")
		}
		if _, err := io.WriteString(w, "secret of another"); err != nil {
			return err
		}
		return refused
	}}
	if err := server(w).Record(t.Context(), g, id, *turn, told); err != nil {
		t.Fatal(err)
	}
	for id2, reason := range map[string]string{
		a: "refused", b: "1099511627776 bytes", c: "did not have it", "../../../../etc/passwd": "id is none", long: "id is none", idOf("d"): "-1 bytes",
	} {
		if _, _, err := read(t, w, id, id2); fault.CodeOf(err) != fault.BlobMissing || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", id2, err)
		}
	}
	if _, _, err := read(t, w, id, strings.Repeat("x", 5000)); fault.CodeOf(err) != fault.BlobNotFound {
		t.Error(err)
	}
	if got := len(w.Transcript(id)); got != 9 {
		t.Errorf("%d parts", got)
	}
}

// A server that was killed between part and blob fetches it when it records again; a blob that does
// not come holds up no part.
func TestBlobAfterARestart(t *testing.T) {
	t.Parallel()
	w := resttest.New(t)
	id := w.Create("x")
	turn := w.Get(id).Open
	g := &guest{records: turnWith(turn.ID, uistream.Blob{ID: idOf("a"), Bytes: 1}), hold: make(chan struct{})}
	g.blob = func(ctx context.Context, _ string, _ io.Writer) error { <-ctx.Done(); return context.Cause(ctx) }
	ctx, kill := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	r := server(w)
	stored := make(chan struct{})
	r.Stored = func(id session.ID, c transcript.Cursor) {
		w.Hub.Stored(id, c)
		if c.Part == 2 {
			close(stored)
		}
	}
	go func() { ended <- r.Record(ctx, g, id, *turn, told) }()
	<-stored
	kill()
	if err := <-ended; err == nil {
		t.Fatal("it ended well")
	}
	if _, row, err := read(t, w, id, idOf("a")); row.State == blob.Missing || row.State == blob.Stored {
		t.Fatalf("%+v %v", row, err)
	}
	if len(g.done) > 0 {
		t.Error("the driver was told to forget what nobody has")
	}
	again := &guest{records: g.records, blob: func(_ context.Context, _ string, w io.Writer) error { _, err := io.WriteString(w, "a"); return err }}
	if err := server(w).Record(t.Context(), again, id, *turn, told); err != nil {
		t.Fatal(err)
	}
	if got, _, err := read(t, w, id, idOf("a")); err != nil || got != "a" || len(again.done) != 1 {
		t.Errorf("%q %v %v", got, err, again.done)
	}
	third := &guest{records: g.records, blob: again.blob} // the second was killed before the driver heard of it
	if err := server(w).Record(t.Context(), third, id, *turn, told); err != nil || len(third.done) != 1 {
		t.Errorf("%v %v", third.done, err)
	}
}

// memory keeps rows where time stands still.
type memory struct {
	mu   sync.Mutex
	rows map[string]blob.Row
}

func (m *memory) AnnounceBlob(_ context.Context, r blob.Row) (blob.Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.rows[r.ID]; ok && (old.State == blob.Stored || old.Turn == r.Turn) {
		return old, nil
	}
	m.rows[r.ID] = r
	return r, nil
}

func (m *memory) SettleBlob(_ context.Context, r blob.Row) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows[r.ID] = r
	return nil
}

func (m *memory) Blob(_ context.Context, _, id string) (blob.Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows[id], nil
}
func (m *memory) Blobs(context.Context, string) ([]blob.Row, error)       { return nil, nil }
func (m *memory) BlobBytes(context.Context, string) (int64, error)        { return 0, nil }
func (m *memory) Append(context.Context, string, []transcript.Part) error { return nil }
func (m *memory) Read(context.Context, string, transcript.Cursor, int) ([]transcript.Part, error) {
	return nil, nil
}
func (m *memory) Last(context.Context, string, int64) (transcript.Cursor, error) {
	return transcript.Cursor{}, nil
}
func (m *memory) Apply(context.Context, session.ID, session.Event) (session.Aggregate, error) {
	return session.Aggregate{}, nil
}

// A blob that trickles holds the end of a turn up for a minute at most, and a cancel for seconds;
// so does a driver that does not hear that it is not wanted any more.
func TestBlobThatNeverComes(t *testing.T) {
	t.Parallel()
	for outcome, most := range map[string]time.Duration{driverapi.OutcomeEndTurn: time.Minute, driverapi.OutcomeCanceled: 3 * time.Second} {
		for _, stuck := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", outcome, stuck), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				synctest.Test(t, func(t *testing.T) {
					m := &memory{rows: map[string]blob.Row{}}
					log := slog.New(slog.DiscardHandler)
					r := &recorder.Recorder{
						Sessions: m, Log: m, Publish: func(session.ID, []transcript.Part) {}, Stored: func(session.ID, transcript.Cursor) {}, Now: time.Now, Slog: log,
						Secrets: func() [][]byte { return nil }, Blobs: &blob.Store{Dir: dir, Rows: m, Secrets: func() [][]byte { return nil }, Now: time.Now, Log: log},
					}
					var list []uistream.Blob
					for i := range 5 {
						list = append(list, uistream.Blob{ID: idOf(fmt.Sprint(i)), Bytes: 200 << 20})
					}
					g := &guest{records: turnWith("trn_1", list...), blob: func(ctx context.Context, _ string, w io.Writer) error {
						for {
							if _, err := w.Write([]byte("x")); err != nil {
								return err
							}
							select {
							case <-time.After(time.Second):
							case <-ctx.Done():
								return context.Cause(ctx)
							}
						}
					}}
					g.records[len(g.records)-1].End.Outcome, g.stuck = outcome, stuck
					begun := time.Now()
					if err := r.Record(t.Context(), g, "ses_1", session.Turn{ID: "trn_1", Number: 1}, told); err != nil {
						t.Fatal(err)
					}
					if took := time.Since(begun); took > most+time.Second {
						t.Errorf("it took %v", took)
					}
					for _, b := range list {
						if row := m.rows[b.ID]; row.State != blob.Missing || row.Reason == "" {
							t.Errorf("%+v", row)
						}
					}
					if left := g.left(); len(left) > 0 && !stuck {
						t.Errorf("the sandbox keeps %d", len(left))
					}
				})
			})
		}
	}
}

// FuzzBlobPart: whatever a data-blob part says, the recording goes on to its end.
func FuzzBlobPart(f *testing.F) {
	f.Add(`{"id":"` + idOf("a") + `","bytes":1}`)
	f.Add(`{"id":"sha256:../..","bytes":-1,"of":{"turn":7}}`)
	f.Add(`{"id":"\u0000","bytes":1e99}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, data string) {
		var compact bytes.Buffer
		if json.Compact(&compact, []byte(data)) != nil {
			return
		}
		m := &memory{rows: map[string]blob.Row{}}
		log := slog.New(slog.DiscardHandler)
		r := &recorder.Recorder{
			Sessions: m, Log: m, Publish: func(session.ID, []transcript.Part) {}, Stored: func(session.ID, transcript.Cursor) {}, Now: time.Now, Slog: log,
			Secrets: func() [][]byte { return nil }, Blobs: &blob.Store{Dir: t.TempDir(), Rows: m, Secrets: func() [][]byte { return nil }, Now: time.Now, Log: log},
		}
		records := turnWith("trn_1", uistream.Blob{})
		records[1].Part = json.RawMessage(`{"type":"data-blob","data":` + compact.String() + `}`)
		g := &guest{records: records, blob: func(_ context.Context, _ string, w io.Writer) error { _, err := io.WriteString(w, "a"); return err }}
		if err := r.Record(t.Context(), g, "ses_1", session.Turn{ID: "trn_1", Number: 1}, told); err != nil {
			t.Fatal(err)
		}
		for id, row := range m.rows {
			if row.State == blob.Pending || id != row.ID {
				t.Errorf("%+v", row)
			}
		}
	})
}
