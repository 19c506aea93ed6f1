package uistream_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/uistream"
)

func decode(t *testing.T, r io.Reader, limit int) ([]uistream.Event, error) {
	t.Helper()
	d := uistream.NewDecoder(r, limit)
	var out []uistream.Event
	for {
		e, err := d.Next()
		if err != nil {
			return out, err
		}
		e.Data = bytes.Clone(e.Data)
		out = append(out, e)
	}
}

func TestEventsRoundTrip(t *testing.T) {
	t.Parallel()
	var b []byte
	b = uistream.AppendComment(b, "alive")
	b = uistream.AppendEvent(b, "1.0", []byte(`{"type":"start"}`))
	b = uistream.AppendNamedEvent(b, "reset", "", []byte("a\nb\r\nc\rd"))
	b = uistream.AppendEvent(b, "1.1\nid: forged", nil)
	b = uistream.AppendDone(b)
	want := []uistream.Event{
		{Comment: "alive"},
		{ID: "1.0", Data: []byte(`{"type":"start"}`)},
		{ID: "1.0", Name: "reset", Data: []byte("a\nb\nc\nd")},
		{ID: "1.1 id: forged", Data: []byte{}},
		{ID: "1.1 id: forged", Data: []byte("[DONE]"), Done: true},
	}
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(b), "byte by byte": iotest.OneByteReader(bytes.NewReader(b))} {
		got, err := decode(t, r, 0)
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(want, got, cmp.Transformer("data", func(b []byte) string { return string(b) })); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestDecoderFollowsTheStandard(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		want     []uistream.Event
	}{
		{"line ends", "data: a\r\n\r\ndata:b\r\rdata:  c\n\n", []uistream.Event{{Data: []byte("a")}, {Data: []byte("b")}, {Data: []byte(" c")}}},
		{"byte order mark", "\uFEFFdata: a\n\n", []uistream.Event{{Data: []byte("a")}}},
		{"unfinished is dropped", "data: a\n\ndata: b\n", []uistream.Event{{Data: []byte("a")}}},
		{"no data, no event", "id: 7\nevent: x\n\ndata: a\n\n", []uistream.Event{{ID: "7", Data: []byte("a")}}},
		{"id with NUL is passed over", "id: 7\ndata: a\n\nid: 8\x00\ndata: b\n\n", []uistream.Event{{ID: "7", Data: []byte("a")}, {ID: "7", Data: []byte("b")}}},
		{"id taken back", "id: 7\ndata: a\n\nid\ndata: b\n\n", []uistream.Event{{ID: "7", Data: []byte("a")}, {Data: []byte("b")}}},
		{"unknown fields", "retry: 1\nfoo\ndata: a\nbar: x\n\n", []uistream.Event{{Data: []byte("a")}}},
		{"comment inside an event", "data: a\n: hm\ndata: b\n\n", []uistream.Event{{Data: []byte("a\nb")}}},
		{"empty data line", "data\n\n", []uistream.Event{{Data: []byte("")}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := decode(t, strings.NewReader(tt.in), 0)
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			if d := cmp.Diff(tt.want, got, cmp.Transformer("data", func(b []byte) string { return string(b) })); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDecoderLimit(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"one line":    "data: " + strings.Repeat("x", 200) + "\n\n",
		"many lines":  strings.Repeat("data: xxxxxxxxxx\n", 20) + "\n",
		"no line end": strings.Repeat("x", 500),
	} {
		_, err := decode(t, strings.NewReader("id: 3\ndata: a\n\n"+in), 100)
		if !errors.Is(err, uistream.ErrEventTooLong) || !strings.Contains(err.Error(), `"3"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("cut")
	got, err := decode(t, io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)), 0)
	if !errors.Is(err, broken) || len(got) != 1 {
		t.Errorf("%d events, %v", len(got), err)
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add("data: a\n\n: c\n\nid: 1\r\ndata: b\r\r")
	f.Add("\uFEFFdata\n\nevent: x\ndata: [DONE]\n\n")
	f.Fuzz(func(t *testing.T, in string) {
		one, err1 := decode(t, strings.NewReader(in), 64)
		two, err2 := decode(t, iotest.OneByteReader(strings.NewReader(in)), 64)
		if d := cmp.Diff(one, two); d != "" || err1.Error() != err2.Error() {
			t.Fatalf("chunks matter: %s %v %v", d, err1, err2)
		}
		for _, e := range one {
			if e.Comment != "" || len(e.Data) > 64 {
				if len(e.Data) > 64 {
					t.Fatal("over the limit")
				}
				continue
			}
			again, _ := decode(t, bytes.NewReader(uistream.AppendNamedEvent(nil, e.Name, e.ID, e.Data)), 0)
			if len(again) != 1 || again[0].ID != e.ID || again[0].Name != e.Name || !bytes.Equal(again[0].Data, e.Data) {
				// A NUL in a name is taken out and cannot come back.
				if !strings.Contains(e.Name, "\x00") {
					t.Fatalf("%+v came back as %+v", e, again)
				}
			}
		}
	})
}
