// Command runscbin is the smallest program with gVisor's runtime in it. The tests
// of package gvisor build it once and use it as the provider's executable.
package main

import (
	"fmt"
	"os"

	"github.com/hearthd/hearth/internal/sandbox/gvisor/runsc"
)

func main() {
	runsc.MaybeRun()
	fmt.Fprintln(os.Stderr, "runscbin: not started under a runtime's name")
	os.Exit(2)
}
