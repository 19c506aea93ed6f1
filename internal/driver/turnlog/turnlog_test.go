package turnlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driverapi"
)

func clock() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC) }

func part(i int) driverapi.Record {
	return driverapi.Record{Part: json.RawMessage(fmt.Sprintf(`{"type":"text-delta","id":"t","delta":"<%d>"}`, i))}
}

// summary makes lines short enough for a table.
func summary(t *testing.T, b []byte) []string {
	t.Helper()
	var out []string
	for line := range bytes.Lines(b) {
		var r driverapi.Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		switch {
		case r.Part != nil:
			out = append(out, fmt.Sprintf("part %d", r.N))
		case r.Rung != nil:
			out = append(out, fmt.Sprintf("rung %d", r.N))
		case r.Sent:
			out = append(out, fmt.Sprintf("sent %d", r.N))
		case r.End != nil:
			out = append(out, fmt.Sprintf("end %d %s %s", r.N, r.End.Outcome, r.End.Code))
		}
	}
	return out
}

func noFlush() error { return nil }

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, clock)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReadAfter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	l, err := s.Create("turn_1")
	if err != nil {
		t.Fatal(err)
	}
	steps := [][]driverapi.Record{
		{part(1)}, {{Rung: &driverapi.RungTaken{Rung: "fresh"}}, part(2)}, {{Sent: true}}, {part(3)},
	}
	for _, recs := range steps {
		if err := l.Append(recs...); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.End(driverapi.End{Outcome: driverapi.OutcomeEndTurn}); err != nil {
		t.Fatal(err)
	}
	all := []string{"part 1", "rung 1", "part 2", "sent 2", "part 3", "end 3 end_turn "}
	tests := map[int64][]string{0: all, 1: all[1:], 2: all[3:], 3: all[5:], 4: nil}
	for _, l := range []*Log{l, open(t, dir).Get("turn_1")} {
		for after, want := range tests {
			var buf bytes.Buffer
			if err := l.Read(t.Context(), after, &buf, noFlush); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, summary(t, buf.Bytes())); d != "" {
				t.Errorf("after %d: %s", after, d)
			}
		}
	}
	if err := l.Append(part(4)); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
	if again, err := s.Create("turn_1"); !errors.Is(err, ErrExists) || again != l {
		t.Errorf("second create: %v", err)
	}
	if _, err := s.Create("../x"); !errors.Is(err, ErrName) {
		t.Errorf("bad name: %v", err)
	}
	st, err := os.Stat(filepath.Join(dir, "turn_1.ndjson"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", st.Mode(), err)
	}
}

