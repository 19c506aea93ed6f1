package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hearthd/hearth/internal/sandbox/internal/local"
)

// box is one sandbox's folder.
type box struct{ id, dir string }

func (p *Provider) box(id string) box { return box{id: id, dir: filepath.Join(p.boxesDir(), id)} }

// runtimeID is the sandbox's name at the runtime: shorter than an id may be,
// since the runtime makes a socket's path of it.
func (b box) runtimeID() string {
	sum := sha256.Sum256([]byte(b.id))
	return hex.EncodeToString(sum[:runtimeIDLen/2])
}

const runtimeIDLen = 20

func (b box) record() string  { return filepath.Join(b.dir, "record.json") }
func (b box) pidFile() string { return filepath.Join(b.dir, "pid") }
func (b box) log() string     { return filepath.Join(b.dir, "runsc.log") }
func (b box) panicLog() string {
	return filepath.Join(b.dir, "sentry.log") // the sentry's stderr: a Go panic, and the line that runsc adds when pid 1 ends
}
func (b box) hosts() string { return filepath.Join(b.dir, "hosts") }
func (b box) calls() string { return filepath.Join(b.dir, "calls") } // held by every call of the runtime, see local.Hold

// record is what is kept of a sandbox on disk. It is there before the runtime
// is asked for anything and goes last.
type record struct {
	Version   int               `json:"version"`
	ID        string            `json:"id"`
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"created"`
	Root      string            `json:"root"`    // digest
	Process   local.Process     `json:"process"` // the sentry, once created
	Cgroup    string            `json:"cgroup,omitempty"`
	DiskBytes int64             `json:"diskBytes"`
}

func (b box) load() (record, error) {
	data, err := os.ReadFile(b.record())
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("read the record of sandbox %s: %w", b.id, err)
	}
	return r, nil
}

// make makes the sandbox's folder with its record: there is none without.
func (b box) make(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return local.NewFolder(b.dir, 0o711, filepath.Base(b.record()), append(data, '\n'), 0o600)
}

func (b box) save(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return local.WriteFile(b.record(), append(data, '\n'), 0o600)
}
