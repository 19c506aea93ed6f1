package blob

import (
	"errors"
	"syscall"

	"github.com/hearthd/hearth/internal/fault"
)

// coded gives a full disk its code.
func coded(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Wrap(err, fault.DiskFull, "The server's disk is full.")
	}
	return err
}
