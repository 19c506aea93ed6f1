// Command hearth is the server and the command line in one file. This package
// wires; it decides nothing.
package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/term"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/cli"
	"github.com/hearthd/hearth/internal/sandbox/gvisor/runsc"
	"github.com/hearthd/hearth/internal/server"
)

// version is linked in.
var version = "dev"

func main() {
	// The runtime starts this program again under its own names: nothing may come before.
	runsc.MaybeRun()
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, IsTerminal: isTerminal, Version: build(),
		Program: program(), Holder: server.Holder,
		Serve: serve, AgentInstall: agentInstall, AgentList: agentList, AgentVerify: agentVerify, Doctor: doctor,
	}))
}

// program is how to call this one again from the same folder.
func program() string {
	if strings.Contains(os.Args[0], "/") {
		return os.Args[0]
	}
	return "hearth"
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func build() client.Version {
	v := client.Version{Version: version, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	return v
}
