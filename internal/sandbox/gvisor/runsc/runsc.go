// Package runsc puts gVisor's runtime into our own binary. [MaybeRun] takes over
// a process that was started under one of the runtime's names and never returns
// then. Only a program's main package imports it, since it links all of gVisor;
// package gvisor starts it as a child process and knows nothing of its insides.
//
// Everything goes by the name a process is started under (argv[0]): the
// runtime's own children get an empty environment and put their flags before
// their sub-command, so neither an environment variable nor a first argument
// could tell. The runtime registers its flags on flag.CommandLine: no package of
// this program may define flags there.
package runsc

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/gvisorbinaries"
	"gvisor.dev/gvisor/runsc/version"
)

// Names of the programs that the runtime looks for beside itself. Symlinks of
// these names to our own binary stand in for them, see MaybeRun.
const (
	SentryName    = "gvisor_sentry"
	PrewarmerName = "gvisor-sentry-prewarmer"
)

const module = "gvisor.dev/gvisor"

// MaybeRun takes over the process when it was started as the runtime or one of
// its parts, and returns otherwise. It must be the first statement of main:
// before flags, loggers and goroutines.
func MaybeRun() {
	if len(os.Args) == 0 {
		return
	}
	switch name := filepath.Base(os.Args[0]); {
	case name == PrewarmerName:
		prewarm()
	case os.Args[0] == GuestFileName:
		os.Exit(guestFile(os.Args[1:]))
	case len(os.Args) == 2 && os.Args[1] == GuestWaitName:
		for {
			time.Sleep(time.Hour)
		}
	case name == SentryName:
		run(&gvisorbinaries.GvisorSentry)
	case strings.HasPrefix(name, "runsc"): // runsc, runsc-sandbox, runsc-gofer, runsc-exec
		run(nil)
	case os.Args[0] == "/proc/self/exe" && len(os.Args) > 1 && os.Args[1] == "umount": // the runtime's helper
		run(nil)
	}
}

// Version is the version of the gVisor module in this binary, as go.mod pins it;
// empty when the binary carries no module information. It is the build's name:
// the runtime refuses memory images made under another one. A program links it
// in with
//
//	-ldflags "-X gvisor.dev/gvisor/runsc/version.version=$(go list -m -f '{{.Version}}' gvisor.dev/gvisor)"
//
// since the runtime itself cannot read it from the build information.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, d := range info.Deps {
		if d.Path != module {
			continue
		}
		if d.Replace != nil {
			return d.Replace.Version
		}
		return d.Version
	}
	return ""
}

// Check tells whether the version that was linked in is the module's own. The
// runtime does not run when it is not.
func Check() error {
	want, got := Version(), version.Version()
	if want == "" || want == got {
		return nil
	}
	return fmt.Errorf("the binary was linked with gVisor version %q but contains %q; build it with -ldflags \"-X %s/runsc/version.version=%s\"", got, want, module, want)
}

// prewarm stands in for the runtime's helper of that name, which reads pages
// ahead and then becomes the program its arguments name: path, argv[0], argv[1] …
func prewarm() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, PrewarmerName+": too few arguments")
		os.Exit(128)
	}
	err := unix.Exec(os.Args[1], os.Args[2:], os.Environ())
	fmt.Fprintln(os.Stderr, PrewarmerName+":", err)
	os.Exit(128)
}

func run(sidecar *gvisorbinaries.Binary) {
	if err := Check(); err != nil {
		fmt.Fprintln(os.Stderr, "runsc:", err)
		os.Exit(128)
	}
	cli.Run(sidecar, map[util.SubCommand]string{
		new(cmd.Checkpoint):   "",
		new(cmd.CPUFeatures):  "",
		new(cmd.Create):       "",
		new(cmd.Delete):       "",
		new(cmd.Events):       "",
		new(execCmd):          "",
		new(cmd.FSCheckpoint): "",
		new(cmd.Kill):         "",
		new(cmd.List):         "",
		new(cmd.PS):           "",
		new(cmd.Pause):        "",
		new(cmd.Restore):      "",
		new(cmd.Resume):       "",
		new(cmd.Start):        "",
		new(cmd.State):        "",
		new(cmd.Tar):          "",
		new(cmd.Wait):         "",
		new(bootCmd):          "internal",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Umount): "internal",
	}, nil)
	os.Exit(128) // not reached: Run ends the process
}
