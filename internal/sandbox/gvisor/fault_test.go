package gvisor

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthd/hearth/internal/fault"
)

func TestStartFault(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want fault.Code
	}{
		{errors.New("cannot create gofer process: gofer: fork/exec /proc/self/exe: no space left on device"), fault.SandboxUnsupported},
		{fmt.Errorf("write record: %w", unix.ENOSPC), fault.DiskFull},
		{errors.New("creating filestore: no space left on device"), fault.DiskFull},
		{fault.New(fault.RootInvalid, "no"), fault.RootInvalid},
		{errors.New("something else"), fault.SandboxStartFailed},
	} {
		if got := fault.CodeOf(startFault(c.err, "The sandbox could not be created.")); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}
