package door_test

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/door"
)

func TestPrintable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                              "",
		"plain words":                   "plain words",
		" a\r\n\tb\x1b[31mred\x00 ":     "a b [31mred",
		"\u202eback\u2066wards\u00a0x":  "back wards x",
		"bad \xff\xfe bytes":            "bad � bytes",
		"12345678901234567890 and more": "12345678901234567890…",
		"1234567890123456789ä":          "1234567890123456789…",
	} {
		if diff := cmp.Diff(want, door.Printable(in, 20)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	m := door.NewMemory(100)
	if !m.Take(60) || m.Take(41) || m.Used() != 60 || !m.Take(40) || m.Take(1) {
		t.Errorf("%d of 100 are held", m.Used())
	}
	m.Give(100)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if m.Take(30) {
				if used := m.Used(); used > 100 {
					t.Errorf("%d of 100 are held", used)
				}
				m.Give(30)
			}
		})
	}
	wg.Wait()
	if m.Used() != 0 || !m.Take(100) {
		t.Errorf("%d are held", m.Used())
	}
}
