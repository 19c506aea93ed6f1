package gvisor

import (
	"slices"

	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// ours finds the runtime's processes that belong to a sandbox by their
// arguments: our own state folder and the sandbox's bundle or id. It finds those
// that were started and not yet recorded when a server was killed.
func (p *Provider) ours(b box) []int {
	root := "--root=" + p.runtimeDir()
	return local.Find(func(args []string) bool {
		return slices.Contains(args, root) && (slices.Contains(args, b.runtimeID()) || slices.Contains(args, "--bundle="+b.dir))
	})
}
