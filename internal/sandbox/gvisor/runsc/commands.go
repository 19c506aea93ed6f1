package runsc

import (
	"context"
	"fmt"
	"os"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/flag"
)

// execCmd is the runtime's exec that also reports the wait status as it is to a
// descriptor of the caller. The exit status alone cannot tell a signal from an
// exit code, nor the command's failure from the runtime's.
type execCmd struct {
	cmd.Exec
	statusFD int
}

// SetFlags adds the descriptor to the runtime's own flags.
func (e *execCmd) SetFlags(f *flag.FlagSet) {
	e.Exec.SetFlags(f)
	f.IntVar(&e.statusFD, "status-fd", -1, "descriptor to which the wait status is written as a decimal number")
}

// Execute runs the command and reports.
func (e *execCmd) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if e.statusFD >= 0 {
		unix.CloseOnExec(e.statusFD)
	}
	code := e.Exec.Execute(ctx, f, args...)
	if code == subcommands.ExitSuccess && e.statusFD >= 0 {
		if ws, ok := args[1].(*unix.WaitStatus); ok {
			fmt.Fprintf(os.NewFile(uintptr(e.statusFD), "status"), "%d\n", uint32(*ws))
		}
	}
	return code
}

// ExitMark begins the line with the wait status of a sandbox's pid 1.
const ExitMark = "hearth-exit: "

// bootCmd is the sentry, which also says on its stderr (the file that
// --panic-log names) how pid 1 has ended: nobody may be there to wait for it.
type bootCmd struct{ sentrycmd.Boot }

// Execute runs the sentry until pid 1 has ended.
func (b *bootCmd) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	code := b.Boot.Execute(ctx, f, args...)
	if ws, ok := args[1].(*unix.WaitStatus); ok && code == subcommands.ExitSuccess {
		fmt.Fprintf(os.Stderr, "%s%d\n", ExitMark, uint32(*ws))
	}
	return code
}