func TestLiveReaders(t *testing.T) {
	t.Parallel()
	l, err := open(t, t.TempDir()).Create("t")
	if err != nil {
		t.Fatal(err)
	}
	const n = 500
	var wg sync.WaitGroup
	got := make([][]string, 4)
	for i := range got {
		wg.Go(func() {
			var buf bytes.Buffer
			if err := l.Read(t.Context(), int64(i*10), &buf, noFlush); err != nil {
				t.Error(err)
			}
			got[i] = summary(t, buf.Bytes())
		})
	}
	big := driverapi.Record{Part: json.RawMessage(`"` + strings.Repeat("x", 200_000) + `"`)}
	for i := range n {
		rec := part(i)
		if i == n/2 {
			rec = big
		}
		if err := l.Append(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.End(driverapi.End{Outcome: driverapi.OutcomeCanceled}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i := range got {
		var want []string
		for k := i*10 + 1; k <= n; k++ {
			want = append(want, fmt.Sprintf("part %d", k))
		}
		want = append(want, fmt.Sprintf("end %d canceled ", n))
		if d := cmp.Diff(want, got[i]); d != "" {
			t.Errorf("reader %d: %s", i, d)
		}
	}
}

func TestReadStops(t *testing.T) {
	t.Parallel()
	l, err := open(t, t.TempDir()).Create("t")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = l.Read(ctx, 0, io.Discard, func() error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// now is what a reader gets who goes away when there is no more.
func now(t *testing.T, l *Log) []byte {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var buf bytes.Buffer
	err := l.Read(ctx, 0, &buf, func() error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	return buf.Bytes()
}

// What comes out of memory is what is in the file, wherever memory begins, and whatever
// could not be written between.
func TestMemoryIsTheFile(t *testing.T) {
	t.Parallel()
	l, err := open(t, t.TempDir()).Create("t")
	if err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	disk := l.f
	var held [][]byte // memory as readers may still have it
	var want [][]byte
	for i := 0; l.size < 5*tailBytes; i++ {
		if i%100 == 7 {
			l.f = full
			if err := l.Append(part(-i), part(-i)); !Full(err) {
				t.Fatalf("append: %v", err)
			}
			l.f = disk
		}
		recs := []driverapi.Record{part(i), {Part: json.RawMessage(`"` + strings.Repeat("x", i*7%3000) + `"`)}}
		if i == 50 {
			recs = append(recs, driverapi.Record{Part: json.RawMessage(`"` + strings.Repeat("y", 2*tailBytes) + `"`)})
		}
		if err := l.Append(recs...); err != nil {
			t.Fatal(err)
		}
		held, want = append(held, l.tail), append(want, bytes.Clone(l.tail))
		if i%20 > 0 {
			continue
		}
		file, err := os.ReadFile(l.path)
		if err != nil {
			t.Fatal(err)
		}
		if got := now(t, l); !bytes.Equal(got, file) {
			t.Fatalf("after %d: %d bytes, the file has %d", i, len(got), len(file))
		}
	}
	for i := range held {
		if !bytes.Equal(held[i], want[i]) {
			t.Fatalf("what readers had after %d has changed", i)
		}
	}
	if len(l.tail) > 2*tailBytes {
		t.Errorf("%d bytes in memory", len(l.tail))
	}
}

// Who has kept up does not read the file.
func TestNewestComesOutOfMemory(t *testing.T) {
	t.Parallel()
	l, err := open(t, t.TempDir()).Create("t")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(part(1), part(2)); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(l.path, 0); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"part 1", "part 2"}, summary(t, now(t, l))); d != "" {
		t.Error(d)
	}
}

func TestRecover(t *testing.T) {
	t.Parallel()
	p1 := `{"n":1,"at":"2026-01-02T03:04:05Z","part":{"type":"start"}}` + "\n"
	end := `{"n":1,"at":"2026-01-02T03:04:05Z","end":{"outcome":"refusal","clean":true,"parts":1}}` + "\n"
	tests := map[string]struct {
		file string
		want []string
	}{
		"ended":        {p1 + end, []string{"part 1", "end 1 refusal "}},
		"cut":          {p1, []string{"part 1", "end 1 failed AGENT_LOST"}},
		"torn line":    {p1 + `{"n":2,"at":"20`, []string{"part 1", "end 1 failed AGENT_LOST"}},
		"empty":        {"", []string{"end 0 failed AGENT_LOST"}},
		"torn at once": {`{"n"`, []string{"end 0 failed AGENT_LOST"}},
		"long line": {
			p1 + `{"n":2,"at":"2026-01-02T03:04:05Z","part":"` + strings.Repeat("y", 300_000) + "\"}\n",
			[]string{"part 1", "part 2", "end 2 failed AGENT_LOST"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "a.ndjson"), []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time changes nothing
				l := open(t, dir).Get("a")
				var buf bytes.Buffer
				if err := l.Read(t.Context(), 0, &buf, noFlush); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, summary(t, buf.Bytes())); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

// /dev/full refuses every write as a full disk does.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	l, err := s.Create("t")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(part(1)); err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	disk := l.f
	defer disk.Close()
	l.f = full
	if err := l.Append(part(2)); !Full(err) {
		t.Errorf("append: %v", err)
	}
	_ = l.End(driverapi.End{Outcome: driverapi.OutcomeFailed, Code: "DISK_FULL"})
	var buf bytes.Buffer
	if err := l.Read(t.Context(), 0, &buf, noFlush); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"part 1", "end 1 failed DISK_FULL"}, summary(t, buf.Bytes())); d != "" {
		t.Error(d)
	}
}

func TestPartIsKeptByteForByte(t *testing.T) {
	t.Parallel()
	l, err := open(t, t.TempDir()).Create("t")
	if err != nil {
		t.Fatal(err)
	}
	raw := `{ "b":1,  "a":"\u003c<&\u2028" ,"n":1e3}`
	if err := l.Append(driverapi.Record{Part: json.RawMessage(raw)}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"{\n}", "{", ""} {
		if err := l.Append(driverapi.Record{Part: json.RawMessage(bad)}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if err := l.End(driverapi.End{}); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := l.Read(t.Context(), 0, &buf, noFlush); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(buf.String(), `"part":`+raw+"}") {
		t.Errorf("got %s", buf.String())
	}
}

// BenchmarkFollow is from the writing of a part, or of several at once, to a reader
// who waits for it.
func BenchmarkFollow(b *testing.B) {
	for _, parts := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d at once", parts), func(b *testing.B) {
			s, err := Open(b.TempDir(), time.Now)
			if err != nil {
				b.Fatal(err)
			}
			l, err := s.Create("t")
			if err != nil {
				b.Fatal(err)
			}
			recs := make([]driverapi.Record, parts)
			for i := range recs {
				recs[i] = part(i)
			}
			got, done := make(chan struct{}, 1), make(chan error, 1)
			go func() {
				done <- l.Read(b.Context(), 0, io.Discard, func() error { got <- struct{}{}; return nil })
			}()
			<-got
			for b.Loop() {
				if err := l.Append(recs...); err != nil {
					b.Fatal(err)
				}
				<-got
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*parts), "ns/part")
			if err := errors.Join(l.End(driverapi.End{}), <-done); err != nil {
				b.Fatal(err)
			}
		})
	}
}
