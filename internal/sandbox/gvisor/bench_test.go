package gvisor_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/hearthd/hearth/internal/sandbox"
	"github.com/hearthd/hearth/internal/sandbox/gvisor"
)

// BenchmarkStart measures a sandbox from Create to the end of a first command,
// and its removal, with the runtime's sidecar programs laid out and without.
func BenchmarkStart(b *testing.B) {
	for _, sidecars := range []bool{true, false} {
		b.Run(fmt.Sprintf("sidecars=%v", sidecars), func(b *testing.B) {
			d, err := os.MkdirTemp(dir, "")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(d)
			p := open(b, d, func(c *gvisor.Config) { c.Sidecars = sidecars })
			for i := 0; b.Loop(); i++ {
				h, err := p.Create(b.Context(), spec(fmt.Sprintf("b%d", i)))
				if err == nil {
					err = p.Start(b.Context(), h)
				}
				if err == nil {
					_, err = p.Exec(b.Context(), h, sandbox.Command{Args: []string{sandbox.PathDriver, "exit", "0"}})
				}
				if err == nil {
					err = p.Delete(b.Context(), h)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
