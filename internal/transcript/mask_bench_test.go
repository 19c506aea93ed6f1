package transcript

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// BenchmarkMaskerTurn is a turn of 64 MiB in deltas of 200 bytes with ten secrets:
// words, and code as JSON escapes it.
func BenchmarkMaskerTurn(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	var secrets [][]byte
	for i := range 10 {
		s := []byte("sk-")
		for range 40 + i {
			s = append(s, letters[r.IntN(len(letters))])
		}
		secrets = append(secrets, s)
	}
	words := strings.Fields("the function returns an error when its Parser cannot read 12 of these lines, and so every caller (see below) must look at it; if err != nil")
	for name, sep := range map[string]string{"words": " ", "code": "\n\t\"x\" "} {
		var parts []json.RawMessage
		size := int64(0)
		for range 4096 {
			var t strings.Builder
			for t.Len() < 200-8 {
				t.WriteString(words[r.IntN(len(words))] + sep)
			}
			parts = append(parts, text("text-1", t.String()))
			size += int64(t.Len())
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(64 << 20)
			b.ReportAllocs()
			for b.Loop() {
				m := NewMasker(secrets)
				n, out := int64(0), 0
				for done := int64(0); done < 64<<20; done += size {
					for _, p := range parts {
						n++
						out += len(m.Add(n, p))
					}
				}
				if out += len(m.Flush()); out != int(n) {
					b.Fatal(fmt.Errorf("%d parts of %d", out, n))
				}
			}
		})
	}
}
