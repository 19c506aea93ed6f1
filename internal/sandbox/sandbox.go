// Package sandbox is the contract between Hearth and whatever can isolate a
// session's agent: [Provider] and the values it takes and gives. It starts
// nothing itself; package gvisor is the default implementation, bubblewrap an
// opt-in weaker one. The suite that every implementation passes is in sandboxtest.
//
// A sandbox is one generation of one session's place to work. The order of
// calls is Create, Start, (Get, Exec, ReadFile, WriteFile)*, Delete. Create makes
// everything and runs nothing; its [Handle] is stored before Start, so that a
// server that dies in between finds the sandbox again. Nothing of a sandbox
// depends on the process that started it: a restarted server goes on with the
// handle alone.
//
// Inside every sandbox the same paths hold, see the Path constants. There is no
// network: only loopback, and one Unix socket to the session's doors.
package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"time"
)

// Paths inside a sandbox, the same for every provider.
const (
	PathHome   = "/home/agent"            // HOME, in the copy-on-write layer
	PathWork   = "/workspace/repo"        // the work tree, in the copy-on-write layer
	PathDoors  = "/run/hearth"            // Spec.DoorDir, read-only
	PathSocket = "/run/hearth/doors.sock" // the only way out
	PathConfig = "/run/hearth/driver.json"
	PathDriver = "/opt/hearth/driver" // the driver's binary, pid 1
	PathAgents = "/opt/hearth/agents" // read-only agents layer
	PathState  = "/var/lib/hearth"    // the driver's turn logs, in the copy-on-write layer
)

// Spec says what to make. All host paths are absolute.
type Spec struct {
	ID       string            // unique for ever: names the sandbox at the substrate; [a-z0-9-], at most 48 bytes
	Labels   map[string]string // found again by List; keys and values [A-Za-z0-9._-]
	Root     Root
	Binds    []Bind   // read-only, in order; agents layer and driver among them
	DoorDir  string   // host folder that holds doors.sock and driver.json, appears at PathDoors
	Command  []string // pid 1 and its arguments
	Env      []string // of pid 1, KEY=VALUE
	Hostname string
	Hosts    []string // names that resolve to 127.0.0.1 inside, beside localhost
	Limits   Limits
}

// Root says what the file system starts from.
type Root struct {
	Kind string // "host" (a generated root with the host's /usr by read-only bind) or "oci"
	Ref  string // for oci: registry reference, "oci-layout:DIR" or "docker-archive:FILE"
}

// Bind is one read-only file or folder of the host, shown inside.
type Bind struct{ Source, Target string }

// Limits of one sandbox; zero means the provider's default, never unlimited.
// Which ones hold is told by Capabilities.
type Limits struct {
	CPUMillis   int64 // thousandths of a core
	MemoryBytes int64 // of all processes and written pages; reaching it may end the whole sandbox, and Info.Exit says so
	DiskBytes   int64 // of the copy-on-write layer
	TmpBytes    int64 // of /tmp
	Processes   int64 // the guest's own where the provider can count them
}

// Handle names a created sandbox. It is opaque outside its provider and
// versioned; it is stored as JSON.
type Handle struct {
	Version  int             `json:"version"`
	Provider string          `json:"provider"`
	Host     string          `json:"host"` // the machine that holds it
	ID       string          `json:"id"`
	Data     json.RawMessage `json:"data,omitempty"`
}

// State is what the substrate says of a sandbox.
type State string

// The states. Unknown is the answer when the substrate could not be asked: it
// is never mixed up with Absent, and only Absent may clear a pointer.
const (
	Created State = "created" // made, pid 1 not started
	Running State = "running"
	Paused  State = "paused"
	Stopped State = "stopped" // pid 1 has ended, something is left to delete
	Absent  State = "absent"
	Unknown State = "unknown"
)

// Info is one sandbox as the substrate knows it.
type Info struct {
	Handle  Handle
	State   State
	Labels  map[string]string
	Created time.Time
	Exit    string // for Stopped: exit status, signal or limit, as far as known
}

// Isolation is how strong the wall is, shown to people everywhere.
type Isolation string

