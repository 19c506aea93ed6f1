// Package driverbin carries the driver's binary inside hearth and lays it out on
// disk, where sandboxes bind it. `make build` puts the binary into dist first.
package driverbin

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hearthd/hearth/internal/fault"
)

//go:embed all:dist
var dist embed.FS

// Lay writes the driver below dir, named by its hash, and returns its path and
// hash. What is there already is left alone: sandboxes may be running it.
func Lay(dir string) (path, build string, err error) {
	b, err := dist.ReadFile("dist/hearth-driver")
	if err != nil {
		return "", "", fault.Wrap(err, fault.ConfigInvalid, "This hearth was built without its driver. Build it with `make build`.")
	}
	sum := sha256.Sum256(b)
	build = hex.EncodeToString(sum[:8])
	path = filepath.Join(dir, build, "hearth-driver")
	if have, err := os.ReadFile(path); err == nil && sha256.Sum256(have) == sum {
		return path, build, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", "", fmt.Errorf("make folder for the driver: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "driver-*")
	if err != nil {
		return "", "", fmt.Errorf("lay out the driver: %w", err)
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return "", "", errors.Join(fmt.Errorf("lay out the driver: %w", err), os.Remove(tmp.Name()))
	}
	return path, build, nil
}
