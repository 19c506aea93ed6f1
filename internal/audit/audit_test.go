package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/audit"
)

// memory is a store that fails while told to.
type memory struct {
	mu      sync.Mutex
	entries []audit.Entry
	fail    bool
	calls   int
}

func (m *memory) AppendAudit(_ context.Context, entries []audit.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.fail {
		return errors.New("the disk says no")
	}
	m.entries = append(m.entries, entries...)
	return nil
}

func (m *memory) sessions() (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		out = append(out, e.Session)
	}
	return out
}

func (m *memory) asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

func (m *memory) set(fail bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = fail
}

func newLog(m *memory, w *bytes.Buffer) *audit.Log {
	n := 0
	return &audit.Log{
		Store: m, Now: time.Now, NewID: func(p string) string { n++; return fmt.Sprintf("%s_%d", p, n) },
		RequestID: func(context.Context) string { return "req_1" }, Slog: slog.New(slog.NewTextHandler(w, nil)),
	}
}

func TestEntriesReachTheStoreInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		m := &memory{}
		l := newLog(m, &out)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.Run(ctx) }()
		given := map[string]any{"reason": "left"}
		var want []string
		for i := range 1000 {
			s := fmt.Sprint("s", i)
			want = append(want, s)
			l.Add(ctx, audit.Entry{Workspace: "w", Subject: "x", Action: audit.StreamClosed, Session: s, Details: given})
		}
		synctest.Wait()
		if d := cmp.Diff(want, m.sessions()); d != "" {
			t.Error(d)
		}
		m.mu.Lock()
		e := m.entries[0]
		m.mu.Unlock()
		if d := cmp.Diff(map[string]any{"request": "req_1", "reason": "left"}, e.Details); d != "" || e.ID != "aud_1" || !e.At.Equal(time.Now()) || len(given) != 1 {
			t.Errorf("%+v %s", e, d)
		}
		stop()
		<-done
		l.Add(ctx, audit.Entry{Session: "late"})
		l.Close(t.Context())
		if got := m.sessions(); got[len(got)-1] != "late" {
			t.Error("what came after Run and before Close is lost")
		}
		if out.Len() > 0 {
			t.Error(out.String())
		}
	})
}

func TestStoreThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		m := &memory{fail: true}
		l := newLog(m, &out)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.Run(ctx) }()
		l.Add(ctx, audit.Entry{Session: "first"})
		l.Add(ctx, audit.Entry{Session: "second"})
		time.Sleep(10*time.Second + time.Millisecond)
		if n := m.asked(); n < 9 || n > 11 {
			t.Errorf("asked %d times in 10 s", n)
		}
		m.set(false)
		time.Sleep(2 * time.Second)
		if d := cmp.Diff([]string{"first", "second"}, m.sessions()); d != "" {
			t.Errorf("once the store works again: %s", d)
		}
		m.set(true)
		l.Add(ctx, audit.Entry{Session: "third"})
		synctest.Wait()
		stop()
		<-done
		l.Close(t.Context())
		l.Add(t.Context(), audit.Entry{Session: "fourth"})
		for _, s := range []string{"the disk says no", "session=third", "session=fourth"} {
			if !strings.Contains(out.String(), s) {
				t.Errorf("the log has nothing of %q: %s", s, out.String())
			}
		}
	})
}

func TestNobodyWaitsAndNothingGrowsForEver(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	m := &memory{}
	l := newLog(m, &out) // nothing runs
	for i := range 10_001 {
		l.Add(t.Context(), audit.Entry{Session: fmt.Sprint("s", i)})
	}
	if n := strings.Count(out.String(), "audit entry lost"); n != 1 || !strings.Contains(out.String(), "session=s10000") {
		t.Errorf("%d are told as lost", n)
	}
	l.Close(t.Context())
	if n := len(m.sessions()); n != 10_000 {
		t.Errorf("%d are stored", n)
	}
}