// The strengths.
const (
	IsolationKernel    Isolation = "gvisor"     // own user-space kernel
	IsolationNamespace Isolation = "namespaces" // shared host kernel: trusted code only
)

// Capabilities is asked first; nobody calls what is not offered.
type Capabilities struct {
	Isolation      Isolation `json:"isolation"`
	Pause          bool      `json:"pause"`
	MemorySnapshot bool      `json:"memorySnapshot"`
	FilesSnapshot  bool      `json:"filesSnapshot"`
	LimitCPU       bool      `json:"limitCPU"`
	LimitMemory    bool      `json:"limitMemory"`
	LimitDisk      bool      `json:"limitDisk"`
	LimitProcesses bool      `json:"limitProcesses"`
	Privileged     bool      `json:"privileged"` // runs as root of the host, with cgroups
}

// Probe is the outcome of a provider's self-test.
type Probe struct {
	OK       bool          `json:"ok"`
	Provider string        `json:"provider"`
	Build    string        `json:"build"` // version of the runtime
	Took     time.Duration `json:"took"`
	Checks   []Check       `json:"checks"`
}

// Check is one thing the self-test looked at.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"` // what was seen, and what to do when not ok
}

// Command is one process for Exec.
type Command struct {
	Args   []string
	Env    []string // KEY=VALUE, whole environment; a provider may add HOME where it is missing
	Dir    string
	Stdin  io.Reader // nil: empty
	Stdout io.Writer // nil: dropped; one write at a time
	Stderr io.Writer
}

// Exit is how a command ended. It is the command's own result; what went wrong
// on our side is Exec's error.
type Exit struct {
	Code   int // 0..255; -1 when ended by a signal
	Signal string
}

// Provider makes and ends sandboxes. All methods may be called concurrently,
// for one sandbox too; each has a deadline of its own beside the context's.
// Codes: SANDBOX_UNSUPPORTED (this machine cannot), SANDBOX_START_FAILED,
// SANDBOX_NOT_FOUND, SANDBOX_UNREACHABLE (the substrate does not answer),
// DISK_FULL, ROOT_INVALID.
type Provider interface {
	// Capabilities never blocks.
	Capabilities() Capabilities
	// Probe boots a throw-away sandbox within 30 s: a canary file bound in must be
	// the one seen inside, and no network may be there. It returns an error only when ctx ends.
	Probe(ctx context.Context) (Probe, error)
	// Create makes the sandbox without running anything. On error nothing is left behind.
	Create(ctx context.Context, s Spec) (Handle, error)
	// Start runs pid 1. It is an error to start twice.
	Start(ctx context.Context, h Handle) error
	// Get tells the state; a sandbox that is not there is State Absent, not an error.
	// An error always comes with State Unknown.
	Get(ctx context.Context, h Handle) (Info, error)
	// List returns the sandboxes of this host that bear all given labels.
	List(ctx context.Context, labels map[string]string) ([]Info, error)
	// Delete ends every process of the sandbox and removes all that Create made.
	// It is idempotent; success means nothing is left: process, mount, cgroup, file.
	Delete(ctx context.Context, h Handle) error
	// Exec runs a command for diagnosis beside pid 1, as the sandbox's root. It returns when the command
	// has ended, even if others hold its output open. Nothing that must last may be started so.
	Exec(ctx context.Context, h Handle, c Command) (Exit, error)
	// ReadFile reads a regular file of at most max bytes; fs.ErrNotExist when it is not there.
	ReadFile(ctx context.Context, h Handle, path string, max int64) ([]byte, error)
	// WriteFile writes a file, making parent folders as needed.
	WriteFile(ctx context.Context, h Handle, path string, data []byte, mode fs.FileMode) error
}

// Tidier is a [Provider] that keeps things which no single sandbox owns, such as unpacked
// images. Whoever holds a provider asks by a type assertion, and calls it now and then.
type Tidier interface {
	// Tidy removes what was last used before a time and is in no sandbox. It may run
	// beside everything else.
	Tidy(ctx context.Context, before time.Time) error
}
